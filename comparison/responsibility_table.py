"""The responsibilities as a table for a terminal or a pipe, as Markdown and as JSON data."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from itertools import groupby
from typing import TYPE_CHECKING, Any

from common.result import Result
from common.text import plain
from comparison.catalogue import CATALOGUE
from comparison.columns import Part, print_table, split_after, words
from comparison.evidence import SIDES, Finding, Sighting, Witnesses, witnesses
from comparison.responsibilities import Owner, Responsibility, summary
from comparison.source import Place, PlaceNotFound, lightning_root, locate

if TYPE_CHECKING:
    from rich.console import Console

NOT_INSTALLED = "lightning is not installed"
LEGEND = (
    "moved: by hand in native, by the library in Lightning. stays: by hand on both sides. dropped: by native only. "
    "added: by Lightning only. same: the launcher's."
)
NOT_FOUND = "A line number of ? means that the statement was not found in the installed version."
MORE = "What is done there, all places and what is worth knowing: python compare.py responsibilities"
HEADINGS = ("Duty", "Native PyTorch", "Lightning")
STATES = (
    "seen: these runs show it, so many times a run. claimed: nothing in them shows it. CONTRADICTED: somebody else was "
    "seen."
)
PHASES = {
    "setup": "in the set-up",
    "step": "in the first step",
    "window": "before the window",
    "teardown": "at the end",
}
BULLET = "- "
PROSE_WIDTH = 100
CHANGE_STYLES = {"moved": "green", "added": "yellow", "dropped": "yellow"}


def render(console: Console, brief: bool = False, results: Sequence[Result] = ()) -> None:
    """Print title, summary, table and notes. Nothing is ever cut, whatever the width.

    Args:
        console: where to print.
        brief: the first place of every duty alone, without notes: what stands below the metrics of a comparison.
        results: runs that bear witness to the catalogue.
    """
    from rich.text import Text

    sides = witnesses(results, CATALOGUE)
    findings = all_findings(sides)
    _print_prose(console, title(), style="bold")
    for text in _introduction(findings, brief):
        _print_prose(console, text)
    console.print()
    rows = [_row(duty, brief, findings[number] if findings else None) for number, duty in enumerate(CATALOGUE)]
    print_table(console, HEADINGS, rows, spaced=not brief)
    console.print()
    for text in [*step_sentences(results), *order_sentences(sides)]:
        _print_prose(console, f"{BULLET}{text}", indent=len(BULLET))
    if findings:
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


Findings = list[tuple[Finding, Finding]] | None
"""What runs say about the duties of the catalogue, in its order, native first; None without a run that was watched."""


def all_findings(sides: Witnesses) -> Findings:
    """Compare the catalogue with what runs saw."""
    if not any(witness.watched for witness in sides.values()):
        return None
    return [(sides["native"].finding(duty), sides["lightning"].finding(duty)) for duty in CATALOGUE]


def contradicted(results: Sequence[Result]) -> list[str]:
    """Return the duties that somebody else was seen doing."""
    return [
        duty.name
        for duty, findings in zip(CATALOGUE, all_findings(witnesses(results, CATALOGUE)) or [], strict=False)
        if any(finding.state == "contradicted" for finding in findings)
    ]


def _introduction(findings: Findings, brief: bool = False) -> list[str]:
    introduction = [summary(CATALOGUE), LEGEND]
    if not brief:  # counting lines takes as long as all the rest
        from comparison import plumbing

        introduction.insert(1, plumbing.sentence())
    if findings is None:
        return introduction
    states = Counter(_states(each) for each in findings)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
    return [*introduction, f"Of the {len(CATALOGUE)} rows, these runs show: {counts}.", STATES]


def _states(findings: tuple[Finding, Finding]) -> str:
    """Return both sides' states in one word, if they are the same."""
    states = {finding.state for finding in findings}
    if "contradicted" in states:
        return "CONTRADICTED"
    return states.pop() if len(states) == 1 else f"{findings[0].state} in native, {findings[1].state} in Lightning"


def step_sentences(results: Sequence[Result]) -> Iterator[str]:
    """Say what one step of each cell asked of the network and of the host; runs that agree share a line."""
    said: dict[str, None] = {}
    for result in results:
        if result.responsibilities is None or result.responsibilities.step.step is None:
            continue
        step, workload = result.responsibilities.step, result.workload
        wrap = f" {workload.fsdp_wrap}" if workload.fsdp_wrap else ""
        buckets = f" for {step.ddp_buckets} buckets" if (step.ddp_buckets or 0) > 1 else ""
        strategy, others = _amounts(step.collectives_of_strategy), _amounts(step.collectives_of_others)
        where = f"{result.implementation} {workload.strategy}{wrap}, step {step.step}"
        syncs = "1 host sync" if step.host_syncs == 1 else f"{step.host_syncs} host syncs"
        said[f"{where}: by the strategy {strategy}{buckets}; by the code around it {others}, {syncs}"] = None
    yield from said


def _amounts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {plain(name)}" for name, count in sorted(counts.items())) or "no collective"


def order_sentences(sides: Witnesses) -> Iterator[str]:
    """Say what came before what, where the order matters."""
    for side, witness in sides.items():
        for first, second, what, other in ORDERS:
            earlier = witness.first_is_earlier(first, second)
            if earlier is not None:
                yield f"{side}: {what} {'before' if earlier else 'after'} {other}"


ORDERS = (
    ("zero_grad", "forward", "zero_grad came", "the forward"),
    ("Optimizer", "fully_shard", "the optimizer was made", "sharding"),
)
"""Two calls whose order matters, and what they are called in a sentence about it."""


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


