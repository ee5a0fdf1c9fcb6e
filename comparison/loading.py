"""Result files from the paths a person names: files, or folders searched for ``*.json``."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.result import Result, ResultFileError, read_result


@dataclass(frozen=True)
class Run:
    """One run and where its result lies."""

    path: Path
    result: Result

    @cached_property
    def data(self) -> dict[str, Any]:
        """The result as plain data, by section."""
        return self.result.model_dump(mode="json")


def load_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read every result among ``paths``.

    Returns:
        The runs in the order named (a folder's by name; a file met twice counts once), and a line for everything that
        could not be read.
    """
    runs: list[Run] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            problems.append(f"{path}: no *.json in this folder")
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                runs.append(Run(file, read_result(file)))
            except ResultFileError as error:
                problems.append(str(error))
    return runs, problems
