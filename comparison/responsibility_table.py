"""The responsibilities as a table for a terminal or a pipe, as Markdown and as JSON data."""

from __future__ import annotations

import textwrap
from importlib import metadata
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from comparison.catalogue import CATALOGUE
from comparison.responsibilities import Owner, Responsibility, summary
from comparison.source import Place, PlaceNotFound, lightning_root, locate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

NOT_INSTALLED = "lightning is not installed"
LEGEND = (
    "moved: by hand in native, by the library in Lightning. stays: by hand on both sides. dropped: by native only. "
    "added: by Lightning only. same: the launcher's."
)
NOT_FOUND = "A line number of ? means that the statement was not found in the installed version."
MORE = "What is done there, all places and what is worth knowing: python compare.py responsibilities"
HEADINGS = ("Duty", "Native PyTorch", "Lightning")
GAP = 2
"""Columns of the terminal between two columns of the table."""
BULLET = "- "
PROSE_WIDTH = 100
CHANGE_STYLES = {"moved": "green", "added": "yellow", "dropped": "yellow"}


def render(console: Console, brief: bool = False) -> None:
    """Print title, summary, table and notes. Nothing is ever cut, whatever the width.

    Args:
        console: where to print.
        brief: the first place of every duty alone, without notes: what stands below the metrics of a comparison.
    """
    from rich.text import Text

    _print_prose(console, title(), style="bold")
    _print_prose(console, summary(CATALOGUE))
    _print_prose(console, LEGEND)
    console.print()
    console.print(_table(console.width, brief))
    console.print()
    if brief:
        _print_prose(console, MORE)
        return
    console.print(Text("Worth knowing", style="bold"))
    for responsibility in CATALOGUE:
        if responsibility.note:
            _print_prose(console, f"{BULLET}{responsibility.name}: {responsibility.note}", indent=len(BULLET))
    if missing_places():
        _print_prose(console, NOT_FOUND)


def title() -> str:
    """Return what is shown, with the version of lightning that was looked into."""
    return f"Who does what: native PyTorch and Lightning {lightning_version()}"


def lightning_version() -> str:
    """Return the installed version, such as 2.6.6, without importing it; or, in parentheses, why there is none."""
    if lightning_root() is None:
        return f"({NOT_INSTALLED})"
    try:
        return metadata.version("lightning")
    except metadata.PackageNotFoundError:
        return "(unknown version)"


def missing_places() -> list[Place]:
    """Return the places that the installed source no longer has; those of a package not installed do not count."""
    owners = [owner for each in CATALOGUE for owner in (each.native, each.lightning)]
    return [place for owner in owners for place in owner.places if _line(place) == "?"]


def _line(place: Place) -> int | str | None:
    """Return the place's line, ``?`` if the source has no such line, None if the package is not installed."""
    try:
        location = locate(place)
    except PlaceNotFound:
        return "?"
    return location.line if location else None


def _print_prose(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    from rich.text import Text

    width = min(console.width, PROSE_WIDTH)
    lines = textwrap.wrap(text, max(width, indent + 1), subsequent_indent=" " * indent, break_on_hyphens=False)
    console.print(Text("\n".join(lines), style=style))


def _table(width: int, brief: bool) -> Table:
    from rich import box
    from rich.table import Table

    rows = [_row(each, brief) for each in CATALOGUE]
    widths = _column_widths(width, rows)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, GAP // 2),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
        leading=0 if brief else 1,
    )
    for heading, column_width in zip(HEADINGS, widths, strict=True):
        table.add_column(heading, width=column_width, no_wrap=True, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(parts, column_width) for parts, column_width in zip(row, widths, strict=True)))
    return table


class _Part(NamedTuple):
    """What starts a line of a cell."""

    chunks: list[list[str]]
    """A space goes in between. A chunk too long for a line is broken between its pieces; a piece only if it is itself
    too long for one."""
    style: str = ""
    bullet: str = ""


def _row(responsibility: Responsibility, brief: bool) -> tuple[list[_Part], ...]:
    """Return the cells of a row."""
    change = responsibility.change
    duty = [_Part(_words(responsibility.name), "bold"), _Part(_words(change), CHANGE_STYLES.get(change, ""))]
    native = _parts(responsibility.native, brief)
    if responsibility.lightning == responsibility.native:
        return duty, native, [_Part(_words("the same"))]
    return duty, native, _parts(responsibility.lightning, brief)


