"""What a person sees while the matrix runs: a live line on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.report import describe_outcome
from comparison.matrix import FinishedRun, PlannedRun
from comparison.terminal import literal


def run_all(
    runs: list[PlannedRun], execute: Callable[[PlannedRun], FinishedRun], console: Console
) -> list[FinishedRun]:
    """Execute ``runs`` one after the other and say how each went; a failure does not stop the others."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    finished: list[FinishedRun] = []
    started = time.monotonic()
    with progress:
        task = progress.add_task("", total=len(runs), left="")
        for number, planned in enumerate(runs, start=1):
            progress.update(task, description=planned.name, left=_time_left(started, len(finished), len(runs)))
            run = execute(planned)
            finished.append(run)
            progress.advance(task)
            for line in describe(run, number, len(runs)):
                console.print(literal(console, line))
    return finished


def _time_left(started: float, done: int, total: int) -> str:
    if done == 0:
        return ""
    left = (time.monotonic() - started) / done * (total - done)
    return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"


def describe(run: FinishedRun, number: int, total: int) -> list[str]:
    """Return how one run went: a line, and the end of its output if it failed."""
    start = f"[{number}/{total}] {run.planned.name}:"
    if run.succeeded and run.result is not None:
        if run.result.timing is None or run.result.outcome.status != "completed":
            return [f"{start} {describe_outcome(run.result.outcome)}"]
        return [f"{start} {run.result.timing.milliseconds_per_step:,.3f} ms a step ({run.seconds:.0f} s)"]
    ending = f"exit code {run.returncode}" if run.returncode else "it ended without a result"
    return [f"{start} FAILED ({ending}); all of its output: {run.log}", *(f"    {line}" for line in run.tail())]
