"""Who started this process, and as which rank of how many. Reads the environment, checks it, and waits for nobody."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import RunError
from common.options import RunConfig
from common.slurm import INTERACTIVE_STEP, first_host, step_port, tasks_per_node

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES")
LIGHTNING_WORKER = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
INHERITED = frozenset(os.environ)
"""Names of the environment variables that this process was started with: torch and lightning set more when imported."""


@dataclass(frozen=True)
class Launch:
    """This process's place in the world."""

    launcher: str
    """``torchrun``, ``srun``, ``lightning`` (the Trainer starts the workers), or ``none`` (a world of one)."""
    rank: int
    """Global rank, 0 to ``world_size - 1``."""
    local_rank: int
    """Rank on this node, which is also the index of its device."""
    world_size: int
    """Ranks over all nodes."""
    local_world_size: int
    """Ranks on each node."""
    master_addr: str
    """Host at which the ranks meet."""
    master_port: int
    """Port at which the ranks meet; 0 lets a world of one pick a free one."""

    @property
    def num_nodes(self) -> int:
        """Nodes, each with ``local_world_size`` ranks."""
        return self.world_size // self.local_world_size


def detect_launch(config: RunConfig, environ: Mapping[str, str] = os.environ) -> Launch:
    """Find out who started this process. torchrun wins over srun, since it may run inside it.

    Raises:
        RunError: the environment is half set or contradicts itself, or an option (``--devices``, ``--num-nodes``,
            ``--global-batch-size``) does not fit the ranks that it names.
    """
    if any(name in environ for name in ("RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")):
        launch = _from_torchrun(environ)
        _check_torchrun_inside_srun(config, launch, environ)
    elif "SLURM_PROCID" in environ and environ.get("SLURM_STEP_ID", INTERACTIVE_STEP) != INTERACTIVE_STEP:
        launch = _from_srun(environ)
        _check_gpus_of_tasks(config, launch, environ)
    elif config.implementation == "lightning" and all(name in environ for name in LIGHTNING_WORKER):
        launch = _from_lightning(config, environ)
    else:
        launch = _from_nobody(config, environ)
    _check_layout(config, launch)
    return launch


def _from_torchrun(environ: Mapping[str, str]) -> Launch:
    rank, local_rank, world_size, local_world_size = _integers(environ, "torchrun", TORCHRUN)[:4]
    if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
        raise RunError(
            f"the environment contradicts itself: RANK={rank} WORLD_SIZE={world_size} LOCAL_RANK={local_rank} "
            f"LOCAL_WORLD_SIZE={local_world_size}; start with: "
            f"torchrun --standalone --nproc-per-node={local_world_size} -m ..."
        )
    port = int(environ["MASTER_PORT"])
    return Launch("torchrun", rank, local_rank, world_size, local_world_size, environ["MASTER_ADDR"], port)


def _check_torchrun_inside_srun(config: RunConfig, launch: Launch, environ: Mapping[str, str]) -> None:
    """Refuse several torchrun agents on a node, and agents that srun started together but that don't join.

    The first fight over the node's devices, the second train several worlds that all report success.
    """
    agents, joined = environ.get("SLURM_STEP_TASKS_PER_NODE", "1"), environ.get("GROUP_WORLD_SIZE", "1")
    if "SLURM_STEP_ID" not in environ or "SLURM_PTY_PORT" in environ:  # a terminal belongs to one task of its step
        return
    counts = tasks_per_node(agents)
    if max(counts) > 1 or joined != str(len(counts)):
        nodes = len(counts)
        raise RunError(
            f"srun started torchrun in {sum(counts)} tasks (SLURM_STEP_TASKS_PER_NODE={agents}), but torchrun joins "
            f"{joined} of them (--nnodes); one world needs one on each node: srun --nodes={nodes} --ntasks={nodes} "
            f"--ntasks-per-node=1 torchrun --nnodes={nodes} --nproc-per-node={launch.local_world_size} "
            f"--rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m {config.module} ..."
        )


