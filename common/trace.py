"""Who called what: evidence for the responsibilities, taken from a run itself.

Python's profiling hook reports every call in this thread, and a dispatch mode every operation of one step. Both are
switched off before the timed window. Nothing is replaced by a wrapper, so nothing can stay behind.
"""

import atexit
import inspect
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler

from common import data, initialization
from common.bounds import Phase
from common.model import SyntheticTransformer
from common.packages import PROJECT_ROOT, lightning_root
from common.result import Evidence, Responsibilities, StepCounts

PACKAGES = ("native", "lightning_impl", "common")
OUTSIDE = ("common/trace.py", "common/errors.py")
"""Files whose frames are no evidence: this one, and the one that calls ``main``."""
DEPTH = 6
"""Frames kept of a call: the innermost that belongs to this project or to lightning, and those that led there."""

CALLS: dict[str, Callable] = {
    "init_process_group": dist.init_process_group,
    "destroy_process_group": dist.destroy_process_group,
    "set_device": torch.cuda.set_device,
    "init_device_mesh": init_device_mesh,
    "use_deterministic_algorithms": torch.use_deterministic_algorithms,
    "SyntheticTransformer": SyntheticTransformer.__init__,
    "fill_parameters": initialization.fill_parameters,
    "DistributedDataParallel": DistributedDataParallel.__init__,
    "fully_shard": fully_shard,
    "MixedPrecisionPolicy": MixedPrecisionPolicy.__init__,
    "Module.to": nn.Module.to,
    "Module.cpu": nn.Module.cpu,
    "Module.to_empty": nn.Module.to_empty,
    "Module.train": nn.Module.train,
    "autocast": torch.autocast.__enter__,
    "make_batch": data.make_batch,
    "Optimizer": torch.optim.Optimizer.__init__,
    "forward": SyntheticTransformer.forward,
    "zero_grad": torch.optim.Optimizer.zero_grad,
    "backward": Tensor.backward,
    "optimizer.step": torch.optim.AdamW.step,
    "manual_seed": torch.manual_seed,
    "empty_cache": torch.cuda.empty_cache,
    "DataLoader": DataLoader.__init__,
    "DistributedSampler": DistributedSampler.__init__,
    "signal": signal.signal,
    "Popen": subprocess.Popen.__init__,
}
"""What is watched, by the name it has in a result."""
FILTERS: dict[str, Callable[[FrameType], bool]] = {
    "Module.train": lambda frame: frame.f_locals["mode"] and frame.f_back.f_code is not frame.f_code,
    "autocast": lambda frame: frame.f_locals["self"]._enabled,
    "MixedPrecisionPolicy": lambda frame: frame.f_locals["param_dtype"] is not None,
}
"""Which of those calls count: train(True), once and not for every child; mixed precision that does something."""
COLLECTIVES: dict[str, Callable] = {
    "all_reduce": dist.all_reduce,
    "all_gather": dist.all_gather,
    "all_gather_into_tensor": dist.all_gather_into_tensor,
    "all_gather_object": dist.all_gather_object,
    "reduce_scatter_tensor": dist.reduce_scatter_tensor,
    "broadcast": dist.broadcast,
    "broadcast_object_list": dist.broadcast_object_list,
    "barrier": dist.barrier,
}
"""Watched too, where this project or lightning itself calls them; those inside DDP and FSDP2 are the strategy's."""
BUILTINS: dict[str, type] = {"item": Tensor, "manual_seed": torch.Generator}
"""Methods written in C that are watched, and whose they are."""
OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}
"""Operators of the namespace ``c10d`` by what they do, whoever calls them, Python or C++."""
BETWEEN = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "contextlib.py",
)
"""Files of frames that only pass an operation on from whoever asks for it."""


