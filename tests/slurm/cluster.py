"""Commands and jobs on the throw-away cluster, and the runs that tests compare."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from common.options import IMPLEMENTATION_MODULES
from common.result import Result, read_result
from tests.runs import ROOT, clean_environment, run, tail

WORKLOAD = (
    *("--device", "cpu", "--preset", "tiny", "--global-batch-size", "4", "--warmup-steps", "2", "--steps", "2"),
)
RUNNING = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED")


def on_cluster(*command: str) -> list[str]:
    """Return the command line that runs ``command`` on the cluster's login node."""
    return ["bash", str(ROOT / "tests" / "slurm" / "login.sh"), *command]


def lab() -> dict[str, str]:
    """Return the variables that name the cluster."""
    folder = os.environ["SLURM_LAB_DIR"]
    return {"SLURM_LAB_DIR": folder, "SLURM_CONF": f"{folder}/slurm.conf"}


def cluster_run(*command: str, timeout: float = 240, **environ: str) -> subprocess.CompletedProcess:
    """Run ``command`` on the login node to its end; all of it is killed after ``timeout`` seconds."""
    return run(on_cluster(*command), timeout=timeout, **lab(), **environ)


def half(implementation: str, *options: str) -> list[str]:
    """Return the command line of one half as srun starts it."""
    return [sys.executable, "-m", IMPLEMENTATION_MODULES[implementation], *options]


def srun(nodes: int, tasks: int) -> list[str]:
    """Return srun with ``tasks`` tasks on each of ``nodes`` nodes, as one types it outside an allocation."""
    return ["srun", f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--gpus-per-node=2", "--kill-on-bad-exit=1"]


def fingerprint(result: Result) -> tuple:
    """Return what two runs of one workload must have in common, to the last bit."""
    return (
        result.workload.world_size,
        result.workload.initial_weights_sha256,
        result.workload.batch_sha256,
        tuple(result.correctness.losses),
        result.correctness.final_weights_sha256,
    )


def completed(process: subprocess.CompletedProcess, output: Path) -> Result:
    """Return the result of a run; an assertion error with the end of stderr where it failed."""
    assert process.returncode == 0, f"exit code {process.returncode}\n{process.stdout}\n{tail(process)}"
    return read_result(output)


@dataclass(frozen=True)
class Job:
    """A batch job that has ended."""

    job_id: str
    state: str
    exit_code: int
    output: str


def submit(*arguments: str, folder: Path, script: str | None = None, **environ: str) -> str:
    """Submit a job with sbatch, its output going to ``folder``, and return its id."""
    command = on_cluster("sbatch", "--parsable", f"--output={folder}/slurm-%A_%a.out", *arguments)
    # Not tests.runs.run: it would end the job together with sbatch.
    answer = subprocess.run(
        command, input=script, capture_output=True, text=True, cwd=ROOT,
        env={**clean_environment(), **lab(), **environ},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def wait_for(job_id: str, timeout: float = 480) -> Job:
    """Wait until a job has ended; it is cancelled after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        fields = show_job(job_id)
        if fields["JobState"] not in RUNNING:
            break
        if time.monotonic() > deadline:
            cluster_run("scancel", job_id)
            raise AssertionError(f"job {job_id} is still {fields['JobState']} after {timeout} s\n{_read(fields)}")
        time.sleep(0.3)
    return Job(job_id, fields["JobState"], int(fields["ExitCode"].split(":")[0]), _read(fields))


def show_job(job_id: str) -> dict[str, str]:
    """Return what Slurm knows about a job."""
    answer = cluster_run("scontrol", "show", "job", "--oneliner", job_id)
    assert answer.returncode == 0, answer.stderr
    return dict(word.split("=", 1) for word in answer.stdout.split() if "=" in word)


def _read(fields: dict[str, str]) -> str:
    output = Path(fields["StdOut"])
    return output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""


def batch_script(*lines: str) -> str:
    """Return a batch script of these lines, as somebody writes it who reads no manual."""
    return "\n".join(["#!/usr/bin/env bash", *lines, ""])
