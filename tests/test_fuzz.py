"""Damaged results by hypothesis; `benchmarks/fuzz_files.py` does the same ten thousand times."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.result import Result
from tests.factories import make_data
from tests.fuzz import FORMATS, OPTIONS, STARTS, WIDTH, check, check_output, folders
from tests.runs import ROOT


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(contents=folders(), style=st.sampled_from(FORMATS), option=st.sampled_from(OPTIONS))
def test_no_damaged_result_raises_hangs_or_reaches_the_terminal(tmp_path, monkeypatch, contents, style, option):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    check(tmp_path, contents, style, option, Counter())


@pytest.mark.parametrize("start", STARTS)
def test_what_is_damaged_was_a_result(start):
    Result.model_validate_json(json.dumps(make_data("lightning", **start)))


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("table", "a\x1b[31mb\n"),
        ("table", f"{'x' * (WIDTH + 1)}\n"),
        ("json", '{"ratio": NaN}'),
        ("json", '{"ratio": '),
        ("csv", "one,line,too,short\n"),
        ("markdown", "| a | b |\n"),
    ],
)
def test_the_check_notices(style, text):
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        check_output(text, style)


def test_the_script_counts_its_outcomes():
    command = [sys.executable, "benchmarks/fuzz_files.py", "--count", "5", "--seed", "7"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("5 folders of damaged results shown, seed 7: no exception, no hang")
