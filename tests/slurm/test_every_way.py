"""Both halves and strategies, on every layout, by every way to start them: all train what torchrun trains here.

Two halves x two strategies x three layouts x five ways are 60 runs, too many for every change. Without --whole-matrix
those of COVERING run: 10 of two ranks, in which every value of one of the four meets every value of the other three.
The comparisons of test_compare.py are of two nodes with two ranks each.
"""

import itertools
import shlex
import sys
from pathlib import Path

import pytest

from common.options import IMPLEMENTATION_MODULES
from common.result import Result, read_result
from tests.slurm.cluster import (
    WORKLOAD,
    batch_script,
    cluster_run,
    completed,
    fingerprint,
    half,
    srun,
    submit,
    wait_for,
)

IMPLEMENTATIONS, STRATEGIES = ("native", "lightning"), ("ddp", "fsdp2")
LAYOUTS = ("1x2", "2x1", "2x2")
"""Nodes x ranks on each."""


def by_srun(implementation: str, nodes: int, ranks: int, options: list[str], output: Path) -> Result:
    """srun outside an allocation, with a task for each rank."""
    return completed(cluster_run(*srun(nodes, ranks), *half(implementation, *options)), output)


def by_srun_torchrun(implementation: str, nodes: int, ranks: int, options: list[str], output: Path) -> Result:
    """srun outside an allocation, with torchrun in a task on each node."""
    python, *module = half(implementation, *options)
    meeting = [f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29600"]
    if nodes == 1:
        meeting = ["--standalone"]
    torchrun = [python, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={ranks}", *module]
    return completed(cluster_run(*srun(nodes, 1), *torchrun), output)


def by_sbatch(implementation: str, nodes: int, ranks: int, options: list[str], output: Path) -> Result:
    """The batch script that is shipped, with a task for each rank.

    Where that is one task a node, the script would start torchrun; a job of one line does without.
    """
    if ranks == 1:
        script = batch_script(shlex.join(["srun", *half(implementation, *options)]))
        return of_job(nodes, ranks, ranks, [], output, script)
    return of_job(nodes, ranks, ranks, [f"launchers/slurm/{implementation}.sbatch", *options], output)


def by_sbatch_torchrun(implementation: str, nodes: int, ranks: int, options: list[str], output: Path) -> Result:
    """The batch script that is shipped, with torchrun in a task on each node."""
    return of_job(nodes, 1, ranks, [f"launchers/slurm/{implementation}.sbatch", *options], output)


def by_torchrun_multinode(implementation: str, nodes: int, ranks: int, options: list[str], output: Path) -> Result:
    """The script for clusters without Slurm: srun only brings it to the nodes, and takes its variables along."""
    script = "export NODE_RANK=$SLURM_NODEID; unset ${!SLURM_@}; exec bash launchers/torchrun_multinode.sh "
    script += shlex.join([IMPLEMENTATION_MODULES[implementation], *options])
    environ = {"NNODES": str(nodes), "NPROC": str(ranks), "RDZV_ENDPOINT": "node1:29600", "VIRTUAL_ENV": sys.prefix}
    # On one node it has to be the one that the endpoint names.
    where = ["--nodelist=node1"] if nodes == 1 else []
    return completed(cluster_run(*srun(nodes, 1), *where, "bash", "-c", script, **environ), output)


def of_job(nodes: int, tasks: int, gpus: int, arguments: list[str], output: Path, script: str | None = None) -> Result:
    layout = [f"--nodes={nodes}", f"--ntasks-per-node={tasks}", f"--gpus-per-node={gpus}", "--cpus-per-task=1"]
    job = wait_for(submit(*layout, *arguments, folder=output.parent, script=script))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    assert "\x1b" not in job.output
    result = read_result(output)
    assert result.environment.slurm.job_id == job.job_id
    return result


WAYS = {
    "srun": (by_srun, "srun"),
    "srun+torchrun": (by_srun_torchrun, "torchrun"),
    "sbatch": (by_sbatch, "srun"),
    "sbatch+torchrun": (by_sbatch_torchrun, "torchrun"),
    "torchrun_multinode.sh": (by_torchrun_multinode, "torchrun"),
}
"""How to start a run, and the launcher that the result then names."""

COVERING = {
    ("native", "ddp", "1x2", "srun"),
    ("lightning", "fsdp2", "2x1", "srun"),
    ("lightning", "fsdp2", "1x2", "srun+torchrun"),
    ("native", "ddp", "2x1", "srun+torchrun"),
    ("lightning", "ddp", "1x2", "sbatch"),
    ("native", "fsdp2", "2x1", "sbatch"),
    ("native", "fsdp2", "1x2", "sbatch+torchrun"),
    ("lightning", "ddp", "2x1", "sbatch+torchrun"),
    ("native", "ddp", "1x2", "torchrun_multinode.sh"),
    ("lightning", "fsdp2", "2x1", "torchrun_multinode.sh"),
}
DIMENSIONS = (IMPLEMENTATIONS, STRATEGIES, LAYOUTS, tuple(WAYS))


@pytest.mark.parametrize(("implementation", "strategy", "layout", "way"), list(itertools.product(*DIMENSIONS)))
def test_a_run_is_equal_to_the_last_bit(implementation, strategy, layout, way, request, tmp_path, under_torchrun):
    if (implementation, strategy, layout, way) not in COVERING and not request.config.getoption("--whole-matrix"):
        pytest.skip("not one of the 10 runs that cover all pairs; add --whole-matrix for all 60")
    nodes, ranks = (int(number) for number in layout.split("x"))
    start, launcher = WAYS[way]
    output = tmp_path / "result.json"
    options = ["--strategy", strategy, *WORKLOAD, "--output", str(output)]  # the last --output wins
    result = start(implementation, nodes, ranks, options, output)
    assert fingerprint(result) == fingerprint(under_torchrun(strategy, nodes * ranks))
    assert (result.environment.launcher, result.environment.num_nodes) == (launcher, nodes)
    assert len(result.environment.hosts) == nodes
    assert result.environment.nodes_share_hardware == (nodes == 2)
    assert_placed(result, way, nodes, tasks=ranks if launcher == "srun" else 1)


def assert_placed(result: Result, way: str, nodes: int, tasks: int) -> None:
    """The result says which step of Slurm it is from, on which nodes and in which layout."""
    slurm = result.environment.slurm
    if way == "torchrun_multinode.sh":
        assert slurm is None
        return
    # The script with torchrun asks the nodes first whether they can meet.
    assert slurm.step_id == ("1" if way == "sbatch+torchrun" else "0")
    assert slurm.node_list in (["node[1-2]"] if nodes == 2 else ["node1", "node2"])
    assert slurm.tasks_per_node == (f"{tasks}(x2)" if nodes == 2 else f"{tasks}")


def test_the_runs_that_always_run_pair_every_value_with_every_other():
    of_two_ranks = [tuple(value for value in values if value != "2x2") for values in DIMENSIONS]
    for (first, some), (second, others) in itertools.combinations(enumerate(of_two_ranks), 2):
        met = {(run[first], run[second]) for run in COVERING}
        assert met == set(itertools.product(some, others))
