"""A table whose cells break where their names allow it: paths behind slashes, functions behind dots. Nothing is cut.

rich would break such names anywhere. What is laid out here needs no second layout by rich, which takes most of the time
of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = 2
"""Columns of the terminal between two columns of the table."""


class Part(NamedTuple):
    """What starts a line of a cell."""

    chunks: tuple[tuple[str, ...], ...]
    """A space goes in between. A chunk too long for a line is broken between its pieces; a piece only if it is itself
    too long for one."""
    style: str = ""
    bullet: str = ""


Row = Sequence[list[Part]]
"""A list of parts for each column."""


def words(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the chunks of prose."""
    return tuple((word,) for word in text.split())


def split_after(text: str, separator: str) -> tuple[str, ...]:
    """Split behind every separator: ``a/b.py`` gives ``a/`` and ``b.py``."""
    *heads, tail = text.split(separator)
    return (*(head + separator for head in heads), tail)


def print_table(console: Console, headings: Sequence[str], rows: Sequence[Row], *, spaced: bool) -> None:
    """Print a table as wide as the terminal at most; ``spaced``: with an empty line between rows."""
    from rich.text import Text

    widths = _column_widths(console.width, rows)
    rule = "-" if console.options.ascii_only else "─"
    lines = [
        *_lines([[Part(words(heading), "bold")] for heading in headings], widths),
        Text(rule * min(console.width, sum(widths) + GAP * (len(widths) - 1))),
    ]
    for number, row in enumerate(rows):
        lines += [Text()] * (spaced and number > 0) + _lines(row, widths)
    console.print(Text("\n").join(lines), soft_wrap=True)


def _lines(row: Row, widths: Sequence[int]) -> list[Text]:
    """Return the lines of a row, its cells side by side."""
    from rich.text import Text

    cells = [_cell(parts, width) for parts, width in zip(row, widths, strict=True)]
    lines = []
    for pieces in zip_longest(*cells, fillvalue=("", "", "")):
        line, start = Text(), 0
        for (bullet, text, style), width in zip(pieces, widths, strict=True):
            if bullet or text:
                line.append(" " * (start - len(line)) + bullet)
                line.append(text, style)
            start += width + GAP
        lines.append(line)
    return lines


def _cell(parts: list[Part], width: int) -> list[tuple[str, str, str]]:
    """Return bullet, text and style of each line of a cell."""
    lines = []
    for part in parts:
        first, *rest = _fill(part.chunks, max(1, width - len(part.bullet)))
        lines.append((part.bullet, first, part.style))
        lines += [(" " * len(part.bullet), line, part.style) for line in rest]
    return lines


def _fill(chunks: tuple[tuple[str, ...], ...], width: int) -> list[str]:
    """Return the chunks as lines of at most ``width``, a space between two chunks on one line."""
    lines = [""]
    for chunk in chunks:
        whole = "".join(chunk)
        if lines[-1] and len(lines[-1]) + 1 + len(whole) <= width:
            lines[-1] += f" {whole}"
            continue
        if lines[-1]:
            lines.append("")
        for piece in chunk:
            if lines[-1] and len(lines[-1]) + len(piece) > width:
                lines.append("")
            first, *rest = _fold(piece, width)
            lines[-1] += first
            lines += rest
    return lines


def _fold(piece: str, width: int) -> list[str]:
    """Cut a piece that is too long for a line, behind an underscore if there is one."""
    folded = []
    while len(piece) > width:
        cut = piece.rfind("_", 1, width) + 1 or width
        folded.append(piece[:cut])
        piece = piece[cut:]
    return [*folded, piece]


def _column_widths(total: int, rows: Sequence[Row]) -> list[int]:
    """Share out the terminal: what the names need at least, then the rest by what every column could still use."""
    columns = list(zip(*rows, strict=True))
    available = total - GAP * (len(columns) - 1)
    least = [max(_least_width(part) for cell in column for part in cell) for column in columns]
    most = [max(_full_width(part) for cell in column for part in cell) for column in columns]
    if sum(most) <= available:
        return most
    spare = available - sum(least)
    if spare < 0:
        return [max(1, width * available // sum(least)) for width in least]
    wanted = [full - narrow for full, narrow in zip(most, least, strict=True)]
    return [narrow + spare * want // sum(wanted) for narrow, want in zip(least, wanted, strict=True)]


def _least_width(part: Part) -> int:
    return len(part.bullet) + max(len(piece) for chunk in part.chunks for piece in chunk)


def _full_width(part: Part) -> int:
    return len(part.bullet) + len(" ".join("".join(chunk) for chunk in part.chunks))
