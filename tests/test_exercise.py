"""`compare.py exercise`: a whole session at a terminal, its interruptions, its file of answers, its judgements."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import compare
from common import atomic
from common.errors import RunError
from comparison.code_view import find_duties
from comparison.exercise import explanations, measured, reading, runner
from comparison.exercise.answers import AnswerBook, default_path, read_answers, write_answers
from comparison.exercise.judging import judge_count, judge_factor, judge_order
from comparison.exercise.measured import BLOCK, DDP, ROOT, Ratio, choose, memory_ratio, time_ratio
from comparison.exercise.reading import READ
from comparison.exercise.runner import Runner
from comparison.exercise.session import parse
from comparison.exercise.tasks import tasks
from comparison.loading import load_runs
from comparison.source import locate
from comparison.statistics import Estimate
from tests.factories import OUT_OF_MEMORY, save, timed
from tests.runs import ROOT as PROJECT
from tests.runs import clean_environment
from tests.terminal import Terminal

QUESTIONS = {question.name: question for task in tasks() for question in task.questions}
AUTOMATIC = "lightning/pytorch/loops/optimization/automatic.py"
PROMPT = r"Enter: I don't know\): "
PAUSE = r"Ctrl-D stops here: "
HALF = {"local_parameter_elements": 182080, "local_parameter_elements_min": 182080, "local_parameter_fraction": 0.5}
CELLS = {
    DDP: {"workload__strategy": "ddp", "memory__peak_allocated_gib": 1.5},
    BLOCK: {
        "workload__strategy": "fsdp2",
        "workload__fsdp_wrap": "block",
        "workload__reshard_after_forward": {"block": True, "root": False},
        "memory__peak_allocated_gib": 0.9,
        "memory__parameters_gib": 0.125,
        "memory__gradients_gib": 0.125,
        "memory__optimizer_state_gib": 0.25,
        "correctness__parameters_synchronized": None,
        **{f"parameters__{name}": value for name, value in HALF.items()},
    },
}
CELLS[ROOT] = {
    **CELLS[BLOCK],
    "workload__fsdp_wrap": "root",
    "workload__reshard_after_forward": {"root": False},
    "memory__peak_allocated_gib": 1.2,
}
TIMES = {DDP: 10.0, BLOCK: 14.0, ROOT: 14.1}
"""Milliseconds a step: fsdp2 takes longer, and root against block is within the noise."""


def write_results(folder: Path, repeats: int = 3, **changes) -> Path:
    """Write runs of every cell by both sides, with a spread of a few percent over the repeats."""
    folder.mkdir(exist_ok=True)
    for cell, settings in CELLS.items():
        for implementation in ("native", "lightning"):
            for repeat in range(repeats):
                name = f"{cell.replace(' ', '-')}-{implementation}-{repeat}.json"
                slower = 1.0 if implementation == "native" else 1.005
                settings_of_run = {**settings, **timed(TIMES[cell] * slower * (1 + 0.02 * repeat)), **changes}
                save(folder, name, implementation, **settings_of_run)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return write_results(tmp_path_factory.mktemp("exercise") / "results")


def command(*arguments) -> list[str]:
    return [sys.executable, "compare.py", "exercise", *map(str, arguments)]


def pipe(*arguments, text: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), cwd=PROJECT, env=clean_environment(), input=text, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip


def measured_in(folder: Path):
    return choose(load_runs([folder])[0])


GIVEN = {
    "1.memory": ("b", "less"),
    "1.memory_factor": ("0.6", 0.6),
    "1.time": ("b", "less"),
    "1.time_factor": ("9", 9.0),
    "1.fraction": ("0,5", 0.5),
    "2.why": ("each rank keeps its rows", "each rank keeps its rows"),
    "3.memory": ("more", "more"),
    "3.time": ("b", "less"),
    "3.fraction": ("", None),
    "4.losses": ("a", "exact"),
    "4.time": ("c", "same"),
    "4.time_factor": ("3", 3.0),
    "4.memory": ("a", "more"),
    "5.moved": ("10", 10.0),
    "5.lines": ("5", 5.0),
    "5.1.where": ("a", "lightning"),
    "5.2.where": ("b", "lightning_impl"),
    "5.3.where": ("b", "lightning_impl"),
    "5.4.where": ("b", "lightning_impl"),
    "5.5.where": ("d", "nobody"),
    "5.6.where": ("a", "lightning"),
    "6.ddp": ("d", "large"),
    "6.fsdp2": ("d", "large"),
}
"""What is typed to each question, and what is kept of it."""


def answer(terminal: Terminal, names, before: str = "") -> str:
    """Answer these questions in turn, and go on after each task; return what was on the screen in between."""
    seen = before
    for task in tasks():
        wanted = [question.name for question in task.questions if question.name in names]
        for name in wanted:
            seen += terminal.wait_for(PROMPT)
            terminal.type(GIVEN[name][0] + "\n")
        if len(wanted) == len(task.questions):
            seen += terminal.wait_for(PAUSE)
            terminal.type("\n")
    return seen


@pytest.fixture(scope="module")
def whole(results, tmp_path_factory):
    """A whole session in an 80x24 terminal: the screen, and the answers that it left."""
    path = tmp_path_factory.mktemp("answers") / "eve.json"
    with Terminal(command(results, "--answers", path, "--name", "Eve")) as terminal:
        answer(terminal, GIVEN)
        assert terminal.finish() == 0, terminal.text
        return terminal.text, read_answers(path)


def test_every_question_of_the_workbook_is_answered_in_these_tests():
    assert list(GIVEN) == list(QUESTIONS)


def test_a_whole_session_keeps_every_answer(whole):
    _, book = whole
    assert (book.name, {name: each.value for name, each in book.answers.items()}) == (
        *("Eve",),
        {name: value for name, (_, value) in GIVEN.items()},
    )
    assert all(each.measured for each in book.answers.values())


def test_predictions_are_judged_as_the_noise_allows(whole):
    marks = {name: each.mark for name, each in whole[1].answers.items()}
    assert marks == {
        "1.memory": "fits",
        "1.memory_factor": "fits",
        "1.time": "differs",
        "1.time_factor": "differs",
        "1.fraction": "fits",
        "2.why": None,
        "3.memory": "fits",
        "3.time": "open",  # no clear difference: nobody is told to be wrong
        "3.fraction": None,
        "4.losses": "fits",
        "4.time": "fits",
        "4.time_factor": "differs",
        "4.memory": "differs",
        "5.moved": marks["5.moved"],
        "5.lines": "differs",
        "5.1.where": "fits",
        "5.2.where": "differs",
        "5.3.where": "fits",
        "5.4.where": "fits",
        "5.5.where": "fits",
        "5.6.where": "fits",
        "6.ddp": "open",
        "6.fsdp2": "open",
    }


def test_nothing_is_shown_before_it_was_predicted(whole):
    text = whole[0]
    first, _, rest = text.partition("it is")
    assert "times ddp" not in first
    assert "0.5000" not in first
    assert first.count("Your answer (") == 5
    assert "fsdp2 0.5000" in rest


def test_the_code_of_a_duty_is_shown_before_its_owner_in_lightning(whole):
    text = whole[0]
    for name in READ:
        start = text.index(f"Where did it go: {name}")
        asked = text.index(f"Where did {name} go under Lightning?", start)
        shown = text[start:asked]
        assert "Native PyTorch: " in shown
        assert "lightning/pytorch" not in shown
        assert re.search(r"^> ", shown, re.MULTILINE)


def test_the_library_s_place_is_revealed_with_its_line(whole):
    (duty,) = find_duties("zero_grad")
    place = duty.lightning.places[0]
    assert f"{place.file}:{locate(place).line} {place.function}" in whole[0]


def witnessed(frame: str, others: dict[str, int]) -> dict:
    """Return what a result says about who zeroed the gradients, and about one step."""
    return {
        "evidence": [{"phase": "step", "call": "zero_grad", "count": 1, "frames": [frame]}],
        "step": {
            "step": 3,
            "collectives_of_strategy": {"all_gather": 5, "reduce_scatter": 3},
            "collectives_of_others": others,
            "host_syncs": len(others),
            "ddp_buckets": None,
        },
    }


def test_evidence_of_a_run_is_shown_where_the_results_hold_it(results, tmp_path):
    (duty,) = find_duties("zero_grad")
    assert "hold no evidence" in reading.evidence(duty, measured_in(results))[0]
    frames = {
        "native": witnessed("native/train.py:44 training_step", {}),
        "lightning": witnessed(f"{AUTOMATIC}:137 Closure.closure", {"broadcast": 1}),
    }
    for number, (name, record) in enumerate(frames.items()):
        for cell in CELLS.values():
            save(tmp_path, f"{name}-{cell['workload__strategy']}-{cell.get('workload__fsdp_wrap')}.json", name,
                 **{**cell, **timed(10.0 + number)}, responsibilities=record)  # fmt: skip
    found = measured_in(tmp_path)
    assert reading.evidence(duty, found) == [
        "native: seen in your runs, 1x zero_grad, at native/train.py:44 training_step",
        f"lightning: seen in your runs, 1x zero_grad, at {AUTOMATIC}:137 Closure.closure",
    ]
    text = io.StringIO()
    for explain in (explanations.ddp_against_fsdp2, explanations.lightning_costs):
        explain(Console(file=text, width=400), found)
    assert "fsdp2 block 5 all-gather, 3 reduce-scatter" in text.getvalue()
    assert "native no collective, 0 host syncs; lightning 1 broadcast, 1 host sync" in text.getvalue()


def test_explanations_have_the_figures_of_the_results(whole):
    text = " ".join(whole[0].split())
    assert "ddp: 364,160 of 364,160 elements, 1.0000; fsdp2 block: 182,080 of 364,160 elements, 0.5000" in text
    assert "5 all-gathers and 3 reduce-scatters a step" in text
    assert "take 1 GiB on a ddp rank and 0.5 GiB on an fsdp2 rank, 0.50 times as much on 2 ranks" in text
    assert "So the peak is 0.60 times ddp's, not 1 / 2." in text
    assert "all 3 losses equal to the last bit" in text


def test_explanations_say_no_more_than_the_results_do(tmp_path):
    equal = {"memory__parameters_gib": 0.25, "memory__gradients_gib": 0.25, "memory__optimizer_state_gib": 0.5}
    told = io.StringIO()
    explanations.ddp_against_fsdp2(Console(file=told, width=400), measured_in(write_results(tmp_path / "odd", **equal)))
    assert "That is not what sharding does" in told.getvalue()
    assert "divides this part" not in told.getvalue()


def test_no_line_is_wider_than_the_terminal(whole, tmp_path):
    typed = [line for line in whole[0].splitlines() if "Your answer" not in line]
    assert max(map(len, typed)) <= 80


def test_ctrl_c_keeps_the_answers_so_far_and_the_same_command_goes_on(results, tmp_path):
    path = tmp_path / "eve.json"
    given = list(GIVEN)[:7]
    with Terminal(command(results, "--answers", path)) as terminal:
        answer(terminal, given)
        terminal.wait_for(PROMPT)
        terminal.type("\x03")
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.text
        shown = "".join(terminal.text.split())  # long paths are folded
        assert f"7of{len(GIVEN)}answersarekeptin{path}.Goonwith:pythoncompare.pyexercise{results}" in shown
    assert list(read_answers(path).answers) == given
    with Terminal(command(results, "--answers", path)) as terminal:
        screen = terminal.wait_for(PROMPT)
        assert "Task 1: DDP against FSDP2 (done)" in screen
        assert "You answered: root needs more" in screen
        terminal.type("b\n")
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert terminal.finish() == 0
    assert list(read_answers(path).answers) == [*given, "3.time"]


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_the_first_question_can_be_left_too(results, tmp_path, key):
    with Terminal(command(results, "--answers", tmp_path / "a.json")) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(key)
        assert terminal.finish() == (130 if key == "\x03" else 0)
        assert "Traceback" not in terminal.text
        assert f"0 of {len(GIVEN)} answers are kept" in " ".join(terminal.text.split())


def test_an_answer_that_was_shown_its_measurement_stays_as_it_is(results, tmp_path):
    path = tmp_path / "eve.json"
    text = "".join(GIVEN[name][0] + "\n" for name in list(GIVEN)[:5])
    assert pipe(results, "--answers", path, text=text).returncode == 0
    before = read_answers(path)
    assert all(each.measured for each in before.answers.values())
    other = tmp_path / "other"
    write_results(other, workload__seed=7)
    refused = pipe(other, "--answers", path, text="a\n" * 5)
    assert refused.returncode == 2
    assert str(results) in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert read_answers(path) == before


def test_all_done_shows_everything_again(results, tmp_path):
    path = tmp_path / "eve.json"
    text = "".join("".join(GIVEN[question.name][0] + "\n" for question in task.questions) + "\n" for task in tasks())
    first = pipe(results, "--answers", path, text=text)
    assert "That was all." in first.stdout, first.stdout + first.stderr
    again = pipe("--answers", path, text="\n" * len(tasks()))
    assert "You have done all tasks; here they are again." in again.stdout
    assert "That was all." in again.stdout


def test_an_answer_that_cannot_be_is_asked_for_again(results, tmp_path):
    ran = pipe(results, "--answers", tmp_path / "a.json", text="x\nb\nnan\n-1\nhalf\n0.5\n\x1b[31m\n")
    words = " ".join(ran.stdout.split())
    assert "'x' is none of the choices; type a letter from a to c" in words
    assert words.count("is no number here; type one such as 0.5 or 12") == 3
    assert "\x1b" not in ran.stdout
    assert {name: each.value for name, each in read_answers(tmp_path / "a.json").answers.items()} == {
        "1.memory": "less",
        "1.memory_factor": 0.5,
    }


def test_bytes_that_are_no_text_are_no_traceback(results, tmp_path):
    ran = subprocess.run(command(results, "--answers", tmp_path / "a.json"), cwd=PROJECT, env=clean_environment(),
                         input=b"\xff\xfe\nb\n", capture_output=True, timeout=60, check=False)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert read_answers(tmp_path / "a.json").answers["1.memory"].value == "less"


class TestHandout:
    def test_everything_is_revealed_and_nothing_is_kept(self, results, tmp_path):
        before = set(results.iterdir())
        ran = pipe(results, "--non-interactive", "--name", "nobody-keeps-this")
        assert (ran.returncode, ran.stderr) == (0, "")
        for task in tasks():
            assert f"Task {task.name}: {task.title}" in ran.stdout
        assert "fsdp2 0.5000" in ran.stdout
        assert "SIGTERM" in ran.stdout
        assert max(map(len, ran.stdout.splitlines())) <= 80
        assert set(results.iterdir()) == before
        assert not (PROJECT / default_path("nobody-keeps-this")).exists()

    def test_answers_come_from_a_pipe_until_it_ends(self, results, tmp_path):
        path = tmp_path / "a.json"
        ran = pipe(results, "--non-interactive", "--answers", path, text="b\n0.6\na\n")
        assert ran.returncode == 0
        book = read_answers(path)
        assert [each.value for each in book.answers.values()] == ["less", 0.6, "more", *[None] * (len(GIVEN) - 3)]
        assert [each.mark for each in book.answers.values()][:4] == ["fits", "fits", "fits", None]

    def test_without_results_the_tasks_are_printed_all_the_same(self):
        ran = pipe("--non-interactive")
        assert ran.returncode == 0
        assert "there are no results" in " ".join(ran.stdout.split())
        assert "Task 6: How large can it get" in ran.stdout

    def test_a_folder_without_results_is_an_error_of_one_line(self, tmp_path):
        ran = pipe(tmp_path, "--non-interactive")
        assert ran.returncode == 2
        assert ran.stderr.splitlines() == [
            f"compare.py: error: {tmp_path}: no results in this folder; make some with: python compare.py run"
        ]


class TestOnCpu:
    def test_a_peak_that_was_not_measured_stays_open_and_what_was_counted_is_shown(self, tmp_path):
        peaks = ("peak_allocated_gib", "peak_allocated_gib_min", "activations_and_temporary_gib")
        nothing = {f"memory__{name}": None for name in peaks}
        folder = write_results(tmp_path / "cpu", workload__device_type="cpu", **nothing)
        found = measured_in(folder)
        ratio = memory_ratio(found.between_cells(DDP, BLOCK))
        assert judge_order("more", ratio) == judge_order("less", ratio) == "open"
        words = " ".join(pipe(folder, "--non-interactive").stdout.split())
        assert "not measured: a CPU has no CUDA allocator" in words
        assert "your prediction stays open" in words
        assert "times do not" in words


def estimated(low: float, high: float) -> Ratio:
    return Ratio(Estimate((low * high) ** 0.5, low, high), "")


@pytest.mark.parametrize(
    ("answer", "low", "high", "mark"),
    [
        ("more", 1.2, 1.4, "fits"),
        ("less", 1.2, 1.4, "differs"),
        ("same", 1.2, 1.4, "differs"),
        ("less", 0.5, 0.6, "fits"),
        ("more", 0.5, 0.6, "differs"),
        ("more", 0.9, 1.3, "open"),
        ("less", 0.9, 1.3, "open"),
        ("same", 0.9, 1.3, "open"),
        ("same", 0.97, 1.04, "fits"),
        ("same", 1.02, 1.05, "fits"),
        ("more", 1.02, 1.05, "fits"),
        ("same", 1.05, 1.2, "open"),
        ("more", 1.0, 1.0, "differs"),
        ("same", 1.0, 1.0, "fits"),
    ],
)
def test_an_order_differs_only_if_the_whole_interval_contradicts_it(answer, low, high, mark):
    assert judge_order(answer, estimated(low, high)) == mark


@pytest.mark.parametrize(
    ("guess", "mark"), [(1.0, "fits"), (2.0, "fits"), (2.9, "close"), (0.7, "close"), (3.1, "differs"), (0, "differs")]
)
def test_a_factor_is_judged_by_the_interval(guess, mark):
    assert judge_factor(guess, estimated(1.0, 2.0)) == mark


@pytest.mark.parametrize(
    ("guess", "mark"), [(10, "fits"), (12, "close"), (8, "close"), (13, "differs"), (0, "differs")]
)
def test_a_count_is_judged_by_itself(guess, mark):
    assert judge_count(guess, 10) == mark


def test_without_a_measurement_everything_is_open():
    nothing = Ratio(None, "not measured")
    assert judge_order("more", nothing) == judge_factor(1.0, nothing) == judge_count(1.0, None) == "open"


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_runs_a_side_decide_nothing(tmp_path, repeats):
    found = measured_in(write_results(tmp_path / "few", repeats))
    pair = found.between_cells(DDP, BLOCK)
    assert time_ratio(pair).estimate is None
    assert memory_ratio(pair).estimate is None
    assert "fewer than 3 runs" in time_ratio(pair).grounds


def test_a_run_that_diverged_leaves_its_time_open(tmp_path):
    folder = write_results(tmp_path / "wrong")
    save(folder, "wrong.json", "native", **CELLS[BLOCK], outcome__status="diverged")
    ratio = time_ratio(measured_in(folder).between_cells(DDP, BLOCK))
    assert ratio.estimate is None
    assert "a run ended diverged" in ratio.grounds


def test_the_workload_with_most_cells_is_taken_and_control_runs_are_left_out(tmp_path):
    folder = write_results(tmp_path / "mixed")
    for number in range(30):
        save(
            folder,
            f"other-{number}.json",
            "native",
            **CELLS[DDP],
            workload__seed=7,
            timing__elapsed_seconds=number + 1.0,
        )
    save(folder, "control.json", "native", **CELLS[DDP], label="control")
    found = measured_in(folder)
    assert (found.workload.seed, len(found.runs)) == (1234, 18)
    assert measured.IMPLEMENTATIONS[0] == found.implementation(DDP, BLOCK) == "native"


def test_the_largest_preset_is_judged_by_what_ran_and_what_ran_out_of_memory(tmp_path):
    folder = write_results(tmp_path / "sizes")
    save(folder, "medium.json", "native", workload__preset="medium")
    save(folder, "large.json", "native", workload__preset="large", **OUT_OF_MEMORY)
    found = measured_in(folder)
    judged = {name: QUESTIONS["6.ddp"].judge(name, found) for name in ("tiny", "medium", "large")}
    assert {name: mark for name, (_, mark) in judged.items()} == {
        "tiny": "differs",
        "medium": "fits",
        "large": "differs",
    }
    assert judged["large"][0] == "ran medium; large ran out of memory"
    assert QUESTIONS["6.fsdp2"].judge("large", found)[1] == "open"


@pytest.mark.parametrize(("line", "value"), [("a", "more"), ("B", "less"), ("SAME", "same")])
def test_a_choice_is_a_letter_or_its_word(line, value):
    assert parse(QUESTIONS["1.memory"], line) == value


class TestAnswers:
    def test_a_file_that_is_no_answers_file_is_an_error_of_one_line_and_left_alone(self, results, tmp_path):
        path = tmp_path / "mine.json"
        for content in ("[]", "{", '{"name": "x"}', "\x00"):
            path.write_text(content)
            ran = pipe(results, "--answers", path)
            assert ran.returncode == 1
            assert len(ran.stderr.splitlines()) == 1
            assert "--answers PATH" in ran.stderr
            assert path.read_text() == content

    def test_a_file_that_cannot_be_written_is_an_error_of_one_line_before_any_question(self, results, tmp_path):
        (tmp_path / "file").write_text("")
        ran = pipe(results, "--answers", tmp_path / "file" / "a.json")
        assert ran.returncode == 1
        assert len(ran.stderr.splitlines()) == 1
        assert "Your answer" not in ran.stdout

    def test_a_write_that_fails_leaves_the_old_answers_and_no_other_file(self, tmp_path, monkeypatch):
        path = tmp_path / "a.json"
        book = AnswerBook(name="Eve", results=None, answers={}).answered("1.memory", "less")
        write_answers(path, book)

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(atomic.os, "replace", fail)
        with pytest.raises(RunError, match="No space left on device"):
            write_answers(path, book.answered("1.time", "more"))
        assert read_answers(path) == book
        assert [each.name for each in tmp_path.iterdir()] == ["a.json"]

    @pytest.mark.parametrize("name", ["../../etc/x", "a b", "ünï", "", "..", "x/y"])
    def test_a_name_cannot_lead_out_of_the_folder_of_answers(self, name):
        assert default_path(name).parent == Path("answers")
        assert default_path(name).suffix == ".json"

    def test_options_that_contradict_the_results_are_refused(self, results, tmp_path):
        for option, value in (("--preset", "small"), ("--steps", "99"), ("--device", "cpu"), ("--nproc-per-node", "7")):
            ran = pipe(results, "--answers", tmp_path / "a.json", option, value)
            assert ran.returncode == 2
            assert f"{option} {value}, but the results in {results} were made with" in ran.stderr
            assert len(ran.stderr.splitlines()) == 1


class TestRunner:
    def runner(self, folder: Path, monkeypatch, made: list) -> Runner:
        arguments = compare.build_parser().parse_args(["exercise", str(folder), "--device", "cpu"])
        monkeypatch.setattr(runner, "choose_ranks", lambda launcher, device, ranks: (device, ranks or 2))
        monkeypatch.setattr(runner, "run_all", lambda runs, *_: made.append(runs))
        return Runner(arguments, folder, compare.workload_arguments)

    def test_cells_that_are_there_are_not_run_again(self, tmp_path, monkeypatch):
        made = []
        folder = write_results(tmp_path / "cpu", workload__device_type="cpu")
        self.runner(folder, monkeypatch, made).provide((DDP, BLOCK, ROOT), Console(file=io.StringIO()))
        assert made == []
        assert not [path for path in folder.iterdir() if path.is_dir()]

    def test_missing_cells_are_run_with_the_workload_of_the_others(self, tmp_path, monkeypatch):
        made = []
        folder = write_results(tmp_path / "cpu", workload__device_type="cpu", workload__seed=77)
        for path in folder.glob("fsdp2-root-*"):
            path.unlink()
        self.runner(folder, monkeypatch, made).provide((BLOCK, ROOT), Console(file=io.StringIO()))
        ((first, *rest),) = made
        assert len(rest) == 5
        assert {run.strategy for run in (first, *rest)} == {"fsdp2"}
        options = dict(zip(first.arguments[::2], first.arguments[1::2], strict=True))
        assert options == {
            "--preset": "tiny",
            "--device": "cpu",
            "--fsdp-wrap": "root",
            "--batch-size-per-device": "1",
            "--warmup-steps": "1",
            "--steps": "2",
            "--precision": "bf16",
            "--seed": "77",
        }

    def test_a_run_that_failed_is_not_made_again_for_the_next_task_and_one_that_ended_never(
        self, tmp_path, monkeypatch
    ):
        made = []
        (tmp_path / "first").mkdir()
        save(tmp_path / "first", "ddp-native-1.json", workload__device_type="cpu")
        asked = self.runner(tmp_path, monkeypatch, made)
        for _ in range(2):
            asked.provide((DDP, BLOCK), Console(file=io.StringIO()))
        (runs,) = made
        assert len(runs) == 11
        assert "ddp-native-1" not in {run.name for run in runs}


class TestSummary:
    @pytest.fixture
    def students(self, results, tmp_path):
        folder = tmp_path / "class"
        folder.mkdir()
        for name, text in (("Eve", "b\n0.6\na\n"), ("Bob\x1b[31m", "a\n\nb\n2\n0.5\nrows\n"), ("Al", "b\n")):
            pipe(results, "--non-interactive", "--answers", folder / f"{name[:3]}.json", "--name", name, text=text)
        return folder

    def test_it_shows_how_far_everybody_came_and_what_the_class_answered(self, students):
        ran = pipe("--summary", students)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith("3 people, 23 questions")
        assert re.search(r"^Eve +3 of 23 ", ran.stdout, re.MULTILINE)
        assert "2 x fsdp2 needs less (it fits)" in ran.stdout
        assert "1 x ddp needs less (it differs)" in ran.stdout
        assert "rows" in ran.stdout
        assert "\x1b" not in ran.stdout

    def test_a_file_that_is_something_else_is_named_and_the_others_are_shown(self, students):
        (students / "bad.json").write_text("{}")
        ran = pipe("--summary", students)
        assert ran.returncode == 1
        assert "bad.json" in ran.stderr
        assert "3 people" in ran.stdout

    def test_a_folder_that_is_missing_or_empty_is_an_error_of_one_line(self, tmp_path):
        for folder in (tmp_path / "none", tmp_path):
            ran = pipe("--summary", folder)
            assert ran.returncode == 2
            assert len(ran.stderr.splitlines()) == 1


def test_the_workbook_imports_neither_torch_nor_lightning(results):
    code = (
        "import sys, compare; compare.main(['exercise', sys.argv[1], '--non-interactive']);"
        "print([name for name in ('torch', 'lightning') if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(results)], cwd=PROJECT, input="", capture_output=True,
                         text=True, timeout=60, check=False)  # fmt: skip
    assert (ran.returncode, ran.stderr.strip()) == (0, "[]")


@pytest.mark.slow
@pytest.mark.whole_matrix
def test_a_session_runs_what_is_missing_and_goes_on_after_an_interruption(tmp_path):
    path, folder = tmp_path / "a.json", tmp_path / "new"
    short = ("--device", "cpu", "--nproc-per-node", 2, "--repeats", 1, "--warmup-steps", 1, "--steps", 2)
    with Terminal(command(folder, "--answers", path, *short)) as terminal:
        terminal.wait_for("Runs will be of 2 ranks on cpu, preset tiny", timeout=120)
        for name in list(GIVEN)[:5]:
            terminal.wait_for(PROMPT)
            terminal.type(GIVEN[name][0] + "\n")
        terminal.wait_for(r"\[1/4\] ddp-native-1: ", timeout=240)
        terminal.type("\x03")
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.text
    done = {file.name for file in folder.rglob("*.json")}
    assert "ddp-native-1.json" in done
    assert len(done) < 4
    with Terminal(command(folder, "--answers", path, *short)) as terminal:
        terminal.wait_for(rf"{4 - len(done)} runs? of 2 ranks on cpu", timeout=120)
        shown = terminal.wait_for(PAUSE, timeout=500)
        assert "fewer than 3 runs" in " ".join(shown.split())
        terminal.type("\x04")
        assert terminal.finish() == 0
    assert len(list(folder.rglob("*.json"))) == 4
    assert {each.mark for each in read_answers(path).answers.values()} == {"open", "fits"}
