"""Memory of one rank: peaks by PyTorch's CUDA allocator, what the device reports, and what live tensors hold.

A CPU has no such counters: None there, never 0. All sizes are in GiB, 2^30 bytes.
"""

import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from common.initialization import local_tensor

GIB = 2**30


@dataclass(frozen=True)
class RankMemory:
    """What one rank measured; None where there is no GPU."""

    setup_peak_allocated_gib: float | None
    setup_peak_reserved_gib: float | None
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    end_allocated_gib: float | None
    device_used_gib: float | None
    allocation_retries: int | None
    parameters_gib: float
    gradients_gib: float
    optimizer_state_gib: float
    buffers_gib: float
    process_peak_resident_gib: float


class MemoryMeter:
    """Reads the counters at the start and at the end of the window."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._setup_peaks: tuple[float | None, float | None] = (None, None)
        self._retries = 0

    def release_setup(self) -> None:
        """Give back what the set-up had allocated and freed again, so that it is no part of the window's reserve."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def start_window(self) -> None:
        """Keep the peaks so far, then forget them. The device is synchronised."""
        if self.device.type == "cuda":
            self._setup_peaks = _peaks(self.device)
            self._retries = torch.cuda.memory_stats(self.device)["num_alloc_retries"]
            torch.cuda.reset_peak_memory_stats(self.device)

    def end_window(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> RankMemory:
        """Read everything. To be called before anything else is allocated; the device is synchronised."""
        on_cuda = self.device.type == "cuda"
        peak_allocated, peak_reserved = _peaks(self.device) if on_cuda else (None, None)
        free, total = torch.cuda.mem_get_info(self.device) if on_cuda else (0, 0)
        retries = torch.cuda.memory_stats(self.device)["num_alloc_retries"] - self._retries if on_cuda else None
        parameters = list(model.parameters())
        state = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
        return RankMemory(
            setup_peak_allocated_gib=self._setup_peaks[0],
            setup_peak_reserved_gib=self._setup_peaks[1],
            peak_allocated_gib=peak_allocated,
            peak_reserved_gib=peak_reserved,
            end_allocated_gib=torch.cuda.memory_allocated(self.device) / GIB if on_cuda else None,
            device_used_gib=(total - free) / GIB if on_cuda else None,
            allocation_retries=retries,
            parameters_gib=storage_gib(parameters, self.device),
            gradients_gib=storage_gib([p.grad for p in parameters if p.grad is not None], self.device),
            optimizer_state_gib=storage_gib(state, self.device),
            buffers_gib=storage_gib(model.buffers(), self.device),
            # Linux gives kibibytes; see getrusage(2).
            process_peak_resident_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        )


def storage_gib(tensors: Iterable[Tensor], device: torch.device) -> float:
    """Return what the local storage of ``tensors`` on ``device`` takes, each storage counted once.

    Several gradients of DDP are views into one bucket, and a shard of FSDP2 may be padded: storage is what counts.
    """
    storages = {}
    for tensor in tensors:
        storage = local_tensor(tensor).untyped_storage()
        if storage.device.type == device.type:
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) / GIB


def start_snapshot() -> None:
    """Begin to record every allocation, with its stack."""
    torch.cuda.memory._record_memory_history()


def end_snapshot(path: Path) -> None:
    """Write what was recorded, for the viewer at pytorch.org/memory_viz, and stop recording."""
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)


def _peaks(device: torch.device) -> tuple[float, float]:
    """Return the peaks since the last reset, allocated and reserved."""
    return torch.cuda.max_memory_allocated(device) / GIB, torch.cuda.max_memory_reserved(device) / GIB
