"""Which runs may be compared: those whose workloads are equal. The others are named, with every field that differs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from comparison.loading import Run

STARTING_POINT = ("initial_weights_sha256", "batch_sha256")
"""Consequences of the other workload fields: not a reason to pair, but within a pair they must be equal."""

NOT_SETTINGS = ("started_at", "command", "precision_requested", "precision_reason", "lightning_version")
"""Environment fields that differ between runs by their nature."""


@dataclass(frozen=True)
class Difference:
    """A field that should have been equal, with every value that was found, by implementation."""

    field: str
    native: tuple[str, ...]
    lightning: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Native and Lightning runs of one workload."""

    native: tuple[Run, ...]
    lightning: tuple[Run, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, native first."""
        return self.native + self.lightning

    def environment_differences(self) -> list[Difference]:
        """Return the settings that should have been equal over all runs and were not."""
        native = [_flat(run.data["environment"]) for run in self.native]
        lightning = [_flat(run.data["environment"]) for run in self.lightning]
        return [each for each in _differences(native, lightning) if each.field not in NOT_SETTINGS]


@dataclass(frozen=True)
class Mismatch:
    """Runs that cannot be compared, and why."""

    native: tuple[Run, ...]
    lightning: tuple[Run, ...]
    differences: tuple[Difference, ...]


@dataclass
class Pairing:
    """What became of all runs."""

    pairs: list[Pair] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    alone: list[tuple[Run, ...]] = field(default_factory=list)
    """Runs of one implementation whose strategy the other one never ran."""


def pair_runs(runs: Sequence[Run]) -> Pairing:
    """Pair native with Lightning runs by workload.

    Groups left without a partner are matched with the nearest group of the other implementation and the same strategy,
    so that the output can name what differs.
    """
    groups: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        sides = groups.setdefault(_workload_key(run), {"native": [], "lightning": []})
        sides[run.result.implementation].append(run)
    pairing = Pairing()
    leftovers: list[tuple[Run, ...]] = []
    for sides in groups.values():
        native, lightning = tuple(sides["native"]), tuple(sides["lightning"])
        if not native or not lightning:
            leftovers.append(native or lightning)
        elif unequal := _differences(_starting_points(native), _starting_points(lightning)):
            pairing.mismatches.append(Mismatch(native, lightning, tuple(unequal)))
        else:
            pairing.pairs.append(Pair(native, lightning))
    _match_leftovers(leftovers, pairing)
    return pairing


def _match_leftovers(leftovers: list[tuple[Run, ...]], pairing: Pairing) -> None:
    partnered: set[int] = set()
    lightning_groups = [group for group in leftovers if group[0].result.implementation == "lightning"]
    for group in leftovers:
        if group[0].result.implementation != "native":
            continue
        candidates = [
            (_workload_differences(group, other), other)
            for other in lightning_groups
            if id(other) not in partnered and _strategy(other) == _strategy(group)
        ]
        if candidates:
            differences, nearest = min(candidates, key=lambda candidate: len(candidate[0]))
            partnered |= {id(group), id(nearest)}
            pairing.mismatches.append(Mismatch(group, nearest, tuple(differences)))
    pairing.alone += [group for group in leftovers if id(group) not in partnered]


def _workload_key(run: Run) -> str:
    return json.dumps(_settings(run), sort_keys=True)


def _settings(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.data["workload"].items() if name not in STARTING_POINT}


def _starting_points(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [{name: run.data["workload"][name] for name in STARTING_POINT} for run in runs]


def _strategy(group: tuple[Run, ...]) -> str:
    return group[0].result.workload.strategy


def _workload_differences(native: Sequence[Run], lightning: Sequence[Run]) -> list[Difference]:
    return _differences(*([_flat(_settings(run)) for run in side] for side in (native, lightning)))


def _differences(native: list[dict[str, Any]], lightning: list[dict[str, Any]]) -> list[Difference]:
    """Name the fields whose values are not the same in all of these dictionaries."""
    names = dict.fromkeys(name for values in native + lightning for name in values)
    found = []
    for name in names:
        sides = [tuple(dict.fromkeys(_shown(values.get(name)) for values in side)) for side in (native, lightning)]
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
