"""Which launcher the surroundings call for, and the command lines it makes."""

import shutil

import pytest

from common.errors import RunError
from comparison import launchers
from comparison.launchers import Launcher, choose_launcher, choose_ranks

ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
}
ONE_TASK = ALLOCATION | {"SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.fixture(autouse=True)
def srun_is_installed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("environ", "name", "reason"),
    [
        ({}, "torchrun", "this is no Slurm allocation"),
        (ALLOCATION, "srun", "SLURM_TASKS_PER_NODE=4(x2)"),
        (ONE_TASK, "srun-torchrun", "one task on each node"),
        (ALLOCATION | {"SLURM_STEP_ID": "0"}, "torchrun", "srun started this shell"),
        (ALLOCATION | {"SLURM_STEP_ID": "4294967290"}, "srun", "SLURM_TASKS_PER_NODE=4(x2)"),
    ],
    ids=["laptop", "tasks for ranks", "a task a node", "a shell in a step", "an interactive step"],
)
def test_the_surroundings_choose_the_launcher_and_say_why(environ, name, reason):
    launcher = choose_launcher(None, environ)
    assert launcher.name == name
    assert reason in launcher.reason


def test_without_srun_on_the_path_torchrun_is_left(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert choose_launcher(None, ALLOCATION).name == "torchrun"


@pytest.mark.parametrize("name", ["srun", "srun-torchrun"])
def test_srun_outside_an_allocation_is_answered_with_how_to_get_one(name):
    with pytest.raises(
        RunError, match=f"--launcher {name}, but this is no Slurm allocation; .*salloc.*compare.py sbatch"
    ):
        choose_launcher(name, {})


def test_compare_started_in_several_tasks_is_refused():
    with pytest.raises(RunError, match=r"srun started compare\.py in 2 tasks"):
        choose_launcher(None, ALLOCATION | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"})


def test_at_a_terminal_in_a_step_srun_shares_what_the_step_holds():
    environ = ALLOCATION | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PTY_PORT": "1"}
    assert "--overlap" in choose_launcher("srun", environ).command("native", 4, "run")


def test_uneven_tasks_are_refused_for_srun_and_do_not_matter_for_torchrun_on_each_node():
    uneven = ALLOCATION | {"SLURM_TASKS_PER_NODE": "3,1"}
    with pytest.raises(RunError, match=r"uneven tasks on its nodes \[3, 1\]"):
        choose_launcher("srun", uneven)
    assert choose_launcher("srun-torchrun", uneven).nodes == 2


def test_srun_is_told_all_numbers_of_the_step():
    command = choose_launcher("srun", ALLOCATION).command("native", 4, "run")
    assert {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2", "--kill-on-bad-exit=1"} < set(
        command
    )
    assert command[-2:] == ["-m", "native"]


def test_torchrun_inside_srun_is_one_agent_a_node_that_meets_at_the_first():
    command = choose_launcher("srun-torchrun", ALLOCATION).command("native", 4, "run")
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8"} < set(command)
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-conf=join_timeout=300"} < set(command)
    assert any(word.startswith("--rdzv-endpoint=node1:") for word in command)


def test_on_one_node_torchrun_stands_alone():
    one_node = ONE_TASK | {"SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NODELIST": "node1"}
    assert "--standalone" in choose_launcher("srun-torchrun", one_node).command("native", 4, "run")
    assert "srun" not in Launcher("torchrun", "").command("native", 4, "run")


def test_the_ranks_share_the_cores_of_the_smallest_node():
    launcher = choose_launcher("srun", ALLOCATION | {"SLURM_JOB_CPUS_PER_NODE": "16,8"})
    assert (launcher.threads(2), launcher.threads(16)) == (4, 1)


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count: int) -> None:
        monkeypatch.setattr(launchers, "visible_gpus", lambda launcher, wanted_device: count)

    return pretend


@pytest.mark.parametrize(
    ("name", "environ", "visible", "asked", "chosen"),
    [
        ("torchrun", {}, 0, None, ("cpu", 2)),
        ("torchrun", {}, 4, None, ("cuda", 4)),
        ("torchrun", {}, 4, 2, ("cuda", 2)),
        ("srun", ALLOCATION, 4, None, ("cuda", 4)),
        ("srun", ALLOCATION, 0, None, ("cpu", 4)),
        ("srun-torchrun", ALLOCATION, 0, None, ("cpu", 4)),
        ("srun-torchrun", ONE_TASK, 4, None, ("cuda", 4)),
        ("srun-torchrun", ONE_TASK, 4, 2, ("cuda", 2)),
        ("srun-torchrun", ONE_TASK, 0, None, ("cpu", 2)),
    ],
)
def test_the_ranks_of_a_node(gpus, name, environ, visible, asked, chosen):
    gpus(visible)
    assert choose_ranks(choose_launcher(name, environ), "auto", asked) == chosen


@pytest.mark.parametrize("name", ["srun", "srun-torchrun"])
def test_ranks_that_are_not_the_allocations_tasks_are_refused_with_both_numbers(gpus, name):
    gpus(4)
    with pytest.raises(RunError, match=r"--nproc-per-node 2, but the allocation has 4 tasks .*per-node=2"):
        choose_ranks(choose_launcher(name, ALLOCATION), "auto", 2)


@pytest.mark.parametrize(
    ("name", "environ", "asked", "words"),
    [
        ("torchrun", {}, 4, "--nproc-per-node 4, but 2 visible GPUs; use at most 2"),
        ("srun", ALLOCATION, None, "4 tasks on each node, but 2 visible GPUs; use at most 2"),
    ],
)
def test_more_ranks_than_gpus_are_refused(gpus, name, environ, asked, words):
    gpus(2)
    with pytest.raises(RunError, match=words):
        choose_ranks(choose_launcher(name, environ), "auto", asked)


def test_gpus_that_are_not_there_are_refused(gpus):
    gpus(0)
    with pytest.raises(RunError, match="--device cuda, but PyTorch sees no GPU here; use --device cpu"):
        choose_ranks(choose_launcher(None, {}), "cuda", None)
