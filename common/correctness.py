"""Evidence that both sides computed the same thing: checksums and norms of what this rank stores, in float64."""

import math

import torch
from torch import nn

from common.initialization import local_tensor


def local_elements(model: nn.Module) -> int:
    """Return how many parameter elements this rank stores."""
    return sum(local_tensor(parameter).numel() for parameter in model.parameters())


def local_checksums(model: nn.Module) -> list[tuple[float, float]]:
    """Return (sum, sum of squares) of this rank's part of every parameter, accumulated in float64, in module order."""
    moments = []
    for parameter in model.parameters():
        values = local_tensor(parameter).detach().double()
        moments.append(torch.stack([values.sum(), values.square().sum()]))
    return [tuple(pair) for pair in torch.stack(moments).tolist()]


def local_squared_gradient_norm(model: nn.Module) -> float:
    """Return the sum of squares of this rank's gradients, in float64; waits for the device."""
    gradients = [local_tensor(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    return sum(gradient.double().square().sum().item() for gradient in gradients)


def every_shard_changed(before: list[tuple[float, float]], after: list[tuple[float, float]], sizes: list[int]) -> bool:
    """Say whether training changed this rank's part of every parameter; empty shards do not count.

    Args:
        before: checksums of the start, one a parameter.
        after: checksums of the end.
        sizes: elements that this rank stores, one a parameter.
    """
    return all(old != new for old, new, size in zip(before, after, sizes, strict=True) if size)


def replicas_equal(checksums: list[list[tuple[float, float]]]) -> bool:
    """Say whether all ranks (outer list) hold bit-identical checksums of every parameter."""
    return all(rank == checksums[0] for rank in checksums)


def first_non_finite(losses: list[float]) -> int | None:
    """Return the step, counted from 1, of the first loss that is infinite or not a number; None if there is none."""
    return next((step for step, loss in enumerate(losses, start=1) if not math.isfinite(loss)), None)
