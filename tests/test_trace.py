"""Who called what: small calls in this process, and the real runs of the parity matrix."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from common import trace as trace_module
from common.options import RunConfig
from common.recorder import RunRecorder
from common.trace import BUILTINS, CALLS, COLLECTIVES, Trace
from comparison.catalogue import CATALOGUE
from comparison.source import PROJECT_ROOT, lightning_root
from native.train import train, training_step
from tests.runs import Cell
from tests.worlds import CPU, FP32, launch_of, tiny_model, world_of_one

CONFIG = RunConfig("native", "ddp", preset="tiny", device="cpu", warmup_steps=3, steps=2)
BF16 = [Cell(side, strategy, precision="bf16") for side in ("native", "lightning") for strategy in ("ddp", "fsdp2")]
ROOT_WRAP = [Cell(side, "fsdp2", fsdp_wrap="root") for side in ("native", "lightning")]
ALONE = [Cell(side, strategy, 1) for side in ("native", "lightning") for strategy in ("ddp", "fsdp2")]
TEXTS = {
    "Optimizer": "AdamW(",
    "autocast": "autocast",
    "forward": "model(",
    "Module.to": ".to(",
    "Module.cpu": ".cpu(",
    "Module.train": ".train(",
    "Module.to_empty": ".to_empty(",
    "optimizer.step": ".step(",
    "signal": "signal.signal(",
    "Popen": "platform.platform(",  # runs uname; the workers that Lightning starts itself are in test_evidence.py
}
"""What the line of a call holds, where it isn't the call's name and a parenthesis."""


@pytest.fixture
def trace():
    trace = Trace()
    yield trace
    trace.stop()


def watched_run() -> RunRecorder:
    """Return the recorder of a whole native run in this process, watched from beginning to end."""
    recorder = RunRecorder(CONFIG, launch_of(0, 1), CPU, FP32)
    recorder.watch_calls()
    with world_of_one():
        train(CONFIG, launch_of(0, 1), CPU, FP32, recorder)
    recorder.trace.stop()
    return recorder


@pytest.fixture
def recorder() -> RunRecorder:
    return watched_run()


def seen(trace: Trace) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in trace.responsibilities(None).evidence:
        counts[each.call] = counts.get(each.call, 0) + each.count
    return counts


def test_a_run_is_seen_with_file_line_and_function(recorder):
    (zero_grad,) = (each for each in recorder.trace.responsibilities(1).evidence if each.call == "zero_grad")
    place, function = zero_grad.frames[0].split(" ")
    assert (place.split(":")[0], function, zero_grad.phase, zero_grad.count) == (
        *("native/train.py", "training_step", "step", 1),
    )


def test_one_step_is_watched_and_no_more(recorder):
    counts = seen(recorder.trace)
    assert [counts[call] for call in ("zero_grad", "forward", "backward", "optimizer.step")] == [1, 1, 1, 1]


def test_a_step_after_the_second_is_counted(recorder):
    step = recorder.trace.responsibilities(1).step
    assert (step.step, step.collectives_of_strategy, step.host_syncs) == (3, {"all_reduce": 1}, 0)


@pytest.mark.parametrize("warmup_steps", [1, 2, 3, 5])
def test_nobody_watches_when_the_window_opens(monkeypatch, warmup_steps):
    config = RunConfig("native", "ddp", preset="tiny", device="cpu", warmup_steps=warmup_steps, steps=1)
    recorder = RunRecorder(config, launch_of(0, 1), CPU, FP32)
    watchers = []
    start = recorder.timer.start
    monkeypatch.setattr(
        recorder.timer,
        "start",
        lambda: (watchers.append((sys.getprofile(), _get_current_dispatch_mode_stack())), start()),
    )
    recorder.watch_calls()
    with world_of_one():
        train(config, launch_of(0, 1), CPU, FP32, recorder)
    recorder.trace.stop()
    assert watchers == [(None, [])]
    assert recorder.trace.responsibilities(1).step.step == min(3, warmup_steps)


def test_nothing_is_replaced():
    watched_run()  # PyTorch itself wraps functions when its compiler is first imported
    before = [now(function) for function in (*CALLS.values(), *COLLECTIVES.values())]
    item = torch.Tensor.item
    watched_run()
    assert [now(function) for function in (*CALLS.values(), *COLLECTIVES.values())] == before
    assert torch.Tensor.item is item
    assert sys.getprofile() is None


def now(function):
    """Return what is found now under the name of a function."""
    found = sys.modules[function.__module__]
    for name in function.__qualname__.split("."):
        found = getattr(found, name)
    return found


def test_another_profiler_is_left_alone(trace):
    def other(frame, event, argument):
        pass

    sys.setprofile(other)
    try:
        trace.begin()
        trace.watch("step")
        trace.stop()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
    assert trace.responsibilities(None) is None  # and not that nothing was seen


def test_what_is_inside_of_another_collective_counts_once(trace, monkeypatch):
    monkeypatch.setattr(trace_module, "OUTSIDE", ())
    launch = launch_of(0, 1)
    with world_of_one():
        recorder = RunRecorder(CONFIG, launch, CPU, FP32)
        recorder.trace.begin()
        recorder.begin()
        recorder.trace.stop()
    assert seen(recorder.trace) == {"all_gather_object": 1}


@pytest.mark.parametrize(("enabled", "count"), [(True, 1), (False, 0)])
def test_autocast_that_does_nothing_is_no_mixed_precision(trace, enabled, count):
    model = tiny_model(launch_of(0, 1), strategy="ddp")
    batch = trace_module.data.make_batch(CONFIG.model, CONFIG.seed, 0, 1)
    recorder = RunRecorder(CONFIG, launch_of(0, 1), CPU, FP32)
    recorder.steps_done = 1
    trace.begin()
    training_step(model, torch.optim.AdamW(model.parameters()), batch, torch.autocast("cpu", enabled=enabled), recorder)
    trace.stop()
    assert seen(trace).get("autocast", 0) == count


def test_every_call_of_the_catalogue_is_watched():
    names = {call for duty in CATALOGUE for call in duty.calls}
    assert names <= {*CALLS, *COLLECTIVES, *BUILTINS}


def test_calls_from_elsewhere_are_no_evidence(trace):
    trace.begin()
    torch.nn.Linear(2, 2).train()  # called by a test, which is neither this project's code nor lightning's
    trace.stop()
    assert seen(trace) == {}


# Real runs


@pytest.mark.slow
@pytest.mark.parametrize("cell", [*BF16, *ROOT_WRAP, *ALONE], ids=str)
class TestRealRun:
    @pytest.fixture
    def seen(self, runs, cell):
        return runs.result(cell).responsibilities

    def test_has_the_collectives_of_its_strategy(self, seen, cell):
        units = {"block": 3, "root": 1}[cell.fsdp_wrap]  # two blocks and the root, which is not gathered twice
        expected = {"all_gather": 2 * units - 1, "reduce_scatter": units}
        if cell.strategy == "ddp":
            expected = {"all_reduce": seen.step.ddp_buckets}
            assert seen.step.ddp_buckets == 1
        elif cell.world_size == 1:
            return  # whether a world of one communicates is PyTorch's affair
        assert (seen.step.step, seen.step.collectives_of_strategy) == (3, expected)

    def test_has_a_broadcast_and_a_host_sync_a_step_by_lightning_alone(self, seen, cell):
        lightning = cell.implementation == "lightning" and cell.world_size > 1
        assert (seen.step.collectives_of_others, seen.step.host_syncs) == (
            ({"broadcast": 1}, 1) if lightning else ({}, 0)
        )

    def test_has_evidence_whose_source_line_holds_the_call(self, seen):
        for each in seen.evidence:
            place, _ = each.frames[0].split(" ")
            assert TEXTS.get(each.call, f"{each.call}(") in source_line(place), f"{each.call} at {place}"

    def test_names_no_folder_of_the_machine(self, seen):
        files = {frame.split(":")[0] for each in seen.evidence for frame in each.frames}
        assert all(re.match(r"(native|lightning_impl|common|lightning)/", file) for file in files)


def source_line(place: str) -> str:
    file, line = place.rsplit(":", 1)
    root = lightning_root() if file.startswith("lightning/") else PROJECT_ROOT
    return Path(root, file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
