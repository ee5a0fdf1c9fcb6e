"""The code-reading task: a duty's native code, the question where it went, and the place in Lightning."""

from functools import partial

from rich.console import Console
from rich.text import Text

from comparison import plumbing
from comparison.catalogue import CATALOGUE, DUTIES
from comparison.code_view import HEADINGS, find_duties, side_panel
from comparison.evidence import witnesses
from comparison.exercise.explanations import say
from comparison.exercise.measured import Measured
from comparison.exercise.questions import Task, choice, count
from comparison.responsibilities import Responsibility, summary

READ = ("process group", "DDP wrap", "FSDP2 wrap", "optimizer construction", "train mode", "zero_grad")
"""The duties to read, in this order."""
WHERE = (
    ("lightning", "into Lightning's library: it is no longer written out"),
    ("lightning_impl", "it stays: lightning_impl/ has it written out too"),
    ("common", "into common/, which both sides share"),
    ("nobody", "nowhere: under Lightning nobody does it"),
)


def tasks() -> tuple[Task, ...]:
    """Return the task's parts: what disappears by numbers, then one part for each duty to read."""
    return (by_numbers(), *(read(name, number) for number, name in enumerate(READ, start=1)))


def by_numbers() -> Task:
    """Predict how much disappears."""
    native = plumbing.count("native")
    return Task(
        "5",
        "Which duties disappear",
        (
            f"A run in native PyTorch has {len(DUTIES)} duties here, from launching to teardown. Of the {native.total} "
            f"lines of code in native/, {native.lines} are distributed plumbing: ranks, devices, process group, "
            "wrappers (docs/measuring.md says what counts).",
        ),
        (
            count("5.moved", f"How many of the {len(DUTIES)} duties does Lightning's library take over?",
                  "duties moved", lambda _found: sum(duty.change == "moved" for duty in DUTIES)),
            count("5.lines", "How many lines of code in lightning_impl/ are distributed plumbing?",
                  "lines of plumbing", lambda _found: plumbing.count("lightning").lines),
        ),
        _explain_numbers,
        commands=("python compare.py responsibilities",),
    )  # fmt: skip


def _explain_numbers(console: Console, _found: Measured | None) -> None:
    say(console, summary(CATALOGUE))
    say(console, plumbing.sentence())
    say(
        console,
        "Fewer duties don't always mean fewer lines: this is an exact comparison, not the shortest Lightning program. "
        "What is new on Lightning's side tells it about ranks and strategy and checks that it sees the same launcher. "
        "The next parts look at single duties.",
    )


def read(name: str, number: int) -> Task:
    """Read one duty's native code and say where it went."""
    (duty,) = find_duties(name)
    return Task(
        f"5.{number}",
        f"Where did it go: {name}",
        ("This is how native PyTorch does it; the lines with > are the duty.",),
        (
            choice(
                f"5.{number}.where", f"Where did {name} go under Lightning?", name, WHERE, lambda _found: _where(duty)
            ),
        ),
        partial(_reveal, duty),
        commands=(f'python compare.py responsibilities --code "{name}"',),
        show=partial(_show_native, duty),
    )


def _where(duty: Responsibility) -> tuple[str, str]:
    return duty.lightning.who, f"{duty.change}: {duty.lightning.what}"


def _show_native(duty: Responsibility, console: Console) -> None:
    console.print(side_panel(HEADINGS[0], duty.native))
    console.print()


def _reveal(duty: Responsibility, console: Console, found: Measured | None) -> None:
    console.print(side_panel(HEADINGS[1], duty.lightning))
    console.print()
    for line in evidence(duty, found):
        console.print(Text(line, style="cyan", overflow="fold"))
    console.print()
    if duty.note:
        say(console, f"Worth knowing: {duty.note}")


def evidence(duty: Responsibility, found: Measured | None) -> list[str]:
    """Return who was seen doing a duty in the results, on either side; a line that says so if they hold no evidence."""
    sides = witnesses([run.result for run in found.runs] if found else [], CATALOGUE)
    if not any(witness.watched for witness in sides.values()):
        return ["The places are the catalogue's, found in the installed source; these results hold no evidence."]
    lines = []
    for side, witness in sides.items():
        finding = witness.finding(duty)
        if not finding.sightings:
            lines.append(f"{side}: {'nobody was seen doing it' if finding.state == 'seen' else finding.state}")
            continue
        times = ", ".join(map(str, finding.times))
        places = ", ".join(dict.fromkeys(str(sighting.place) for sighting in finding.sightings))
        lines.append(f"{side}: {finding.state} in your runs, {times}, at {places}")
    return lines
