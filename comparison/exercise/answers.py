"""The file that keeps one person's answers: its schema, read and written so that it is never half."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from common.atomic import write_whole
from common.errors import RunError
from common.result import Section

KIND = "native-vs-lightning exercise"
Mark = Literal["fits", "close", "differs", "open"]
"""How a prediction and a measurement go together; ``open``: the runs don't decide it, or it wasn't measured."""


class Answer(Section):
    """What was answered to one question, and what was shown afterwards."""

    value: str | float | None
    """Key of a choice, a number, a text; null: the person had no answer."""
    answered_at: str
    """ISO 8601, UTC."""
    measured: str | None = None
    """What the person was shown; null until then. From there on the answer stays as it is."""
    mark: Mark | None = None
    """Null until it was shown, for texts, and without an answer."""


class AnswerBook(Section):
    """All answers of one person."""

    kind: Literal["native-vs-lightning exercise"] = KIND
    schema_version: Literal["1.0"] = "1.0"
    name: str
    """Who answered."""
    results: str | None
    """Folder of the results that the answers are about; null before there was one."""
    answers: dict[str, Answer]
    """By the name of the question, in the order in which they were given."""

    def answered(self, question: str, value: str | float | None) -> "AnswerBook":
        """Return the book with one more answer."""
        answer = Answer(value=value, answered_at=datetime.now(UTC).isoformat(timespec="seconds"))
        return self.model_copy(update={"answers": {**self.answers, question: answer}})

    def shown(self, question: str, measured: str, mark: Mark | None) -> "AnswerBook":
        """Return the book with what was shown for a question that has an answer."""
        answer = self.answers[question].model_copy(update={"measured": measured, "mark": mark})
        return self.model_copy(update={"answers": {**self.answers, question: answer}})


def default_path(name: str) -> Path:
    """Return the file for a person of that name."""
    file = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "answers"
    return Path("answers") / f"{file}.json"


def read_answers(path: Path) -> AnswerBook | None:
    """Return the answers in a file; None if there is no such file.

    Raises:
        RunError: it cannot be read, or is something else.
    """
    try:
        return AnswerBook.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"{path} cannot be read: {error.strerror}; name another file with --answers PATH", exit_code=1
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"{path} holds no answers of this exercise ({f'{key}: ' if key else ''}{first['msg']}); "
            "name another file with --answers PATH",
            exit_code=1,
        ) from None


def write_answers(path: Path, book: AnswerBook) -> None:
    """Replace the file atomically: it holds the old answers or the new ones, never half.

    Raises:
        RunError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, book.model_dump_json(indent=2) + "\n", overwrite=True)
    except (OSError, RunError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"answers cannot be kept in {path} ({why}); name a file you may write with --answers PATH", exit_code=1
        ) from None
