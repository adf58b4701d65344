"""A mapping that knows what has changed since when, so that a reader is told the difference. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, Generic, Optional, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: Of more, a reader that is that far behind is told everything.
MOST_GONE = 10_000


@dataclass(frozen=True)
class Difference(Generic[K, V]):
    """What is new or has another value, and whose keys are gone."""

    changed: list[V]
    gone: list[K]


class Changes(Generic[K, V]):
    """Values by key, each with the version at which it came; gone keys are remembered, ``MOST_GONE`` of them."""

    def __init__(self, is_same: Callable[[V, V], bool]) -> None:
        self._is_same = is_same
        self.values: dict[K, V] = {}
        #: What readers know: of a value that is the same for ``is_same``, the older one.
        self._told: dict[K, V] = {}
        self._versions: dict[K, int] = {}
        self._gone: dict[K, int] = {}
        #: Differences from before this version are not known any more.
        self._oldest = 0

    def update(self, values: Mapping[K, V], version: int) -> bool:
        """Take new values; True if readers must be told of one, as it is not the same as what they know."""
        changed = [
            key
            for key, value in values.items()
            if key not in self._told or not self._is_same(self._told[key], value)
        ]
        gone = [key for key in self._told if key not in values]
        self.values = dict(values)
        for key in changed:
            self._told[key] = values[key]
            self._versions[key] = version
            self._gone.pop(key, None)
        for key in gone:
            del self._told[key], self._versions[key]
            self._gone[key] = version
        if len(self._gone) > MOST_GONE:
            self._gone.clear()
            self._oldest = version
        return bool(changed or gone)

    def since(self, version: int) -> Optional[Difference[K, V]]:
        """What has changed after ``version``; None = that is too long ago, everything must be told."""
        if version < self._oldest:
            return None
        changed = [self.values[key] for key, at in self._versions.items() if at > version]
        return Difference(changed, [key for key, at in self._gone.items() if at > version])