def _from_srun(environ: Mapping[str, str]) -> Launch:
    rank, local_rank, world_size, num_nodes = _integers(environ, "srun", SRUN)
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if "MASTER_ADDR" not in environ and not hosts:
        raise RunError("srun's environment is half set: SLURM_STEP_NODELIST is missing; start with: srun python -m ...")
    if environ.get("SLURM_STEP_NUM_TASKS", str(world_size)) != str(world_size):
        raise RunError(
            f"SLURM_NTASKS={world_size} is the job's, but this step has {environ['SLURM_STEP_NUM_TASKS']} tasks; "
            f"start with: srun --ntasks={world_size} python -m ..."
        )
    counts = tasks_per_node(
        environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or str(world_size)
    )
    if len(counts) != num_nodes or len(set(counts)) != 1 or sum(counts) != world_size:
        raise RunError(
            f"uneven layout: SLURM_NTASKS={world_size} SLURM_NNODES={num_nodes} tasks on each node {counts}; "
            f"every node needs as many as the others, for example: srun --nodes={num_nodes} "
            f"--ntasks-per-node={max(1, world_size // num_nodes)} python -m ..."
        )
    address = environ.get("MASTER_ADDR") or first_host(hosts or "")
    port = (
        _integers(environ, "srun", ("MASTER_PORT",))[0]
        if "MASTER_PORT" in environ
        else step_port(environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"])
    )
    return Launch("srun", rank, local_rank, world_size, counts[0], address, port)


def _check_gpus_of_tasks(config: RunConfig, launch: Launch, environ: Mapping[str, str]) -> None:
    """Refuse tasks that see one GPU each (``--gpus-per-task=1``): all would take device 0 for another's index."""
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if config.device != "cpu" and launch.local_world_size > 1 and visible and "," not in visible:
        count = launch.local_world_size
        raise RunError(
            f"{count} tasks on this node, and this one sees a single GPU (CUDA_VISIBLE_DEVICES={visible}), as with "
            "--gpus-per-task=1; every task must see all GPUs of its node and takes the one of its local rank: "
            f"ask for --gpus-per-node={count} (or --gres=gpu:{count}) instead, or use --device cpu"
        )


def check_visible_devices(visible: str, can_use_cuda: bool) -> None:
    """Refuse CUDA_VISIBLE_DEVICES that names GPUs where PyTorch sees none: training on the CPU would pass unnoticed.

    ``can_use_cuda``: whether PyTorch was built for CUDA; the variable means nothing to a build for CPUs.
    """
    if can_use_cuda and visible.strip() not in ("", "-1", "NoDevFiles"):
        raise RunError(
            f"CUDA_VISIBLE_DEVICES={visible}, but PyTorch sees no such GPU here; name GPUs of nvidia-smi -L, by "
            "number or UUID (GPU-..., MIG-...), unset CUDA_VISIBLE_DEVICES, or use --device cpu"
        )


def _from_lightning(config: RunConfig, environ: Mapping[str, str]) -> Launch:
    """A worker that Lightning's own launcher started, or a node of several on which a person started Lightning."""
    local_rank, node_rank, world_size = _integers(environ, "Lightning", LIGHTNING_WORKER)[:3]
    local_world_size = config.devices or 1
    rank = node_rank * local_world_size + local_rank
    if local_world_size * (config.num_nodes or 1) != world_size or not local_rank < local_world_size:
        raise RunError(
            f"stale variables: LOCAL_RANK={local_rank} WORLD_SIZE={world_size} do not fit --devices {local_world_size} "
            f"--num-nodes {config.num_nodes or 1}; start with: unset {' '.join(LIGHTNING_WORKER)}"
        )
    port = int(environ["MASTER_PORT"])
    return Launch("lightning", rank, local_rank, world_size, local_world_size, environ["MASTER_ADDR"], port)


def _from_nobody(config: RunConfig, environ: Mapping[str, str]) -> Launch:
    stale = [name for name in ("LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK") if name in environ]
    if stale:
        missing = [name for name in TORCHRUN if name not in environ]
        raise RunError(
            f"the launcher's environment is half set: {', '.join(stale)} without {', '.join(missing)}; "
            f"start with torchrun, or: unset {' '.join(stale)}"
        )
    tasks, nodes = environ.get("SLURM_NTASKS", "1"), environ.get("SLURM_JOB_NUM_NODES", "1")
    if "SLURM_JOB_ID" in environ and (tasks, nodes) != ("1", "1"):
        size = f"{tasks} tasks" if tasks != "1" else f"{nodes} nodes"
        raise RunError(
            f"this is one process inside a Slurm allocation of {size}; start with: srun python -m {config.module} ..."
        )
    devices, num_nodes = config.devices or 1, config.num_nodes or 1
    if num_nodes > 1:
        raise RunError(
            f"--num-nodes {num_nodes}, but no launcher started this process; start with srun, or on every node with: "
            f"torchrun --nnodes={num_nodes} --nproc-per-node={devices} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 "
            f"-m {config.module} ..."
        )
    if config.implementation == "lightning":
        return Launch("lightning", 0, 0, devices, devices, "127.0.0.1", 0)
    return Launch("none", 0, 0, 1, 1, "127.0.0.1", 0)


def _check_layout(config: RunConfig, launch: Launch) -> None:
    """Refuse what one of the two implementations could not run, and claims that the launcher contradicts."""
    config.local_batch_size(launch.world_size)
    if launch.world_size % launch.local_world_size:
        raise RunError(
            f"uneven layout: {launch.world_size} ranks, {launch.local_world_size} of them on this node; "
            "every node needs the same number"
        )
    devices = launch.local_world_size if config.devices is None else config.devices
    num_nodes = launch.num_nodes if config.num_nodes is None else config.num_nodes
    if (devices, num_nodes) != (launch.local_world_size, launch.num_nodes):
        hint = f"use --devices {launch.local_world_size} --num-nodes {launch.num_nodes}, or leave both out"
        if launch.launcher == "none":
            torchrun = f"torchrun --standalone --nproc-per-node={devices}"
            hint = f"start with: {torchrun} -m {config.module} --strategy {config.strategy} ..."
        raise RunError(
            f"--devices {devices} --num-nodes {num_nodes} make {devices * num_nodes} ranks, but {_by(launch.launcher)} "
            f"{launch.num_nodes} x {launch.local_world_size} = {launch.world_size}; {hint}"
        )


def _by(launcher: str) -> str:
    return "without a launcher there are" if launcher == "none" else f"{launcher} started"


def _integers(environ: Mapping[str, str], launcher: str, names: tuple[str, ...]) -> list[int]:
    """Return the numbers among ``names`` (host names are left out), or say which are missing or are no number."""
    missing = [name for name in names if name not in environ]
    if missing:
        present = [name for name in names if name in environ]
        raise RunError(
            f"{launcher}'s environment is half set: {', '.join(present) or 'nothing'} without {', '.join(missing)}; "
            f"start with {launcher}, or: unset {' '.join(present)}"
        )
    numbers = []
    for name in names:
        if name == "MASTER_ADDR":
            continue
        if not re.fullmatch(r"\d+", environ[name]):
            raise RunError(
                f"{name}={environ[name]!r} in the environment is not a whole number; start again with {launcher}"
            )
        numbers.append(int(environ[name]))
    return numbers
