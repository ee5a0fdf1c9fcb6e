"""What starts the ranks of a run: torchrun, srun, or torchrun inside srun. Chosen here, and made a command line."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.errors import RunError
from common.launch import check_visible_devices
from common.slurm import FIRST_PORT, INTERACTIVE_STEP, PORTS, first_host, tasks_per_node

STEP_ENDS_SECONDS = 40.0
"""How long a cancelled step may take to end; Slurm's own patience (KillWait) is 30 s by default."""


@dataclass(frozen=True)
class Launcher:
    """The chosen launcher, and the allocation that it starts ranks in."""

    name: str
    """One of :data:`common.options.LAUNCHERS`."""
    reason: str
    """Why this one, for people."""
    nodes: int = 1
    tasks_per_node: int = 1
    """Of the allocation; 1 outside Slurm."""
    cores_per_node: int | None = None
    """Of the allocation, on its smallest node; None outside Slurm."""
    host: str = ""
    """First node of the allocation, at which torchrun's agents meet."""
    job_id: str = ""
    step_options: tuple[str, ...] = field(default=(), repr=False)
    """Further options of every srun."""
    timeout_seconds: int = 300
    """How long torchrun's agents wait for one another."""

    @property
    def by_srun(self) -> bool:
        """Whether runs are steps of a Slurm job."""
        return self.name != "torchrun"

    def command(self, module: str, ranks: int, step_name: str) -> list[str]:
        """Return the command line that starts ``python -m module`` with that many ranks a node, up to its options."""
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if self.name == "srun":
            return [*self._srun(step_name, ranks), sys.executable, "-m", module]
        if self.nodes > 1:
            # A port of its own for each run: the one before may not have let go of it yet.
            port = FIRST_PORT + int.from_bytes(os.urandom(4)) % PORTS
            torchrun += [f"--nnodes={self.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{port}"]
            torchrun += [f"--rdzv-conf=join_timeout={self.timeout_seconds}"]
        else:
            torchrun += ["--standalone"]
        agents = self._srun(step_name, 1) if self.by_srun else []
        return [*agents, *torchrun, f"--nproc-per-node={ranks}", "-m", module]

    def probe(self) -> list[str]:
        """Return what a command must be prefixed with to run once, where the ranks will run."""
        if not self.by_srun:
            return []
        return ["srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--export=ALL", *self.step_options]

    def on_each_node(self, command: list[str]) -> list[str]:
        """Return the command line that runs ``command`` once on each node of the allocation."""
        return [*self._srun("check", 1), *command]

    def _srun(self, step_name: str, tasks: int) -> list[str]:
        """Return srun with that many tasks a node. All numbers are given: a step inherits the job's otherwise."""
        cores = [f"--cpus-per-task={self.cores_per_node // tasks}"] if (self.cores_per_node or 0) >= tasks else []
        return [
            *("srun", "--kill-on-bad-exit=1", "--export=ALL", f"--job-name={step_name}"),
            *(f"--nodes={self.nodes}", f"--ntasks={self.nodes * tasks}", f"--ntasks-per-node={tasks}"),
            *cores,
            *self.step_options,
        ]

    def threads(self, ranks: int) -> int:
        """Return the CPU threads of each of that many ranks on a node."""
        return max(1, (self.cores_per_node or len(os.sched_getaffinity(0))) // ranks)

    def cancel(self, step_name: str) -> None:
        """End a step that outlived its srun, and wait until Slurm no longer lists it."""
        if not self.by_srun:
            return
        deadline = time.monotonic() + STEP_ENDS_SECONDS
        while (step := self._find_step(step_name)) and time.monotonic() < deadline:
            subprocess.run(["scancel", step], check=False, capture_output=True, timeout=STEP_ENDS_SECONDS)
            time.sleep(0.5)

    def _find_step(self, step_name: str) -> str | None:
        listing = ["squeue", "--steps", "--noheader", f"--jobs={self.job_id}", "--format=%i %j"]
        answer = subprocess.run(listing, check=False, capture_output=True, text=True, timeout=STEP_ENDS_SECONDS)
        steps = (line.split(maxsplit=1) for line in answer.stdout.splitlines())
        return next((step for step, *name in steps if name == [step_name]), None)


def choose_launcher(
    wanted: str | None, environ: Mapping[str, str] = os.environ, timeout_seconds: int = 300
) -> Launcher:
    """Return the launcher that was asked for, or the one that the surroundings call for.

    Raises:
        RunError: srun was asked for outside an allocation or of uneven layout, or srun started this process in several
            tasks.
    """
    step = environ.get("SLURM_STEP_ID", INTERACTIVE_STEP)
    in_step = step != INTERACTIVE_STEP
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if in_step and tasks != "1" and "SLURM_PTY_PORT" not in environ:
        raise RunError(
            f"srun started compare.py in {tasks} tasks, but it runs once and starts the ranks itself; "
            "leave srun out: python compare.py run ..."
        )
    name, reason = (wanted, "asked for") if wanted else _default(environ, in_step)
    if name == "torchrun":
        return Launcher(name, reason)
    if "SLURM_JOB_ID" not in environ:
        raise RunError(
            f"--launcher {name}, but this is no Slurm allocation; get one with: salloc --nodes=N --ntasks-per-node=M, "
            "or submit a job with: python compare.py sbatch --submit"
        )
    return replace(_in_allocation(name, reason, environ, in_step), timeout_seconds=timeout_seconds)


def _default(environ: Mapping[str, str], in_step: bool) -> tuple[str, str]:
    if "SLURM_JOB_ID" not in environ:
        return "torchrun", "this is no Slurm allocation"
    if shutil.which("srun") is None:
        return "torchrun", "inside Slurm, but there is no srun on the PATH"
    if in_step:
        return "torchrun", "srun started this shell, whose step holds the resources already"
    counts = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "1"))
    if max(counts) > 1:
        return (
            "srun",
            f"the allocation has tasks for single ranks (SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']})",
        )
    return "srun-torchrun", "the allocation has one task on each node"


