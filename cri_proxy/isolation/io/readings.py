"""What was read of cgroups lately: rounds come within a fifth of a second, and a node has hundreds of containers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Callable, Generic, TypeVar

#: How long a reading counts, seconds: as often as the kernel is looked at where nothing has changed.
KEPT_S = 9.0

_Reading = TypeVar("_Reading")


class Readings(Generic[_Reading]):
    """By path. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, object, _Reading]] = {}

    def of(self, path: str, cause: object, read: Callable[[str], _Reading]) -> _Reading:
        """What ``read`` says of a path, now or lately. ``cause``: what it is read for; with another one it is read again."""
        kept = self._kept.get(path)
        if kept is not None and self._clock() < kept[0] + KEPT_S and (kept[1] is cause or kept[1] == cause):
            return kept[2]
        found = read(path)
        self._kept[path] = self._clock(), cause, found
        return found

    def forget(self, *paths: str) -> None:
        """These are read again."""
        for path in paths:
            self._kept.pop(path, None)

    def keep(self, paths: Collection[str]) -> None:
        """All others are gone."""
        if len(self._kept) > len(paths):
            self._kept = {path: kept for path, kept in self._kept.items() if path in paths}
