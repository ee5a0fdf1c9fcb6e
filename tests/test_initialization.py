import copy
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.initialization import STANDARD_DEVIATION, fill_parameters, local_tensor, weights_sha256
from common.options import MAX_SEED
from tests.worlds import fake_world, launch_of, tiny_model

SEEDS = st.integers(0, MAX_SEED)
NAMES = ["alpha", "beta", "gamma", "delta"]


def three_by_five(names: list[str]) -> nn.ModuleDict:
    """Return linear layers of one shape under ``names``, in that order."""
    return nn.ModuleDict({name: nn.Linear(5, 3) for name in names})


def filled(names: list[str], seed: int) -> dict[str, torch.Tensor]:
    model = three_by_five(names)
    fill_parameters(model, seed)
    return model.state_dict()


@pytest.fixture(scope="module")
def whole():
    return tiny_model(launch_of(0, 1), strategy="ddp")


def test_norm_weights_start_at_one(whole):
    norms = [module for module in whole.modules() if isinstance(module, nn.LayerNorm)]
    assert {value for norm in norms for value in norm.weight.tolist()} == {1.0}


def test_biases_start_at_zero(whole):
    biases = [parameter for name, parameter in whole.named_parameters() if name.endswith("bias")]
    assert {value for bias in biases for value in bias.tolist()} == {0.0}


def test_a_bias_outside_a_norm_starts_at_zero_too():
    assert not filled(["alpha"], seed=1)["alpha.bias"].any()


def test_all_matrices_start_normal_with_the_standard_deviation_of_the_design(whole):
    matrices = [parameter for parameter in whole.parameters() if parameter.dim() == 2]
    # Seeded, so this cannot flicker; the spread of a sample deviation is about 1 / sqrt(2 n).
    for matrix in matrices:
        assert matrix.std().item() == pytest.approx(STANDARD_DEVIATION, rel=5 / (2 * matrix.numel()) ** 0.5)


def test_all_matrices_start_with_mean_zero(whole):
    for matrix in (parameter for parameter in whole.parameters() if parameter.dim() == 2):
        assert abs(matrix.mean().item()) < 5 * STANDARD_DEVIATION / matrix.numel() ** 0.5


@given(SEEDS, st.permutations(NAMES))
def test_values_do_not_depend_on_the_order_of_construction(seed, names):
    expected, found = filled(NAMES, seed), filled(names, seed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@given(SEEDS, st.sets(st.sampled_from(NAMES), min_size=1))
def test_values_do_not_depend_on_which_other_parameters_there_are(seed, names):
    expected, found = filled(NAMES, seed), filled(sorted(names), seed)
    assert all(torch.equal(expected[name], found[name]) for name in found)


@given(SEEDS, SEEDS)
def test_values_do_not_depend_on_the_default_generator(seed, other):
    torch.manual_seed(other)
    found = filled(NAMES, seed)
    torch.manual_seed(other + 1)
    assert all(torch.equal(values, found[name]) for name, values in filled(NAMES, seed).items())


def test_filling_leaves_the_default_generator_as_it_was():
    before = torch.random.get_rng_state()
    filled_model = three_by_five(NAMES)
    torch.random.set_rng_state(before)
    fill_parameters(filled_model, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


@given(st.tuples(SEEDS, SEEDS).filter(lambda pair: pair[0] != pair[1]))
def test_another_seed_draws_other_values(seeds):
    first, second = (filled(["alpha"], seed)["alpha.weight"] for seed in seeds)
    assert not torch.equal(first, second)


def test_two_parameters_of_one_shape_draw_different_values():
    values = filled(NAMES, seed=1)
    assert not torch.equal(values["alpha.weight"], values["beta.weight"])


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64])
def test_the_shards_of_all_ranks_make_up_the_weights_of_an_unsharded_model(whole, world_size):
    shards = []
    for rank in range(world_size):
        with fake_world(rank, world_size) as launch:
            shards.append([local_tensor(parameter).detach().clone() for parameter in tiny_model(launch).parameters()])
    joined = [torch.cat(parts) for parts in zip(*shards, strict=True)]
    assert all(torch.equal(full, parts) for full, parts in zip(whole.parameters(), joined, strict=True))


def test_a_rank_beyond_the_last_row_stores_nothing_of_that_parameter():
    with fake_world(6, 7) as launch:  # 16 rows over 7 ranks: 3 rows each for five, one for the sixth
        assert local_tensor(tiny_model(launch).classifier.weight).shape == (0, 64)


@given(st.integers(0, 14), st.integers(0, 31))
def test_weights_hash_changes_with_a_single_bit(element, bit):
    model = three_by_five(["alpha"])
    fill_parameters(model, seed=1)
    before = weights_sha256(model)
    values = model["alpha"].weight.data.view(torch.int32).view(-1)
    values[element] ^= struct.unpack("<i", struct.pack("<I", 1 << bit))[0]
    assert weights_sha256(model) != before


@given(st.permutations(NAMES))
def test_weights_hash_does_not_depend_on_the_order_of_construction(names):
    model, reference = three_by_five(names), three_by_five(NAMES)
    for each in (model, reference):
        fill_parameters(each, seed=1)
    assert weights_sha256(model) == weights_sha256(reference)


def test_weights_hash_depends_on_the_names():
    model = three_by_five(["alpha"])
    renamed = nn.ModuleDict({"beta": copy.deepcopy(model["alpha"])})
    assert weights_sha256(renamed) != weights_sha256(model)


def test_weights_hash_depends_on_the_shapes():
    model, reshaped = nn.ParameterList([torch.arange(6.0)]), nn.ParameterList([torch.arange(6.0).reshape(2, 3)])
    assert weights_sha256(reshaped) != weights_sha256(model)


def test_weights_hash_is_the_same_for_a_sharded_and_a_whole_model(whole):
    with fake_world(0, 1) as launch:
        assert weights_sha256(tiny_model(launch)) == weights_sha256(whole)
