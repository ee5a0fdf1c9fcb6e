"""`compare.py show --scaling`: efficiency over numbers of ranks, what is grouped, and what is refused."""

import csv
import io
import json
import math

import pytest
from rich.console import Console

import compare
from comparison.loading import Run, load_runs
from comparison.scaling import Point, ScaledRuns, Scaling, scale_runs
from comparison.scaling_text import describe_alone, scaling_cells, scaling_facts
from comparison.statistics import ratio_of_means
from comparison.tables import print_scalings
from tests.factories import OUT_OF_MEMORY, make_result, save, timed
from tests.runs import signals_restored

NOISE = (-0.1, 0.0, 0.1)
SHARDED = {"workload__strategy": "fsdp2", "workload__fsdp_wrap": "block", "correctness__parameters_synchronized": None}


def weak(ranks: int, batch: int = 1) -> dict:
    """Return the changes for ranks whose own batch stays; the global batch, and so its hash, grows."""
    return {
        "workload__world_size": ranks,
        "workload__batch_size_per_device": batch,
        "workload__global_batch_size": batch * ranks,
        "workload__batch_sha256": f"{batch * ranks:064x}",
        "environment__local_world_size": ranks,
    }


def strong(ranks: int, batch: int = 8) -> dict:
    """Return the changes for ranks that share one global batch."""
    return weak(ranks, batch // ranks)


def side(implementation: str, milliseconds: float, sizes: dict, noise=NOISE, **changes) -> list[Run]:
    """Return one run for each element of ``noise``."""
    changes = {**sizes, **changes}
    return [Run("r.json", make_result(implementation, **timed(milliseconds + each), **changes)) for each in noise]


def out_of_memory(sizes: dict) -> list[Run]:
    """Return one run."""
    return [Run("r.json", make_result("native", **{**sizes, **OUT_OF_MEMORY}))]


def scaled(*sides: list[Run]) -> ScaledRuns:
    return scale_runs([run for runs in sides for run in runs])


def only(*sides: list[Run]) -> Scaling:
    (scaling,) = scaled(*sides).scalings
    return scaling


def point(scaling: Scaling, name: str, ranks: int) -> Point:
    (found,) = [each for each in scaling.points if (each.side, each.ranks) == (name, ranks)]
    return found


def facts(scaling: Scaling) -> list[str]:
    return [f"{name}: {text}" for name, text in scaling_facts(scaling)]


# Efficiency


def test_weak_efficiency_is_the_time_on_the_fewest_ranks_over_the_time():
    scaling = only(side("native", 10, weak(1)), side("native", 12.5, weak(2)), side("native", 20, weak(4)))
    assert scaling.kind == "weak"
    assert point(scaling, "native", 2).efficiency == pytest.approx(0.8, rel=1e-4)
    assert point(scaling, "native", 4).efficiency == pytest.approx(0.5, rel=1e-4)


def test_strong_efficiency_divides_by_the_ranks_as_well():
    scaling = only(side("native", 10, strong(1)), side("native", 6.25, strong(2)), side("native", 5, strong(4)))
    assert scaling.kind == "strong"
    assert point(scaling, "native", 2).efficiency == pytest.approx(0.8, rel=1e-3)
    assert point(scaling, "native", 4).efficiency == pytest.approx(0.5, rel=1e-3)


def test_without_a_world_of_one_the_fewest_ranks_are_what_strong_scaling_is_measured_against():
    scaling = only(side("native", 10, strong(2)), side("native", 6.25, strong(4)))
    found = point(scaling, "native", 4)
    assert (found.base, found.efficiency) == (2, pytest.approx(0.8, rel=1e-3))
    assert "efficiency: ideal over measured time, against 2 ranks" in facts(scaling)


def test_the_interval_is_that_of_the_ratio_of_means():
    scaling = only(side("native", 10, weak(1)), side("native", 12.5, weak(2)))
    expected = ratio_of_means([12.4, 12.5, 12.6], [9.9, 10.0, 10.1])
    assert point(scaling, "native", 2).interval == expected
    assert expected.low < 0.8 < expected.high


def test_the_interval_of_strong_scaling_is_divided_like_its_value():
    scaling = only(side("native", 10, strong(2)), side("native", 6.25, strong(8)))
    found, ratio = point(scaling, "native", 8), ratio_of_means([6.15, 6.25, 6.35], [9.9, 10.0, 10.1])
    assert (found.interval.low, found.interval.high) == (pytest.approx(ratio.low / 4), pytest.approx(ratio.high / 4))


def test_each_side_is_measured_against_itself():
    scaling = only(
        side("native", 10, weak(1)),
        side("native", 20, weak(2)),
        side("lightning", 30, weak(1)),
        side("lightning", 40, weak(2)),
    )
    assert point(scaling, "native", 2).efficiency == pytest.approx(0.5, rel=1e-4)
    assert point(scaling, "lightning", 2).efficiency == pytest.approx(0.75, rel=1e-4)


# What may be said


@pytest.mark.parametrize(
    ("milliseconds", "finding"),
    [(12.5, "below ideal"), (10.05, "no clear difference from ideal"), (8, "above ideal")],
)
def test_the_interval_decides_what_is_said(milliseconds, finding):
    scaling = only(side("native", 10, weak(1)), side("native", milliseconds, weak(2)))
    assert point(scaling, "native", 2).finding() == finding


@pytest.mark.parametrize("noise", [(0.0,), (-0.1, 0.1)], ids=["one run", "two runs"])
@pytest.mark.parametrize("few", [1, 2], ids=["few at the fewest ranks", "few at more"])
def test_fewer_than_three_runs_at_either_number_of_ranks_allow_no_verdict(few, noise):
    sides = [side("native", 10 * ranks, weak(ranks), noise if ranks == few else NOISE) for ranks in (1, 2)]
    scaling = only(*sides)
    found = point(scaling, "native", 2)
    assert [line for line in facts(scaling) if line.endswith("use --repeats 3 or more")]
    assert found.finding() == "no verdict from fewer than 3 runs"
    assert found.efficiency == pytest.approx(0.5, rel=1e-3)


def test_a_single_run_has_an_efficiency_and_no_interval():
    found = point(only(side("native", 10, weak(1), (0.0,)), side("native", 20, weak(2), (0.0,))), "native", 2)
    assert (found.efficiency, found.interval) == (pytest.approx(0.5), None)


def test_times_of_simulated_nodes_give_no_efficiency():
    simulated = {"environment__nodes_share_hardware": True, "environment__num_nodes": 2}
    scaling = only(side("native", 10, weak(2)), side("native", 10, weak(4), **simulated))
    assert point(scaling, "native", 4).efficiency is None
    assert "simulated cluster" in point(scaling, "native", 4).finding()
    assert any(line.startswith("caveat: The nodes of these runs were one machine") for line in facts(scaling))


def test_times_of_cpu_ranks_carry_a_caveat():
    cpu = {"workload__device_type": "cpu"}
    scaling = only(side("native", 10, weak(1), **cpu), side("native", 10, weak(2), **cpu))
    assert any("reduce-scatter as all-reduce" in line for line in facts(scaling))


def test_times_of_gpus_carry_none():
    assert "caveat" not in dict(scaling_facts(only(side("native", 10, weak(1)), side("native", 10, weak(2)))))


def test_a_run_without_any_time_gives_no_efficiency():
    found = point(only(side("native", 10, weak(1)), side("native", 0, weak(2), (0.0,) * 3)), "native", 2)
    assert (found.efficiency, found.finding()) == (None, "no verdict: a run measured no time at all")


# Failed runs


def test_a_run_out_of_memory_is_named_and_the_next_ranks_are_what_others_are_measured_against():
    scaling = only(out_of_memory(strong(1)), side("native", 10, strong(2)), side("native", 6.25, strong(4)))
    assert point(scaling, "native", 4).base == 2
    assert "no completed run of native on 1 rank" in point(scaling, "native", 1).finding()
    assert any(line.startswith("outcome: native on 1 rank: ") for line in facts(scaling))


def test_a_side_that_completed_no_run_at_all_has_no_efficiency():
    scaling = only(*(out_of_memory(weak(ranks)) for ranks in (1, 2)))
    assert [(each.base, each.efficiency, each.milliseconds) for each in scaling.points] == [(None, None, ())] * 2
    assert "no completed run of native on 2 ranks" in point(scaling, "native", 2).finding()


def test_a_run_that_diverged_takes_the_verdict_from_its_ranks():
    diverged = side("native", 10, weak(2), (0.0,), outcome__status="diverged", outcome__phase="final")
    scaling = only(side("native", 10, weak(1)), side("native", 10, weak(2)), diverged, side("native", 10, weak(4)))
    assert point(scaling, "native", 2).finding() == "no verdict: a run ended diverged"
    assert point(scaling, "native", 4).interval is not None


# Groups


def test_runs_of_one_batch_on_each_rank_and_of_one_global_batch_are_told_apart():
    found = scaled(
        side("native", 10, strong(1)), side("native", 6, strong(2)), side("native", 10, weak(1)),
        side("native", 10, weak(2)),
    )  # fmt: skip
    assert [(each.kind, len(each.runs)) for each in found.scalings] == [("weak", 6), ("strong", 6)]


def test_a_run_that_belongs_to_both_kinds_takes_part_in_both():
    found = scaled(side("native", 10, strong(1)), side("native", 6, strong(2)), side("native", 10, weak(2, 8)))
    kinds = {each.kind: [each.ranks for each in each.points] for each in found.scalings}
    assert kinds == {"weak": [1, 2], "strong": [1, 2]}


def test_every_cell_has_a_scaling_of_its_own():
    found = scaled(*(side("native", 10, weak(ranks), **cell) for cell in ({}, SHARDED) for ranks in (1, 2)))
    assert [len(each.runs) for each in found.scalings] == [6, 6]


def test_a_variant_is_a_side_of_its_own():
    switched = {"workload__variants": ["zero-grad after-forward"]}
    scaling = only(
        *(side("native", 10, weak(ranks), **changes) for changes in ({}, switched) for ranks in (1, 2)),
    )
    assert {each.side for each in scaling.points} == {"native", "native zero-grad after-forward"}
    assert {len(each.runs) for each in scaling.points} == {3}


def test_a_variant_on_one_number_of_ranks_is_left_out():
    switched = side("native", 10, weak(2), workload__variants=["zero-grad after-forward"])
    found = scaled(side("native", 10, weak(1)), side("native", 10, weak(2)), switched)
    assert {each.side for each in found.scalings[0].points} == {"native"}
    assert found.alone == ()


def test_two_sides_that_have_no_number_of_ranks_but_one_are_no_scaling():
    found = scaled(side("native", 10, weak(1)), side("lightning", 10, weak(2)))
    assert found.scalings == ()
    assert [describe_alone(each).partition(": ")[2] for each in found.alone] == [
        "3 runs, and none on another number of ranks"
    ] * 2


def test_batches_of_which_neither_stays_are_not_scaled_and_both_are_named():
    found = scaled(side("native", 10, weak(1)), side("native", 10, weak(2, 3)))
    assert describe_alone(found.alone[0]).endswith(
        "differ in batch_size_per_device (1, there 3), global_batch_size (1, there 6) as well"
    )


def test_control_runs_do_not_join_the_others():
    scaling = only(
        side("native", 10, weak(1)), side("native", 10, weak(2)), side("native", 30, weak(2), label="control")
    )
    assert point(scaling, "native", 2).milliseconds == (9.9, 10.0, 10.1)


def test_a_side_that_is_missing_at_some_ranks_is_named():
    scaling = only(*(side("native", 10, weak(ranks)) for ranks in (1, 2)), side("lightning", 10, weak(1)))
    assert "missing: no lightning run on 2 ranks" in facts(scaling)
    assert point(scaling, "lightning", 1).finding() == "reference"


def test_a_side_that_is_missing_everywhere_leaves_the_other_ones_efficiency():
    scaling = only(*(side("lightning", 10 * ranks, weak(ranks)) for ranks in (1, 2)))
    assert point(scaling, "lightning", 2).finding() == "below ideal"
    assert [line for line in facts(scaling) if line.startswith("missing")] == [
        *("missing: no native run on 1 rank", "missing: no native run on 2 ranks")
    ]


def test_a_setting_that_differs_between_numbers_of_ranks_is_warned_about():
    scaling = only(side("native", 10, weak(1)), side("native", 10, weak(2), environment__cpu_threads=4))
    assert [line for line in facts(scaling) if line.startswith("warning")] == [
        "warning: cpu_threads: 8 at 1 rank, 4 at 2 ranks"
    ]


def test_what_follows_from_more_nodes_is_not_warned_about():
    nodes = {"environment__num_nodes": 2, "environment__hosts": ["node1", "node2"]}
    scaling = only(side("native", 10, weak(2)), side("native", 10, weak(4), **nodes))
    assert scaling.environment_differences == ()


# What is not comparable


def test_unequal_weights_at_the_start_are_not_comparable():
    found = scaled(side("native", 10, weak(1)), side("native", 10, weak(2), workload__initial_weights_sha256="f" * 64))
    (mismatch,) = found.mismatches
    assert (found.scalings, [each.field for each in mismatch.mismatch]) == ((), ["initial_weights_sha256"])
    assert mismatch.mismatch[0].values == {1: ("a" * 64,), 2: ("f" * 64,)}


def test_unequal_batches_are_not_comparable_where_the_global_batch_stays():
    other = strong(2) | {"workload__batch_sha256": "f" * 64}
    (mismatch,) = scaled(side("native", 10, strong(1)), side("native", 10, other)).mismatches
    assert [each.field for each in mismatch.mismatch] == ["batch_sha256"]


def test_batches_that_grow_with_the_ranks_must_be_equal_at_each_number_of_them():
    other = weak(2) | {"workload__batch_sha256": "f" * 64}
    sides = [side("native", 10, weak(1)), side("native", 10, weak(2)), side("lightning", 10, other)]
    (mismatch,) = scaled(*sides).mismatches
    assert mismatch.mismatch[0].values == {2: (f"{2:064x}", "f" * 64)}


def test_runs_on_one_number_of_ranks_are_not_scaled_and_that_is_said():
    found = scaled(side("native", 10, weak(2)), side("lightning", 10, weak(2)))
    assert (found.scalings, found.mismatches) == ((), ())
    (alone,) = found.alone
    assert describe_alone(alone) == "ddp, tiny, bf16, 2 ranks on cuda: 6 runs, and none on another number of ranks"


def test_runs_that_differ_in_more_than_their_ranks_are_not_scaled_and_the_fields_are_named():
    found = scaled(side("native", 10, weak(1)), side("native", 10, weak(2), workload__seed=7))
    assert found.scalings == ()
    assert describe_alone(found.alone[0]) == (
        "ddp, tiny, bf16, 1 ranks on cuda: 3 runs; the nearest on another number, 2 ranks, differ in "
        "seed (1234, there 7) as well"
    )


# Shown


@pytest.fixture
def folder(tmp_path):
    """Weak scaling of both sides and a variant over 1, 2 and 8 ranks, strong scaling of native."""
    for number, noise in enumerate(NOISE):
        for ranks in (1, 2, 8):
            for name, implementation, variants in (
                ("n", "native", []),
                ("l", "lightning", []),
                ("z", "native", ["zero-grad after-forward"]),
            ):
                changes = timed(1000 + 100 * math.log2(ranks) + noise) | weak(ranks)
                file = f"{name}-{ranks}-{number}.json"
                save(tmp_path, file, implementation, workload__variants=variants, **changes)
        for ranks in (2, 4):
            save(tmp_path, f"strong-{ranks}-{number}.json", "native", **timed(20 / ranks + noise), **strong(ranks, 12))
    return tmp_path


@pytest.fixture
def show(capsys):
    def call(*arguments) -> tuple[int, str, str]:
        with signals_restored():
            code = compare.main(["show", *map(str, arguments), "--scaling"])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(folder, width):
    text = io.StringIO()
    print_scalings(Console(file=text, width=width, highlight=False), scale_runs(load_runs([folder])[0]))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_word_and_every_number_stays_whole(folder, width):
    text, scaled = io.StringIO(), scale_runs(load_runs([folder])[0])
    print_scalings(Console(file=text, width=width, highlight=False), scaled)
    shown = {word.strip("(),:;") for word in text.getvalue().split()}
    expected = {word for scaling in scaled.scalings for point in scaling.points for word in scaling_words(point)}
    assert expected - shown == set()


def scaling_words(point: Point) -> list[str]:
    return " ".join(scaling_cells(point)).replace(";", "").replace(":", "").split()


def test_files_that_scale_end_with_exit_code_0(show, folder):
    code, text, errors = show(folder)
    assert (code, errors) == (0, "")
    assert "Weak scaling: ddp, preset tiny, bf16, 1 sample a rank" in text
    assert "Strong scaling: ddp, preset tiny, bf16, 12 samples in all" in text
    assert "NOT COMPARABLE" not in text


def test_markdown_has_a_row_for_every_side_and_number_of_ranks(show, folder):
    code, text, _ = show(folder, "--format", "markdown")
    rows = [line for line in text.splitlines() if line.startswith(("| native", "| lightning"))]
    assert (code, len(rows)) == (0, 9 + 2)
    assert {line.count("|") for line in rows} == {8}
    assert "## Weak scaling: ddp, preset tiny, bf16, 1 sample a rank" in text


def test_json_has_every_digit(show, folder):
    code, text, _ = show(folder, "--format", "json")
    document = json.loads(text)
    assert (code, [each["kind"] for each in document["scaling"]]) == (0, ["weak", "strong"])
    found = [each for each in document["scaling"][0]["points"] if (each["side"], each["world_size"]) == ("native", 2)]
    (efficiency,) = [each["efficiency"] for each in found]
    assert efficiency == pytest.approx(1000 / 1100, rel=1e-6)
    assert found[0]["interval"][0] < efficiency < found[0]["interval"][1]
    assert len(found[0]["paths"]) == 3


def test_csv_has_a_line_for_every_side_and_number_of_ranks(show, folder):
    code, text, _ = show(folder, "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert (code, len(lines)) == (0, 9 + 2)
    (last,) = [line for line in lines if (line["kind"], line["world_size"]) == ("strong", "4")]
    assert float(last["efficiency"]) == pytest.approx(1, rel=1e-3)
    assert (last["base_world_size"], last["completed_runs"], last["other_runs"]) == ("2", "3", "0")


@pytest.mark.parametrize("style", ["table", "markdown", "json", "csv"])
def test_runs_that_are_not_comparable_end_with_exit_code_3_and_without_a_number(show, tmp_path, style):
    save(tmp_path, "a.json", **timed(77.7), **weak(1))
    save(tmp_path, "b.json", **timed(88.8), **weak(2), workload__initial_weights_sha256="f" * 64)
    code, text, _ = show(tmp_path, "--format", style)
    assert code == 3
    assert "77.7" not in text
    if style != "csv":
        assert all(value in text.replace("\n", "") for value in ("a" * 64, "f" * 64))


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_one_number_of_ranks_ends_with_exit_code_3_and_what_to_type(show, tmp_path, style):
    save(tmp_path, "a.json", **weak(2))
    code, text, _ = show(tmp_path, "--format", style)
    assert code == 3
    assert "the same options with another --nproc-per-node" in " ".join(text.split())


def test_a_file_that_cannot_be_read_ends_with_exit_code_1_and_the_others_are_shown(show, folder):
    (folder / "bad.json").write_text("[]")
    code, text, errors = show(folder)
    assert code == 1
    assert "bad.json" in errors
    assert "Weak scaling" in text


def test_a_run_that_went_wrong_ends_with_exit_code_1(show, folder):
    save(folder, "wrong.json", **weak(4), outcome__status="diverged", outcome__phase="final")
    assert show(folder)[0] == 1


def test_force_is_refused_in_one_line(show, folder):
    code, _, errors = show(folder, "--force")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "--force" in errors


def test_strings_from_files_are_shown_literally(show, tmp_path):
    for ranks in (1, 2):
        save(tmp_path, f"{ranks}.json", **weak(ranks), environment__device_name="[bold]x[/nope] \x1b[31mred")
    code, text, _ = show(tmp_path)
    assert (code, "\x1b" in text, "[bold]x[/nope]" in text) == (0, False, True)