def _parts(owner: Owner, brief: bool) -> list[_Part]:
    """Return what an owner does, then its places; lines of one function share an entry. In brief: one place alone."""
    parts = [] if brief and owner.places else [_Part(_words(owner.what or owner.who))]
    lines = [(place, _line(place)) for place in (owner.places[:1] if brief else owner.places)]
    for (file, function), group in groupby(lines, key=lambda found: (found[0].file, found[0].function)):
        numbers = [str(line) for _, line in group if line is not None]
        if numbers:
            path = _split_after(f"{file}:{','.join(numbers)}", "/")
            parts.append(_Part([path, _split_after(function, ".")], "cyan", BULLET))
    if any(line is None for _, line in lines):
        parts.append(_Part(_words(NOT_INSTALLED)))
    return parts


def _words(text: str) -> list[list[str]]:
    return [[word] for word in text.split()]


def _split_after(text: str, separator: str) -> list[str]:
    """Split behind every separator: ``a/b.py`` gives ``a/`` and ``b.py``."""
    *heads, tail = text.split(separator)
    return [head + separator for head in heads] + [tail]


def _cell(parts: list[_Part], width: int) -> Text:
    from rich.text import Text

    lines = []
    for part in parts:
        indent = len(part.bullet)
        first, *rest = _fill(part.chunks, max(1, width - indent))
        lines.append(Text.assemble(part.bullet, (first, part.style)))
        lines += [Text.assemble(" " * indent, (line, part.style)) for line in rest]
    return Text("\n").join(lines)


def _fill(chunks: list[list[str]], width: int) -> list[str]:
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


def _column_widths(total: int, rows: list[tuple[list[_Part], ...]]) -> list[int]:
    """Share out the terminal: what the names need at least, then the rest by what every column could still use."""
    available = total - GAP * (len(HEADINGS) - 1)
    columns = list(zip(*rows, strict=True))
    least = [max(_least_width(part) for cell in column for part in cell) for column in columns]
    most = [max(_full_width(part) for cell in column for part in cell) for column in columns]
    if sum(most) <= available:
        return most
    spare = available - sum(least)
    if spare < 0:
        return [max(1, width * available // sum(least)) for width in least]
    wanted = [full - narrow for full, narrow in zip(most, least, strict=True)]
    return [narrow + spare * want // sum(wanted) for narrow, want in zip(least, wanted, strict=True)]


def _least_width(part: _Part) -> int:
    return len(part.bullet) + max(len(piece) for chunk in part.chunks for piece in chunk)


def _full_width(part: _Part) -> int:
    return len(part.bullet) + len(" ".join("".join(chunk) for chunk in part.chunks))


def to_markdown() -> str:
    """Return title, summary and table for GitHub."""
    lines = [
        f"{_escape(title())}.",
        "",
        _escape(summary(CATALOGUE)),
        "",
        _escape(LEGEND),
        "",
        "| Duty | Change | Native PyTorch | Lightning | Worth knowing |",
        "|---|---|---|---|---|",
    ]
    for each in CATALOGUE:
        cells = [_escape(each.name), each.change, _markdown(each.native), _markdown(each.lightning), _escape(each.note)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOT_FOUND] if missing_places() else lines)


def _markdown(owner: Owner) -> str:
    entries = [_escape(owner.what or owner.who)]
    lines = [_line(place) for place in owner.places]
    entries += [
        f"`{place.file}:{line}` `{place.function}`"
        for place, line in zip(owner.places, lines, strict=True)
        if line is not None
    ]
    return "<br>".join(entries + [NOT_INSTALLED] * (None in lines))


def _escape(text: str) -> str:
    """Make text literal within a Markdown table."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in text)


def to_json_data() -> list[dict[str, Any]]:
    """Return the catalogue as data for ``json.dump``; a line is null where it could not be found."""
    return [
        {
            "name": each.name,
            "change": each.change,
            "note": each.note,
            "native": _data(each.native),
            "lightning": _data(each.lightning),
        }
        for each in CATALOGUE
    ]


def _data(owner: Owner) -> dict[str, Any]:
    places = []
    for place in owner.places:
        line = _line(place)
        places.append({"file": place.file, "line": line if isinstance(line, int) else None, "function": place.function})
    return {"who": owner.who, "what": owner.what, "places": places}
