"""An API server as one object in memory, on a clock that jumps: for thousands of runs of the whole operator.

It has the client's own interface. What a server does with the requests is tested on servers.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import selectors
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Callable, NamedTuple, Optional

from cluster.kube.requests import ApiError, Resource

Key = tuple[str, str]


class Killed(BaseException):
    """The process is no more: nothing of it runs on."""


class Told(NamedTuple):
    kind: str
    object: Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where nothing is to be done, time is that of the next timer."""

    def __init__(self) -> None:
        self._at = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._at

    def jump(self, seconds: float) -> None:
        self._at += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: Optional[float] = None) -> Any:
        if timeout is None:
            raise AssertionError("all wait for each other")
        self._loop.jump(max(0.0, timeout))
        return super().select(0)


def run_jumping(main: Awaitable[Any]) -> Any:
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def _fits(found: Any, field_selector: str) -> bool:
    if not field_selector:
        return True
    where, _, value = field_selector.partition("=")
    for word in where.split("."):
        found = found.get(word, {})
    return bool(found == value)


class Api:
    """Objects by plural and name. ``before`` and ``after`` are called with each write on which something depends: Leases are
    kept apart, and Events only tell."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.applied: dict[tuple[Key, str, str], dict[str, Any]] = {}
        #: Plurals that there is no right to list.
        self.refused: set[str] = set()
        #: Each list that was asked for: plural, field selector.
        self.listed: list[tuple[str, str]] = []
        self.watchers: list[tuple[str, Callable[[Any], Any], asyncio.Queue[Told]]] = []
        self.before: Callable[[str, Key], None] = lambda verb, key: None
        self.after: Callable[[str, Key], None] = lambda verb, key: None
        self._versions = itertools.count(1)

    # As a client

    async def get(self, resource: Resource, name: str, namespace: str = "", **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return copy.deepcopy(self._found((resource.plural, name)))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        field_selector: str = "",
        keep: Callable[[Any], Any] = copy.deepcopy,
        **_: Any,
    ) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        self.listed.append((resource.plural, field_selector))
        if resource.plural in self.refused:
            raise ApiError(403, "Forbidden", f"{resource.plural} is forbidden")
        found = [each for key, each in self.objects.items() if key[0] == resource.plural]
        return {"items": [keep(each) for each in found if _fits(each, field_selector)]}

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        key = (resource.plural, body["metadata"]["name"])
        await self._begin("create", key)
        if key in self.objects:
            raise ApiError(409, "AlreadyExists", f"{key[1]} is there")
        return self._end(
            "create", key, {**body, "metadata": {"uid": f"uid-{next(self._versions)}", **body["metadata"]}}
        )

    async def replace(
        self, resource: Resource, name: str, body: dict[str, Any], namespace: str = "", subresource: str = ""
    ) -> dict[str, Any]:
        key = (resource.plural, name)
        await self._begin("replace", key)
        self._same_version(key, body)
        return self._end("replace", key, body)

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
        key = (resource.plural, name)
        await self._begin("apply", key)
        self._same_version(key, body)
        new = {"metadata": {"uid": f"uid-{next(self._versions)}"}}
        found = copy.deepcopy(self.objects.get(key, new))
        own = (key, manager, subresource)
        _take_away(found, self.applied.get(own, {}), body)
        _merge(found, body)
        self.applied[own] = copy.deepcopy(body)
        return self._end("apply", key, found)

    async def patch(self, resource: Resource, name: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        key = (resource.plural, name)
        await self._begin("patch", key)
        self._same_version(key, body)
        found = copy.deepcopy(self._found(key))
        _merge_patch(found, body)
        return self._end("patch", key, found)

    async def delete(self, resource: Resource, name: str, *, uid: str = "") -> None:
        key = (resource.plural, name)
        await self._begin("delete", key)
        found = self._found(key)
        if uid and found["metadata"].get("uid") != uid:
            raise ApiError(409, "Conflict", "another uid")
        self.remove(key)
        self.after("delete", key)

    async def watch(
        self, resource: Resource, *, keep: Any = None, limit: int = 500, **_: Any
    ) -> AsyncIterator[Told]:
        keep = keep or (lambda found: found)
        queue: asyncio.Queue[Told] = asyncio.Queue()
        self.watchers.append((resource.plural, keep, queue))
        yield Told("SYNC", [keep(each) for key, each in self.objects.items() if key[0] == resource.plural])
        while True:
            yield await queue.get()
            # News travel.
            await asyncio.sleep(0.002)

    # As people and agents

    def put(self, plural: str, body: dict[str, Any]) -> None:
        self._end("put", (plural, body["metadata"]["name"]), body)

    def remove(self, key: Key) -> None:
        self._tell("DELETED", key, self.objects.pop(key))

    def all(self, plural: str) -> dict[str, dict[str, Any]]:
        return {key[1]: each for key, each in self.objects.items() if key[0] == plural}

    async def _begin(self, verb: str, key: Key) -> None:
        await asyncio.sleep(0.001)
        if key[0] not in ("leases", "events"):
            self.before(verb, key)

    def _end(self, verb: str, key: Key, body: dict[str, Any]) -> dict[str, Any]:
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        new = key not in self.objects
        self.objects[key] = stored
        self._tell("ADDED" if new else "MODIFIED", key, stored)
        if key[0] not in ("leases", "events"):
            self.after(verb, key)
        return copy.deepcopy(stored)

    def _tell(self, kind: str, key: Key, found: dict[str, Any]) -> None:
        for plural, keep, queue in self.watchers:
            if plural == key[0]:
                queue.put_nowait(Told(kind, keep(found)))

    def _found(self, key: Key) -> dict[str, Any]:
        if key not in self.objects:
            raise ApiError(404, "NotFound", f"{key[1]} is not there")
        return self.objects[key]

    def _same_version(self, key: Key, body: dict[str, Any]) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != self._found(key)["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "another resourceVersion")


def _take_away(found: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> None:
    for key, value in before.items():
        if key not in now:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(now[key], dict) and isinstance(found.get(key), dict):
            _take_away(found[key], value, now[key])


def _merge(found: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if key == "conditions":
            # A list of which each writer has its own rows, by their type.
            rows = {each.get("type"): each for each in [*found.get(key, ()), *copy.deepcopy(value)]}
            found[key] = list(rows.values())
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            _merge(found[key], value)
        elif key != "resourceVersion":
            found[key] = copy.deepcopy(value)


def _merge_patch(found: dict[str, Any], change: dict[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(found.get(key), dict):
                found[key] = {}
            _merge_patch(found[key], value)
        elif key != "resourceVersion":
            found[key] = copy.deepcopy(value)
