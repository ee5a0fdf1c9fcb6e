"""What a class answered: many files of answers in one table, for the instructor."""

from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import RunError
from comparison.exercise.answers import Answer, AnswerBook, read_answers
from comparison.exercise.judging import MEANING
from comparison.exercise.questions import Question
from comparison.exercise.tasks import tasks
from comparison.formatting import counted, plain

MARKS = tuple(MEANING)
LEGEND = "differs: the measurement contradicts the prediction, beyond the noise. open: it doesn't decide."


def read_class(folder: Path) -> tuple[list[AnswerBook], list[str]]:
    """Return all answers in a folder by file name, and a line for every file that holds none.

    Raises:
        RunError: there is no such folder, or no file in it.
    """
    if not folder.is_dir():
        raise RunError(f"--summary {folder} is no folder; name the one with your students' files, such as answers/")
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise RunError(f"--summary {folder}: no *.json in this folder; collect the files from your students' answers/")
    books, problems = [], []
    for file in files:
        try:
            if (book := read_answers(file)) is not None:
                books.append(book)
        except RunError as error:
            problems.append(str(error))
    return books, problems


def print_summary(console: Console, books: list[AnswerBook]) -> None:
    """Print how far everybody came, then what was answered to each question, then all texts."""
    questions = [question for task in tasks() for question in task.questions]
    console.print(Text(f"{counted(len(books), 'person')}, {len(questions)} questions".replace("persons", "people"),
                       style="bold"))  # fmt: skip
    table = _table("name", "answered", *MARKS)
    for book in books:
        marks = Counter(answer.mark for answer in book.answers.values())
        given = sum(answer.value is not None for answer in book.answers.values())
        table.add_row(Text(plain(book.name)), f"{given} of {len(questions)}", *(str(marks[mark]) for mark in MARKS))
    console.print(table)
    console.print(Text(LEGEND, overflow="fold"))
    for question in questions:
        answers = [(book, book.answers[question.name]) for book in books if question.name in book.answers]
        if answers:
            console.print()
            console.print(Text(f"{question.name}  {question.text}", style="bold", overflow="fold"))
            for line in _lines(question, answers):
                console.print(Text(f"  {plain(line)}", overflow="fold"))


def _lines(question: Question, answers: list[tuple[AnswerBook, Answer]]) -> list[str]:
    """Return what was answered: each text with its author, everything else counted."""
    if question.kind == "text":
        return [f"{book.name}: {question.in_words(answer.value)}" for book, answer in answers]
    given = Counter(
        (question.in_words(answer.value), MEANING[answer.mark] if answer.mark else "") for _, answer in answers
    )
    lines = []
    for (words, mark), number in given.most_common():
        lines.append(f"{number} x {words}{f' ({mark})' if mark else ''}")
    return lines


def _table(*labels: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for number, label in enumerate(labels):
        table.add_column(label, justify="right" if number else "left", overflow="fold")
    return table
