import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from common import recorder as recorder_module
from common.correctness import local_checksums
from common.data import make_batch
from common.errors import RunError
from common.options import RunConfig
from common.recorder import RunRecorder
from common.result import Outcome
from tests.worlds import CPU, FP32, launch_of, tiny_model, world_of_one

CONFIG = RunConfig("native", "ddp", preset="tiny", device="cpu", warmup_steps=2, steps=3)


class ReadsFromDevice(TorchDispatchMode):
    """Counts how often a value is read back from a tensor."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.fixture
def training():
    """A recorder that has seen the start, and the model, the optimizer and the batch it saw."""
    with world_of_one() as launch:
        model = tiny_model(launch, strategy="ddp")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch = make_batch(CONFIG.model, CONFIG.seed, 0, 1)
        recorder = RunRecorder(CONFIG, launch, CPU, FP32)
        recorder.begin()
        recorder.before_training(model, model, optimizer, batch)
        yield recorder, model, optimizer, batch


def train(training, steps: int = CONFIG.total_steps) -> RunRecorder:
    recorder, model, optimizer, batch = training
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.tokens), batch.labels)
        loss.backward()
        recorder.after_backward()
        optimizer.step()
        recorder.after_step(loss)
    return recorder


def test_timed_steps_read_nothing_back_from_the_device(training):
    recorder = train(training, steps=CONFIG.warmup_steps)
    loss = torch.tensor(1.0)
    with ReadsFromDevice() as reads:
        for _ in range(CONFIG.steps):
            recorder.after_backward()
            recorder.after_step(loss)
    assert (recorder.steps_done, reads.count) == (CONFIG.total_steps, 0)


def test_timed_steps_communicate_nothing(training, monkeypatch):
    train(training, steps=CONFIG.warmup_steps)
    calls = []
    for name in ("barrier", "all_reduce", "broadcast", "all_gather_object", "all_gather"):
        monkeypatch.setattr(dist, name, lambda *args, name=name, **kwargs: calls.append(name))
    train(training, steps=CONFIG.steps)
    assert calls == []


def test_the_ranks_come_together_once_before_the_window(training, monkeypatch):
    barriers = []
    monkeypatch.setattr(dist, "barrier", lambda **kwargs: barriers.append(training[0].steps_done))
    train(training)
    assert barriers == [CONFIG.warmup_steps]


def test_the_window_opens_after_barrier_synchronisation_and_reset_of_the_peaks(training, monkeypatch):
    order = []
    recorder = training[0]
    monkeypatch.setattr(dist, "barrier", lambda **kwargs: order.append("barrier"))
    monkeypatch.setattr(recorder_module, "synchronize", lambda device: order.append("synchronize"))
    monkeypatch.setattr(recorder.memory, "start_window", lambda: order.append("reset of the peaks"))
    monkeypatch.setattr(recorder.timer, "start", lambda: order.append("start"))
    train(training, steps=CONFIG.warmup_steps)
    assert order == ["barrier", "synchronize", "reset of the peaks", "start"]


def test_every_timed_step_has_a_lap(training):
    assert len(train(training).finish().timing.laps_milliseconds) == CONFIG.steps


def test_every_step_has_a_loss_warm_up_included(training):
    assert len(train(training).finish().correctness.losses) == CONFIG.total_steps


def test_rates_follow_from_the_window(training):
    recorder = train(training)
    recorder.timer.elapsed_seconds = 0.5
    timing = recorder.finish().timing
    assert (timing.milliseconds_per_step, timing.samples_per_second, timing.tokens_per_second) == (500 / 3, 6.0, 192.0)


def test_the_gradient_norm_is_that_of_the_first_step(training):
    recorder, model, _, _ = training
    train(training, steps=1)
    expected = math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in model.parameters()))
    train(training, steps=CONFIG.total_steps - 1)
    assert recorder.finish().correctness.step1_gradient_norm == pytest.approx(expected, rel=1e-14)


def test_the_optimizer_is_read_back_rather_than_echoed(training):
    recorder, model, _, batch = training
    recorder.before_training(model, model, torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.5, 0.75)), batch)
    found = recorder.optimizer_settings
    assert (found.learning_rate, found.beta1, found.beta2) == (0.25, 0.5, 0.75)


@pytest.mark.parametrize("value", [math.nan, math.inf])
class TestLossThatIsNotFinite:
    @pytest.fixture
    def diverged(self, training, value):
        recorder = train(training)
        recorder.losses[3] = torch.tensor(value)
        return recorder, recorder.finish()

    def test_is_the_outcome_with_its_phase_step_and_rank(self, diverged, value):
        assert diverged[1].outcome == Outcome(
            status="diverged", phase="window", step=4, rank=0, message=f"the loss of step 4 on rank 0 is {value}"
        )

    def test_leaves_nothing_to_compare(self, diverged):
        assert diverged[1].correctness is None

    def test_ends_the_run_with_its_own_exit_code(self, diverged, value):
        assert diverged[0].report() == 5


def test_a_loss_of_the_warm_up_that_is_not_finite_is_told_from_one_of_the_window(training):
    recorder = train(training)
    recorder.losses[0] = torch.tensor(math.inf)
    assert recorder.finish().outcome.phase == "warmup"


def test_weights_that_are_not_finite_are_an_outcome_even_after_finite_losses(training):
    recorder, model, _, _ = training
    train(training)
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.nan
    outcome = recorder.finish().outcome
    assert (outcome.status, outcome.phase, outcome.step) == ("diverged", "final", CONFIG.total_steps)


def test_laps_add_up_to_the_window(training):
    assert train(training).finish().timing.laps_over_window == pytest.approx(1, abs=0.05)


def test_the_laps_are_summed_up(training, monkeypatch):
    recorder = train(training)
    monkeypatch.setattr(recorder.timer, "laps_milliseconds", lambda: [10.0, 20.0, 40.0])
    timing = recorder.finish().timing
    assert (timing.milliseconds_per_step_min, timing.milliseconds_per_step_max) == (10.0, 40.0)
    assert (timing.milliseconds_per_step_p10, timing.milliseconds_per_step_p90) == (12.0, 36.0)
    assert (timing.milliseconds_per_step_median, timing.milliseconds_per_step_iqr) == (20.0, 15.0)


def test_a_single_timed_step_has_no_inter_quartile_range(training, monkeypatch):
    recorder = train(training)
    monkeypatch.setattr(recorder, "config", dataclasses.replace(CONFIG, warmup_steps=4, steps=1))
    monkeypatch.setattr(recorder.timer, "laps_milliseconds", lambda: [10.0])
    timing = recorder.finish().timing
    assert timing.milliseconds_per_step_iqr is None
    assert timing.milliseconds_per_step_p10 == timing.milliseconds_per_step_p90 == timing.laps_milliseconds[0]


def test_the_label_is_kept(training):
    recorder = training[0]
    recorder.config = dataclasses.replace(CONFIG, label="with the new driver")
    assert train(training).finish().label == "with the new driver"


def test_a_memory_snapshot_of_a_cpu_is_refused_with_the_reason(training):
    recorder = training[0]
    recorder.config = dataclasses.replace(CONFIG, memory_snapshot=Path("snapshot.pickle"))
    with pytest.raises(RunError, match=r"--memory-snapshot snapshot.pickle: PyTorch records CUDA memory only") as error:
        recorder.begin()
    assert error.value.exit_code == 2


def test_a_variant_with_nothing_to_switch_is_refused_with_the_reason(training):
    recorder = training[0]
    recorder.config = dataclasses.replace(CONFIG, autocast_cache="off")
    with pytest.raises(RunError, match="--autocast-cache off, but fp32 needs no autocast") as error:
        recorder.begin()
    assert error.value.exit_code == 2


def test_a_variant_is_recorded_in_the_workload(training):
    recorder = training[0]
    recorder.config = dataclasses.replace(CONFIG, zero_grad="after-forward")
    assert train(training).finish().workload.variants == ["zero-grad after-forward"]


def test_the_observer_is_gone_when_the_window_opens(training):
    _, model, _, _ = training
    train(training, steps=CONFIG.warmup_steps)
    assert not model._forward_pre_hooks


def test_the_recorder_keeps_nothing_of_the_training_when_it_has_finished(training):
    recorder = train(training)
    recorder.finish()
    assert [name for name in ("model", "optimizer", "choices") if hasattr(recorder, name)] == []


def test_another_number_of_steps_than_asked_for_ends_the_run(training):
    with pytest.raises(RunError, match="4 optimizer steps were made instead of 5") as error:
        train(training, steps=4).finish()
    assert error.value.exit_code == 1


def test_weights_that_training_left_alone_are_reported(training):
    recorder, model, _, _ = training
    start = [parameter.detach().clone() for parameter in model.parameters()]
    train(training)
    with torch.no_grad():
        list(model.parameters())[-1].copy_(start[-1])
    result = recorder.finish()
    assert (result.outcome.status, recorder.report()) == ("untrained", 5)
    assert not result.correctness.every_shard_changed


def test_a_failure_whose_result_cannot_be_written_is_still_told_to_the_other_ranks(training, monkeypatch, capsys):
    def report_to_a_full_disk(config, result):
        raise RunError("cannot write r.json: No space left on device")

    recorder, told, ended = training[0], [], []
    monkeypatch.setattr(recorder_module, "report", report_to_a_full_disk)
    monkeypatch.setattr(recorder_module, "end_process", ended.append)
    monkeypatch.setattr(recorder.watch, "announce", told.append)
    with recorder.recording_outcome():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert ([outcome.status for outcome in told], ended) == (["out_of_memory"], [4])
    assert capsys.readouterr().err == (
        "error: out_of_memory in step 1 (warmup) on rank 0: asked for 2.00 GiB; and there is no result: "
        "cannot write r.json: No space left on device\n"
    )


def test_a_rank_without_a_result_writes_nothing(training, tmp_path, capsys):
    recorder = train(training)
    recorder.config = dataclasses.replace(CONFIG, output=tmp_path / "result.json")
    recorder.launch = launch_of(1, 2)
    assert recorder.report() == 0
    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], "")


class TestTwoRanks:
    """A second rank that says what the first says, with changes."""

    @pytest.fixture
    def say(self, training, monkeypatch):
        recorder = training[0]
        recorder.launch = launch_of(0, 2)

        def pretend(change):
            def gather(everyone, mine):
                everyone[:] = [mine, change(mine)]

            monkeypatch.setattr(dist, "all_gather_object", gather)
            return train(training)

        return pretend

    def test_with_different_precisions_are_stopped_with_what_each_resolved(self, training, monkeypatch):
        recorder = training[0]
        recorder.launch = launch_of(0, 2)

        def gather(everyone, mine):
            everyone[:] = [mine, (*mine[:-1], "bf16")]

        monkeypatch.setattr(dist, "all_gather_object", gather)
        with pytest.raises(RunError, match=r"rank 0 fp32, rank 1 bf16.*--precision fp32 or --precision bf16"):
            recorder.begin()

    def test_whose_replicas_drifted_apart_are_reported(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, checksums=[(0.0, 0.0), *mine.checksums[1:]]))
        result = recorder.finish()
        assert (result.outcome.status, result.outcome.rank) == ("out_of_sync", 1)
        assert (result.correctness.parameters_synchronized, recorder.report()) == (False, 5)

    def test_of_fsdp2_hold_different_shards_and_are_not_out_of_sync(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, checksums=[(0.0, 0.0), *mine.checksums[1:]]))
        recorder.config = dataclasses.replace(recorder.config, strategy="fsdp2")
        result = recorder.finish()
        assert (result.outcome.status, result.correctness.parameters_synchronized) == ("completed", None)

    def test_one_of_which_did_not_change_are_reported(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, every_shard_changed=False))
        result = recorder.finish()
        assert (result.outcome.status, result.outcome.rank) == ("untrained", 1)
        assert result.correctness.every_shard_changed is False

    def test_one_of_which_diverged_are_told_with_its_rank(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, losses=[1.0, math.nan, 1.0, 1.0, 1.0]))
        outcome = recorder.finish().outcome
        assert (outcome.status, outcome.phase, outcome.step, outcome.rank) == ("diverged", "warmup", 2, 1)

    def test_have_the_mean_of_their_losses(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, losses=[loss + 2 for loss in mine.losses]))
        mine = recorder.losses[-1].double().item()
        assert recorder.finish().correctness.final_loss_mean == pytest.approx(mine + 1, rel=1e-15)

    def test_take_as_long_as_the_slowest(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, elapsed_seconds=1000.0))
        assert recorder.finish().timing.elapsed_seconds == 1000.0

    def test_report_the_largest_and_the_smallest_peak(self, say):
        def memories(mine):
            peaks = dataclasses.replace(mine.memory, peak_allocated_gib=2.0, peak_reserved_gib=3.0)
            return dataclasses.replace(mine, memory=peaks)

        recorder = say(memories)
        own = recorder.memory.end_window

        def smaller(*arguments):
            return dataclasses.replace(own(*arguments), peak_allocated_gib=1.0, peak_reserved_gib=4.0)

        recorder.memory.end_window = smaller
        memory = recorder.finish().memory
        assert (memory.peak_allocated_gib, memory.peak_allocated_gib_min) == (2.0, 1.0)
        assert (memory.peak_reserved_gib, memory.peak_reserved_gib_min) == (4.0, 3.0)

    def test_break_down_the_memory_of_the_fuller_one(self, say):
        def fuller(mine):
            resident = dataclasses.replace(
                mine.memory,
                peak_allocated_gib=8.0,
                parameters_gib=1.0,
                gradients_gib=1.0,
                optimizer_state_gib=2.0,
                buffers_gib=0.5,
                end_allocated_gib=5.0,
                allocation_retries=3,
            )
            return dataclasses.replace(mine, memory=resident)

        memory = say(fuller).finish().memory
        parts = (memory.parameters_gib, memory.gradients_gib, memory.optimizer_state_gib, memory.buffers_gib)
        assert parts == (1.0, 1.0, 2.0, 0.5)
        assert (memory.activations_and_temporary_gib, memory.end_allocated_gib) == (3.5, 5.0)
        assert memory.allocation_retries == 3

    def test_tell_the_slower_median_of_the_laps(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, median_lap_milliseconds=1000.0))
        timing = recorder.finish().timing
        assert timing.milliseconds_per_step_median_slowest_rank == 1000.0
        assert timing.milliseconds_per_step_median < 1000.0

    def test_report_the_largest_and_the_smallest_share(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, elements=1))
        parameters = recorder.finish().parameters
        assert (parameters.local_parameter_elements, parameters.local_parameter_elements_min) == (364_160, 1)

    def test_are_counted_once_in_checksums_when_they_are_replicas(self, say):
        alone = say(lambda mine: mine)
        expected = math.fsum(parameter.detach().double().sum().item() for parameter in alone.model.parameters())
        assert alone.finish().correctness.parameter_checksum_sum == pytest.approx(expected, rel=1e-12)

    def test_lose_no_digit_of_the_checksums_of_their_shards(self, say):
        cancelling = [(1e16, 0.0), (-1e16, 0.0)]
        recorder = say(lambda mine: dataclasses.replace(mine, checksums=cancelling))
        recorder.config = dataclasses.replace(recorder.config, strategy="fsdp2")
        mine = math.fsum(total for total, _ in local_checksums(recorder.model))
        assert recorder.finish().correctness.parameter_checksum_sum == mine

    def test_only_the_first_has_the_result(self, say):
        recorder = say(lambda mine: mine)
        recorder.launch = launch_of(1, 2)
        assert recorder.finish() is None
