"""The shell scripts that we ship and test with."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import ROOT

SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in (".ci", "benchmarks", "launchers", "tests/slurm")
    for path in ROOT.joinpath(folder).rglob("*")
    if path.suffix in (".sh", ".sbatch") or path.parent.name == ".ci"
)


def test_there_are_scripts_of_every_kind():
    assert {Path("launchers/slurm/compare.sbatch"), Path(".ci/run"), Path("tests/slurm/start.sh")} < set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_shellcheck_finds_nothing(script):
    shellcheck = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, str(script)], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.suffix == ".sbatch"], ids=str)
def test_no_directive_stands_behind_the_first_command_where_slurm_would_ignore_it(script):
    lines = ROOT.joinpath(script).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
