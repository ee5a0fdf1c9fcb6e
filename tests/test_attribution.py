"""What a switched choice explains: arithmetic on synthetic results, and the words for it."""

import io
import json

import pytest
from rich.console import Console

import compare
from comparison.attribution import Attribution, Effect, MetricAttribution, attribute
from comparison.attribution_text import attribution_blocks, attribution_title
from comparison.loading import Run, load_runs
from comparison.pairing import pair_runs
from comparison.tables import print_in_short, print_pairing
from tests.factories import OUT_OF_MEMORY, make_result, save, timed
from tests.runs import signals_restored

AFTER, SILENT = "zero-grad after-forward", "sigterm-broadcast off"
TIME, PEAK = "milliseconds_per_step_median", "peak_allocated_gib"
SHARDED = {"workload__strategy": "fsdp2", "workload__fsdp_wrap": "block", "correctness__parameters_synchronized": None}
ON_CPUS = {"workload__device_type": "cpu", "memory__peak_allocated_gib": None, "memory__peak_reserved_gib": None}
NOISE = (-0.1, 0.0, 0.1)


def side(implementation: str, milliseconds: float, peak: float = 1.0, variant: str = "", noise=NOISE, **changes):
    """Return one run for each element of ``noise``."""
    switched = {"workload__variants": [variant]} if variant else {}
    changes = {"memory__peak_allocated_gib": peak} | switched | changes
    return [Run("r.json", make_result(implementation, **timed(milliseconds + each), **changes)) for each in noise]


def only(*sides: list[Run]) -> Attribution:
    (attribution,) = attribute(pair_runs([run for runs in sides for run in runs]))
    return attribution


def metric(attribution: Attribution, name: str = TIME) -> MetricAttribution:
    return next(each for each in attribution.metrics if each.metric.name == name)


def effect(attribution: Attribution, name: str = TIME) -> Effect:
    (found,) = metric(attribution, name).effects
    return found


def words(attribution: Attribution, name: str = TIME) -> str:
    return next(" ".join([line, *below]) for each, line, below in attribution_blocks(attribution) if each == name)


# Clear


def test_a_choice_that_native_takes_over_costs_the_variant_minus_native():
    found = effect(only(side("native", 10), side("lightning", 14), side("native", 13, variant=AFTER)))
    assert found.cost.difference.value == pytest.approx(3)
    assert found.share == pytest.approx(3 / 4)
    assert found.left.difference.value == pytest.approx(1)


def test_a_choice_that_lightning_gives_up_costs_lightning_minus_the_variant():
    found = effect(only(side("native", 10), side("lightning", 14), side("lightning", 11, variant=SILENT)))
    assert found.cost.difference.value == pytest.approx(3)
    assert found.share == pytest.approx(3 / 4)
    assert found.left.difference.value == pytest.approx(1)


def test_a_clear_cost_has_an_interval_without_0():
    found = effect(only(side("native", 10), side("lightning", 14), side("native", 13, variant=AFTER)))
    assert 0 < found.cost.difference.low < 3 < found.cost.difference.high


def test_a_clear_cost_is_told_with_its_interval_its_share_and_what_is_left():
    text = words(only(side("native", 10), side("lightning", 14), side("native", 13, variant=AFTER)))
    assert text == (
        "native 10.00, lightning 14.00: +4.00 (95 % interval +3.77 to +4.23) native --zero-grad after-forward 13.00; "
        "the choice costs +3.00 (95 % interval +2.77 to +3.23): explains about 75 % of the difference; "
        "left: +1.00 (95 % interval +0.77 to +1.23)"
    )


def test_several_variants_are_told_apart():
    attribution = only(
        side("native", 10),
        side("lightning", 14),
        side("native", 11, variant=AFTER),
        side("lightning", 12, variant=SILENT),
    )
    shares = {found.variant.name: found.share for found in metric(attribution).effects}
    assert shares == {AFTER: pytest.approx(1 / 4), SILENT: pytest.approx(2 / 4)}


def test_every_workload_has_an_attribution_of_its_own():
    sides = [
        run
        for changes in ({}, SHARDED)
        for runs in (
            side("native", 10, **changes),
            side("lightning", 14, **changes),
            side("native", 13, variant=AFTER, **changes),
        )
        for run in runs
    ]
    titles = [attribution_title(each) for each in attribute(pair_runs(sides))]
    assert titles == [f"What the difference costs: {cell}, preset tiny, bf16" for cell in ("ddp", "fsdp2 block")]


