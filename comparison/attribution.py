"""How much of the difference between native and Lightning each switched choice explains, in time and in memory.

A variant of native has taken over a choice of Lightning's: what that costs is the variant minus native. A variant of
Lightning has given one up: what it costs there is Lightning minus the variant. Either way, what the choice explains is
this effect over Lightning minus native, both as they are by default.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.variants import VARIANTS, Variant
from comparison.loading import Run
from comparison.metrics import METRICS, NO_CLEAR_DIFFERENCE, Metric, Parity, parity, verdict
from comparison.pairing import Pair, Pairing, Side, Sides, by_workload, default_runs, side_label
from comparison.statistics import Estimate, difference_of_means

ATTRIBUTED = tuple(
    metric
    for metric in METRICS
    if metric.name in ("milliseconds_per_step_median", "peak_allocated_gib", "peak_reserved_gib")
)
EQUAL_MEMORY = 1e-3
"""Peaks that differ by a smaller part than this differ by how the allocator rounds, not by what a choice costs."""


@dataclass(frozen=True)
class Change:
    """From the runs of one side to those of another, in one metric."""

    baseline: float | None
    """Mean over the runs; None where it was not measured."""
    other: float | None
    difference: Estimate | None
    """The other side minus the baseline; of single memory peaks, which do not vary, without a width."""
    obstacle: str | None
    """Why this is no difference, or none that may be spoken of; None for a clear one."""


@dataclass(frozen=True)
class Effect:
    """What one variant did to one metric."""

    variant: Variant
    cost: Change
    """Of the choice: from the side that does without it to the same side with it."""
    left: Change
    """Between native and Lightning, with the variant in place of its side's default: what it leaves unexplained."""
    share: float | None
    """The cost over the whole difference, where both are clear."""


@dataclass(frozen=True)
class MetricAttribution:
    """One metric of one workload."""

    metric: Metric
    whole: Change
    """From native to Lightning, by default."""
    effects: tuple[Effect, ...]

    @property
    def is_measured(self) -> bool:
        """Whether any run measured it."""
        changes = [self.whole, *(effect.cost for effect in self.effects)]
        return any(value is not None for change in changes for value in (change.baseline, change.other))


@dataclass(frozen=True)
class Attribution:
    """All metrics of one workload."""

    pair: Pair
    """Native and Lightning by default; a side is empty where it has no runs."""
    variants: tuple[tuple[Run, ...], ...]
    """The runs of every variant."""
    parity: Parity | None
    """Over all completed runs, variants and defaults; None with fewer than two."""
    metrics: tuple[MetricAttribution, ...]

    @property
    def example(self) -> Run:
        """Any of the runs, for the workload that they share."""
        return self.variants[0][0]


def attribute(pairing: Pairing) -> list[Attribution]:
    """Return the attribution of every workload that has runs of a single switch and whose runs were all paired."""
    runs = {id(run): run for pair in pairing.pairs for run in pair.runs}
    refused = {id(run) for pair in pairing.mismatches for run in pair.runs}
    found = []
    for sides in by_workload(list(runs.values())):
        attribution = _attribute_workload(sides)
        if attribution and not refused & {id(run) for group in sides.values() for run in group}:
            found.append(attribution)
    return found


def _attribute_workload(sides: Sides) -> Attribution | None:
    pair = Pair(default_runs(sides, "native"), default_runs(sides, "lightning"))
    variants = [
        (variant, tuple(runs))
        for variant in VARIANTS
        if (runs := sides.get(Side(variant.implementation, (variant.name,), False)))
    ]
    if not variants:
        return None
    switched = tuple(run for _, runs in variants for run in runs)
    everything = Pair(pair.runs, switched, labels=("the defaults", "the variants")).completed()
    return Attribution(
        pair=pair,
        variants=tuple(runs for _, runs in variants),
        parity=parity(everything) if len(everything.runs) > 1 else None,
        metrics=tuple(_attribute_metric(metric, pair, variants) for metric in ATTRIBUTED),
    )


def _attribute_metric(
    metric: Metric, pair: Pair, variants: Sequence[tuple[Variant, tuple[Run, ...]]]
) -> MetricAttribution:
    whole = _change(metric, pair)
    effects = []
    for variant, runs in variants:
        label = side_label(runs[0])
        # The pair with the variant in place of each of its sides; the choice is Lightning's, so the cost goes its way.
        after_native = replace(pair, other=runs, labels=("native", label))
        before_lightning = replace(pair, baseline=runs, labels=(label, "lightning"))
        cost, left = after_native, before_lightning
        if variant.implementation == "lightning":
            cost, left = before_lightning, after_native
        change = _change(metric, cost)
        effects.append(Effect(variant, change, _change(metric, left), _share(change, whole)))
    return MetricAttribution(metric, whole, tuple(effects))


def _share(cost: Change, whole: Change) -> float | None:
    if cost.obstacle or whole.obstacle:
        return None
    return cost.difference.value / whole.difference.value


def _change(metric: Metric, pair: Pair) -> Change:
    completed = pair.completed()
    before, after = ([metric.of(run.result) for run in side] for side in (completed.baseline, completed.other))
    means = [statistics.fmean(values) if values and None not in values else None for values in (before, after)]
    if not before or not after:
        return Change(*means, None, f"no completed run of {pair.labels[1] if before else pair.labels[0]}")
    if None in means:
        return Change(*means, None, "not measured")
    if metric.section == "timing":
        found = verdict(pair)
        return Change(*means, found.difference, None if found.is_clear else found.finding())
    value = means[1] - means[0]
    difference = difference_of_means(before, after) or Estimate(value, value, value)
    equal = difference.contains(0.0) or abs(value) < EQUAL_MEMORY * means[0]
    return Change(*means, difference, NO_CLEAR_DIFFERENCE if equal else None)
