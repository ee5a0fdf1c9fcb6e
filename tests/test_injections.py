"""What a run reports of things that go wrong at a known moment: real processes, and nothing simulated but the cause.

Two steps of warm-up (1 and 2), then four in the window (3 to 6).
"""

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import compare
from common.options import IMPLEMENTATION_MODULES
from common.result import Result, read_result
from comparison.matrix import TORCHRUN_REPORT
from tests.runs import signals_restored, start, tail, torchrun

pytestmark = pytest.mark.slow

SIDES = ("native", "lightning")
BOTH = (0, 1)
DELAY = 0.3


@dataclass(frozen=True)
class Injection:
    """One run and what happens in it."""

    implementation: str
    strategy: str
    what: str
    at: int | str = 0
    ranks: tuple[int, ...] = BOTH
    launcher: str = "torchrun"
    """``none`` is one process for native, and two for Lightning, which starts the second one without the injection."""

    def __str__(self) -> str:
        ranks = "".join(map(str, self.ranks))
        return f"{self.implementation}-{self.strategy}-{self.what}-{self.at}-{ranks}-{self.launcher}".replace(" ", "-")

    def command(self, output: Path) -> list[str]:
        target = ["-m", "tests.inject", IMPLEMENTATION_MODULES[self.implementation]]
        start_of_command = torchrun(2, *target) if self.launcher == "torchrun" else [sys.executable, *target]
        workers = [] if self.launcher == "torchrun" or self.implementation == "native" else ["--devices", "2"]
        return [
            *start_of_command,
            *("--strategy", self.strategy, "--preset", "tiny", "--device", "cpu", "--precision", "fp32", *workers),
            *("--warmup-steps", "2", "--steps", "4", "--output", str(output)),
        ]


@dataclass
class Ended:
    """A run that has ended, however."""

    injection: Injection
    output: Path
    process: subprocess.CompletedProcess
    left: list[int]
    """Ids of the processes that survived it."""
    ended_at: float

    @cached_property
    def result(self) -> Result:
        assert self.output.exists(), tail(self.process)
        return read_result(self.output)

    def seconds_since_injection(self) -> float:
        stamps = [float(path.read_text()) for path in self.output.parent.glob("injected.rank*")]
        assert len(stamps) == len(self.injection.ranks)
        return self.ended_at - min(stamps)

    def exit_codes(self) -> set[str]:
        """Exit codes of the ranks, by torchrun's report; without that of ranks which torchrun ended for another."""
        return set(re.findall(r"exitcode *: (-?\d+)", self.process.stderr)) - {"-15"}

    def own_errors(self) -> str:
        """Return what the ranks wrote on stderr, without torchrun's report about them."""
        lines = self.process.stderr.splitlines()
        report = next((number for number, line in enumerate(lines) if TORCHRUN_REPORT in line), len(lines))
        return "\n".join(lines[:report])


