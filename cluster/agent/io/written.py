"""One object of the API that a half of the agent keeps as it should be."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Optional

from cluster.api import names
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.pace import Backoff, WriteRate
from cluster.kube.requests import ApiError, Resource, Unreachable

#: Nothing was heard of the server, or there is nothing to speak to it with.
NO_ANSWER = (Unreachable, NoAccess)
PLACEMENTS = Resource(names.GROUP, names.VERSION, names.NODE_PLACEMENTS)


class Mark(NamedTuple):
    """Which object it is, and which write to it: one that was made again or restored has another."""

    uid: str
    #: By their managers the times of the last writes.
    written: tuple[tuple[str, str], ...]


def mark(found: Mapping[str, Any], manager: str = "") -> Mark:
    """Of what a manager has written into the status; "" = of the spec, by whomever."""
    metadata = found["metadata"]
    entries = metadata.get("managedFields") or ()
    return Mark(
        str(metadata.get("uid", "")),
        tuple(
            (str(each.get("manager")), str(each.get("time")))
            for each in entries
            if (each.get("manager") == manager if manager else not each.get("subresource"))
        ),
    )


class Written:
    """The last write, and when the next one may be. ``told`` {} = there was none. ``manager``: that of the status that is
    written, where the object is watched."""

    def __init__(self, pace: WriteRate, manager: str = "") -> None:
        self.pace = pace
        self._manager = manager
        self._mark: Optional[Mark] = None
        self.told: dict[str, Any] = {}
        self.writes = 0
        #: The last write has.
        self.has_failed = False
        self._is_told = False
        self._backoff = Backoff()

    def differs(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the server has another document, as far as is known."""
        return not self._is_told or wanted != self.told

    def forget(self) -> None:
        """The server may have lost the last write: the same is worth another write."""
        self._is_told = False

    def mark(self, found: Mapping[str, Any]) -> Mark:
        """Of the object as a watch tells of it."""
        return mark(found, self._manager)

    def heard(self, of: Mark) -> bool:
        """Whether the server has something else than the last write: another object of the name, or one from before."""
        is_other = self._is_told and of != self._mark
        if is_other:
            self.forget()
        return is_other

    def is_due(self, wanted: Mapping[str, Any], clock: Clock) -> bool:
        """Whether to write now: it is another, and its time has come."""
        return self.differs(wanted) and self.pace.wait_s(clock.monotonic()) <= 0

    async def write(
        self, wanted: dict[str, Any], clock: Clock, request: Awaitable[dict[str, Any]]
    ) -> dict[str, Any]:
        """The answer to a request that writes ``wanted``. After a failure the next is due after a growing time.

        :raises ApiError, Unreachable, NoAccess: as the request does.
        """
        self.pace.wrote(clock.monotonic(), clock.random01())
        try:
            answer = await request
        except (ApiError, *NO_ANSWER) as error:
            delay_s = self._backoff.after(error, clock.random01())
            if isinstance(error, ApiError):
                self.pace.wait_longer(clock.monotonic(), delay_s)
            else:
                self.pace.no_answer(clock.monotonic(), delay_s)
            self.has_failed = True
            # What the server has is not known: the request may have come through.
            self._is_told = False
            raise
        self._backoff.reset()
        self.has_failed = False
        self.writes += 1
        self.told, self._is_told = wanted, True
        self._mark = self.mark(answer)
        return answer