def test_without_variants_there_is_no_attribution():
    assert attribute(pair_runs([*side("native", 10), *side("lightning", 14)])) == []


def test_a_choice_that_makes_lightning_cheaper_works_against_the_difference():
    attribution = only(side("native", 10), side("lightning", 14), side("native", 9, variant=AFTER))
    assert effect(attribution).share == pytest.approx(-1 / 4)
    assert "works against the difference (about -25 %)" in words(attribution)


# Noise


def test_a_cost_within_the_noise_explains_nothing():
    attribution = only(side("native", 10), side("lightning", 14), side("native", 10.05, variant=AFTER))
    assert effect(attribution).share is None
    assert words(attribution).endswith("the choice costs +0.05 (95 % interval -0.18 to +0.28): no clear difference")


def test_a_clear_cost_explains_nothing_where_the_sides_show_no_clear_difference():
    attribution = only(side("native", 10), side("lightning", 10.05), side("native", 13, variant=AFTER))
    assert effect(attribution).share is None
    assert words(attribution).endswith("(95 % interval +2.77 to +3.23); but between the two sides: no clear difference")


@pytest.mark.parametrize("noise", [(0.0,), (-0.1, 0.1)], ids=["one run", "two runs"])
def test_times_of_fewer_than_three_runs_explain_nothing(noise):
    attribution = only(
        side("native", 10, noise=noise),
        side("lightning", 14, noise=noise),
        side("native", 13, variant=AFTER, noise=noise),
    )
    assert effect(attribution).share is None
    assert "no verdict from fewer than 3 runs a side" in words(attribution)


# Memory


def test_peaks_are_compared_from_single_runs_too():
    attribution = only(
        side("native", 10, 15.7139, noise=(0.0,)),
        side("lightning", 10, 16.7865, noise=(0.0,)),
        side("native", 10, 16.7865, variant=AFTER, noise=(0.0,)),
    )
    assert effect(attribution, PEAK).share == pytest.approx(1)
    assert words(attribution, PEAK) == (
        "native 15.7139, lightning 16.7865: +1.0726 native --zero-grad after-forward 16.7865; "
        "the choice costs +1.0726: explains 100 % of the difference; left: nothing clear"
    )


def test_peaks_that_differ_by_the_allocators_rounding_are_no_difference():
    attribution = only(
        side("native", 10, 18.9501), side("lightning", 10, 18.9502), side("native", 10, 18.9502, variant=AFTER)
    )
    assert metric(attribution, PEAK).whole.obstacle == "no clear difference"
    assert effect(attribution, PEAK).share is None


def test_equal_peaks_are_called_equal():
    attribution = only(side("native", 10), side("lightning", 10), side("native", 10, variant=AFTER))
    assert words(attribution, PEAK) == (
        "native 1.0000, lightning 1.0000: equal native --zero-grad after-forward 1.0000; the choice costs nothing"
    )


def test_peaks_that_vary_from_run_to_run_are_judged_by_their_interval():
    def varying(implementation, peaks, variant=""):
        return [run for peak in peaks for run in side(implementation, 10, peak, variant, noise=(0.0,))]

    attribution = only(
        varying("native", (1.0, 1.2)), varying("lightning", (1.1, 1.3)), varying("native", (1.0, 1.3), AFTER)
    )
    assert metric(attribution, PEAK).whole.obstacle == "no clear difference"
    assert "no clear difference" in words(attribution, PEAK)


def test_cpus_have_no_peaks_and_that_is_said():
    sides = [
        side("native", 10, **ON_CPUS),
        side("lightning", 14, **ON_CPUS),
        side("native", 13, variant=AFTER, **ON_CPUS),
    ]
    assert words(only(*sides), PEAK) == "n/a: CUDA's allocator alone counts it, and these ranks ran on CPUs"


# A side that is missing


def test_without_lightning_the_cost_is_known_and_its_share_is_not():
    attribution = only(side("native", 10), side("native", 13, variant=AFTER))
    assert effect(attribution).cost.difference.value == pytest.approx(3)
    assert effect(attribution).share is None
    assert words(attribution).startswith("native 10.0, lightning n/a: no completed run of lightning")
    assert words(attribution).endswith("but between the two sides: no completed run of lightning")


