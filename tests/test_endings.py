"""How runs end: cleanly, killed in the middle of training, or before they begin."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.marks import WHOLE_MATRIX, mostly
from tests.runs import Started, run, start, tail, torchrun

pytestmark = pytest.mark.slow

HALVES = ("native", "lightning_impl")
ENDLESS = ("--warmup-steps", "1", "--steps", "1000000")
each_half = pytest.mark.parametrize("half", HALVES)


def arguments(output: Path, *more: str) -> list[str]:
    return ["--strategy", "fsdp2", "--preset", "tiny", "--device", "cpu", "--output", str(output), *more]


def wait_until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.05)


def start_training(half: str, folder: Path, *more: str, ranks: int | None = None):
    """Start a run without end: under torchrun where ``ranks`` are given, else as one process."""
    target = ["-m", "tests.announce_training", half, *arguments(folder / "result.json", *ENDLESS, *more)]
    command = torchrun(ranks, *target) if ranks else [sys.executable, *target]
    return start(command, ANNOUNCE=str(folder / "training"))


def wait_for_training(started: Started, folder: Path) -> None:
    def begun() -> bool:
        assert started.process.poll() is None, started.process.stderr.read()
        return (folder / "training.rank0").exists()

    wait_until(begun)


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith("training.rank")]


@WHOLE_MATRIX
@pytest.mark.parametrize("half", HALVES * 2)
def test_consecutive_runs_of_two_ranks_end_with_exit_code_0(half, tmp_path):
    process = run(torchrun(2, "-m", half, *arguments(tmp_path / "result.json", "--warmup-steps", "1", "--steps", "2")))
    assert process.returncode == 0, tail(process)
    assert process.stderr == ""


@mostly("half", "lightning_impl", ["native"])
def test_a_run_whose_processes_are_all_killed_leaves_no_file(half, tmp_path):
    with start_training(half, tmp_path, ranks=2) as started:
        wait_for_training(started, tmp_path)
        started.kill_all()
    assert left_in(tmp_path) == []


@pytest.fixture(scope="module", params=[pytest.param(half, marks=WHOLE_MATRIX) for half in HALVES])
def killed(request, tmp_path_factory) -> tuple[Started, Path]:
    """A run of two ranks, one of which was killed in the middle of training, and its folder."""
    folder = tmp_path_factory.mktemp("killed")
    with start_training(request.param, folder, ranks=2) as started:
        wait_for_training(started, folder)
        worker = next(pid for pid in started.members() if pid != started.process.pid)
        os.kill(worker, signal.SIGKILL)
        started.process.communicate(timeout=60)
        yield started, folder


class TestRunOfWhichOneRankIsKilled:
    def test_fails(self, killed):
        assert killed[0].process.returncode == 1

    def test_leaves_no_file(self, killed):
        assert left_in(killed[1]) == []

    def test_leaves_no_process(self, killed):
        assert killed[0].members() == []


@each_half
def test_a_run_that_is_told_to_stop_is_no_success(half, tmp_path):
    with start_training(half, tmp_path) as started:
        wait_for_training(started, tmp_path)
        started.process.send_signal(signal.SIGTERM)
        started.process.communicate(timeout=60)
    assert (started.process.returncode != 0, left_in(tmp_path)) == (True, [])


def test_workers_of_lightning_end_with_the_process_that_started_them(tmp_path):
    with start_training("lightning_impl", tmp_path, "--devices", "2") as started:
        wait_for_training(started, tmp_path)
        started.process.kill()
        wait_until(lambda: started.members() == [])
    assert left_in(tmp_path) == []


@pytest.fixture(scope="module", params=HALVES)
def refused(request, tmp_path_factory) -> tuple[subprocess.CompletedProcess, Path]:
    """A run that found a file at its output, and that file."""
    output = tmp_path_factory.mktemp("existing") / "result.json"
    output.write_bytes(b"precious")
    return run(torchrun(2, "-m", request.param, *arguments(output))), output


class TestExistingOutput:
    def test_fails_the_run(self, refused):
        assert refused[0].returncode != 0

    def test_is_named_once_with_the_option_that_permits_it(self, refused):
        lines = [line for line in refused[0].stderr.splitlines() if "add --overwrite-output" in line]
        assert len(lines) == 1

    def test_survives_byte_for_byte(self, refused):
        assert refused[1].read_bytes() == b"precious"

    def test_prevents_the_training(self, refused):
        assert refused[0].stdout == ""


@mostly("half", "native", ["lightning_impl"])
def test_an_existing_output_is_replaced_where_that_is_permitted(half, tmp_path):
    output = tmp_path / "result.json"
    output.write_bytes(b"old")
    short = ("--warmup-steps", "1", "--steps", "1", "--overwrite-output")
    run([sys.executable, "-m", half, *arguments(output, *short)])
    assert output.read_bytes().startswith(b'{\n  "schema_version"')
