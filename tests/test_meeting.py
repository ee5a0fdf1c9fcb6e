"""What ranks tell each other before any process group exists. Real meetings are in ``tests/test_faults.py``."""

import pytest
import torch

from common import meeting
from common.meeting import describe_differences, facts_of_rank
from common.options import RunConfig
from tests.worlds import CPU, FP32

CONFIG = RunConfig("lightning", "ddp", preset="tiny")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1", "1", "1"], []),
        (["1", "2"], ["--seed is 1 on rank 0 and 2 on rank 1"]),
        (["1", "1", "1", "2", "1"], ["--seed is 1 on ranks 0-2, 4 and 2 on rank 3"]),
        (["1", "2", "3"], ["--seed is 1 on rank 0 and 2 on rank 1 and 3 on rank 2"]),
    ],
)
def test_a_difference_is_described_with_the_value_of_every_rank(values, said):
    assert describe_differences([{"--seed": value, "torch": "2"} for value in values]) == said


def test_a_fact_that_only_some_ranks_tell_is_a_difference():
    assert describe_differences([{"lightning": "2.6.6"}, {}]) == ["lightning is 2.6.6 on rank 0 and unknown on rank 1"]


@pytest.mark.parametrize("name", ["--strategy", "--preset", "--steps", "--precision", "--timeout-seconds", "--device"])
def test_an_option_is_a_fact(name):
    assert name in facts_of_rank(CONFIG, CPU, FP32)


def test_versions_and_visible_hardware_are_facts():
    facts = facts_of_rank(CONFIG, CPU, FP32)
    assert {"python", "torch", "lightning", "the device", "the number of visible GPUs", "the precision"} < facts.keys()


def test_another_version_of_torch_is_another_fact(monkeypatch):
    own = facts_of_rank(CONFIG, CPU, FP32)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert describe_differences([own, facts_of_rank(CONFIG, CPU, FP32)])[0].endswith(" and 9.9.9 on rank 1")


def test_what_rank_zero_alone_decides_is_no_fact():
    assert not {"--output", "--label", "--overwrite-output"} & facts_of_rank(CONFIG, CPU, FP32).keys()


def test_a_restarted_attempt_meets_apart_from_the_one_before(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    first = meeting.attempt()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert meeting.attempt() != first