class Injector:
    """Runs each injection once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[Injection, Ended] = {}

    def __call__(self, injection: Injection) -> Ended:
        if injection not in self._ended:
            folder = self._folder / str(injection)
            folder.mkdir()
            self._ended[injection] = self._run(injection, folder)
        return self._ended[injection]

    @staticmethod
    def _run(injection: Injection, folder: Path) -> Ended:
        what = {"what": injection.what, "at": injection.at, "ranks": injection.ranks, "seconds": DELAY}
        command = injection.command(folder / "result.json")
        with start(command, INJECT=json.dumps(what), INJECTED=str(folder / "injected")) as started:
            stdout, stderr = started.process.communicate(timeout=120)
            ended_at, left = time.time(), started.members()
        process = subprocess.CompletedProcess(command, started.process.returncode, stdout, stderr)
        return Ended(injection, folder / "result.json", process, left, ended_at)


@pytest.fixture(scope="module")
def inject(tmp_path_factory) -> Injector:
    return Injector(tmp_path_factory.mktemp("injections"))


@pytest.fixture
def ended(inject, injection) -> Ended:
    return inject(injection)


@pytest.fixture
def outcome(ended):
    return ended.result.outcome


def shown(*paths: Path) -> tuple[int, str]:
    """Return exit code and output of `compare.py show`."""
    text = io.StringIO()
    with signals_restored(), contextlib.redirect_stdout(text):
        code = compare.main(["show", *map(str, paths), "--no-responsibilities"])
    return code, " ".join(text.getvalue().split())


def strict_json(path: Path) -> dict:
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def each(*injections: Injection):
    """Parametrise by injections; those that others nearly cover run with --whole-matrix alone."""
    marks = [[pytest.mark.whole_matrix] if str(injection) in NEARLY_COVERED else [] for injection in injections]
    return pytest.mark.parametrize(
        "injection",
        [pytest.param(each, marks=mark, id=str(each)) for each, mark in zip(injections, marks, strict=True)],
    )


NEARLY_COVERED = {
    "native-ddp-delay-1-01-torchrun",
    "native-ddp-delay-4-01-torchrun",
    "lightning-fsdp2-delay-4-01-torchrun",
    "native-ddp-delay-6-1-torchrun",
    "native-ddp-out-of-memory-1-0-torchrun",
    "lightning-ddp-out-of-memory-1-1-torchrun",
    "lightning-ddp-out-of-memory-2-01-torchrun",
    "lightning-fsdp2-out-of-memory-setup-1-torchrun",
    "native-fsdp2-not-a-number-4-1-torchrun",
    "lightning-ddp-not-a-number-4-1-torchrun",
    "native-ddp-drift-0-1-torchrun",
}


# A delay of known length


@each(*(Injection(side, strategy, "delay", 4) for side in SIDES for strategy in ("ddp", "fsdp2")))
class TestDelayInATimedStep:
    def test_is_in_the_lap_of_that_step_with_its_length(self, ended):
        assert DELAY * 1e3 <= ended.result.timing.laps_milliseconds[1] < 3 * DELAY * 1e3

    def test_is_in_no_other_lap(self, ended):
        laps = ended.result.timing.laps_milliseconds
        assert max([laps[0], *laps[2:]]) < DELAY * 1e3

    def test_is_in_the_window(self, ended):
        assert DELAY <= ended.result.timing.elapsed_seconds < 4 * DELAY

    def test_leaves_the_median_as_it_is(self, ended):
        assert ended.result.timing.milliseconds_per_step_median < DELAY * 1e3


@each(*(Injection(side, "ddp", "delay", 1) for side in SIDES))
class TestDelayInTheFirstStep:
    def test_is_in_no_lap(self, ended):
        assert max(ended.result.timing.laps_milliseconds) < DELAY * 1e3

    def test_is_not_in_the_window(self, ended):
        assert ended.result.timing.elapsed_seconds < DELAY


@each(*(Injection(side, "ddp", "delay", 6, (1,)) for side in SIDES))
def test_a_delay_of_another_rank_is_in_the_lap_of_rank_zero_that_waited_for_it(ended):
    assert ended.result.timing.laps_milliseconds[-1] >= DELAY * 1e3 * 0.9  # the ranks do not start at one moment


# Out of memory

OUT_OF_MEMORY = [
    Injection("native", "ddp", "out of memory", 4, (1,)),
    Injection("native", "ddp", "out of memory", 1, (0,)),
    Injection("native", "fsdp2", "out of memory", "setup", (1,)),
    Injection("native", "fsdp2", "out of memory", 4, BOTH),
    Injection("lightning", "ddp", "out of memory", 1, (1,)),
    Injection("lightning", "ddp", "out of memory", 4, (0,)),
    Injection("lightning", "ddp", "out of memory", 2, BOTH),
    Injection("lightning", "fsdp2", "out of memory", 3, (1,)),
    Injection("lightning", "fsdp2", "out of memory", "setup", (1,)),
    Injection("lightning", "ddp", "out of memory", 4, (0,), launcher="none"),
]


@each(*OUT_OF_MEMORY)
class TestOutOfMemory:
    def test_ends_the_run_in_under_30_seconds(self, ended):
        assert ended.seconds_since_injection() < 30

    def test_leaves_no_process(self, ended):
        assert ended.left == []

    def test_has_an_exit_code_of_its_own(self, ended, injection):
        if injection.launcher == "none":
            assert ended.process.returncode == 4
        else:
            assert (ended.process.returncode, ended.exit_codes()) == (1, {"4"})

    def test_is_the_outcome_with_its_phase_and_step(self, outcome, injection):
        phase = "setup" if injection.at == "setup" else "warmup" if injection.at <= 2 else "window"
        step = None if injection.at == "setup" else injection.at
        assert (outcome.status, outcome.phase, outcome.step) == ("out_of_memory", phase, step)

    def test_names_a_rank_that_ran_out(self, outcome, injection):
        assert outcome.rank in injection.ranks

    def test_tells_what_was_asked_for_and_what_was_free(self, outcome):
        assert (outcome.requested_gib, outcome.free_gib) == (2.0, 1.5)

    def test_keeps_the_first_line_of_the_cause(self, outcome):
        assert outcome.message.startswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
        assert "\n" not in outcome.message

    def test_has_no_measurements(self, ended):
        result = ended.result
        sections = (result.timing, result.memory, result.parameters, result.correctness, result.choices)
        assert sections == (None,) * 5

    def test_knows_where_it_ran(self, ended):
        assert len(ended.result.environment.hosts) == 1

    def test_is_strict_json(self, ended):
        assert strict_json(ended.output)["timing"] is None

    def test_says_so_once(self, ended):
        assert len(re.findall(r"  out_of_memory (?:in step|during)", ended.process.stdout)) == 1

    def test_has_no_other_error(self, ended, injection):
        if injection.launcher == "torchrun":
            assert ended.own_errors() == ""

    def test_is_shown_as_evidence_beside_a_completed_run_without_a_verdict(self, ended, injection, completed, request):
        if injection.strategy == "fsdp2" and not request.config.getoption("--whole-matrix"):
            pytest.skip("ddp is shown in the same way and needs no further run; add --whole-matrix")
        code, text = shown(ended.output, completed(injection))
        assert (code, "NOT COMPARABLE" in text) == (0, False)
        assert f"outcome {injection.implementation}: out_of_memory " in text
        assert "asked for 2.00 GiB, free were 1.50 GiB" in text
        assert f"no verdict: no completed run of {injection.implementation}" in text
        assert "tokens_per_second" not in text


@pytest.fixture
def completed(inject):
    """The other side's run of the same workload, to which nothing happened."""

    def twin(injection: Injection) -> Path:
        other = "lightning" if injection.implementation == "native" else "native"
        ended = inject(Injection(other, injection.strategy, "nothing"))
        assert ended.result.outcome.status == "completed"
        return ended.output

    return twin


