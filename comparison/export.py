"""Pairs for other programs and for documents: Markdown, JSON and CSV."""

import csv
import io
import json
import statistics
from dataclasses import asdict
from typing import Any

from common.result import Result
from common.text import plain
from comparison.attribution import Attribution, attribute
from comparison.attribution_text import attribution_as_data, attribution_blocks, attribution_title
from comparison.formatting import cells, describe_workload, facts, shown_rows, title, verdict_sentence
from comparison.metrics import parity, rows, verdict
from comparison.pairing import Pair, Pairing
from comparison.responsibility_table import to_json_data, to_markdown
from comparison.scaling import ScaledRuns, Scaling
from comparison.scaling_text import (
    HEADINGS,
    NOTHING,
    describe_alone,
    point_as_data,
    scaling_as_data,
    scaling_cells,
    scaling_facts,
    scaling_title,
)

CSV_COLUMNS = (
    "strategy", "fsdp_wrap", "preset", "precision_resolved", "world_size", "global_batch_size", "device_type",
    "baseline_label", "other_label", "baseline_runs", "other_runs",
    "metric", "baseline", "other", "difference", "ratio",
)  # fmt: skip

SCALING_WORKLOAD = ("strategy", "fsdp_wrap", "preset", "precision_resolved", "device_type")
SCALING_SIZES = ("batch_size_per_device", "global_batch_size")
SCALING_COLUMNS = (
    "kind", *SCALING_WORKLOAD, "side", "world_size", *SCALING_SIZES, "completed_runs", "other_runs",
    "milliseconds_per_step_median", "base_world_size", "efficiency", "efficiency_low", "efficiency_high", "finding",
)  # fmt: skip

FORMULA_STARTS = ("=", "+", "-", "@")


def as_markdown(pairing: Pairing, *, responsibilities: bool, force: bool = False) -> str:
    """Return everything as a Markdown document."""
    blocks = [_markdown_mismatch(mismatch) for mismatch in pairing.mismatches]
    blocks += [f"No partner: {_escape(describe_workload(group[0]))}" for group in pairing.alone]
    blocks += [_markdown_pair(pair) for pair in [*pairing.pairs, *(pairing.mismatches if force else [])]]
    blocks += [_markdown_attribution(attribution) for attribution in attribute(pairing)]
    if responsibilities:
        blocks.append(f"## Who does what\n\n{to_markdown(_results(pairing))}")
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _results(pairing: Pairing) -> list[Result]:
    return [run.result for run in pairing.runs()]


def _markdown_pair(pair: Pair) -> str:
    lines = [f"## {_escape(title(pair))}", ""]
    lines += [f"- {name}: {_escape(text)}" for name, text in facts(pair)]
    shown = shown_rows(pair)
    if shown:
        labels = " | ".join(_escape(label) for label in pair.labels)
        lines += ["", f"| metric | {labels} | difference | ratio |", "|---|--:|--:|--:|--:|"]
        lines += [f"| {row.metric.name} | {' | '.join(_escape(text) for text in cells(row))} |" for row in shown]
    return "\n".join([*lines, "", f"Time: {_escape(verdict_sentence(pair))}."])


def _markdown_attribution(attribution: Attribution) -> str:
    lines = [f"## {_escape(attribution_title(attribution))}", ""]
    for name, line, below in attribution_blocks(attribution):
        lines += [f"- {name}: {_escape(line)}", *(f"  - {_escape(each)}" for each in below)]
    return "\n".join(lines)


def _markdown_mismatch(pair: Pair) -> str:
    labels = " | ".join(_escape(label) for label in pair.labels)
    lines = ["## NOT COMPARABLE", "", f"| field | {labels} |", "|---|---|---|"]
    for difference in pair.mismatch:
        values = (_escape(" / ".join(side)) for side in (difference.baseline, difference.other))
        lines.append(f"| {_escape(difference.field)} | {' | '.join(values)} |")
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Make text literal within Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#&~$" else char for char in plain(text))


def as_json(pairing: Pairing, *, responsibilities: bool, force: bool = False) -> str:
    """Return everything as JSON, with all digits of every number."""
    document: dict[str, Any] = {
        "pairs": [_json_pair(pair) for pair in [*pairing.pairs, *(pairing.mismatches if force else [])]],
        "not_comparable": [
            {**_json_sides(pair), "differences": [asdict(difference) for difference in pair.mismatch]}
            for pair in pairing.mismatches
        ],
        "alone": [[str(run.path) for run in group] for group in pairing.alone],
        "attribution": [attribution_as_data(attribution) for attribution in attribute(pairing)],
    }
    if responsibilities:
        document["responsibilities"] = to_json_data(_results(pairing))
    return _json(document)


