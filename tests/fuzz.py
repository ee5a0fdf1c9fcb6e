"""Results that somebody damaged, by hypothesis, and what `compare.py show` must hold to with any of them."""

import codecs
import contextlib
import copy
import csv
import io
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from rich.cells import cell_len

import compare
from comparison.export import CSV_COLUMNS, SCALING_COLUMNS
from tests.factories import OUT_OF_MEMORY, make_data, timed
from tests.runs import signals_restored

WIDTH = 80
HANG_SECONDS = 60
FORMATS = ("table", "markdown", "json", "csv")
OPTIONS = ("", "--force", "--scaling")
STARTS: tuple[dict[str, Any], ...] = (
    {},
    {"workload__world_size": 4, "workload__global_batch_size": 4},
    {"workload__device_type": "cpu", "memory__peak_allocated_gib": None},
    {"workload__strategy": "fsdp2", "workload__fsdp_wrap": "block", "workload__reshard_after_forward": {"block": True}},
    {"label": "control"},
    OUT_OF_MEMORY,
    OUT_OF_MEMORY | {"outcome__status": "diverged", "outcome__message": "the loss of step 2 on rank 1 is nan"},
    timed(1e-6),
    timed(1e15),
)
"""Changes that make the results which are then damaged."""

HOSTILE = (
    *(
        "",
        "[bold]x[/nope]",
        "\x1b[31mred\x1b]0;title\x07",
        "\x9b2J",
        "a\nb\r\tc",
        "\u202egpj",
        "\u200b\ufeff",
        "a\u0301",
    ),
    *("a\u0301", "=1+1", "@x", "| x |", "<b>&amp;</b>", "漢字" * 50, "x" * 5000, "\ud800", "\0", "control", "9" * 5000),
)
texts = st.sampled_from(HOSTILE) | st.text(max_size=20)
integers = st.sampled_from((0, 1, 2, 2**32, 2**64 - 1))
floats = st.sampled_from((0.0, -0.0, 1.0, 5e-324, 1e-160, 1e15)) | st.floats(0, 1e15)
anything = st.sampled_from(
    (
        None,
        True,
        -1,
        2**64,
        10**4000,
        1e308,
        -1.5,
        float("nan"),
        float("inf"),
        "",
        "0.02",
        "\x1b[2J",
        [],
        {},
        [[1]],
        {"a": 1},
    )
)


@st.composite
def folders(draw: Callable) -> list[bytes]:
    """Return the contents of a folder: two to four results, some of them damaged, all in one way or one by one."""
    start = draw(st.sampled_from(STARTS))
    results = [
        make_data(("native", "lightning")[number % 2], **copy.deepcopy(start))
        for number in range(draw(st.integers(2, 4)))
    ]
    for _ in range(draw(st.integers(0, 3))):
        damaged = results if draw(st.booleans()) else [draw(st.sampled_from(results))]
        change(draw, damaged)
    contents = [json.dumps(data, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass") for data in results]
    if draw(st.sampled_from((False, False, True))):
        place = draw(st.integers(0, len(contents) - 1))
        contents[place] = draw(broken(contents[place]))
    return contents


def leaves(data: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path to every key of nested dictionaries."""
    for name, value in data.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, name))


PATHS = {
    name: tuple(leaves(value, (name,))) if isinstance(value, dict) else ((name,),)
    for name, value in make_data(**STARTS[2]).items()
}
"""The places of a result by section."""


def change(draw: Callable, results: list[dict[str, Any]]) -> None:
    """Change one place of these results, where they still have it: mostly to another value of the same type."""
    *sections, leaf = draw(st.sampled_from(PATHS[draw(st.sampled_from(tuple(PATHS)))]))
    action = draw(st.sampled_from((*["alike"] * 8, "anything", "delete", "add")))
    for data in results:
        target: Any = data
        for section in sections:
            target = target.get(section) if isinstance(target, dict) else None
        if not isinstance(target, dict) or leaf not in target:
            continue
        if action == "delete":
            del target[leaf]
        elif action == "add":
            target[draw(texts)] = draw(anything)
        else:
            target[leaf] = draw(alike(target[leaf]) if action == "alike" else anything)


def alike(old: Any) -> st.SearchStrategy:
    """Return values of the same type, so that the file is often accepted and has to be shown."""
    match old:
        case bool():
            return st.booleans()
        case int():
            return integers
        case float():
            return floats
        case str():
            return texts
        case [float(), *_]:
            extremes = floats | st.sampled_from((1e308, -1e308))
            return st.lists(extremes, min_size=len(old), max_size=len(old)) | st.lists(extremes, max_size=4)
        case list():
            return st.lists(texts, max_size=3)
        case dict():
            return st.dictionaries(texts, texts | st.booleans(), max_size=3)
    return anything


@st.composite
def broken(draw: Callable, content: bytes) -> bytes:
    """Return a file's content as something that was never a result, or no longer is."""
    damage = draw(st.sampled_from(("cut", "byte", "byte", "twice", "bom", "utf-16", "bytes")))
    if damage == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if damage == "byte":
        place = draw(st.integers(0, len(content) - 1))
        return content[:place] + draw(st.binary(max_size=3)) + content[place + 1 :]
    if damage == "twice":
        return content.replace(b'{"', b'{"label": null, "', draw(st.integers(1, 3)))
    if damage == "bom":
        return codecs.BOM_UTF8 + content
    if damage == "utf-16":
        return content.decode("utf-8", "replace").encode("utf-16")
    return draw(st.binary(max_size=50))


def check(folder: Path, contents: list[bytes], style: str, option: str, outcomes: Counter[str]) -> None:
    """Show ``contents`` from files in ``folder``; an assertion error, or any other, where something is wrong.

    ``option`` is one of :data:`OPTIONS`. ``outcomes`` counts exit codes, and the files that were read or refused.
    """
    for old in folder.iterdir():
        old.unlink()
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_bytes(content)
    arguments = ["show", str(folder), "--no-responsibilities", "--format", style, *option.split()]
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        signals_restored(),
        no_longer_than(HANG_SECONDS),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = compare.main(arguments)
    assert code in (compare.COMPARED, compare.FAILED, compare.NOT_COMPARABLE)
    problems = stderr.getvalue().splitlines()
    assert all(line.startswith(f"compare.py: {folder}") for line in problems)
    assert not problems or code == compare.FAILED
    check_output(stdout.getvalue(), style)
    assert_printable(stderr.getvalue())
    outcomes[f"exit code {code}"] += 1
    outcomes["files refused"] += len(problems)
    outcomes["files read"] += len(contents) - len(problems)


def check_output(text: str, style: str) -> None:
    """Check that nothing a terminal would obey is in it, and that its structure is whole."""
    assert_printable(text)
    if style == "table":
        assert all(cell_len(line) <= WIDTH for line in text.splitlines())
    elif style == "json":
        json.loads(text, parse_constant=refuse)
    elif style == "csv":
        assert {len(row) for row in csv.reader(io.StringIO(text))} in ({len(CSV_COLUMNS)}, {len(SCALING_COLUMNS)})
    else:
        rows = [line.replace("\\\\", "").replace("\\|", "") for line in text.splitlines()]
        assert {row.count("|") for row in rows if row.startswith("|")} <= {4, 6, 8}


def assert_printable(text: str) -> None:
    """Check that a text has no control characters but line ends."""
    assert not {char for char in text if not char.isprintable()} - {"\n"}


def refuse(name: str) -> None:
    """Fail on what JSON does not know."""
    raise AssertionError(f"{name} is not JSON")


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise TimeoutError within the block once it has taken so long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
