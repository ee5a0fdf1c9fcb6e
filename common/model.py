"""The synthetic transformer, assembled from standard PyTorch modules. It knows nothing about how it is trained."""

import torch
from torch import Tensor, nn

from common.presets import ModelConfig


class TransformerBlock(nn.Module):
    """A pre-norm transformer block: the boundary at which FSDP2 shards, gathers and frees parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = nn.MultiheadAttention(config.hidden_size, config.heads, bias=False, batch_first=True)
        self.mlp_norm = nn.LayerNorm(config.hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.hidden_size, config.hidden_size, bias=False),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform ``hidden``, floating point of shape (batch, sequence, hidden_size), into the same shape."""
        normed = self.attention_norm(hidden)
        # need_weights=False sends nn.MultiheadAttention through scaled_dot_product_attention.
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.mlp(self.mlp_norm(hidden))


class SyntheticTransformer(nn.Module):
    """Encoder that classifies a sequence of token ids by its first token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.sequence_length, config.hidden_size)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.blocks))
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify ``tokens``.

        Args:
            tokens: int64 of shape (batch, sequence), ids in [0, vocabulary_size).

        Returns:
            Logits of shape (batch, classes), in the precision that the model computes in.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden)
        return self.classifier(self.final_norm(hidden[:, 0]))
