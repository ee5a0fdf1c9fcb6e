"""Values, findings and pairs in words, for a terminal and for Markdown. No digit that the spread does not support."""

from collections.abc import Sequence

from common.report import describe_outcome
from common.text import plain, shortened
from common.variants import BY_NAME
from comparison.loading import Run
from comparison.metrics import METRICS, Metric, Row, Value, Verdict, parity, remarks, rows, verdict
from comparison.pairing import Difference, Pair
from comparison.statistics import Estimate, standard_deviation, supported_digits

CPU_CAVEAT = (
    "These ranks ran on CPUs over gloo. Parity and parameter shares carry over to GPUs; times do not: gloo, for one, "
    "performs reduce-scatter as all-reduce."
)
SIMULATED_CAVEAT = (
    "The nodes of these runs were one machine (a simulated cluster) and shared its cores: parity and parameter shares "
    "count, times mean nothing."
)

EXACT_DIGITS = 7
ALWAYS_SHOWN = ("milliseconds_per_step_iqr", "peak_allocated_gib", "peak_reserved_gib")
OVERVIEW_NAMES = ("milliseconds_per_step", "tokens_per_second", "peak_allocated_gib", "local_parameter_fraction")
OVERVIEW: tuple[Metric, ...] = tuple(metric for metric in METRICS if metric.name in OVERVIEW_NAMES)

MOST_DECIMALS = 12
LARGEST_WRITTEN_OUT = 1e15
FACT_LENGTH = 20_000
"""Characters of a fact that are shown."""

Fact = tuple[str, str]
"""A word and a line about a pair."""


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural unless it is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def title(pair: Pair) -> str:
    """Return the one line that names a pair."""
    workload = pair.runs[0].result.workload
    kind = " (A/A: the difference is noise)" if pair.is_control else ""
    sides = f"{pair.labels[0]} against {pair.labels[1]}"
    return plain(f"{cell(pair)}, preset {workload.preset}, {workload.precision_resolved}: {sides}{kind}")


def cell(pair: Pair) -> str:
    """Return strategy and wrap."""
    return cell_of(pair.runs[0])


def cell_of(run: Run) -> str:
    """Return strategy and wrap of one run."""
    workload = run.result.workload
    return f"{workload.strategy} {workload.fsdp_wrap}" if workload.fsdp_wrap else workload.strategy


def world_size(pair: Pair) -> int:
    """Return the ranks of a pair's runs."""
    return pair.runs[0].result.workload.world_size


def are_scaled(pairs: Sequence[Pair]) -> bool:
    """Return whether some pairs have more ranks than others, so that strategy and wrap don't tell them apart."""
    return len({world_size(pair) for pair in pairs}) > 1


def describe_workload(run: Run) -> str:
    """Return what a run trained, in a few words."""
    workload = run.result.workload
    wrap = f" {workload.fsdp_wrap} wrap" if workload.fsdp_wrap else ""
    return (
        f"{workload.strategy}{wrap}, {plain(workload.preset)}, {workload.precision_resolved}, "
        f"{workload.world_size} ranks on {workload.device_type}"
    )


def caveats(runs: Sequence[Run]) -> list[str]:
    """Return what keeps the times of some of these runs from meaning what they seem to."""
    on_cpus = any(run.result.workload.device_type == "cpu" for run in runs)
    simulated = any(run.result.environment.nodes_share_hardware for run in runs)
    return [CPU_CAVEAT] * on_cpus + [SIMULATED_CAVEAT] * simulated


def facts(pair: Pair) -> list[Fact]:
    """Return what was compared, on what, and everything to know before the numbers."""
    found = [("NOT EQUAL", describe_difference(pair, each)) for each in pair.mismatch]
    found += _header(pair)
    found += [("variant", line) for line in _switched(pair)]
    found += [("outcome", f"{_name(pair, run)}: {describe_outcome(run.result.outcome)}") for run in _failed(pair)]
    for difference in pair.environment_differences():
        found.append(("warning", f"{describe_difference(pair, difference)}; repeat both under equal conditions"))
    found += [("remark", f"{_name(pair, run)}: {text}") for run in pair.runs for text in remarks(run)]
    found += [("finding", describe_difference(pair, difference)) for difference in pair.findings()]
    completed = pair.completed()
    if completed.baseline and completed.other and not pair.mismatch:
        found.append(("parity", parity(completed).sentence()))
    return [(name, shortened(plain(text), FACT_LENGTH)) for name, text in found]


def _header(pair: Pair) -> list[Fact]:
    result = pair.baseline[0].result
    workload, environment = result.workload, result.environment
    versions = [f"torch {environment.torch_version}"]
    lightning = {run.result.environment.lightning_version for run in pair.runs} - {None}
    versions += [f"lightning {version}" for version in sorted(lightning)]
    ranks = f"{counted(workload.world_size, 'rank')} on {counted(environment.num_nodes, 'node')}"
    threads = counted(environment.cpu_threads, "CPU thread")
    samples = f"{counted(workload.batch_size_per_device, 'sample')} a rank, {workload.global_batch_size} in all"
    return [
        ("ranks", f"{ranks}, started by {environment.launcher}; {environment.process_group_backend}; {threads} each"),
        ("batch", f"{samples}, of {workload.model.sequence_length} tokens; seed {workload.seed}"),
        ("steps", f"{workload.steps} timed after {workload.warmup_steps} to warm up"),
        ("machine", f"{environment.device_name}; {', '.join(versions)}"),
    ]


