"""The rows of the metrics table, the parity of a pair and the verdict about its times, as data."""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from common.result import Environment, Result
from comparison.loading import Run
from comparison.pairing import Pair
from comparison.statistics import (
    Estimate,
    difference_of_means,
    outliers,
    ratio_of_means,
    standard_deviation,
    supported_digits,
)

Value = float | int | bool | None
RUNS_FOR_A_VERDICT = 3
NO_CLEAR_DIFFERENCE = "no clear difference"
WINDOW_TOLERANCE = 0.05
SINGLE_RUN_DIGITS = 3


@dataclass(frozen=True)
class Metric:
    """One row: a leaf of the result file."""

    section: str
    """Section of the result."""
    name: str
    """Name of the leaf, which carries the unit."""
    decimals: int = 0
    """Decimals at the most."""
    exact: bool = False
    """Whether both sides should agree to the last bit; such a row has no ratio, and seven digits."""
    noisy: bool = False
    """Whether it differs from run to run, so that a single run supports few digits."""

    def of(self, result: Result) -> Value:
        """Return the value in one result; None if it has no such section."""
        section = getattr(result, self.section)
        return None if section is None else getattr(section, self.name)


METRICS: tuple[Metric, ...] = (
    Metric("timing", "milliseconds_per_step", 3, noisy=True),
    Metric("timing", "milliseconds_per_step_median", 3, noisy=True),
    Metric("timing", "milliseconds_per_step_iqr", 3, noisy=True),
    Metric("timing", "tokens_per_second", 0, noisy=True),
    Metric("timing", "samples_per_second", 2, noisy=True),
    Metric("timing", "elapsed_seconds", 4, noisy=True),
    Metric("memory", "peak_allocated_gib", 4),
    Metric("memory", "peak_reserved_gib", 4),
    Metric("memory", "setup_peak_allocated_gib", 4),
    Metric("memory", "device_used_gib", 4),
    Metric("memory", "parameters_gib", 4),
    Metric("memory", "gradients_gib", 4),
    Metric("memory", "optimizer_state_gib", 4),
    Metric("memory", "activations_and_temporary_gib", 4),
    Metric("memory", "process_peak_resident_gib", 3, noisy=True),
    Metric("parameters", "local_parameter_fraction", 4, exact=True),
    Metric("parameters", "local_parameter_elements", exact=True),
    Metric("workload", "global_parameter_count", exact=True),
    Metric("correctness", "final_loss_mean", exact=True),
    Metric("correctness", "step1_gradient_norm", exact=True),
    Metric("correctness", "parameter_checksum_sum", exact=True),
    Metric("correctness", "parameter_checksum_squared_sum", exact=True),
    Metric("correctness", "parameters_synchronized", exact=True),
)


@dataclass(frozen=True)
class Row:
    """A metric of a pair: the median over the runs of each side."""

    metric: Metric
    baseline: Value
    other: Value
    spread: float = 0.0
    """Standard deviation over the runs of the side where it is larger; 0 if it is unknown or there is none."""

    @property
    def difference(self) -> float | int | None:
        """The other side minus the baseline; None where there is nothing to subtract, or it is beyond any float."""
        if _is_number(self.baseline) and _is_number(self.other):
            return _finite(self.other - self.baseline)
        return None

    @property
    def ratio(self) -> float | None:
        """The other side over the baseline; None without a baseline, or where a ratio means nothing."""
        if self.metric.exact or self.difference is None or self.baseline == 0:
            return None
        return _finite(self.other / self.baseline)

    @property
    def digits(self) -> int:
        """Decimals that the spread supports, negative for tens and hundreds; with a single noisy run, three digits."""
        digits = supported_digits(self.spread)
        if digits is None and self.metric.noisy and _is_number(self.baseline) and self.baseline:
            digits = SINGLE_RUN_DIGITS - 1 - math.floor(math.log10(abs(self.baseline)))
        return self.metric.decimals if digits is None else min(digits, self.metric.decimals)


