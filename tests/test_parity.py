"""The parity matrix: real torchrun, real ranks, and what must be equal to the last bit."""

import pytest

from common.report import summary
from common.result import Result
from tests.runs import Cell

pytestmark = pytest.mark.slow

IMPLEMENTATIONS = ("native", "lightning")
STRATEGIES = ("ddp", "fsdp2")
WORLD_SIZES = (1, 2, 3)

FP32 = [Cell(i, s, world_size) for world_size in WORLD_SIZES for s in STRATEGIES for i in IMPLEMENTATIONS]
BF16 = [Cell(i, s, precision="bf16") for s in STRATEGIES for i in IMPLEMENTATIONS]
ROOT_WRAP = [Cell(i, "fsdp2", fsdp_wrap="root") for i in IMPLEMENTATIONS]
OWN_WORKERS = [Cell("lightning", strategy, launcher="none") for strategy in STRATEGIES]
DETERMINISTIC = [Cell(i, "ddp", 1, launcher="none", variant="deterministic") for i in IMPLEMENTATIONS]
ALONE = [Cell("native", "ddp", 1, launcher="none")]
EVERYTHING = [*FP32, *BF16, *ROOT_WRAP, *OWN_WORKERS, *ALONE]

each_cell = pytest.mark.parametrize("cell", EVERYTHING, ids=str)
each_fp32_cell = pytest.mark.parametrize("cell", [cell for cell in EVERYTHING if cell.precision == "fp32"], ids=str)
# Cells of the native side; their twins differ in the implementation alone.
each_pair = pytest.mark.parametrize(
    "cell", [cell for cell in [*FP32, *BF16, *ROOT_WRAP] if cell.implementation == "native"], ids=str
)


@pytest.fixture
def result(runs, cell) -> Result:
    return runs.result(cell)


@pytest.fixture
def reference(runs) -> Result:
    """The plainest cell, to which all others are compared."""
    return runs.result(Cell("native", "ddp", 1))


@pytest.fixture
def twin(runs, cell) -> Result:
    """The same cell by Lightning."""
    return runs.result(Cell("lightning", cell.strategy, cell.world_size, cell.precision, cell.fsdp_wrap))


# The same start everywhere


@each_cell
def test_every_run_starts_from_the_same_weights(result, reference):
    assert result.workload.initial_weights_sha256 == reference.workload.initial_weights_sha256


@each_cell
def test_every_run_trains_on_the_same_batch(result, reference):
    assert result.workload.batch_sha256 == reference.workload.batch_sha256


@each_fp32_cell
def test_the_first_loss_agrees_everywhere(result, reference):
    assert result.correctness.losses[0] == pytest.approx(reference.correctness.losses[0], rel=1e-5)


@each_fp32_cell
def test_the_first_gradient_norm_agrees_everywhere(result, reference):
    assert result.correctness.step1_gradient_norm == pytest.approx(reference.correctness.step1_gradient_norm, rel=1e-5)


# Native and Lightning, to the last bit


@each_pair
def test_both_sides_have_every_loss_equal_to_the_last_bit(result, twin):
    assert result.correctness.losses == twin.correctness.losses


@each_pair
def test_both_sides_have_checksums_equal_to_the_last_bit(result, twin):
    native, lightning = result.correctness, twin.correctness
    assert (native.parameter_checksum_sum, native.parameter_checksum_squared_sum) == (
        lightning.parameter_checksum_sum,
        lightning.parameter_checksum_squared_sum,
    )


@each_pair
def test_both_sides_end_with_the_same_weights(result, twin):
    assert result.correctness.final_weights_sha256 == twin.correctness.final_weights_sha256


@each_pair
def test_both_sides_have_the_first_gradient_norm_equal_to_the_last_bit(result, twin):
    assert result.correctness.step1_gradient_norm == twin.correctness.step1_gradient_norm


@each_pair
def test_both_sides_train_the_same_workload(result, twin):
    assert result.workload == twin.workload


@each_pair
def test_both_sides_run_in_the_same_environment(result, twin):
    own = {"started_at", "command", "lightning_version"}
    assert result.environment.model_dump(exclude=own) == twin.environment.model_dump(exclude=own)


# What each strategy promises


@each_cell
def test_training_changes_every_shard(result):
    assert result.correctness.every_shard_changed


@each_cell
def test_training_lowers_the_loss(result):
    assert result.correctness.final_loss_mean < result.correctness.losses[0]


