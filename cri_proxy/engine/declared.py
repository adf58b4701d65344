"""What annotations declare to be apart, or required to be near: at which level it is kept, or why not, for ``explain``.
Pure."""

from __future__ import annotations

from typing import Any, Optional

from cri_proxy.engine.model import ContainerRecord
from cri_proxy.engine.moves import LISTED, NAMED, being_resized, may_move
from cri_proxy.engine.state import State
from policies.affinity.pull.declared import STEPS, declaration_of, declares_any, steps_apart
from policies.model import BudgetSpent, PlacementRefused, wanted_milli

#: In which domains two containers are that have ``steps`` of ``STEPS`` in common no more.
_APART = {1: "different L3s", 2: "different NUMA nodes", len(STEPS): "different sockets"}
_NEAR = ("one L3", "one NUMA node", "one socket")
_LEVELS = {"l3": "L3", "numa": "NUMA node", "socket": "socket"}
#: The domains that containers of a level can be given.
_KINDS = {"core": "l3", "cluster": "cluster", "ccx": "l3", "nccx": "numa", "numa": "numa", "socket": "socket"}


def declared_rows(state: State, grant: ContainerRecord) -> list[dict[str, Any]]:
    """Whether what is declared between a container and others is kept, a row for each outcome: ``containers``, ``declared``
    (apart or near), ``kept`` (in words where they are; "" = not kept), ``why`` it is not, and the ``text`` of all."""
    if not grant.cpus or not declares_any(state.node, state.policy.settings):
        return []
    found: dict[tuple[str, str, str], list[str]] = {}
    anew: Optional[frozenset[int]] = None
    with state.without([grant.key] if grant.key in state.node.residents else []):
        declaration = declaration_of(state.node, grant.container, state.policy.settings)
        pairs = [(key, "apart") for key in declaration.apart] + [(key, "near") for key in declaration.near]
        for key, declared in sorted(pairs):
            peer = state.node.residents[key]
            steps = steps_apart(state.host.topology, grant.cpus, peer.cpus)
            kept = _APART.get(steps, "") if declared == "apart" else dict(enumerate(_NEAR)).get(steps, "")
            is_best = declared == "apart" or not steps
            why = ""
            if not kept or not is_best:
                anew = _placed_anew(state, grant) if anew is None else anew
                why = _why_not(state, grant, peer.cpus, anew, declared, steps)
            name = peer.container.path if peer.container is not None else key
            found.setdefault((declared, kept, why), []).append(name)
    rows = [_row(*outcome, names) for outcome, names in found.items()]
    return sorted(rows, key=lambda row: (bool(row["kept"]), row["text"]))[:LISTED]


def _row(declared: str, kept: str, why: str, names: list[str]) -> dict[str, Any]:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    whom = f"{', '.join(names[:NAMED])}{more}"
    head = f"declared to be apart from {whom}" if declared == "apart" else f"required to be near {whom}"
    outcome = f"kept in {kept}" if kept else "not kept"
    text = f"{head}: {outcome}{f', as {why}' if why else ''}"
    return {"containers": names, "declared": declared, "kept": kept, "why": why, "text": text}


def _placed_anew(state: State, grant: ContainerRecord) -> frozenset[int]:
    try:
        return state.place(state.request(grant.container, grant.constraint, grant.key)).placement.cpus
    except (PlacementRefused, BudgetSpent):
        return grant.cpus


def _why_not(
    state: State,
    grant: ContainerRecord,
    theirs: frozenset[int],
    anew: frozenset[int],
    declared: str,
    steps: int,
) -> str:
    """Why a pair is not kept, or not better; the container is not in the books. ``anew``: where it would be placed now."""
    topology = state.host.topology
    # 1. No domain of its size would do, full or not.
    kind = _KINDS.get(grant.placement.level, "machine")
    places = [
        place.cpus & state.node.usable
        for place in topology.at(kind) or topology.at("numa")
        if len(place.cpus & state.node.usable) * 1000 >= wanted_milli(grant.container)
    ]
    word = _LEVELS.get(kind, "place")
    distances = [steps_apart(topology, place, theirs) for place in places if place]
    if not any(other if declared == "apart" else other < steps for other in distances):
        if declared == "apart":
            return f"each {word} that holds it has an L3 in common with the other"
        return f"no {word} that holds it is nearer to the other"
    # 2. One would, and has no room; or it has, and the container is not there yet.
    now = steps_apart(topology, anew, theirs)
    if not (now if declared == "apart" else now < steps):
        return f"no other {word} that holds it has room, or more is declared against it there"
    if not may_move(state, grant, being_resized(state)):
        return "there is room by now, and the container is none that plans move"
    return "there is room by now: the next plan moves it there"
