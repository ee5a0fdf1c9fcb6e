"""What the results say: the runs of one workload by cell, and ratios between cells with what the noise allows."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.result import Result, Workload
from comparison.formatting import cell_of, interval
from comparison.loading import Run
from comparison.metrics import METRICS, RUNS_FOR_A_VERDICT, Verdict, verdict
from comparison.pairing import CONTROL, FOUND_OUT, Pair, pair_runs
from comparison.statistics import Estimate, ratio_of_means

DDP, BLOCK, ROOT = "ddp", "fsdp2 block", "fsdp2 root"
CELLS = (DDP, BLOCK, ROOT)
IMPLEMENTATIONS = ("native", "lightning")
Figure = Callable[[Result], float | None]


@dataclass(frozen=True)
class Ratio:
    """One cell's or implementation's value over another's."""

    estimate: Estimate | None
    """Null where nothing may be said."""
    grounds: str
    """The ratio in words, or why there is none."""


@dataclass(frozen=True)
class Measured:
    """Runs of one workload, with any strategy, wrap and implementation."""

    runs: tuple[Run, ...]
    all_runs: tuple[Run, ...] = ()
    """These and those of other workloads, such as other presets."""

    @property
    def workload(self) -> Workload:
        """What all of them trained, but for strategy and wrap."""
        return self.runs[0].result.workload

    def side(self, cell: str, implementation: str) -> tuple[Run, ...]:
        """Return the runs of a cell, completed or not."""
        return tuple(run for run in self.runs if (cell_of(run), run.result.implementation) == (cell, implementation))

    def lacks(self, cells: Sequence[str]) -> list[str]:
        """Return those cells that either implementation has never run."""
        return [cell for cell in cells if not all(self.side(cell, each) for each in IMPLEMENTATIONS)]

    def implementation(self, *cells: str) -> str:
        """Return whose runs to judge these cells by: native's, unless only Lightning's are there."""
        whole = [each for each in IMPLEMENTATIONS if all(self.side(cell, each) for cell in cells)]
        return whole[0] if whole else IMPLEMENTATIONS[0]

    def figure(self, figure: Figure, cell: str, implementation: str | None = None) -> float | None:
        """Return the median of a figure over a cell's completed runs; None where it was not measured."""
        side = self.side(cell, implementation or self.implementation(cell))
        values = [figure(run.result) for run in side if run.completed]
        return None if not values or None in values else statistics.median(values)

    def between_cells(self, baseline: str, other: str, implementation: str | None = None) -> Pair:
        """Return two cells of one implementation as a pair."""
        name = implementation or self.implementation(baseline, other)
        return Pair(self.side(baseline, name), self.side(other, name), labels=(baseline, other))

    def between_implementations(self, cell: str) -> Pair | None:
        """Return native and Lightning in one cell, as ``compare.py show`` pairs them; None if it would not."""
        pairs = pair_runs([*self.side(cell, "native"), *self.side(cell, "lightning")]).pairs
        return next((pair for pair in pairs if not pair.is_control), None)


def choose(runs: Sequence[Run]) -> Measured | None:
    """Return the runs of the workload with most cells, then with most runs; None without any."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.result.label != CONTROL:
            groups[_common(run)].append(run)
    if not groups:
        return None
    largest = max(groups.values(), key=lambda group: (len({cell_of(run) for run in group}), len(group)))
    return Measured(tuple(largest), tuple(runs))


def _common(run: Run) -> str:
    """Return the workload but for strategy, wrap and what the run found out about them."""
    left_out = ("strategy", "fsdp_wrap", *FOUND_OUT)
    asked = {name: value for name, value in run.data["workload"].items() if name not in left_out}
    return json.dumps(asked, sort_keys=True)


def time_ratio(pair: Pair | None) -> Ratio:
    """Return the ratio of step times, as far as :func:`comparison.metrics.verdict` has one."""
    if pair is None or not pair.baseline or not pair.other:
        return Ratio(None, "not measured: these runs are missing")
    found: Verdict = verdict(pair)
    if found.obstacle or found.ratio is None or min(len(found.baseline), len(found.other)) < RUNS_FOR_A_VERDICT:
        return Ratio(None, found.finding())
    return Ratio(found.ratio, f"{_in_words(found.ratio, pair)}: {found.finding()}")


def memory_ratio(pair: Pair | None) -> Ratio:
    """Return the ratio of ``peak_allocated_gib``, under the same rules as times."""
    if pair is None or not pair.baseline or not pair.other:
        return Ratio(None, "not measured: these runs are missing")
    peaks = [
        [run.result.memory.peak_allocated_gib for run in side]
        for side in (pair.completed().baseline, pair.completed().other)
    ]
    if not all(peaks):
        return Ratio(None, "no verdict: no completed run on one side")
    if any(value is None for side in peaks for value in side):
        return Ratio(None, "not measured: a CPU has no CUDA allocator")
    estimate = ratio_of_means(*peaks)
    if estimate is None or min(map(len, peaks)) < RUNS_FOR_A_VERDICT:
        return Ratio(None, f"no verdict from fewer than {RUNS_FOR_A_VERDICT} runs a side")
    return Ratio(estimate, _in_words(estimate, pair))


def _in_words(estimate: Estimate, pair: Pair) -> str:
    value, bounds = interval(estimate)
    return f"{pair.labels[1]} {value} times {pair.labels[0]} (95 % interval {bounds})"


def model_state_gib(result: Result) -> float | None:
    """Return what a rank holds of parameters, gradients and AdamW's moments, counted on any device."""
    memory = result.memory
    return None if memory is None else memory.parameters_gib + memory.gradients_gib + memory.optimizer_state_gib


def leaf(name: str) -> Figure:
    """Return the figure that a metric of that name is."""
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return metric.of