@each(Injection("native", "ddp", "out of memory", 3, (0,), launcher="none"))
def test_one_process_out_of_memory_ends_with_the_exit_code_itself(ended):
    assert (ended.process.returncode, ended.result.outcome.rank) == (4, 0)


# Losses and weights that are wrong


@each(*(Injection(side, strategy, "not a number", 4, (1,)) for side in SIDES for strategy in ("ddp", "fsdp2")))
class TestLossThatIsNotANumber:
    def test_is_the_outcome_with_its_step(self, outcome):
        # On rank 1 alone in its step; by the next one the gradients have brought it to rank 0.
        assert (outcome.status, outcome.phase) == ("diverged", "window")
        assert (outcome.step, outcome.rank) in [(5, 0), (4, 1)]

    def test_names_the_step_and_the_value(self, outcome):
        assert outcome.message == f"the loss of step {outcome.step} on rank {outcome.rank} is nan"

    def test_has_an_exit_code_of_its_own(self, ended):
        assert (ended.process.returncode, ended.exit_codes()) == (1, {"5"})

    def test_leaves_no_correctness_to_compare(self, ended):
        assert ended.result.correctness is None

    def test_is_strict_json(self, ended):
        assert strict_json(ended.output)["outcome"]["status"] == "diverged"

    def test_is_shown_without_a_verdict(self, ended, injection, completed):
        code, text = shown(ended.output, completed(injection))
        assert code == 1
        assert f"outcome {injection.implementation}: diverged in step " in text
        assert "no verdict: a run ended diverged" in text


@each(Injection("native", "ddp", "drift", 0, (1,)), Injection("lightning", "ddp", "drift", 0, (1,)))
class TestReplicasThatDisagree:
    def test_are_the_outcome_with_the_rank(self, outcome):
        assert (outcome.status, outcome.phase, outcome.step, outcome.rank) == ("out_of_sync", "final", 6, 1)

    def test_have_an_exit_code_of_their_own(self, ended):
        assert (ended.process.returncode, ended.exit_codes()) == (1, {"5"})

    def test_are_no_evidence_of_parity(self, ended):
        assert ended.result.correctness.parameters_synchronized is False

    def test_are_shown_without_a_verdict(self, ended, injection, completed):
        code, text = shown(ended.output, completed(injection))
        assert code == 1
        assert f"outcome {injection.implementation}: out_of_sync in step 6 (final) on rank 1: " in text
        assert "no verdict: a run ended out of sync" in text
