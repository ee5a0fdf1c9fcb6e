import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RunError
from common.launch import LIGHTNING_WORKER, SRUN, TORCHRUN, Launch, detect_launch
from common.options import RunConfig
from common.slurm import describe_job, first_host, tasks_per_node

TORCHRUN_ENVIRON = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "GROUP_RANK": "1",
}
# As a real Slurm 22.05 sets them.
SRUN_ONE_NODE = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "node1",
}
SRUN_TWO_NODES = SRUN_ONE_NODE | {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[1-2]",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
LIGHTNING_ENVIRON = {
    "LOCAL_RANK": "1",
    "NODE_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "41234",
}


def detect(environ: dict[str, str], implementation: str = "native", **options) -> Launch:
    return detect_launch(RunConfig(implementation, "ddp", **options), environ)


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


both_sides = pytest.mark.parametrize("implementation", ["native", "lightning"])


# torchrun


@both_sides
def test_torchrun_says_everything(implementation):
    assert detect(TORCHRUN_ENVIRON, implementation) == Launch("torchrun", 3, 1, 4, 2, "node1", 29400)


def test_nodes_are_counted_from_the_ranks_on_each():
    assert detect(TORCHRUN_ENVIRON).num_nodes == 2


@pytest.mark.parametrize("name", TORCHRUN)
def test_one_missing_variable_of_torchrun_is_named(name):
    with pytest.raises(RunError, match=f"torchrun's environment is half set: .* without {name};"):
        detect(without(TORCHRUN_ENVIRON, name))


def test_a_half_set_environment_is_answered_with_the_command_that_clears_it():
    with pytest.raises(RunError, match=r"unset RANK WORLD_SIZE$"):
        detect({"RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    "change",
    [{"RANK": "4"}, {"LOCAL_RANK": "2"}, {"LOCAL_WORLD_SIZE": "5"}, {"WORLD_SIZE": "0"}],
    ids=lambda change: "=".join(*change.items()),
)
def test_contradictory_numbers_are_shown_together(change):
    environ = TORCHRUN_ENVIRON | change
    numbers = " ".join(f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    with pytest.raises(RunError, match=f"contradicts itself: {numbers}"):
        detect(environ)


@pytest.mark.parametrize("value", ["", "two", "1.5", "-1"])
@pytest.mark.parametrize("name", [name for name in TORCHRUN if name != "MASTER_ADDR"])
def test_a_variable_of_torchrun_that_is_no_number_is_named_with_its_value(name, value):
    with pytest.raises(RunError, match=f"{name}='{value}' in the environment is not a whole number"):
        detect(TORCHRUN_ENVIRON | {name: value})


def test_a_rest_of_ranks_on_the_last_node_is_refused():
    with pytest.raises(RunError, match="uneven layout: 3 ranks, 2 of them on this node"):
        detect(TORCHRUN_ENVIRON | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3"})


def test_torchrun_inside_srun_wins():
    agents = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "GROUP_WORLD_SIZE": "2"}
    assert detect(SRUN_TWO_NODES | TORCHRUN_ENVIRON | agents).launcher == "torchrun"


# srun


@both_sides
def test_srun_on_one_node_says_everything(implementation):
    launch = detect(SRUN_ONE_NODE, implementation)
    assert (launch.launcher, launch.rank, launch.local_rank, launch.world_size, launch.local_world_size) == (
        "srun",
        1,
        1,
        2,
        2,
    )


def test_srun_on_two_nodes_counts_ranks_on_each():
    launch = detect(SRUN_TWO_NODES)
    assert (launch.rank, launch.world_size, launch.local_world_size, launch.num_nodes) == (3, 4, 2, 2)


def test_ranks_of_srun_meet_at_the_first_host_of_the_step():
    assert detect(SRUN_TWO_NODES).master_addr == "node1"


def test_the_hosts_of_the_step_win_over_those_of_the_job():
    assert detect(SRUN_ONE_NODE | {"SLURM_STEP_NODELIST": "node2", "SLURM_JOB_NODELIST": "node[1-2]"}).master_addr == (
        "node2"
    )


def test_a_stated_meeting_point_wins_over_slurms():
    launch = detect(SRUN_TWO_NODES | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"})
    assert (launch.master_addr, launch.master_port) == ("10.0.0.1", 5000)


def test_a_stated_port_of_srun_that_is_no_number_is_named():
    with pytest.raises(RunError, match="MASTER_PORT='x'"):
        detect(SRUN_ONE_NODE | {"MASTER_PORT": "x"})


def test_all_ranks_of_a_step_choose_the_same_port():
    ports = {detect(SRUN_TWO_NODES | {"SLURM_PROCID": str(rank)}).master_port for rank in range(4)}
    assert len(ports) == 1


@given(st.integers(1, 10**8), st.integers(0, 100), st.integers(0, 100))
def test_another_step_or_the_next_job_meets_at_another_port(job, step, other):
    first = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
    same_job = first | {"SLURM_STEP_ID": str(other)}
    next_job = {"SLURM_JOB_ID": str(job + 1), "SLURM_STEP_ID": str(other)}
    port = detect(SRUN_ONE_NODE | first).master_port
    assert (port == detect(SRUN_ONE_NODE | same_job).master_port) == (step == other)
    assert port != detect(SRUN_ONE_NODE | next_job).master_port


def test_an_odd_job_id_has_a_port_too():
    assert detect(SRUN_ONE_NODE | {"SLURM_JOB_ID": "7_3"}).master_port != detect(SRUN_ONE_NODE).master_port


@given(st.integers(1, 10**7), st.integers(0, 1000))
def test_the_port_is_neither_privileged_nor_ephemeral(job, step):
    assert 1024 < detect(SRUN_ONE_NODE | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).master_port < 32768


@pytest.mark.parametrize("name", [name for name in SRUN if name != "SLURM_PROCID"])
def test_one_missing_variable_of_srun_is_named(name):
    with pytest.raises(RunError, match=f"srun's environment is half set: .* without {name};"):
        detect(without(SRUN_ONE_NODE, name))


def test_a_missing_list_of_hosts_is_named():
    with pytest.raises(RunError, match="SLURM_STEP_NODELIST is missing"):
        detect(without(SRUN_ONE_NODE, "SLURM_STEP_NODELIST"))


def test_tasks_that_are_uneven_over_nodes_are_shown():
    with pytest.raises(RunError, match=r"uneven layout: SLURM_NTASKS=4 SLURM_NNODES=2 tasks on each node \[3, 1\]"):
        detect(SRUN_TWO_NODES | {"SLURM_STEP_TASKS_PER_NODE": "3,1"})


@both_sides
def test_ntasks_per_node_need_not_be_given_since_the_layout_says_it(implementation):
    assert detect(without(SRUN_ONE_NODE, "SLURM_NTASKS_PER_NODE"), implementation).local_world_size == 2


@both_sides
def test_a_small_step_of_a_larger_job_goes_by_its_own_layout(implementation):
    alone = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    launch = detect(SRUN_ONE_NODE | alone | {"SLURM_NTASKS_PER_NODE": "2"}, implementation)
    assert (launch.world_size, launch.local_world_size) == (1, 1)


@both_sides
@pytest.mark.parametrize("name", ["bash", "interactive"])
def test_the_name_of_the_job_does_not_matter(name, implementation):
    assert detect(SRUN_ONE_NODE | {"SLURM_JOB_NAME": name}, implementation).world_size == 2


def test_a_number_of_tasks_that_is_not_the_steps_is_shown_with_both():
    with pytest.raises(RunError, match=r"SLURM_NTASKS=4 is the job's, but this step has 2 tasks"):
        detect(SRUN_TWO_NODES | {"SLURM_STEP_NUM_TASKS": "2"})


@both_sides
def test_tasks_that_see_one_gpu_each_are_told_to_see_all(implementation):
    with pytest.raises(RunError, match=r"CUDA_VISIBLE_DEVICES=1.*--gpus-per-node=2 \(or --gres=gpu:2\)"):
        detect(SRUN_ONE_NODE | {"CUDA_VISIBLE_DEVICES": "1"}, implementation)


@pytest.mark.parametrize(
    ("visible", "options"), [("0,1", {}), ("", {}), ("1", {"device": "cpu"})], ids=["all", "none", "unused"]
)
def test_other_views_of_gpus_are_accepted(visible, options):
    assert detect(SRUN_ONE_NODE | {"CUDA_VISIBLE_DEVICES": visible}, **options).world_size == 2


@both_sides
@pytest.mark.parametrize(
    ("tasks", "joined", "words"),
    [
        ("2(x2)", "2", "srun started torchrun in 4 tasks .* joins 2 of them"),
        ("1(x2)", "1", "srun started torchrun in 2 tasks .* joins 1 of them"),
        ("2", "2", "srun started torchrun in 2 tasks .* joins 2 of them"),
    ],
    ids=["two agents on each of two nodes", "standalone on two nodes", "two agents on one node"],
)
def test_torchrun_in_more_tasks_than_one_a_node_is_refused(implementation, tasks, joined, words):
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": tasks, "GROUP_WORLD_SIZE": joined}
    with pytest.raises(RunError, match=f"{words}.*--ntasks-per-node=1 torchrun --nnodes"):
        detect(TORCHRUN_ENVIRON | step, implementation)


def test_torchrun_once_on_each_node_of_a_step_is_accepted():
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "GROUP_WORLD_SIZE": "2"}
    assert detect(TORCHRUN_ENVIRON | step).world_size == 4


def test_torchrun_at_a_terminal_that_srun_opened_is_accepted():
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_PTY_PORT": "1", "GROUP_WORLD_SIZE": "1"}
    assert detect(TORCHRUN_ENVIRON | step).world_size == 4


@both_sides
def test_a_batch_script_that_forgot_srun_is_told(implementation):
    with pytest.raises(RunError, match="one process inside a Slurm allocation of 4 tasks; start with: srun python"):
        detect(BATCH_SCRIPT, implementation)


def test_a_batch_script_of_one_task_needs_no_srun():
    assert detect(BATCH_SCRIPT | {"SLURM_NTASKS": "1"}).launcher == "none"


@both_sides
def test_a_process_without_srun_on_the_first_of_two_nodes_is_told(implementation):
    environ = without(BATCH_SCRIPT, "SLURM_NTASKS") | {"SLURM_JOB_NUM_NODES": "2"}
    with pytest.raises(RunError, match="one process inside a Slurm allocation of 2 nodes; start with: srun python"):
        detect(environ, implementation)


@both_sides
def test_the_shell_of_an_interactive_step_is_no_rank(implementation):
    shell = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1"}
    with pytest.raises(RunError, match="one process inside a Slurm allocation of 4 tasks"):
        detect(BATCH_SCRIPT | shell, implementation)


# Lightning's own workers


def test_a_worker_that_lightning_started_knows_its_rank():
    assert detect(LIGHTNING_ENVIRON, "lightning", devices=2) == Launch("lightning", 1, 1, 2, 2, "127.0.0.1", 41234)


def test_a_worker_on_a_second_node_counts_the_ranks_before_it():
    environ = LIGHTNING_ENVIRON | {"NODE_RANK": "1", "WORLD_SIZE": "4"}
    assert detect(environ, "lightning", devices=2, num_nodes=2).rank == 3


def test_left_over_variables_of_lightning_are_answered_with_the_command_that_clears_them():
    with pytest.raises(
        RunError, match=f"stale variables: .* do not fit --devices 1 .*unset {' '.join(LIGHTNING_WORKER)}"
    ):
        detect(LIGHTNING_ENVIRON, "lightning")


def test_native_is_not_misled_by_variables_of_lightning():
    with pytest.raises(RunError, match="half set: LOCAL_RANK, WORLD_SIZE, NODE_RANK without RANK"):
        detect(LIGHTNING_ENVIRON)


def test_lightning_starts_as_many_workers_as_it_is_told():
    assert detect({}, "lightning", devices=2) == Launch("lightning", 0, 0, 2, 2, "127.0.0.1", 0)


def test_lightning_alone_is_a_world_of_one():
    assert detect({}, "lightning").world_size == 1


# Nobody


def test_native_alone_is_a_world_of_one():
    assert detect({}) == Launch("none", 0, 0, 1, 1, "127.0.0.1", 0)


def test_a_meeting_point_alone_starts_no_world():
    assert detect({"MASTER_ADDR": "node1", "MASTER_PORT": "29400"}).launcher == "none"


def test_native_told_of_two_devices_is_answered_with_torchrun():
    with pytest.raises(
        RunError, match="there are 1 x 1 = 1; start with: torchrun --standalone --nproc-per-node=2 -m native"
    ):
        detect({}, devices=2)


@both_sides
def test_several_nodes_without_a_launcher_are_answered_with_torchrun(implementation):
    with pytest.raises(RunError, match="torchrun --nnodes=2 --nproc-per-node=4"):
        detect({}, implementation, devices=4, num_nodes=2)


@both_sides
@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
def test_a_stale_variable_alone_is_answered_with_the_command_that_clears_it(implementation, name):
    with pytest.raises(RunError, match=f"half set: {name} without .*unset {name}$"):
        detect({name: "2"}, implementation)


# Variables that mislead

MISLEADING = {
    "nothing": {},
    "SLURM_NTASKS alone": {"SLURM_NTASKS": "4"},
    "an IDE in a job of one task": {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "vscode", "SLURM_NTASKS": "1"},
    "an IDE in a job of four tasks": {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "vscode", "SLURM_NTASKS": "4"},
    "a node list that names no host": SRUN_ONE_NODE | {"SLURM_STEP_NODELIST": "["},
    "a stale WORLD_SIZE": {"WORLD_SIZE": "8"},
    "a stale LOCAL_RANK and WORLD_SIZE": {"LOCAL_RANK": "1", "WORLD_SIZE": "8"},
    "half of torchrun": without(TORCHRUN_ENVIRON, "LOCAL_RANK", "MASTER_ADDR"),
    "one GPU for each task": SRUN_ONE_NODE | {"CUDA_VISIBLE_DEVICES": "MIG-1"},
}


@pytest.mark.parametrize("environ", MISLEADING.values(), ids=MISLEADING)
def test_both_halves_give_the_same_verdict_in_the_same_words(environ):
    def verdict(implementation: str) -> str:
        module = RunConfig(implementation, "ddp").module
        try:
            launch = detect(environ, implementation)
        except RunError as error:
            return str(error).replace(module, "HALF")
        return f"rank {launch.rank} of {launch.world_size}"

    assert verdict("native") == verdict("lightning")


# What the options claim


@both_sides
@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ({"devices": 4}, "--devices 4 --num-nodes 2 make 8 ranks"),
        ({"num_nodes": 1}, "--devices 2 --num-nodes 1 make 2 ranks"),
    ],
)
def test_a_claim_that_the_launcher_contradicts_is_shown_with_all_numbers(implementation, options, claim):
    with pytest.raises(RunError, match=f"{claim}, but torchrun started 2 x 2 = 4; use --devices 2 --num-nodes 2"):
        detect(TORCHRUN_ENVIRON, implementation, **options)


def test_a_claim_that_fits_the_launcher_is_accepted():
    assert detect(TORCHRUN_ENVIRON, devices=2, num_nodes=2).world_size == 4


def test_a_global_batch_that_the_world_does_not_divide_is_refused():
    with pytest.raises(RunError, match="--global-batch-size 6 does not divide over 4 ranks"):
        detect(TORCHRUN_ENVIRON, global_batch_size=6)


# Slurm's notation


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 5)), min_size=1))
def test_compact_counts_expand_to_one_a_node(groups):
    text = ",".join(f"{tasks}(x{nodes})" if nodes > 1 else str(tasks) for tasks, nodes in groups)
    assert tasks_per_node(text) == [tasks for tasks, nodes in groups for _ in range(nodes)]


