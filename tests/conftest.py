import os

import pytest
from hypothesis import settings

from tests.runs import CellRunner

# Machines that run tests are busy: how long an example takes says nothing.
settings.register_profile("project", deadline=None, max_examples=50)
settings.load_profile("project")


def pytest_addoption(parser):
    parser.addoption("--slurm", action="store_true", help="run the tests that need the cluster in SLURM_LAB_DIR")
    parser.addoption("--whole-matrix", action="store_true", help="every real run, not only a cover of them")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--whole-matrix"):
        for item in items:
            if item.get_closest_marker("whole_matrix"):
                item.add_marker(pytest.mark.skip(reason="others cover it in less time; add --whole-matrix"))
    if config.getoption("--slurm"):
        return
    why = os.environ.get("NO_SLURM_BECAUSE", "no cluster was asked for; start one with: bash launchers/test.sh --slurm")
    for item in items:
        if item.get_closest_marker("slurm"):  # not among its keywords: those have the names of folders too
            item.add_marker(pytest.mark.skip(reason=f"no throw-away Slurm: {why}"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> CellRunner:
    """Runs cells as real processes; each cell once a session, however many tests read it."""
    return CellRunner(tmp_path_factory.mktemp("cells"))
