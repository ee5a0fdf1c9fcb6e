"""How many lines of code each side spends on distributed plumbing, counted from the live source.

The rule, so that anybody can check it:

1. A duty of :data:`PLUMBING_DUTIES` is plumbing: it is about ranks, devices, the process group or the wrappers, and
   would not be there in a run of one process on one device. The model, its data, its training step and its measurement
   are no plumbing.
2. A function counts whole, signature included, if it holds the statement of a plumbing duty in the catalogue and of no
   other duty, whether or not that statement is reached by every strategy.
3. Elsewhere a statement counts, with all its lines, if it is a place of a plumbing duty or calls a function that
   counts whole. An ``if`` or another compound statement counts only by the statements in it.
4. A line of code is one that is neither blank, nor a comment, nor part of a docstring. Imports never count.
5. ``common/`` is on neither side: both use it. Nor is the source of lightning, which is not yours to write.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from comparison.catalogue import CATALOGUE
from comparison.source import PROJECT_ROOT, Place, PlaceNotFound, locate, read_source
from comparison.syntax import Definition, code_lines, definitions

PLUMBING_DUTIES = (
    "rank discovery",
    "launch check",
    "strategy choice",
    "device binding",
    "process group",
    "device mesh",
    "DDP wrap",
    "FSDP2 wrap",
    "mixed precision, FSDP2",
    "teardown",
)
"""Of the duties that a file may hold; see rule 1. FSDP2's policy is among them because it sets what the collectives
carry; autocast is not, because one process needs it too."""

SIDES = {"native": "native", "lightning": "lightning_impl"}
"""The packages that are counted, by side."""


@dataclass(frozen=True)
class Part:
    """The plumbing of one function."""

    file: str
    function: str
    lines: int
    whole: bool
    """Whether all of the function is plumbing; otherwise these are single statements in it."""


@dataclass(frozen=True)
class Plumbing:
    """The lines of code of one side."""

    package: str
    parts: tuple[Part, ...]
    total: int
    """All lines of code of the package, plumbing included."""

    @property
    def lines(self) -> int:
        """Lines of code of distributed plumbing."""
        return sum(part.lines for part in self.parts)


def sentence() -> str:
    """Return what both sides spend on plumbing, and where, on one line."""
    native, lightning = count("native"), count("lightning")
    return (
        f"Distributed plumbing: {native.lines} of {native.total} lines of code in native/, "
        f"{lightning.lines} of {lightning.total} in lightning_impl/. Most of it: {_largest(native)}; "
        f"{_largest(lightning)}. What counts: docs/measuring.md."
    )


def _largest(counted: Plumbing, most: int = 4) -> str:
    """Return the functions of a side with most plumbing, and their lines."""
    parts = sorted(counted.parts, key=lambda part: -part.lines)[:most]
    return ", ".join(f"{part.function.rpartition('.')[2]} {part.lines}" for part in parts)


def to_json_data() -> dict[str, Any]:
    """Return both counts with their parts as data for ``json.dump``."""
    return {
        side: {
            "package": counted.package,
            "plumbing_lines": counted.lines,
            "code_lines": counted.total,
            "parts": [vars(part) for part in counted.parts],
        }
        for side, counted in ((side, count(side)) for side in SIDES)
    }


def count(side: str) -> Plumbing:
    """Count one side's lines of code; ``side`` is ``native`` or ``lightning``."""
    package = SIDES[side]
    places = {True: [], False: []}
    for duty in CATALOGUE:
        for place in (duty.native if side == "native" else duty.lightning).places:
            if place.file.startswith(f"{package}/"):
                places[duty.name in PLUMBING_DUTIES].append(place)
    others = {(place.file, place.function) for place in places[False]}
    whole = {(place.file, place.function) for place in places[True]} - others
    parts: list[Part] = []
    total = 0
    for path in sorted((PROJECT_ROOT / package).glob("*.py")):
        file = f"{package}/{path.name}"
        code = code_lines(read_source(path))
        total += len(code)
        plumbing = _plumbing_lines(file, read_source(path), whole, places[True])
        counted = Counter(function for line, function in plumbing.items() if line in code)
        parts += [Part(file, function, lines, (file, function) in whole) for function, lines in counted.items()]
    return Plumbing(package, tuple(parts), total)


def _plumbing_lines(file: str, text: str, whole: set[tuple[str, str]], places: list[Place]) -> dict[int, str]:
    """Return the lines that are plumbing by rules 2 and 3, each with its function, in order."""
    found: dict[int, str] = {}
    called = {function.rpartition(".")[2] for _, function in whole}
    marked = _lines_of(file, places)
    for function, nodes in definitions(text).items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                continue
            if (file, function) in whole:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                found |= dict.fromkeys(range(first, node.end_lineno + 1), function)
                continue
            for statement in _simple_statements(node):
                lines = range(statement.lineno, statement.end_lineno + 1)
                if marked.intersection(lines) or called & _names_called(statement):
                    found |= dict.fromkeys(lines, function)
    return dict(sorted(found.items()))


def _lines_of(file: str, places: list[Place]) -> set[int]:
    lines = set()
    for place in places:
        if place.file == file:
            try:
                lines.add(locate(place).line)
            except PlaceNotFound:  # the table says so; here it is a line less
                continue
    return lines


def _simple_statements(function: Definition) -> Iterator[ast.stmt]:
    """Yield every statement in a function that holds no others, but for definitions and imports."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.stmt)
            and not hasattr(node, "body")
            and not isinstance(node, ast.Import | ast.ImportFrom)
        ):
            yield node


def _names_called(statement: ast.stmt) -> set[str]:
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return {call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls}
