"""Faults of a run, with real ranks: it ends soon, never with exit code 0, one rank says why, and files are safe."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.result import read_result
from comparison.matrix import TORCHRUN_REPORT
from tests.marks import WHOLE_MATRIX, mostly
from tests.runs import Started, run, start, torchrun

pytestmark = pytest.mark.slow

PRECIOUS = b"an older result"
TINY = ("--preset", "tiny", "--device", "cpu", "--warmup-steps", "2", "--steps", "4")
HALVES = ("native", "lightning_impl")
each_half = pytest.mark.parametrize("half", HALVES)


def own_errors(stderr: str) -> list[str]:
    """Return what the ranks wrote on stderr, without torchrun's report about them."""
    lines = stderr.splitlines()
    return lines[: next((number for number, line in enumerate(lines) if TORCHRUN_REPORT in line), len(lines))]


# Something goes wrong on one rank of two


@dataclass(frozen=True)
class Fault:
    half: str
    strategy: str
    what: str
    at: int | str
    rank: int
    said: str
    """What the one line says, as a pattern; empty where nobody is left to say anything."""

    def __str__(self) -> str:
        return f"{self.half}-{self.strategy}-{self.what}-{self.at}-rank{self.rank}"


RAISED = (
    r"rank 1 of 2 failed with ValueError: a cable was pulled, in step 4 \(window\) of {}, preset tiny, batch 1 a rank"
)
LOST = (
    r"rank 0 of 2 (lost another rank, which was killed|was told to end by SIGTERM \(.*after another rank had ended\)).*"
)
TOLD = r"rank {} of 2 was told to end by SIGTERM .*, in step 4 \(window\) of "
FAULTS = [
    Fault("native", "ddp", "raise", 4, 1, RAISED.format("ddp")),
    Fault("lightning_impl", "fsdp2", "raise", 4, 1, RAISED.format(r"fsdp2 \(block wrap\)")),
    Fault("native", "fsdp2", "SIGKILL", 2, 1, LOST + r"in step 2 \(warmup\)"),
    pytest.param(Fault("lightning_impl", "ddp", "SIGKILL", 4, 1, LOST + r"in step 4 \(window\)"), marks=WHOLE_MATRIX),
    Fault("lightning_impl", "fsdp2", "SIGKILL", "final", 1, LOST + "after the last step"),
    Fault("native", "ddp", "SIGKILL", "writing", 0, ""),
    pytest.param(Fault("native", "fsdp2", "SIGTERM", 4, 1, TOLD.format(1)), marks=WHOLE_MATRIX),
    Fault("lightning_impl", "ddp", "SIGTERM", 4, 0, TOLD.format(0)),
    pytest.param(
        Fault("lightning_impl", "ddp", "SIGINT", 4, 1, r"rank 1 of 2 was interrupted by SIGINT, in step 4 \(window\)"),
        marks=WHOLE_MATRIX,
    ),
]


@dataclass
class Ended:
    fault: Fault
    folder: Path
    process: subprocess.CompletedProcess
    seconds: float
    left: list[int]


@pytest.fixture(scope="module", params=FAULTS, ids=str)
def ended(request, tmp_path_factory) -> Ended:
    """A run that was allowed to replace an older result, and in which one thing went wrong."""
    fault, folder = request.param, tmp_path_factory.mktemp("fault")
    output = folder / "result.json"
    output.write_bytes(PRECIOUS)
    command = torchrun(2, "-m", "tests.inject", fault.half, "--strategy", fault.strategy, *TINY)
    command += ["--output", str(output), "--overwrite-output"]
    injection = {"what": fault.what, "at": fault.at, "ranks": [fault.rank], "seconds": 0}
    with start(command, INJECT=json.dumps(injection), INJECTED=str(folder / "injected")) as started:
        stdout, stderr = started.process.communicate(timeout=120)
        seconds, left = time.time() - float((folder / f"injected.rank{fault.rank}").read_text()), started.members()
    process = subprocess.CompletedProcess(command, started.process.returncode, stdout, stderr)
    return Ended(fault, folder, process, seconds, left)


