"""What the operator keeps of objects: the newest of each, whichever way it comes, and each by its uid."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.api.reader import Fields
from cluster.operator.io.cache import Cache
from tests.cluster.operator.api import Told


def found(value: str, version: int, uid: str = "1", name: str = "n0") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, "value": value}


class Watched:
    """A cache of values, and the news that it is told."""

    def __init__(self) -> None:
        self.cache: Cache[str] = Cache(lambda each: Fields(each).text("value"), asyncio.Event())

    def tell(self, kind: str, *objects: dict[str, Any]) -> None:
        kept = [self.cache.keep(each) for each in objects]

        async def news() -> Any:
            yield Told(kind, kept if kind == "SYNC" else kept[0])

        asyncio.run(self.cache.follow(news()))


def test_older_news_than_an_answer_are_not_taken_in() -> None:
    watched = Watched()
    watched.cache.put(found("answer", 9))
    watched.tell("MODIFIED", found("before", 8))
    assert watched.cache.values == {"n0": "answer"}


def test_a_list_is_taken_in_whatever_its_versions() -> None:
    watched = Watched()
    watched.cache.put(found("lost", 9))
    watched.cache.put(found("lost too", 10, name="n1"))
    watched.tell("SYNC", found("restored", 3))
    assert watched.cache.values == {"n0": "restored"}
    watched.tell("MODIFIED", found("after that", 4))
    assert watched.cache.values == {"n0": "after that"}


def test_the_end_of_one_object_is_not_that_of_the_next_of_its_name() -> None:
    watched = Watched()
    watched.cache.put(found("first", 1, "1"))
    watched.cache.put(found("second", 3, "2"))
    watched.tell("DELETED", found("first", 2, "1"))
    assert watched.cache.values == {"n0": "second"}
    watched.tell("DELETED", found("second", 4, "2"))
    assert watched.cache.values == {}


def test_an_object_goes_from_read_to_unread_and_back() -> None:
    watched = Watched()
    broken = {**found("", 2), "value": 5}
    for version, each in enumerate((found("well", 1), broken, found("well again", 3))):
        watched.tell("MODIFIED", each)
        assert (len(watched.cache.values), len(watched.cache.unread)) == ((1, 0), (0, 1), (1, 0))[version]
    watched.tell("MODIFIED", {**broken, "metadata": found("", 4)["metadata"]})
    watched.tell("DELETED", found("", 5))
    assert (watched.cache.values, watched.cache.unread) == ({}, {})
