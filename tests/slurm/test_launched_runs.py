"""Every way to start a run on Slurm trains exactly what torchrun trains with as many ranks, to the last bit."""

import shlex
import sys

import pytest

from common.options import IMPLEMENTATION_MODULES
from common.result import read_result
from tests.runs import ROOT
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

both_sides = pytest.mark.parametrize("implementation", ["native", "lightning"])
both_strategies = pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])


@both_sides
def test_srun_with_a_number_of_tasks_and_none_a_node(implementation, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", "ddp", *WORKLOAD, "--output", str(output))
    result = completed(cluster_run("srun", "--nodes=1", "--ntasks=2", *command), output)
    assert fingerprint(result) == fingerprint(under_torchrun("ddp", 2))
    assert result.environment.launcher == "srun"
    assert not result.environment.nodes_share_hardware


@both_sides
def test_a_job_that_is_named_bash_is_one_world(implementation, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", "fsdp2", *WORKLOAD, "--output", str(output))
    process = cluster_run(*srun(1, 2), "bash", "-c", shlex.join(command))
    assert fingerprint(completed(process, output)) == fingerprint(under_torchrun("fsdp2", 2))
    assert process.stdout.count("result written to") == 1


@both_sides
@both_strategies
def test_srun_on_two_nodes(implementation, strategy, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", strategy, *WORKLOAD, "--output", str(output))
    # ddp in an interactive allocation, whose job is named so that Lightning would ignore Slurm.
    start = ["salloc", "--nodes=2", "--ntasks-per-node=1", "srun"] if strategy == "ddp" else srun(2, 1)
    result = completed(cluster_run(*start, *command), output)
    assert fingerprint(result) == fingerprint(under_torchrun(strategy, 2))
    assert result.environment.hosts == ["node1", "node2"]


def test_srun_on_two_nodes_of_two_tasks_and_what_the_result_says_about_slurm(tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half("lightning", "--strategy", "fsdp2", *WORKLOAD, "--output", str(output))
    result = completed(cluster_run(*srun(2, 2), *command), output)
    assert fingerprint(result) == fingerprint(under_torchrun("fsdp2", 4))
    slurm = result.environment.slurm
    assert slurm.job_id.isdecimal()
    assert (slurm.step_id, slurm.node_list, slurm.tasks_per_node) == ("0", "node[1-2]", "2(x2)")
    assert result.environment.nodes_share_hardware


@both_sides
@both_strategies
@pytest.mark.parametrize(
    ("nodes", "tasks", "ranks", "launcher"),
    [(1, 1, 2, "torchrun"), (2, 1, 1, "torchrun")],
    ids=["torchrun on one node", "torchrun on two nodes"],
)
def test_the_batch_script_of_one_half(
    implementation, strategy, nodes, tasks, ranks, launcher, tmp_path, under_torchrun
):
    assert_script_matches(implementation, strategy, nodes, tasks, ranks, launcher, tmp_path, under_torchrun)


def test_the_batch_script_of_lightning_with_a_task_for_each_gpu(tmp_path, under_torchrun):
    assert_script_matches("lightning", "ddp", 1, 2, 2, "srun", tmp_path, under_torchrun)


def assert_script_matches(implementation, strategy, nodes, tasks, ranks, launcher, folder, under_torchrun):
    output = folder / "result.json"
    layout = [f"--nodes={nodes}", f"--ntasks-per-node={tasks}", f"--gpus-per-node={ranks}", "--cpus-per-task=1"]
    options = ["--strategy", strategy, *WORKLOAD, "--output", str(output)]  # the last --output wins
    job = wait_for(submit(*layout, f"launchers/slurm/{implementation}.sbatch", *options, folder=folder))
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.output
    result = read_result(output)
    assert fingerprint(result) == fingerprint(under_torchrun(strategy, nodes * ranks))
    assert (result.environment.launcher, result.environment.num_nodes) == (launcher, nodes)
    assert result.environment.slurm.job_id == job.job_id
    assert "\x1b" not in job.output


def test_torchrun_on_two_machines_without_slurm(tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    options = shlex.join(["--strategy", "ddp", *WORKLOAD, "--output", str(output)])
    start = "unset ${!SLURM_@}; bash launchers/torchrun_multinode.sh native"
    script = f"export NODE_RANK=$SLURM_NODEID NNODES=2 NPROC=1 RDZV_ENDPOINT=node1:29600; {start} {options}"
    result = completed(cluster_run(*srun(2, 1), "bash", "-c", script, VIRTUAL_ENV=sys.prefix), output)
    assert fingerprint(result) == fingerprint(under_torchrun("ddp", 2))
    assert result.environment.slurm is None


def test_two_steps_of_one_job_at_once_never_meet(tmp_path, under_torchrun):
    steps = {
        implementation: shlex.join(
            [
                *("srun", "--exact", "--nodes=1", "--ntasks=2", "--ntasks-per-node=2"),
                *half(implementation, "--strategy", "ddp", *WORKLOAD, "--output", str(tmp_path / implementation)),
            ]
        )
        for implementation in IMPLEMENTATION_MODULES
    }
    script = batch_script(f"{steps['native']} &", f"{steps['lightning']} &", "wait -n && wait")
    job = wait_for(submit("--nodes=1", "--ntasks-per-node=4", folder=tmp_path, script=script))
    assert job.state == "COMPLETED", job.output
    results = [read_result(tmp_path / implementation) for implementation in IMPLEMENTATION_MODULES]
    assert {fingerprint(result) for result in results} == {fingerprint(under_torchrun("ddp", 2))}
    assert {result.environment.slurm.step_id for result in results} == {"0", "1"}


def test_a_step_of_one_task_in_a_larger_job_is_a_world_of_one(tmp_path):
    output = tmp_path / "result.json"
    step = ["srun", "--nodes=1", "--ntasks=1", *half("lightning", "--strategy", "ddp", *WORKLOAD)]
    process = cluster_run("salloc", "--nodes=2", "--ntasks-per-node=2", *step, "--output", str(output))
    assert completed(process, output).workload.world_size == 1


# Jobs that run again, and jobs of an array


def test_a_job_that_slurm_starts_again_adds_a_result_and_replaces_none(tmp_path):
    name = f"again-{tmp_path.name}"
    layout = ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1", f"--job-name={name}"]
    options = ["--strategy", "ddp", *WORKLOAD]
    job_id = submit(*layout, "launchers/slurm/native.sbatch", *options, folder=tmp_path)
    assert wait_for(job_id).state == "COMPLETED"
    assert cluster_run("scontrol", "requeue", job_id).returncode == 0
    job = wait_for(job_id)
    assert job.state == "COMPLETED", job.output
    assert job.output.count("result written to") == 2
    for output in (ROOT / f"results/native-{job_id}.json", ROOT / f"results/native-{job_id}-restart1.json"):
        assert f"result written to {output.relative_to(ROOT)}" in job.output
        assert read_result(output).environment.slurm.job_id == job_id
        output.unlink()


def test_jobs_of_an_array_on_one_node_at_once_have_a_result_each(tmp_path, under_torchrun):
    output = f"{tmp_path}/result-$SLURM_ARRAY_TASK_ID.json"
    step = shlex.join(["srun", *half("native", "--strategy", "ddp", *WORKLOAD)])
    script = batch_script(f'{step} --output "{output}"')
    layout = ["--array=7,9", "--nodelist=node1", "--ntasks-per-node=2"]
    first = submit(*layout, folder=tmp_path, script=script)
    jobs = [wait_for(f"{first}_{index}") for index in (7, 9)]
    assert [job.state for job in jobs] == ["COMPLETED", "COMPLETED"], [job.output for job in jobs]
    results = [read_result(tmp_path / f"result-{index}.json") for index in (7, 9)]
    assert {fingerprint(result) for result in results} == {fingerprint(under_torchrun("ddp", 2))}
    assert len({result.environment.slurm.job_id for result in results}) == 2
