"""The result of one run: its schema, and strict JSON out and in.

Needs neither torch nor lightning, so that results can be read anywhere. ``python -m common.result`` prints the JSON
Schema that is kept in ``docs/result.schema.json``.
"""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.atomic import write_whole
from common.bounds import MAX_STRING, Count, Measured, Names, NonNegative, Phase, Place, Positive, Sha256
from common.foreign import ResultFileError, first_error, obstacle, read_content

SCHEMA_VERSION = "1.0"


class Section(BaseModel):
    """Base of all parts: unknown keys, wrong types and numbers that JSON does not know are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        str_max_length=MAX_STRING,
        defer_build=True,
        # Only the JSON Schema shows them, and pydantic needs 20 ms to read them from this file.
        use_attribute_docstrings=__name__ == "__main__",
    )


class ModelDimensions(Section):
    """Of the preset; see ``common/presets.py``."""

    blocks: Count
    hidden_size: Count
    heads: Count
    sequence_length: Count
    vocabulary_size: Count
    classes: Count


class Optimizer(Section):
    """Read back from the optimizer that trained, not echoed from the options."""

    name: str
    learning_rate: NonNegative
    beta1: NonNegative
    beta2: NonNegative
    epsilon: NonNegative
    weight_decay: NonNegative
    amsgrad: bool
    foreach: bool | None
    fused: bool | None


class Workload(Section):
    """What must be equal for two runs to be comparable. What a run that failed never came to know is null."""

    strategy: Literal["ddp", "fsdp2"]
    fsdp_wrap: Literal["block", "root"] | None
    """Null for ddp."""
    preset: str
    model: ModelDimensions
    device_type: Literal["cpu", "cuda"]
    world_size: Positive
    batch_size_per_device: Positive
    global_batch_size: Positive
    precision_resolved: Literal["fp32", "bf16"]
    seed: Count
    warmup_steps: Positive
    steps: Positive
    memory_snapshot: bool
    """Whether memory was recorded during two warm-up steps."""
    variants: list[Literal["zero-grad after-forward", "autocast-cache off", "sigterm-broadcast off"]]
    """What was switched away from the side's own way, by the names in ``common/variants.py``; usually nothing. It
    changes no number that is computed, so runs are paired across it, as variants."""
    global_parameter_count: Count | None
    reshard_after_forward: dict[str, bool] | None
    """Read back from the sharded modules, by kind of unit (block, root); null for ddp."""
    optimizer: Optimizer | None
    initial_weights_sha256: Sha256 | None
    """Of the full weights before the first step."""
    batch_sha256: Sha256 | None
    """Of the global batch, from what the devices held."""


class DdpFlags(Section):
    """Read back from the DistributedDataParallel object."""

    bucket_cap_mib: NonNegative
    gradient_as_bucket_view: bool
    broadcast_buffers: bool
    find_unused_parameters: bool
    static_graph: bool


class Choices(Section):
    """What a side or its framework chose on its own: no part of the workload, shown as a finding where it differs."""

    zero_grad: Literal["before forward", "after forward"] | None
    """Observed: whether the first step's gradients were still there when the second forward began; null if the second
    step was already timed."""
    autocast_cache: bool | None
    """Whether autocast kept the weights that it had cast, observed in the first forward; null without autocast."""
    ddp: DdpFlags | None
    """Null for fsdp2."""
    allocator_streams: Count | None
    """CUDA streams that the allocator keeps memory apart for, at the end of the window; null on a CPU."""
    variables: dict[str, str]
    """Environment variables that steer a run and were set in its process, by a library or a half: not by its user."""


class Slurm(Section):
    """The job and step of a run inside Slurm, in Slurm's own notation."""

    job_id: str
    step_id: str | None
    """Null where torchrun was started by the batch script itself, without srun."""
    node_list: str | None
    """Of the step, else of the job: node[1-2]."""
    tasks_per_node: str | None
    """Likewise: 2(x2)."""


class Environment(Section):
    """What was in force while the run ran, read back at run time."""

    started_at: str
    """ISO 8601, UTC."""
    command: Names
    launcher: Literal["torchrun", "srun", "lightning", "none"]
    num_nodes: Positive
    local_world_size: Positive
    hosts: Names
    """Distinct host names in the order of ranks."""
    nodes_share_hardware: bool | None
    """Whether several nodes of the run were one machine, as in a simulated cluster: its times mean nothing. Null for a
    run that failed before its ranks had met."""
    slurm: Slurm | None
    """Null outside Slurm."""
    process_group_backend: str
    timeout_seconds: Positive
    """How long ranks waited for one another at most."""
    precision_requested: Literal["auto", "fp32", "bf16"]
    precision_reason: str
    device_name: str
    cpu_model: str
    cpu_count: Count
    """Cores that rank zero may use."""
    cpu_threads: Count
    """Intra-op threads of rank zero."""
    float32_matmul_precision: str
    cudnn_allow_tf32: bool
    cudnn_benchmark: bool
    deterministic_algorithms: bool
    platform: str
    python_version: str
    torch_version: str
    lightning_version: str | None
    """Null for the native implementation."""
    cuda_version: str | None
    nccl_version: str | None
    driver_version: str | None
    """Of the NVIDIA driver; null on a CPU, or where nvidia-smi does not tell."""
    power_limit_watts: NonNegative | None
    """Of rank zero's GPU; null likewise."""
    variables: dict[str, str]
    """Environment variables that steer CUDA, NCCL, gloo, OpenMP, MKL or PyTorch, as rank zero began with them."""


