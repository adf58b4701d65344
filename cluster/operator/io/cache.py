"""The objects of a watch by name; only the values that are kept of each object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from cluster.operator.objects import Object

Value = TypeVar("Value")


class CachedObject(NamedTuple):
    """The part of one object that is kept."""

    name: str
    version: str
    value: Any
    #: Kept too; changes of it are no news.
    beside: Any = None


class Cache(Generic[Value]):
    """Objects of one kind. Answers of our own writes are put in at once; older news that come after them are not.

    Versions are compared as numbers, which Kubernetes allows for its own kinds and those of CRDs (KEP-5504).
    """

    def __init__(
        self,
        read: Callable[[Object], Value],
        changed: asyncio.Event,
        read_beside: Callable[[Object], Any] = lambda found: None,
    ) -> None:
        self.values: dict[str, Value] = {}
        self.beside: dict[str, Any] = {}
        #: The whole list has been read once.
        self.synced = asyncio.Event()
        self._versions: dict[str, str] = {}
        self._read = read
        self._changed = changed
        self._read_beside = read_beside

    def keep(self, found: Object) -> CachedObject:
        """For the client, which calls it on each object as it is read."""
        metadata = found["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        return CachedObject(metadata["name"], version, self._read(found), self._read_beside(found))

    def put(self, found: Object) -> Value:
        """Take in a whole object of an answer; returns the kept part."""
        kept = self.keep(found)
        self._put(kept)
        return kept.value  # type: ignore[no-any-return]

    def drop(self, name: str) -> None:
        """The object is gone."""
        self._versions.pop(name, None)
        self.beside.pop(name, None)
        if self.values.pop(name, None) is not None:
            self._changed.set()

    async def follow(self, events: AsyncIterator[Any]) -> None:
        """Take in a watch; it ends with the watch, that is never."""
        async for event in events:
            if event.kind == "SYNC":
                self._replace(event.object)
            elif event.kind == "DELETED":
                self.drop(event.object.name)
            else:
                self._put(event.object)

    def _put(self, kept: CachedObject) -> None:
        if _older(kept.version, self._versions.get(kept.name, "")):
            return
        self._versions[kept.name] = kept.version
        if kept.beside is not None:
            self.beside[kept.name] = kept.beside
        if self.values.get(kept.name) != kept.value:
            self.values[kept.name] = kept.value
            self._changed.set()

    def _replace(self, whole: Iterable[CachedObject]) -> None:
        whole = list(whole)
        for name in set(self.values) - {kept.name for kept in whole}:
            self.drop(name)
        for kept in whole:
            self._put(kept)
        self.synced.set()
        self._changed.set()


def _older(one: str, other: str) -> bool:
    return one.isdigit() and other.isdigit() and int(one) < int(other)
