"""The batch script that compare.py writes: what it asks of Slurm, what it runs, and what it refuses."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import compare
from comparison.sbatch import options_as_words
from tests.runs import ROOT


@pytest.fixture
def written(capsys):
    """The script for some options."""

    def write(*options: str) -> str:
        assert compare.main(["sbatch", *options]) == 0
        return capsys.readouterr().out

    return write


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]


def run_command(script: str) -> list[str]:
    """Return the words of ``compare.py run`` as bash would see them."""
    line = next(line for line in script.splitlines() if "compare.py run" in line)
    return shlex.split(line.removesuffix(" || status=$?"))


def test_the_allocation_is_asked_for_once(written):
    script = written(
        "--nodes", "2", "--gpus-per-node", "4", "--partition", "gpu", "--account", "me", "--time", "1:00:00"
    )
    wanted = {"nodes=2", "gpus-per-node=4", "ntasks-per-node=4", "partition=gpu", "account=me", "time=1:00:00"}
    assert wanted < set(directives(script))


def test_a_site_may_want_gres_and_a_type(written):
    script = written("--gpus-per-node", "4", "--gres", "--gpu-type", "a100")
    assert "gres=gpu:a100:4" in directives(script)
    assert "gpus-per-node" not in "".join(directives(script))


def test_a_job_on_cpus_asks_for_no_gpu(written):
    script = written("--gpus-per-node", "0", "--ntasks-per-node", "2")
    assert "ntasks-per-node=2" in directives(script)
    assert "gpu" not in "".join(directives(script))
    assert run_command(script)[-2:] == ["--device", "cpu"]


def test_a_job_with_gpus_never_falls_back_to_cpus(written):
    assert run_command(written("--gpus-per-node", "2"))[-2:] == ["--device", "cuda"]


@pytest.mark.parametrize(
    "options",
    [
        ["--strategy", "fsdp2", "--fsdp-wrap", "root", "--repeats", "5", "--device", "cpu"],
        ["--preset", "medium", "--global-batch-size", "8", "--precision", "bf16", "--device", "cpu"],
        ["--no-responsibilities", "--launcher", "srun-torchrun", "--seed", "7", "--device", "cpu"],
        ["--strategy", "ddp", "fsdp2", "--steps", "3", "--warmup-steps", "2", "--device", "cpu"],
        ["--timeout-seconds", "60", "--device", "cpu"],
        ["--attribute", "--repeats", "5", "--device", "cpu"],
    ],
)
def test_options_of_run_arrive_as_they_were_given(written, options):
    words = run_command(written("--gpus-per-node", "2", *options))
    parser = compare.build_parser()
    before, after = parser.parse_args(["run", *options]), parser.parse_args(words[words.index("run") :])
    assert vars(after) | {"output_dir": None} == vars(before)


def test_what_goes_before_is_run_in_its_order(written):
    script = written("--gpus-per-node", "1", "--setup", "module purge", "--setup", "module load cuda")
    assert "\nmodule purge\nmodule load cuda\nset -u" in script


def test_paths_with_spaces_and_quotes_stay_one_word(written, tmp_path):
    folder = tmp_path / "it's $HOME; rm -rf"
    script = written("--gpus-per-node", "1", "--output-dir", str(folder))
    line = next(line for line in script.splitlines() if line.startswith("folder="))
    shown = subprocess.run(["bash", "-c", f'{line}; printf %s "$folder"'], capture_output=True, text=True, check=True)
    assert shown.stdout == str(folder)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(("restarts", "name"), [(None, "slurm-7"), ("0", "slurm-7"), ("2", "slurm-7-restart2")])
def test_a_job_that_slurm_starts_again_has_another_folder(written, restarts, name):
    lines = [line for line in written("--gpus-per-node", "1").splitlines() if "folder=" in line or "folder+=" in line]
    environ = {"SLURM_JOB_ID": "7"} | ({"SLURM_RESTART_COUNT": restarts} if restarts else {})
    script = "\n".join(["set -u", *lines, 'printf %s "$folder"'])
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environ)
    assert shown.stdout == f"results/{name}"


def test_shellcheck_finds_nothing_in_it(written, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        written("--gpus-per-node", "2", "--setup", "module load cuda", "--output-dir", str(tmp_path / "a b"))
    )
    shellcheck = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def calls_in(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^ *python compare\.py sbatch (.*?)(?: +#.*)?$", text, re.MULTILINE)


@pytest.mark.parametrize(("document", "count"), [("README.md", 1), ("docs/clusters.md", 3)])
def test_the_calls_in_a_document_make_a_script(written, document, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folders that they name may exist in the project
    calls = calls_in(document)
    assert len(calls) == count
    for call in calls:
        options = [word for word in shlex.split(call.replace("$nodes", "4")) if word != "--submit"]
        assert any("gpu" in line for line in directives(written(*options)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "how many ranks on each node? Add --gpus-per-node N"),
        (["--gpus-per-node", "0"], "how many ranks on each node?"),
        (["--gpus-per-node", "4", "--ntasks-per-node", "2"], "--gpus-per-node 4, but --ntasks-per-node 2"),
        (["--gpus-per-node", "0", "--ntasks-per-node", "2", "--device", "cuda"], "the job asks for no GPU"),
        (["--gpus-per-node", "4", "--nproc-per-node", "2"], "--nproc-per-node 2, but the allocation has 4 tasks"),
        (["--nodes", "2", "--gpus-per-node", "4", "--global-batch-size", "4"], "does not divide over 8 ranks"),
        (["--nodes", "2", "--gpus-per-node", "4", "--launcher", "torchrun"], "--launcher torchrun starts ranks on one"),
        (["--gpus-per-node", "1", "--output-dir", "tests"], "--output-dir tests is not empty"),
    ],
)
def test_a_job_that_would_fail_is_refused_before_it_waits(capsys, options, words):
    assert compare.main(["sbatch", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition", "gpu\n#SBATCH --nodes=99"], "has characters that no batch script should"),
        (["--account", "me #"], "has characters that no batch script should"),
        (["--setup", "module load cuda\nrm -rf /"], "is not one printable line"),
        (["--time", "soon"], "'soon' is no time limit of Slurm; write minutes, H:M:S or D-H:M:S"),
        (["--steps", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_values_that_no_script_should_hold_are_refused(capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        compare.main(["sbatch", "--gpus-per-node", "1", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_line_break_in_a_path_is_refused(capsys):
    assert compare.main(["sbatch", "--gpus-per-node", "1", "--output-dir", "a\nb"]) == 2
    assert "control characters" in capsys.readouterr().err


def test_submitting_without_slurm_is_answered_with_what_to_do(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert compare.main(["sbatch", "--gpus-per-node", "1", "--submit"]) == 1
    assert "there is no sbatch on the PATH; leave --submit out to print the script" in capsys.readouterr().err


def test_defaults_make_no_words():
    defaults = {"repeats": 3, "strategy": ["ddp"], "responsibilities": True}
    assert options_as_words(defaults, defaults) == []
    changed = {"repeats": 5, "strategy": ["fsdp2"], "responsibilities": False}
    assert options_as_words(changed, defaults) == ["--repeats", "5", "--strategy", "fsdp2", "--no-responsibilities"]
