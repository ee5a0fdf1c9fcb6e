"""Pairs as text for a terminal or a pipe: what was compared, the parity, the metrics table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from common.text import shortened
from comparison.formatting import (
    FACT_LENGTH,
    OVERVIEW,
    are_scaled,
    caveats,
    cell,
    cells,
    counted,
    describe_workload,
    facts,
    finding,
    format_value,
    shown_rows,
    title,
    verdict_sentence,
    world_size,
)
from comparison.loading import Run
from comparison.metrics import METRICS, parity, rows
from comparison.pairing import Pair, Pairing
from comparison.terminal import literal

if TYPE_CHECKING:
    from comparison.attribution import Attribution
    from comparison.scaling import ScaledRuns, Scaling

TABLE_WIDTH = 80
"""Columns that the metrics table needs; narrower terminals get lines instead."""
UNLIMITED = 1000
STYLES = {
    "NOT EQUAL": "bold red",
    "outcome": "bold yellow",
    **dict.fromkeys(("warning", "remark", "missing", "caveat"), "yellow"),
}


def print_pairing(console: Console, pairing: Pairing, force: bool = False) -> None:
    """Print what cannot be compared, before any number, then every pair, then all cells in one table."""
    for mismatch in pairing.mismatches:
        _print_mismatch(console, mismatch, force)
    for group in pairing.alone:
        missing = "lightning" if group[0].result.implementation == "native" else "native"
        _say(console, f"No {missing} run to compare with: {_paths(group)} ({describe_workload(group[0])})", "yellow")
    pairs = [*pairing.pairs, *(pairing.mismatches if force else [])]
    for pair in pairs:
        print_pair(console, pair)
    completed = [pair for pair in pairs if shown_rows(pair)]
    if len(completed) > 1:
        _print_overview(console, completed)
    if any(run.result.workload.variants for run in pairing.runs()):
        from comparison.attribution import attribute

        for attribution in attribute(pairing):
            print_attribution(console, attribution)
    for line in caveats([run for pair in pairs for run in pair.runs]):
        console.print()
        _say(console, line)


def print_pair(console: Console, pair: Pair) -> None:
    """Print one pair."""
    _heading(console, title(pair))
    grid = _grid()
    for name, text in facts(pair):
        style = STYLES.get(name, "")
        if name == "parity":
            style = "green" if parity(pair.completed()).exact else "bold red"
        grid.add_row(name, literal(console, text, style))
    console.print(grid)
    console.print()
    if shown_rows(pair):
        _print_metrics(console, pair)
        console.print()
    times = _grid()
    times.add_row("time", literal(console, verdict_sentence(pair)))
    console.print(times)


def print_attribution(console: Console, attribution: Attribution) -> None:
    """Print what each variant of a workload explains of the difference between the two sides."""
    from comparison.attribution_text import attribution_blocks, attribution_title

    _heading(console, attribution_title(attribution))
    for name, line, below in attribution_blocks(attribution):
        style = "bold red" if name == "parity" and not attribution.parity.exact else ""
        _say(console, f"{name}  {line}", style)
        lines = _grid()
        for each in below:
            lines.add_row("-", literal(console, each))
        if below:
            console.print(lines)


def print_scalings(console: Console, scaled: ScaledRuns) -> None:
    """Print what cannot be compared over numbers of ranks, before any number, then every scaling."""
    from comparison.scaling_text import NOTHING, describe_alone, scaling_title

    for mismatch in scaled.mismatches:
        console.print()
        _say(console, f"NOT COMPARABLE: {scaling_title(mismatch)}", "bold red")
        for unequal in mismatch.mismatch:
            _say(console, shortened(unequal.sentence(), FACT_LENGTH))
    if not scaled.scalings and not scaled.mismatches:
        _say(console, NOTHING, "yellow")
    for alone in scaled.alone:
        _say(console, f"Not scaled: {shortened(describe_alone(alone), FACT_LENGTH)}", "yellow")
    for scaling in scaled.scalings:
        _print_scaling(console, scaling)


def _print_scaling(console: Console, scaling: Scaling) -> None:
    from comparison.scaling_text import HEADINGS, scaling_cells, scaling_facts, scaling_line, scaling_title

    _heading(console, scaling_title(scaling))
    grid = _grid()
    for name, text in scaling_facts(scaling):
        grid.add_row(name, literal(console, shortened(text, FACT_LENGTH), STYLES.get(name, "")))
    console.print(grid)
    console.print()
    table = _table(*HEADINGS)
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[-1].justify = "left"
    for point in scaling.points:
        # A variant's name is long: one word a line.
        side, *cells = scaling_cells(point)
        table.add_row(Text(side.replace(" ", "\n")), *map(Text, cells))
    needed = Measurement.get(console, console.options.update(width=UNLIMITED), table).minimum
    if console.width >= max(TABLE_WIDTH, needed):
        console.print(table)
        return
    for point in scaling.points:
        name, line = scaling_line(point)
        _say(console, name, "bold")
        _say(console, f"  {line}")


def print_in_short(console: Console, pairing: Pairing) -> None:
    """Print the two findings of every pair, parity and time, on a few lines: the last thing that a person sees.

    Pairs with a variant are left to the attribution.
    """
    pairs = [pair for pair in pairing.pairs if not pair.is_variant]
    if not pairs:
        return
    _heading(console, "In short")
    findings = _grid()
    for pair in pairs:
        name = f"{cell(pair)} A/A" if pair.is_control else cell(pair)
        if are_scaled(pairing.pairs):
            name += f", {counted(world_size(pair), 'rank')}"
        if shown_rows(pair):
            exact = "equal to the last bit" if parity(pair.completed()).exact else "NOT EQUAL, see above"
            findings.add_row(name, literal(console, f"losses and weights {exact}; time: {finding(pair)}"))
        else:
            findings.add_row(name, literal(console, finding(pair)))
    console.print(findings)


def _heading(console: Console, text: str) -> None:
    console.print()
    heading = literal(console, text, "bold")
    console.print(heading)
    console.print(Text("=" * min(heading.cell_len, console.width), style="bold"))


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _print_overview(console: Console, pairs: list[Pair]) -> None:
    """Print one line a cell, so that ddp and fsdp2 can be compared too, and numbers of ranks where they differ."""
    _heading(console, "All cells")
    scaled = are_scaled(pairs)
    names = [metric.name.replace("_", "\n") for metric in OVERVIEW]
    table = _table("cell", *(["ranks"] if scaled else []), *names)
    shown: list[tuple[Run, ...]] = []
    for pair in pairs:
        by_name = {row.metric.name: row for row in rows(pair.completed())}
        for label, side in zip(pair.labels, ("baseline", "other"), strict=True):
            runs = getattr(pair, side)
            if runs in shown:  # the defaults are in several pairs where there are variants
                continue
            shown.append(runs)
            values = [str(world_size(pair))] if scaled else []
            values += [format_value(by_name[each.name], getattr(by_name[each.name], side)) for each in OVERVIEW]
            table.add_row(Text(f"{label} {cell(pair)}"), *map(Text, values))
    console.print(table)


def _table(*labels: str) -> Table:
    """Return an empty table: first column to the left, numbers to the right; too narrow, it folds and never cuts."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for number, label in enumerate(labels):
        table.add_column(label, justify="right" if number else "left", overflow="fold")
    return table


