"""The client of the API server that agent and operator share: requests, server-side apply, watches.

One connection is kept for requests, which go one after the other; each watch has its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Callable, NamedTuple, Optional

from cluster.kube.document import read_json
from cluster.kube.io.access import Access, NoAccess
from cluster.kube.io.connection import Connection, ResponseHead
from cluster.kube.pace import Backoff
from cluster.kube.requests import ApiError, Resource, Unreachable, is_older, of_status, path, refusal, target
from cri_api.waiting import wait_within

#: For a whole request, seconds.
REQUEST_S = 30.0
#: An answer, or one object of a watch, is not larger.
MOST_BYTES = 64 << 20
#: The server is asked to end a watch after so long; spread, so that a fleet's do not end at once.
WATCH_S = (240, 360)
#: A watch that has not ended by then, and said nothing since, is dead.
_SILENCE_S = 30.0

_JSON = "application/json"
#: An answer with kind and metadata only (and a list of such): what a writer of large objects wants to hear.
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_MERGE_PATCH = "application/merge-patch+json"
#: JSON is YAML: https://kubernetes.io/docs/reference/using-api/server-side-apply/
_APPLY_PATCH = "application/apply-patch+yaml"
_GONE = 410

#: What a watch keeps of an object.
Keep = Callable[[dict[str, Any]], Any]


class WatchEvent(NamedTuple):
    """``kind``: SYNC (``object`` is the list of all that there is now), ADDED, MODIFIED or DELETED."""

    kind: str
    object: Any


def _whole(found: dict[str, Any]) -> Any:
    return found


class Client:
    """``bytes_sent``, ``bytes_received``: of all requests, heads included, before TLS.

    ``problem``: why the last request or watch got no answer, "" if it did. ``answered_at``: of the last answer or
    word of a watch, by ``clock``; None before the first.
    """

    def __init__(
        self,
        access: Access,
        *,
        user_agent: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = asyncio.sleep,
        random01: Callable[[], float] = random.random,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self.problem = ""
        self.answered_at: Optional[float] = None
        self._access = access
        self._user_agent = user_agent
        self._clock = clock
        self._sleep = sleep
        self._random01 = random01
        self._turn = asyncio.Lock()
        self._kept: Optional[Connection] = None
        self._stamp: Any = None
        self._watches: set[Connection] = set()

    # --- requests; all raise ApiError (the server's refusal), Unreachable (no answer), NoAccess (no credentials)

    # ``metadata_only``: the answer has kind and metadata only, however large the object is.

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        subresource: str = "",
        *,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        accept = _METADATA.format("") if metadata_only else _JSON
        return await self._request("GET", path(resource, name, namespace, subresource), accept=accept)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        field_selector: str = "",
        limit: int = 500,
        keep: Keep = _whole,
        cached: bool = False,
    ) -> dict[str, Any]:
        """The list with what ``keep`` makes of each item, asked for in pages of ``limit``.

        ``cached``: what the server has in memory will do; else it may read all of the kind from etcd for a selection.
        """
        query = {"fieldSelector": field_selector}
        if cached:
            query["resourceVersion"] = "0"
        return await self._pages(path(resource, "", namespace), query, limit, keep, False)

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        return await self._request("POST", path(resource, "", namespace), body, _JSON)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: dict[str, Any],
        *,
        manager: str,
        force: bool = True,
        namespace: str = "",
        subresource: str = "",
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """Server-side apply: ``body`` is all that ``manager`` wants to own; a resourceVersion in it is a precondition."""
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        where = target(path(resource, name, namespace, subresource), query)
        accept = _METADATA.format("") if metadata_only else _JSON
        return await self._request("PATCH", where, body, _APPLY_PATCH, accept)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: dict[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        """A merge patch; metadata.resourceVersion in ``body`` is a precondition."""
        return await self._request("PATCH", path(resource, name, namespace, subresource), body, _MERGE_PATCH)

    async def replace(
        self, resource: Resource, name: str, body: dict[str, Any], namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        return await self._request("PUT", path(resource, name, namespace, subresource), body, _JSON)

    async def delete(self, resource: Resource, name: str, *, uid: str = "") -> None:
        """``uid``: only the object that has it."""
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            body["preconditions"] = {"uid": uid}
        await self._request("DELETE", path(resource, name), body, _JSON)

    async def close(self) -> None:
        for connection in (*self._watches, *([self._kept] if self._kept else [])):
            connection.close()
        self._watches.clear()
        self._kept = None

    # --- watch

    async def watch(
        self,
        resource: Resource,
        *,
        field_selector: str = "",
        keep: Keep = _whole,
        limit: int = 500,
        metadata_only: bool = False,
    ) -> AsyncGenerator[WatchEvent, None]:
        """The objects, and their changes. It never ends and raises nothing: ``problem`` says why it is silent.

        After SYNC the caller must forget objects not in its list: news may have been lost before it. Only what ``keep``
        makes of an object is held, page by page. Whenever the server has ended a watch, it may have been restored from a
        backup since: of few objects (``field_selector``) all are listed again, of many only its version is asked for.
        """
        where = path(resource)
        query = {"fieldSelector": field_selector}
        backoff = Backoff()
        version = ""
        while True:
            failure: Optional[Exception] = None
            started = self._clock()
            try:
                if version and (field_selector or await self._is_restored(where, version)):
                    version = ""
                if not version:
                    found = await self._pages(where, query, limit, keep, metadata_only)
                    version = str(found.get("metadata", {}).get("resourceVersion", ""))
                    yield WatchEvent("SYNC", found["items"])
                news = self._news(where, query, version, metadata_only)
                try:
                    async for kind, found in news:
                        version = str(found.get("metadata", {}).get("resourceVersion") or version)
                        backoff.reset()
                        if kind != "BOOKMARK":
                            yield WatchEvent(kind, keep(found))
                finally:
                    await news.aclose()
                # The server has ended it, as asked; at once is a failure that has no name.
                if self._clock() - started >= 1:
                    backoff.reset()
                    continue
            except ApiError as error:
                if error.status == _GONE:
                    version = ""
                else:
                    self.problem = str(error)
                failure = error
            except (Unreachable, NoAccess) as error:
                self.problem = str(error)
                failure = error
            chance = self._random01()
            await self._sleep(backoff.after(failure, chance) if failure else backoff.next(chance))

    async def _is_restored(self, where: str, version: str) -> bool:
        """Whether the server has not come to this version yet. It would let a watch from there wait, without a word."""
        page = await self._request("GET", target(where, {"limit": "1"}), accept=_METADATA.format("List"))
        return is_older(str(page.get("metadata", {}).get("resourceVersion", "")), version)

    async def _news(
        self, where: str, query: dict[str, str], version: str, metadata_only: bool
    ) -> AsyncGenerator[tuple[str, Any], None]:
        least, most = WATCH_S
        seconds = int(least + (most - least) * self._random01())
        asked = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        connection = await Connection.open(self._access, self._count_sent, self._count_received)
        self._watches.add(connection)
        try:
            accept = _METADATA.format("") if metadata_only else _JSON
            head = self._head("GET", target(where, asked), b"", "", self._access.token(), accept)
            answer = await wait_within(REQUEST_S, connection.ask(head, b""))
            if answer.status != 200:
                self._refuse(answer, await wait_within(REQUEST_S, _body(answer)))
            self._has_answered()
            async for line in _lines(answer, seconds + _SILENCE_S):
                self._has_answered()
                kind, found = _news_of(line)
                if kind == "ERROR":
                    raise of_status(found)
                yield kind, found
        except asyncio.TimeoutError:
            raise Unreachable(f"{self._access.server} says nothing more in a watch") from None
        finally:
            self._watches.discard(connection)
            connection.close()

    # --- inside

    async def _pages(
        self, where: str, query: dict[str, str], limit: int, keep: Keep, metadata_only: bool
    ) -> dict[str, Any]:
        items: list[Any] = []
        token, begins_anew = "", False
        accept = _METADATA.format("List") if metadata_only else _JSON
        while True:
            page = {**query, "limit": str(limit), "continue": token}
            if token:
                page.pop("resourceVersion", None)  # it is the token's
            try:
                found = await self._request("GET", target(where, page), accept=accept)
            except ApiError as error:
                if error.status != _GONE or not token or begins_anew:
                    raise
                # The server has forgotten the version that the pages are of: once more from the first.
                items, token, begins_anew = [], "", True
                continue
            items += [keep(each) for each in found.pop("items", None) or ()]
            token = str(found.get("metadata", {}).get("continue") or "")
            if not token:
                return {**found, "items": items}

    async def _request(
        self,
        method: str,
        where: str,
        document: Optional[dict[str, Any]] = None,
        kind: str = "",
        accept: str = _JSON,
    ) -> dict[str, Any]:
        body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
        async with self._turn:
            try:
                answer, said = await wait_within(REQUEST_S, self._exchange(method, where, body, kind, accept))
            except asyncio.TimeoutError:
                self._drop()
                self.problem = f"{self._access.server} has not answered within {REQUEST_S:.0f} s"
                raise Unreachable(self.problem) from None
            except (Unreachable, NoAccess) as error:
                self._drop()
                self.problem = str(error)
                raise
            except BaseException:  # cancelled: an answer that is half read must not be the next request's
                self._drop()
                raise
        self._has_answered()
        if answer.status >= 300:
            self._refuse(answer, said)
        try:
            found = read_json(said)
        except ValueError:
            raise Unreachable(f"{self._access.server} answers with something else than JSON") from None
        if not isinstance(found, dict):
            raise Unreachable(f"{self._access.server} answers with something else than an object")
        return found

    async def _exchange(
        self, method: str, where: str, body: bytes, kind: str, accept: str
    ) -> tuple[ResponseHead, bytes]:
        token = self._access.token()
        answer, said = await self._once(method, where, body, kind, token, accept)
        if answer.status == 401 and (renewed := self._access.token(is_refused=True)) != token:
            answer, said = await self._once(method, where, body, kind, renewed, accept)
        return answer, said

    async def _once(
        self, method: str, where: str, body: bytes, kind: str, token: str, accept: str
    ) -> tuple[ResponseHead, bytes]:
        head = self._head(method, where, body, kind, token, accept)
        connection = await self._connection()
        try:
            answer = await connection.ask(head, body)
        except Unreachable:
            # A connection that has been idle may have been closed meanwhile: once more by a new one. What is asked again is
            # the same afterwards, however often; only POST is not.
            if connection.is_fresh or connection.has_answered or method == "POST":
                raise
            self._drop()
            connection = await self._connection()
            answer = await connection.ask(head, body)
        return answer, await _body(answer)

    async def _connection(self) -> Connection:
        stamp = self._access.stamp()
        if self._kept is not None and self._kept.is_open and stamp == self._stamp:
            return self._kept
        self._drop()
        self._kept = await Connection.open(self._access, self._count_sent, self._count_received)
        self._stamp = stamp
        return self._kept

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _head(self, method: str, where: str, body: bytes, kind: str, token: str, accept: str) -> bytes:
        access = self._access
        host = f"[{access.host}]" if ":" in access.host else access.host
        lines = [
            f"{method} {access.prefix}{where} HTTP/1.1",
            f"Host: {host}:{access.port}",
            f"User-Agent: {self._user_agent}",
            f"Accept: {accept}",
        ]
        if token:
            lines.append(f"Authorization: Bearer {token}")
        if kind:
            lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        if any("\r" in line or "\n" in line for line in lines):
            raise NoAccess("a line break in the token or the path of a request")
        return "\r\n".join([*lines, "", ""]).encode()

    def _refuse(self, answer: ResponseHead, said: bytes) -> None:
        raise refusal(answer.status, said, answer.headers.get("retry-after", ""))

    def _has_answered(self) -> None:
        self.problem = ""
        self.answered_at = self._clock()

    def _count_sent(self, size: int) -> None:
        self.bytes_sent += size

    def _count_received(self, size: int) -> None:
        self.bytes_received += size


async def _body(answer: ResponseHead) -> bytes:
    pieces = []
    size = 0
    async for piece in answer.pieces():
        size += len(piece)
        if size > MOST_BYTES:
            raise Unreachable(f"the answer is larger than {MOST_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _lines(answer: ResponseHead, silence_s: float) -> AsyncIterator[bytes]:
    """:raises asyncio.TimeoutError: nothing has come for so long."""
    pieces = answer.pieces()
    begun = bytearray()
    while True:
        try:
            piece = await wait_within(silence_s, pieces.__anext__())
        except StopAsyncIteration:
            return
        begun += piece
        if b"\n" in piece:
            *whole, rest = bytes(begun).split(b"\n")
            begun = bytearray(rest)
            for line in whole:
                if line.strip():
                    yield line
        elif len(begun) > MOST_BYTES:
            raise Unreachable(f"one object of a watch is larger than {MOST_BYTES} bytes")


def _news_of(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        said = read_json(line)
        kind, found = said["type"], said["object"]
    except (ValueError, KeyError, TypeError):
        raise Unreachable(f"a watch says what is no event: {line[:60]!r}") from None
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise Unreachable(f"a watch says what is no event: {line[:60]!r}")
    return kind, found
