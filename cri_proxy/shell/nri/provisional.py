"""A container that was made and that clients do not see yet; and the way to unmake it."""

from __future__ import annotations

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.core.cri import parse
from cri_proxy.core.interception import AnswerFailed
from cri_proxy.shell.nri.calls import Parties
from cri_proxy.shell.nri.upstream import CREATE_TIMEOUT_S


class Provisional:
    """One CreateContainer's container, of which there may be several, one after the other.

    ``id`` is "" while there is none. ``request``: what it was made from, without the engine's addition.
    """

    def __init__(self, parties: Parties, full_method: str) -> None:
        self._parties = parties
        self._full_method = full_method
        self.id = ""
        self.request = b""
        self.reply = b""
        self._first_id = ""
        self._first_status = cri.ContainerStatusResponse()

    async def make(self, request: bytes, delta: bytes) -> None:
        """Have the runtime make it.

        :raises AnswerFailed: the runtime's error.
        """
        parties = self._parties
        reply = await parties.upstream.forward(self._full_method, request + delta, CREATE_TIMEOUT_S)
        self.id = parse(cri.CreateContainerResponse, reply).container_id
        self.request, self.reply = request, reply
        parties.hidden.containers.add(self.id)

    async def status(self) -> cri.ContainerStatusResponse:
        """What the runtime says of it, in full: always as of the first, under the id of now.

        So plugins see what the client has asked for, whatever they have asked for themselves before: who adds
        something if it is not there asks for the same every time.

        :raises AnswerFailed: the runtime's error.
        """
        if not self._first_id:
            request = cri.ContainerStatusRequest(container_id=self.id, verbose=True)
            ask = self._parties.upstream.call
            self._first_status = await ask("ContainerStatus", request, cri.ContainerStatusResponse)
            self._first_id = self.id
        if not self.is_another:
            return self._first_status
        status = cri.ContainerStatusResponse()
        status.CopyFrom(self._first_status)
        status.status.id = self.id
        for key, text in self._first_status.info.items():
            status.info[key] = text.replace(self._first_id, self.id)
        return status

    @property
    def is_another(self) -> bool:
        """Whether it is not the one that plugins were asked about first."""
        return self.id != self._first_id

    async def unmake(self) -> None:
        """Remove it, and tell plugins that it is gone. ``id`` is "" afterwards if it is.

        :raises AnswerFailed: the runtime would not; plugins are told all the same.
        """
        parties, container_id = self._parties, self.id
        parties.world.accepted.discard(container_id)
        due = parties.life.removed(container_id)
        try:
            await parties.upstream.remove_container(container_id)
            self.id = ""
            parties.hidden.removed(container_id)
        except AnswerFailed as error:
            parties.log.error(
                "a container that nobody gets cannot be removed", id=container_id, error=error.message
            )
            raise
        finally:
            await parties.teller.tell(due)

    def show(self) -> None:
        """From now on clients see it."""
        self._parties.hidden.containers.discard(self.id)
        self._parties.world.accepted.discard(self.id)
        self.id = ""
