"""Affinity that people declare, between containers that run: as edges for the planner. See ``declared.py``."""

from __future__ import annotations

from collections.abc import Container as Keys
from collections.abc import Iterable

from policies.affinity.pull.declared import in_scope, is_same, terms_of
from policies.affinity.pull.expressions import predicate_of
from policies.model import AffinityTerm, Container, MatchExpression
from policies.node import Node
from policies.settings import PlacementSettings

#: A term that means more containers than this says little about any place, and would make edges by the square.
MOST_MEANT = 50


class DeclaredEdges:
    """The weights that are declared between some containers in the books; built one container after another."""

    def __init__(self, node: Node, settings: PlacementSettings, keys: Iterable[str]) -> None:
        self._node = node
        self._settings = settings
        self._known = frozenset(keys)
        # Replicas repeat each other's terms: what one means is found out once.
        self._means: dict[tuple[MatchExpression, MatchExpression], list[tuple[str, Container]]] = {}
        self._found: dict[tuple[str, str], int] = {}
        self._by_configuration: set[tuple[str, str, MatchExpression]] = set()

    def add(self, key: str) -> None:
        """What one of them declares, or the configuration for it."""
        container = self._node.residents[key].container
        for term in () if container is None else terms_of(container, self._settings):
            name = (term.scope, term.match)
            if name not in self._means:
                self._means[name] = _meant(self._node, self._known, *name)
            if container is None or len(self._means[name]) > MOST_MEANT:
                continue
            for other, peer in self._means[name]:
                if not is_same(peer, container):
                    self._add(key, other, container, term)

    def _add(self, key: str, other: str, container: Container, term: AffinityTerm) -> None:
        pair = (key, other) if key < other else (other, key)
        # What the configuration declares for both of them counts once, as when one of them is placed.
        if not container.preferences.affinity:
            if (*pair, term.scope) in self._by_configuration:
                return
            self._by_configuration.add((*pair, term.scope))
        self._found[pair] = self._found.get(pair, 0) + term.weight

    @property
    def weights(self) -> dict[tuple[str, str], int]:
        """Each pair once, lesser key first."""
        return {pair: weight for pair, weight in sorted(self._found.items()) if weight}


def declares_any(node: Node, settings: PlacementSettings) -> bool:
    """Whether anything is declared at all."""
    return bool(node.with_terms or settings.colocate_pods or settings.colocate_namespaces)


def _meant(
    node: Node, known: Keys[str], scope: MatchExpression, match: MatchExpression
) -> list[tuple[str, Container]]:
    matches = predicate_of(match)
    found = []
    for key in in_scope(node, scope):
        peer = node.residents[key].container
        if key in known and peer is not None and matches(peer):
            found.append((key, peer))
    return found