@cache
def rows(pair: Pair) -> list[Row]:
    """Return the rows of a pair, in the order of :data:`METRICS`."""
    return [_row(metric, pair) for metric in METRICS]


def _row(metric: Metric, pair: Pair) -> Row:
    sides = [[metric.of(run.result) for run in side] for side in (pair.baseline, pair.other)]
    baseline, other = (_middle(metric, values) for values in sides)
    if metric.exact:
        return Row(metric, baseline, other)
    spreads = [standard_deviation(values) for values in sides if all(_is_number(value) for value in values)]
    return Row(metric, baseline, other, max(spreads, default=0.0))


def _middle(metric: Metric, values: Sequence[Value]) -> Value:
    """Return the median; for anything but numbers the common value, or None if there is none."""
    if values and all(_is_number(value) for value in values):
        # The lower median is always one that was measured, and keeps whole numbers whole.
        return (
            statistics.median_low(values) if metric.exact or isinstance(values[0], int) else statistics.median(values)
        )
    return values[0] if len(set(values)) == 1 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Parity:
    """Whether both sides computed the same, over all runs of a pair."""

    steps: int
    """Steps compared, warm-up included."""
    first_unequal_step: int | None
    """First step, from 1, whose loss is not equal to the last bit everywhere; None if all are."""
    largest_loss_difference: float
    """Largest absolute difference of a loss between any two runs."""
    same_final_weights: bool
    """Whether the final weights have one SHA-256."""
    differ_among_themselves: tuple[str, ...]
    """Labels of the sides whose own runs are not all equal: no difference between the sides."""
    deterministic: bool
    """Whether every run was bound to compute the same bits each time: on CPUs, or with deterministic kernels."""

    @property
    def exact(self) -> bool:
        """Whether everything is equal to the last bit."""
        return self.first_unequal_step is None and self.same_final_weights

    def sentence(self) -> str:
        """Return the finding in words. The weights and batches at the start are equal in every pair, by pairing."""
        if self.first_unequal_step is None:
            losses = f"all {self.steps} losses equal to the last bit"
        else:
            largest = f"{self.largest_loss_difference:.3g}"
            losses = f"LOSSES DIFFER from step {self.first_unequal_step} on, by {largest} at most"
        weights = "equal to the last bit" if self.same_final_weights else "NOT EQUAL"
        found = f"same weights and batches at the start; {losses}; final weights {weights}"
        if self.differ_among_themselves:
            sides = " and of ".join(self.differ_among_themselves)
            way_out = "" if self.deterministic else ": --deterministic excludes that"
            return f"{found}; runs of {sides} differ among themselves, too{way_out}"
        if not (self.exact or self.deterministic):
            return f"{found}; without --deterministic, runs of one side on a GPU may differ as well"
        return found


def parity(pair: Pair) -> Parity:
    """Compare losses and final weights over all runs of a pair, which must be completed."""
    by_step = list(zip(*(run.result.correctness.losses for run in pair.runs), strict=True))
    unequal = [step for step, losses in enumerate(by_step, start=1) if len(set(losses)) > 1]
    outcomes = [
        {(*run.result.correctness.losses, run.result.correctness.final_weights_sha256) for run in side}
        for side in (pair.baseline, pair.other)
    ]
    return Parity(
        steps=len(by_step),
        first_unequal_step=unequal[0] if unequal else None,
        largest_loss_difference=min(max(max(losses) - min(losses) for losses in by_step), sys.float_info.max),
        same_final_weights=len({run.result.correctness.final_weights_sha256 for run in pair.runs}) == 1,
        differ_among_themselves=tuple(
            label for label, found in zip(pair.labels, outcomes, strict=True) if len(found) > 1
        ),
        deterministic=all(
            run.result.workload.device_type == "cpu" or run.result.environment.deterministic_algorithms
            for run in pair.runs
        ),
    )


