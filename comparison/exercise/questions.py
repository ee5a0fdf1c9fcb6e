"""What a task and a question are, and how each kind of question is judged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from comparison.exercise.answers import Mark
from comparison.exercise.judging import judge_count, judge_factor, judge_order
from comparison.exercise.measured import Measured, Ratio

Value = str | float | None
Judge = Callable[[Value, Measured | None], tuple[str, Mark | None]]
"""From an answer and the results: what was measured, in words, and how the two go together; no mark without an answer
or for a text."""

RESULTS = "RESULTS"
NOT_MEASURED = Ratio(None, "not measured: there are no results")


@dataclass(frozen=True)
class Question:
    """Something to answer before anything is shown."""

    name: str
    """Key in the file of answers."""
    text: str
    label: str
    """What stands beside prediction and measurement."""
    kind: Literal["choice", "number", "text"]
    judge: Judge
    choices: tuple[tuple[str, str], ...] = ()
    """Key in the file, and text, of each choice."""

    def in_words(self, value: Value) -> str:
        """Return an answer as the person gave it."""
        if value is None:
            return "no answer"
        return dict(self.choices).get(value, value) if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True)
class Task:
    """One task of the workbook."""

    name: str
    """Its number."""
    title: str
    paragraphs: tuple[str, ...]
    """What is to be done."""
    questions: tuple[Question, ...]
    explain: Callable[[Console, Measured | None], None]
    """Shows what explains the difference, with figures of these results."""
    commands: tuple[str, ...] = ()
    """What a person would type to do it by hand; :data:`RESULTS` stands for the folder of results."""
    cells: tuple[str, ...] = ()
    """Which runs it needs."""
    show: Callable[[Console], None] | None = None
    """Shows what the questions are about, such as code."""


def order(
    name: str, text: str, label: str, choices: tuple[tuple[str, str], ...], ratio: Callable[[Measured], Ratio]
) -> Question:
    """Return a question whose choices are keyed ``more``, ``less`` and ``same``, judged by a ratio's interval."""

    def judge(value: Value, measured: Measured | None) -> tuple[str, Mark | None]:
        found = ratio(measured) if measured else NOT_MEASURED
        return found.grounds, None if value is None else judge_order(str(value), found)

    return Question(name, text, label, "choice", judge, choices)


def factor(name: str, text: str, label: str, ratio: Callable[[Measured], Ratio]) -> Question:
    """Return a question for a ratio, judged by its interval."""

    def judge(value: Value, measured: Measured | None) -> tuple[str, Mark | None]:
        found = ratio(measured) if measured else NOT_MEASURED
        return found.grounds, judge_factor(value, found) if isinstance(value, float) else None

    return Question(name, text, label, "number", judge)


def count(
    name: str, text: str, label: str, counted: Callable[[Measured | None], float | None], form: str = "{:,g}"
) -> Question:
    """Return a question for something that is counted and has no noise."""

    def judge(value: Value, measured: Measured | None) -> tuple[str, Mark | None]:
        found = counted(measured)
        words = "not measured" if found is None else form.format(found)
        return words, judge_count(value, found) if isinstance(value, float) else None

    return Question(name, text, label, "number", judge)


def choice(
    name: str,
    text: str,
    label: str,
    choices: tuple[tuple[str, str], ...],
    right: Callable[[Measured | None], tuple[str | None, str]],
) -> Question:
    """Return a question that one choice answers; ``right`` gives its key, or None if nobody knows, and grounds."""

    def judge(value: Value, measured: Measured | None) -> tuple[str, Mark | None]:
        key, grounds = right(measured)
        if value is None:
            return grounds, None
        return grounds, "open" if key is None else ("fits" if value == key else "differs")

    return Question(name, text, label, "choice", judge, choices)


def essay(name: str, text: str, label: str) -> Question:
    """Return a question that is answered in words, for the instructor to read."""
    return Question(name, text, label, "text", lambda _value, _measured: ("see below", None))
