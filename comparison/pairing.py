"""Which runs may be compared: those whose workloads are equal. The others are named, with every field that differs.

A variant (``common/variants.py``) has an equal workload, but is a side of its own: named, never mixed with other runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from comparison.loading import Run

FOUND_OUT = (
    "global_parameter_count",
    "reshard_after_forward",
    "optimizer",
    "initial_weights_sha256",
    "batch_sha256",
)
"""What a run found out about its workload; the other fields were asked for. They decide nothing about pairing, but
within a pair they must be equal."""

NOT_SETTINGS = (
    "started_at",
    "command",
    "slurm.job_id",
    "slurm.step_id",
    "timeout_seconds",
    "precision_requested",
    "precision_reason",
)
"""Environment fields that differ between runs by their nature."""

CONTROL = "control"
"""Label of the runs that an implementation is compared with itself by."""


@dataclass(frozen=True)
class Difference:
    """A field that should have been equal, with every value that was found on either side."""

    field: str
    baseline: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pair:
    """Runs of two sides: native and Lightning, one implementation and itself, or one of them and a variant."""

    baseline: tuple[Run, ...]
    other: tuple[Run, ...]
    labels: tuple[str, str] = ("native", "lightning")
    """What the two sides are called, from the files' content."""
    mismatch: tuple[Difference, ...] = ()
    """Workload fields that differ; a pair that has some is shown only if the user insists."""
    control: "Pair | None" = None
    """The same workload, baseline against itself: what noise alone does."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, baseline first."""
        return self.baseline + self.other

    @property
    def is_control(self) -> bool:
        """Whether one implementation, its switches alike, is compared with itself."""
        return len({side_label(run) for run in self.runs}) == 1

    @property
    def is_variant(self) -> bool:
        """Whether a side switched something."""
        return any(run.result.workload.variants for run in self.runs)

    def completed(self) -> "Pair":
        """Return the pair with the runs that made all their steps alone."""
        return self if all(run.completed for run in self.runs) else self._completed

    @cached_property
    def _completed(self) -> "Pair":
        return replace(
            self,
            baseline=tuple(run for run in self.baseline if run.completed),
            other=tuple(run for run in self.other if run.completed),
        )

    def environment_differences(self) -> list[Difference]:
        """Return the settings that should have been equal over all runs and were not."""
        found = _differences(*([flat(run.data["environment"]) for run in side] for side in (self.baseline, self.other)))
        versions = {run.result.environment.lightning_version for run in self.runs} - {None}
        ignored = (*NOT_SETTINGS, "lightning_version") if len(versions) < 2 else NOT_SETTINGS  # native has none
        return [each for each in found if each.field not in ignored]

    def findings(self) -> list[Difference]:
        """Return what the two sides chose differently on their own."""
        sides = (
            [flat(run.data["choices"]) for run in side if run.data["choices"]] for side in (self.baseline, self.other)
        )
        return _differences(*sides)


@dataclass
class Pairing:
    """What became of all runs."""

    pairs: list[Pair] = field(default_factory=list)
    mismatches: list[Pair] = field(default_factory=list)
    alone: list[tuple[Run, ...]] = field(default_factory=list)
    """Runs of one implementation whose strategy the other one never ran."""

    def runs(self) -> list[Run]:
        """Return all runs, each once."""
        groups = [pair.runs for pair in [*self.pairs, *self.mismatches]] + self.alone
        return list({id(run): run for group in groups for run in group}.values())


class Side(NamedTuple):
    """What runs of one workload are told apart by."""

    implementation: str
    switched: tuple[str, ...]
    """Names of variants."""
    is_control: bool


Sides = dict[Side, list[Run]]
"""Runs of one workload."""


def pair_runs(runs: Sequence[Run]) -> Pairing:
    """Pair native with Lightning runs by workload.

    Runs labelled ``control`` are paired with the others of their implementation. A variant is paired with its own
    implementation's default runs; without those, with the other's; else with another variant. Where all runs are of one
    implementation, they are dealt out in turn to two sides of an A/A comparison. Groups left without a partner are
    matched with the nearest group of the other implementation and the same strategy, to name what differs; two runs
    that are all there is, with each other.
    """
    one_side = len({_side(run) for run in runs}) == 1
    pairing = Pairing()
    leftovers: list[tuple[Run, ...]] = []
    for sides in by_workload(runs):
        controls = [pair for name in ("native", "lightning") if (pair := _control(sides, name, split=one_side))]
        native, lightning = (default_runs(sides, name) for name in ("native", "lightning"))
        made = [*controls, *_variants(sides)]
        if native and lightning:
            control = next((pair for pair in controls if not _unequal(pair)), None)
            made.insert(0, Pair(native, lightning, control=control))
        for pair in made:
            _file(pair, pairing)
        paired = {id(run) for pair in made for run in pair.runs}
        leftovers += [tuple(group) for group in sides.values() if id(group[0]) not in paired]
    if len(runs) == len(leftovers) == 2:
        _match_two(leftovers, pairing)
    else:
        _match_leftovers(leftovers, pairing)
    return pairing


def by_workload(runs: Sequence[Run]) -> list[Sides]:
    """Return the runs of each workload, by side."""
    groups: dict[str, Sides] = {}
    for run in runs:
        key = json.dumps(asked_for(run), sort_keys=True)
        groups.setdefault(key, {}).setdefault(_side(run), []).append(run)
    return list(groups.values())


