"""A prediction beside a measurement. Nothing differs unless the noise supports it."""

from comparison.exercise.answers import Mark
from comparison.exercise.measured import Ratio

ABOUT = 1.1
"""Up to which factor two values are "about the same": 10 %."""
CLOSE = 1.5
"""Up to which factor beyond the interval a guess is close."""
WIDE = 3.0
"""An interval whose ends are further apart than this factor decides about no guess within it."""
EXACT = 1.02
"""Up to which factor a guess of something counted fits."""
CLOSE_COUNT = 1.25
MEANING: dict[Mark, str] = {
    "fits": "it fits",
    "close": "close",
    "differs": "it differs",
    "open": "open: not decided",
}


def judge_order(answer: str, ratio: Ratio) -> Mark:
    """Judge ``more``, ``less`` or ``same`` by the interval of a ratio."""
    estimate = ratio.estimate
    if estimate is None:
        return "open"
    if answer == "same":
        if estimate.low >= 1 / ABOUT and estimate.high <= ABOUT:
            return "fits"
        return "differs" if estimate.low > ABOUT or estimate.high < 1 / ABOUT else "open"
    if estimate.low == estimate.high == 1:
        return "differs"  # equal in every run: there is no noise to leave it open
    if estimate.contains(1.0):
        return "open"
    return "fits" if (answer == "more") == (estimate.value > 1) else "differs"


def judge_factor(guess: float, ratio: Ratio) -> Mark:
    """Judge a guessed ratio by the interval of the measured one."""
    estimate = ratio.estimate
    if estimate is None:
        return "open"
    if estimate.low / EXACT <= guess <= estimate.high * EXACT:
        return "fits" if estimate.high <= WIDE * estimate.low else "open"
    return "close" if estimate.low / CLOSE <= guess <= estimate.high * CLOSE else "differs"


def judge_count(guess: float, value: float | None) -> Mark:
    """Judge a guess of something that is counted, not measured."""
    if value is None:
        return "open"
    for factor, mark in ((EXACT, "fits"), (CLOSE_COUNT, "close")):
        if value / factor <= guess <= value * factor:
            return mark
    return "differs"
