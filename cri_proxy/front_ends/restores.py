"""Pods that the runtime makes from a checkpoint (RestorePod): their containers come without a create of their own.

The reply names them, created and not started: they are placed before it is passed on. What it does not tell, since it
was lost or could not be understood, is placed by the next comparison with the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

from cri_proxy.cri.messages import CreateRequest
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resync import UnannouncedContainer
from cri_proxy.front_ends.late_placement import LatePlacement


class Restores:
    """Which pods are being restored, by uid, and of which it is not known what became of them."""

    def __init__(self, late_placement: LatePlacement) -> None:
        self._late_placement = late_placement
        self._under_way: set[str] = set()
        self._left: set[str] = set()

    def begun(self, pod_uid: str) -> None:
        """A RestorePod is about to be sent; ``ended`` must follow."""
        self._under_way.add(pod_uid)

    def ended(self, pod_uid: str, is_known: bool) -> None:
        """It is over; ``is_known``: the runtime has made nothing, or what it has made was placed."""
        self._under_way.discard(pod_uid)
        if is_known:
            self._left.discard(pod_uid)
        else:
            self._left.add(pod_uid)

    async def place(self, engine: Engine, made: Mapping[str, CreateRequest]) -> None:
        """Place the containers that a reply names, by their ids, before they are started."""
        await self._late_placement.place(
            engine,
            [
                UnannouncedContainer(
                    key,
                    c.container,
                    c.constraint,
                    c.uses,
                    c.constraint.cpus,
                    c.constraint.mems,
                    is_running=False,
                )
                for key, c in made.items()
            ],
        )

    async def welcome(
        self, engine: Engine, found: Mapping[str, UnannouncedContainer]
    ) -> Mapping[str, UnannouncedContainer]:
        """Of the containers without a record those to adopt; what a restore has left is placed."""
        left = {key: a for key, a in found.items() if a.container.pod.uid in self._left - self._under_way}
        await self._late_placement.place(engine, left.values())
        self._left -= {each.container.pod.uid for each in left.values()}
        # Those of a pod that is being restored are placed when the reply comes.
        not_ours = left.keys() | {k for k, a in found.items() if a.container.pod.uid in self._under_way}
        return {key: each for key, each in found.items() if key not in not_ours}
