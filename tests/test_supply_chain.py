"""What gets installed, and that nothing is fetched afterwards."""

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.runs import ROOT, run, tail

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]


def constraints() -> dict[str, Requirement]:
    """Return the lines of constraints.txt by package."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = [Requirement(line) for line in lines if line]
    return {canonicalize_name(pin.name): pin for pin in pins}


PINS = constraints()


def installed_for(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Return what is installed for ``requirements``, and for what those need here, with versions."""
    versions: dict[str, str] = {}
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = canonicalize_name(requirement.name)
        versions[name] = metadata.version(name).partition("+")[0]
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return versions


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_the_compromised_lightning_is_excluded_by_the_requirement_itself(version):
    (lightning,) = [each for each in DECLARED if each.name == "lightning"]
    assert not lightning.specifier.contains(version, prereleases=True)
    assert lightning.specifier.contains("2.6.4")


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_every_declared_dependency_is_pinned_to_a_version_that_it_allows(requirement):
    (pin,) = PINS[canonicalize_name(requirement.name)].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)


def test_every_constraint_is_one_version():
    assert [str(pin) for pin in PINS.values() if [each.operator for each in pin.specifier] != ["=="]] == []


def test_everything_that_gets_installed_is_pinned():
    assert sorted(installed_for(DECLARED).keys() - PINS.keys()) == []


def test_nothing_is_pinned_that_nothing_needs():
    assert sorted(PINS.keys() - installed_for(DECLARED).keys()) == []


# A user namespace, so that root is not needed; its only interface is a loopback that is still down.
ALONE = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c"]
WITH_LOOPBACK = """
import fcntl, os, socket, struct, sys
up_and_running = 0x41
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up_and_running))  # SIOCSIFFLAGS
os.execvp(sys.argv[1], sys.argv[1:])
"""
CONNECT = "import socket; socket.create_connection(('192.0.2.1', 443), timeout=5)"


@pytest.fixture(scope="module")
def without_network():
    """The start of a command line that runs the rest of it with the loopback interface alone."""
    command = [*ALONE, WITH_LOOPBACK]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here: {tried.stderr.strip().splitlines()[-1:]}")
    return command


def test_the_namespace_has_no_network(without_network):
    tried = run([*without_network, sys.executable, "-c", CONNECT], timeout=30)
    assert "Network is unreachable" in tried.stderr


@pytest.mark.slow
def test_the_comparison_needs_no_network(without_network, tmp_path, request):
    strategies = ["fsdp2", "ddp"] if request.config.getoption("--whole-matrix") else ["fsdp2"]
    matrix = ["--strategy", *strategies, "--repeats", "1", "--device", "cpu", "--nproc-per-node", "2"]
    short = ["--preset", "tiny", "--warmup-steps", "1", "--steps", "2", "--output-dir", str(tmp_path / "results")]
    finished = run([*without_network, sys.executable, "compare.py", "run", *matrix, *short], timeout=240)
    assert finished.returncode == 0, tail(finished)
    assert " ".join(finished.stdout.split()).count("losses and weights equal to the last bit") == len(strategies)
