"""Every known mistake under Slurm ends in a refusal before anybody waits, in the same words on both halves."""

import contextlib
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.runs import Started, start
from tests.slurm.cluster import (
    WORKLOAD,
    batch_script,
    cluster_run,
    half,
    lab,
    on_cluster,
    srun,
    submit,
    wait_for,
)

TRAINING = ("--strategy", "ddp", *WORKLOAD)
both_sides = pytest.mark.parametrize("implementation", ["native", "lightning"])


def refusal(implementation: str, *command: str, **environ: str) -> str:
    """Run ``command``, which starts a half in a wrong way, and return what was said, once a node at most."""
    process = cluster_run(*command, timeout=60, **environ)
    assert process.returncode != 0
    prefix = f"python -m {'native' if implementation == 'native' else 'lightning_impl'}: error: "
    lines = [line.removeprefix(prefix) for line in process.stderr.splitlines() if line.startswith(prefix)]
    assert len(lines) in (1, 2), process.stderr
    assert "Traceback" not in process.stderr
    return lines[0]


@both_sides
@pytest.mark.parametrize(
    ("nodes", "tasks", "claim", "words"),
    [
        (1, 2, ["--devices", "1"], "--devices 1 --num-nodes 1 make 1 ranks, but srun started 1 x 2 = 2"),
        (2, 1, ["--num-nodes", "1"], "--devices 1 --num-nodes 1 make 1 ranks, but srun started 2 x 1 = 2"),
    ],
    ids=["devices", "nodes"],
)
def test_numbers_that_disagree_with_the_allocation(implementation, nodes, tasks, claim, words):
    said = refusal(implementation, *srun(nodes, tasks), *half(implementation, *TRAINING, *claim))
    assert said.startswith(words)


@both_sides
def test_a_batch_script_without_srun(implementation, tmp_path):
    script = batch_script(shlex.join(half(implementation, *TRAINING)))
    job = wait_for(submit("--ntasks-per-node=2", folder=tmp_path, script=script), timeout=60)
    assert (job.state, job.exit_code) == ("FAILED", 2)
    assert "this is one process inside a Slurm allocation of 2 tasks; start with: srun python -m" in job.output


@both_sides
def test_an_interactive_allocation_without_srun(implementation):
    said = refusal(implementation, "salloc", "--nodes=2", *half(implementation, *TRAINING))
    assert said.startswith("this is one process inside a Slurm allocation of 2 nodes; start with: srun python -m")


@both_sides
def test_an_uneven_layout(implementation):
    said = refusal(implementation, "srun", "--nodes=2", "--ntasks=4", *half(implementation, *TRAINING))
    assert said.startswith("uneven layout: SLURM_NTASKS=4 SLURM_NNODES=2 tasks on each node [3, 1]; ")


@both_sides
def test_tasks_that_see_one_gpu_each(implementation):
    call = ["srun", "--nodes=1", "--ntasks-per-node=2", "--gpus-per-task=1"]
    said = refusal(implementation, *call, *half(implementation, "--strategy", "ddp", "--preset", "tiny"))
    assert "this one sees a single GPU (CUDA_VISIBLE_DEVICES=0), as with --gpus-per-task=1; every task must see" in said


@both_sides
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MASTER_ADDR", "nosuch", "the ranks cannot meet at nosuch, which does not resolve on node"),
        ("MASTER_ADDR", "127.0.0.1", "MASTER_ADDR=127.0.0.1 is the loopback of each node, but the ranks are on 2"),
        ("GLOO_SOCKET_IFNAME", "nosuch0", "GLOO_SOCKET_IFNAME=nosuch0, but node"),
        ("GLOO_SOCKET_IFNAME", "lo", "GLOO_SOCKET_IFNAME=lo is the loopback of each node, but the ranks are on"),
    ],
)
def test_a_network_on_which_the_ranks_cannot_meet(implementation, variable, value, words):
    said = refusal(implementation, *srun(2, 1), *half(implementation, *TRAINING), **{variable: value})
    assert said.startswith(words)


@pytest.mark.parametrize(
    ("nodes", "tasks", "options", "words"),
    [
        (1, 2, ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29700"], "in 2 tasks"),
        (2, 1, ["--standalone"], "in 2 tasks"),
    ],
    ids=["two on one node", "one on each of two nodes, each for itself"],
)
@both_sides
def test_several_torchruns_that_make_no_world(implementation, nodes, tasks, options, words):
    python, *module = half(implementation, *TRAINING)
    torchrun = [python, "-m", "torch.distributed.run", *options, "--nproc-per-node=1", *module]
    process = cluster_run(*srun(nodes, tasks), *torchrun, timeout=60)
    assert process.returncode != 0
    assert f"srun started torchrun {words}" in process.stderr
    assert f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 torchrun" in process.stderr
    assert "result" not in process.stdout


@both_sides
def test_a_rank_that_dies_ends_the_step(implementation, tmp_path):
    python, _, *half_of_it = half(implementation, "--strategy", "ddp", "--device", "cpu", "--preset", "tiny")
    endless = [python, "-m", "tests.announce_training", *half_of_it, "--steps", "1000000"]
    announced = tmp_path / "training"
    with start(on_cluster(*srun(1, 2), *endless), ANNOUNCE=str(announced), **lab()) as started:
        deadline = time.monotonic() + 60
        while not all(Path(f"{announced}.rank{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline, "the ranks do not train"
            time.sleep(0.2)
        os.kill(process_of_rank(started, "1"), signal.SIGKILL)
        _, stderr = started.process.communicate(timeout=30)
        assert started.process.returncode != 0
    assert "task 1: Killed" in stderr


def process_of_rank(started: Started, rank: str) -> int:
    """Return the process id of a task."""
    for pid in started.members():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if f"SLURM_PROCID={rank}".encode() in variables and b"1000000" in words:
                return pid
    raise AssertionError(f"no process of rank {rank}")