class Timing(Section):
    """The window: the timed steps after the warm-up."""

    laps_milliseconds: Annotated[list[Measured], Field(min_length=1, fail_fast=True)]
    """Every timed step of rank zero, in order, from the end of one step to the end of the next."""
    laps_over_window: Measured
    """Sum of the laps over rank zero's window on the host's clock: 1 where both tell the same."""
    elapsed_seconds: Measured
    """The window of the slowest rank, on the host's clock between two device synchronisations."""
    milliseconds_per_step: Measured
    """elapsed_seconds over the number of steps."""
    milliseconds_per_step_median: Measured
    """Median of rank zero's laps."""
    milliseconds_per_step_p10: Measured
    milliseconds_per_step_p90: Measured
    milliseconds_per_step_min: Measured
    milliseconds_per_step_max: Measured
    milliseconds_per_step_iqr: Measured | None
    """Inter-quartile range of rank zero's laps; null for a single step."""
    milliseconds_per_step_median_slowest_rank: Measured
    """Largest over ranks of the median of the laps."""
    samples_per_second: Measured
    tokens_per_second: Measured


class Memory(Section):
    """In GiB (2^30 bytes). Fields of the CUDA allocator and device are null on a CPU.

    The breakdown is that of the rank with the largest peak. It counts the local storage of live tensors at the end of
    the window; with activations_and_temporary_gib it adds up to peak_allocated_gib.
    """

    peak_allocated_gib: Measured | None
    """Peak of the window by PyTorch's CUDA allocator, largest over ranks."""
    peak_allocated_gib_min: Measured | None
    """The same, smallest over ranks."""
    peak_reserved_gib: Measured | None
    """Peak of what that allocator held from the device during the window, largest over ranks."""
    peak_reserved_gib_min: Measured | None
    setup_peak_allocated_gib: Measured | None
    """Peak before the window, warm-up included, largest over ranks."""
    setup_peak_allocated_gib_min: Measured | None
    setup_peak_reserved_gib: Measured | None
    """Peak of what the allocator held from the device before the window, largest over ranks."""
    setup_peak_reserved_gib_min: Measured | None
    device_used_gib: Measured | None
    """Memory in use on the device at the end of the window, whoever uses it: the CUDA context and NCCL as well."""
    device_used_gib_min: Measured | None
    end_allocated_gib: Measured | None
    """Allocated at the end of the window, on the rank of the breakdown."""
    allocation_retries: Count | None
    """How often in the window the allocator had to empty its cache and try again, over all ranks."""
    parameters_gib: Measured
    """Breakdown: the parameters, all of them for ddp, the rank's shards for fsdp2."""
    gradients_gib: Measured
    """Breakdown: their gradients, where the last step left them."""
    optimizer_state_gib: Measured
    """Breakdown: AdamW's two moments."""
    buffers_gib: Measured
    """Breakdown: the model's buffers."""
    activations_and_temporary_gib: Annotated[float, Field(ge=-1e15, le=1e15)] | None
    """The rest of the peak."""
    process_peak_resident_gib: Measured
    """Peak resident set of the process in host memory since its start, largest over ranks."""
    process_peak_resident_gib_min: Measured


class Parameters(Section):
    """What a rank stores of the model. Gradients, optimizer state and activations are not in it."""

    local_parameter_elements: Count
    """Elements stored by the rank that stores most."""
    local_parameter_elements_min: Count
    """Elements stored by the rank that stores least."""
    local_parameter_fraction: Measured
    """local_parameter_elements over global_parameter_count: 1 for ddp, about 1 / world_size for fsdp2."""


class Correctness(Section):
    """Evidence of what was computed, for comparison to the last bit."""

    losses: Annotated[list[float], Field(min_length=1, fail_fast=True)]
    """Loss of every step, warm-up included: the mean over ranks, in float64."""
    final_loss_mean: float
    """The last of them."""
    step1_gradient_norm: NonNegative
    """2-norm of the averaged gradients of the first step, over all parameters, accumulated in float64."""
    parameter_checksum_sum: float
    """Sum over all parameters after the last step, in float64."""
    parameter_checksum_squared_sum: NonNegative
    """Sum of their squares."""
    parameters_synchronized: bool | None
    """Whether all ddp replicas end with equal checksums; null for fsdp2, whose ranks hold different shards."""
    every_shard_changed: bool
    """Whether training changed every rank's part of every parameter."""
    final_weights_sha256: Sha256
    """Of the full weights after the last step."""


