"""The demands and hints of a container's annotations, in the terms in which places are compared."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from policies.model import DEVICES, RESOURCES, Container, PlacementPreferences
from policies.settings import PlacementSettings


def l3_mode_of(container: Container, settings: PlacementSettings) -> str:
    """How the container is to sit in L3s: prefer, require, exclusive or spread."""
    return container.preferences.l3 or settings.l3


def size_mode_of(container: Container, settings: PlacementSettings) -> str:
    """The measure of the container's shared set: limit or demand."""
    return container.preferences.size or settings.size


def demand_of(container: Container, settings: PlacementSettings) -> str:
    """The smallest domain that is demanded: "l3", "numa" or ""."""
    if l3_mode_of(container, settings) == "require":
        return "l3"
    return "numa" if container.preferences.numa == "require" else ""


def requires_place(container: Container) -> str:
    """The annotation by which a container would rather not run than otherwise, as ``name: value``; "" = it has none."""
    wishes = container.preferences
    demands = {"l3": ("require", "exclusive"), "numa": ("require",), "isolated": ("require",)}
    found = (
        f"{name}: {getattr(wishes, name)}"
        for name, words in demands.items()
        if getattr(wishes, name) in words
    )
    return next(found, "")


def without_demands(container: Container) -> Container:
    """The container as if its demands were only preferred. One that owns CPUs by a demand goes on owning some."""
    preferences = container.preferences
    owns = preferences.l3 == "exclusive" or preferences.isolated == "require"
    less = replace(
        preferences,
        ownership=preferences.ownership or ("exclusive" if owns else ""),
        isolated="prefer" if preferences.isolated == "require" else preferences.isolated,
        l3="prefer",
        numa="",
        strict_hints=False,
        refusal="",
    )
    return replace(container, preferences=less)


def hinted_nodes(container: Container, settings: PlacementSettings) -> tuple[frozenset[int], ...]:
    """The NUMA nodes of each thing the container uses, as far as its annotations and the configuration let them count."""
    preferences = container.preferences
    hints = (h for h in container.hints if h.nodes and hint_counts(h.kind, h.path, preferences, settings))
    return tuple(hint.nodes for hint in hints)


def hint_counts(kind: str, path: str, preferences: PlacementPreferences, settings: PlacementSettings) -> bool:
    """Whether nearness to a device or a mount counts at all."""
    kinds = settings.hints if preferences.hints is None else preferences.hints
    words = (RESOURCES, DEVICES) if kind == RESOURCES else (kind,)
    names = [path, *words, *[f"{word}:{path}" for word in words]]
    denied = any(fnmatchcase(name, glob) for glob in preferences.hints_deny for name in names)
    allowed = any(fnmatchcase(name, glob) for glob in preferences.hints_allow for name in names)
    # As nri-plugins: deny first, then allow the few that are wanted.
    return allowed or (words[-1] in kinds and not denied)


def missed_hints(hinted: tuple[frozenset[int], ...], nodes: frozenset[int]) -> int:
    """How many of the hints a place on these NUMA nodes does not meet."""
    return sum(1 for hint in hinted if hint.isdisjoint(nodes))
