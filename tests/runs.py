"""Real runs for tests: started as processes, awaited with a limit, and ended together with all that they started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from common.options import IMPLEMENTATION_MODULES
from common.result import Result, read_result

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "NATIVE_VS_LIGHTNING_TEST_RUN"
LAUNCHER_PREFIXES = ("SLURM_", "TORCHELASTIC_", "PMI_")
LAUNCHER_VARIABLES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}


@dataclass(frozen=True)
class Cell:
    """One run of the parity matrix: preset tiny, one seed, a global batch of 6, 3 warm-up steps and 4 timed ones."""

    implementation: str
    """``native`` or ``lightning``."""
    strategy: str
    world_size: int = 2
    precision: str = "fp32"
    fsdp_wrap: str = "block"
    launcher: str = "torchrun"
    """``torchrun``, or ``none``: plain ``python -m``, which for lightning starts workers of its own."""
    variant: str = ""
    """Name of a variant, or of another switch: ``deterministic``; or nothing."""

    def __str__(self) -> str:
        wrap = f"-{self.fsdp_wrap}" if self.strategy == "fsdp2" else ""
        name = f"{self.implementation}-{self.strategy}{wrap}-{self.precision}-{self.world_size}-{self.launcher}"
        return f"{name}-{self.variant.replace(' ', '-')}" if self.variant else name

    def command(self, output: Path) -> list[str]:
        """Return the command line that writes the result to ``output``."""
        module = IMPLEMENTATION_MODULES[self.implementation]
        if self.launcher == "torchrun":
            command = torchrun(self.world_size, "-m", module)
        else:
            command = [sys.executable, "-m", module, "--devices", str(self.world_size)]
        return [
            *command,
            *("--device", "cpu", "--preset", "tiny", "--global-batch-size", "6", "--warmup-steps", "3", "--steps", "4"),
            *("--strategy", self.strategy, "--fsdp-wrap", self.fsdp_wrap, "--precision", self.precision),
            *("--output", str(output)),
            *(f"--{self.variant}".split() if self.variant else ()),
        ]


@dataclass(frozen=True)
class FinishedCell:
    """A cell whose processes have ended."""

    cell: Cell
    process: subprocess.CompletedProcess
    output: Path

    @cached_property
    def result(self) -> Result:
        """The result file; an assertion error with the end of stderr where the run failed."""
        self.text  # noqa: B018
        return read_result(self.output)

    @property
    def text(self) -> str:
        """The result file as it is."""
        assert self.process.returncode == 0, f"{self.cell}: exit code {self.process.returncode}\n{tail(self.process)}"
        return self.output.read_text(encoding="utf-8")


class CellRunner:
    """Runs each cell once, when it is first asked for; all tests of a session share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._finished: dict[Cell, FinishedCell] = {}

    def __call__(self, cell: Cell) -> FinishedCell:
        if cell not in self._finished:
            output = self._folder / f"{cell}.json"
            self._finished[cell] = FinishedCell(cell, run(cell.command(output)), output)
        return self._finished[cell]

    def result(self, cell: Cell) -> Result:
        """Return the result of ``cell``."""
        return self(cell).result


@dataclass
class Started:
    """A process and whatever it starts, recognised by an environment variable that all of them inherit."""

    process: subprocess.Popen
    token: str = field(repr=False)

    def members(self) -> list[int]:
        """Return the ids of all living processes of this run, orphans and other sessions included."""
        wanted = f"{TOKEN}={self.token}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def kill_all(self) -> None:
        """Kill every process of this run."""
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.02)


@contextlib.contextmanager
def start(command: list[str], **environ: str) -> Iterator[Started]:
    """Start ``command`` in the project's root, without a launcher's variables; nothing of it survives the block."""
    token = uuid.uuid4().hex
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**clean_environment(), TOKEN: token, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        started = Started(process, token)
        try:
            yield started
        finally:
            started.kill_all()


def run(command: list[str], *, timeout: float = 120, **environ: str) -> subprocess.CompletedProcess:
    """Run ``command`` to its end and return exit code, stdout and stderr; kill all of it after ``timeout`` seconds."""
    with start(command, **environ) as started:
        stdout, stderr = started.process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, started.process.returncode, stdout, stderr)


def torchrun(world_size: int, *arguments: str) -> list[str]:
    """Return the command line of torchrun with ``world_size`` ranks on this machine."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    return [sys.executable, *launcher, *arguments]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without any launcher's variables, for one thread a rank and 80 columns."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(LAUNCHER_PREFIXES)
    }
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}


@contextlib.contextmanager
def signals_restored() -> Iterator[None]:
    """Undo what ``compare.main``, called in this process, does to the signals that end it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tail(process: subprocess.CompletedProcess, lines: int = 30) -> str:
    """Return the last lines of a process's stderr."""
    return "\n".join(process.stderr.splitlines()[-lines:])
