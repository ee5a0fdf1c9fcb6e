"""Pairs for other programs and for documents: Markdown, JSON and CSV."""

import csv
import io
import json
from typing import Any

from comparison.metrics import parity, rows, time_finding
from comparison.pairing import Mismatch, Pair, Pairing
from comparison.responsibility_table import to_json_data, to_markdown
from comparison.tables import cells, describe_workload, header, plain, time_spread, title

CSV_COLUMNS = (
    "strategy", "fsdp_wrap", "preset", "precision_resolved", "world_size", "global_batch_size", "device_type",
    "native_runs", "lightning_runs", "metric", "native", "lightning", "difference", "ratio",
)  # fmt: skip


def as_markdown(pairing: Pairing, *, responsibilities: bool) -> str:
    """Return everything as a Markdown document."""
    blocks = [_markdown_mismatch(mismatch) for mismatch in pairing.mismatches]
    blocks += [f"No partner: {_escape(describe_workload(group[0]))}" for group in pairing.alone]
    blocks += [_markdown_pair(pair) for pair in pairing.pairs]
    if responsibilities:
        blocks.append(f"## Who does what\n\n{to_markdown()}")
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _markdown_pair(pair: Pair) -> str:
    lines = [f"## {_escape(title(pair))}", ""]
    lines += [f"- {name}: {_escape(text)}" for name, text in header(pair)]
    for difference in pair.environment_differences():
        values = f"native {' / '.join(difference.native)}, lightning {' / '.join(difference.lightning)}"
        lines.append(f"- warning: {_escape(f'{difference.field} differs ({values})')}")
    lines += [f"- parity: {parity(pair).sentence()}", ""]
    lines += ["| metric | native | lightning | difference | ratio |", "|---|--:|--:|--:|--:|"]
    lines += [f"| {row.metric.name} | {' | '.join(_escape(cell) for cell in cells(row))} |" for row in rows(pair)]
    return "\n".join([*lines, "", f"Time: {time_spread(pair)}: {time_finding(pair)}."])


def _markdown_mismatch(mismatch: Mismatch) -> str:
    lines = ["## NOT COMPARABLE", "", "| field | native | lightning |", "|---|---|---|"]
    for difference in mismatch.differences:
        native, lightning = (_escape(" / ".join(side)) for side in (difference.native, difference.lightning))
        lines.append(f"| {difference.field} | {native} | {lightning} |")
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Make text literal within Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in plain(text))


def as_json(pairing: Pairing, *, responsibilities: bool) -> str:
    """Return everything as JSON, with all digits of every number."""
    document: dict[str, Any] = {
        "pairs": [_json_pair(pair) for pair in pairing.pairs],
        "not_comparable": [_json_mismatch(mismatch) for mismatch in pairing.mismatches],
        "alone": [[str(run.path) for run in group] for group in pairing.alone],
    }
    if responsibilities:
        document["responsibilities"] = to_json_data()
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _json_pair(pair: Pair) -> dict[str, Any]:
    outcome = parity(pair)
    return {
        "workload": pair.runs[0].data["workload"],
        "native": [str(run.path) for run in pair.native],
        "lightning": [str(run.path) for run in pair.lightning],
        "environment_differences": [vars(difference) for difference in pair.environment_differences()],
        "parity": {**vars(outcome), "exact": outcome.exact},
        "time": time_finding(pair),
        "metrics": [
            {
                "metric": row.metric.name,
                "native": row.native,
                "lightning": row.lightning,
                "difference": row.difference,
                "ratio": row.ratio,
            }
            for row in rows(pair)
        ],
    }


def _json_mismatch(mismatch: Mismatch) -> dict[str, Any]:
    return {
        "native": [str(run.path) for run in mismatch.native],
        "lightning": [str(run.path) for run in mismatch.lightning],
        "differences": [vars(difference) for difference in mismatch.differences],
    }


def as_csv(pairing: Pairing) -> str:
    """Return one line a metric of every pair, with all digits; what was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for pair in pairing.pairs:
        workload = pair.runs[0].result.workload
        start = [getattr(workload, name) for name in CSV_COLUMNS[:7]] + [len(pair.native), len(pair.lightning)]
        for row in rows(pair):
            writer.writerow([*start, row.metric.name, row.native, row.lightning, row.difference, row.ratio])
    return text.getvalue()
