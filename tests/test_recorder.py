import dataclasses
import math

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
        recorder.before_training(model, optimizer, batch)
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
    for name in ("barrier", "synchronize", "reset_peak_memory"):
        monkeypatch.setattr(recorder_module, name, lambda device, name=name: order.append(name))
    monkeypatch.setattr(recorder.timer, "start", lambda: order.append("start"))
    train(training, steps=CONFIG.warmup_steps)
    assert order == ["barrier", "synchronize", "reset_peak_memory", "start"]


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
    recorder.before_training(model, torch.optim.AdamW(model.parameters(), lr=0.25, betas=(0.5, 0.75)), batch)
    assert (recorder.optimizer.learning_rate, recorder.optimizer.beta1, recorder.optimizer.beta2) == (0.25, 0.5, 0.75)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_with_its_step_and_rank(training, value):
    recorder = train(training)
    recorder._losses[3] = torch.tensor(value)
    with pytest.raises(RunError, match=f"the loss of step 4 on rank 0 is {value}") as error:
        recorder.finish()
    assert error.value.exit_code == 1


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
    assert not recorder.finish().correctness.every_shard_changed


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
        recorder, model, optimizer, batch = training
        recorder.launch = launch_of(0, 2)

        def gather(everyone, mine):
            everyone[:] = [mine, "bf16"]

        monkeypatch.setattr(dist, "all_gather_object", gather)
        with pytest.raises(RunError, match=r"rank 0 fp32, rank 1 bf16.*--precision fp32 or --precision bf16"):
            recorder.before_training(model, optimizer, batch)

    def test_whose_replicas_drifted_apart_are_reported(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, checksums=[(0.0, 0.0), *mine.checksums[1:]]))
        assert recorder.finish().correctness.parameters_synchronized is False

    def test_one_of_which_did_not_change_are_reported(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, every_shard_changed=False))
        assert recorder.finish().correctness.every_shard_changed is False

    def test_one_of_which_diverged_are_stopped_with_its_rank(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, losses=[1.0, math.nan, 1.0, 1.0, 1.0]))
        with pytest.raises(RunError, match="step 2 on rank 1"):
            recorder.finish()

    def test_have_the_mean_of_their_losses(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, losses=[loss + 2 for loss in mine.losses]))
        mine = recorder._losses[-1].double().item()
        assert recorder.finish().correctness.final_loss_mean == pytest.approx(mine + 1, rel=1e-15)

    def test_take_as_long_as_the_slowest(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, elapsed_seconds=1000.0))
        assert recorder.finish().timing.elapsed_seconds == 1000.0

    def test_report_the_largest_and_the_smallest_peak(self, say):
        recorder = say(lambda mine: dataclasses.replace(mine, peak_allocated_gib=2.0, peak_reserved_gib=3.0))
        recorder_peaks = recorder.finish().memory
        assert (recorder_peaks.peak_allocated_gib, recorder_peaks.peak_reserved_gib) == (2.0, 3.0)

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