class TestFaultOfOneRank:
    def test_ends_the_run_with_a_failure_in_under_30_seconds(self, ended):
        assert (ended.process.returncode != 0, ended.seconds < 30) == (True, True)

    def test_leaves_no_process(self, ended):
        assert ended.left == []

    def test_leaves_the_older_result_as_it_was(self, ended):
        assert (ended.folder / "result.json").read_bytes() == PRECIOUS

    def test_leaves_nothing_that_looks_like_a_result(self, ended):
        assert [path.name for path in ended.folder.glob("*.json")] == ["result.json"]

    def test_is_told_in_one_line_by_one_rank(self, ended):
        module = ended.fault.half
        lines = [line for line in own_errors(ended.process.stderr) if "error: " in line]
        assert len(lines) == bool(ended.fault.said), ended.process.stderr
        for line in lines:
            assert re.match(f"python -m {module}: error: {ended.fault.said}", line), line
            assert line.endswith("; there is no result")

    def test_shows_one_traceback_where_code_failed_and_none_elsewhere(self, ended):
        errors = own_errors(ended.process.stderr)
        assert sum(line.startswith("Traceback") for line in errors) == (ended.fault.what == "raise"), errors


# Whoever started the ranks is told to end, or is gone


def running(half: str, strategy: str, folder: Path, ranks: int = 2):
    options = ("--preset", "tiny", "--device", "cpu", "--warmup-steps", "1", "--steps", "1000000")
    target = ["-m", "tests.announce_training", half, "--strategy", strategy, *options]
    return start(torchrun(ranks, *target, "--output", str(folder / "result.json")), ANNOUNCE=str(folder / "training"))


def wait_for(condition, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} seconds: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("half", "strategy", "number"),
    [
        pytest.param("native", "ddp", signal.SIGTERM, marks=WHOLE_MATRIX),
        ("lightning_impl", "fsdp2", signal.SIGTERM),
        ("native", "ddp", signal.SIGKILL),
        pytest.param("lightning_impl", "fsdp2", signal.SIGKILL, marks=WHOLE_MATRIX),
    ],
)
def test_ranks_end_with_their_launcher(half, strategy, number, tmp_path):
    with running(half, strategy, tmp_path) as started:
        ready = [tmp_path / f"training.rank{rank}" for rank in range(2)]
        wait_for(lambda: all(path.exists() for path in ready), 90, "training")
        begin = time.monotonic()
        started.process.send_signal(number)
        _, stderr = started.process.communicate(timeout=30)
        wait_for(lambda: started.members() == [], 30 - (time.monotonic() - begin), "the end of all processes")
    assert started.process.returncode != 0
    assert list(tmp_path.glob("*.json")) == []
    said = "was told to end by SIGTERM" if number == signal.SIGTERM else "torchrun is gone, at which the ranks met"
    assert len([line for line in stderr.splitlines() if said in line]) == 1, stderr


# The ranks do not find each other, or were told different things


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def ranks(half: str, *options: str, world_size: int, port: int, absent: int = -1):
    """Start ranks as srun does, each by itself, and no launcher that would end the others.

    ``options`` may have {rank} in them.
    """
    with contextlib.ExitStack() as stack:
        everyone: list[Started] = []
        for rank in range(world_size):
            if rank == absent:
                continue
            place = {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_NTASKS": str(world_size),
                "SLURM_NNODES": "1",
                "SLURM_STEP_TASKS_PER_NODE": str(world_size),
                "SLURM_STEP_NODELIST": "localhost",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            own = [option.format(rank=rank) for option in options]
            command = [sys.executable, "-m", half, "--strategy", "ddp", *TINY, *own]
            everyone.append(stack.enter_context(start(command, **place)))
        yield everyone


def endings(half: str, *options: str, **where) -> tuple[list[int], list[str]]:
    """Return exit codes and lines on stderr of ranks that :func:`ranks` starts."""
    with ranks(half, *options, **where) as everyone:
        errors = [started.process.communicate(timeout=60)[1] for started in everyone]
        codes = [started.process.returncode for started in everyone]
    return codes, [line.partition("error: ")[2] for text in errors for line in text.splitlines() if "error: " in line]


@mostly("half", "native", ["lightning_impl"])
class TestMeeting:
    def test_without_rank_one_is_given_up_and_names_it(self, half):
        port = free_port()
        codes, lines = endings(half, "--timeout-seconds", "3", world_size=2, port=port, absent=1)
        assert codes == [1]
        (line,) = lines
        assert f"rank 1 of 2 did not come to 127.0.0.1:{port} within 3 seconds (--timeout-seconds), rank 0 did" in line

    def test_without_rank_zero_is_given_up_and_says_where_it_was_expected(self, half):
        port = free_port()
        codes, (line,) = endings(half, "--timeout-seconds", "3", world_size=2, port=port, absent=0)
        assert codes == [1]
        assert f"found nobody at 127.0.0.1:{port} within 3 seconds (--timeout-seconds)" in line
        assert "MASTER_ADDR must name the host of rank 0" in line

    def test_at_a_port_in_use_is_given_up_and_names_another(self, half):
        with socket.socket() as foreign:
            foreign.bind(("0.0.0.0", 0))
            foreign.listen()
            port = foreign.getsockname()[1]
            codes, (line,) = endings(half, "--timeout-seconds", "3", world_size=2, port=port, absent=1)
        assert codes == [1]
        assert f"cannot meet at 127.0.0.1:{port}: the port is in use" in line
        assert f"export MASTER_PORT={port + 1}" in line

    def test_of_ranks_with_different_options_is_refused_with_every_value(self, half):
        codes, lines = endings(half, "--seed", "{rank}", world_size=2, port=free_port())
        assert codes == [2, 2]
        assert lines == [
            "the ranks disagree: --seed is 0 on rank 0 and 1 on rank 1; start all of them with one command"
        ]


def test_three_ranks_are_told_apart_by_what_each_was_told():
    codes, lines = endings("native", "--global-batch-size", "6", "--steps", "{rank}1", world_size=3, port=free_port())
    assert codes == [2, 2, 2]
    assert lines[0].startswith("the ranks disagree: --steps is 1 on rank 0 and 11 on rank 1 and 21 on rank 2;")


@mostly("half", "lightning_impl", ["native"])
def test_variables_that_an_ide_inherited_from_slurm_do_not_hinder_a_run(half, tmp_path):
    leaked = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "vscode", "SLURM_JOB_NODELIST": "no[such", "SLURM_NNODES": "2"}
    process = run(alone(half, tmp_path / "result.json"), **leaked)
    assert (process.returncode, process.stderr) == (0, "")
    assert read_result(tmp_path / "result.json").workload.world_size == 1


