"""What runs say about the catalogue: who was seen doing a duty, whether that is who should, and how often."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from common.result import Result
from common.text import plain
from comparison.responsibilities import Owner, Responsibility

Side = Literal["native", "lightning"]
State = Literal["seen", "claimed", "contradicted"]
SIDES: tuple[Side, Side] = ("native", "lightning")


@dataclass(frozen=True)
class Frame:
    """A place that a run passed."""

    file: str
    line: int
    function: str

    @property
    def who(self) -> str:
        """The package it belongs to: ``native``, ``lightning_impl``, ``common`` or ``lightning``."""
        return self.file.split("/", 1)[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True)
class Sighting:
    """One way in which a call came about."""

    call: str
    phase: str
    frames: tuple[Frame, ...]
    """The innermost frame of this project or of lightning, then those that led there."""

    @property
    def place(self) -> Frame:
        """Who called."""
        return self.frames[0]


@dataclass(frozen=True)
class Times:
    """How often a call was seen in one phase of a run."""

    call: str
    phase: str
    low: int
    """In the run with the fewest; runs without any don't count."""
    high: int
    """In the run with the most."""

    def __str__(self) -> str:
        return f"{self.low}x {self.call}" if self.low == self.high else f"{self.low} to {self.high}x {self.call}"


@dataclass(frozen=True)
class Finding:
    """What the runs of one side say about one duty."""

    state: State
    """``seen``: the evidence agrees with the catalogue; ``claimed``: there is none; ``contradicted``: somebody else was
    seen."""
    sightings: tuple[Sighting, ...] = ()
    """Of the catalogue's owner where the duty was seen, of somebody else where it was contradicted."""
    times: tuple[Times, ...] = ()
    """How often, by call and phase, in the order in which they were first seen."""


class Witness:
    """The evidence of all runs of one side."""

    def __init__(self, side: Side, results: Iterable[Result], catalogue: Sequence[Responsibility]) -> None:
        self._side = side
        self._catalogue = catalogue
        seen = [result.responsibilities for result in results if result.responsibilities is not None]
        self.watched = bool(seen)
        """Whether any run was watched."""
        # Runs of one cell agree, so each evidence is looked at once.
        distinct = dict.fromkeys(
            tuple((each.call, each.phase, tuple(each.frames), each.count) for each in run.evidence) for run in seen
        )
        self._runs = [{_sighting(*each): count for *each, count in run} for run in distinct]
        self._sightings = list(dict.fromkeys(sighting for run in self._runs for sighting in run))
        self._duties = {sighting: self._duties_of(sighting) for sighting in self._sightings}

    def finding(self, duty: Responsibility) -> Finding:
        """Compare a duty with what was seen."""
        if not self.watched or not duty.calls:
            return Finding("claimed")
        # The instruments, in common, are the same on both sides: what they call besides contradicts nobody.
        foreign = [
            sighting
            for sighting, duties in self._duties.items()
            if sighting.call in duty.calls and not duties and sighting.place.who != "common"
        ]
        if foreign:
            return self._found("contradicted", foreign)
        own = [sighting for sighting, duties in self._duties.items() if duty in duties]
        # That nobody does it was seen, too: all calls of this kind were watched, and each was somebody else's duty.
        return self._found("seen" if own or _owner(duty, self._side).who == "nobody" else "claimed", own)

    def _found(self, state: State, sightings: list[Sighting]) -> Finding:
        times = []
        for call, phase in dict.fromkeys((each.call, each.phase) for each in sightings):
            alike = [each for each in sightings if (each.call, each.phase) == (call, phase)]
            counts = [total for run in self._runs if (total := sum(run.get(each, 0) for each in alike))]
            times.append(Times(call, phase, min(counts), max(counts)))
        return Finding(state, tuple(sightings), tuple(times))

    def first_is_earlier(self, call: str, other: str) -> bool | None:
        """Say whether ``call`` was first seen before ``other``; None if no run saw both."""
        for run in self._runs:
            calls = [sighting.call for sighting in run]
            if call in calls and other in calls:
                return calls.index(call) < calls.index(other)
        return None

    def _duties_of(self, sighting: Sighting) -> list[Responsibility]:
        """Return the duties that a call is explained by: those whose owner's function is nearest to it."""
        depths = {
            number: depth
            for number, duty in enumerate(self._catalogue)
            if sighting.call in duty.calls and (depth := _depth(_owner(duty, self._side), sighting)) is not None
        }
        return [self._catalogue[number] for number, depth in depths.items() if depth == min(depths.values())]


Witnesses = dict[Side, Witness]


def witnesses(results: Sequence[Result], catalogue: Sequence[Responsibility]) -> Witnesses:
    """Return the evidence by side. The catalogue is about each side's own way, so variants bear no witness."""
    default = [result for result in results if not result.workload.variants]
    return {side: Witness(side, [each for each in default if each.implementation == side], catalogue) for side in SIDES}


def _owner(duty: Responsibility, side: Side) -> Owner:
    return duty.native if side == "native" else duty.lightning


def _depth(owner: Owner, sighting: Sighting) -> int | None:
    """Return how many frames above the call one of the owner's functions is; None if it wasn't this owner."""
    if sighting.place.who != owner.who:
        return None
    functions = {(place.file, place.function) for place in owner.places}
    return next((n for n, frame in enumerate(sighting.frames) if (frame.file, frame.function) in functions), None)


def _sighting(call: str, phase: str, frames: Sequence[str]) -> Sighting:
    return Sighting(call, phase, tuple(_frame(text) for text in frames))


def _frame(text: str) -> Frame:
    place, function = plain(text).split(" ", 1)
    file, line = place.rsplit(":", 1)
    return Frame(file, int(line), function)
