"""`compare.py show`: what it prints, in every format, and how it ends."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import compare
from comparison.formatting import cells, plain, shown_rows
from comparison.loading import load_runs
from comparison.pairing import pair_runs
from comparison.tables import print_pairing
from tests.factories import make_data, save, timed

PROJECT = Path(compare.__file__).parent
LARGE = {"workload__global_parameter_count": 634903040, "parameters__local_parameter_elements": 634903040}
SHARDED = {"workload__strategy": "fsdp2", "workload__fsdp_wrap": "block", "correctness__parameters_synchronized": None}


@pytest.fixture
def folder(tmp_path):
    """Two pairs with long numbers."""
    for number, changes in enumerate(({}, SHARDED)):
        save(tmp_path, f"n{number}.json", "native", **timed(1234.5678), **LARGE, **changes)
        save(tmp_path, f"l{number}.json", "lightning", **timed(2345.6789), **LARGE, **changes)
    return tmp_path


def render(paths, width, **options):
    text = io.StringIO()
    print_pairing(Console(file=text, width=width, highlight=False), pair_runs(load_runs(paths)[0]), **options)
    return text.getvalue()


def show(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "compare.py", "show", *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(folder, width):
    text = render([folder], width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_cells_that_differ_in_their_ranks_say_so(tmp_path):
    for nodes in (1, 2):
        scale = {"workload__world_size": 2 * nodes, "workload__global_batch_size": 2 * nodes}
        for side in ("native", "lightning"):
            save(tmp_path, f"{side}-{nodes}.json", side, environment__num_nodes=nodes, **scale)
    overview = render([tmp_path], 80).partition("All cells")[2]
    named = [line.split()[:3] for line in overview.splitlines() if " ddp " in line]
    assert named == [[side, "ddp", ranks] for ranks in ("2", "4") for side in ("native", "lightning")]


def test_cells_of_as_many_ranks_do_not_say_so(folder):
    assert "ranks" not in render([folder], 80).partition("All cells")[2]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_name_and_every_number_stays_whole(folder, width):
    text = render([folder], width)
    for row in shown_rows(pair_runs(load_runs([folder])[0]).pairs[0]):
        for word in (row.metric.name, *cells(row)):
            assert word in text


def test_columns_are_labelled_by_the_files_content_not_by_their_order(folder):
    first = show(folder / "l0.json", folder / "n0.json", "--no-responsibilities").stdout
    second = show(folder / "n0.json", folder / "l0.json", "--no-responsibilities").stdout
    assert first == second
    line = next(line for line in first.splitlines() if line.startswith("milliseconds_per_step "))
    assert line.split()[1:3] == ["1,230", "2,350"]  # one run supports three digits


def test_comparable_files_end_with_exit_code_0_and_the_responsibilities(folder):
    shown = show(folder)
    assert shown.returncode == 0
    assert "zero_grad" in shown.stdout
    assert "zero_grad" not in show(folder, "--no-responsibilities").stdout


def test_runs_that_are_not_comparable_end_with_exit_code_3_and_name_the_field_before_any_number(tmp_path):
    save(tmp_path, "n.json", "native")
    save(tmp_path, "l.json", "lightning", workload__seed=7)
    shown = show(tmp_path, "--no-responsibilities")
    assert shown.returncode == 3
    assert re.search(r"seed +1234 +7", shown.stdout)
    assert "milliseconds_per_step" not in shown.stdout


def test_a_file_that_cannot_be_read_ends_with_exit_code_1_and_the_others_are_shown(folder):
    (folder / "bad.json").write_text("[]")
    shown = show(folder, "--no-responsibilities")
    assert shown.returncode == 1
    assert "bad.json" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert "milliseconds_per_step" in shown.stdout


def test_a_call_without_paths_is_a_usage_error_of_one_line():
    shown = show()
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1


def test_json_holds_every_digit_and_the_responsibilities(folder):
    document = json.loads(show(folder, "--format", "json").stdout)
    metrics = {each["metric"]: each for each in document["pairs"][0]["metrics"]}
    assert metrics["milliseconds_per_step"]["baseline"] == 1234.5678
    assert metrics["milliseconds_per_step"]["difference"] == 2345.6789 - 1234.5678
    assert document["pairs"][0]["parity"]["exact"] is True
    assert any(duty["name"] == "zero_grad" for duty in document["responsibilities"])


def test_csv_has_a_line_for_every_metric_of_every_pair(folder):
    lines = list(csv.DictReader(io.StringIO(show(folder, "--format", "csv").stdout)))
    fractions = [line for line in lines if line["metric"] == "local_parameter_fraction"]
    assert [line["strategy"] for line in fractions] == ["ddp", "fsdp2"]
    assert fractions[0]["baseline"] == "1.0"


def test_markdown_is_a_table_with_a_row_for_every_metric(folder):
    text = show(folder, "--format", "markdown", "--no-responsibilities").stdout
    assert text.count("| milliseconds_per_step |") == 2
    rows = [line for line in text.splitlines() if line.startswith("| milliseconds_per_step |")]
    assert all(line.count("|") == 6 for line in rows)


def test_strings_from_files_are_shown_literally(tmp_path):
    hostile = "[bold]x[/nope] \x1b[31mred\x1b]0;title\x07 \u202e"
    for implementation in ("native", "lightning"):
        data = make_data(implementation, environment__device_name=hostile)
        (tmp_path / f"{implementation}.json").write_text(json.dumps(data))
    shown = show(tmp_path, "--no-responsibilities")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    assert "[bold]x[/nope]" in shown.stdout


def test_control_characters_become_visible():
    assert plain("a\x1b[0m\nb\u202ec") == "a\\x1b[0m\\nb\\u202ec"


def test_a_setting_that_differs_is_warned_about_above_the_table(tmp_path):
    save(tmp_path, "n.json", "native")
    save(tmp_path, "l.json", "lightning", environment__torch_version="2.11.0")
    text = render([tmp_path], 80)
    assert text.index("torch_version: native 2.13.0, lightning 2.11.0") < text.index("milliseconds_per_step")


def test_unequal_losses_stand_above_the_numbers(tmp_path):
    save(tmp_path, "n.json", "native")
    save(tmp_path, "l.json", "lightning", correctness__losses=[2.75, 2.5, 2.0])
    text = render([tmp_path], 80)
    assert text.index("LOSSES DIFFER") < text.index("milliseconds_per_step")


def test_times_of_cpu_ranks_carry_a_caveat(tmp_path):
    for implementation in ("native", "lightning"):
        save(tmp_path, f"{implementation}.json", implementation, workload__device_type="cpu")
    assert "reduce-scatter as all-reduce" in " ".join(render([tmp_path], 80).split())


def test_rendering_imports_neither_torch_nor_lightning(folder):
    code = (
        "import sys, compare; code = compare.main(['show', sys.argv[1]]);"
        "print([name for name in ('torch', 'lightning') if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (0, "[]")


def test_a_difference_too_small_for_its_column_does_not_look_like_none(tmp_path):
    save(tmp_path, "n.json", "native", memory__peak_allocated_gib=1.5)
    save(tmp_path, "l.json", "lightning", memory__peak_allocated_gib=1.5 - 2**-25)
    line = next(line for line in render([tmp_path], 80).splitlines() if line.startswith("peak_allocated_gib"))
    assert line.split()[3] == "-3e-08"
