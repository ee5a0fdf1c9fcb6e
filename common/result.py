"""The result of one run: its schema, and strict JSON out and in.

Needs neither torch nor lightning, so that results can be read anywhere. ``python -m common.result`` prints the JSON
Schema that is kept in ``docs/result.schema.json``.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import RunError

SCHEMA_VERSION = "1.0"

Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Section(BaseModel):
    """Base of all parts: unknown keys, wrong types and numbers that JSON does not know are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
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
    """What must be equal for two runs to be comparable."""

    strategy: Literal["ddp", "fsdp2"]
    fsdp_wrap: Literal["block", "root"] | None
    """Null for ddp."""
    reshard_after_forward: dict[str, bool] | None
    """Read back from the sharded modules, by kind of unit (block, root); null for ddp."""
    preset: str
    model: ModelDimensions
    global_parameter_count: Count
    device_type: Literal["cpu", "cuda"]
    world_size: Annotated[int, Field(ge=1)]
    batch_size_per_device: Annotated[int, Field(ge=1)]
    global_batch_size: Annotated[int, Field(ge=1)]
    precision_resolved: Literal["fp32", "bf16"]
    seed: Count
    warmup_steps: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    optimizer: Optimizer
    initial_weights_sha256: Sha256
    """Of the full weights before the first step."""
    batch_sha256: Sha256
    """Of the global batch, from what the devices held."""


class Environment(Section):
    """What was in force while the run ran, read back at run time."""

    started_at: str
    """ISO 8601, UTC."""
    command: list[str]
    launcher: Literal["torchrun", "srun", "lightning", "none"]
    num_nodes: Annotated[int, Field(ge=1)]
    local_world_size: Annotated[int, Field(ge=1)]
    hosts: list[str]
    """Distinct host names in the order of ranks."""
    process_group_backend: str
    precision_requested: Literal["auto", "fp32", "bf16"]
    precision_reason: str
    device_name: str
    cpu_model: str
    cpu_count: Count
    """Cores that rank zero may use."""
    cpu_threads: Count
    """Intra-op threads of rank zero."""
    float32_matmul_precision: str
    cudnn_benchmark: bool
    deterministic_algorithms: bool
    platform: str
    python_version: str
    torch_version: str
    lightning_version: str | None
    """Null for the native implementation."""
    cuda_version: str | None
    nccl_version: str | None


class Timing(Section):
    """The window: the timed steps after the warm-up."""

    laps_milliseconds: Annotated[list[NonNegative], Field(min_length=1)]
    """Every timed step of rank zero, in order, from the end of one step to the end of the next."""
    elapsed_seconds: NonNegative
    """The window of the slowest rank, on the host's clock between two device synchronisations."""
    milliseconds_per_step: NonNegative
    """elapsed_seconds over the number of steps."""
    milliseconds_per_step_median: NonNegative
    """Median of rank zero's laps."""
    samples_per_second: NonNegative
    tokens_per_second: NonNegative


class Memory(Section):
    """Peaks of the window by PyTorch's CUDA allocator, in GiB (2^30 bytes); all null on a CPU."""

    peak_allocated_gib: NonNegative | None
    """Peak of the window by PyTorch's CUDA allocator, largest over ranks; null on a CPU. GiB is 2^30 bytes."""
    peak_allocated_gib_min: NonNegative | None
    """The same, smallest over ranks."""
    peak_reserved_gib: NonNegative | None
    """Peak that the allocator held from the device, largest over ranks; null on a CPU."""
    peak_reserved_gib_min: NonNegative | None
    """The same, smallest over ranks."""


class Parameters(Section):
    """What a rank stores of the model. Gradients, optimizer state and activations are not in it."""

    local_parameter_elements: Count
    """Elements stored by the rank that stores most."""
    local_parameter_elements_min: Count
    """Elements stored by the rank that stores least."""
    local_parameter_fraction: NonNegative
    """local_parameter_elements over global_parameter_count: 1 for ddp, about 1 / world_size for fsdp2."""


class Correctness(Section):
    """Evidence of what was computed, for comparison to the last bit."""

    losses: Annotated[list[float], Field(min_length=1)]
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


class Outcome(Section):
    """How the run ended."""

    status: Literal["completed"]


class Result(Section):
    """One run of one implementation."""

    schema_version: Literal["1.0"]
    implementation: Literal["native", "lightning"]
    workload: Workload
    environment: Environment
    timing: Timing
    memory: Memory
    parameters: Parameters
    correctness: Correctness
    outcome: Outcome


class ResultFileError(Exception):
    """A file that is no result of this schema; the message names the file and the first wrong key."""


def read_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        ResultFileError: it cannot be read, is not JSON, or does not follow the schema.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ResultFileError(f"{path}: {error.strerror}") from None
    try:
        return Result.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ResultFileError(f"{path}: {f'{key}: ' if key else ''}{first['msg']}") from None


def write_result(path: Path, result: Result, *, overwrite: bool) -> None:
    """Write a result file atomically: whole or not at all, with the mode that the umask leaves.

    Raises:
        RunError: the file appeared in the meantime and may not be replaced, or cannot be written.
    """
    text = json.dumps(result.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(temporary, target)
            else:
                _rename_without_replacing(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise RunError(
            f"{path} was written by somebody else during the run; it is left as it is", exit_code=1
        ) from None
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror}", exit_code=1) from None


def _rename_without_replacing(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # unlike a rename, a link never replaces what another run wrote
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: better a small race than a lost result
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(source, target)


if __name__ == "__main__":
    print(json.dumps(Result.model_json_schema(), indent=2))
