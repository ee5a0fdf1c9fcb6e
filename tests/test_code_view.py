"""`compare.py responsibilities --code`: a duty's code on both sides, with the lines of the live source."""

import io
import json
import re
import subprocess
import sys

import pytest
from rich.console import Console

from common.errors import RunError
from comparison import code_view, source
from comparison.catalogue import CATALOGUE
from comparison.code_view import find_duties, print_duty, side_of
from comparison.source import PlaceNotFound, lightning_root, locate
from tests.runs import ROOT
from tests.terminal import Terminal

BY_NAME = {each.name: each for each in CATALOGUE}
SIDES = [(each.name, owner) for each in CATALOGUE for owner in (each.native, each.lightning)]


def lines_of(file: str) -> list[str]:
    root = lightning_root() if file.startswith("lightning/") else ROOT
    return (root / file).read_text(encoding="utf-8").splitlines()


def rendered(name: str, width: int, **options) -> str:
    console = Console(width=width, file=io.StringIO(), **options)
    print_duty(console, BY_NAME[name])
    return console.file.getvalue()


def responsibilities(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "compare.py", "responsibilities", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "owner"), SIDES, ids=[f"{name}-{owner.who}" for name, owner in SIDES])
def test_every_line_shown_has_its_number_in_the_live_file_and_every_place_is_among_them(name, owner):
    side = side_of(owner)
    assert side.missing == ()
    for excerpt in side.excerpts:
        text = lines_of(excerpt.file)
        for first, lines in excerpt.blocks:
            assert list(lines) == text[first - 1 : first - 1 + len(lines)]
    shown = {(each.file, line) for each in side.excerpts for line in each.places}
    assert shown == {(place.file, locate(place).line) for place in owner.places}


def test_a_short_function_is_shown_whole_with_its_decorators():
    (excerpt, _) = side_of(BY_NAME["zero_grad"].lightning).excerpts
    first, lines = excerpt.blocks[0]
    assert excerpt.whole
    assert lines[0].strip() == "@override"
    assert lines[-1].strip() == "return step_output"
    assert first < excerpt.places[0]


def test_of_a_long_function_its_signature_and_the_lines_around_are_shown():
    excerpt = side_of(BY_NAME["process group"].lightning).excerpts[2]
    assert not excerpt.whole
    assert excerpt.blocks[0][1][0] == "def _init_dist_connection("
    shown = [line for _, lines in excerpt.blocks for line in lines]
    assert any("torch.distributed.init_process_group(" in line for line in shown)
    assert len(shown) < 20


