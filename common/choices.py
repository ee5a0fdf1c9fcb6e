"""What a framework chose on its own, observed while it trains: no part of the workload, but worth knowing.

Observed by a hook in front of the first two forwards, both of them warm-up; it is gone before the window opens.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.environment import variables_set_by_libraries
from common.result import Choices, DdpFlags

MIB = 2**20


class ChoicesObserver:
    """Watches the first forwards of a model."""

    def __init__(self, model: nn.Module, wrapped: nn.Module, device: torch.device, warmup_steps: int) -> None:
        self._ddp = wrapped if isinstance(wrapped, DistributedDataParallel) else None
        self._device = device
        self._forwards, self._last = 0, min(2, warmup_steps)
        self._autocast_cache: bool | None = None
        self._zero_grad: str | None = None
        # In front of FSDP2's own hook, which replaces the shards, and with them the gradients, by full parameters.
        self._hook = model.register_forward_pre_hook(self._before_forward, prepend=True)

    def _before_forward(self, model: nn.Module, _inputs: tuple) -> None:
        self._forwards += 1
        if self._forwards == 1 and torch.is_autocast_enabled(self._device.type):
            self._autocast_cache = torch.is_autocast_cache_enabled()
        if self._forwards == 2:
            left_over = any(parameter.grad is not None for parameter in model.parameters())
            self._zero_grad = "after forward" if left_over else "before forward"
        if self._forwards == self._last:
            self._hook.remove()

    def ddp_buckets(self) -> int | None:
        """Return how many buckets DDP all-reduces; None without DDP, or where a release no longer says so."""
        try:
            sizes = self._ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        except (AttributeError, KeyError):
            return None
        return len(sizes.split(", "))

    def choices(self) -> Choices:
        """Return what was seen."""
        return Choices(
            zero_grad=self._zero_grad,
            autocast_cache=self._autocast_cache,
            ddp=_flags(self._ddp) if self._ddp else None,
            allocator_streams=_allocator_streams(self._device),
            variables=variables_set_by_libraries(),
        )


def _allocator_streams(device: torch.device) -> int | None:
    """Return for how many streams the allocator keeps a pool; what one frees cannot serve another."""
    if device.type != "cuda":
        return None
    segments = torch.cuda.memory_snapshot()
    return len({segment["stream"] for segment in segments if segment["device"] == device.index})


def _flags(ddp: DistributedDataParallel) -> DdpFlags:
    return DdpFlags(
        bucket_cap_mib=ddp.bucket_bytes_cap / MIB,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        broadcast_buffers=ddp.broadcast_buffers,
        find_unused_parameters=ddp.find_unused_parameters,
        static_graph=ddp.static_graph,
    )
