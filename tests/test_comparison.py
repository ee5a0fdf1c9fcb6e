"""Loading, pairing and comparing results, without a run."""

import json

import pytest

from comparison.loading import Run, load_runs
from comparison.metrics import METRICS, parity, rows
from comparison.pairing import Pair, pair_runs
from tests.factories import make_result, save, timed

SHARDED = {
    "workload__strategy": "fsdp2",
    "workload__fsdp_wrap": "block",
    "workload__reshard_after_forward": {"block": True, "root": False},
    "correctness__parameters_synchronized": None,
}


def run(implementation, path="result.json", **changes):
    return Run(path, make_result(implementation, **changes))


def pair(baseline=({},), other=({},)):
    return Pair(
        tuple(run("native", **changes) for changes in baseline),
        tuple(run("lightning", **changes) for changes in other),
    )


def row(name, **sides):
    return next(each for each in rows(pair(**sides)) if each.metric.name == name)


def test_a_folder_is_searched_and_a_file_met_twice_counts_once(tmp_path):
    first = save(tmp_path, "a.json")
    (tmp_path / "deep").mkdir()
    save(tmp_path / "deep", "b.json", "lightning")
    runs, problems = load_runs([tmp_path, first])
    assert [each.path.name for each in runs] == ["a.json", "b.json"]
    assert problems == []


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\x89PNG\r\n", b'{"schema_version": "1.0"}', b"\xff\xfe{\x00}\x00"]
)
def test_a_file_that_is_no_result_is_named_and_the_others_are_read(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    save(tmp_path, "good.json")
    runs, problems = load_runs([tmp_path])
    assert [each.path.name for each in runs] == ["good.json"]
    assert len(problems) == 1
    assert "bad.json" in problems[0]


def test_a_wrong_leaf_is_named_with_its_key(tmp_path):
    path = save(tmp_path, "a.json")
    data = json.loads(path.read_text())
    data["timing"]["elapsed_seconds"] = "fast"
    path.write_text(json.dumps(data))
    _, problems = load_runs([path])
    assert "timing.elapsed_seconds" in problems[0]


def test_missing_paths_and_empty_folders_are_named(tmp_path):
    _, problems = load_runs([tmp_path, tmp_path / "gone.json"])
    assert [str(tmp_path) in problem for problem in problems] == [True, True]


def test_runs_are_paired_by_workload_whatever_their_order():
    runs = [run("lightning"), run("native", **SHARDED), run("native"), run("lightning", **SHARDED)]
    pairing = pair_runs(runs)
    assert [each.baseline[0].result.workload.strategy for each in pairing.pairs] == ["ddp", "fsdp2"]
    assert all(each.other[0].result.implementation == "lightning" for each in pairing.pairs)
    assert not pairing.mismatches
    assert not pairing.alone


def test_repeats_of_a_workload_make_one_pair():
    pairing = pair_runs([run("native"), run("lightning"), run("lightning"), run("native")])
    (only,) = pairing.pairs
    assert (len(only.baseline), len(only.other)) == (2, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("preset", "small"),
        ("world_size", 4),
        ("precision_resolved", "fp32"),
        ("seed", 7),
        ("steps", 3),
        ("global_batch_size", 4),
        ("device_type", "cpu"),
        ("initial_weights_sha256", "d" * 64),
        ("batch_sha256", "d" * 64),
    ],
)
def test_a_workload_field_that_differs_is_a_mismatch_that_names_it(field, value):
    pairing = pair_runs([run("native"), run("lightning", **{f"workload__{field}": value})])
    assert not pairing.pairs
    (mismatch,) = pairing.mismatches
    assert [difference.field for difference in mismatch.mismatch] == [field]
    assert str(value) in mismatch.mismatch[0].other


def test_a_nested_field_that_differs_is_named_with_its_path():
    pairing = pair_runs([run("native"), run("lightning", workload__optimizer__weight_decay=0.0)])
    assert pairing.mismatches[0].mismatch[0].field == "optimizer.weight_decay"


def test_runs_whose_strategy_the_other_side_never_ran_are_alone_not_mismatched():
    pairing = pair_runs([run("native"), run("lightning"), run("native", **SHARDED)])
    assert len(pairing.pairs) == 1
    assert not pairing.mismatches
    assert pairing.alone[0][0].result.workload.strategy == "fsdp2"


