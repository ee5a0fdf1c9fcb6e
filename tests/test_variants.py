"""Choices that one side can switch: the options, what they do to real runs, and what they are compared with."""

from typing import get_args

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from common.errors import RunError
from common.options import IMPLEMENTATION_MODULES, parse_options
from common.result import Responsibilities, Result, StepCounts, Workload
from common.variants import BY_NAME, VARIANTS, check_variants
from comparison.catalogue import CATALOGUE
from comparison.evidence import witnesses
from comparison.loading import Run
from comparison.pairing import Pair, pair_runs
from lightning_impl.sigterm import BROADCAST, switch_off_sigterm_broadcast
from tests.factories import make_result
from tests.marks import WHOLE_MATRIX, mostly
from tests.runs import Cell, run

OTHER_SIDE = {"native": "lightning", "lightning": "native"}
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.option)


# Options


@each_variant
def test_the_side_that_has_the_option_takes_it(variant):
    assert parse_options(variant.implementation, ["--strategy", "ddp", *variant.words]).variants == [variant.name]


@each_variant
def test_the_default_value_is_no_variant(variant):
    words = ["--strategy", "ddp", f"--{variant.option}", variant.values[0]]
    assert parse_options(variant.implementation, words).variants == []


@each_variant
@pytest.mark.parametrize("value", [0, 1], ids=["default", "other"])
def test_the_other_side_refuses_the_option_and_says_why(capsys, variant, value):
    with pytest.raises(SystemExit) as ending:
        parse_options(
            OTHER_SIDE[variant.implementation], ["--strategy", "ddp", f"--{variant.option}", variant.values[value]]
        )
    assert ending.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    owner = IMPLEMENTATION_MODULES[variant.implementation]
    assert f"--{variant.option} is an option of python -m {owner} only: {variant.elsewhere}" in line


@each_variant
def test_an_unknown_value_is_answered_with_the_known_ones(capsys, variant):
    with pytest.raises(SystemExit):
        parse_options(variant.implementation, ["--strategy", "ddp", f"--{variant.option}", "sometimes"])
    text = capsys.readouterr().err
    assert [word for word in ("sometimes", *variant.values) if word not in text] == []


def test_two_variants_of_a_side_can_be_had_together():
    words = "--strategy ddp --autocast-cache off --zero-grad after-forward"
    assert parse_options("native", words.split()).variants == ["zero-grad after-forward", "autocast-cache off"]


def test_the_schema_knows_every_variant_and_no_other():
    (names,) = get_args(Workload.model_fields["variants"].annotation)
    assert list(get_args(names)) == list(BY_NAME)


@pytest.mark.parametrize(
    ("name", "run", "reason"),
    [
        ("autocast-cache off", ("fsdp2", "bf16", 2), "fsdp2 computes in bf16 without autocast"),
        ("autocast-cache off", ("ddp", "fp32", 2), "fp32 needs no autocast"),
        ("sigterm-broadcast off", ("ddp", "bf16", 1), "a world of one broadcasts nothing"),
    ],
)
def test_a_switch_with_nothing_to_switch_is_refused_and_says_why(name, run, reason):
    with pytest.raises(RunError) as caught:
        check_variants([name], *run)
    assert (str(caught.value), caught.value.exit_code) == (f"--{name}, but {reason}; leave the option out", 2)


def test_a_switch_with_something_to_switch_is_not_refused():
    check_variants(list(BY_NAME), "ddp", "bf16", 2)
    check_variants([], "fsdp2", "fp32", 1)


def test_variants_bear_no_witness_about_their_sides_own_way():
    step = StepCounts(step=None, collectives_of_strategy={}, collectives_of_others={}, host_syncs=0, ddp_buckets=None)
    watched = {"responsibilities": Responsibilities(evidence=[], step=step)}
    default, variant = (each.result.model_copy(update=watched) for each in (NATIVE, AFTER))
    assert witnesses([variant], CATALOGUE)["native"].watched is False
    assert witnesses([variant, default], CATALOGUE)["native"].watched is True


# The seam in Lightning

pytestmark = pytest.mark.filterwarnings("ignore:The `srun` command is available")


