"""Pairs as text for a terminal or a pipe: what was compared, the parity, the metrics table."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from comparison.loading import Run
from comparison.metrics import METRICS, Row, Value, parity, rows, spread, time_finding
from comparison.pairing import Mismatch, Pair, Pairing

CPU_CAVEAT = (
    "These ranks ran on CPUs over gloo. Parity and parameter shares carry over to GPUs; times do not: gloo, for one, "
    "performs reduce-scatter as all-reduce."
)
TABLE_WIDTH = 80
"""Columns that the metrics table needs; narrower terminals get lines instead."""

OVERVIEW_NAMES = ("milliseconds_per_step", "tokens_per_second", "peak_allocated_gib", "local_parameter_fraction")
OVERVIEW = tuple(metric for metric in METRICS if metric.name in OVERVIEW_NAMES)


def plain(text: str) -> str:
    """Make control characters visible: strings from result files are nobody's to trust."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_pairing(console: Console, pairing: Pairing) -> None:
    """Print what cannot be compared, before any number, then every pair, then all cells in one table."""
    for mismatch in pairing.mismatches:
        _print_mismatch(console, mismatch)
    for group in pairing.alone:
        missing = "lightning" if group[0].result.implementation == "native" else "native"
        _say(console, f"No {missing} run to compare with: {_paths(group)} ({describe_workload(group[0])})", "yellow")
    for pair in pairing.pairs:
        print_pair(console, pair)
    if len(pairing.pairs) > 1:
        _print_overview(console, pairing)
    if any(pair.runs[0].result.workload.device_type == "cpu" for pair in pairing.pairs):
        console.print()
        _say(console, CPU_CAVEAT)


def print_pair(console: Console, pair: Pair) -> None:
    """Print one pair."""
    _heading(console, title(pair))
    outcome = parity(pair)
    facts = _grid()
    for name, text in header(pair):
        facts.add_row(name, Text(plain(text)))
    for difference in pair.environment_differences():
        values = f"native {' / '.join(difference.native)}, lightning {' / '.join(difference.lightning)}"
        text = f"{difference.field} differs: {values}; repeat both under equal conditions"
        facts.add_row("warning", Text(plain(text), style="yellow"))
    facts.add_row("parity", Text(outcome.sentence(), style="green" if outcome.exact else "bold red"))
    console.print(facts)
    console.print()
    _print_metrics(console, pair)
    console.print()
    times = _grid()
    times.add_row("time", Text(f"{time_spread(pair)}: {time_finding(pair)}"))
    console.print(times)


def print_in_short(console: Console, pairing: Pairing) -> None:
    """Print the two findings of every pair, parity and time, on a few lines: the last thing that a person sees."""
    if not pairing.pairs:
        return
    _heading(console, "In short")
    findings = _grid()
    for pair in pairing.pairs:
        exact = "equal to the last bit" if parity(pair).exact else "NOT EQUAL, see above"
        findings.add_row(_cell(pair), Text(f"losses and weights {exact}; {time_spread(pair)}: {time_finding(pair)}"))
    console.print(findings)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(plain(text), style="bold"))
    console.print(Text("=" * min(len(plain(text)), console.width), style="bold"))


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _print_overview(console: Console, pairing: Pairing) -> None:
    """Print one line a cell, so that ddp and fsdp2 can be compared too."""
    _heading(console, "All cells")
    table = _table("cell", *(metric.name.replace("_", " ") for metric in OVERVIEW))
    for pair in pairing.pairs:
        by_name = {row.metric.name: row for row in rows(pair)}
        for label in ("native", "lightning"):
            values = [format_value(getattr(by_name[each.name], label), each.pattern) for each in OVERVIEW]
            table.add_row(Text(f"{label} {plain(_cell(pair))}"), *map(Text, values))
    console.print(table)


def title(pair: Pair) -> str:
    """Return the one line that names a pair."""
    workload = pair.runs[0].result.workload
    return f"{_cell(pair)}, preset {workload.preset}, {workload.precision_resolved}: native against lightning"


def _cell(pair: Pair) -> str:
    workload = pair.runs[0].result.workload
    return f"{workload.strategy} {workload.fsdp_wrap}" if workload.fsdp_wrap else workload.strategy


def describe_workload(run: Run) -> str:
    """Return what a run trained, in a few words."""
    workload = run.result.workload
    wrap = f" {workload.fsdp_wrap} wrap" if workload.fsdp_wrap else ""
    return (
        f"{workload.strategy}{wrap}, {plain(workload.preset)}, {workload.precision_resolved}, "
        f"{workload.world_size} ranks on {workload.device_type}"
    )


