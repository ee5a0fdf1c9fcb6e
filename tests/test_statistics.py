"""What the comparison says about times: synthetic laps and runs, and the same formulas by scipy."""

import math

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from comparison.formatting import cells, finding, rounded, verdict_sentence
from comparison.metrics import parity, remarks, rows, verdict
from comparison.statistics import (
    T_975,
    difference_of_means,
    outliers,
    ratio_of_means,
    standard_deviation,
    supported_digits,
    t_quantile,
)
from tests.factories import OUT_OF_MEMORY, lapped, make_pair, timed

TIMES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=8)
CLEAR = make_pair([timed(each) for each in (10.0, 10.1, 10.2)], [timed(each) for each in (13.0, 13.1, 13.2)])


def sides(baseline, other, implementation="lightning"):
    return make_pair([timed(each) for each in baseline], [timed(each) for each in other], implementation)


def row(name, pair):
    return next(each for each in rows(pair) if each.metric.name == name)


def odd_laps(*laps):
    (run,) = make_pair([lapped(list(laps))], []).baseline
    return remarks(run)


# The verdict is about runs


@pytest.mark.parametrize(
    ("baseline", "other", "words"),
    [
        ((10, 10.1, 10.2), (13, 13.1, 13.2), "lightning takes longer"),
        ((13, 13.1, 13.2), (10, 10.1, 10.2), "lightning takes less time"),
        ((10, 11, 13), (12, 14, 15), "no clear difference"),
        ((10, 10, 10), (10, 10, 10), "no clear difference"),
        ((10, 10, 10), (11, 11, 11), "lightning takes longer"),
        ((10, 11), (13, 14), "no verdict from fewer than 3 runs a side; use --repeats 3 or more"),
        ((10,), (100,), "no verdict from fewer than 3 runs a side; use --repeats 3 or more"),
        ((10, 10.1, 10.2), (13,), "no verdict from fewer than 3 runs a side; use --repeats 3 or more"),
        ((0, 0, 0), (1, 1, 1), "no verdict: a run measured no time at all"),
        ((1, 1, 1), (1, 1, 0), "no verdict: a run measured no time at all"),
    ],
)
def test_the_verdict_says_no_more_than_the_runs_allow(baseline, other, words):
    assert verdict(sides(baseline, other)).finding() == words


def test_a_clear_difference_has_an_interval_without_1():
    assert not verdict(CLEAR).ratio.contains(1.0)


def test_the_ratio_is_of_lightning_to_native():
    assert verdict(CLEAR).ratio.value == pytest.approx(13.1 / 10.1, rel=1e-3)


def test_the_cost_is_also_told_in_milliseconds_a_step():
    assert verdict(CLEAR).difference.value == pytest.approx(3.0)
    assert "+3.00 ms a step (+2.77 to +3.23)" in verdict_sentence(CLEAR)


def test_a_step_of_one_unlucky_run_makes_no_winner():
    assert verdict(sides((10, 10, 10), (10, 10, 30))).finding() == "no clear difference"


def test_an_implementation_against_itself_is_judged_by_the_same_rule():
    same = sides((10.0, 10.2, 10.1), (10.1, 10.0, 10.2), "native")
    assert (same.is_control, verdict(same).finding()) == (True, "no clear difference")


def test_two_runs_a_side_have_an_interval_but_no_verdict():
    found = verdict(sides((10, 11), (13, 14)))
    assert found.ratio.low < found.ratio.value < found.ratio.high
    assert "(95 % interval" in verdict_sentence(sides((10, 11), (13, 14)))


def test_one_run_a_side_has_no_interval():
    found = verdict(sides((10,), (13,)))
    assert (found.ratio, found.difference) == (None, None)
    assert "95 %" not in verdict_sentence(sides((10,), (13,)))


def test_a_run_counts_by_the_median_of_its_laps_however_many_steps_it_has():
    unlucky = [lapped([10.0, 10.0, 10.0, 10.0, 500.0])] * 3
    assert verdict(make_pair(unlucky, unlucky)).baseline == (10.0, 10.0, 10.0)


def test_many_equal_steps_of_single_runs_prove_nothing():
    pair = make_pair([lapped([10.0] * 1000)], [lapped([13.0] * 1000)])
    assert verdict(pair).finding().startswith("no verdict")


def test_a_run_without_times_is_left_out_and_named():
    pair = make_pair([timed(10)] * 3, [OUT_OF_MEMORY] * 3)
    assert verdict(pair).finding() == "no verdict: no completed run of lightning"


