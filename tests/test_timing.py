import time
from types import SimpleNamespace

import pytest
import torch

from common.timing import LapTimer, synchronize

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set by hand, in seconds."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now.seconds)
    return now


@pytest.fixture
def gpu(monkeypatch, clock):
    """A GPU that finishes its work half a second after the host handed it over."""
    device = SimpleNamespace(synchronisations=0, resets=0)

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self, stream):
            self.milliseconds = (clock.seconds + 0.5) * 1e3

        def elapsed_time(self, end):
            return end.milliseconds - self.milliseconds

    def wait(device_=None):
        device.synchronisations += 1
        clock.seconds += 0.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device_=None: None)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    return device


def timed(device: torch.device, clock, *durations: float) -> LapTimer:
    timer = LapTimer(device)
    timer.start()
    for duration in durations:
        clock.seconds += duration
        timer.lap()
    return timer


def test_a_lap_goes_from_the_end_of_one_step_to_the_end_of_the_next(clock):
    assert timed(CPU, clock, 1.0, 2.0, 4.0).laps_milliseconds() == [1000.0, 2000.0, 4000.0]


def test_laps_on_a_gpu_are_measured_by_its_own_events(clock, gpu):
    assert timed(CUDA, clock, 1.0, 2.0).laps_milliseconds() == [1000.0, 2000.0]


def test_a_lap_does_not_wait_for_the_gpu(clock, gpu):
    timed(CUDA, clock, 1.0, 2.0)
    assert gpu.synchronisations == 0


def test_the_end_of_the_window_waits_for_the_gpu_once(clock, gpu):
    timed(CUDA, clock, 1.0, 2.0).stop()
    assert gpu.synchronisations == 1


def test_the_window_of_a_gpu_includes_the_work_that_was_still_to_be_done(clock, gpu):
    timer = timed(CUDA, clock, 1.0, 2.0)
    timer.stop()
    assert timer.elapsed_seconds == 3.5


def test_the_window_of_a_cpu_is_the_sum_of_its_laps(clock):
    timer = timed(CPU, clock, 1.0, 2.0)
    timer.stop()
    assert timer.elapsed_seconds == 3.0


def test_time_before_the_start_is_not_in_the_window(clock):
    timer = LapTimer(CPU)
    clock.seconds += 100
    timer.start()
    clock.seconds += 1
    timer.lap()
    timer.stop()
    assert (timer.laps_milliseconds(), timer.elapsed_seconds) == ([1000.0], 1.0)


def test_a_cpu_is_never_waited_for(gpu):
    synchronize(CPU)
    assert gpu.synchronisations == 0
