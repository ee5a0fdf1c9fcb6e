import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.correctness import (
    every_shard_changed,
    first_non_finite,
    local_checksums,
    local_elements,
    local_squared_gradient_norm,
    replicas_equal,
)
from tests.worlds import fake_world, launch_of, tiny_model

FLOATS = st.floats(-1e6, 1e6, width=32)


def model_of(*values: list[float]) -> nn.ParameterList:
    return nn.ParameterList([torch.tensor(each, dtype=torch.float32) for each in values])


@pytest.fixture(scope="module")
def whole():
    return tiny_model(launch_of(0, 1), strategy="ddp")


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=20), min_size=1, max_size=4))
def test_checksums_are_the_sum_and_the_sum_of_squares_of_each_parameter(values):
    model = model_of(*values)
    exact = [parameter.tolist() for parameter in model]
    for (total, squares), numbers in zip(local_checksums(model), exact, strict=True):
        assert total == pytest.approx(math.fsum(numbers), rel=1e-12, abs=1e-6)
        assert squares == pytest.approx(math.fsum(number * number for number in numbers), rel=1e-12)


def test_checksums_see_differences_that_float32_would_swallow():
    assert local_checksums(model_of([2.0**24, 1.0])) != local_checksums(model_of([2.0**24, 0.0]))


def test_checksums_are_read_without_touching_the_gradients():
    model = model_of([1.0, 2.0])
    local_checksums(model)
    assert model[0].grad is None


def test_gradient_norm_is_the_sum_of_squares_over_all_parameters():
    model = model_of([0.0, 0.0], [0.0])
    model[0].grad, model[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    assert local_squared_gradient_norm(model) == 169.0


def test_gradient_norm_skips_parameters_without_a_gradient():
    model = model_of([0.0], [0.0])
    model[1].grad = torch.tensor([2.0])
    assert local_squared_gradient_norm(model) == 4.0


@pytest.mark.parametrize("world_size", [1, 2, 3, 64])
def test_the_elements_of_all_ranks_add_up_to_the_model(whole, world_size):
    elements = []
    for rank in range(world_size):
        with fake_world(rank, world_size) as launch:
            elements.append(local_elements(tiny_model(launch)))
    assert sum(elements) == local_elements(whole)


@pytest.mark.parametrize("world_size", [2, 3, 64])
def test_the_checksums_of_all_shards_add_up_to_those_of_the_model(whole, world_size):
    shards = []
    for rank in range(world_size):
        with fake_world(rank, world_size) as launch:
            shards.append(local_checksums(tiny_model(launch)))
    total = [
        (math.fsum([s for s, _ in parts]), math.fsum([q for _, q in parts])) for parts in zip(*shards, strict=True)
    ]
    assert total == [pytest.approx(pair, rel=1e-9, abs=1e-9) for pair in local_checksums(whole)]


def test_a_shard_that_training_left_alone_is_noticed():
    assert not every_shard_changed([(1.0, 1.0), (2.0, 4.0)], [(1.5, 1.0), (2.0, 4.0)], [1, 1])


def test_a_change_of_the_squared_sum_alone_counts_as_change():
    assert every_shard_changed([(0.0, 2.0)], [(0.0, 8.0)], [2])


def test_an_empty_shard_cannot_change_and_does_not_count():
    assert every_shard_changed([(1.0, 1.0), (0.0, 0.0)], [(1.5, 1.0), (0.0, 0.0)], [1, 0])


def test_replicas_that_differ_in_the_last_bit_are_not_equal():
    assert not replicas_equal([[(1.0, 1.0)], [(math.nextafter(1.0, 2.0), 1.0)]])


def test_every_replica_is_compared_not_just_two():
    assert not replicas_equal([[(1.0, 1.0)], [(1.0, 1.0)], [(1.0, 2.0)]])


def test_equal_replicas_are_equal():
    assert replicas_equal([[(1.0, 1.0)], [(1.0, 1.0)]])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_the_first_loss_that_is_not_finite_is_counted_from_one(value):
    assert first_non_finite([1.0, value, 2.0, value]) == 2


def test_finite_losses_have_no_first_that_is_not():
    assert first_non_finite([1.0, 2.0]) is None