def test_a_setting_that_differs_is_an_environment_difference():
    differences = pair(other=({"environment__cpu_threads": 1},)).environment_differences()
    assert [(each.field, each.baseline, each.other) for each in differences] == [("cpu_threads", ("8",), ("1",))]


def test_equal_settings_make_no_environment_difference():
    assert pair().environment_differences() == []


def test_every_metric_of_the_seed_has_a_row():
    names = {metric.name for metric in METRICS}
    assert names >= {
        "local_parameter_fraction",
        "peak_allocated_gib",
        "peak_reserved_gib",
        "milliseconds_per_step",
        "tokens_per_second",
        "samples_per_second",
        "elapsed_seconds",
        "final_loss_mean",
        "global_parameter_count",
        "local_parameter_elements",
        "parameter_checksum_sum",
        "parameters_synchronized",
    }


def test_a_row_is_the_median_over_runs_and_the_ratio_is_the_other_side_over_the_baseline():
    found = row(
        "milliseconds_per_step",
        baseline=(timed(10), timed(12), timed(90)),
        other=(timed(18), timed(17), timed(1)),
    )
    assert (found.baseline, found.other, found.difference) == (12, 17, 5)
    assert found.ratio == pytest.approx(17 / 12)


def test_what_was_not_measured_has_neither_difference_nor_ratio():
    found = row("peak_allocated_gib", baseline=({"memory__peak_allocated_gib": None},))
    assert (found.baseline, found.difference, found.ratio) == (None, None, None)


def test_a_baseline_of_zero_has_a_difference_but_no_ratio():
    found = row("peak_allocated_gib", baseline=({"memory__peak_allocated_gib": 0.0},))
    assert (found.difference, found.ratio) == (1.5, None)


def test_equal_runs_have_exact_parity():
    outcome = parity(pair(baseline=({}, {}), other=({}, {})))
    assert outcome.exact
    assert "3 losses equal to the last bit" in outcome.sentence()


def test_one_bit_in_one_loss_of_one_run_breaks_parity_at_its_step():
    losses = [2.75, 2.5000000000000004, 2.25]
    outcome = parity(pair(other=({}, {"correctness__losses": losses})))
    assert not outcome.exact
    assert outcome.first_unequal_step == 2
    assert outcome.largest_loss_difference == pytest.approx(4.4e-16, rel=0.01)
    assert "LOSSES DIFFER from step 2" in outcome.sentence()


ON_A_GPU = {"workload__device_type": "cuda"}
OTHER_WEIGHTS = {"correctness__final_weights_sha256": "d" * 64}


def test_a_side_whose_own_runs_differ_is_named():
    on_a_cpu = {"workload__device_type": "cpu"}
    on_cpus = parity(pair(baseline=(on_a_cpu, on_a_cpu), other=(on_a_cpu, {**on_a_cpu, **OTHER_WEIGHTS})))
    assert on_cpus.differ_among_themselves == ("lightning",)
    assert on_cpus.sentence().endswith("; runs of lightning differ among themselves, too")
    on_gpus = parity(pair(baseline=(ON_A_GPU, ON_A_GPU), other=(ON_A_GPU, {**ON_A_GPU, **OTHER_WEIGHTS})))
    assert on_gpus.sentence().endswith(" differ among themselves, too: --deterministic excludes that")


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        (ON_A_GPU, True),
        ({**ON_A_GPU, "environment__deterministic_algorithms": True}, False),
        ({"workload__device_type": "cpu"}, False),
    ],
    ids=["a GPU", "a GPU, deterministic", "a CPU"],
)
def test_a_difference_that_kernels_may_have_made_is_told_from_one_that_they_cannot(changes, hint):
    outcome = parity(pair(baseline=(changes,), other=({**changes, **OTHER_WEIGHTS},)))
    assert (outcome.deterministic, "--deterministic" in outcome.sentence()) == (not hint, hint)


def test_equal_runs_need_no_word_about_kernels():
    assert "deterministic" not in parity(pair(baseline=(ON_A_GPU,), other=(ON_A_GPU,))).sentence()


def test_other_final_weights_break_parity_even_with_equal_losses():
    outcome = parity(pair(other=({"correctness__final_weights_sha256": "d" * 64},)))
    assert not outcome.exact
    assert "NOT EQUAL" in outcome.sentence()
