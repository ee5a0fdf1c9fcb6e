"""How the time of a step changes with the number of ranks, in runs that differ in nothing else.

Weak scaling keeps each rank's batch; ideal is the same time a step on any number of ranks. Strong scaling keeps the
global batch; ideal is half the time on twice the ranks. Efficiency is the ideal time over the measured one, within one
implementation, against the fewest ranks that it completed a run with.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comparison.formatting import counted
from comparison.loading import Run
from comparison.metrics import RUNS_FOR_A_VERDICT, verdict
from comparison.pairing import CONTROL, FOUND_OUT, NOT_SETTINGS, Pair, asked_for, flat, found_out, shown, side_label
from comparison.statistics import Estimate, ratio_of_means

KEPT = {"weak": "batch_size_per_device", "strong": "global_batch_size"}
"""By kind of scaling, the batch size that stays."""
SIZES = ("world_size", *KEPT.values())

FOLLOWS_FROM_RANKS = (
    "num_nodes",
    "local_world_size",
    "hosts",
    "nodes_share_hardware",
    "slurm.node_list",
    "slurm.tasks_per_node",
    "variables.OMP_NUM_THREADS",
)
"""Environment fields that other ranks may need. Threads are not among them (cpu_threads): more ranks on a machine leave
fewer for each, and that is no scaling."""


@dataclass(frozen=True)
class Unequal:
    """A field that should have been equal over all numbers of ranks, with the values found at each."""

    field: str
    values: dict[int, tuple[str, ...]]

    def sentence(self) -> str:
        """Return the field and its values."""
        found = (f"{' / '.join(values)} at {counted(ranks, 'rank')}" for ranks, values in self.values.items())
        return f"{self.field}: {', '.join(found)}"


@dataclass(frozen=True)
class Point:
    """One side at one number of ranks."""

    side: str
    """``native`` or ``lightning``, and what it switched."""
    ranks: int
    runs: tuple[Run, ...]
    milliseconds: tuple[float, ...]
    """A step of every completed run, by its median lap."""
    base: int | None
    """Ranks that the efficiency is against; None if the side completed no run at all."""
    efficiency: float | None
    """Ideal time over measured time, of geometric means; None where there is an obstacle."""
    interval: Estimate | None
    """The same with its 95 % interval, from two runs at either number of ranks."""
    obstacle: str | None
    """Why the times of these runs say nothing."""
    has_enough_runs: bool
    """For a verdict, at either number of ranks."""

    @property
    def is_base(self) -> bool:
        """Whether the other points of its side are measured against this one."""
        return self.ranks == self.base

    def finding(self) -> str:
        """Return what may be said of the efficiency, or why nothing."""
        if self.obstacle:
            return f"no verdict: {self.obstacle}"
        if self.is_base:
            return "reference"
        if self.interval is None or not self.has_enough_runs:
            return f"no verdict from fewer than {RUNS_FOR_A_VERDICT} runs"
        if self.interval.contains(1.0):
            return "no clear difference from ideal"
        return "below ideal" if self.efficiency < 1 else "above ideal"


@dataclass(frozen=True)
class Scaling:
    """Runs that differ in the number of ranks alone, and in the batch size that follows from it."""

    kind: str
    """``weak`` or ``strong``."""
    points: tuple[Point, ...]
    """By side, native first, then by ranks."""
    mismatch: tuple[Unequal, ...]
    """What the runs found out about their workload, and is unequal: then there is no efficiency."""
    environment_differences: tuple[Unequal, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, by side and ranks."""
        return [run for point in self.points for run in point.runs]

    def missing(self) -> list[tuple[str, int]]:
        """Return each implementation and number of ranks that there is no run of, though there is one of the other."""
        present = {(point.side, point.ranks) for point in self.points}
        ranks = sorted({point.ranks for point in self.points})
        return [(side, each) for side in ("native", "lightning") for each in ranks if (side, each) not in present]


@dataclass(frozen=True)
class Alone:
    """Runs of one workload that have no like at another number of ranks."""

    runs: tuple[Run, ...]
    nearest: Run | None
    """A run of the same strategy and another number of ranks, which differs in as few fields as any; None without."""
    differences: tuple[tuple[str, str, str], ...] = ()
    """Fields apart from the number of ranks, with the value here and the nearest run's."""


@dataclass(frozen=True)
class ScaledRuns:
    """What became of all runs."""

    scalings: tuple[Scaling, ...]
    mismatches: tuple[Scaling, ...]
    alone: tuple[Alone, ...]


def scale_runs(runs: Sequence[Run]) -> ScaledRuns:
    """Group runs that differ in their number of ranks alone: weak scaling first, then strong.

    A run may belong to one of each. Control runs count only where a side has no others, and variants only where one ran
    on several numbers of ranks.
    """
    scalings = [
        _scaling(kind, group)
        for kind, kept in KEPT.items()
        for group in _grouped(runs, lambda run, kept=kept: _asked_but(run, set(SIZES) - {kept}))
        if any(_is_scaled(side) for side in _grouped(group, side_label))
    ]
    scaled = {shown(asked_for(run)) for scaling in scalings for run in scaling.runs}
    rest = [run for run in runs if shown(asked_for(run)) not in scaled]
    return ScaledRuns(
        scalings=tuple(each for each in scalings if not each.mismatch),
        mismatches=tuple(each for each in scalings if each.mismatch),
        alone=tuple(_alone(group, runs) for group in _grouped(rest, asked_for)),
    )


def _is_scaled(side: list[Run]) -> bool:
    return len({_ranks(run) for run in side}) > 1


