"""What runs say about the catalogue: seen, claimed or contradicted; by hand, and with runs of the parity matrix."""

import dataclasses
import json
import subprocess
import sys

import pytest

import compare
from common.result import Evidence, Responsibilities, Result, StepCounts
from comparison import responsibility_table
from comparison.catalogue import CATALOGUE
from comparison.evidence import Witness, witnesses
from comparison.responsibilities import Owner, Responsibility
from comparison.source import Place
from tests.factories import make_data, make_result, save
from tests.runs import ROOT, Cell, signals_restored

STEP = {
    "step": 3,
    "collectives_of_strategy": {"all_reduce": 2},
    "collectives_of_others": {},
    "host_syncs": 0,
    "ddp_buckets": 2,
}
BY_NAME = {duty.name: duty for duty in CATALOGUE}
BF16 = [Cell(side, strategy, precision="bf16") for side in ("native", "lightning") for strategy in ("ddp", "fsdp2")]
OWN_WORKERS = [Cell("lightning", strategy, launcher="none") for strategy in ("ddp", "fsdp2")]


def place(file: str, function: str) -> Place:
    return Place("lightning" if file.startswith("lightning/") else "project", file, function, "x")


ZERO_GRAD = Responsibility(
    "zero_grad",
    Owner("native", "before", (place("native/train.py", "training_step"),)),
    Owner("lightning", "after", (place("lightning/loop.py", "Closure.closure"),)),
    calls=("zero_grad",),
)
BROADCAST = Responsibility(
    "broadcast", Owner("nobody", ""), Owner("lightning", "each step", (place("lightning/loop.py", "advance"),)),
    calls=("broadcast",),
)  # fmt: skip


def evidence(call: str, *frames: str, count: int = 1, phase: str = "step") -> Evidence:
    return Evidence(call=call, phase=phase, count=count, frames=list(frames))


def run_with(*seen: Evidence, side: str = "native") -> Result:
    responsibilities = Responsibilities(evidence=list(seen), step=StepCounts(**STEP))
    return make_result(side).model_copy(update={"responsibilities": responsibilities})


def finding(duty: Responsibility, *results: Result, side: str = "native", catalogue=(ZERO_GRAD, BROADCAST)):
    return Witness(side, results, catalogue).finding(duty)


def test_a_duty_is_seen_where_the_catalogue_says():
    found = finding(ZERO_GRAD, run_with(evidence("zero_grad", "native/train.py:40 training_step")))
    assert (found.state, str(found.sightings[0].place)) == ("seen", "native/train.py:40 training_step")


def test_a_function_further_out_than_the_innermost_counts():
    frames = ["lightning/module.py:9 optimizer_zero_grad", "lightning/loop.py:137 Closure.closure"]
    result = run_with(evidence("zero_grad", *frames), side="lightning")
    assert finding(ZERO_GRAD, result, side="lightning").state == "seen"


def test_a_duty_that_no_call_shows_is_claimed():
    assert finding(ZERO_GRAD, run_with()).state == "claimed"


def test_a_duty_without_calls_to_watch_is_claimed():
    launching = Responsibility("launching", Owner("launcher", "x"), Owner("launcher", "x"))
    assert finding(launching, run_with(evidence("zero_grad", "native/train.py:40 training_step"))).state == "claimed"


def test_runs_that_were_not_watched_say_nothing():
    assert finding(ZERO_GRAD, make_result()).state == "claimed"


@pytest.mark.parametrize(
    "frame",
    ["lightning/loop.py:1 Closure.closure", "native/train.py:9 train", "native/other.py:40 training_step"],
    ids=["another package", "another function", "another file"],
)
def test_somebody_else_contradicts(frame):
    found = finding(ZERO_GRAD, run_with(evidence("zero_grad", frame)))
    assert (found.state, str(found.sightings[0].place)) == ("contradicted", frame)


def test_somebody_else_besides_the_owner_contradicts_too():
    twice = [
        evidence("zero_grad", f"native/train.py:{line} {name}") for line, name in ((40, "training_step"), (9, "f"))
    ]
    found = finding(ZERO_GRAD, run_with(*twice))
    assert (found.state, [each.place.function for each in found.sightings]) == ("contradicted", ["f"])