def default_runs(sides: Sides, implementation: str) -> tuple[Run, ...]:
    """Return the runs of one implementation that switched nothing; control runs where there are no others."""
    return tuple(sides.get(Side(implementation, (), False)) or sides.get(Side(implementation, (), True), ()))


def side_label(run: Run) -> str:
    """Return what the side of a run is called: its implementation, and what it switched."""
    return " ".join([run.result.implementation, ", ".join(run.result.workload.variants)]).strip()


def _control(sides: Sides, implementation: str, split: bool) -> Pair | None:
    """Return the A/A comparison of one implementation, if there is one; with ``split``, all runs are of one side."""
    first, second = (sides.get(Side(implementation, (), is_control), []) for is_control in (False, True))
    if split:
        alike = [run for run in next(iter(sides.values())) if run.result.implementation == implementation]
        ordered = sorted(alike, key=lambda run: (run.result.environment.started_at, run.path))
        first, second = ordered[::2], ordered[1::2]
    if not first or not second:
        return None
    return Pair(tuple(first), tuple(second), _control_labels(first[0]))


def _variants(sides: Sides) -> list[Pair]:
    """Return the pair of every side that switched something, as far as there is something to compare it with."""
    made: dict[frozenset[Side], Pair] = {}
    for side in sorted(sides, key=lambda each: (each.implementation == "lightning", each.switched)):
        if side.switched and (partner := _partner(side, sides)):
            both = sorted((side, partner), key=lambda each: (each.implementation == "lightning", each.switched))
            made[frozenset(both)] = _labelled(*(tuple(sides[each]) for each in both))
    return list(made.values())


def _partner(variant: Side, sides: Sides) -> Side | None:
    """Return what a variant is compared with: own defaults, the other's, the other's variants, its own variants."""
    others = sorted((side for side in sides if side[:2] != variant[:2]), key=lambda side: side.is_control)
    own = [side for side in others if side.implementation == variant.implementation]
    foreign = [side for side in others if side.implementation != variant.implementation]
    defaults = [side for side in own + foreign if not side.switched]
    return next(iter(defaults + [side for side in foreign + own if side.switched]), None)


def _labelled(baseline: tuple[Run, ...], other: tuple[Run, ...]) -> Pair:
    """Return a pair with its sides called what they are."""
    return Pair(baseline, other, (side_label(baseline[0]), side_label(other[0])))


def _file(pair: Pair, pairing: Pairing) -> None:
    """Put a pair of equal settings where it belongs: what both sides found out must be equal too."""
    if unequal := _unequal(pair):
        pairing.mismatches.append(replace(pair, mismatch=tuple(unequal)))
    else:
        pairing.pairs.append(pair)


def _unequal(pair: Pair) -> list[Difference]:
    return _differences(*(found_out(side) for side in (pair.baseline, pair.other)))


def _match_two(leftovers: list[tuple[Run, ...]], pairing: Pairing) -> None:
    native_first = sorted(leftovers, key=lambda group: group[0].result.implementation == "lightning")
    differences = _differences(*([flat(asked_for(run)) for run in group] for group in native_first))
    pair = replace(_labelled(*native_first), mismatch=tuple(differences))
    if pair.is_control:
        pair = replace(pair, labels=_control_labels(pair.runs[0]))
    pairing.mismatches.append(pair)


def _match_leftovers(leftovers: list[tuple[Run, ...]], pairing: Pairing) -> None:
    partnered: set[int] = set()
    for group in leftovers:
        candidates = [
            (_differences(*([flat(asked_for(run)) for run in side] for side in (group, other))), other)
            for other in leftovers
            if group[0].result.implementation == "native"
            and other[0].result.implementation == "lightning"
            and id(other) not in partnered
            and _strategy(other) == _strategy(group)
        ]
        if candidates:
            differences, nearest = min(candidates, key=lambda candidate: len(candidate[0]))
            partnered |= {id(group), id(nearest)}
            pairing.mismatches.append(replace(_labelled(group, nearest), mismatch=tuple(differences)))
    pairing.alone += [group for group in leftovers if id(group) not in partnered]


def _control_labels(run: Run) -> tuple[str, str]:
    return f"{side_label(run)} A", f"{side_label(run)} B"


def _side(run: Run) -> Side:
    return Side(run.result.implementation, tuple(run.result.workload.variants), run.result.label == CONTROL)


def _strategy(group: tuple[Run, ...]) -> str:
    return group[0].result.workload.strategy


def asked_for(run: Run) -> dict[str, Any]:
    """Return what runs are paired by."""
    apart = ("variants", *FOUND_OUT)
    return {name: value for name, value in run.data["workload"].items() if name not in apart}


def found_out(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what completed runs found out; one that failed may not have come so far."""
    found = [{name: run.data["workload"][name] for name in FOUND_OUT} for run in runs if run.completed]
    return [flat({name: value for name, value in values.items() if value is not None}) for values in found]


def _differences(baseline: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[Difference]:
    """Name the fields whose values are not the same in all of these dictionaries."""
    names = dict.fromkeys(name for values in baseline + other for name in values)
    found = []
    for name in names:
        sides = [tuple(dict.fromkeys(shown(values.get(name)) for values in side)) for side in (baseline, other)]
        if len({*sides[0], *sides[1]}) > 1:
            found.append(Difference(name, *sides))
    return found


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested dictionaries into one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def shown(value: Any) -> str:
    """Return a field's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