@pytest.mark.parametrize("cell", [cell for cell in EVERYTHING if cell.strategy == "ddp"], ids=str)
class TestDdp:
    def test_stores_all_parameters_on_every_rank(self, result):
        assert result.parameters.local_parameter_fraction == 1

    def test_keeps_its_replicas_equal(self, result):
        assert result.correctness.parameters_synchronized is True

    def test_has_no_wrap(self, result):
        assert (result.workload.fsdp_wrap, result.workload.reshard_after_forward) == (None, None)


@pytest.mark.parametrize("cell", [cell for cell in EVERYTHING if cell.strategy == "fsdp2"], ids=str)
class TestFsdp2:
    def test_stores_about_its_share_of_the_parameters(self, result, cell):
        # Rows are not cut: at three ranks the largest share is a little more than a third.
        assert result.parameters.local_parameter_fraction == pytest.approx(1 / cell.world_size, rel=0.02)

    def test_has_no_replicas_to_compare(self, result):
        assert result.correctness.parameters_synchronized is None

    def test_reshards_as_its_wrap_says(self, result, cell):
        expected = {"block": {"block": True, "root": False}, "root": {"root": False}}
        assert result.workload.reshard_after_forward == expected[cell.fsdp_wrap]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_both_wraps_compute_the_same_to_the_last_bit(runs, implementation):
    block, root = (runs.result(Cell(implementation, "fsdp2", fsdp_wrap=wrap)) for wrap in ("block", "root"))
    assert block.correctness == root.correctness


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bf16_computes_something_else_than_fp32(runs, strategy):
    fp32, bf16 = (runs.result(Cell("native", strategy, precision=precision)) for precision in ("fp32", "bf16"))
    assert fp32.correctness.losses != bf16.correctness.losses


# What is measured, and what is said


@each_cell
def test_there_is_one_lap_a_timed_step(result):
    assert len(result.timing.laps_milliseconds) == result.workload.steps == 4


@each_cell
def test_there_is_one_loss_a_step(result):
    assert len(result.correctness.losses) == 7


@each_cell
def test_laps_add_up_to_the_window_of_rank_zero(result):
    # elapsed_seconds is the slowest rank's.
    assert 0 < sum(result.timing.laps_milliseconds) <= result.timing.elapsed_seconds * 1e3 * 1.001


@each_cell
def test_a_cpu_has_no_counters_of_cuda(result):
    everywhere = {"parameters_gib", "gradients_gib", "optimizer_state_gib", "buffers_gib"}
    everywhere |= {"process_peak_resident_gib", "process_peak_resident_gib_min"}
    memory = result.memory.model_dump()
    assert {name for name, value in memory.items() if value is not None} == everywhere


@each_cell
def test_a_clean_run_says_nothing_on_stderr(runs, cell):
    assert runs(cell).process.stderr == ""


@each_cell
def test_a_clean_run_says_its_summary_once(runs, cell, result):
    finished = runs(cell)
    assert finished.process.stdout == f"{summary(result)}\n  result written to {finished.output}\n"


@each_cell
def test_a_run_says_who_launched_it(result, cell):
    expected = {"torchrun": "torchrun", "none": "lightning" if cell.implementation == "lightning" else "none"}
    assert result.environment.launcher == expected[cell.launcher]


@pytest.mark.parametrize("cell", OWN_WORKERS, ids=str)
def test_workers_that_lightning_starts_compute_the_same_as_those_of_torchrun(runs, cell, result):
    torchrun = runs.result(Cell("lightning", cell.strategy, cell.world_size))
    assert (result.workload, result.correctness) == (torchrun.workload, torchrun.correctness)


def test_native_without_a_launcher_computes_the_same_as_one_rank_of_torchrun(runs):
    alone, torchrun = runs.result(ALONE[0]), runs.result(Cell("native", "ddp", 1))
    assert (alone.workload, alone.correctness) == (torchrun.workload, torchrun.correctness)


# Deterministic kernels


@pytest.mark.parametrize("cell", DETERMINISTIC, ids=str)
def test_deterministic_kernels_are_in_force_where_they_were_asked_for(result, reference):
    environment = result.environment
    assert (environment.deterministic_algorithms, reference.environment.deterministic_algorithms) == (True, False)
    assert result.choices.variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("cell", DETERMINISTIC, ids=str)
def test_deterministic_kernels_compute_what_a_cpu_computes_anyway(result, reference):
    assert result.correctness.losses == reference.correctness.losses