@pytest.mark.parametrize("status", ["diverged", "out_of_sync", "untrained"])
def test_one_run_that_went_wrong_forbids_the_verdict_about_all(status):
    pair = make_pair([timed(10)] * 4, [timed(13)] * 3 + [timed(13) | {"outcome__status": status}])
    assert verdict(pair).finding() == f"no verdict: a run ended {status.replace('_', ' ')}"
    assert "takes longer" not in finding(pair)


# Laps


def test_one_lap_far_outside_the_rest_is_flagged_with_its_number():
    assert odd_laps(10.0, 10.1, 9.9, 10.2, 50.0, 10.0) == ["laps far outside the rest: 5 (50 ms)"]


def test_a_first_lap_that_stands_out_says_that_the_warm_up_was_too_short():
    (remark,) = odd_laps(50.0, 10.1, 9.9, 10.2, 10.0, 10.0)
    assert "its first lap stands out (50 ms): the warm-up was too short; use more --warmup-steps" in remark


def test_a_first_lap_and_others_that_stand_out_are_told_apart():
    assert len(odd_laps(50.0, 10.1, 9.9, 10.2, 10.0, 10.0, 10.1, 60.0)) == 2


def test_more_than_three_odd_laps_are_counted_rather_than_listed():
    (remark,) = odd_laps(*[10.0, 10.1, 9.9] * 10, 50.0, 51.0, 52.0, 53.0, 54.0)
    assert remark.endswith("33 (52 ms) and 2 more")


def test_a_first_lap_that_is_fast_says_nothing_about_the_warm_up():
    assert odd_laps(1.0, 10.1, 9.9, 10.2, 10.0, 10.0) == ["laps far outside the rest: 1 (1 ms)"]


@pytest.mark.parametrize("laps", [[10.0], [10.0, 99.0], [10.0] * 20, [10.0, 10.5, 9.5, 10.2]])
def test_laps_without_an_outlier_have_no_remark(laps):
    assert odd_laps(*laps) == []


@pytest.mark.parametrize(("share", "remarked"), [(1.0, 0), (0.951, 0), (1.049, 0), (0.94, 1), (1.06, 1)])
def test_laps_that_do_not_add_up_to_their_window_within_5_percent_are_remarked(share, remarked):
    (run,) = make_pair([timed(10) | {"timing__laps_over_window": share}], []).baseline
    assert remarks(run) == [f"its laps add up to {share:.0%} of its window"] * remarked


@pytest.mark.parametrize(
    ("launcher", "ranks", "threads", "cores", "said"),
    [
        ("torchrun", 2, 8, 16, []),
        ("torchrun", 4, 8, 16, ["4 ranks a node have 8 threads each on 16 cores"]),
        ("srun", 4, 8, 8, []),
        ("srun", 4, 16, 8, ["a rank has 16 threads on 8 cores"]),
    ],
)
def test_more_threads_than_cores_are_remarked(launcher, ranks, threads, cores, said):
    changes = {
        "environment__launcher": launcher,
        "environment__local_world_size": ranks,
        "environment__cpu_threads": threads,
        "environment__cpu_count": cores,
    }
    (run,) = make_pair([timed(10) | changes], []).baseline
    assert [remark.partition(":")[0] for remark in remarks(run)] == said


def test_a_single_step_has_times_but_no_spread():
    pair = make_pair([lapped([10.0])], [lapped([13.0])])
    assert pair.baseline[0].result.timing.milliseconds_per_step_iqr is None
    assert cells(row("milliseconds_per_step_median", pair))[:2] == ("10.0", "13.0")


# By hand. Median 3, absolute deviations 2 1 0 1 d, their median 1: a lap stands out from d = 3.5 / 0.6745 = 5.189 on.


@pytest.mark.parametrize(("deviation", "found"), [(5.18, []), (5.20, [4]), (-5.20, [4])])
def test_the_modified_z_score_is_that_of_iglewicz_and_hoaglin(deviation, found):
    assert outliers([1.0, 2.0, 3.0, 4.0, 3.0 + deviation] if deviation > 0 else [2.0, 5.0, 3.0, 4.0, -2.3]) == found


# More than half of the laps are 10, so that the median deviation is 0. Of five laps, the mean deviation is 2 and the
# score of 20 is 10 / (1.2533 x 2) = 3.99; of four laps, the mean deviation is 2.5 and the score 3.19.


@pytest.mark.parametrize(("laps", "found"), [([10.0] * 4 + [20.0], [4]), ([10.0] * 3 + [20.0], [])])
def test_among_mostly_equal_laps_the_mean_deviation_is_the_measure(laps, found):
    assert outliers(laps) == found


@given(st.floats(0.1, 1e6), st.integers(3, 50))
def test_equal_laps_have_no_outlier(lap, count):
    assert outliers([lap] * count) == []


