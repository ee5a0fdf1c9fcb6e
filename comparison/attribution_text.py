"""What each switched choice explains of the difference between native and Lightning: in words, and as data."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from common.options import IMPLEMENTATION_MODULES
from comparison.attribution import Attribution, Change, Effect, MetricAttribution
from comparison.formatting import cell_of, interval_digits, plain, rounded
from comparison.metrics import NO_CLEAR_DIFFERENCE, SINGLE_RUN_DIGITS, Metric
from comparison.statistics import Estimate


def attribution_title(attribution: Attribution) -> str:
    """Return the one line that names an attribution."""
    workload = attribution.example.result.workload
    name = f"{cell_of(attribution.example)}, preset {workload.preset}, {workload.precision_resolved}"
    return plain(f"What the difference costs: {name}")


def attribution_blocks(attribution: Attribution) -> Iterator[tuple[str, str, list[str]]]:
    """Yield a name, a line, and lines below it: the parity of all runs, then each metric with its variants."""
    if attribution.parity:
        yield "parity", f"over defaults and variants: {attribution.parity.sentence()}", []
    for each in attribution.metrics:
        if not each.is_measured:
            on_cpus = attribution.example.result.workload.device_type == "cpu"
            why = "CUDA's allocator alone counts it, and these ranks ran on CPUs" if on_cpus else "no run completed"
            yield each.metric.name, f"n/a: {why}", []
        else:
            yield each.metric.name, _whole(each), [_effect(effect, each) for effect in each.effects]


def _whole(attribution: MetricAttribution) -> str:
    whole, metric = attribution.whole, attribution.metric
    values = [_value(value, whole.difference, metric) for value in (whole.baseline, whole.other)]
    sides = f"native {values[0]}, lightning {values[1]}"
    return f"{sides}: {_difference(whole, metric, nothing='equal')}"


def _effect(effect: Effect, attribution: MetricAttribution) -> str:
    cost, variant, metric = effect.cost, effect.variant, attribution.metric
    value = cost.other if variant.implementation == "native" else cost.baseline
    name = f"{IMPLEMENTATION_MODULES[variant.implementation]} {' '.join(variant.words)}"
    line = f"{name} {_value(value, cost.difference, metric)}"
    if cost.difference is None:
        return f"{line}: {cost.obstacle}"
    line += f"; the choice costs {_difference(cost, metric)}"
    if cost.obstacle:
        return line
    if effect.share is None:
        return f"{line}; but between the two sides: {attribution.whole.obstacle}"
    about = "about " if cost.difference.low < cost.difference.high else ""
    share = f"{about}{effect.share:.0%}".replace("%", " %")
    explains = f"works against the difference ({share})" if effect.share < 0 else f"explains {share} of the difference"
    left = "nothing clear" if effect.left.obstacle == NO_CLEAR_DIFFERENCE else _difference(effect.left, metric)
    return f"{line}: {explains}; left: {left}"


def _difference(change: Change, metric: Metric, nothing: str = "nothing") -> str:
    """Return a difference with its interval, and what keeps one from relying on it."""
    if change.difference is None:
        return change.obstacle or ""
    if change.difference == Estimate(0.0, 0.0, 0.0):
        return nothing
    value, low, high = (
        _value(each, change.difference, metric, sign="+")
        for each in (change.difference.value, change.difference.low, change.difference.high)
    )
    text = value if low == high else f"{value} (95 % interval {low} to {high})"
    return f"{text}: {change.obstacle}" if change.obstacle else text


def _value(value: float | None, difference: Estimate | None, metric: Metric, sign: str = "") -> str:
    """Return a value with the digits that the interval of the difference supports."""
    if value is None:
        return "n/a"
    if difference is not None and difference.low < difference.high:
        return rounded(value, min(interval_digits(difference), metric.decimals), sign)
    digits = metric.decimals
    if metric.noisy and value:
        digits = min(digits, SINGLE_RUN_DIGITS - 1 - math.floor(math.log10(abs(value))))
    return rounded(value, digits, sign)


def attribution_as_data(attribution: Attribution) -> dict[str, Any]:
    """Return an attribution as plain data, with all digits."""
    return {
        "workload": attribution.example.data["workload"] | {"variants": []},
        "native": [str(run.path) for run in attribution.pair.baseline],
        "lightning": [str(run.path) for run in attribution.pair.other],
        "parity": {**asdict(attribution.parity), "exact": attribution.parity.exact} if attribution.parity else None,
        "metrics": [
            {
                "metric": each.metric.name,
                "whole": asdict(each.whole),
                "variants": [
                    {
                        "variant": effect.variant.name,
                        "implementation": effect.variant.implementation,
                        "cost": asdict(effect.cost),
                        "left": asdict(effect.left),
                        "share": effect.share,
                    }
                    for effect in each.effects
                ],
            }
            for each in attribution.metrics
        ],
    }