def trainer() -> pl.Trainer:
    return pl.Trainer(accelerator="cpu", devices=1, barebones=True)


def test_the_broadcast_is_taken_out_of_one_trainer_and_of_no_other():
    switched, other = trainer(), trainer()
    switch_off_sigterm_broadcast(switched)
    assert getattr(switched.fit_loop.epoch_loop, BROADCAST)() is None
    assert getattr(other.fit_loop.epoch_loop, BROADCAST).__func__ is getattr(_TrainingEpochLoop, BROADCAST)


def test_a_lightning_without_the_method_is_refused_by_its_version(monkeypatch):
    monkeypatch.delattr(_TrainingEpochLoop, BROADCAST)
    with pytest.raises(RunError, match=rf"--sigterm-broadcast off: lightning {pl.__version__} has no {BROADCAST}"):
        switch_off_sigterm_broadcast(trainer())


def test_a_lightning_whose_steps_do_not_call_the_method_is_refused(monkeypatch):
    monkeypatch.setattr(_TrainingEpochLoop, "advance", lambda loop, data_fetcher: next(data_fetcher))
    with pytest.raises(RunError, match=BROADCAST):
        switch_off_sigterm_broadcast(trainer())


# Pairing


def some(implementation: str, *variants: str, **changes) -> Run:
    return Run("result.json", make_result(implementation, workload__variants=list(variants), **changes))


NATIVE, LIGHTNING = some("native"), some("lightning")
AFTER = some("native", "zero-grad after-forward")
NO_CACHE = some("native", "autocast-cache off")
BOTH = some("native", "zero-grad after-forward", "autocast-cache off")
SILENT = some("lightning", "sigterm-broadcast off")


def labels(*runs: Run) -> list[tuple[str, str]]:
    pairing = pair_runs(runs)
    assert (pairing.mismatches, pairing.alone) == ([], [])
    return [pair.labels for pair in pairing.pairs]


def members(pair: Pair) -> list[set[tuple[str, ...]]]:
    return [{tuple(run.result.workload.variants) for run in side} for side in (pair.baseline, pair.other)]


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_each_variant_is_paired_with_its_own_sides_default(order):
    assert labels(*[NATIVE, LIGHTNING, AFTER, NO_CACHE, SILENT][::order]) == [
        ("native", "lightning"),
        ("native", "native autocast-cache off"),
        ("native", "native zero-grad after-forward"),
        ("lightning", "lightning sigterm-broadcast off"),
    ]


def test_without_its_own_default_a_variant_is_paired_with_the_other_sides():
    assert labels(LIGHTNING, AFTER) == [("native zero-grad after-forward", "lightning")]
    assert labels(SILENT, NATIVE) == [("native", "lightning sigterm-broadcast off")]


def test_without_any_default_variants_are_paired_with_each_other_once():
    assert labels(SILENT, AFTER) == [("native zero-grad after-forward", "lightning sigterm-broadcast off")]
    assert labels(AFTER, NO_CACHE) == [("native autocast-cache off", "native zero-grad after-forward")]


def test_two_switches_at_once_are_a_variant_of_their_own():
    assert labels(NATIVE, BOTH, AFTER) == [
        ("native", "native zero-grad after-forward"),
        ("native", "native zero-grad after-forward, autocast-cache off"),
    ]


def test_no_side_of_any_pair_mixes_a_variant_with_other_runs():
    pairing = pair_runs([each for each in (NATIVE, LIGHTNING, AFTER, NO_CACHE, BOTH, SILENT) for _ in range(2)])
    assert [[len(side) for side in members(pair)] for pair in pairing.pairs] == [[1, 1]] * 5
    assert {len(side) for pair in pairing.pairs for side in (pair.baseline, pair.other)} == {2}


def test_a_variant_against_its_default_is_no_a_a_comparison():
    (pair,) = pair_runs([NATIVE, AFTER]).pairs
    assert (pair.is_control, pair.is_variant) == (False, True)


def test_runs_of_one_variant_alone_are_an_a_a_comparison_by_its_name():
    assert labels(AFTER, some("native", "zero-grad after-forward")) == [
        ("native zero-grad after-forward A", "native zero-grad after-forward B")
    ]


