"""The table of grants. Of a group's containers it holds what each has of its own; what they own together is filled in
when a grant is asked for.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, MutableMapping, ValuesView
from typing import Callable

from cri_proxy.engine.records import Grant, Stance
from policies.model import altered
from policies.node import Node


class Grants(MutableMapping[str, Grant]):
    """Grants by key, in the order in which they were entered.

    ``node``: the books whose groups own CPUs. ``raw``: the grants as they were entered, for loops over all of them: what
    a group's container owns, ``placement.exclusive``, may be what the group owned before; nothing else of it is old.
    """

    def __init__(self, node: Callable[[], Node]) -> None:
        self.raw: dict[str, Grant] = {}
        self._node = node
        #: Groups that own something else since all of their grants were filled in.
        self._late: set[str] = set()

    def __getitem__(self, key: str) -> Grant:
        grant = self.raw[key]
        if self._late and grant.placement.group in self._late:
            return self._filled(grant)
        return grant

    def __setitem__(self, key: str, grant: Grant) -> None:
        self.raw[key] = grant

    def __delitem__(self, key: str) -> None:
        del self.raw[key]

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self.raw)

    def __contains__(self, key: object) -> bool:
        return key in self.raw

    def items(self) -> ItemsView[str, Grant]:
        """All of them, filled in."""
        self.fill()
        return self.raw.items()

    def values(self) -> ValuesView[Grant]:
        """All of them, filled in."""
        self.fill()
        return self.raw.values()

    def expect(self, group: str) -> None:
        """A group owns something else from now on: its grants are filled in when they are asked for."""
        self._late.add(group)

    def fill(self) -> None:
        """Fill in all that are not."""
        for name in self._late:
            for key in self._node().groups.get(name, ()):
                if key in self.raw:
                    self._filled(self.raw[key])
        self._late.clear()

    def _filled(self, grant: Grant) -> Grant:
        place = grant.placement
        group = self._node().groups.get(place.group)
        if group is None or grant.stance is not Stance.PLACED or grant.key not in group:
            return grant
        own = group.owned(grant.key)
        if place.exclusive is own:
            return grant
        now = self.raw[grant.key] = altered(grant, placement=altered(place, exclusive=own))
        return now