def _json(document: dict[str, Any]) -> str:
    # DEL is the one control character that json leaves as it is.
    return json.dumps(document, indent=2, allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def _json_sides(pair: Pair) -> dict[str, Any]:
    return {
        "labels": list(pair.labels),
        "baseline": [str(run.path) for run in pair.baseline],
        "other": [str(run.path) for run in pair.other],
    }


def _json_pair(pair: Pair) -> dict[str, Any]:
    completed = pair.completed()
    comparable = bool(completed.baseline and completed.other)
    outcome = parity(completed) if comparable and not pair.mismatch else None
    found = verdict(pair)
    return {
        **_json_sides(pair),
        "workload": pair.runs[0].data["workload"],
        "outcomes": [{"path": str(run.path), **run.data["outcome"]} for run in pair.runs],
        "environment_differences": [asdict(difference) for difference in pair.environment_differences()],
        "findings": [asdict(difference) for difference in pair.findings()],
        "parity": {**asdict(outcome), "exact": outcome.exact} if outcome else None,
        "time": {**asdict(found), "finding": found.finding()},
        "metrics": [
            {
                "metric": row.metric.name,
                "baseline": row.baseline,
                "other": row.other,
                "difference": row.difference,
                "ratio": row.ratio,
                "standard_deviation": row.spread,
            }
            for row in (rows(completed) if comparable else [])
        ],
    }


def as_csv(pairing: Pairing, *, force: bool = False) -> str:
    """Return one line a metric of every pair, with all digits; what was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for pair in [*pairing.pairs, *(pairing.mismatches if force else [])]:
        workload, completed = pair.runs[0].result.workload, pair.completed()
        start = [_csv_cell(getattr(workload, name)) for name in CSV_COLUMNS[:7]]
        start += [*pair.labels, len(completed.baseline), len(completed.other)]
        for row in rows(completed) if completed.baseline and completed.other else []:
            writer.writerow([*start, row.metric.name, row.baseline, row.other, row.difference, row.ratio])
    return text.getvalue()


def scalings_as_markdown(scaled: ScaledRuns) -> str:
    """Return every scaling as a Markdown document, after what cannot be compared."""
    blocks = []
    for mismatch in scaled.mismatches:
        lines = [f"- {_escape(unequal.sentence())}" for unequal in mismatch.mismatch]
        blocks.append("\n".join([f"## NOT COMPARABLE: {_escape(scaling_title(mismatch))}", "", *lines]))
    if not scaled.scalings and not scaled.mismatches:
        blocks.append(f"{_escape(NOTHING)}.")
    blocks += [f"Not scaled: {_escape(describe_alone(alone))}" for alone in scaled.alone]
    blocks += [_markdown_scaling(scaling) for scaling in scaled.scalings]
    return "\n\n".join(blocks) + "\n"


def _markdown_scaling(scaling: Scaling) -> str:
    lines = [f"## {_escape(scaling_title(scaling))}", ""]
    lines += [f"- {name}: {_escape(text)}" for name, text in scaling_facts(scaling)]
    lines += ["", f"| {' | '.join(HEADINGS)} |", "|---|--:|--:|--:|--:|--:|---|"]
    lines += [f"| {' | '.join(map(_escape, scaling_cells(point)))} |" for point in scaling.points]
    return "\n".join(lines)


def scalings_as_json(scaled: ScaledRuns) -> str:
    """Return every scaling as JSON, with all digits of every number."""
    return _json(
        {
            "scaling": [scaling_as_data(scaling) for scaling in scaled.scalings],
            "not_comparable": [
                {
                    "kind": mismatch.kind,
                    "paths": [str(run.path) for run in mismatch.runs],
                    "differences": [
                        {"field": each.field, "values": {str(ranks): values for ranks, values in each.values.items()}}
                        for each in mismatch.mismatch
                    ],
                }
                for mismatch in scaled.mismatches
            ],
            "alone": [
                {"paths": [str(run.path) for run in alone.runs], "why": describe_alone(alone)} for alone in scaled.alone
            ],
        }
    )


def scalings_as_csv(scaled: ScaledRuns) -> str:
    """Return one line for each side and number of ranks, with all digits; what was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SCALING_COLUMNS)
    for scaling in scaled.scalings:
        for point in scaling.points:
            workload, data = point.runs[0].result.workload, point_as_data(point)
            completed = len(point.milliseconds)
            values = [
                scaling.kind,
                *(getattr(workload, name) for name in SCALING_WORKLOAD),
                *(point.side, point.ranks),
                *(getattr(workload, name) for name in SCALING_SIZES),
                *(completed, len(point.runs) - completed),
                statistics.median(point.milliseconds) if completed else None,
                *(point.base, point.efficiency, *(data["interval"] or (None, None)), point.finding()),
            ]
            writer.writerow(map(_csv_cell, values))
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    """Make a string literal within a spreadsheet, which takes one that starts like this for a formula to run."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text
