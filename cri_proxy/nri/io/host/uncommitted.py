"""A container that was made and that clients do not see yet; and the ways to make it anew, and to unmake it."""

from __future__ import annotations

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import parse
from cri_proxy.nri.ids import annotated
from cri_proxy.nri.io.host.calls import Parties
from cri_proxy.nri.io.host.upstream import CREATE_TIMEOUT_S
from cri_proxy.relay.interception import AnswerFailed


class Provisional:
    """One CreateContainer's container.

    ``id`` is "" while there is none; ``first_id`` is the one that plugins know it by. ``request``: what it was made
    from, without the engine's addition.
    """

    def __init__(self, parties: Parties, full_method: str) -> None:
        self._parties = parties
        self._full_method = full_method
        self.id = ""
        self.first_id = ""
        self.request = b""
        self.reply = b""

    async def make(self, request: bytes, delta: bytes) -> None:
        """Have the runtime make it.

        :raises AnswerFailed: the runtime's error.
        """
        parties = self._parties
        reply = await parties.upstream.forward(self._full_method, request + delta, CREATE_TIMEOUT_S)
        self.id = parse(cri.CreateContainerResponse, reply).container_id
        self.first_id = self.first_id or self.id
        self.request, self.reply = request, reply
        parties.hidden.containers.add(self.id)

    async def status(self) -> cri.ContainerStatusResponse:
        """What the runtime says of it, in full.

        :raises AnswerFailed: the runtime's error.
        """
        request = cri.ContainerStatusRequest(container_id=self.id, verbose=True)
        status: cri.ContainerStatusResponse = await self._parties.upstream.call(
            "ContainerStatus", request, cri.ContainerStatusResponse
        )
        return status

    async def discard(self) -> None:
        """Remove it, to have it made anew: plugins are told nothing, to them it is there.

        :raises AnswerFailed: the runtime would not.
        """
        self._parties.life.hold(self.id)
        await self._remove()

    async def make_anew(self, request: bytes, delta: bytes) -> None:
        """After ``discard``: have it made from another request. Plugins see it by the id they know.

        :raises AnswerFailed: the runtime's error.
        """
        world, life, first_id = self._parties.world, self._parties.life, self.first_id
        await self.make(request, delta + annotated(first_id))
        pod_id = life.pod_of(first_id)
        world.known.made_anew(first_id, self.id)
        life.made_anew(first_id, self.id)
        world.accepted.discard(first_id)
        world.accepted.add(self.id)
        # Its cgroup, and what the runtime has made of what plugins have asked for.
        if pod_id:
            await world.look_up(self.id, pod_id, anew=True)

    async def unmake(self) -> None:
        """Remove it, if it is there, and tell plugins that it is gone. ``id`` is "" afterwards.

        :raises AnswerFailed: the runtime would not; plugins are told all the same.
        """
        parties, known_id = self._parties, self.id or self.first_id
        parties.world.accepted.discard(known_id)
        due = parties.life.removed(known_id)
        try:
            if self.id:
                await self._remove()
        finally:
            await parties.teller.tell(due)

    async def _remove(self) -> None:
        parties, container_id = self._parties, self.id
        try:
            await parties.upstream.remove_container(container_id)
        except AnswerFailed as error:
            parties.log.error(
                "a container that no client gets cannot be removed", id=container_id, error=error.message
            )
            raise
        self.id = ""
        parties.hidden.removed(container_id)

    def show(self) -> None:
        """From now on clients see it."""
        self._parties.hidden.containers.discard(self.id)
        self._parties.world.accepted.discard(self.id)
        self.id = ""