def test_a_duty_of_nobody_that_somebody_does_is_contradicted():
    assert finding(BROADCAST, run_with(evidence("broadcast", "native/train.py:40 train"))).state == "contradicted"


def test_a_duty_of_nobody_that_nobody_does_is_seen():
    assert finding(BROADCAST, run_with()).state == "seen"


def test_the_instruments_contradict_nobody():
    assert finding(BROADCAST, run_with(evidence("broadcast", "common/recorder.py:40 finish"))).state == "seen"


def test_a_call_that_another_duty_explains_contradicts_nobody():
    teardown = Responsibility(
        "teardown", Owner("native", "", (place("native/end.py", "end"),)), Owner("nobody", ""), calls=("barrier",)
    )
    startup = Responsibility("startup", Owner("nobody", ""), Owner("nobody", ""), calls=("barrier",))
    result = run_with(evidence("barrier", "native/end.py:1 end"))
    assert [finding(duty, result, catalogue=(teardown, startup)).state for duty in (teardown, startup)] == ["seen"] * 2


def test_the_nearest_function_owns_a_call():
    inner = dataclasses.replace(
        BROADCAST, name="in", lightning=Owner("lightning", "", (place("lightning/a.py", "in"),))
    )
    outer = dataclasses.replace(
        BROADCAST, name="out", lightning=Owner("lightning", "", (place("lightning/a.py", "out"),))
    )
    result = run_with(evidence("broadcast", "lightning/a.py:1 in", "lightning/a.py:9 out"), side="lightning")
    states = [finding(duty, result, side="lightning", catalogue=(inner, outer)).state for duty in (inner, outer)]
    assert states == ["seen", "claimed"]


def test_times_are_those_of_one_run_however_many_there_are():
    once = run_with(evidence("zero_grad", "native/train.py:40 training_step"))
    thrice = run_with(evidence("zero_grad", "native/train.py:41 training_step", count=3))
    assert [str(each) for each in finding(ZERO_GRAD, once, once).times] == ["1x zero_grad"]
    assert [str(each) for each in finding(ZERO_GRAD, once, thrice).times] == ["1 to 3x zero_grad"]


def test_the_order_is_that_of_one_run():
    ddp = run_with(evidence("Optimizer", "native/train.py:1 train"))
    fsdp2 = run_with(evidence("fully_shard", "native/p.py:1 s"), evidence("Optimizer", "native/train.py:1 train"))
    witness = Witness("native", [ddp, fsdp2], (ZERO_GRAD,))
    assert witness.first_is_earlier("Optimizer", "fully_shard") is False
    assert witness.first_is_earlier("Optimizer", "barrier") is None


def test_one_step_is_told_once_for_runs_that_agree():
    result = run_with()
    (sentence,) = responsibility_table.step_sentences([result, result])
    assert sentence == (
        "native ddp, step 3: by the strategy 2 all_reduce for 2 buckets; by the code around it no collective, "
        "0 host syncs"
    )


# The command


