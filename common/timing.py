"""Lap times, from the end of one step to the end of the next, without a synchronisation in between."""

import time

import torch


class LapTimer:
    """Stopwatch of one rank.

    On a GPU a lap ends with a CUDA event, which the device passes when the step's work is done; on a CPU with
    ``time.perf_counter``. Only :meth:`start` and :meth:`stop` wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[float] | list[torch.cuda.Event] = []
        """The ends of the steps, after the start of the window."""
        self._started = 0.0
        self._mark = self._event if device.type == "cuda" else time.perf_counter
        self.elapsed_seconds = 0.0
        """Length of the window on the host's clock, between two device synchronisations; 0 until stopped."""

    def start(self) -> None:
        """Begin the window. The caller has brought the ranks together and synchronised the device."""
        self.marks = [self._mark()]
        self._started = time.perf_counter()

    def lap(self) -> None:
        """End a step."""
        self.marks.append(self._mark())

    def stop(self) -> None:
        """End the window: wait for the device, once."""
        synchronize(self.device)
        self.elapsed_seconds = time.perf_counter() - self._started

    def laps_milliseconds(self) -> list[float]:
        """Return the time of each step in milliseconds, in order."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        if self.device.type == "cuda":
            return [first.elapsed_time(second) for first, second in pairs]
        return [(second - first) * 1e3 for first, second in pairs]

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done all that it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
