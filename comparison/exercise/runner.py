"""The runs that a task needs: loaded from the folder, or made there by the same code as ``compare.py run``."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from common.errors import RunError
from common.result import Workload
from comparison.exercise.measured import BLOCK, CELLS, DDP, ROOT, Measured, choose
from comparison.formatting import counted, plain
from comparison.launchers import Launcher, choose_launcher, choose_ranks
from comparison.loading import load_runs
from comparison.matrix import PlannedRun, execute, plan
from comparison.progress import run_all

Options = Callable[[argparse.Namespace, str, str, int], list[str]]
"""``workload_arguments`` of compare.py: the options that every run of a matrix gets."""
BATCHES = {"first": (DDP, BLOCK), "root": (ROOT,)}
"""Subfolders of the results that this exercise makes, with the cells of each."""
CHOSEN = ("preset", "warmup_steps", "steps", "batch_size_per_device")
"""Options of the workload that results in the folder have settled already."""


@dataclass(frozen=True)
class Setting:
    """Where runs are made, known before the first one."""

    launcher: Launcher
    device: str
    processes: int
    """Ranks a node."""
    preset: str

    def in_words(self) -> str:
        """Return what a person must know to predict anything."""
        ranks = self.launcher.nodes * self.processes
        return f"{counted(ranks, 'rank')} on {self.device}, preset {self.preset}"


class Runner:
    """Knows the results in a folder, and makes those that are missing."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, options: Options) -> None:
        self.folder = folder
        self._arguments = arguments
        self._options = options
        self.problems: list[str] = []
        self._tried: set[Path] = set()
        """Outputs of the runs that this session has made; one that failed is not made again for the next task."""
        self.measured: Measured | None = None
        self.load()
        if self.measured:
            self._check_options(self.measured.workload)

    def load(self) -> None:
        """Read what is in the folder now."""
        found = sorted(self.folder.rglob("*.json")) if self.folder.is_dir() else []
        runs, self.problems = load_runs(found)
        self.measured = choose(runs)

    @cached_property
    def setting(self) -> Setting:
        """Where runs would be made.

        Raises:
            RunError: there is nothing to make them with, or not what the results in the folder were made on.
        """
        wanted = self._arguments
        launcher = choose_launcher(wanted.launcher)
        workload = self.measured.workload if self.measured else None
        ranks, device = wanted.nproc_per_node, wanted.device
        if workload:
            device = workload.device_type
            ranks = workload.world_size // launcher.nodes
        device, processes = choose_ranks(launcher, device, ranks)
        preset = workload.preset if workload else wanted.preset or ("small" if device == "cuda" else "tiny")
        return Setting(launcher, device, processes, preset)

    def in_words(self) -> str:
        """Return on what the results were made, or will be."""
        if self.measured is None:
            return self.setting.in_words()
        workload = self.measured.workload
        return f"{counted(workload.world_size, 'rank')} on {workload.device_type}, preset {workload.preset}"

    def planned(self, cells: Sequence[str]) -> dict[str, list[PlannedRun]]:
        """Return by subfolder the runs of these cells that are still to be made."""
        missing = set(self.measured.lacks(CELLS) if self.measured else CELLS)
        return {
            batch: left
            for batch, contained in BATCHES.items()
            if set(contained) & set(cells)
            and (missing & set(contained) or (self.folder / batch).is_dir())
            and (left := [run for run in self._plan(batch) if self._is_left(self._output(batch, run))])
        }

    def _is_left(self, output: Path) -> bool:
        return output not in self._tried and not output.exists()

    def _plan(self, batch: str) -> list[PlannedRun]:
        strategies = list(dict.fromkeys(cell.split()[0] for cell in BATCHES[batch]))
        return plan(strategies, self._arguments.repeats, [])

    def _output(self, batch: str, run: PlannedRun) -> Path:
        return self.folder / batch / f"{run.name}.json"

    def provide(self, cells: Sequence[str], console: Console) -> None:
        """Make the runs that are missing of these cells. One that fails is told and left out.

        Interrupted, the runs that have ended keep their results, and the next call goes on from there.
        """
        for batch, left in self.planned(cells).items():
            wrap = BATCHES[batch][-1].split()[-1]
            options = self._run_options(wrap)
            runs = [PlannedRun(run.implementation, run.strategy, run.repeat, tuple(options)) for run in left]
            folder = self.folder / batch
            try:
                (folder / "logs").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(
                    f"{folder} cannot be created ({error.strerror}); name a folder of results that you may write to",
                    exit_code=1,
                ) from None
            console.print(Text(plain(f"{counted(len(runs), 'run')} of {self.setting.in_words()}; results in {folder}")))
            self._tried |= {self._output(batch, run) for run in runs}
            run_all(runs, partial(execute, launcher=self.setting.launcher, processes=self.setting.processes,
                                  folder=folder), console)  # fmt: skip
        self.load()
        for problem in self.problems:
            print(f"compare.py: {plain(problem)}", file=sys.stderr)

    def _run_options(self, wrap: str) -> list[str]:
        arguments = argparse.Namespace(**{**vars(self._arguments), "fsdp_wrap": wrap})
        if self.measured:
            workload = self.measured.workload
            for name in ("warmup_steps", "steps", "batch_size_per_device", "seed"):
                setattr(arguments, name, getattr(workload, name))
            arguments.global_batch_size, arguments.precision = None, workload.precision_resolved
            arguments.deterministic = self.measured.runs[0].result.environment.deterministic_algorithms
        setting = self.setting
        return self._options(arguments, setting.preset, setting.device, setting.launcher.nodes * setting.processes)

    def _check_options(self, workload: Workload) -> None:
        """Refuse options that contradict the results in the folder: runs beside them could not be compared."""
        wanted = {name: (getattr(self._arguments, name), getattr(workload, name)) for name in CHOSEN}
        ranks = self.measured.runs[0].result.environment.local_world_size
        wanted["nproc_per_node"] = (self._arguments.nproc_per_node, ranks)
        wanted["device"] = (None if self._arguments.device == "auto" else self._arguments.device, workload.device_type)
        for name, (value, found) in wanted.items():
            if value not in (None, found):
                option = f"--{name.replace('_', '-')}"
                raise RunError(
                    f"{option} {value}, but the results in {self.folder} were made with {found}; "
                    f"leave {option} out, or name a new folder"
                )
