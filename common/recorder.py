"""Drives the instruments of one run. Both sides call the same methods at the same points.

Order of calls: :meth:`RunRecorder.before_training` once; then for each step :meth:`RunRecorder.after_backward` and
:meth:`RunRecorder.after_step`; at the end :meth:`RunRecorder.finish`. Inside the timed window nothing here
synchronises, communicates or reads a value back from the device.
"""

import math
import socket
import statistics
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from common import correctness
from common.data import Batch, batch_fingerprint, sample_digests
from common.environment import describe_environment
from common.errors import RunError
from common.initialization import local_tensor, weights_sha256
from common.launch import Launch
from common.memory import peak_memory_gib, reset_peak_memory
from common.model import SyntheticTransformer
from common.options import RunConfig
from common.precision import Precision
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
from common.timing import LapTimer, synchronize


@dataclass(frozen=True)
class RankReport:
    """What one rank tells rank zero at the end."""

    host: str
    sample_digests: list[bytes]
    losses: list[float]
    squared_gradient_norm: float
    checksums: list[tuple[float, float]]
    elements: int
    every_shard_changed: bool
    elapsed_seconds: float
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None


class RunRecorder:
    """The instruments of one run on one rank."""

    def __init__(self, config: RunConfig, launch: Launch, device: torch.device, precision: Precision) -> None:
        self.config = config
        self.launch = launch
        self.device = device
        self.precision = precision
        self.timer = LapTimer(device)
        self.steps_done = 0
        self._losses: list[Tensor] = []

    def before_training(self, model: SyntheticTransformer, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
        """Record the start: ``model`` without its DDP wrapper, sharded or not, and what it will be trained with.

        A collective call.

        Raises:
            RunError: the ranks resolved different precisions.
        """
        self.model = model
        self.optimizer = _describe_optimizer(optimizer)
        self._check_same_precision()
        self.sample_digests = sample_digests(batch)
        self.initial_weights_sha256 = weights_sha256(model)
        self.initial_checksums = correctness.local_checksums(model)

    def after_backward(self) -> None:
        """Take the gradient norm of the first step, which is never timed."""
        if self.steps_done == 0:
            self.squared_gradient_norm = correctness.local_squared_gradient_norm(self.model)

    def after_step(self, loss: Tensor) -> None:
        """End a step whose loss, a scalar on the device, is ``loss``; open the window after the last warm-up step."""
        self._losses.append(loss.detach())
        self.steps_done += 1
        if self.steps_done == self.config.warmup_steps:
            barrier(self.device)
            synchronize(self.device)
            reset_peak_memory(self.device)
            self.timer.start()
        elif self.steps_done > self.config.warmup_steps:
            self.timer.lap()
            if self.steps_done == self.config.total_steps:
                self.timer.stop()

    def finish(self) -> Result | None:
        """Bring the ranks' measurements together. A collective call.

        Returns:
            The result on global rank zero, None elsewhere.

        Raises:
            RunError: a loss was not finite, or the number of steps was not the one asked for.
        """
        # Peaks first: what follows allocates memory of its own.
        peak_allocated, peak_reserved = peak_memory_gib(self.device)
        if self.steps_done != self.config.total_steps:
            raise RunError(
                f"{self.steps_done} optimizer steps were made instead of {self.config.total_steps}", exit_code=1
            )
        final_checksums = correctness.local_checksums(self.model)
        sizes = [local_tensor(parameter).numel() for parameter in self.model.parameters()]
        report = RankReport(
            host=socket.gethostname(),
            sample_digests=self.sample_digests,
            losses=torch.stack(self._losses).double().tolist(),
            squared_gradient_norm=self.squared_gradient_norm,
            checksums=final_checksums,
            elements=correctness.local_elements(self.model),
            every_shard_changed=correctness.every_shard_changed(self.initial_checksums, final_checksums, sizes),
            elapsed_seconds=self.timer.elapsed_seconds,
            peak_allocated_gib=peak_allocated,
            peak_reserved_gib=peak_reserved,
        )
        reports: list[RankReport] = [None] * self.launch.world_size  # type: ignore[list-item]
        dist.all_gather_object(reports, report)
        for rank, rank_report in enumerate(reports):
            if step := correctness.first_non_finite(rank_report.losses):
                loss = rank_report.losses[step - 1]
                raise RunError(
                    f"the loss of step {step} on rank {rank} is {loss}; the run diverged and has no result", exit_code=1
                )
        final_weights = weights_sha256(self.model)
        return self._combine(reports, final_weights) if self.launch.rank == 0 else None

    def _combine(self, reports: list[RankReport], final_weights_sha256: str) -> Result:
        return Result(
            schema_version=SCHEMA_VERSION,
            implementation=self.config.implementation,
            workload=self._workload(reports),
            environment=describe_environment(
                self.config, self.launch, self.device, self.precision, [report.host for report in reports]
            ),
            timing=self._timing(max(report.elapsed_seconds for report in reports)),
            memory=_memory(reports),
            parameters=self._parameters(reports),
            correctness=self._correctness(reports, final_weights_sha256),
            outcome=Outcome(status="completed"),
        )

    def _workload(self, reports: list[RankReport]) -> Workload:
        config, world_size = self.config, self.launch.world_size
        local_batch_size = config.local_batch_size(world_size)
        return Workload(
            strategy=config.strategy,
            fsdp_wrap=config.fsdp_wrap if config.strategy == "fsdp2" else None,
            reshard_after_forward=_reshard_policy(self.model) if config.strategy == "fsdp2" else None,
            preset=config.preset,
            model=ModelDimensions(**asdict(config.model)),
            global_parameter_count=self.global_parameter_count,
            device_type=self.device.type,
            world_size=world_size,
            batch_size_per_device=local_batch_size,
            global_batch_size=local_batch_size * world_size,
            precision_resolved=self.precision.resolved,
            seed=config.seed,
            warmup_steps=config.warmup_steps,
            steps=config.steps,
            optimizer=self.optimizer,
            initial_weights_sha256=self.initial_weights_sha256,
            batch_sha256=batch_fingerprint([digest for report in reports for digest in report.sample_digests]),
        )

    def _timing(self, elapsed_seconds: float) -> Timing:
        laps = self.timer.laps_milliseconds()
        samples = self.config.local_batch_size(self.launch.world_size) * self.launch.world_size * self.config.steps
        return Timing(
            laps_milliseconds=laps,
            elapsed_seconds=elapsed_seconds,
            milliseconds_per_step=elapsed_seconds * 1e3 / self.config.steps,
            milliseconds_per_step_median=statistics.median(laps),
            samples_per_second=samples / elapsed_seconds,
            tokens_per_second=samples * self.config.model.sequence_length / elapsed_seconds,
        )

    def _parameters(self, reports: list[RankReport]) -> Parameters:
        elements = [report.elements for report in reports]
        return Parameters(
            local_parameter_elements=max(elements),
            local_parameter_elements_min=min(elements),
            local_parameter_fraction=max(elements) / self.global_parameter_count,
        )

    def _correctness(self, reports: list[RankReport], final_weights_sha256: str) -> Correctness:
        # ddp replicas hold the same parameters and gradients, so rank zero speaks for all; fsdp2 shards are added up.
        replicated = self.config.strategy == "ddp"
        owners = reports[:1] if replicated else reports
        moments = [moment for report in owners for moment in report.checksums]
        losses = [math.fsum(step) / len(step) for step in zip(*(report.losses for report in reports), strict=True)]
        return Correctness(
            losses=losses,
            final_loss_mean=losses[-1],
            step1_gradient_norm=math.sqrt(math.fsum(report.squared_gradient_norm for report in owners)),
            parameter_checksum_sum=math.fsum(moment[0] for moment in moments),
            parameter_checksum_squared_sum=math.fsum(moment[1] for moment in moments),
            parameters_synchronized=correctness.replicas_equal([report.checksums for report in reports])
            if replicated
            else None,
            every_shard_changed=all(report.every_shard_changed for report in reports),
            final_weights_sha256=final_weights_sha256,
        )

    @property
    def global_parameter_count(self) -> int:
        """Parameter elements of the whole model, however it is sharded."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _check_same_precision(self) -> None:
        resolved: list[str] = [""] * self.launch.world_size
        dist.all_gather_object(resolved, self.precision.resolved)
        if len(set(resolved)) > 1:
            by_rank = ", ".join(f"rank {rank} {name}" for rank, name in enumerate(resolved))
            raise RunError(
                f"the ranks resolved different precisions ({by_rank}); add --precision fp32 or --precision bf16"
            )


def barrier(device: torch.device) -> None:
    """Bring all ranks together."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def _memory(reports: list[RankReport]) -> Memory:
    allocated = [report.peak_allocated_gib for report in reports if report.peak_allocated_gib is not None]
    reserved = [report.peak_reserved_gib for report in reports if report.peak_reserved_gib is not None]
    return Memory(
        peak_allocated_gib=max(allocated, default=None),
        peak_allocated_gib_min=min(allocated, default=None),
        peak_reserved_gib=max(reserved, default=None),
        peak_reserved_gib_min=min(reserved, default=None),
    )


def _describe_optimizer(optimizer: torch.optim.Optimizer) -> Optimizer:
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
