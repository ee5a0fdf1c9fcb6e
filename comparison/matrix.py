"""The matrix of a comparison: which runs, in which order, each as a process group of its own."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common.options import IMPLEMENTATION_MODULES
from common.result import Result, ResultFileError, read_result
from common.variants import VARIANTS, Variant, nothing_to_switch
from comparison.launchers import Launcher
from comparison.pairing import CONTROL

PROJECT = Path(__file__).resolve().parent.parent
GRACE_SECONDS = 8.0
TAIL_LINES = 12
TORCHRUN_REPORT = "torch/distributed/elastic/multiprocessing/api.py"
"""From the line with this on, stderr is torchrun's own report about a failure, not the failure."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of the matrix."""

    implementation: str
    strategy: str
    repeat: int
    """Counted from 1."""
    arguments: tuple[str, ...]
    """Options of the runner, without strategy and output."""
    label: str | None = None
    """``control`` for the second side of native against itself."""
    variant: Variant | None = None
    """What the run switches."""

    @property
    def name(self) -> str:
        """Name of the run, and of its files."""
        switched = f"-{self.variant.name.replace(' ', '-')}" if self.variant else ""
        return f"{self.strategy}-{self.label or self.implementation}{switched}-{self.repeat}"


@dataclass(frozen=True)
class FinishedRun:
    """How a run ended."""

    planned: PlannedRun
    output: Path
    log: Path
    returncode: int
    seconds: float

    @cached_property
    def result(self) -> Result | None:
        """What it wrote; None if it wrote nothing, or nothing that is a result."""
        try:
            return read_result(self.output)
        except ResultFileError:
            return None

    @property
    def succeeded(self) -> bool:
        """Whether it left a result and ended as that says: running out of memory is a result, and no exit code 0."""
        completed = self.result is not None and self.result.outcome.status == "completed"
        return self.result is not None and completed == (self.returncode == 0)

    def tail(self) -> list[str]:
        """Return the last lines that the ranks wrote, without torchrun's own report behind them."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        own = next((number for number, line in enumerate(lines) if TORCHRUN_REPORT in line), len(lines))
        return [line for line in (lines[:own] or lines) if line.strip()][-TAIL_LINES:]


def plan(
    strategies: Sequence[str],
    repeats: int,
    arguments: Sequence[str],
    control: bool = False,
    variants: Mapping[str, Sequence[Variant]] | None = None,
) -> list[PlannedRun]:
    """Return all runs in the order native, Lightning, Lightning, native, ...: a drift of the machine hits both.

    With ``control``, native runs once more in every repeat, as the second side of an A/A comparison; and so does each
    of a strategy's ``variants``, on the side that has it.
    """
    runs = []
    for strategy in strategies:
        sides: list[tuple[str, str | None, Variant | None]] = [("native", None, None), ("lightning", None, None)]
        if control:
            sides.append(("native", CONTROL, None))
        sides += [(variant.implementation, None, variant) for variant in (variants or {}).get(strategy, ())]
        for repeat in range(1, repeats + 1):
            runs += [
                PlannedRun(implementation, strategy, repeat, tuple(arguments), label, variant)
                for implementation, label, variant in (sides if repeat % 2 else reversed(sides))
            ]
    return runs


def choose_variants(
    strategies: Sequence[str], precision: str, world_size: int
) -> tuple[dict[str, list[Variant]], list[str]]:
    """Return the variants that have something to switch, by strategy, and a line for each of the others."""
    chosen: dict[str, list[Variant]] = {strategy: [] for strategy in strategies}
    left_out = []
    for strategy in strategies:
        for variant in VARIANTS:
            reason = nothing_to_switch(variant, strategy, precision, world_size)
            if reason:
                left_out.append(f"left out for {strategy}: {variant.name} ({reason})")
            else:
                chosen[strategy].append(variant)
    return chosen, left_out


def execute(planned: PlannedRun, launcher: Launcher, processes: int, folder: Path) -> FinishedRun:
    """Run one cell with ``processes`` ranks a node, with stdout and stderr in a log file, and wait for it.

    Interrupted (``KeyboardInterrupt``), it ends every process of the run before it lets the exception go on.
    """
    output, log = folder / f"{planned.name}.json", folder / "logs" / f"{planned.name}.log"
    log.parent.mkdir(exist_ok=True)
    step_name = f"{planned.name}-{os.getpid()}"
    command = launcher.command(IMPLEMENTATION_MODULES[planned.implementation], processes, step_name)
    command += ["--strategy", planned.strategy, *planned.arguments, "--output", str(output)]
    if planned.variant is not None:
        command += planned.variant.words
    if planned.label is not None:
        command += ["--label", planned.label]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as stream:
        # A session of its own, so that the terminal's Ctrl-C reaches us alone and the order of ending is ours.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=run_environment(launcher.threads(processes)),
            start_new_session=True,
        )
        try:
            returncode = process.wait()
        except BaseException:
            end_process_tree(process)
            launcher.cancel(step_name)
            raise
    return FinishedRun(planned, output, log, returncode, time.monotonic() - started)


def run_environment(threads: int) -> dict[str, str]:
    """Return the environment of a run: this project importable, that many threads a rank, no stale launcher."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment


def end_process_tree(process: subprocess.Popen) -> None:
    """End torchrun and all that it started: politely, then by force after :data:`GRACE_SECONDS`.

    torchrun gives every worker a session of its own, so the workers are found by their parents.
    """
    tree = [process.pid, *descendants(process.pid)]
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        tree += [pid for pid in descendants(process.pid) if pid not in tree]
    for pid in reversed(tree):
        if pid != process.pid or process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GRACE_SECONDS
    while any(is_running(pid) for pid in tree) and time.monotonic() < deadline:
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Say whether a process exists and is more than a zombie that its parent has not yet collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``, parents before children, from Linux's /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found
