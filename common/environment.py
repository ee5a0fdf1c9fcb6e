"""The device and the settings of this process: chosen alike on both sides, and read back for the result."""

import os
import platform
import sys
from datetime import UTC, datetime

import torch
import torch.distributed as dist

from common.errors import RunError
from common.launch import Launch
from common.options import RunConfig
from common.precision import Precision
from common.result import Environment


def choose_device(config: RunConfig, launch: Launch) -> torch.device:
    """Return this rank's device, ``cpu`` or ``cuda:LOCAL_RANK``, without touching it.

    Raises:
        RunError: CUDA was asked for and there is none, or there are fewer GPUs than ranks on this node.
    """
    visible = torch.cuda.device_count()
    if config.device == "cpu" or (config.device == "auto" and visible == 0):
        return torch.device("cpu")
    if visible == 0:
        raise RunError(
            "--device cuda, but PyTorch sees no GPU here; use --device cpu, or a CUDA build of torch on a GPU node"
        )
    if launch.local_world_size > visible:
        raise RunError(
            f"{launch.local_world_size} ranks on this node, but {visible} visible GPUs; start {visible} ranks, "
            "or use --device cpu"
        )
    return torch.device("cuda", launch.local_rank)


def limit_cpu_threads(launch: Launch) -> None:
    """Share the cores among the ranks of this node, unless OMP_NUM_THREADS already says how.

    torchrun sets that variable to 1, srun does not, and Lightning changes the count under some launchers only: without
    this line the two sides would compute with different numbers of threads.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, len(os.sched_getaffinity(0)) // launch.local_world_size)
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def describe_environment(
    config: RunConfig, launch: Launch, device: torch.device, precision: Precision, hosts: list[str]
) -> Environment:
    """Read back what is in force in this process. ``hosts`` are the host names of all ranks, in order."""
    on_cuda = device.type == "cuda"
    lightning = sys.modules.get("lightning")
    return Environment(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=[f"python -m {config.module}", *sys.argv[1:]],
        launcher=launch.launcher,
        num_nodes=launch.num_nodes,
        local_world_size=launch.local_world_size,
        hosts=list(dict.fromkeys(hosts)),
        process_group_backend=dist.get_backend(),
        precision_requested=config.precision,
        precision_reason=precision.reason,
        device_name=torch.cuda.get_device_name(device) if on_cuda else cpu_model(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_threads=torch.get_num_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        platform=platform.platform(),
        python_version=platform.python_version(),
        torch_version=torch.__version__,
        lightning_version=lightning.__version__ if lightning else None,
        cuda_version=torch.version.cuda,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if on_cuda else None,
    )


def cpu_model() -> str:
    """Return the processor's name as Linux gives it, or the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
