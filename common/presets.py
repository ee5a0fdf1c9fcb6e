"""Model sizes. Nothing here needs torch, so that the command line answers in a blink."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of one :class:`common.model.SyntheticTransformer`."""

    blocks: int
    """Number of transformer blocks, the unit that FSDP2 shards and gathers."""
    hidden_size: int
    """Width of every token representation."""
    heads: int
    """Attention heads; they divide ``hidden_size``."""
    sequence_length: int = 256
    """Tokens in a sample."""
    vocabulary_size: int = 4096
    """Distinct token ids, 0 to ``vocabulary_size - 1``."""
    classes: int = 16
    """Classes that the head tells apart."""


PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(blocks=2, hidden_size=64, heads=4, sequence_length=32),
    "small": ModelConfig(blocks=12, hidden_size=768, heads=12),
    "medium": ModelConfig(blocks=24, hidden_size=1024, heads=16),
    "large": ModelConfig(blocks=32, hidden_size=1280, heads=20),
}
