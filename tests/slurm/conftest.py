import os
from pathlib import Path

import pytest

from common.result import Result
from tests.runs import run, torchrun
from tests.slurm.cluster import WORKLOAD, completed


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name != "test_scripts.py":
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def under_torchrun(tmp_path_factory):
    """The native run of a strategy and world size under torchrun on this machine; each is made once."""
    folder = tmp_path_factory.mktemp("torchrun")
    made: dict[tuple[str, int], Result] = {}

    def result(strategy: str, world_size: int) -> Result:
        if (strategy, world_size) not in made:
            output = folder / f"{strategy}-{world_size}.json"
            options = ("--strategy", strategy, *WORKLOAD, "--output", str(output))
            made[strategy, world_size] = completed(run(torchrun(world_size, "-m", "native", *options)), output)
        return made[strategy, world_size]

    return result


@pytest.fixture(autouse=True, scope="session")
def cluster_is_named(request):
    """``--slurm`` needs to know where the cluster is."""
    if request.config.getoption("--slurm") and "SLURM_LAB_DIR" not in os.environ:
        pytest.fail("--slurm without SLURM_LAB_DIR; start both with: bash launchers/test.sh --slurm")