def _row(
    responsibility: Responsibility, brief: bool, findings: tuple[Finding, Finding] | None
) -> tuple[list[Part], ...]:
    """Return the cells of a row."""
    change = responsibility.change
    duty = [Part(words(responsibility.name), "bold"), Part(words(change), CHANGE_STYLES.get(change, ""))]
    native = _parts(responsibility.native, brief)
    lightning = _parts(responsibility.lightning, brief)
    if responsibility.lightning == responsibility.native:
        lightning = [Part(words("the same"))]
    if findings and (brief or {finding.state for finding in findings} == {"claimed"}):
        duty.append(Part(words(_states(findings)), STATE_STYLES.get(_states(findings), "")))
    elif findings:
        native += _evidence_parts(responsibility.native, findings[0])
        lightning += _evidence_parts(responsibility.lightning, findings[1])
    return duty, native, lightning


STATE_STYLES = {"seen": "green", "contradicted": "bold red", "CONTRADICTED": "bold red"}


def _evidence_parts(owner: Owner, finding: Finding) -> list[Part]:
    """Return what runs saw of a duty on one side: how often in which phase, and where if not where the places say."""
    if not finding.sightings:
        text = "seen: nobody did" if finding.state == "seen" else finding.state
        return [Part(words(text), STATE_STYLES.get(finding.state, ""))]
    parts = []
    named = {(place.file, place.function) for place in owner.places}
    word = finding.state.upper() if finding.state == "contradicted" else finding.state
    for phase, times in groupby(finding.times, key=lambda each: each.phase):
        text = f"{word} {', '.join(map(str, times))} {PHASES[phase]}"
        parts.append(Part(words(text), STATE_STYLES[finding.state]))
    for place in dict.fromkeys(sighting.place for sighting in finding.sightings):
        if (place.file, place.function) not in named:
            path = split_after(f"{place.file}:{place.line}", "/")
            parts.append(Part((path, split_after(place.function, ".")), "cyan", BULLET))
    return parts


def _parts(owner: Owner, brief: bool) -> list[Part]:
    """Return what an owner does, then its places; lines of one function share an entry. In brief: one place alone."""
    parts = [] if brief and owner.places else [Part(words(owner.what or owner.who))]
    lines = [(place, _line(place)) for place in (owner.places[:1] if brief else owner.places)]
    for (file, function), group in groupby(lines, key=lambda found: (found[0].file, found[0].function)):
        numbers = [str(line) for _, line in group if line is not None]
        if numbers:
            path = split_after(f"{file}:{','.join(numbers)}", "/")
            parts.append(Part((path, split_after(function, ".")), "cyan", BULLET))
    if any(line is None for _, line in lines):
        parts.append(Part(words(NOT_INSTALLED)))
    return parts


def to_markdown(results: Sequence[Result] = ()) -> str:
    """Return title, summary and table for GitHub."""
    sides = witnesses(results, CATALOGUE)
    findings = all_findings(sides)
    lines = [f"{_escape(title())}."]
    for text in _introduction(findings):
        lines += ["", _escape(text)]
    lines += ["", "| Duty | Change | Native PyTorch | Lightning | Worth knowing |", "|---|---|---|---|---|"]
    for number, each in enumerate(CATALOGUE):
        cells = [_markdown(each.native), _markdown(each.lightning)]
        if findings:
            cells = [f"{cell}<br>{_escape(_found(found))}" for cell, found in zip(cells, findings[number], strict=True)]
        lines.append(f"| {' | '.join([_escape(each.name), each.change, *cells, _escape(each.note)])} |")
    sentences = [*step_sentences(results), *order_sentences(sides)]
    lines += ["", *(f"- {_escape(sentence)}" for sentence in sentences)] if sentences else []
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


def _found(finding: Finding) -> str:
    """Return a finding in one line."""
    if not finding.sightings:
        return "seen: nobody did" if finding.state == "seen" else finding.state
    word = finding.state.upper() if finding.state == "contradicted" else finding.state
    times = ", ".join(f"{each} {PHASES[each.phase]}" for each in finding.times)
    return f"{word} {times}, at {', '.join(dict.fromkeys(str(sighting.place) for sighting in finding.sightings))}"


def to_json_data(results: Sequence[Result] = ()) -> list[dict[str, Any]]:
    """Return the catalogue as data for ``json.dump``; a line is null where it could not be found.

    With runs that were watched, each side also has its ``state`` and what was ``seen``.
    """
    findings = all_findings(witnesses(results, CATALOGUE))
    data = []
    for number, each in enumerate(CATALOGUE):
        sides = {"native": _data(each.native), "lightning": _data(each.lightning)}
        for side, finding in zip(SIDES, findings[number] if findings else (), strict=False):
            sides[side] |= {
                "state": finding.state,
                "seen": [_sighting_data(each) for each in finding.sightings],
                "times": [asdict(each) for each in finding.times],
            }
        data.append({"name": each.name, "change": each.change, "note": each.note, **sides})
    return data


def _sighting_data(sighting: Sighting) -> dict[str, Any]:
    return {"call": sighting.call, "phase": sighting.phase, "frames": [asdict(frame) for frame in sighting.frames]}


def _data(owner: Owner) -> dict[str, Any]:
    places = []
    for place in owner.places:
        line = _line(place)
        places.append({"file": place.file, "line": line if isinstance(line, int) else None, "function": place.function})
    return {"who": owner.who, "what": owner.what, "places": places}