# Files


def alone(half: str, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", half, "--strategy", "ddp", *TINY, "--output", str(output), *more]


@pytest.fixture
def mounted(tmp_path):
    """A folder on a file system of its own, of so many bytes and with these options; gone after the test."""
    folders = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mounted{len(folders)}"
        folder.mkdir()
        if os.geteuid() != 0:
            pytest.skip("mounting a small file system needs root")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_named_and_keeps_no_part_of_a_result(mounted):
    folder = mounted("size=4k")
    process = run(alone("lightning_impl", folder / "result.json"))
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        f"python -m lightning_impl: error: {folder / 'result.json'} could not be written: No space left on device"
    ]
    assert list(folder.iterdir()) == []


@each_half
def test_a_read_only_folder_is_refused_before_the_training(mounted, half):
    folder = mounted("ro")
    process = run(alone(half, folder / "result.json"))
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.splitlines() == [
        f"python -m {half}: error: --output {folder / 'result.json'} cannot be written (Read-only file system); "
        "choose a folder you may write to"
    ]


def test_a_folder_that_is_removed_during_the_run_is_named(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    command = alone("native", folder / "result.json", "--steps", "200")
    with start([*command[:2], "tests.announce_training", *command[2:]], ANNOUNCE=str(tmp_path / "training")) as started:
        wait_for((tmp_path / "training.rank0").exists, 60, "training")
        folder.rmdir()
        _, stderr = started.process.communicate(timeout=60)
    assert started.process.returncode == 1
    assert f"{folder / 'result.json'} could not be written: No such file or directory" in stderr


def test_a_result_has_the_mode_of_the_umask_and_leaves_a_symbolic_link_one(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    process = run(["bash", "-c", 'umask 027; exec "$@"', "_", *alone("native", link)])
    assert (process.returncode, process.stderr) == (0, "")
    assert (stat.S_IMODE(target.stat().st_mode), link.is_symlink()) == (0o640, True)
    assert read_result(target).environment.timeout_seconds == 300


def test_of_two_runs_with_one_output_one_writes_it_and_the_other_says_so(tmp_path):
    output = tmp_path / "result.json"
    with start(alone("native", output)) as first, start(alone("lightning_impl", output)) as second:
        errors = {started.process.communicate(timeout=90)[1] for started in (first, second)}
        codes = sorted(started.process.returncode for started in (first, second))
    assert codes in ([0, 1], [0, 2])
    assert any(
        "was written by somebody else during the run" in text or "exists; name another" in text for text in errors
    )
    assert read_result(output).outcome.status == "completed"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