def test_control_runs_stay_the_noise_floor_of_the_defaults():
    control = some("native", label="control")
    pairs = pair_runs([NATIVE, LIGHTNING, control, AFTER]).pairs
    assert [pair.labels for pair in pairs] == [
        ("native", "lightning"),
        ("native A", "native B"),
        ("native", "native zero-grad after-forward"),
    ]
    assert pairs[0].control.other == (control,)
    assert pairs[2].baseline == (NATIVE,)


def test_a_variant_of_another_workload_is_refused_by_what_differs_and_called_by_its_name():
    pairing = pair_runs([LIGHTNING, some("native", "zero-grad after-forward", workload__seed=7)])
    (mismatch,) = pairing.mismatches
    assert [difference.field for difference in mismatch.mismatch] == ["seed"]
    assert mismatch.labels == ("native zero-grad after-forward", "lightning")


# In real runs

VARIED = [
    Cell("native", "ddp", precision="bf16", variant="zero-grad after-forward"),
    Cell("native", "fsdp2", precision="bf16", variant="zero-grad after-forward"),
    Cell("native", "ddp", precision="bf16", variant="autocast-cache off"),
    Cell("lightning", "ddp", precision="bf16", variant="sigterm-broadcast off"),
    Cell("lightning", "fsdp2", precision="bf16", variant="sigterm-broadcast off"),
]
each_varied = pytest.mark.parametrize(
    "cell",
    [pytest.param(each, id=str(each), marks=WHOLE_MATRIX if each.strategy == "fsdp2" else ()) for each in VARIED],
)


@pytest.fixture
def varied(runs, cell) -> Result:
    return runs.result(cell)


@pytest.mark.slow
@each_varied
def test_a_variant_computes_the_same_as_both_defaults_to_the_last_bit(runs, varied, cell):
    for side in ("native", "lightning"):
        assert varied.correctness == runs.result(Cell(side, cell.strategy, precision="bf16")).correctness


@pytest.mark.slow
@each_varied
def test_a_variant_has_the_workload_of_its_default_but_for_its_name(runs, varied, cell):
    default = runs.result(Cell(cell.implementation, cell.strategy, precision="bf16"))
    assert (default.workload.variants, varied.workload.variants) == ([], [cell.variant])
    assert varied.workload.model_copy(update={"variants": []}) == default.workload


@pytest.mark.slow
@each_varied
def test_exactly_the_choice_that_was_switched_is_seen_to_differ(runs, varied, cell):
    default = runs.result(Cell(cell.implementation, cell.strategy, precision="bf16"))
    switched = {
        "zero-grad after-forward": {"zero_grad": "after forward"},
        "autocast-cache off": {"autocast_cache": False},
    }
    assert varied.choices == default.choices.model_copy(update=switched.get(cell.variant, {}))
    assert (varied.choices == default.choices) == (cell.variant not in switched)


@pytest.mark.slow
@each_varied
def test_a_variant_run_is_clean_and_says_its_name(runs, cell):
    finished = runs(cell)
    assert (finished.process.stderr, cell.variant in finished.process.stdout) == ("", True)


@pytest.mark.slow
@mostly("strategy", "ddp", ["fsdp2"])
@pytest.mark.parametrize(("variant", "broadcasts"), [("", 1), ("sigterm-broadcast off", 0)], ids=["on", "off"])
def test_a_step_of_lightning_has_a_broadcast_and_a_host_sync_unless_switched_off(runs, strategy, variant, broadcasts):
    step = runs.result(Cell("lightning", strategy, precision="bf16", variant=variant)).responsibilities.step
    assert step.collectives_of_others.get("broadcast", 0) == broadcasts
    assert step.host_syncs == broadcasts


@pytest.mark.slow
def test_a_world_of_one_refuses_to_switch_off_a_broadcast_that_it_does_not_make(tmp_path):
    process = run(
        Cell("lightning", "ddp", 1, launcher="none", variant="sigterm-broadcast off").command(tmp_path / "result.json")
    )
    assert process.returncode == 2
    assert "--sigterm-broadcast off, but a world of one broadcasts nothing" in process.stderr
