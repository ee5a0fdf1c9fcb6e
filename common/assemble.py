"""From what every rank measured to the one result of a run, on global rank zero."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from common import correctness
from common.data import batch_fingerprint
from common.environment import describe_environment
from common.memory import RankMemory
from common.options import RunConfig
from common.result import (
    SCHEMA_VERSION,
    Correctness,
    Memory,
    ModelDimensions,
    Optimizer,
    Outcome,
    Parameters,
    Result,
    Timing,
    Workload,
)

if TYPE_CHECKING:
    from common.recorder import RunRecorder


@dataclass(frozen=True)
class RankReport:
    """What one rank tells the others at the end."""

    sample_digests: list[bytes]
    losses: list[float]
    squared_gradient_norm: float
    checksums: list[tuple[float, float]]
    elements: int
    every_shard_changed: bool
    elapsed_seconds: float
    median_lap_milliseconds: float
    memory: RankMemory


def judge(config: RunConfig, reports: list[RankReport]) -> Outcome:
    """Return the outcome of a run that made all its steps: the same on every rank."""
    for rank, report in enumerate(reports):
        if step := correctness.first_non_finite(report.losses):
            message = f"the loss of step {step} on rank {rank} is {report.losses[step - 1]}"
            phase = "warmup" if step <= config.warmup_steps else "window"
            return Outcome(status="diverged", phase=phase, step=step, rank=rank, message=message)
        if not all(math.isfinite(moment) for pair in report.checksums for moment in pair):
            message = f"weights on rank {rank} are not finite after the last step"
            return Outcome(status="diverged", phase="final", step=config.total_steps, rank=rank, message=message)
    if config.strategy == "ddp":
        rank = next((rank for rank, each in enumerate(reports) if each.checksums != reports[0].checksums), None)
        if rank is not None:
            message = f"rank {rank} ended with other weights than rank 0"
            return Outcome(status="out_of_sync", phase="final", step=config.total_steps, rank=rank, message=message)
    rank = next((rank for rank, each in enumerate(reports) if not each.every_shard_changed), None)
    if rank is not None:
        message = f"a part of the weights on rank {rank} is as it was before the first step"
        return Outcome(status="untrained", phase="final", step=config.total_steps, rank=rank, message=message)
    return Outcome(status="completed")


def measured_result(recorder: RunRecorder, reports: list[RankReport], final_weights_sha256: str) -> Result:
    """Return the result of a run that made all its steps; one that diverged has no correctness to compare."""
    elapsed = max(report.elapsed_seconds for report in reports)
    slowest_median = max(report.median_lap_milliseconds for report in reports)
    digests = [digest for report in reports for digest in report.sample_digests]
    return Result(
        **_identity(recorder),
        workload=_workload(recorder, batch_fingerprint(digests)),
        outcome=recorder.outcome,
        choices=recorder.choices.choices(),
        timing=_timing(recorder, elapsed, slowest_median),
        memory=_memory([report.memory for report in reports]),
        parameters=_parameters(reports, _parameter_count(recorder.model)),
        correctness=None
        if recorder.outcome.status == "diverged"
        else _correctness(recorder.config, reports, final_weights_sha256),
    )


def failed_result(recorder: RunRecorder, outcome: Outcome) -> Result:
    """Return the result of a run that ended before its last step: what was asked for, and how it ended."""
    return Result(**_identity(recorder), workload=_workload(recorder, batch_sha256=None), outcome=outcome)


def _identity(recorder: RunRecorder) -> dict:
    environment = describe_environment(
        recorder.config, recorder.launch, recorder.device, recorder.precision, recorder.hosts, recorder.machines
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "implementation": recorder.config.implementation,
        "label": recorder.config.label,
        "environment": environment,
    }


def _workload(recorder: RunRecorder, batch_sha256: str | None) -> Workload:
    config, world_size = recorder.config, recorder.launch.world_size
    local_batch_size = config.local_batch_size(world_size)
    model: nn.Module | None = getattr(recorder, "model", None)  # not known before the training begins
    sharded = config.strategy == "fsdp2"
    return Workload(
        strategy=config.strategy,
        fsdp_wrap=config.fsdp_wrap if sharded else None,
        preset=config.preset,
        model=ModelDimensions(**asdict(config.model)),
        device_type=recorder.device.type,
        world_size=world_size,
        batch_size_per_device=local_batch_size,
        global_batch_size=local_batch_size * world_size,
        precision_resolved=recorder.precision.resolved,
        seed=config.seed,
        warmup_steps=config.warmup_steps,
        steps=config.steps,
        memory_snapshot=config.memory_snapshot is not None,
        variants=config.variants,
        global_parameter_count=_parameter_count(model) if model else None,
        reshard_after_forward=_reshard_policy(model) if model and sharded else None,
        optimizer=getattr(recorder, "optimizer_settings", None),
        initial_weights_sha256=getattr(recorder, "initial_weights_sha256", None),
        batch_sha256=batch_sha256,
    )


def _timing(recorder: RunRecorder, elapsed_seconds: float, slowest_median: float) -> Timing:
    config, laps = recorder.config, recorder.timer.laps_milliseconds()
    samples = config.local_batch_size(recorder.launch.world_size) * recorder.launch.world_size * config.steps
    several = len(laps) > 1
    tenths = statistics.quantiles(laps, n=10, method="inclusive") if several else laps * 9
    quarters = statistics.quantiles(laps, n=4, method="inclusive") if several else None
    return Timing(
        laps_milliseconds=laps,
        laps_over_window=sum(laps) / (recorder.timer.elapsed_seconds * 1e3),
        elapsed_seconds=elapsed_seconds,
        milliseconds_per_step=elapsed_seconds * 1e3 / config.steps,
        milliseconds_per_step_median=statistics.median(laps),
        milliseconds_per_step_p10=tenths[0],
        milliseconds_per_step_p90=tenths[8],
        milliseconds_per_step_min=min(laps),
        milliseconds_per_step_max=max(laps),
        milliseconds_per_step_iqr=quarters[2] - quarters[0] if quarters else None,
        milliseconds_per_step_median_slowest_rank=slowest_median,
        samples_per_second=samples / elapsed_seconds,
        tokens_per_second=samples * config.model.sequence_length / elapsed_seconds,
    )


def _memory(ranks: list[RankMemory]) -> Memory:
    resident = ("parameters_gib", "gradients_gib", "optimizer_state_gib", "buffers_gib")
    fullest = max(ranks, key=lambda rank: (rank.peak_allocated_gib or 0.0, rank.parameters_gib))
    breakdown = {name: getattr(fullest, name) for name in resident}
    peak = fullest.peak_allocated_gib
    extremes = {}
    for name in (
        "peak_allocated_gib",
        "peak_reserved_gib",
        "setup_peak_allocated_gib",
        "setup_peak_reserved_gib",
        "device_used_gib",
        "process_peak_resident_gib",
    ):
        values = [value for rank in ranks if (value := getattr(rank, name)) is not None]
        extremes |= {name: max(values, default=None), f"{name}_min": min(values, default=None)}
    retries = [rank.allocation_retries for rank in ranks if rank.allocation_retries is not None]
    return Memory(
        **extremes,
        **breakdown,
        end_allocated_gib=fullest.end_allocated_gib,
        activations_and_temporary_gib=None if peak is None else peak - sum(breakdown.values()),
        allocation_retries=sum(retries) if retries else None,
    )


def _parameters(reports: list[RankReport], global_parameter_count: int) -> Parameters:
    elements = [report.elements for report in reports]
    return Parameters(
        local_parameter_elements=max(elements),
        local_parameter_elements_min=min(elements),
        local_parameter_fraction=max(elements) / global_parameter_count,
    )


def _correctness(config: RunConfig, reports: list[RankReport], final_weights_sha256: str) -> Correctness:
    # ddp replicas hold the same parameters and gradients, so rank zero speaks for all; fsdp2 shards are added up.
    replicated = config.strategy == "ddp"
    owners = reports[:1] if replicated else reports
    moments = [moment for report in owners for moment in report.checksums]
    losses = [math.fsum(step) / len(step) for step in zip(*(report.losses for report in reports), strict=True)]
    synchronized = correctness.replicas_equal([report.checksums for report in reports])
    return Correctness(
        losses=losses,
        final_loss_mean=losses[-1],
        step1_gradient_norm=math.sqrt(math.fsum(report.squared_gradient_norm for report in owners)),
        parameter_checksum_sum=math.fsum(moment[0] for moment in moments),
        parameter_checksum_squared_sum=math.fsum(moment[1] for moment in moments),
        parameters_synchronized=synchronized if replicated else None,
        every_shard_changed=all(report.every_shard_changed for report in reports),
        final_weights_sha256=final_weights_sha256,
    )


def describe_optimizer(optimizer: torch.optim.Optimizer) -> Optimizer:
    """Read the settings back from AdamW."""
    group = optimizer.param_groups[0]
    return Optimizer(
        name=type(optimizer).__name__,
        learning_rate=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        epsilon=group["eps"],
        weight_decay=group["weight_decay"],
        amsgrad=group["amsgrad"],
        foreach=group["foreach"],
        fused=group["fused"],
    )


def _parameter_count(model: nn.Module) -> int:
    """Return the parameter elements of the whole model, however it is sharded."""
    return sum(parameter.numel() for parameter in model.parameters())


def _reshard_policy(model: nn.Module) -> dict[str, bool] | None:
    """Read back from the sharded units whether they free their gathered parameters after the forward.

    PyTorch keeps the policy in private attributes; where a release has renamed them, nothing is claimed (None).
    """
    policy = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            try:
                group = module._get_fsdp_state()._fsdp_param_group
                policy["root" if module is model else "block"] = group.post_forward_mesh_info is not None
            except AttributeError:
                return None
    return policy
