"""One duty's code on both sides next to each other, with the line numbers of the live source."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import RunError
from comparison.catalogue import CATALOGUE
from comparison.responsibilities import Owner, Responsibility
from comparison.responsibility_table import NOT_INSTALLED, lightning_version
from comparison.source import Place, PlaceNotFound, locate, read_source
from comparison.syntax import definitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

ALL = "all"
WHOLE_FUNCTION = 30
"""Lines up to which the whole function of a place is shown."""
AROUND = 4
"""Lines shown before and after a place in a longer function."""
SIDE_BY_SIDE = 140
"""Columns from which both sides stand next to each other; below, one stands under the other."""
GAP = 3
HEADINGS = ("Native PyTorch", "Lightning")
THEME = "ansi_dark"
"""The terminal's own colours, on its own background."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of one function that hold one place or several of an owner."""

    file: str
    """Relative to the project, or to the folder that holds the package ``lightning``."""
    function: str
    """Qualified name."""
    places: tuple[int, ...]
    """Numbers of the lines that do the duty."""
    blocks: tuple[tuple[int, tuple[str, ...]], ...]
    """Runs of lines, each with the number of its first; what lies between two is left out."""
    whole: bool
    """Whether the whole function is there."""

    @property
    def caption(self) -> str:
        """File, lines of the places, and function."""
        return f"{self.file}:{','.join(map(str, self.places))} {self.function}"


@dataclass(frozen=True)
class Side:
    """Who does a duty on one side, and the code that does it."""

    owner: Owner
    excerpts: tuple[Excerpt, ...]
    missing: tuple[str, ...]
    """Why places could not be shown, a line for each."""


def find_duties(name: str) -> list[Responsibility]:
    """Return the duty of that name, or all for ``all``. Case, dashes and underscores make no difference.

    Raises:
        RunError: there is no such duty; the message lists names that are near.
    """
    by_name = {_plain(duty.name): duty for duty in CATALOGUE}
    wanted = _plain(name)
    if wanted == ALL:
        return list(CATALOGUE)
    if wanted in by_name:
        return [by_name[wanted]]
    near = [plain for plain in by_name if wanted and wanted in plain]
    near += [plain for plain in difflib.get_close_matches(wanted, by_name, n=3) if plain not in near]
    listed = ", ".join(f'"{by_name[plain].name}"' for plain in near[:5])
    hint = f"near it are {listed}" if near else "all names: python compare.py responsibilities"
    example = by_name[near[0]].name if near else ALL
    shown = ascii(name)
    raise RunError(
        f'--code {shown} is no duty; {hint}; for example: python compare.py responsibilities --code "{example}"'
    )


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


def side_of(owner: Owner) -> Side:
    """Return an owner's code; places of one function share an excerpt."""
    excerpts: list[Excerpt] = []
    missing: list[str] = []
    for _, group in groupby(owner.places, key=lambda place: (place.package, place.file, place.function)):
        lines, path = [], None
        places = list(group)
        for place in places:
            try:
                location = locate(place)
            except PlaceNotFound as error:
                missing.append(f"not found in the installed version: {error}")
                continue
            if location is None:
                missing.append(f"{place.file} {place.function}: {NOT_INSTALLED}")
            else:
                path = location.path
                lines.append(location.line)
        if path is not None:
            excerpts.append(_excerpt(places[0], path, sorted(set(lines))))
    return Side(owner, tuple(excerpts), tuple(missing))


def _excerpt(place: Place, path: Path, lines: list[int]) -> Excerpt:
    """Return the whole function if it is short, otherwise where it begins and the lines around the places."""
    text = read_source(path).splitlines()
    first, body, last = _extent(path, place.function, lines[0])
    whole = last - first < WHOLE_FUNCTION
    wanted = set(range(first, last + 1))
    if not whole:
        # The signature, but not a docstring, which may be longer than everything else.
        wanted = set(range(first, min(body, first + AROUND + 1)))
        for line in lines:
            wanted |= set(range(max(first, line - AROUND), min(last, line + AROUND) + 1))
    return Excerpt(place.file, place.function, tuple(lines), _blocks(text, sorted(wanted)), whole)