def _in_allocation(name: str, reason: str, environ: Mapping[str, str], in_step: bool) -> Launcher:
    counts = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "1"))
    if len(set(counts)) > 1:
        if name == "srun":
            raise RunError(
                f"--launcher srun, but the allocation has uneven tasks on its nodes {counts}; "
                "ask for --ntasks-per-node=N instead of --ntasks, or use --launcher srun-torchrun"
            )
        counts = [1] * len(counts)
    cores = tasks_per_node(environ.get("SLURM_JOB_CPUS_PER_NODE", "1"))
    # Inside a step its own processes hold the resources; overlapping steps may share them.
    return Launcher(
        name=name,
        reason=reason,
        nodes=int(environ.get("SLURM_JOB_NUM_NODES", len(counts))),
        tasks_per_node=counts[0],
        cores_per_node=min(cores),
        host=first_host(environ.get("SLURM_JOB_NODELIST", "localhost")),
        job_id=environ["SLURM_JOB_ID"],
        step_options=("--overlap",) if in_step else (),
    )


def choose_ranks(launcher: Launcher, wanted_device: str, wanted_ranks: int | None) -> tuple[str, int]:
    """Return the kind of device and the ranks a node.

    The ranks are the allocation's tasks where it has several on a node, else all visible GPUs, else two on CPUs.

    Raises:
        RunError: torch is missing, or the ranks or the device asked for are not what is there.
    """
    try:
        gpus = visible_gpus(launcher, wanted_device)
    except RuntimeError as error:
        raise RunError(f"{error}; create an environment with: bash launchers/demo.sh", exit_code=1) from None
    if wanted_device == "cuda" and gpus == 0:
        raise RunError("--device cuda, but PyTorch sees no GPU here; use --device cpu")
    device = "cuda" if gpus and wanted_device != "cpu" else "cpu"
    ranks = wanted_ranks or (gpus if device == "cuda" else 2)
    if launcher.name == "srun" or launcher.tasks_per_node > 1:
        check_tasks(launcher.tasks_per_node, wanted_ranks)
        ranks = launcher.tasks_per_node
    if device == "cuda" and ranks > gpus:
        what = f"--nproc-per-node {ranks}" if wanted_ranks else f"{ranks} tasks on each node"
        raise RunError(f"{what}, but {gpus} visible GPUs; use at most {gpus}, or --device cpu")
    return device, ranks


def check_meeting_point(launcher: Launcher) -> None:
    """Refuse nodes that don't know the first one by its name: their torchruns would try for minutes.

    Ranks that srun starts check that by themselves (:mod:`common.network`).
    """
    if launcher.name != "srun-torchrun" or launcher.nodes == 1:
        return
    unknowing = ["bash", "-c", 'getent ahosts "$1" >/dev/null || hostname', "_", launcher.host]
    answer = subprocess.run(launcher.on_each_node(unknowing), capture_output=True, text=True, check=False)
    if names := answer.stdout.split():
        raise RunError(
            f"the ranks cannot meet at {launcher.host}, which does not resolve on {', '.join(sorted(names))}; "
            "start a task for each rank with --launcher srun, and name the first node so that all nodes find it: "
            "export MASTER_ADDR=ADDRESS"
        )


def check_tasks(tasks: int, wanted_ranks: int | None) -> None:
    """Refuse a number of ranks a node that the allocation contradicts."""
    if wanted_ranks not in (None, tasks):
        raise RunError(
            f"--nproc-per-node {wanted_ranks}, but the allocation has {tasks} tasks on each node; leave the option "
            f"out, or ask Slurm for --ntasks-per-node={wanted_ranks}"
        )


def visible_gpus(launcher: Launcher, wanted_device: str) -> int:
    """Return how many GPUs PyTorch sees where the ranks will run. Asks another process: torch stays out of this one.

    Raises:
        RuntimeError: torch cannot be imported there.
        RunError: GPUs are wanted, if there are any, and CUDA_VISIBLE_DEVICES names some that are not there.
    """
    question = "import torch; print(torch.version.cuda is not None, torch.cuda.device_count())"
    command = [*launcher.probe(), sys.executable, "-c", question]
    probe = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if probe.returncode != 0:
        lines = [line for line in probe.stderr.splitlines() if line.strip() and not line.startswith("srun: ")]
        raise RuntimeError(f"torch cannot be imported by {sys.executable}: {(lines or ['no message'])[-1]}")
    with contextlib.suppress(ValueError):
        can_use_cuda, count = probe.stdout.split()[-2:]
        if int(count) == 0 and wanted_device != "cpu":
            check_visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES", ""), can_use_cuda == "True")
        return int(count)
    raise RuntimeError(f"{sys.executable} did not say how many GPUs there are, but: {probe.stdout!r}")
