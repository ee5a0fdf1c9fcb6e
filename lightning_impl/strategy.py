"""DDP or FSDP2 as Lightning strategies, and the two things Lightning leaves to its user: a check and the parting."""

import gc
import os
from datetime import timedelta

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from common.errors import RunError
from common.launch import Launch
from common.options import RunConfig

TIMEOUT = timedelta(minutes=5)
ENVIRONMENTS = {"torchrun": TorchElasticEnvironment, "srun": SLURMEnvironment, "lightning": LightningEnvironment}


def make_strategy(config: RunConfig, launch: Launch) -> Strategy:
    """Return the strategy for ``--strategy``: replicated (DDP) or sharded over all ranks (FSDP2)."""
    if config.strategy == "ddp":
        return DDPStrategy(gradient_as_bucket_view=True, timeout=TIMEOUT)
    # Never the default sizes: "auto" makes the ranks of a node one tensor-parallel group and shards nothing.
    return ModelParallelStrategy(data_parallel_size=launch.world_size, tensor_parallel_size=1, timeout=TIMEOUT)


def slurm_plugins(launch: Launch) -> list[SLURMEnvironment]:
    """Return what the Trainer must be told under srun; nothing under other launchers, which it finds by itself.

    In a job named bash or interactive (``salloc``) Lightning ignores Slurm: every task would train alone and report
    success. It also wants SLURM_NTASKS_PER_NODE, which only ``--ntasks-per-node`` sets and the steps of a larger job
    inherit, and it would let all steps of a job meet at one port.
    """
    if launch.launcher != "srun":
        return []
    os.environ["SLURM_NTASKS_PER_NODE"] = str(launch.local_world_size)
    os.environ["MASTER_ADDR"] = launch.master_addr
    os.environ["MASTER_PORT"] = str(launch.master_port)
    return [SLURMEnvironment(auto_requeue=False)]


def check_launcher(trainer: pl.Trainer, launch: Launch) -> None:
    """Make sure that Lightning believes the same launcher as we do, before any rank waits for another.

    Raises:
        RunError: it would start or expect other ranks, typically because of leaked Slurm variables.
    """
    found = type(trainer.strategy.cluster_environment)
    expected = ENVIRONMENTS[launch.launcher]
    if found is not expected:
        raise RunError(
            f"this process was started by {launch.launcher}, but Lightning sees {found.__name__} instead of "
            f"{expected.__name__}; clear leaked variables with: unset ${{!SLURM_@}}"
        )


def destroy_process_group(device: torch.device) -> None:
    """Part from the other ranks. Trainer, module and optimizer must be gone by now.

    Lightning leaves the process group open, and with gloo that can abort the process while the interpreter shuts down.
    """
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    gc.collect()
    dist.destroy_process_group()
    gc.collect()
