"""The comparison as a Slurm job: by the script that is shipped, and by the one that compare.py writes.

Each job compares one strategy; with --whole-matrix both.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.result import read_result
from tests.runs import ROOT, clean_environment, start
from tests.slurm.cluster import cluster_run, fingerprint, lab, on_cluster, submit, wait_for

RUN = (
    *("--device", "cpu", "--preset", "tiny", "--global-batch-size", "4", "--warmup-steps", "2", "--steps", "2"),
    *("--repeats", "1"),
)


@pytest.fixture
def strategies(request) -> list[str]:
    return ["ddp", "fsdp2"] if request.config.getoption("--whole-matrix") else [request.param]


def assert_compared(job, folder: Path, launcher: str, strategies: list[str], under_torchrun) -> None:
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert f"started by {launcher}: " in job.output
    assert "2 ranks on each of 2 nodes" in job.output
    assert "times mean nothing" in job.output
    assert "\x1b" not in job.output
    names = {f"{strategy}-{side}-1" for strategy in strategies for side in ("native", "lightning")}
    results = {name: read_result(folder / f"{name}.json") for name in names}
    for name, result in results.items():
        assert fingerprint(result) == fingerprint(under_torchrun(name.split("-")[0], 4)), name
        assert result.environment.slurm.job_id == job.job_id
    tables = (folder / "tables.txt").read_text(encoding="utf-8")
    for text in (job.output, tables):
        assert " ".join(text.split()).count("final weights equal to the last bit") == len(strategies)
        assert max(len(line.rstrip()) for line in text.splitlines() if str(folder) not in line) <= 80


@pytest.mark.parametrize("strategies", ["ddp"], indirect=True)
def test_the_shipped_script_compares_with_a_task_for_each_rank(strategies, tmp_path, under_torchrun):
    layout = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1"]
    options = [*RUN, "--strategy", *strategies]
    job = wait_for(submit(*layout, "launchers/slurm/compare.sbatch", *options, folder=tmp_path))
    folder = ROOT / "results" / f"slurm-{job.job_id}"
    assert_compared(job, folder, "srun", strategies, under_torchrun)
    assert {read_result(path).environment.launcher for path in folder.glob("*.json")} == {"srun"}
    shutil.rmtree(folder)


@pytest.mark.parametrize("strategies", ["fsdp2"], indirect=True)
def test_the_written_script_compares_with_torchrun_on_each_node(strategies, tmp_path, under_torchrun):
    folder = tmp_path / "a folder with $pecial 'characters'"
    request = ["--submit", "--nodes", "2", "--gpus-per-node", "2", "--partition", "debug", "--time", "10"]
    options = [*RUN, "--strategy", *strategies, "--launcher", "srun-torchrun", "--output-dir", str(folder)]
    # Not tests.runs.run: it would end the job together with sbatch.
    process = subprocess.run(
        on_cluster(sys.executable, str(ROOT / "compare.py"), "sbatch", *request, *options),
        capture_output=True, text=True, cwd=tmp_path, env={**clean_environment(), **lab()},
    )  # fmt: skip
    submitted = re.match(r"job (\d+) submitted; its output will be in slurm-\1\.out", process.stdout)
    assert submitted, process.stdout + process.stderr
    assert_compared(wait_for(submitted[1]), folder, "srun-torchrun", strategies, under_torchrun)
    assert {read_result(path).environment.launcher for path in folder.glob("*.json")} == {"torchrun"}


@pytest.mark.parametrize(
    ("allocation", "options", "words"),
    [
        (
            ["--nodes=1", "--ntasks-per-node=2"],
            ["--nproc-per-node", "3"],
            "but the allocation has 2 tasks on each node",
        ),
        (["--nodes=2", "--ntasks=4"], ["--launcher", "srun"], "uneven tasks on its nodes [3, 1]"),
    ],
)
def test_a_call_that_the_allocation_contradicts_is_refused(allocation, options, words, tmp_path):
    command = [sys.executable, "compare.py", "run", "--device", "cpu", *options, "--output-dir", str(tmp_path / "new")]
    process = cluster_run("salloc", *allocation, *command)
    assert process.returncode != 0
    assert words in process.stderr
    assert not (tmp_path / "new").exists()


def test_compare_in_every_task_of_a_step_is_refused():
    process = cluster_run("srun", "--nodes=1", "--ntasks=2", sys.executable, "compare.py", "run")
    assert process.returncode != 0
    assert "srun started compare.py in 2 tasks" in process.stderr


@pytest.mark.parametrize(
    ("launcher", "signal_number"),
    [
        pytest.param("srun", signal.SIGINT, marks=pytest.mark.whole_matrix),
        ("srun-torchrun", signal.SIGTERM),
    ],
    ids=["srun", "torchrun"],
)
def test_an_interruption_ends_the_step_too(launcher, signal_number, tmp_path):
    folder = tmp_path / "new"
    run = ["compare.py", "run", "--device", "cpu", "--preset", "tiny", "--strategy", "ddp", "--steps", "1000000"]
    command = [sys.executable, *run, "--launcher", launcher, "--output-dir", str(folder)]
    with start(on_cluster("salloc", "--nodes=1", "--ntasks-per-node=2", *command), **lab()) as started:
        wait_until(lambda: "ddp-native-1" in steps(), "the step has begun")
        time.sleep(4)
        compare = next(pid for pid in started.members() if is_compare(pid))
        os.kill(compare, signal_number)
        _, stderr = started.process.communicate(timeout=60)
        assert started.process.returncode == 130, stderr
        assert "interrupted; no process of the run is left" in stderr
        assert started.members() == []
    assert "ddp-native-1" not in steps()
    assert not list(folder.glob("*.json"))


def steps() -> str:
    """Return the steps that run now, by name."""
    return cluster_run("squeue", "--steps", "--noheader", "--format=%i %j").stdout


def wait_until(condition, what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.2)


def is_compare(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"compare.py" in words and words[0] == sys.executable.encode()