@pytest.mark.parametrize("text", ["", "2(x2", "two", "2,", "2x2"])
def test_counts_that_slurm_would_not_write_are_shown(text):
    with pytest.raises(RunError, match="SLURM_TASKS_PER_NODE"):
        tasks_per_node(text)


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[1-2]", "node1"),
        ("gpu[07-09,12],login", "gpu07"),
        ("gpu[12,07-09]", "gpu12"),
        ("gpu[3]", "gpu3"),
        ("rack[1-2]node[3-4]", "rack1node3"),
        ("gpu[01-02].cluster.example", "gpu01.cluster.example"),
        ("gpu-a-01,gpu-b-02", "gpu-a-01"),
    ],
)
def test_first_host_of_a_node_list(node_list, host):
    assert first_host(node_list) == host


def test_a_node_list_without_a_host_is_shown():
    with pytest.raises(RunError, match="'' of Slurm names no host"):
        first_host("")


def test_outside_slurm_there_is_no_job():
    assert describe_job({}) is None


def test_a_step_is_described_by_its_own_nodes_and_layout():
    environ = SRUN_TWO_NODES | {"SLURM_JOB_NODELIST": "node[1-4]", "SLURM_TASKS_PER_NODE": "2(x4)"}
    assert describe_job(environ) == {
        "job_id": "7",
        "step_id": "0",
        "node_list": "node[1-2]",
        "tasks_per_node": "2(x2)",
    }


def test_a_process_outside_any_step_is_described_by_its_job():
    job = describe_job(BATCH_SCRIPT | {"SLURM_TASKS_PER_NODE": "2(x2)"})
    assert job == {"job_id": "7", "step_id": None, "node_list": "node[1-2]", "tasks_per_node": "2(x2)"}