class Trace:
    """Watches one rank's main thread: set-up, first step and teardown by calls, a whole step by its operations."""

    def __init__(self) -> None:
        self.phase: Phase = "setup"
        self._begun = False
        self._names = {inspect.unwrap(function).__code__: name for name, function in (CALLS | COLLECTIVES).items()}
        self._collectives = {inspect.unwrap(function).__code__ for function in COLLECTIVES.values()}
        self._files = _Files()
        self._counts: Counter[tuple[Phase, str, tuple[str, ...]]] = Counter()
        """Keys in the order in which they were first seen."""
        self._operations = _OperationCounter(self._files)
        self._counted_step: int | None = None

    def begin(self) -> None:
        """Record calls from here on, as part of the set-up; none if another profiler is at work in this process."""
        self._begun = sys.getprofile() is None
        # A run that fails ends while it is watched, and the end of Python takes our globals first.
        atexit.register(self.stop)
        self.watch("setup")

    def watch(self, phase: Phase) -> None:
        """Go on recording calls, as part of ``phase``, if this has begun at all."""
        self.phase = phase
        if self._begun:
            sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Record no more calls."""
        if sys.getprofile() == self._on_event:
            sys.setprofile(None)

    def count_step(self, step: int) -> None:
        """Count the operations of ``step``, counted from 1, which begins now."""
        if self._begun:
            self._counted_step = step
            self._operations.__enter__()

    def stop_counting(self) -> None:
        """Count no more operations: the step has ended."""
        if self._begun:
            self._operations.__exit__(None, None, None)

    def responsibilities(self, ddp_buckets: int | None) -> Responsibilities | None:
        """Return what was seen on this rank; None if nobody watched, which is not the same as having seen nothing."""
        if not self._begun:
            return None
        evidence = [
            Evidence(phase=phase, call=call, count=count, frames=list(frames))
            for (phase, call, frames), count in self._counts.items()
        ]
        counts = self._operations
        step = StepCounts(
            step=self._counted_step,
            collectives_of_strategy=dict(counts.of_strategy),
            collectives_of_others=dict(counts.of_others),
            host_syncs=counts.host_syncs,
            ddp_buckets=ddp_buckets,
        )
        return Responsibilities(evidence=evidence, step=step)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            name = self._names.get(frame.f_code)
            if name is None or (name in FILTERS and not FILTERS[name](frame)):
                return
            caller = frame.f_back
            if name in COLLECTIVES:
                caller = self._files.direct_caller(caller, within=self._collectives)
        elif event == "c_call":
            name = argument.__name__
            if name not in BUILTINS or not isinstance(argument.__self__, BUILTINS[name]):
                return
            caller = frame if self._files.place(frame) else None
        else:
            return
        frames = self._files.places(caller)
        if frames:
            self._counts[self.phase, name, frames] += 1


class _Files:
    """Which frames belong to this project or to lightning."""

    def __init__(self) -> None:
        self._roots = {str(PROJECT_ROOT / package) + os.sep: PROJECT_ROOT for package in PACKAGES}
        if root := lightning_root():
            self._roots[str(root / "lightning") + os.sep] = root
        self._names: dict[str, str | None] = {}

    def place(self, frame: FrameType) -> str | None:
        """Return where a frame is, such as ``native/train.py:40 training_step``; None if it is neither's."""
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if path not in self._names:
            root = next((root for start, root in self._roots.items() if path.startswith(start)), None)
            self._names[path] = Path(path).relative_to(root).as_posix() if root else None
        file = self._names[path]
        return f"{file}:{frame.f_lineno} {name}" if file and file not in OUTSIDE and name != "<module>" else None

    def places(self, frame: FrameType | None) -> tuple[str, ...]:
        """Return the innermost places of a call, at most :data:`DEPTH`."""
        found: list[str] = []
        while frame is not None and len(found) < DEPTH:
            if place := self.place(frame):
                found.append(place)
            frame = frame.f_back
        return tuple(found)

    def direct_caller(self, frame: FrameType | None, within: Collection[CodeType] = ()) -> FrameType | None:
        """Return the frame that asked for an operation by itself, if it belongs to this project or to lightning.

        None if PyTorch's own code asked, and for a part of what is ``within``.
        """
        while frame is not None and frame.f_code.co_filename.endswith(BETWEEN):
            if frame.f_code in within:
                return None
            frame = frame.f_back
        return frame if frame is not None and self.place(frame) else None


class _OperationCounter(TorchDispatchMode):
    """Counts collectives, also those that C++ calls, and values that the host waits for."""

    def __init__(self, files: _Files) -> None:
        super().__init__()
        self._files = files
        self.of_strategy: Counter[str] = Counter()
        self.of_others: Counter[str] = Counter()
        self.host_syncs = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and what PyTorch would put around the method imports its compiler

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function.namespace == "c10d":
            name = OPERATIONS.get(function._schema.name.removeprefix("c10d::"), function._schema.name)
            by_hand = self._files.direct_caller(sys._getframe().f_back)  # a thread of autograd's has no frame above
            (self.of_others if by_hand else self.of_strategy)[name] += 1
        elif function is torch.ops.aten._local_scalar_dense.default:
            # Not those inside PyTorch: AdamW on a CPU reads its step counter, which no host has to wait for.
            self.host_syncs += self._files.direct_caller(sys._getframe().f_back) is not None
        return function(*args, **(kwargs or {}))