class Evidence(Section):
    """One way in which a watched call came about on rank zero."""

    phase: Phase
    """``step`` is the first; ``window`` is just before it opens; ``teardown`` begins after the last step."""
    call: str
    """What was called; ``common/trace.py`` has the list."""
    count: Positive
    frames: Annotated[list[Place], Field(min_length=1, max_length=100, fail_fast=True)]
    """File, line and function: the innermost frame of this project or of lightning, then those that led there."""


class StepCounts(Section):
    """Operations of one whole warm-up step on rank zero."""

    step: Positive | None
    """Which step, counted from 1; DDP settles its buckets during the first two."""
    collectives_of_strategy: dict[str, Count]
    """By DDP or FSDP2 itself, by kind: what the strategy needs."""
    collectives_of_others: dict[str, Count]
    """Called by this project's or lightning's own code."""
    host_syncs: Count
    """Values that this project's or lightning's own code read back, each of which the host waits for."""
    ddp_buckets: Count | None
    """Gradient buckets of DDP, by its own account; null for fsdp2."""


class Responsibilities(Section):
    """Who called what, from watching the run; in the order in which each was first seen."""

    evidence: Annotated[list[Evidence], Field(max_length=10_000, fail_fast=True)]
    step: StepCounts


class Outcome(Section):
    """How the run ended. Only a completed one has everything; see the validator of :class:`Result`."""

    status: Literal["completed", "out_of_memory", "diverged", "out_of_sync", "untrained"]
    phase: Literal["setup", "warmup", "window", "final"] | None = None
    """Where it ended, unless completed."""
    step: Positive | None = None
    """The optimizer step, counted from 1 with the warm-up, in which it ended."""
    rank: Count | None = None
    """The first global rank on which it did."""
    requested_gib: Measured | None = None
    """What the allocation that failed had asked for, by PyTorch's message."""
    free_gib: Measured | None = None
    """What the device then had free, by PyTorch's message."""
    message: str | None = None
    """The first cause, in one line."""


class Result(Section):
    """One run of one implementation."""

    schema_version: Literal["1.0"]
    implementation: Literal["native", "lightning"]
    label: str | None
    """Set by ``--label``; ``control`` marks the second side of a comparison of an implementation with itself."""
    workload: Workload
    environment: Environment
    outcome: Outcome
    choices: Choices | None = None
    timing: Timing | None = None
    memory: Memory | None = None
    parameters: Parameters | None = None
    correctness: Correctness | None = None
    responsibilities: Responsibilities | None = None
    """Null for a run that nobody watched to its end."""

    @model_validator(mode="after")
    def completed_runs_are_complete(self) -> Self:
        """Refuse a completed run that lacks a part, or the lap or loss of a step."""
        if self.outcome.status == "completed":
            missing = [name for name in MEASURED if getattr(self, name) is None]
            missing += [f"workload.{name}" for name in FOUND_OUT if getattr(self.workload, name) is None]
            if missing:
                raise ValueError(f"a completed run without {', '.join(missing)}")
            steps, warmup_steps = self.workload.steps, self.workload.warmup_steps
            laps, losses = len(self.timing.laps_milliseconds), len(self.correctness.losses)
            if (laps, losses) != (steps, warmup_steps + steps):
                found = f"timing.laps_milliseconds has {laps:,} entries and correctness.losses {losses:,}"
                raise ValueError(f"{found}, for {warmup_steps:,} warm-up steps and {steps:,} timed ones")
        return self


MEASURED = ("choices", "timing", "memory", "parameters", "correctness")
"""Sections that a completed run has."""
FOUND_OUT = ("global_parameter_count", "optimizer", "initial_weights_sha256", "batch_sha256")
"""Fields of the workload that only the run itself finds out."""


def read_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        ResultFileError: it cannot be read, is not JSON, or does not follow the schema.
    """
    try:
        return parse_result(read_content(path), path)
    except OSError as error:
        raise ResultFileError(f"{path}: {error.strerror}") from None


def parse_result(content: bytes, path: Path) -> Result:
    """Return the result that a file's content is; ``path`` only names it in the error.

    Raises:
        ResultFileError: it is not JSON, or does not follow the schema.
    """
    reason = obstacle(content)
    if reason is None:
        try:
            return Result.model_validate_json(content)
        except ValidationError as error:
            reason = first_error(error, SCHEMA_VERSION)
    raise ResultFileError(f"{path}: {reason}")


def write_result(path: Path, result: Result, *, overwrite: bool) -> None:
    """Write a result file as :func:`common.atomic.write_whole` does: whole or not at all."""
    write_whole(path, json.dumps(result.model_dump(mode="json"), indent=2, allow_nan=False) + "\n", overwrite=overwrite)


if __name__ == "__main__":
    print(json.dumps(Result.model_json_schema(), indent=2))
