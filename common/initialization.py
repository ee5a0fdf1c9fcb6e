"""The same weights on every rank, device, wrap and world size.

A model is built on the meta device, sharded or not, given storage with ``to_empty`` and then filled here, parameter by
parameter. Every parameter has a generator of its own, seeded by (seed, parameter name): the order of construction, the
rank and the device cannot change what is drawn. The default generator would depend on all three.
"""

import hashlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

STANDARD_DEVIATION = 0.02


def fill_parameters(model: nn.Module, seed: int) -> None:
    """Give every parameter of ``model`` its starting value, in place; each rank keeps the rows that it owns.

    Norm weights become 1, biases 0, everything else is normal with mean 0 and standard deviation 0.02. One full
    parameter at a time is held on the CPU, in float32.

    Args:
        model: materialised (no meta tensors), plain or sharded along dimension 0 by ``fully_shard``.
        seed: the run's seed, equal on all ranks.
    """
    norm_weights = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            if name in norm_weights:
                full.fill_(1.0)
            elif name.endswith("bias"):
                full.zero_()
            else:
                full.normal_(std=STANDARD_DEVIATION, generator=parameter_generator(seed, name))
            local = local_tensor(parameter)
            local.copy_(own_rows(full, parameter))


def parameter_generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator that depends on the seed and the parameter's name alone."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def local_tensor(tensor: Tensor) -> Tensor:
    """Return what this rank stores of ``tensor``: its shard (possibly empty) under FSDP2, all of it otherwise."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(full: Tensor, parameter: Tensor) -> Tensor:
    """Return the rows of ``full`` that this rank stores of ``parameter``; FSDP2 cuts like ``torch.chunk``."""
    if not isinstance(parameter, DTensor):
        return full
    (placement,) = parameter.placements
    assert placement == Shard(0), f"fully_shard over one mesh dimension shards rows, not {placement}"
    chunks = full.chunk(parameter.device_mesh.size(), dim=0)
    rank = parameter.device_mesh.get_local_rank()
    return chunks[rank] if rank < len(chunks) else full[:0]


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of the full weights, as 64 hexadecimal digits, on every rank.

    Parameters are hashed in the order of their names: name, shape, then the float32 values. Sharded parameters are
    gathered one after the other, so that no rank ever holds more than one full parameter. A collective call for sharded
    models.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        detached = parameter.detach()
        full = detached.full_tensor() if isinstance(detached, DTensor) else detached
        digest.update(f"{name}{tuple(full.shape)}".encode())
        digest.update(memoryview(full.cpu().contiguous().numpy()).cast("B"))
    return digest.hexdigest()
