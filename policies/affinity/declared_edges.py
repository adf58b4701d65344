"""Affinity that people declare, between containers that run: as edges for the planner. See ``declared.py``."""

from __future__ import annotations

from collections.abc import Container as Keys
from collections.abc import Iterable

from policies.affinity.declared import in_scope, is_same, terms_of
from policies.affinity.expressions import predicate_of
from policies.model import Condition, Container
from policies.node import Node
from policies.settings import PlacementSettings

#: A term that means more containers than this says little about any place, and would make edges by the square.
MOST_MEANT = 50


def declared_edges(
    node: Node, settings: PlacementSettings, keys: Iterable[str]
) -> dict[tuple[str, str], int]:
    """The weights that are declared between some of the containers in the books; each pair once, lesser key first."""
    if not node.with_terms and not settings.colocate_pods and not settings.colocate_namespaces:
        return {}
    wanted = list(keys)
    known = frozenset(wanted)
    # Replicas repeat each other's terms: whom one means is found out once.
    meant: dict[tuple[Condition, Condition], list[tuple[str, Container]]] = {}
    found: dict[tuple[str, str], int] = {}
    by_configuration: set[tuple[str, str, Condition]] = set()
    for key in wanted:
        container = node.residents[key].container
        for term in () if container is None else terms_of(container, settings):
            name = (term.scope, term.match)
            if name not in meant:
                meant[name] = _meant(node, known, *name)
            if container is None or len(meant[name]) > MOST_MEANT:
                continue
            for other, peer in meant[name]:
                if is_same(peer, container):
                    continue
                pair = (key, other) if key < other else (other, key)
                # What the configuration declares for both of them counts once, as when one of them is placed.
                if not container.wishes.affinity:
                    if (*pair, term.scope) in by_configuration:
                        continue
                    by_configuration.add((*pair, term.scope))
                found[pair] = found.get(pair, 0) + term.weight
    return {pair: weight for pair, weight in sorted(found.items()) if weight}


def _meant(node: Node, known: Keys[str], scope: Condition, match: Condition) -> list[tuple[str, Container]]:
    matches = predicate_of(match)
    found = []
    for key in in_scope(node, scope):
        peer = node.residents[key].container
        if key in known and peer is not None and matches(peer):
            found.append((key, peer))
    return found
