"""What misleads other programs under Slurm trains here what torchrun trains, and no result is ever replaced."""

import shlex

from common.options import IMPLEMENTATION_MODULES
from common.result import read_result
from tests.marks import mostly
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

lightning_above_all = mostly("implementation", "lightning", ["native"])


@lightning_above_all
def test_srun_with_a_number_of_tasks_and_none_a_node(implementation, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", "ddp", *WORKLOAD, "--output", str(output))
    result = completed(cluster_run("srun", "--nodes=1", "--ntasks=2", *command), output)
    assert fingerprint(result) == fingerprint(under_torchrun("ddp", 2))
    assert result.environment.launcher == "srun"
    assert not result.environment.nodes_share_hardware


@lightning_above_all
def test_a_job_that_is_named_bash_is_one_world(implementation, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", "fsdp2", *WORKLOAD, "--output", str(output))
    process = cluster_run(*srun(1, 2), "bash", "-c", shlex.join(command))
    assert fingerprint(completed(process, output)) == fingerprint(under_torchrun("fsdp2", 2))
    assert process.stdout.count("result written to") == 1


@lightning_above_all
def test_an_interactive_allocation_of_two_nodes_is_one_world(implementation, tmp_path, under_torchrun):
    output = tmp_path / "result.json"
    command = half(implementation, "--strategy", "ddp", *WORKLOAD, "--output", str(output))
    process = cluster_run("salloc", "--nodes=2", "--ntasks-per-node=1", "srun", *command)
    assert fingerprint(completed(process, output)) == fingerprint(under_torchrun("ddp", 2))
    assert process.stdout.count("result written to") == 1


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


@lightning_above_all
def test_a_step_of_one_task_in_a_larger_job_is_a_world_of_one(implementation, tmp_path):
    output = tmp_path / "result.json"
    step = ["srun", "--nodes=1", "--ntasks=1", *half(implementation, "--strategy", "ddp", *WORKLOAD)]
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
