"""Synthetic data: each rank draws one batch, on the CPU, moves it once, and trains on it at every step."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from common.presets import ModelConfig


@dataclass(frozen=True)
class Batch:
    """One rank's samples."""

    tokens: Tensor
    """int64 of shape (batch, sequence)."""
    labels: Tensor
    """int64 of shape (batch,)."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""
        return Batch(self.tokens.to(device), self.labels.to(device))


def make_batch(model: ModelConfig, seed: int, rank: int, batch_size: int) -> Batch:
    """Draw rank ``rank``'s share of the global batch, on the CPU.

    Sample i of the global batch comes from a generator seeded with ``seed + i``, and rank r holds the samples from
    ``r * batch_size`` on. With one sample a rank that is "seed + rank"; and a global batch of one size holds the same
    samples however many ranks share it.
    """
    tokens = torch.empty(batch_size, model.sequence_length, dtype=torch.int64, device="cpu")
    labels = torch.empty(batch_size, dtype=torch.int64, device="cpu")
    for row in range(batch_size):
        generator = torch.Generator().manual_seed(seed + rank * batch_size + row)
        tokens[row].random_(model.vocabulary_size, generator=generator)
        labels[row].random_(model.classes, generator=generator)
    return Batch(tokens, labels)


def sample_digests(batch: Batch) -> list[bytes]:
    """Return one SHA-256 (32 bytes) a sample, of what the device holds, in the order of the batch."""
    tokens, labels = batch.tokens.cpu().numpy(), batch.labels.cpu().numpy()
    return [hashlib.sha256(tokens[row].tobytes() + labels[row].tobytes()).digest() for row in range(len(labels))]


def batch_fingerprint(digests: list[bytes]) -> str:
    """Return the fingerprint of the global batch: the SHA-256 over the digests of all samples in global order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()
