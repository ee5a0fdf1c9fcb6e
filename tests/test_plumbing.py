"""Lines of distributed plumbing: counted from the source by the rule in comparison/plumbing.py."""

import json

import pytest

from comparison import plumbing, responsibility_table
from comparison.catalogue import CATALOGUE
from comparison.plumbing import PLUMBING_DUTIES, SIDES, count, sentence
from comparison.syntax import code_lines, definitions
from tests.runs import ROOT

SOURCE = '''"""A module.

Of three lines.
"""

import os
from a import (
    b,
)

LIMIT = 3
"""What it means."""


def act(
    value: int,  # a parameter
) -> str:
    """Act."""
    # A comment.

    text = """one
# two
"""
    return text
'''


def test_blank_lines_comments_docstrings_and_imports_are_no_code():
    lines = SOURCE.splitlines()
    assert [lines[number - 1].strip() for number in sorted(code_lines(SOURCE))] == [
        *("LIMIT = 3", "def act(", "value: int,  # a parameter", ") -> str:"),
        *('text = """one', "# two", '"""', "return text"),
    ]


def test_every_plumbing_duty_is_in_the_catalogue():
    assert set(PLUMBING_DUTIES) <= {duty.name for duty in CATALOGUE}


@pytest.mark.parametrize(
    ("side", "function", "whole"),
    [
        ("native", "init_process_group", True),
        ("native", "destroy_process_group", True),
        ("native", "replicate", True),
        ("native", "shard", True),
        ("native", "main", False),
        ("native", "train", False),
        ("lightning", "make_strategy", True),
        ("lightning", "TransformerBenchmark.shard", True),
        ("lightning", "train", False),
    ],
)
def test_a_function_of_plumbing_alone_counts_whole_and_others_by_their_statements(side, function, whole):
    (part,) = [part for part in count(side).parts if part.function == function]
    assert part.whole is whole


def test_a_whole_function_counts_its_lines_without_its_docstring():
    (part,) = [part for part in count("native").parts if part.function == "bind_device"]
    (node,) = definitions((ROOT / part.file).read_text())[part.function]
    without_docstring = [node.lineno, *range(node.body[1].lineno, node.end_lineno + 1)]
    assert part.lines == len(without_docstring)


@pytest.mark.parametrize("function", ["training_step", "TransformerBenchmark.training_step", "report"])
def test_the_training_step_is_no_plumbing(function):
    assert function not in {part.function for side in SIDES for part in count(side).parts}


def test_the_statement_that_calls_plumbing_counts_and_its_neighbours_do_not():
    (part,) = [part for part in count("native").parts if (part.file, part.function) == ("native/train.py", "train")]
    assert part.lines == 1


@pytest.mark.parametrize("side", SIDES)
def test_plumbing_is_a_part_of_all_code(side):
    counted = count(side)
    assert 0 < counted.lines < counted.total
    text = [path.read_text() for path in (ROOT / counted.package).glob("*.py")]
    assert counted.total == sum(len(code_lines(each)) for each in text)


def test_the_count_follows_the_source(tmp_path, monkeypatch):
    before = count("native")
    for package in SIDES.values():
        (tmp_path / package).mkdir()
        for path in (ROOT / package).glob("*.py"):
            (tmp_path / package / path.name).write_text(path.read_text())
    group = tmp_path / "native" / "process_group.py"
    group.write_text(
        group.read_text().replace('    on_cuda = device.type == "cuda"\n', "    on_cuda = (\n        True\n    )\n")
    )
    monkeypatch.setattr(plumbing, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr("comparison.source.PROJECT_ROOT", tmp_path)
    after = count("native")
    assert (after.lines, after.total) == (before.lines + 2, before.total + 2)


def test_the_sentence_has_both_sides_numbers_and_stands_in_the_markdown_too():
    native, lightning = count("native"), count("lightning")
    assert f"{native.lines} of {native.total} lines of code in native/" in sentence()
    assert f"{lightning.lines} of {lightning.total} in lightning_impl/" in sentence()
    assert sentence() in responsibility_table.to_markdown().replace("\\", "")


def test_json_has_every_part():
    document = json.loads(json.dumps(plumbing.to_json_data()))
    for side in SIDES:
        assert sum(part["lines"] for part in document[side]["parts"]) == document[side]["plumbing_lines"]
