"""DDP or FSDP2 as Lightning strategies, and the two things it must be told: who started it, and to part."""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from common.launch import Launch
from common.options import RunConfig


def make_strategy(config: RunConfig, launch: Launch) -> Strategy:
    """Return the strategy for ``--strategy``: replicated (DDP) or sharded over all ranks (FSDP2)."""
    timeout = timedelta(seconds=config.timeout_seconds)
    if config.strategy == "ddp":
        return DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)
    # Never the default sizes: "auto" makes the ranks of a node one tensor-parallel group and shards nothing.
    return ModelParallelStrategy(data_parallel_size=launch.world_size, tensor_parallel_size=1, timeout=timeout)


def launcher_plugins(launch: Launch) -> list[ClusterEnvironment]:
    """Return what the Trainer must be told of the launcher, which it would guess from the environment.

    Any SLURM_NTASKS makes it see Slurm, such as one that a notebook or an IDE inherited. In a job named bash or
    interactive (``salloc``) it ignores Slurm instead: every task would train alone and report success. It also wants
    SLURM_NTASKS_PER_NODE, which only ``--ntasks-per-node`` sets and the steps of a larger job inherit, and it would let
    all steps of a job meet at one port.
    """
    if launch.launcher == "torchrun":
        return [TorchElasticEnvironment()]
    if launch.launcher == "lightning":
        return [LightningEnvironment()]
    os.environ["SLURM_NTASKS_PER_NODE"] = str(launch.local_world_size)
    os.environ["MASTER_ADDR"] = launch.master_addr
    os.environ["MASTER_PORT"] = str(launch.master_port)
    return [SLURMEnvironment(auto_requeue=False)]


def destroy_process_group(device: torch.device) -> None:
    """Part from the other ranks. Trainer, module and optimizer must be gone by now.

    Lightning leaves the process group open, and with gloo that can abort the process while the interpreter shuts down.
    """
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    gc.collect()
    dist.destroy_process_group()
    gc.collect()
