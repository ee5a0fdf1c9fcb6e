"""The device and the settings of this process: chosen alike on both sides, and read back for the result."""

import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime

import torch
import torch.distributed as dist

from common.errors import RunError
from common.launch import INHERITED, Launch, check_visible_devices
from common.options import RunConfig
from common.precision import Precision
from common.result import Environment, Slurm
from common.slurm import describe_job

STEERING = ("CUDA_", "CUBLAS_", "NCCL_", "TORCH_NCCL_", "PYTORCH_", "GLOO_", "OMP_", "MKL_", "KMP_", "NVIDIA_TF32")
"""Beginnings of the names of environment variables that change how fast or how exactly a run computes."""
NOT_STEERING = ("PYTORCH_NVML_BASED_CUDA_CHECK",)
"""Set by Lightning for itself; it only changes how PyTorch looks for a GPU."""
OURS = ("OMP_NUM_THREADS",)
"""Set by :func:`limit_cpu_threads`."""


def choose_device(config: RunConfig, launch: Launch) -> torch.device:
    """Return this rank's device, ``cpu`` or ``cuda:LOCAL_RANK``, without touching it.

    Raises:
        RunError: CUDA was asked for and there is none, the environment names GPUs that are not there, or there are
            fewer of them than ranks on this node.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible == 0:
        check_visible_devices(chosen, torch.version.cuda is not None)
        if config.device == "auto":
            return torch.device("cpu")
        raise RunError(
            "--device cuda, but PyTorch sees no GPU here; use --device cpu, or a CUDA build of torch on a GPU node"
        )
    if launch.local_world_size > visible:
        why = f" (CUDA_VISIBLE_DEVICES={chosen})" if chosen else ""
        raise RunError(
            f"{launch.local_world_size} ranks on this node, but {visible} visible GPUs{why}; start {visible} ranks, "
            "or use --device cpu"
        )
    return torch.device("cuda", launch.local_rank)


def limit_cpu_threads(launch: Launch) -> None:
    """Share the cores among the ranks of this node, unless OMP_NUM_THREADS already says how.

    torchrun sets that variable to 1, srun does not, and Lightning changes the count under some launchers only: without
    this line the two sides would compute with different numbers of threads.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        if launch.launcher == "srun" and "SLURM_CPUS_ON_NODE" in os.environ:
            # Of the step on this node; a task may be bound to its own share of them already.
            cores = int(os.environ["SLURM_CPUS_ON_NODE"])
        threads = max(1, cores // launch.local_world_size)
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def describe_environment(
    config: RunConfig,
    launch: Launch,
    device: torch.device,
    precision: Precision,
    hosts: list[str],
    machines: list[str],
) -> Environment:
    """Read back what is in force in this process.

    ``hosts`` and ``machines`` are the host names and :func:`machine_id` of all ranks, in order.
    """
    job = describe_job(os.environ)
    on_cuda = device.type == "cuda"
    lightning = sys.modules.get("lightning")
    driver, power_limit = ask_nvidia_smi(device) if on_cuda else (None, None)
    return Environment(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=[f"python -m {config.module}", *sys.argv[1:]],
        launcher=launch.launcher,
        num_nodes=launch.num_nodes,
        local_world_size=launch.local_world_size,
        hosts=list(dict.fromkeys(hosts)),
        nodes_share_hardware=len(set(machines)) < launch.num_nodes if machines else None,
        slurm=Slurm(**job) if job else None,
        process_group_backend=dist.get_backend(),
        timeout_seconds=config.timeout_seconds,
        precision_requested=config.precision,
        precision_reason=precision.reason,
        device_name=torch.cuda.get_device_name(device) if on_cuda else cpu_model(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_threads=torch.get_num_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_allow_tf32=torch.backends.cudnn.allow_tf32,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        platform=platform.platform(),
        python_version=platform.python_version(),
        torch_version=torch.__version__,
        lightning_version=lightning.__version__ if lightning else None,
        cuda_version=torch.version.cuda,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if on_cuda else None,
        driver_version=driver,
        power_limit_watts=power_limit,
        variables={name: value for name, value in steering_variables().items() if name in (*INHERITED, *OURS)},
    )


def steering_variables() -> dict[str, str]:
    """Return the environment variables of :data:`STEERING`, in the order of their names."""
    names = (name for name in sorted(os.environ) if name.startswith(STEERING) and name not in NOT_STEERING)
    return {name: os.environ[name] for name in names}


def variables_set_by_libraries() -> dict[str, str]:
    """Return those of :func:`steering_variables` that nobody had set when this process began, nor did we since."""
    return {name: value for name, value in steering_variables().items() if name not in (*INHERITED, *OURS)}


def ask_nvidia_smi(device: torch.device) -> tuple[str | None, float | None]:
    """Return the driver's version and the GPU's power limit in watts; None for what nvidia-smi does not tell."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    query = ["--query-gpu=driver_version,power.limit", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--id=GPU-{uuid}", *query], capture_output=True, text=True, timeout=10, check=True
        )
        driver, power_limit = (value.strip() for value in answer.stdout.strip().split(","))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None, None
    try:
        return driver, float(power_limit)
    except ValueError:  # some machines answer [N/A]
        return driver, None


def machine_id() -> str:
    """Return what tells machines apart, whatever host names they give their containers: the id of this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def cpu_model() -> str:
    """Return the processor's name as Linux gives it, or the architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