def _print_metrics(console: Console, pair: Pair) -> None:
    labels = (*pair.labels, "difference", "ratio")
    # A variant's name is long: one word a line.
    table = _table("metric", *(label.replace(" ", "\n") for label in labels))
    table.columns[0].min_width = max(len(metric.name) for metric in METRICS)
    for row in shown_rows(pair):
        table.add_row(row.metric.name, *map(Text, cells(row)))
    needed = Measurement.get(console, console.options.update(width=UNLIMITED), table).minimum
    if console.width < max(TABLE_WIDTH, needed):
        for row in shown_rows(pair):
            values = ", ".join(f"{label} {text}" for label, text in zip(labels, cells(row), strict=True) if text)
            _say(console, row.metric.name, "bold")
            _say(console, f"  {values}")
        return
    console.print(table)


def _print_mismatch(console: Console, pair: Pair, force: bool) -> None:
    console.print()
    _say(console, "NOT COMPARABLE: these runs differ in what must be equal.", "bold red")
    for label, side in zip(pair.labels, (pair.baseline, pair.other), strict=True):
        _say(console, f"{label}: {_paths(side)}")
    table = _table("field", *pair.labels)
    for difference in pair.mismatch:
        texts = (difference.field, " / ".join(difference.baseline), " / ".join(difference.other))
        table.add_row(*(literal(console, shortened(text, FACT_LENGTH)) for text in texts))
    console.print(table)
    if not force:
        _say(console, "Run both with the same options; --force shows the numbers all the same.")


def _paths(runs: tuple[Run, ...]) -> str:
    return ", ".join(str(run.path) for run in runs)


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(literal(console, line, style))