def _scaling(kind: str, runs: list[Run]) -> Scaling:
    ordered = sorted(runs, key=lambda run: (run.result.implementation == "lightning", run.result.workload.variants))
    grouped = _grouped(ordered, side_label)
    sides = [side for side in grouped if _is_scaled(side) or not side[0].result.workload.variants]
    runs = [run for side in sides for run in side]
    return Scaling(
        kind=kind,
        points=tuple(point for side in sides for point in _points(kind, side)),
        mismatch=tuple(_mismatch(kind, runs)),
        environment_differences=tuple(_environment_differences(runs)),
    )


def _points(kind: str, runs: list[Run]) -> list[Point]:
    """Return one side at every number of ranks."""
    by_ranks: dict[int, tuple[Run, ...]] = {}
    for ranks in sorted({_ranks(run) for run in runs}):
        here = [run for run in runs if _ranks(run) == ranks]
        by_ranks[ranks] = tuple([run for run in here if run.result.label != CONTROL] or here)
    base = next((ranks for ranks, here in by_ranks.items() if any(run.completed for run in here)), None)
    return [_point(kind, ranks, here, base, by_ranks.get(base, ())) for ranks, here in by_ranks.items()]


def _point(kind: str, ranks: int, runs: tuple[Run, ...], base: int | None, base_runs: tuple[Run, ...]) -> Point:
    side = side_label(runs[0])
    labels = tuple(f"{side} on {counted(each, 'rank')}" for each in (base or ranks, ranks))
    times = verdict(Pair(base_runs, runs, labels))
    if base is None:
        times = replace(times, obstacle=f"no completed run of {labels[1]}")
    efficiency = interval = None
    if not times.obstacle:
        # On N times the ranks a step of the same global batch should take an Nth of the time.
        ideal = base / ranks if kind == "strong" else 1.0
        means = [statistics.geometric_mean(side) for side in (times.baseline, times.other)]
        efficiency = min(ideal * means[0] / means[1], sys.float_info.max)
        if (ratio := ratio_of_means(times.other, times.baseline)) and ranks != base:
            interval = Estimate(ideal * ratio.value, ideal * ratio.low, ideal * ratio.high)
    enough = min(len(times.baseline), len(times.other)) >= RUNS_FOR_A_VERDICT
    return Point(side, ranks, runs, times.other, base, efficiency, interval, times.obstacle, enough)


def _mismatch(kind: str, runs: Sequence[Run]) -> list[Unequal]:
    """Return what completed runs found out and is unequal; a weak scaling has a batch for each number of ranks."""
    completed = [run for run in runs if run.completed]
    apart = ("batch_sha256",) if kind == "weak" else ()
    found = _unequal(completed, lambda run: found_out([run])[0], [name for name in FOUND_OUT if name not in apart])
    for ranks in sorted({_ranks(run) for run in completed}) if apart else ():
        here = [run for run in completed if _ranks(run) == ranks]
        found += _unequal(here, lambda run: found_out([run])[0], apart)
    return found


def _environment_differences(runs: Sequence[Run]) -> list[Unequal]:
    ignored = {*NOT_SETTINGS, *FOLLOWS_FROM_RANKS}
    if len({run.result.environment.lightning_version for run in runs} - {None}) < 2:
        ignored.add("lightning_version")  # native has none
    found = _unequal(runs, lambda run: flat(run.data["environment"]))
    return [each for each in found if each.field not in ignored]


def _unequal(
    runs: Sequence[Run], values_of: Callable[[Run], dict[str, Any]], names: Sequence[str] | None = None
) -> list[Unequal]:
    """Return the fields that do not have one value over all runs; ``names`` and what is below them, or all."""
    values = [(_ranks(run), values_of(run)) for run in sorted(runs, key=_ranks)]
    found = []
    for name in dict.fromkeys(name for _, each in values for name in each):
        if names is not None and name.partition(".")[0] not in names:
            continue
        by_ranks: dict[int, dict[str, None]] = {}
        for ranks, each in values:
            by_ranks.setdefault(ranks, {})[shown(each.get(name))] = None
        if len({value for each in by_ranks.values() for value in each}) > 1:
            found.append(Unequal(name, {ranks: tuple(each) for ranks, each in by_ranks.items()}))
    return found


def _alone(group: list[Run], runs: Sequence[Run]) -> Alone:
    sides = {side_label(run) for run in group}
    strategy, ranks = group[0].result.workload.strategy, _ranks(group[0])
    candidates = [
        (_differences(group[0], run), run)
        for run in runs
        if side_label(run) in sides and run.result.workload.strategy == strategy and _ranks(run) != ranks
    ]
    if not candidates:
        return Alone(tuple(group), None)
    differences, nearest = min(candidates, key=lambda each: len(each[0]))
    return Alone(tuple(group), nearest, differences)


def _differences(run: Run, other: Run) -> tuple[tuple[str, str, str], ...]:
    """Return the fields that keep two runs out of one scaling, with their values."""
    here, there = (flat(_asked_but(each, {"world_size"})) for each in (run, other))
    names = [name for name in dict.fromkeys([*here, *there]) if here.get(name) != there.get(name)]
    if not set(KEPT.values()) <= set(names):  # one of the two stays, and the other one follows
        names = [name for name in names if name not in SIZES]
    return tuple((name, shown(here.get(name)), shown(there.get(name))) for name in names)


def _grouped(runs: Sequence[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """Return the runs of each key, in the order in which keys first occur."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(shown(key(run)), []).append(run)
    return list(groups.values())


def _asked_but(run: Run, names: set[str]) -> dict[str, Any]:
    """Return what was asked for, without some fields."""
    return {name: value for name, value in asked_for(run).items() if name not in names}


def _ranks(run: Run) -> int:
    return run.result.workload.world_size