@pytest.fixture
def show(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no cell of the table is folded

    def call(*arguments):
        with signals_restored():
            code = compare.main(["responsibilities", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def saved(folder, *seen: Evidence, name: str = "native.json"):
    data = {"evidence": [each.model_dump() for each in seen], "step": STEP}
    return save(folder, name, responsibilities=data)


SEEN = evidence("zero_grad", "native/train.py:40 training_step")
WRONG = evidence("zero_grad", "lightning/loop.py:1 elsewhere")


def test_evidence_that_agrees_is_exit_code_0(show, tmp_path):
    code, out, err = show(saved(tmp_path, SEEN))
    assert (code, err) == (0, "")
    assert "seen 1x zero_grad in the first step" in out


def test_evidence_that_contradicts_is_exit_code_1_and_names_the_duty(show, tmp_path):
    code, out, err = show(saved(tmp_path, WRONG))
    assert code == 1
    assert "the catalogue is contradicted by these runs in: zero_grad\n" in err
    assert "CONTRADICTED 1x zero_grad in the first step" in out


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_shown(show, tmp_path):
    code, out, err = show(saved(tmp_path, SEEN), tmp_path / "gone.json")
    assert (code, "gone.json" in err, "seen 1x zero_grad" in out) == (1, True, True)


def test_json_has_state_times_and_frames(show, tmp_path):
    _, out, _ = show(saved(tmp_path, SEEN), "--format", "json")
    row = next(row for row in json.loads(out)["duties"] if row["name"] == "zero_grad")
    assert row["native"]["state"] == "seen"
    assert row["native"]["times"] == [{"call": "zero_grad", "phase": "step", "low": 1, "high": 1}]
    frame = {"file": "native/train.py", "line": 40, "function": "training_step"}
    assert row["native"]["seen"] == [{"call": "zero_grad", "phase": "step", "frames": [frame]}]
    assert row["lightning"]["state"] == "claimed"


def test_markdown_has_the_states(show, tmp_path):
    _, out, _ = show(saved(tmp_path, SEEN), "--format", "markdown")
    assert r"seen 1x zero\_grad in the first step, at native/train.py:40 training\_step" in out


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_nothing_with_evidence_is_wider_than_the_terminal(tmp_path, width):
    path = saved(tmp_path, SEEN, WRONG)
    process = subprocess.run(
        [sys.executable, "compare.py", "responsibilities", str(path)],
        capture_output=True, text=True, cwd=ROOT, env={"COLUMNS": str(width), "PATH": ""}, timeout=60,
    )  # fmt: skip
    assert process.returncode == 1
    assert max(map(len, process.stdout.splitlines())) <= width


def test_the_catalogue_without_files_claims_and_sees_nothing(show):
    code, out, _ = show()
    assert (code, "claimed" in out, "seen" in out.split("Worth knowing")[0]) == (0, False, False)


def test_a_file_of_a_run_that_was_not_watched_is_valid(tmp_path):
    assert Result.model_validate_json(json.dumps(make_data())).responsibilities is None


# Real runs


NO_EVIDENCE = {"device binding"}
"""Watchable, but not on CPUs."""


@pytest.mark.slow
class TestRealRuns:
    @pytest.fixture
    def findings(self, runs):
        results = [runs.result(cell) for cell in [*BF16, *OWN_WORKERS]]
        return dict(zip(BY_NAME, responsibility_table.all_findings(witnesses(results, CATALOGUE)), strict=True))

    @pytest.mark.parametrize("name", [duty.name for duty in CATALOGUE if duty.calls and duty.name not in NO_EVIDENCE])
    def test_show_every_duty_that_can_be_watched_on_both_sides(self, findings, name):
        assert [found.state for found in findings[name]] == ["seen", "seen"]

    def test_count_the_barriers_that_the_catalogue_speaks_of(self, findings):
        (times,) = findings["startup barriers"][1].times
        assert (times.low, times.high) == (5, 6)
        assert "five with DDP, six with FSDP2" in BY_NAME["startup barriers"].lightning.what

    @pytest.mark.parametrize("name", ["zero_grad", "process group", "optimizer construction"])
    @pytest.mark.parametrize("side", ["native", "lightning"])
    def test_contradict_a_catalogue_that_is_wrong(self, runs, side, name):
        wrong = dataclasses.replace(BY_NAME[name], **{side: Owner("nobody", "")})
        mutated = [wrong if duty.name == name else duty for duty in CATALOGUE]
        results = [result for cell in BF16 if (result := runs.result(cell)).implementation == side]
        assert Witness(side, results, mutated).finding(wrong).state == "contradicted"

    @pytest.mark.parametrize(("side", "order"), [("native", True), ("lightning", False)])
    def test_tell_the_order_of_zero_grad_and_forward(self, runs, side, order):
        witness = Witness(side, [runs.result(Cell(side, "ddp", precision="bf16"))], CATALOGUE)
        assert witness.first_is_earlier("zero_grad", "forward") is order

    @pytest.mark.parametrize("side", ["native", "lightning"])
    def test_tell_that_the_optimizer_is_made_after_sharding(self, runs, side):
        witness = Witness(side, [runs.result(Cell(side, "fsdp2", precision="bf16"))], CATALOGUE)
        assert witness.first_is_earlier("fully_shard", "Optimizer") is True
