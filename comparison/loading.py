"""Result files from the paths a person names: files, or folders searched for ``*.json``."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.foreign import ResultFileError, read_content
from common.result import Result, parse_result


@dataclass(frozen=True)
class Run:
    """One run and where its result lies."""

    path: Path
    result: Result

    @property
    def completed(self) -> bool:
        """Whether it made all its steps and nothing is wrong with them."""
        return self.result.outcome.status == "completed"

    @property
    def went_wrong(self) -> bool:
        """Whether it made all its steps and computed something that nothing may be concluded from."""
        return self.result.outcome.status not in ("completed", "out_of_memory")

    @cached_property
    def data(self) -> dict[str, Any]:
        """The sections that runs are compared by, as plain data."""
        return self.result.model_dump(mode="json", include={"workload", "environment", "choices", "outcome"})


def load_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read every result among ``paths``.

    Returns:
        The runs in the order named (a folder's by name; a file that lies in a folder named too counts once), and a line
        for everything that could not be read, or that is a run met before.
    """
    runs: list[Run] = []
    problems: list[str] = []
    seen: dict[Path, Path] = {}
    """Every file met, and the path that led to it."""
    contents: dict[bytes, Path] = {}
    for path in paths:
        files = _files(path)
        if not files:
            problems.append(f"{path}: no *.json in this folder")
        for file in files:
            real, origin = _real(file), _real(path)
            if real in seen:
                if seen[real] == origin:
                    problems.append(f"{file}: named twice; a run cannot be compared with itself")
                continue
            seen[real] = origin
            try:
                content = read_content(file)
                run = Run(file, parse_result(content, file))
            except OSError as error:
                problems.append(f"{file}: {error.strerror}")
                continue
            except ResultFileError as error:
                problems.append(str(error))
                continue
            if content in contents:
                problems.append(f"{file}: a copy of {contents[content]}; a run cannot be compared with itself")
                continue
            contents[content] = file
            runs.append(run)
    return runs, problems


def _files(path: Path) -> list[Path]:
    """Return the results in a folder, by name; anything else stands for itself, and reading it says what is wrong."""
    if not os.path.isdir(path):
        return [path]
    return sorted(file for file in path.rglob("*.json") if not os.path.isdir(file))


def _real(path: Path) -> Path:
    """Return the path without links, as far as it exists; unlike ``Path.resolve``, links in a circle do not raise."""
    return Path(os.path.realpath(path))
