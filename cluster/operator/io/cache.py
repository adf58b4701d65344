"""Objects of one kind, as a watch and our own writes tell of them; of each only the values that are needed are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, NamedTuple, Optional, TypeVar, Union

from cluster.api.reader import Object, Skipped, read, skipped
from cluster.kube.requests import is_older

Value = TypeVar("Value")


class CachedObject(NamedTuple):
    """The part of one object that is kept; ``value`` is ``Skipped`` where it cannot be read."""

    name: str
    uid: str
    version: str
    value: Any
    #: Kept too; changes of it are no news.
    beside: Any = None


class Cache(Generic[Value]):
    """Answers of our own writes are put in at once; older news that come after them are not.

    A whole list is what there is, whatever its versions: a server that was restored from a backup counts from there again.
    """

    def __init__(
        self,
        read: Callable[[Object], Value],
        changed: asyncio.Event,
        read_beside: Callable[[Object], Any] = lambda found: None,
        news: Callable[[Optional[Value], Optional[Value]], None] = lambda before, now: None,
    ) -> None:
        """``news`` is called with each value that is another than before; None: there is none."""
        self.values: dict[str, Value] = {}
        self.beside: dict[str, Any] = {}
        #: Objects that cannot be read, by name: they are in neither of the others.
        self.unread: dict[str, Skipped] = {}
        #: The whole list has been read once.
        self.synced = asyncio.Event()
        self._known: dict[str, CachedObject] = {}
        self._read = read
        self._changed = changed
        self._read_beside = read_beside
        self._news = news

    def keep(self, found: Object) -> CachedObject:
        """For the client, which calls it on each object as it is read."""
        name, uid, _ = skipped(found, "")
        version = str(found["metadata"].get("resourceVersion", ""))
        value: Any = read(found, self._read)
        beside = None if isinstance(value, Skipped) else read(found, self._read_beside)
        if isinstance(beside, Skipped):
            value, beside = beside, None
        return CachedObject(name, uid, version, value, beside)

    def put(self, found: Object) -> Union[Value, Skipped]:
        """Take in a whole object of an answer; returns the kept part."""
        kept = self.keep(found)
        if not self._is_old(kept):
            self._put(kept)
        return kept.value  # type: ignore[no-any-return]

    def drop(self, name: str) -> None:
        """The object is gone."""
        self._known.pop(name, None)
        self.beside.pop(name, None)
        was = self.values.pop(name, None), self.unread.pop(name, None)
        if was != (None, None):
            self._changed.set()
            self._news(was[0], None)

    async def follow(self, events: AsyncIterator[Any]) -> None:
        """Take in a watch; it ends with the watch, that is never."""
        async for event in events:
            if event.kind == "SYNC":
                self._replace(event.object)
            elif event.kind == "DELETED":
                known = self._known.get(event.object.name)
                # Another one of that name may have been made since, and its answer be here before this.
                if known is not None and known.uid == event.object.uid:
                    self.drop(event.object.name)
            elif not self._is_old(event.object):
                self._put(event.object)

    def _is_old(self, kept: CachedObject) -> bool:
        known = self._known.get(kept.name)
        return known is not None and is_older(kept.version, known.version)

    def _put(self, kept: CachedObject) -> None:
        name, value = kept.name, kept.value
        self._known[name] = kept._replace(value=None, beside=None)
        if kept.beside is not None:
            self.beside[name] = kept.beside
        was, before = self.values.get(name), self.values.get(name, self.unread.get(name))
        if isinstance(value, Skipped):
            self.values.pop(name, None)
            self.beside.pop(name, None)
            self.unread[name] = value
        else:
            self.unread.pop(name, None)
            self.values[name] = value
        if before != value:
            self._changed.set()
            self._news(was, self.values.get(name))

    def _replace(self, whole: Iterable[CachedObject]) -> None:
        whole = list(whole)
        for name in set(self._known) - {kept.name for kept in whole}:
            self.drop(name)
        for kept in whole:
            self._put(kept)
        self.synced.set()
        self._changed.set()
