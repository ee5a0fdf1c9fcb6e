"""The dialogue: shows a task, asks, keeps each answer at once, then shows prediction beside measurement."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from comparison.exercise.answers import AnswerBook, write_answers
from comparison.exercise.explanations import say
from comparison.exercise.judging import MEANING
from comparison.exercise.measured import Measured
from comparison.exercise.questions import RESULTS, Question, Task, Value
from comparison.formatting import plain

LETTERS = "abcdefgh"
LONGEST_TEXT = 2000
TABLE_WIDTH = 60
STYLES = {"fits": "green", "close": "green", "differs": "yellow", "open": "cyan"}


class Ended(Exception):
    """There is nothing more to read: Ctrl-D, or the end of a pipe."""


@dataclass
class Session:
    """One person's way through the tasks."""

    console: Console
    book: AnswerBook
    path: Path | None
    """Where answers are kept; None keeps none."""
    reads: bool = True
    """Whether answers are read."""
    waits: bool = True
    """Whether it waits for Enter after each task."""
    on_end: Callable[[], None] | None = None
    """What the end of the input means; without it, :class:`Ended` goes on."""
    _ended: bool = field(default=False, init=False)

    def keep(self) -> None:
        """Write all answers to their file."""
        if self.path is not None:
            write_answers(self.path, self.book)

    def do(self, task: Task, provide: Callable[[Task], Measured | None]) -> None:
        """Lead through one task: questions first, and nothing shown before they are answered."""
        self._heading(f"Task {task.name}: {task.title}")
        for paragraph in task.paragraphs:
            say(self.console, paragraph)
        for line in task.commands:
            command = line.replace(RESULTS, shlex.quote(self.book.results or RESULTS))
            self.console.print(Text(f"    {command}", style="cyan", overflow="fold"))
        if task.commands:
            self.console.print()
        if task.show:
            task.show(self.console)
        for question in task.questions:
            self._answer(question)
        measured = provide(task)
        self._compare(task, measured)
        task.explain(self.console, measured)
        self._pause()

    def is_done(self, task: Task) -> bool:
        """Say whether a task has been answered and shown."""
        answers = [self.book.answers.get(question.name) for question in task.questions]
        return all(answer is not None and answer.measured is not None for answer in answers)

    def _answer(self, question: Question) -> None:
        if (before := self.book.answers.get(question.name)) is not None:
            self.console.print(Text(question.text, overflow="fold"))
            say(self.console, f"You answered: {question.in_words(before.value)}")
            return
        self.console.print(Text(plain(question.text), style="bold", overflow="fold"))
        for letter, (_, text) in zip(LETTERS, question.choices, strict=False):
            self.console.print(Text(f"  {letter}  {text}", overflow="fold"))
        value = self._ask(question) if self.reads else None
        self.console.print()
        self.book = self.book.answered(question.name, value)
        self.keep()

    def _ask(self, question: Question) -> Value:
        letters = LETTERS[: len(question.choices)]
        wanted = {"choice": f"{letters[0]} to {letters[-1]}" if letters else "", "number": "a number",
                  "text": "in your words"}[question.kind]  # fmt: skip
        while True:
            try:
                line = self._read(f"Your answer ({wanted}; Enter: I don't know): ")
            except Ended:
                if self.on_end is None:
                    raise
                self.on_end()
                return None
            if not line:
                return None
            try:
                return parse(question, line)
            except ValueError as error:
                self.console.print(Text(str(error), style="yellow", overflow="fold"))

    def _read(self, prompt: str) -> str:
        """Print a prompt and return a line, control characters made visible."""
        self.console.print(Text(prompt), end="")
        self.console.file.flush()
        line = b"" if self._ended else sys.stdin.buffer.readline()
        if not line:
            self._ended = True
            self.console.print()
            raise Ended
        text = plain(line.decode("utf-8", "replace").strip())[:LONGEST_TEXT]
        if not sys.stdin.isatty():  # no terminal shows what was typed
            self.console.print(Text(text, overflow="fold"))
        return text

    def _compare(self, task: Task, measured: Measured | None) -> None:
        """Print prediction beside measurement, and keep what was shown."""
        rows = []
        for question in task.questions:
            answer = self.book.answers[question.name]
            words, mark = question.judge(answer.value, measured)
            if answer.measured is None:
                self.book = self.book.shown(question.name, words, mark)
            else:
                words, mark = answer.measured, answer.mark
            rows.append((question, answer.value, words, mark))
        self.keep()
        if all(question.kind == "text" for question in task.questions):
            return
        if self.console.width < TABLE_WIDTH:
            for question, value, words, mark in rows:
                self.console.print(Text(question.label, style="bold", overflow="fold"))
                said = f"  you said {question.in_words(value)}; measured: {words}; {MEANING.get(mark, '')}"
                self.console.print(Text(plain(said.removesuffix("; ")), overflow="fold"))
        else:
            table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
            for heading in ("", "you said", "it is", ""):
                table.add_column(heading, overflow="fold", no_wrap=not heading)
            for question, value, words, mark in rows:
                told = Text(MEANING.get(mark, ""), style=STYLES.get(mark, ""))
                table.add_row(question.label, Text(plain(question.in_words(value))), Text(plain(words)), told)
            self.console.print(table)
        self.console.print()

    def _heading(self, text: str) -> None:
        self.console.print(Text(text, style="bold"))
        self.console.print(Text("=" * min(len(text), self.console.width), style="bold"))

    def _pause(self) -> None:
        if self.waits:
            self._read("Enter goes on, Ctrl-D stops here: ")
            self.console.print()


def parse(question: Question, line: str) -> Value:
    """Return the answer that a line is.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    if question.kind == "text":
        return line
    if question.kind == "choice":
        keys = [key for key, _ in question.choices]
        letters = LETTERS[: len(keys)]
        if len(line) == 1 and line.lower() in letters:
            return keys[letters.index(line.lower())]
        if line.lower() in keys:
            return line.lower()
        raise ValueError(f"{line!r} is none of the choices; type a letter from {letters[0]} to {letters[-1]}")
    try:
        value = float(line.replace(",", "."))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:  # false for nan, too
        raise ValueError(f"{line!r} is no number here; type one such as 0.5 or 12")
    return value
