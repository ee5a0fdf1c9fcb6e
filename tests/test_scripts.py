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


def below_the_site_block(half: str) -> str:
    text = ROOT.joinpath(f"launchers/slurm/{half}.sbatch").read_text(encoding="utf-8")
    return text.split("# ----")[-1]


def test_the_batch_scripts_of_the_halves_do_the_same():
    lightning = below_the_site_block("lightning").replace("lightning_impl", "native").replace("lightning-", "native-")
    assert lightning == below_the_site_block("native")


def test_every_step_of_a_batch_script_ends_as_soon_as_one_of_its_ranks_dies():
    steps = [line.split() for line in below_the_site_block("native").splitlines() if line.strip().startswith("srun ")]
    assert len(steps) == 2
    assert all("--kill-on-bad-exit=1" in words for words in steps)
