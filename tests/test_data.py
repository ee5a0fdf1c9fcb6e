import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.data import Batch, batch_fingerprint, make_batch, sample_digests
from common.presets import PRESETS

TINY = PRESETS["tiny"]


def global_batch(seed: int, world_size: int, global_batch_size: int) -> Batch:
    """Return all ranks' batches, one after the other."""
    share = global_batch_size // world_size
    batches = [make_batch(TINY, seed, rank, share) for rank in range(world_size)]
    return Batch(torch.cat([batch.tokens for batch in batches]), torch.cat([batch.labels for batch in batches]))


def fingerprint(batch: Batch) -> str:
    return batch_fingerprint(sample_digests(batch))


@pytest.fixture
def batch() -> Batch:
    return make_batch(TINY, seed=1234, rank=0, batch_size=3)


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_a_global_batch_holds_the_same_samples_however_many_ranks_share_it(world_size):
    alone, shared = global_batch(1234, 1, 6), global_batch(1234, world_size, 6)
    assert torch.equal(shared.tokens, alone.tokens)
    assert torch.equal(shared.labels, alone.labels)


@given(st.integers(0, 2**62), st.integers(1, 5), st.integers(1, 5))
def test_fingerprint_does_not_depend_on_the_number_of_ranks(seed, world_size, share):
    total = world_size * share
    assert fingerprint(global_batch(seed, world_size, total)) == fingerprint(global_batch(seed, 1, total))


@given(st.integers(0, 2**62), st.integers(0, 100))
def test_with_one_sample_a_rank_the_seed_is_seed_plus_rank(seed, rank):
    generator = torch.Generator().manual_seed(seed + rank)
    expected = torch.empty(32, dtype=torch.int64).random_(TINY.vocabulary_size, generator=generator)
    assert torch.equal(make_batch(TINY, seed, rank, 1).tokens[0], expected)


def test_ranks_draw_different_samples():
    assert not torch.equal(make_batch(TINY, 1234, 0, 1).tokens, make_batch(TINY, 1234, 1, 1).tokens)


def test_tokens_have_one_row_a_sample_and_one_column_a_position(batch):
    assert (batch.tokens.shape, batch.tokens.dtype) == ((3, 32), torch.int64)


def test_there_is_one_label_a_sample(batch):
    assert (batch.labels.shape, batch.labels.dtype) == ((3,), torch.int64)


def test_tokens_use_the_whole_vocabulary_and_nothing_else():
    tokens = make_batch(TINY, seed=1, rank=0, batch_size=2000).tokens
    assert tokens.unique().tolist() == list(range(4096))


def test_labels_use_all_classes_and_nothing_else():
    labels = make_batch(TINY, seed=1, rank=0, batch_size=500).labels
    assert labels.unique().tolist() == list(range(16))


def test_drawing_a_batch_leaves_the_default_generator_as_it_was():
    before = torch.random.get_rng_state()
    make_batch(TINY, 1234, 0, 3)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("field", ["tokens", "labels"])
def test_fingerprint_changes_with_a_single_value(batch, field):
    changed = getattr(batch, field).clone()
    changed.view(-1)[-1] += 1
    assert fingerprint(dataclasses.replace(batch, **{field: changed})) != fingerprint(batch)


def test_fingerprint_changes_with_the_order_of_samples(batch):
    assert fingerprint(Batch(batch.tokens.flip(0), batch.labels.flip(0))) != fingerprint(batch)


def test_fingerprint_changes_with_the_seed(batch):
    assert fingerprint(make_batch(TINY, seed=1235, rank=0, batch_size=3)) != fingerprint(batch)