@pytest.mark.parametrize("width", [40, 80, 120, 160, 240])
@pytest.mark.parametrize("name", ["zero_grad", "process group", "launching", "SIGTERM broadcast"])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(name, width):
    text = rendered(name, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_the_sides_stand_under_each_other_at_80_columns_and_beside_each_other_at_160():
    narrow, wide = (rendered("zero_grad", width).splitlines() for width in (80, 160))
    assert not any("Native PyTorch" in line and "Lightning 2" in line for line in narrow)
    assert any("Native PyTorch" in line and "Lightning 2" in line for line in wide)
    assert len(wide) < len(narrow)


def test_the_line_that_does_the_duty_is_marked_without_colour():
    marked = [line for line in rendered("zero_grad", 120).splitlines() if line.startswith(">")]
    place = locate(BY_NAME["zero_grad"].native.places[0])
    assert marked[0].split() == [">", str(place.line), "optimizer.zero_grad()"]


def test_colours_add_nothing_but_colours():
    coloured = rendered("backward", 80, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == rendered("backward", 80)


@pytest.mark.parametrize("name", ["zero_grad", "ZERO_GRAD", "zero-grad", "zero grad", "Zero Grad"])
def test_case_dashes_and_spaces_make_no_difference(name):
    assert find_duties(name) == [BY_NAME["zero_grad"]]


def test_every_duty_is_found_by_its_name():
    assert [duty for each in CATALOGUE for duty in find_duties(each.name)] == list(CATALOGUE)
    assert find_duties("all") == list(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "near"), [("zero", "zero_grad"), ("proces grup", "process group"), ("barrier", "startup barriers")]
)
def test_an_unknown_name_is_an_error_with_names_that_are_near_and_a_command(name, near):
    with pytest.raises(RunError) as caught:
        find_duties(name)
    assert near in str(caught.value)
    assert "python compare.py responsibilities --code" in str(caught.value)


@pytest.mark.parametrize("name", ["", "xyzzy", "\x1b[31m"])
def test_a_name_near_to_nothing_points_to_the_list(name):
    ran = responsibilities("--code", name)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "all names: python compare.py responsibilities" in ran.stderr
    assert "\x1b" not in ran.stderr


def test_paths_of_results_are_refused_instead_of_ignored():
    ran = responsibilities("--code", "zero_grad", "results/none")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "results/none" in ran.stderr


def test_piped_it_has_no_colour_and_no_pager():
    ran = responsibilities("--code", "all")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    titles = re.findall(r"^(.+) \((?:moved|stays|added|dropped|same)\)$", ran.stdout, re.MULTILINE)
    assert titles == [each.name for each in CATALOGUE]


def test_on_a_terminal_all_goes_through_the_pager_and_one_duty_does_not(tmp_path):
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged\necho paged\n")
    pager.chmod(0o755)
    command = [sys.executable, "compare.py", "responsibilities", "--code"]
    with Terminal([*command, "all"], PAGER=str(pager)) as terminal:
        terminal.wait_for("paged")
        assert terminal.finish() == 0
    assert "SIGTERM broadcast (added)" in (tmp_path / "paged").read_text()
    with Terminal([*command, "backward"], PAGER=str(pager)) as terminal:
        terminal.wait_for("loss.backward")
        assert terminal.finish() == 0
        assert "paged" not in terminal.text


def test_markdown_is_fenced_code_with_the_numbers_of_its_lines():
    text = responsibilities("--code", "zero_grad", "--format", "markdown").stdout
    for file, function, first, last, code in re.findall(
        r"^`(\S+)` `(\S+)`, lines (\d+) to (\d+);[^\n]*\n\n```python\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL
    ):
        assert code.splitlines() == lines_of(file)[int(first) - 1 : int(last)]
        assert function
    assert text.count("```python") == 3


def test_a_fence_is_longer_than_any_backticks_in_the_code():
    assert code_view._fence(["a = 1"]) == "```"
    assert code_view._fence(["```", "x ```` y"]) == "`````"


def test_json_has_the_code_of_both_sides():
    (duty,) = json.loads(responsibilities("--code", "zero_grad", "--format", "json").stdout)
    block = duty["native"]["code"][0]["blocks"][0]
    assert (
        block["text"].splitlines()
        == lines_of("native/train.py")[block["first_line"] - 1 :][: len(block["text"].splitlines())]
    )
    assert duty["lightning"]["code"][0]["file"] == "lightning/pytorch/loops/optimization/automatic.py"


def test_a_reader_that_ends_early_gets_no_traceback():
    for style in ("table", "markdown", "json"):
        shell = f"{sys.executable} compare.py responsibilities --code all --format {style} | head -n 1"
        ran = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (len(ran.stdout.splitlines()), ran.stderr) == (1, "")


def test_without_lightning_its_side_says_so(monkeypatch):
    monkeypatch.setattr(source, "lightning_root", lambda: None)
    side = side_of(BY_NAME["zero_grad"].lightning)
    assert side.excerpts == ()
    assert all("lightning is not installed" in reason for reason in side.missing)


def test_a_place_that_is_gone_is_told_and_the_others_are_shown(monkeypatch):
    gone = BY_NAME["zero_grad"].lightning.places[0]

    def search(place):
        if place == gone:
            raise PlaceNotFound(place, "there is no such function")
        return locate(place)

    monkeypatch.setattr(code_view, "locate", search)
    side = side_of(BY_NAME["zero_grad"].lightning)
    assert [excerpt.function for excerpt in side.excerpts] == ["LightningModule.optimizer_zero_grad"]
    assert "not found in the installed version" in side.missing[0]


def test_showing_code_imports_neither_torch_nor_lightning():
    code = (
        "import sys, compare; compare.main(['responsibilities', '--code', 'zero_grad']);"
        "print([name for name in ('torch', 'lightning') if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (0, "[]")
