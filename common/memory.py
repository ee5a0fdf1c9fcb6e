"""Peak memory of the window, by PyTorch's CUDA allocator. A CPU has no such counters: None there, never 0."""

import torch

GIB = 2**30


def reset_peak_memory(device: torch.device) -> None:
    """Forget peaks so far, at the start of the window."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: torch.device) -> tuple[float | None, float | None]:
    """Return the peaks since the reset, allocated and reserved, in GiB (2^30 bytes); (None, None) on a CPU."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_allocated(device) / GIB, torch.cuda.max_memory_reserved(device) / GIB