# The same by scipy


@pytest.mark.parametrize("freedom", range(1, len(T_975) + 1))
def test_the_table_of_quantiles_is_that_of_scipy(freedom):
    assert T_975[freedom - 1] == pytest.approx(scipy.stats.t.ppf(0.975, freedom), abs=1e-6)


@pytest.mark.parametrize("freedom", [len(T_975) + 1, 100, 10_000])
def test_quantiles_behind_the_table_are_those_of_scipy(freedom):
    assert t_quantile(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-9)


def interval_of_scipy(baseline, other):
    return scipy.stats.ttest_ind(other, baseline, equal_var=False).confidence_interval(0.95)


@given(TIMES, TIMES)
def test_the_interval_is_welchs_or_wider(baseline, other):
    assume(all(standard_deviation(side) > 1e-4 * max(side) for side in (baseline, other)))  # what scipy can compute
    ours, theirs = difference_of_means(baseline, other), interval_of_scipy(baseline, other)
    slack = 1e-6 * (theirs.high - theirs.low)  # the table has six decimals
    assert ours.low <= theirs.low + slack
    assert ours.high >= theirs.high - slack
    assert ours.low <= ours.value <= ours.high


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_the_interval_is_welchs_where_the_degrees_of_freedom_are_whole(count):
    baseline = [float(number) for number in range(count)]
    other = [number + 7.0 for number in baseline]  # of equal variance: 2 (count - 1) degrees of freedom
    ours, theirs = difference_of_means(baseline, other), interval_of_scipy(baseline, other)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-6)


@given(TIMES, TIMES)
def test_the_ratio_is_of_geometric_means_with_the_interval_of_their_logarithms(baseline, other):
    logarithms = difference_of_means([math.log(each) for each in baseline], [math.log(each) for each in other])
    ratio = ratio_of_means(baseline, other)
    assert ratio.value == pytest.approx(scipy.stats.gmean(other) / scipy.stats.gmean(baseline), rel=1e-9)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(logarithms.low), math.exp(logarithms.high)))


@given(TIMES, TIMES)
def test_exchanged_sides_have_the_inverse_ratio(baseline, other):
    there, back = ratio_of_means(baseline, other), ratio_of_means(other, baseline)
    inverse = (1 / back.value, 1 / back.high, 1 / back.low)
    assert (there.value, there.low, there.high) == pytest.approx(inverse, rel=1e-6)


@given(TIMES)
def test_a_side_against_itself_has_a_ratio_of_1_inside_its_interval(times):
    ratio = ratio_of_means(times, times)
    assert ratio.value == 1
    assert ratio.contains(1.0)


@pytest.mark.parametrize(("baseline", "other"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_fewer_than_two_values_a_side_have_no_interval(baseline, other):
    assert (difference_of_means(baseline, other), ratio_of_means(baseline, other)) == (None, None)


@pytest.mark.parametrize(("baseline", "other"), [([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, 0.0])])
def test_a_zero_has_no_ratio(baseline, other):
    assert ratio_of_means(baseline, other) is None


# Digits


@pytest.mark.parametrize(("spread", "digits"), [(0.5, 1), (1.0, 0), (9.9, 0), (10.0, -1), (0.012, 2), (0.0, None)])
def test_one_digit_of_the_spread_is_kept(spread, digits):
    assert supported_digits(spread) == digits


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_rounding_never_moves_a_value_by_more_than_the_spread(value, spread):
    text = rounded(value, supported_digits(spread))
    assert abs(float(text.replace(",", "")) - value) <= spread


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_rounding_leaves_no_digit_below_the_spread(value, spread):
    digits = supported_digits(spread)
    text = rounded(value, digits).replace(",", "")
    assert len(text.partition(".")[2]) == max(0, digits)
    if digits < 0:
        assert int(text) % 10**-digits == 0


@given(st.floats(-0.5, 0.5), st.integers(-3, 0))
def test_nothing_is_printed_as_minus_zero(value, digits):
    assert rounded(value, digits) == "0"


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ((1234.0, 1345.0, 1296.0), "1,300"),
        ((12.34, 13.45, 12.96), "13.0"),
        ((12.3401, 12.3402, 12.3403), "12.340"),
        ((12.3456,), "12.3"),
        ((0.012345,), "0.012"),
    ],
)
def test_a_time_is_shown_with_the_digits_that_its_runs_support(runs, text):
    pair = make_pair([timed(each) for each in runs], [timed(each) for each in runs])
    assert cells(row("milliseconds_per_step", pair))[0] == text


def test_parity_is_exact_however_much_the_times_differ():
    assert parity(CLEAR).exact
