"""Every known mistake under Slurm ends in a refusal before anybody waits, in the same words on both halves."""

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.marks import mostly
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


@pytest.fixture
def nobody_told_node2_of_node1():
    """node2 can't resolve the name of the first node, as on a cluster without a name service."""
    hosts = Path(os.environ["SLURM_LAB_DIR"]) / "var/run/hosts.node2"
    before = hosts.read_text()
    # Written in place: node2 has this very file mounted.
    hosts.write_text("".join(line for line in before.splitlines(True) if line.split()[1:] != ["node1"]))
    yield
    hosts.write_text(before)


UNRESOLVED = "the ranks cannot meet at node1, which does not resolve on node2"


@both_sides
def test_a_first_node_whose_name_does_not_resolve(implementation, nobody_told_node2_of_node1):
    said = refusal(implementation, *srun(2, 1), *half(implementation, *TRAINING))
    assert said.startswith(UNRESOLVED)


@both_sides
def test_a_batch_script_with_torchrun_on_nodes_that_do_not_know_the_first(
    implementation, nobody_told_node2_of_node1, tmp_path
):
    layout = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2", "--cpus-per-task=1"]
    script = f"launchers/slurm/{implementation}.sbatch"
    job = wait_for(submit(*layout, script, *TRAINING, folder=tmp_path), timeout=60)
    assert (job.state, job.exit_code) == ("FAILED", 2), job.output
    assert UNRESOLVED in job.output


def test_compare_with_torchrun_on_nodes_that_do_not_know_the_first(nobody_told_node2_of_node1, tmp_path):
    command = [
        sys.executable,
        "compare.py",
        "run",
        "--launcher",
        "srun-torchrun",
        "--output-dir",
        str(tmp_path / "new"),
    ]
    process = cluster_run("salloc", "--nodes=2", "--ntasks-per-node=1", *command, timeout=60)
    assert process.returncode == 2, process.stderr
    assert f"compare.py: error: {UNRESOLVED}; start a task for each rank with --launcher srun" in process.stderr
    assert not (tmp_path / "new").exists()


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


def test_torchrun_in_a_job_of_several_tasks_a_node_whose_number_every_step_inherits():
    """Slurm then ignores --ntasks-per-node=1, since SLURM_NTASKS says 2: torchrun starts twice on the node."""
    python, *module = half("native", *TRAINING)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", *module]
    step = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=1", *torchrun]
    process = cluster_run("salloc", "--nodes=1", "--ntasks-per-node=2", *step)
    assert process.returncode != 0
    assert "srun started torchrun in 2 tasks (SLURM_STEP_TASKS_PER_NODE=2), but torchrun joins 1" in process.stderr
    assert "result" not in process.stdout


@mostly("implementation", "lightning", ["native"])
def test_ranks_wait_no_longer_than_their_timeout_for_one_that_never_comes(implementation):
    """Without --kill-on-bad-exit, as people type srun."""
    impatient = shlex.join([*half(implementation, *TRAINING), "--timeout-seconds", "5"])
    script = f"[[ $SLURM_PROCID == 1 ]] && exit 7; exec {impatient}"
    process = cluster_run("srun", "--nodes=1", "--ntasks-per-node=2", "bash", "-c", script)
    assert "task 1: Exited with exit code 7" in process.stderr
    assert "task 0: Exited with exit code 1" in process.stderr
    assert "rank 1 of 2 did not come to " in process.stderr


@mostly("implementation", "lightning", ["native"])
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
