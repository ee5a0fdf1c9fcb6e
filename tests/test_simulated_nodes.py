"""Nodes that are one machine, as in a simulated cluster, make times that mean nothing, and the tables say so."""

import io

import pytest
from rich.console import Console

from comparison.loading import load_runs
from comparison.metrics import verdict
from comparison.pairing import pair_runs
from comparison.tables import print_pairing
from tests.factories import save


@pytest.fixture
def pairing(tmp_path, request):
    for side in ("native", "lightning"):
        for repeat in range(3):
            own = {"environment__started_at": f"2026-12-01T00:00:0{repeat}+00:00"}
            save(tmp_path, f"{side}-{repeat}.json", side, environment__nodes_share_hardware=request.param, **own)
    runs, problems = load_runs([tmp_path])
    assert not problems
    return pair_runs(runs)


@pytest.mark.parametrize("pairing", [True], indirect=True)
def test_nodes_that_are_one_machine_get_no_verdict_and_a_caveat(pairing):
    assert "simulated cluster" in verdict(pairing.pairs[0]).finding()
    assert "times mean nothing" in shown(pairing)


@pytest.mark.parametrize("pairing", [False, None], indirect=True)
def test_nodes_of_their_own_get_neither(pairing):
    assert "simulated" not in verdict(pairing.pairs[0]).finding()
    assert "simulated" not in shown(pairing)


def shown(pairing) -> str:
    text = io.StringIO()
    print_pairing(Console(file=text, width=200), pairing)
    return text.getvalue()
