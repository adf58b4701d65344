"""Server-side apply where the server's schema may be older than this program: CRDs that were not applied, or taken back.

A server may also drop unknown fields without a word (1.20 does, for a kind with an integer-or-text field): its
answer, not the request, shows the fields that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.api.schema import Schema, within
from cluster.kube.io.client import Client
from cluster.kube.known import Unknown, unknown_in, without
from cluster.kube.requests import ApiError, Resource

#: The whole document is tried again so long after a write that was not whole: the CRDs may be newer by then.
WHOLE_AGAIN_S = 600.0
#: Requests for one write. Of the fields that a mapping may not have the server names one at a time.
MOST_REQUESTS = 24


class KnownFields:
    """The writes of one program to one kind of object."""

    def __init__(
        self, client: Client, resource: Resource, schema: Schema, monotonic: Callable[[], float]
    ) -> None:
        """``schema``: the kind's, of this program's version; what is written of an object is cut to its bounds."""
        self._client, self._resource, self._monotonic = client, resource, monotonic
        self._bounds = {"properties": schema.get("properties", {})}
        self._unknown: frozenset[Unknown] = frozenset()
        self._whole_at_s = 0.0

    @property
    def left_out(self) -> tuple[str, ...]:
        """The fields that the last write was without, by their paths."""
        return tuple(sorted(map(str, self._unknown)))

    def is_old(self) -> bool:
        """Whether the last write was not whole and its time is over: the same document is then worth another write."""
        return bool(self._unknown) and self._monotonic() >= self._whole_at_s

    async def apply(self, name: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        """As ``Client.apply``, without what the server has named as not known to its schema.

        :raises ApiError, Unreachable, NoAccess: as that does; fields left out before stay left out.
        """
        body = within(body, self._bounds)
        unknown = frozenset() if self.is_old() else self._unknown
        for _ in range(MOST_REQUESTS - 1):
            try:
                answer = await self._apply(name, body, unknown, options)
                break
            except ApiError as error:
                more = unknown_in(error) - unknown
                if not more:
                    raise
                unknown |= more
        else:
            answer = await self._apply(name, body, unknown, options)
        if unknown != self._unknown or self.is_old():
            self._whole_at_s = self._monotonic() + WHOLE_AGAIN_S
        self._unknown = unknown
        return answer

    async def _apply(
        self, name: str, body: dict[str, Any], unknown: frozenset[Unknown], options: dict[str, Any]
    ) -> dict[str, Any]:
        return await self._client.apply(self._resource, name, without(body, unknown), **options)
