import pytest
import torch
from torch import nn

from common.model import SyntheticTransformer
from common.presets import PRESETS

PARAMETERS = {"small": 88_327_680, "medium": 306_563_072, "large": 634_903_040}
DIMENSIONS = {"tiny": (2, 64, 4, 32), "small": (12, 768, 12, 256), "medium": (24, 1024, 16, 256)} | {
    "large": (32, 1280, 20, 256)
}


@pytest.fixture
def tiny() -> SyntheticTransformer:
    return SyntheticTransformer(PRESETS["tiny"])


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.arange(3 * 32).reshape(3, 32)


@pytest.mark.parametrize("preset", PARAMETERS)
def test_preset_has_exactly_the_parameters_of_the_design(preset):
    with torch.device("meta"):
        model = SyntheticTransformer(PRESETS[preset])
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[preset]


@pytest.mark.parametrize("preset", DIMENSIONS)
def test_preset_has_the_dimensions_of_the_design(preset):
    config = PRESETS[preset]
    assert (config.blocks, config.hidden_size, config.heads, config.sequence_length) == DIMENSIONS[preset]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_the_same_vocabulary_and_classes(preset):
    assert (PRESETS[preset].vocabulary_size, PRESETS[preset].classes) == (4096, 16)


@pytest.mark.parametrize("preset", PRESETS)
def test_model_has_the_blocks_that_its_preset_names(preset):
    with torch.device("meta"):
        model = SyntheticTransformer(PRESETS[preset])
    assert len(model.blocks) == DIMENSIONS[preset][0]


def test_every_attention_goes_through_scaled_dot_product_attention(tiny, tokens, monkeypatch):
    calls = []
    attention = nn.functional.scaled_dot_product_attention

    def counted(*args, **kwargs):
        calls.append(args)
        return attention(*args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", counted)
    tiny(tokens)
    assert len(calls) == PRESETS["tiny"].blocks


def test_logits_have_one_row_a_sample_and_one_column_a_class(tiny, tokens):
    assert tiny(tokens).shape == (3, 16)


def test_only_layer_norms_have_biases(tiny):
    with_bias = {
        type(module)
        for module in tiny.modules()
        if any(name.endswith("bias") for name in module._parameters if module._parameters[name] is not None)
    }
    assert with_bias == {nn.LayerNorm}


def test_nothing_is_dropped_at_random_in_training_mode(tiny, tokens):
    tiny.train()
    assert torch.equal(tiny(tokens), tiny(tokens))


def test_feed_forward_part_is_four_times_as_wide_as_the_model(tiny):
    assert [tuple(layer.weight.shape) for layer in tiny.blocks[0].mlp if isinstance(layer, nn.Linear)] == [
        (256, 64),
        (64, 256),
    ]


def test_prediction_depends_on_the_position_of_tokens(tiny, tokens):
    assert not torch.equal(tiny(tokens), tiny(tokens.roll(1, dims=1)))


def test_every_parameter_receives_a_gradient(tiny, tokens):
    tiny(tokens).square().sum().backward()
    assert [name for name, parameter in tiny.named_parameters() if parameter.grad is None] == []