def _switched(pair: Pair) -> list[str]:
    """Return, for each side that switched something, with which option and what for."""
    return [
        f"{label}: run with --{name}, to {BY_NAME[name].help}"
        for label, side in zip(pair.labels, (pair.baseline, pair.other), strict=True)
        for name in side[0].result.workload.variants
    ]


def describe_difference(pair: Pair, difference: Difference) -> str:
    """Return a field and its values on both sides."""
    values = [" / ".join(values) or "unset" for values in (difference.baseline, difference.other)]
    return f"{difference.field}: {pair.labels[0]} {values[0]}, {pair.labels[1]} {values[1]}"


def _failed(pair: Pair) -> list[Run]:
    return [run for run in pair.runs if not run.completed]


def _name(pair: Pair, run: Run) -> str:
    """Return what a run is called among the runs of its side."""
    side, label = (pair.baseline, pair.labels[0]) if run in pair.baseline else (pair.other, pair.labels[1])
    return label if len(side) == 1 else f"{label}, run {side.index(run) + 1}"


def shown_rows(pair: Pair) -> list[Row]:
    """Return the rows to show, of completed runs; without those that neither side could measure, but for the peaks."""
    completed = pair.completed()
    if not completed.baseline or not completed.other:
        return []
    return [
        row
        for row in rows(completed)
        if row.metric.name in ALWAYS_SHOWN or row.metric.exact or (row.baseline, row.other) != (None, None)
    ]


def cells(row: Row) -> tuple[str, str, str, str]:
    """Return a row's two values, their difference and their ratio as text."""
    return format_value(row, row.baseline), format_value(row, row.other), format_difference(row), format_ratio(row)


def format_value(row: Row, value: Value) -> str:
    """Return a value as text; what was not measured is n/a, never 0."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if row.metric.exact and isinstance(value, float) and not row.metric.decimals:
        return f"{value:.{EXACT_DIGITS}g}"
    return rounded(value, row.digits)


def format_difference(row: Row) -> str:
    """Return the difference as text: ``equal`` where there is none, and n/a where a value is missing."""
    if row.baseline is not None and row.baseline == row.other:
        return "equal"
    if row.difference is None:
        return "n/a"
    if row.metric.exact:
        return f"{row.difference:+.3g}"
    text = rounded(row.difference, row.digits, sign="+")
    # Where runs do not differ by themselves, a difference too small for the column is still one.
    return f"{row.difference:+.1g}" if not row.spread and not row.metric.noisy and not text.strip("+-0.,") else text


def format_ratio(row: Row) -> str:
    """Return the ratio as text, empty where it means nothing."""
    if row.metric.exact:
        return ""
    if row.ratio is None:
        return "n/a"
    if row.metric.noisy and not row.spread:
        return f"{row.ratio:.2f}"
    # A spread as large as the baseline leaves one digit, and so does any larger one.
    digits = supported_digits(min(row.spread / abs(row.baseline), 1.0)) if row.baseline else None
    return rounded(row.ratio, 3 if digits is None else max(1, min(digits, 3)))


def rounded(value: float, digits: int, sign: str = "") -> str:
    """Return a number with ``digits`` decimals; negative digits round to tens, hundreds and so on.

    A float that no measurement gives is shown with an exponent instead of a row of zeros.
    """
    digits = min(digits, MOST_DECIMALS)
    if isinstance(value, float) and abs(value) > LARGEST_WRITTEN_OUT:
        return f"{value:{sign}.3g}"
    return format(round(value, digits) + 0.0 if digits > 0 else int(round(value, digits)), f"{sign},.{max(0, digits)}f")


def verdict_sentence(pair: Pair) -> str:
    """Return what the times of a pair allow to be said, and on what grounds."""
    found = verdict(pair)
    grounds = [_spread(found.labels[0], found.baseline), _spread(found.labels[1], found.other)]
    sentence = f"{', '.join(filter(None, grounds))}: " if any(grounds) else ""
    sentence += found.finding()
    if found.ratio is None or found.difference is None or found.obstacle:
        return sentence
    ratio = interval(found.ratio)
    difference = interval(found.difference, sign="+")
    sentence += f"; ratio {ratio[0]} (95 % interval {ratio[1]}), {difference[0]} ms a step ({difference[1]})"
    if found.noise:
        sentence += f"; {found.labels[0]} against itself {interval(found.noise)[1]}"
    return sentence


def finding(pair: Pair) -> str:
    """Return the verdict without its grounds."""
    found: Verdict = verdict(pair)
    if found.ratio is None or found.obstacle:
        return found.finding()
    return f"{found.finding()} (ratio {', '.join(interval(found.ratio))})"


def _spread(label: str, medians: Sequence[float]) -> str:
    if not medians:
        return ""
    digits = supported_digits(standard_deviation(medians))
    texts = [f"{value:.{SINGLE_DIGITS}g}" if digits is None else rounded(value, min(digits, 3)) for value in medians]
    low, high = texts[medians.index(min(medians))], texts[medians.index(max(medians))]
    values = low if low == high else f"{low} to {high}"
    return f"{label} {values} ms a step in {counted(len(medians), 'run')}"


SINGLE_DIGITS = 3


def interval_digits(estimate: Estimate) -> int:
    """Return the decimals that the width of an interval supports."""
    digits = supported_digits((estimate.high - estimate.low) / 2)
    return 3 if digits is None else digits + 1  # an interval's own ends deserve a second digit


def interval(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    """Return an estimate and its interval with the digits that the interval supports."""
    digits = interval_digits(estimate)
    value, low, high = (rounded(each, digits, sign) for each in (estimate.value, estimate.low, estimate.high))
    return value, f"{low} to {high}"