def _blocks(text: Sequence[str], numbers: Iterable[int]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    found = []
    for _, run in runs:
        block = [number for _, number in run]
        found.append((block[0], tuple(text[number - 1] for number in block)))
    return tuple(found)


def _extent(path: Path, function: str, line: int) -> tuple[int, int, int]:
    """Return first line with decorators, first line of the body, and last line of the definition around ``line``."""
    for node in definitions(read_source(path)).get(function, []):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if first <= line <= node.end_lineno:
            return first, node.body[0].lineno, node.end_lineno
    return line, line, line


def render(console: Console, duties: Sequence[Responsibility]) -> None:
    """Print the code of duties; through the user's pager if there are several and a person is looking."""
    if len(duties) > 1 and console.is_terminal:
        os.environ.setdefault("LESS", "-R")  # less shows colours as they are only if told so
        with console.pager(styles=console.color_system is not None):
            _print_all(console, duties)
    else:
        _print_all(console, duties)


def _print_all(console: Console, duties: Sequence[Responsibility]) -> None:
    for number, duty in enumerate(duties):
        if number:
            console.print()
        print_duty(console, duty)


def print_duty(console: Console, duty: Responsibility) -> None:
    """Print a duty's code on both sides: next to each other where there is room, else one under the other."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{duty.name} ({duty.change})", style="bold"))
    console.print(Text("=" * min(console.width, len(duty.name) + len(duty.change) + 3), style="bold"))
    sides = [side_panel(heading, owner) for heading, owner in zip(HEADINGS, (duty.native, duty.lightning), strict=True)]
    if console.width >= SIDE_BY_SIDE:
        width = (console.width - GAP) // 2
        grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        for _ in sides:
            grid.add_column(width=width)
        grid.add_row(*sides)
        console.print(grid)
    else:
        for number, side in enumerate(sides):
            if number:
                console.print()
            console.print(side)
    if duty.note:
        console.print()
        console.print(Text(f"Worth knowing: {duty.note}"))


def side_panel(heading: str, owner: Owner) -> RenderableType:
    """Return one side as something to print: who does it, then the code."""
    from rich.console import Group
    from rich.text import Text

    side = side_of(owner)
    what = owner.what or owner.who
    by = f" {lightning_version()}" if owner.who == "lightning" else ""
    parts: list[RenderableType] = [Text(f"{heading}{by}: {what}", style="bold")]
    for number, excerpt in enumerate(side.excerpts):
        parts += [Text()] * bool(number)
        parts += [Text(excerpt.caption, style="cyan", overflow="fold"), code_table(excerpt)]
    parts += [Text(reason, style="yellow", overflow="fold") for reason in side.missing]
    return Group(*parts)


def code_table(excerpt: Excerpt) -> Table:
    """Return an excerpt with line numbers; a > marks the lines that do the duty, dots what is left out."""
    from rich.table import Table
    from rich.text import Text

    digits = len(str(excerpt.blocks[-1][0] + len(excerpt.blocks[-1][1])))
    grid = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for position, (first, lines) in enumerate(excerpt.blocks):
        if position:
            grid.add_row(Text("  " + "." * digits, style="dim"), "")
        for number, line in enumerate(_highlighted(lines), start=first):
            marked = number in excerpt.places
            grid.add_row(Text(f"{'>' if marked else ' '} {number:>{digits}}", style="bold" if marked else "dim"), line)
    return grid


def _highlighted(lines: Sequence[str]) -> list[Text]:
    from rich.syntax import Syntax

    code = "\n".join(lines)
    highlighted = Syntax(code, "python", theme=THEME, background_color="default").highlight(code)
    return list(highlighted.split("\n", allow_blank=True))[: len(lines)]


def to_markdown(duties: Sequence[Responsibility]) -> str:
    """Return the code of duties as Markdown: fenced, with the numbers of the lines in front of every block."""
    return "\n\n".join(_markdown_duty(duty) for duty in duties)


def _markdown_duty(duty: Responsibility) -> str:
    parts = [f"## {_escape(duty.name)} ({duty.change})"]
    for heading, owner in zip(HEADINGS, (duty.native, duty.lightning), strict=True):
        side = side_of(owner)
        by = f" {lightning_version()}" if owner.who == "lightning" else ""
        parts.append(f"### {heading}{by}: {_escape(owner.what or owner.who)}")
        for excerpt in side.excerpts:
            for first, lines in excerpt.blocks:
                numbers = f"lines {first} to {first + len(lines) - 1}" if len(lines) > 1 else f"line {first}"
                done = [str(line) for line in excerpt.places if first <= line < first + len(lines)]
                mark = f"; done in {', '.join(done)}" if done else ""
                parts.append(f"`{excerpt.file}` `{excerpt.function}`, {numbers}{mark}:")
                fence = _fence(lines)
                parts.append("\n".join([f"{fence}python", *lines, fence]))
        parts += [_escape(reason) for reason in side.missing]
    if duty.note:
        parts.append(f"Worth knowing: {_escape(duty.note)}")
    return "\n\n".join(parts)


def _fence(lines: Sequence[str]) -> str:
    """Return a fence longer than any row of backticks in the code."""
    longest = max((len(row) for line in lines for row in re.findall(r"`+", line)), default=0)
    return "`" * max(3, longest + 1)


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in text)


def to_json_data(duties: Sequence[Responsibility]) -> list[dict[str, Any]]:
    """Return the code of duties as data for ``json.dump``."""
    return [
        {
            "name": duty.name,
            "change": duty.change,
            "note": duty.note,
            "native": _data(duty.native),
            "lightning": _data(duty.lightning),
        }
        for duty in duties
    ]


def _data(owner: Owner) -> dict[str, Any]:
    side = side_of(owner)
    return {
        "who": owner.who,
        "what": owner.what,
        "code": [
            {
                "file": excerpt.file,
                "function": excerpt.function,
                "places": list(excerpt.places),
                "whole": excerpt.whole,
                "blocks": [{"first_line": first, "text": "\n".join(lines)} for first, lines in excerpt.blocks],
            }
            for excerpt in side.excerpts
        ],
        "missing": list(side.missing),
    }
