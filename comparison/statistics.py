"""What a few runs allow to be said: ratios with intervals, laps that stand out, and digits that the spread supports.

The unit of replication is a run: the steps of one run share its luck (its processes, its memory, the neighbours of its
minute), and treating them as independent would make any difference significant.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
OUTLIER_SCORE = 3.5
"""Modified z-score from which a lap stands out; Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)."""

LARGEST_LOGARITHM = 700.0
"""Where intervals end: e to the power of it is near the largest float, and says as much as any larger number."""

T_975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139, 2.200985,
    2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963, 2.079614, 2.073873,
    2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272,
)  # fmt: skip
"""scipy.stats.t.ppf(0.975, df) for df = 1, 2, ...: importing scipy would take longer than everything else in `show`."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether ``value`` lies within the interval."""
        return self.low <= value <= self.high


def difference_of_means(baseline: Sequence[float], other: Sequence[float]) -> Estimate | None:
    """Return mean(other) - mean(baseline) with Welch's interval; None with fewer than two values on a side.

    Welch (1947), with the Welch-Satterthwaite degrees of freedom rounded down, which errs on the wide side.
    """
    if min(len(baseline), len(other)) < 2:
        return None
    parts = [statistics.variance(side) / len(side) for side in (baseline, other)]
    value = statistics.fmean(other) - statistics.fmean(baseline)
    total = sum(parts)
    if total == 0:
        return Estimate(value, value, value)
    # Shares of the total, because the square of a tiny variance would be 0.
    freedom = 1 / sum(
        (part / total) ** 2 / (len(side) - 1) for part, side in zip(parts, (baseline, other), strict=True)
    )
    margin = t_quantile(max(1, math.floor(freedom))) * math.sqrt(total)
    return Estimate(value, value - margin, value + margin)


def ratio_of_means(baseline: Sequence[float], other: Sequence[float]) -> Estimate | None:
    """Return other over baseline, as geometric means, with the interval of :func:`difference_of_means` on logarithms.

    None with fewer than two values on a side, or with a value that has no logarithm.
    """
    if min([*baseline, *other], default=0) <= 0:
        return None
    logarithms = difference_of_means([math.log(value) for value in baseline], [math.log(value) for value in other])
    if logarithms is None:
        return None
    return Estimate(*(math.exp(min(each, LARGEST_LOGARITHM)) for each in dataclasses.astuple(logarithms)))


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution with ``freedom`` degrees of freedom."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def outliers(laps: Sequence[float]) -> list[int]:
    """Return the indices, from 0, of laps far outside of the rest, by the modified z-score.

    The score is 0.6745 (x - median) / MAD. Where more than half of the laps are equal, and MAD is 0, it is
    (x - median) / (1.2533 mean absolute deviation), as the same authors advise.
    """
    if len(laps) < 3:
        return []
    median = statistics.median(laps)
    deviations = [abs(lap - median) for lap in laps]
    scale = statistics.median(deviations) / 0.6745 or 1.2533 * statistics.fmean(deviations)
    if scale == 0:
        return []
    return [index for index, deviation in enumerate(deviations) if deviation / scale > OUTLIER_SCORE]


def supported_digits(spread: float) -> int | None:
    """Return to how many decimals a value of uncertainty ``spread`` may be rounded; negative: to tens, hundreds, ...

    One digit of the spread itself is kept. None without a spread: all digits are good.
    """
    return None if spread == 0 else -math.floor(math.log10(spread))


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
