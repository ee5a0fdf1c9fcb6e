"""What a side chose on its own, observed: by hand in one process, and in the real runs of the parity matrix."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from common.choices import ChoicesObserver
from common.data import make_batch
from common.options import RunConfig
from comparison.loading import Run
from comparison.pairing import pair_runs
from tests.runs import Cell
from tests.worlds import CPU, launch_of, tiny_model, world_of_one

CONFIG = RunConfig("native", "ddp", preset="tiny")


@pytest.fixture
def model():
    return tiny_model(launch_of(0, 1), strategy="ddp")


def step(model, zero_grad: str, *, autocast: bool = False, cache: bool = True) -> None:
    batch = make_batch(CONFIG.model, CONFIG.seed, 0, 1)
    if zero_grad == "before":
        model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=cache):
        loss = F.cross_entropy(model(batch.tokens).float(), batch.labels)
    if zero_grad == "after":
        model.zero_grad()
    loss.backward()


def observe(model, *, warmup_steps: int = 2, steps: int = 3, zero_grad: str = "before", **precision):
    observer = ChoicesObserver(model, model, CPU, warmup_steps)
    for _ in range(steps):
        step(model, zero_grad, **precision)
    return observer.choices()


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_order_of_zero_grad_is_observed(model, order):
    assert observe(model, zero_grad=order).zero_grad == f"{order} forward"


def test_the_order_is_unknown_where_the_second_step_is_timed_already(model):
    assert observe(model, warmup_steps=1).zero_grad is None


@pytest.mark.parametrize("warmup_steps", [1, 2, 5])
def test_nothing_is_left_on_the_model_when_the_window_opens(model, warmup_steps):
    observe(model, warmup_steps=warmup_steps, steps=warmup_steps)
    assert not model._forward_pre_hooks


def test_the_first_forward_is_observed(model):
    ChoicesObserver(model, model, CPU, 2)
    assert len(model._forward_pre_hooks) == 1


@pytest.mark.parametrize("cache", [True, False])
def test_the_cache_of_autocast_is_observed(model, cache):
    assert observe(model, autocast=True, cache=cache).autocast_cache is cache


def test_without_autocast_there_is_no_cache(model):
    assert observe(model).autocast_cache is None


def test_the_flags_of_ddp_are_read_back(model):
    with world_of_one():
        ddp = DistributedDataParallel(model, bucket_cap_mb=50, find_unused_parameters=True)
        flags = ChoicesObserver(model, ddp, CPU, 2).choices().ddp
    assert (flags.bucket_cap_mib, flags.gradient_as_bucket_view) == (50.0, False)
    assert (flags.find_unused_parameters, flags.static_graph, flags.broadcast_buffers) == (True, False, True)


def test_without_ddp_there_are_no_flags(model):
    assert observe(model).ddp is None


# In real runs


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("implementation", "order"), [("native", "before forward"), ("lightning", "after forward")])
def test_each_side_zeroes_its_gradients_in_its_own_order(runs, implementation, order, strategy):
    assert runs.result(Cell(implementation, strategy)).choices.zero_grad == order


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "cache"), [("native", True), ("lightning", False)])
def test_each_side_has_its_own_mind_about_the_cache_of_autocast(runs, implementation, cache):
    assert runs.result(Cell(implementation, "ddp", precision="bf16")).choices.autocast_cache is cache


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["native", "lightning"])
def test_sharded_runs_have_neither_autocast_nor_ddp(runs, implementation):
    choices = runs.result(Cell(implementation, "fsdp2", precision="bf16")).choices
    assert (choices.autocast_cache, choices.ddp) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "precision", "expected"),
    [
        ("ddp", "fp32", {"zero_grad"}),
        ("ddp", "bf16", {"zero_grad", "autocast_cache"}),
        ("fsdp2", "bf16", {"zero_grad"}),
    ],
)
def test_a_real_pair_has_these_findings_and_no_warning(runs, strategy, precision, expected):
    finished = [runs(Cell(side, strategy, precision=precision)) for side in ("native", "lightning")]
    (pair,) = pair_runs([Run(each.output, each.result) for each in finished]).pairs
    assert {difference.field for difference in pair.findings()} == expected
    assert pair.environment_differences() == []