def test_without_its_own_default_the_cost_of_a_variant_is_unknown():
    attribution = only(side("lightning", 14), side("native", 13, variant=AFTER))
    assert (effect(attribution).cost.difference, effect(attribution).share) == (None, None)
    assert words(attribution).endswith("native --zero-grad after-forward 13.0: no completed run of native")


def test_a_variant_that_ran_out_of_memory_explains_nothing():
    out = [Run("r.json", make_result("native", workload__variants=[AFTER], workload__steps=2, **OUT_OF_MEMORY))]
    attribution = only(side("native", 10), side("lightning", 14), out)
    assert words(attribution).endswith(f"native --{AFTER} n/a: no completed run of native {AFTER}")
    assert attribution.parity.exact


def test_two_switches_at_once_are_no_attribution():
    both = side("native", 13, workload__variants=[AFTER, "autocast-cache off"])
    assert attribute(pair_runs([*side("native", 10), *side("lightning", 14), *both])) == []


def test_sides_that_are_not_comparable_are_not_attributed():
    other = {"workload__batch_sha256": "d" * 64}
    pairing = pair_runs(
        [
            *side("native", 10),
            *side("native", 13, variant=AFTER),
            *side("lightning", 14, **other),
            *side("lightning", 11, variant=SILENT, **other),
        ]
    )
    assert [pair.labels for pair in pairing.mismatches] == [("native", "lightning")]
    assert attribute(pairing) == []


# Parity


def test_a_variant_that_computes_something_else_is_named_loudly():
    other = {"correctness__losses": [2.75, 2.5, 2.0], "correctness__final_loss_mean": 2.0}
    attribution = only(side("native", 10), side("lightning", 14), side("native", 13, variant=AFTER, **other))
    assert not attribution.parity.exact
    assert "LOSSES DIFFER from step 3 on" in words(attribution, "parity")


# Shown


@pytest.fixture
def folder(tmp_path):
    """Three runs each of native, Lightning and two variants."""
    for number, noise in enumerate(NOISE):
        for name, implementation, milliseconds, variants in (
            ("n", "native", 10, []),
            ("l", "lightning", 14, []),
            ("z", "native", 13, [AFTER]),
            ("s", "lightning", 11, [SILENT]),
        ):
            path = f"{name}{number}.json"
            save(tmp_path, path, implementation, workload__variants=variants, **timed(milliseconds + noise))
    return tmp_path


@pytest.fixture
def show(capsys, folder):
    def call(style: str) -> str:
        with signals_restored():
            assert compare.main(["show", str(folder), "--format", style, "--no-responsibilities"]) == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_the_attribution_of_a_folder_is_shown(show, style):
    text = " ".join(show(style).split())
    assert "What the difference costs: ddp, preset tiny, bf16" in text
    assert "explains about 75 % of the difference" in text


def test_the_attribution_is_in_the_json_with_all_digits(show):
    (attribution,) = json.loads(show("json"))["attribution"]
    found = next(each for each in attribution["metrics"] if each["metric"] == TIME)
    assert [each["variant"] for each in found["variants"]] == [AFTER, SILENT]
    assert [each["share"] for each in found["variants"]] == [pytest.approx(0.75), pytest.approx(0.75)]
    assert (len(attribution["native"]), len(attribution["lightning"]), attribution["parity"]["exact"]) == (3, 3, True)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_of_a_variant_is_cut_at_any_width(folder, width):
    pairing = pair_runs(load_runs([folder])[0])
    text = io.StringIO()
    print_pairing(Console(file=text, width=width, highlight=False), pairing)
    assert max(map(len, text.getvalue().splitlines())) <= width
    assert "…" not in text.getvalue()
    assert text.getvalue().count("difference") >= 2 * len(pairing.pairs)
    overview = text.getvalue().partition("All cells")[2].partition("What the difference")[0]
    assert [value for value in ("10.00", "14.00", "13.00", "11.00") if overview.count(value) != 1] == []
    assert overview.count("1.0000") == 4


def test_the_last_lines_are_about_the_two_sides_and_leave_variants_to_the_attribution(folder):
    text = io.StringIO()
    print_in_short(Console(file=text, width=80), pair_runs(load_runs([folder])[0]))
    assert text.getvalue().count("losses and weights") == 1
