"""Weak and strong scaling in words, and as plain data."""

import statistics
from typing import Any

from common.report import describe_outcome
from common.text import plain
from comparison.formatting import (
    SINGLE_DIGITS,
    Fact,
    caveats,
    cell_of,
    counted,
    describe_workload,
    interval,
    rounded,
)
from comparison.metrics import RUNS_FOR_A_VERDICT
from comparison.scaling import Alone, Point, Scaling
from comparison.statistics import standard_deviation, supported_digits

IDEAL = {"weak": "the same time a step on any number of ranks", "strong": "half the time a step on twice the ranks"}
HEADINGS = ("side", "ranks", "runs", "ms a step", "efficiency", "95 % interval", "finding")
NOTHING = (
    "Nothing to scale: it takes runs that differ in their number of ranks alone; run the same options with another "
    "--nproc-per-node"
)


def scaling_title(scaling: Scaling) -> str:
    """Return the one line that names a scaling."""
    run = scaling.runs[0]
    workload = run.result.workload
    batch = f"{counted(workload.batch_size_per_device, 'sample')} a rank"
    if scaling.kind == "strong":
        batch = f"{counted(workload.global_batch_size, 'sample')} in all"
    name = f"{cell_of(run)}, preset {workload.preset}, {workload.precision_resolved}, {batch}"
    return plain(f"{scaling.kind.capitalize()} scaling: {name}")


def scaling_facts(scaling: Scaling) -> list[Fact]:
    """Return what was run, what efficiency is against, and everything to know before the numbers."""
    run = scaling.runs[0]
    workload, environment = run.result.workload, run.result.environment
    facts = [
        ("steps", f"{workload.steps} timed after {workload.warmup_steps} to warm up; seed {workload.seed}"),
        ("machine", f"{environment.device_name}; torch {environment.torch_version}"),
        ("ideal", IDEAL[scaling.kind]),
    ]
    bases = {point.side: point.base for point in scaling.points if point.base is not None}
    against = [counted(base, "rank") for base in dict.fromkeys(bases.values())]
    if len(against) > 1:
        against = [f"{counted(base, 'rank')} for {side}" for side, base in bases.items()]
    if against:
        facts.append(("efficiency", f"ideal over measured time, against {', '.join(against)}"))
    facts += [("missing", f"no {side} run on {counted(ranks, 'rank')}") for side, ranks in scaling.missing()]
    for point in scaling.points:
        for each in point.runs:
            if not each.completed:
                where = f"{point.side} on {counted(point.ranks, 'rank')}"
                facts.append(("outcome", f"{where}: {describe_outcome(each.result.outcome)}"))
    if any(point.efficiency is not None and not point.has_enough_runs for point in scaling.points):
        needed = RUNS_FOR_A_VERDICT
        hint = f"a verdict takes {needed} runs at each number of ranks; use --repeats {needed} or more"
        facts.append(("remark", hint))
    facts += [("warning", each.sentence()) for each in scaling.environment_differences]
    facts += [("caveat", line) for line in caveats(scaling.runs)]
    return [(name, plain(text)) for name, text in facts]


def scaling_cells(point: Point) -> tuple[str, ...]:
    """Return the row of one point, as text, in the order of :data:`HEADINGS`."""
    return (
        point.side,
        str(point.ranks),
        str(len(point.milliseconds)),
        _milliseconds(point),
        *_efficiency(point),
        point.finding(),
    )


def scaling_line(point: Point) -> tuple[str, str]:
    """Return the row of one point as two lines, for where there is no room for a table."""
    side, ranks, runs, milliseconds, efficiency, within, finding = scaling_cells(point)
    times = f"{milliseconds} ms a step in {counted(int(runs), 'run')}, efficiency {efficiency}"
    return f"{side}, {counted(int(ranks), 'rank')}", f"{times} (95 % interval {within}): {finding}"


def _milliseconds(point: Point) -> str:
    """Return the median over runs, with the digits that their spread supports."""
    if not point.milliseconds:
        return "n/a"
    value = statistics.median(point.milliseconds)
    digits = supported_digits(standard_deviation(point.milliseconds))
    return f"{value:.{SINGLE_DIGITS}g}" if digits is None else rounded(value, min(digits, 3))


def _efficiency(point: Point) -> tuple[str, str]:
    if point.efficiency is None:
        return "n/a", "n/a"
    if point.is_base:
        return "1", "n/a"
    return interval(point.interval) if point.interval else (rounded(point.efficiency, 2), "n/a")


def describe_alone(alone: Alone) -> str:
    """Return why runs take part in no scaling."""
    what = f"{describe_workload(alone.runs[0])}: {counted(len(alone.runs), 'run')}"
    if alone.nearest is None:
        return f"{what}, and none on another number of ranks"
    fields = ", ".join(f"{name} ({here}, there {there})" for name, here, there in alone.differences)
    ranks = counted(alone.nearest.result.workload.world_size, "rank")
    return plain(f"{what}; the nearest on another number, {ranks}, differ in {fields} as well")


def scaling_as_data(scaling: Scaling) -> dict[str, Any]:
    """Return a scaling as plain data, with all digits."""
    return {
        "kind": scaling.kind,
        "workload": scaling.runs[0].data["workload"],
        "points": [point_as_data(point) for point in scaling.points],
        "missing": [{"side": side, "world_size": ranks} for side, ranks in scaling.missing()],
        "environment_differences": [
            {"field": each.field, "values": {str(ranks): list(values) for ranks, values in each.values.items()}}
            for each in scaling.environment_differences
        ],
        "caveats": caveats(scaling.runs),
    }


def point_as_data(point: Point) -> dict[str, Any]:
    """Return one point as plain data, with all digits."""
    estimate = point.interval
    return {
        "side": point.side,
        "world_size": point.ranks,
        "paths": [str(run.path) for run in point.runs],
        "outcomes": [run.result.outcome.status for run in point.runs],
        "milliseconds_per_step_median": list(point.milliseconds),
        "base_world_size": point.base,
        "efficiency": point.efficiency,
        "interval": [estimate.low, estimate.high] if estimate else None,
        "finding": point.finding(),
    }
