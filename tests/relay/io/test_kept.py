"""Memory for all connections: counted as it comes and goes; past the limit those go that are missed least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.relay.io.links import BufferBudget

SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100)), max_size=60)


def by_number(item: int) -> tuple[bool, float]:
    return False, item


def test_of_those_with_half_an_equal_share_the_one_of_least_value_goes() -> None:
    kept: BufferBudget[int] = BufferBudget(100)
    assert not kept.note(1, 10) and not kept.note(2, 60) and kept.loser(by_number) is None
    assert kept.note(3, 70)
    assert kept.loser(by_number) == 2  # 1 has the least value, and less than a sixth of all
    kept.discard(2)
    assert kept.loser(by_number) is None and kept.total == 80


@given(SIZES)
def test_there_is_a_loser_as_long_as_there_is_too_much(changes: list[tuple[int, int]]) -> None:
    kept: BufferBudget[int] = BufferBudget(150)
    now: dict[int, int] = {}
    for item, size in changes:
        now[item] = size
        assert kept.note(item, size) is (sum(now.values()) > 150)
        assert kept.total == sum(now.values())
    while (loser := kept.loser(by_number)) is not None:
        kept.discard(loser)
        del now[loser]
    assert kept.total == sum(now.values()) <= 150
