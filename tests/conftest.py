import pytest
from hypothesis import settings

from tests.runs import CellRunner

# Machines that run tests are busy: how long an example takes says nothing.
settings.register_profile("project", deadline=None, max_examples=50)
settings.load_profile("project")


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> CellRunner:
    """Runs cells as real processes; each cell once a session, however many tests read it."""
    return CellRunner(tmp_path_factory.mktemp("cells"))
