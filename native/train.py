"""The training loop, step by step."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.data import Batch, make_batch
from common.launch import Launch
from common.options import RunConfig
from common.precision import Precision
from common.recorder import RunRecorder
from native.parallelize import build_model, replicate


def train(config: RunConfig, launch: Launch, device: torch.device, precision: Precision, recorder: RunRecorder) -> None:
    """Train for warmup + steps optimizer steps; what it builds is gone when it returns."""
    recorder.begin()
    choose_kernels(config)
    model = build_model(config, launch, device, precision)
    wrapped = replicate(model, device) if config.strategy == "ddp" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)  # after sharding: takes the shards
    batch_size = config.local_batch_size(launch.world_size)
    batch = make_batch(config.model, config.seed, launch.rank, batch_size).to(device)
    # ddp computes in bf16 by autocast; fsdp2 has its MixedPrecisionPolicy.
    autocast = torch.autocast(
        device.type,
        torch.bfloat16,
        enabled=config.strategy == "ddp" and precision.resolved == "bf16",
        cache_enabled=config.autocast_cache == "on",
    )

    recorder.before_training(model, wrapped, optimizer, batch)
    wrapped.train()
    for _ in range(config.total_steps):
        loss = training_step(wrapped, optimizer, batch, autocast, recorder, config.zero_grad)
        recorder.after_step(loss)
    recorder.finish()


def choose_kernels(config: RunConfig) -> None:
    """Allow or refuse kernels whose sums depend on which thread came first."""
    torch.use_deterministic_algorithms(config.deterministic)
    if config.deterministic:  # cuBLAS looks when it is first used
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    autocast: torch.autocast,
    recorder: RunRecorder,
    zero_grad: str = "before-forward",
) -> Tensor:
    """Forward, backward, update. Returns the loss, a scalar on the device."""
    if zero_grad == "before-forward":
        optimizer.zero_grad()
    with autocast:
        logits = model(batch.tokens)
        loss = F.cross_entropy(logits.float(), batch.labels)
    if zero_grad == "after-forward":  # Lightning's order: the forward ran while the last step's gradients were there
        optimizer.zero_grad()
    loss.backward()  # ddp all-reduces the gradients in here, fsdp2 gathers parameters and reduce-scatters gradients
    recorder.after_backward()
    optimizer.step()
    return loss
