"""The rows of the metrics table, and the parity of a pair, as data: nothing here knows how it is shown."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.result import Result
from comparison.loading import Run
from comparison.pairing import Pair

Value = float | int | bool | None


@dataclass(frozen=True)
class Metric:
    """One row: a leaf of the result file."""

    section: str
    """Section of the result."""
    name: str
    """Name of the leaf, which carries the unit."""
    pattern: str
    """Format specification of its values."""
    exact: bool = False
    """Whether both sides should agree to the last bit; such a row has no ratio."""

    def of(self, result: Result) -> Value:
        """Return the value in one result."""
        return getattr(getattr(result, self.section), self.name)


METRICS: tuple[Metric, ...] = (
    Metric("timing", "milliseconds_per_step", ",.3f"),
    Metric("timing", "milliseconds_per_step_median", ",.3f"),
    Metric("timing", "tokens_per_second", ",.0f"),
    Metric("timing", "samples_per_second", ",.2f"),
    Metric("timing", "elapsed_seconds", ",.4f"),
    Metric("memory", "peak_allocated_gib", ",.4f"),
    Metric("memory", "peak_reserved_gib", ",.4f"),
    Metric("parameters", "local_parameter_fraction", ".4f", exact=True),
    Metric("parameters", "local_parameter_elements", ",d", exact=True),
    Metric("workload", "global_parameter_count", ",d", exact=True),
    Metric("correctness", "final_loss_mean", ".7g", exact=True),
    Metric("correctness", "step1_gradient_norm", ".7g", exact=True),
    Metric("correctness", "parameter_checksum_sum", ".7g", exact=True),
    Metric("correctness", "parameter_checksum_squared_sum", ".7g", exact=True),
    Metric("correctness", "parameters_synchronized", "", exact=True),
)


@dataclass(frozen=True)
class Row:
    """A metric of a pair: the median over the runs of each side."""

    metric: Metric
    native: Value
    lightning: Value

    @property
    def difference(self) -> float | int | None:
        """Lightning minus native; None where there is nothing to subtract."""
        if _is_number(self.native) and _is_number(self.lightning):
            return self.lightning - self.native
        return None

    @property
    def ratio(self) -> float | None:
        """Lightning over native; None without a baseline, or where a ratio means nothing."""
        if self.metric.exact or self.difference is None or self.native == 0:
            return None
        return self.lightning / self.native


def rows(pair: Pair) -> list[Row]:
    """Return the rows of a pair, in the order of :data:`METRICS`."""
    return [Row(metric, _middle(metric, pair.native), _middle(metric, pair.lightning)) for metric in METRICS]


def _middle(metric: Metric, runs: Sequence[Run]) -> Value:
    """Return the median over the runs; for anything but numbers the common value, or None if they disagree."""
    values = [metric.of(run.result) for run in runs]
    if all(_is_number(value) for value in values):
        # The lower median is always one that was measured, and keeps whole numbers whole.
        return (
            statistics.median_low(values) if metric.exact or isinstance(values[0], int) else statistics.median(values)
        )
    return values[0] if len(set(values)) == 1 else None


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

    @property
    def exact(self) -> bool:
        """Whether everything is equal to the last bit."""
        return self.first_unequal_step is None and self.same_final_weights

    def sentence(self) -> str:
        """Return the finding in words. The weights and batches at the start are equal in every pair, by pairing."""
        if self.first_unequal_step is None:
            losses = f"all {self.steps} losses equal to the last bit"
        else:
            losses = (
                f"LOSSES DIFFER from step {self.first_unequal_step} on, by {self.largest_loss_difference:.3g} at most"
            )
        weights = "equal to the last bit" if self.same_final_weights else "NOT EQUAL"
        return f"same weights and batches at the start; {losses}; final weights {weights}"


def parity(pair: Pair) -> Parity:
    """Compare losses and final weights over all runs of a pair."""
    by_step = list(zip(*(run.result.correctness.losses for run in pair.runs), strict=True))
    unequal = [step for step, losses in enumerate(by_step, start=1) if len(set(losses)) > 1]
    return Parity(
        steps=len(by_step),
        first_unequal_step=unequal[0] if unequal else None,
        largest_loss_difference=max(max(losses) - min(losses) for losses in by_step),
        same_final_weights=len({run.result.correctness.final_weights_sha256 for run in pair.runs}) == 1,
    )


def time_finding(pair: Pair) -> str:
    """Say what the runs' times allow to be said, and no more.

    The unit of replication is a run: steps within one share its luck. Fewer than three runs a side get no verdict.
    """
    native = [run.result.timing.milliseconds_per_step for run in pair.native]
    lightning = [run.result.timing.milliseconds_per_step for run in pair.lightning]
    if min(len(native), len(lightning)) < 3:
        return "too few runs to tell a difference in time from noise; use --repeats 3 or more"
    if max(native) < min(lightning):
        return "every lightning run took longer than every native run"
    if max(lightning) < min(native):
        return "every native run took longer than every lightning run"
    return "no clear difference in time: the runs of the two sides overlap"


def spread(values: Callable[[Run], float], runs: Sequence[Run]) -> tuple[float, float]:
    """Return the smallest and the largest of one value over ``runs``."""
    found = [values(run) for run in runs]
    return min(found), max(found)
