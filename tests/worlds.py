"""Process groups inside one process, and what a rank of theirs needs to build its model."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from common.launch import Launch
from common.model import SyntheticTransformer
from common.options import RunConfig
from common.precision import Precision
from native.parallelize import build_model

torch.set_num_threads(1)  # as in every run of the tests: the threads of a busy machine wait for each other

CPU = torch.device("cpu")
FP32 = Precision("fp32", "requested")


def launch_of(rank: int, world_size: int) -> Launch:
    """Return the launch of one rank on one node."""
    return Launch("torchrun", rank, rank, world_size, world_size, "127.0.0.1", 29500)


@contextlib.contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[Launch]:
    """Be one rank of a world whose other ranks do not exist: shards are real, collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield launch_of(rank, world_size)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def world_of_one() -> Iterator[Launch]:
    """Be the only rank of a gloo group, whose collectives work."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield launch_of(0, 1)
    finally:
        dist.destroy_process_group()


def tiny_model(launch: Launch, *, strategy: str = "fsdp2", seed: int = 1234) -> SyntheticTransformer:
    """Return the tiny model as ``native`` builds it: sharded over ``launch``'s world, or whole for ddp."""
    return build_model(RunConfig("native", strategy, preset="tiny", seed=seed), launch, CPU, FP32)