@dataclass(frozen=True)
class Verdict:
    """What the times of a pair's runs allow to be said. A run counts by the median of its laps."""

    baseline: tuple[float, ...]
    """Milliseconds a step of every run."""
    other: tuple[float, ...]
    labels: tuple[str, str]
    ratio: Estimate | None
    """The other side over the baseline, with two runs or more on each."""
    difference: Estimate | None
    """The other side minus the baseline in milliseconds a step, likewise."""
    noise: Estimate | None
    """The ratio of the baseline to itself in the control runs."""
    obstacle: str | None
    """Why there can be no verdict."""

    @property
    def is_clear(self) -> bool:
        """Whether one side takes longer than the other beyond the noise."""
        return not self.obstacle and self._enough and self.ratio is not None and not self.ratio.contains(1.0)

    @property
    def _enough(self) -> bool:
        return min(len(self.baseline), len(self.other)) >= RUNS_FOR_A_VERDICT

    def finding(self) -> str:
        """Return the verdict in words, or why there is none."""
        if self.obstacle:
            return f"no verdict: {self.obstacle}"
        if self.ratio is None or not self._enough:
            needed = RUNS_FOR_A_VERDICT
            return f"no verdict from fewer than {needed} runs a side; use --repeats {needed} or more"
        if not self.is_clear:
            return NO_CLEAR_DIFFERENCE
        return f"{self.labels[1]} takes {'longer' if self.ratio.value > 1 else 'less time'}"


def verdict(pair: Pair) -> Verdict:
    """Judge the times of a pair's completed runs."""
    completed = pair.completed()
    baseline, other = (_medians(side) for side in (completed.baseline, completed.other))
    obstacle = None
    if pair.mismatch:
        obstacle = "the workloads differ"
    elif wrong := [run for run in pair.runs if run.went_wrong]:
        obstacle = f"a run ended {wrong[0].result.outcome.status.replace('_', ' ')}"
    elif not baseline or not other:
        obstacle = f"no completed run of {pair.labels[0] if not baseline else pair.labels[1]}"
    elif any(run.result.environment.nodes_share_hardware for run in pair.runs):
        obstacle = "the nodes of a run were one machine (a simulated cluster), so its times mean nothing"
    elif min(*baseline, *other) == 0:
        obstacle = "a run measured no time at all"
    control = pair.control.completed() if pair.control else None
    return Verdict(
        baseline=baseline,
        other=other,
        labels=pair.labels,
        ratio=ratio_of_means(baseline, other),
        difference=difference_of_means(baseline, other),
        noise=ratio_of_means(_medians(control.baseline), _medians(control.other)) if control else None,
        obstacle=obstacle,
    )


def _medians(runs: Sequence[Run]) -> tuple[float, ...]:
    return tuple(run.result.timing.milliseconds_per_step_median for run in runs)


def _oversubscription(environment: Environment) -> list[str]:
    """Say if the ranks of a node have more threads than cores. srun may have bound each rank to cores of its own."""
    ranks = 1 if environment.launcher == "srun" else environment.local_world_size
    threads, cores = environment.cpu_threads, environment.cpu_count
    if ranks * threads <= cores:
        return []
    have = f"a rank has {threads} threads" if ranks == 1 else f"{ranks} ranks a node have {threads} threads each"
    return [f"{have} on {cores} cores: set OMP_NUM_THREADS, or start fewer ranks"]


def remarks(run: Run) -> list[str]:
    """Return what is odd about one run: too many threads for its cores, or its laps."""
    timing, found = run.result.timing, _oversubscription(run.result.environment)
    if timing is None:
        return found
    laps = timing.laps_milliseconds
    if abs(timing.laps_over_window - 1) > WINDOW_TOLERANCE:
        found.append(f"its laps add up to {timing.laps_over_window:.0%} of its window")
    odd = outliers(laps)
    if 0 in odd and laps[0] > timing.milliseconds_per_step_median:
        found.append(f"its first lap stands out ({laps[0]:.3g} ms): the warm-up was too short; use more --warmup-steps")
        odd = odd[1:]
    if odd:
        listed = ", ".join(f"{index + 1} ({laps[index]:.3g} ms)" for index in odd[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        found.append(f"laps far outside the rest: {listed}{more}")
    return found