def header(pair: Pair) -> list[tuple[str, str]]:
    """Return what was compared and on what: a word and a line each."""
    result = pair.native[0].result
    workload, environment = result.workload, result.environment
    nodes = counted(environment.num_nodes, "node")
    ranks = f"{counted(workload.world_size, 'rank')} on {nodes}, started by {environment.launcher}"
    samples = f"{counted(workload.batch_size_per_device, 'sample')} a rank, {workload.global_batch_size} in all"
    versions = f"torch {environment.torch_version}, lightning {pair.lightning[0].result.environment.lightning_version}"
    return [
        (
            "ranks",
            f"{ranks}; {environment.process_group_backend}; {counted(environment.cpu_threads, 'CPU thread')} each",
        ),
        ("batch", f"{samples}, of {workload.model.sequence_length} tokens; seed {workload.seed}"),
        ("steps", f"{workload.steps} timed after {workload.warmup_steps} to warm up"),
        ("machine", f"{environment.device_name}; {versions}"),
    ]


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural unless it is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def time_spread(pair: Pair) -> str:
    """Return the runs' milliseconds a step on both sides, smallest to largest."""
    sides = []
    for name, runs in (("native", pair.native), ("lightning", pair.lightning)):
        low, high = spread(lambda run: run.result.timing.milliseconds_per_step, runs)
        values = f"{low:,.3f}" if len(runs) == 1 else f"{low:,.3f} to {high:,.3f}"
        sides.append(f"{name} {values} ms a step in {counted(len(runs), 'run')}")
    return ", ".join(sides)


def _table(*labels: str) -> Table:
    """Return an empty table: first column to the left, numbers to the right; too narrow, it folds and never cuts."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for number, label in enumerate(labels):
        table.add_column(label, justify="right" if number else "left", overflow="fold")
    return table


def _print_metrics(console: Console, pair: Pair) -> None:
    labels = ("native", "lightning", "difference", "ratio")
    if console.width < TABLE_WIDTH:
        for row in rows(pair):
            values = ", ".join(f"{label} {cell}" for label, cell in zip(labels, cells(row), strict=True) if cell)
            _say(console, row.metric.name, "bold")
            _say(console, f"  {values}")
        return
    table = _table("metric", *labels)
    table.columns[0].min_width = max(len(metric.name) for metric in METRICS)
    for row in rows(pair):
        table.add_row(row.metric.name, *map(Text, cells(row)))
    console.print(table)


def cells(row: Row) -> tuple[str, str, str, str]:
    """Return a row's native, lightning, difference and ratio as text."""
    return (
        format_value(row.native, row.metric.pattern),
        format_value(row.lightning, row.metric.pattern),
        format_difference(row),
        "" if row.metric.exact else "n/a" if row.ratio is None else f"{row.ratio:.3f}",
    )


def format_value(value: Value, pattern: str) -> str:
    """Return a value as text; what was not measured is n/a, never 0."""
    if value is None:
        return "n/a"
    return ("yes" if value else "no") if isinstance(value, bool) else format(value, pattern)


def format_difference(row: Row) -> str:
    """Return Lightning minus native as text: ``equal`` where they are, and n/a where one is missing."""
    if row.native is not None and row.native == row.lightning:
        return "equal"
    if row.difference is None:
        return "n/a"
    text = format(row.difference, "+.3g" if row.metric.exact else "+" + row.metric.pattern)
    # A difference too small for the column is still one: -4e-08, not -0.0000.
    return text if text.strip("+-0.,") else format(row.difference, "+.1g")


def _print_mismatch(console: Console, mismatch: Mismatch) -> None:
    console.print()
    _say(console, "NOT COMPARABLE: these runs differ in what must be equal.", "bold red")
    _say(console, f"native: {_paths(mismatch.native)}")
    _say(console, f"lightning: {_paths(mismatch.lightning)}")
    table = _table("field", "native", "lightning")
    for difference in mismatch.differences:
        values = [plain(" / ".join(side)) for side in (difference.native, difference.lightning)]
        table.add_row(Text(plain(difference.field)), *map(Text, values))
    console.print(table)


def _paths(runs: tuple[Run, ...]) -> str:
    return plain(", ".join(str(run.path) for run in runs))


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(plain(line), style=style, overflow="fold"))
