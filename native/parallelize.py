"""The model, built without storage, sharded or replicated, and filled with the common start."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from common.initialization import fill_parameters
from common.launch import Launch
from common.model import SyntheticTransformer
from common.options import RunConfig
from common.precision import Precision


def build_model(config: RunConfig, launch: Launch, device: torch.device, precision: Precision) -> SyntheticTransformer:
    """Return the model on ``device`` with its starting weights; under fsdp2 each rank holds its own rows only."""
    with torch.device("meta"):
        model = SyntheticTransformer(config.model)
    if config.strategy == "fsdp2":
        shard(model, config, launch, device, precision)
    model.to_empty(device=device)
    fill_parameters(model, config.seed)
    return model


def shard(
    model: SyntheticTransformer, config: RunConfig, launch: Launch, device: torch.device, precision: Precision
) -> None:
    """Apply FSDP2: every block is a unit that gathers and frees its parameters, and the root holds the rest."""
    mesh = init_device_mesh(device.type, (launch.world_size,))
    policy = MixedPrecisionPolicy()
    if precision.resolved == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if config.fsdp_wrap == "block":
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # The backward needs the root first, right after the forward: freeing it in between would gather it twice.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def replicate(model: SyntheticTransformer, device: torch.device) -> nn.Module:
    """Wrap the model in DDP, which averages gradients over the ranks during the backward."""
    return DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )
