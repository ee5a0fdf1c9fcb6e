"""Which runs may be compared: those whose workloads are equal. The others are named, with every field that differs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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


@dataclass(frozen=True)
class Pair:
    """Runs of two sides: native and Lightning, or one implementation and itself."""

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
        """Whether one implementation is compared with itself."""
        return len({run.result.implementation for run in self.runs}) == 1

    def completed(self) -> "Pair":
        """Return the pair with the runs that made all their steps alone."""
        return replace(
            self,
            baseline=tuple(run for run in self.baseline if run.completed),
            other=tuple(run for run in self.other if run.completed),
        )

    def environment_differences(self) -> list[Difference]:
        """Return the settings that should have been equal over all runs and were not."""
        found = _differences(
            *([_flat(run.data["environment"]) for run in side] for side in (self.baseline, self.other))
        )
        versions = {run.result.environment.lightning_version for run in self.runs} - {None}
        ignored = (*NOT_SETTINGS, "lightning_version") if len(versions) < 2 else NOT_SETTINGS  # native has none
        return [each for each in found if each.field not in ignored]

    def findings(self) -> list[Difference]:
        """Return what the two sides chose differently on their own."""
        sides = (
            [_flat(run.data["choices"]) for run in side if run.data["choices"]] for side in (self.baseline, self.other)
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


Sides = dict[tuple[str, bool], list[Run]]
"""Runs of one workload by implementation, and whether they are control runs."""


def pair_runs(runs: Sequence[Run]) -> Pairing:
    """Pair native with Lightning runs by workload.

    Runs labelled ``control`` are paired with the others of their implementation. Where all runs are of one
    implementation, they are dealt out in turn to two sides of an A/A comparison. Groups left without a partner are
    matched with the nearest group of the other implementation and the same strategy, to name what differs; two runs
    that are all there is, with each other.
    """
    groups: dict[str, Sides] = {}
    for run in runs:
        key = json.dumps(_asked_for(run), sort_keys=True)
        groups.setdefault(key, {}).setdefault(_side(run), []).append(run)
    one_side = len({_side(run) for run in runs}) == 1
    pairing = Pairing()
    leftovers: list[tuple[Run, ...]] = []
    for sides in groups.values():
        controls = [pair for name in ("native", "lightning") if (pair := _control(sides, name, split=one_side))]
        native, lightning = (
            tuple(sides.get((name, False)) or sides.get((name, True), ())) for name in ("native", "lightning")
        )
        if native and lightning:
            control = next((pair for pair in controls if not _unequal(pair)), None)
            _file(Pair(native, lightning, control=control), pairing)
        elif not controls:
            leftovers += [tuple(side) for side in sides.values()]
        for control in controls:
            _file(control, pairing)
    if len(runs) == len(leftovers) == 2:
        _match_two(leftovers, pairing)
    else:
        _match_leftovers(leftovers, pairing)
    return pairing


def _control(sides: Sides, implementation: str, split: bool) -> Pair | None:
    """Return the A/A comparison of one implementation, if there is one."""
    first, second = sides.get((implementation, False), []), sides.get((implementation, True), [])
    if split and len(first or second) > 1:
        ordered = sorted(first or second, key=lambda run: (run.result.environment.started_at, run.path))
        first, second = ordered[::2], ordered[1::2]
    if not first or not second:
        return None
    return Pair(tuple(first), tuple(second), _control_labels(implementation))


def _file(pair: Pair, pairing: Pairing) -> None:
    """Put a pair of equal settings where it belongs: what both sides found out must be equal too."""
    if unequal := _unequal(pair):
        pairing.mismatches.append(replace(pair, mismatch=tuple(unequal)))
    else:
        pairing.pairs.append(pair)


def _unequal(pair: Pair) -> list[Difference]:
    return _differences(*(_found_out(side) for side in (pair.baseline, pair.other)))


def _match_two(leftovers: list[tuple[Run, ...]], pairing: Pairing) -> None:
    native_first = sorted(leftovers, key=lambda group: group[0].result.implementation == "lightning")
    differences = _differences(*([_flat(_asked_for(run)) for run in group] for group in native_first))
    pair = Pair(*native_first, mismatch=tuple(differences))
    if pair.is_control:
        pair = replace(pair, labels=_control_labels(pair.runs[0].result.implementation))
    pairing.mismatches.append(pair)


def _match_leftovers(leftovers: list[tuple[Run, ...]], pairing: Pairing) -> None:
    partnered: set[int] = set()
    for group in leftovers:
        candidates = [
            (_differences(*([_flat(_asked_for(run)) for run in side] for side in (group, other))), other)
            for other in leftovers
            if group[0].result.implementation == "native"
            and other[0].result.implementation == "lightning"
            and id(other) not in partnered
            and _strategy(other) == _strategy(group)
        ]
        if candidates:
            differences, nearest = min(candidates, key=lambda candidate: len(candidate[0]))
            partnered |= {id(group), id(nearest)}
            pairing.mismatches.append(Pair(group, nearest, mismatch=tuple(differences)))
    pairing.alone += [group for group in leftovers if id(group) not in partnered]


def _control_labels(implementation: str) -> tuple[str, str]:
    return f"{implementation} A", f"{implementation} B"


def _side(run: Run) -> tuple[str, bool]:
    return run.result.implementation, run.result.label == CONTROL


def _strategy(group: tuple[Run, ...]) -> str:
    return group[0].result.workload.strategy


def _asked_for(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.data["workload"].items() if name not in FOUND_OUT}


def _found_out(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what completed runs found out; one that failed may not have come so far."""
    found = [{name: run.data["workload"][name] for name in FOUND_OUT} for run in runs if run.completed]
    return [_flat({name: value for name, value in values.items() if value is not None}) for values in found]


def _differences(baseline: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[Difference]:
    """Name the fields whose values are not the same in all of these dictionaries."""
    names = dict.fromkeys(name for values in baseline + other for name in values)
    found = []
    for name in names:
        sides = [tuple(dict.fromkeys(_shown(values.get(name)) for values in side)) for side in (baseline, other)]
        if len({*sides[0], *sides[1]}) > 1:
            found.append(Difference(name, *sides))
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested dictionaries into one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
