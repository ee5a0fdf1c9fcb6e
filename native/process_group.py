"""The process group: how the ranks find each other, and how they part."""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from common.launch import Launch
from common.options import RunConfig


def bind_device(device: torch.device) -> None:
    """Make this rank's GPU the current one, before anything can touch another; a CPU needs no binding."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def init_process_group(config: RunConfig, launch: Launch, device: torch.device) -> None:
    """Meet the other ranks: NCCL between GPUs, gloo between CPUs."""
    os.environ["MASTER_ADDR"] = launch.master_addr
    os.environ["MASTER_PORT"] = str(launch.master_port)
    on_cuda = device.type == "cuda"
    dist.init_process_group(
        backend="nccl" if on_cuda else "gloo",
        init_method="env://",
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=config.timeout_seconds),
        device_id=device if on_cuda else None,
    )


def destroy_process_group(device: torch.device) -> None:
    """Part from the other ranks. Model and optimizer must be gone by now.

    The order matters: gloo's threads may still hold tensors of finished collectives, and freeing those while the
    interpreter shuts down aborts the process. So meet once more, collect what is left, and only then let go.
    """
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    gc.collect()
    dist.destroy_process_group()
    gc.collect()
