"""The policies by name. Adding one is one file and one line here."""

from __future__ import annotations

from typing import Optional, Protocol

from policies.hygon import Hygon
from policies.model import Affinity, Container, Decision, Fence, PlacementSettings
from policies.node import Node
from policies.none import NoPolicy
from policies.topology import Topology


class Policy(Protocol):
    """What the engine asks a policy: one question, answered from values, changing nothing."""

    name: str
    #: Whether it gives containers CPUs of their own; decides what a container found without records is taken for.
    owns_exclusively: bool

    def place(
        self,
        node: Node,
        container: Container,
        fence: Fence = ...,
        affinity: Optional[Affinity] = None,
        near: Optional[frozenset[int]] = None,
    ) -> Decision:
        """Where the container should run, given the books of the node, in which it is not yet.

        ``near``: the home it has now, when it is placed anew.

        :raises PlacementRefused: it must not run otherwise than asked for, and cannot be.
        :raises BudgetSpent: too many candidates.
        """
        ...


class PolicyFactory(Protocol):
    """Makes a policy for one machine and one set of options."""

    def __call__(self, topology: Topology, settings: PlacementSettings) -> Policy: ...


POLICIES: dict[str, PolicyFactory] = {"hygon": Hygon, "none": NoPolicy}
