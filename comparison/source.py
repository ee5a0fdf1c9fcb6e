"""Where a statement is in the source that is installed right now, this project's or lightning's.

Source is read as text: neither torch nor lightning is imported.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from common.packages import PROJECT_ROOT, lightning_root


@dataclass(frozen=True)
class Place:
    """A statement in source, named so that it can be found again after the file has changed."""

    package: Literal["project", "lightning"]
    """Whose source it is."""
    file: str
    """Relative to the project, or to the folder that holds the package ``lightning``; with forward slashes."""
    function: str
    """Qualified name of the function whose body holds the statement, such as ``Closure.closure``."""
    contains: str
    """A piece of the statement's line; the first line of code in the function that contains it is the place."""


@dataclass(frozen=True)
class Location:
    """Where a place is right now."""

    file: str
    """As in :class:`Place`."""
    line: int
    """Counted from 1."""
    function: str
    """As in :class:`Place`."""
    path: Path
    """Absolute, for reading."""


class PlaceNotFound(Exception):
    """The source no longer has the file, the function or the statement that a :class:`Place` names."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place.file}: {place.function}: no line with {place.contains!r} ({reason})")
        self.place = place


def locate(place: Place) -> Location | None:
    """Find a place in the source as it is now. None if it is lightning's and lightning is not installed.

    Raises:
        PlaceNotFound: the file, the function or the statement is gone.
    """
    root = PROJECT_ROOT if place.package == "project" else lightning_root()
    if root is None:
        return None
    path = root / place.file
    try:
        text = read_source(path)
    except OSError as error:
        raise PlaceNotFound(place, f"the file: {error.strerror}") from None
    bodies = list(_bodies(text, place.function.split(".")))
    if not bodies:
        raise PlaceNotFound(place, "there is no such function")
    for start, end in bodies:
        position = _find_code(text, place.contains, start, end)
        if position is not None:
            return Location(place.file, text.count("\n", 0, position) + 1, place.function, path)
    raise PlaceNotFound(place, "the function does not contain it")


def read_source(path: Path) -> str:
    """Return a source file's text as it is now.

    Raises:
        OSError: it cannot be read.
    """
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, _modified: int) -> str:
    """Return a file's text; read again once its time of modification is another."""
    return path.read_text(encoding="utf-8")


SIGNATURE_END = re.compile(r":[ \t]*(?:#.*)?\n")
DOCSTRING = re.compile(r"\s*[rRuU]?(\"\"\"|''')")


def _bodies(
    text: str, names: list[str], start: int = 0, end: int | None = None, depth: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield (start, end) offsets of the body of every definition of the qualified name; properties have several.

    Goes by indentation, four spaces a level, which is much faster than parsing; the tests compare it with ``ast``.
    """
    end = len(text) if end is None else end
    for position in _definitions(text, names[0], start, end, 4 * depth):
        # The body ends at the next line that is indented no further; a signature's closing parenthesis is no such line.
        following = re.compile(rf"^ {{0,{4 * depth}}}[^\s#)]", re.MULTILINE).search(text, position + 1, end)
        body_end = following.start() if following else end
        signature_end = SIGNATURE_END.search(text, position, body_end)
        if signature_end is None:  # a stub on one line, such as an overload
            continue
        if len(names) > 1:
            yield from _bodies(text, names[1:], signature_end.end(), body_end, depth + 1)
        else:
            yield _skip_docstring(text, signature_end.end(), body_end), body_end


def _definitions(text: str, name: str, start: int, end: int, indentation: int) -> Iterator[int]:
    """Yield the offset of every ``def`` and ``class`` of that name at that indentation."""
    for keyword in ("def", "async def", "class"):
        opening = f"{' ' * indentation}{keyword} {name}"
        position = text.find(opening, start, end)
        while position >= 0:
            at_margin = position == 0 or text[position - 1] == "\n"
            if at_margin and text.startswith(("(", ":", "["), position + len(opening)):
                yield position
            position = text.find(opening, position + 1, end)


def _skip_docstring(text: str, start: int, end: int) -> int:
    opening = DOCSTRING.match(text, start, end)
    return text.index(opening[1], opening.end()) + 3 if opening else start


def _find_code(text: str, snippet: str, start: int, end: int) -> int | None:
    """Return the offset of the snippet's first appearance outside of comments."""
    position = text.find(snippet, start, end)
    while position >= 0:
        if not text[text.rfind("\n", 0, position) + 1 : position].lstrip().startswith("#"):
            return position
        position = text.find(snippet, position + 1, end)
    return None
