"""Which containers get an RMID, which values are read, and what follows from them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.isolation.model import BATCH, PROTECTED, STANDARD, CacheDomain, CacheInfo, ResctrlInfo
from cri_proxy.isolation.monitoring import (
    LEAST_READS,
    LOCAL,
    MOST_READS,
    OCCUPANCY,
    TOTAL,
    Candidate,
    Counted,
    Meter,
    Watch,
    cache_texts,
    chosen,
    counted,
    domains_of,
    filled,
    group_name,
    metered,
    read_value,
    reads_allowed,
    renewed,
    room_for,
    smoothed,
    sources,
    turn,
)

L3S = tuple(CacheDomain(number, frozenset(range(4 * number, 4 * number + 4))) for number in range(4))
WRAP = 1 << 64


# ---------------------------------------------------------------------- which containers


def test_protected_containers_come_first_then_batch_beside_them_then_those_that_use_most() -> None:
    every = [
        Candidate("idle", STANDARD),
        Candidate("busy", STANDARD, used_cpus=8),
        Candidate("apart", BATCH, used_cpus=4),
        Candidate("beside", BATCH, meets=True),
        Candidate("protected", PROTECTED),
    ]
    assert chosen(every, 4, ()) == ("protected", "beside", "busy", "apart")


def test_all_are_watched_where_there_is_room_for_all() -> None:
    assert set(chosen([Candidate("a", STANDARD), Candidate("b", BATCH)], 2, ())) == {"a", "b"}
    assert chosen([Candidate("a", STANDARD)], 0, ("a",)) == ()


def test_one_that_is_watched_goes_on_being_watched_until_another_uses_far_more() -> None:
    def of(other: float) -> tuple[str, ...]:
        return chosen(
            [Candidate("now", STANDARD, used_cpus=1), Candidate("other", STANDARD, used_cpus=other)],
            1,
            ("now",),
        )

    assert of(2.1) == ("now",)
    assert of(2.3) == ("other",)


@pytest.mark.parametrize("seed", range(20))
def test_noise_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    before: tuple[str, ...] = ()
    means = {f"c{number}": chance.uniform(0, 4) for number in range(20)}
    used: dict[str, float] = {}
    seen = set()
    for _ in range(30):
        for key, mean in means.items():
            used[key] = smoothed(used.get(key), mean * chance.uniform(0.7, 1.3))
        before = chosen([Candidate(key, STANDARD, used_cpus=use) for key, use in used.items()], 8, before)
        seen.add(frozenset(before))
    assert len(seen) == 1


@given(
    st.lists(st.tuples(st.sampled_from([PROTECTED, STANDARD, BATCH]), st.booleans(), st.floats(0, 64))),
    st.integers(0, 30),
)
def test_a_choice_is_as_large_as_the_room_and_stays_when_nothing_changes(
    every: list[tuple[str, bool, float]], room: int
) -> None:
    candidates = [Candidate(f"c{n}", cls, meets, use) for n, (cls, meets, use) in enumerate(every)]
    first = chosen(candidates, room, ())
    assert len(first) == len(set(first)) == min(room, len(candidates))
    assert set(chosen(list(reversed(candidates)), room, first)) == set(first)


def test_groups_that_divide_and_those_of_others_find_their_rmids() -> None:
    info = ResctrlInfo({"L3": CacheInfo(0xFFFF, closids=16)}, rmids=256)
    assert room_for(info, foreign=10) == 230
    assert room_for(ResctrlInfo(rmids=256), foreign=0) == 255
    assert room_for(ResctrlInfo(), foreign=3) == 0


def test_a_group_is_named_so_that_it_is_found_again() -> None:
    assert group_name("0123456789abcdef" * 4) == "cri-resmgr.0123456789abc"


# ---------------------------------------------------------------------- what is read


def test_only_the_l3s_are_read_that_a_container_may_run_in() -> None:
    assert domains_of(frozenset({3, 4}), L3S) == (0, 1)
    watch = Watch("c", "cri-resmgr.batch", "/c", (1,))
    assert sources([watch], ["", "cri-resmgr.batch"], L3S[:2]) == [
        ("", "", 0, ""),
        ("", "", 1, ""),
        ("cri-resmgr.batch", "", 0, ""),
        ("cri-resmgr.batch", "", 1, ""),
        ("cri-resmgr.batch", "cri-resmgr.c", 1, "c"),
    ]


@given(st.integers(1, 50), st.integers(1, 60))
def test_what_has_no_room_in_a_round_has_its_turn(count: int, most: int) -> None:
    items, start, seen = list(range(count)), 0, []
    for _ in range(-(-count // most)):
        some, start = turn(items, start, most)
        assert len(some) == len(set(some)) == min(most, count)
        seen += some
    assert set(seen) == set(items)


def test_reads_follow_what_they_cost() -> None:
    assert reads_allowed(600, 0.006, 600) == 1200  # 10 us each would allow 2,000; by doubling at most
    assert reads_allowed(600, 0.060, 600) == 200  # 100 us each
    assert reads_allowed(600, 60.0, 600) == LEAST_READS
    assert reads_allowed(20_000, 1e-6, MOST_READS) == MOST_READS
    assert reads_allowed(0, 0.0, 600) == 600


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value", "word"),
    [
        (b"0\n", 0, ""),
        (b"18446744073709551615\n", WRAP - 1, ""),
        (b"Unavailable\n", None, "Unavailable"),
        (b"Unassigned\n", None, "Unassigned"),
        (b"Error\n", None, "Error"),
        (b"", None, "nothing"),
        (b"-1\n", None, "-1"),
        (b"9" * 200, None, "9" * 40),
    ],
)
def test_a_word_in_the_place_of_a_value_is_not_0(text: bytes, value: object, word: str) -> None:
    assert read_value(text) == (value, word)


def test_a_rate_needs_two_looks() -> None:
    first = counted(None, 1000, 10.0)
    assert first == Counted(1000, 10.0)
    assert counted(first, 3000, 20.0) == Counted(3000, 20.0, bytes=2000, per_s=200.0)


def test_what_is_unavailable_for_a_while_has_no_rate_and_loses_nothing_that_was_counted() -> None:
    second = counted(counted(None, 1000, 10.0), 3000, 20.0)
    gap = counted(second, None, 30.0)
    assert gap == Counted(3000, None, bytes=2000)
    assert counted(gap, 4000, 40.0) == Counted(4000, 40.0, bytes=3000)
    assert counted(None, None, 10.0) is None


def test_a_counter_that_falls_was_begun_anew_and_one_that_goes_round_was_not() -> None:
    before = Counted(5000, 10.0, bytes=700, per_s=1.0)
    assert counted(before, 100, 20.0) == Counted(100, 20.0, bytes=700)
    full = Counted(WRAP - 100, 10.0, bytes=700)
    assert counted(full, 100, 20.0) == Counted(100, 20.0, bytes=900, per_s=20.0)


@given(st.lists(st.one_of(st.none(), st.integers(0, WRAP - 1))))
def test_what_is_counted_never_falls(raws: list[int]) -> None:
    at, last = None, 0
    for number, raw in enumerate(raws):
        at = counted(at, raw, float(number))
        if at is not None:
            assert at.bytes >= last
            assert at.per_s is None or at.per_s >= 0
            last = at.bytes


def test_a_meter_has_what_the_kernel_tells_and_its_word_for_the_rest() -> None:
    meter = metered(None, {OCCUPANCY: b"4096\n", TOTAL: b"Unavailable\n"}, 5.0)
    assert meter == Meter(5.0, 4096, None, None, f"{TOTAL}: Unavailable")


def test_a_group_that_is_made_anew_counts_on() -> None:
    meter = metered(None, {OCCUPANCY: b"9\n", TOTAL: b"1000\n", LOCAL: b"500\n"}, 10.0)
    meter = metered(meter, {OCCUPANCY: b"9\n", TOTAL: b"3000\n", LOCAL: b"600\n"}, 20.0)
    meter = metered(renewed(meter), {OCCUPANCY: b"8\n", TOTAL: b"5000\n", LOCAL: b"50\n"}, 30.0)
    assert (meter.total, meter.local) == (Counted(5000, 30.0, 7000), Counted(50, 30.0, 150))


# ---------------------------------------------------------------------- what fills an L3


def of(occupancy: object, per_s: object = None) -> Meter:
    total = None if per_s is None else Counted(0, 0.0, 0, per_s)  # type: ignore[arg-type]
    return Meter(0.0, occupancy, total)  # type: ignore[arg-type]


def test_an_l3_is_filled_by_containers_the_most_first_and_by_what_is_left_of_the_groups() -> None:
    found = filled(
        L3S[0],
        {"a": of(10), "b": of(30, 5.0), "c": of(None)},
        [of(25), of(40)],
        {"a": PROTECTED, "b": BATCH, "c": BATCH},
    )
    assert [(share.key, share.bytes, share.bytes_per_s) for share in found.shares] == [
        ("b", 30, 5.0),
        ("a", 10, None),
        ("c", None, None),
    ]
    assert found.others_bytes == 25
    assert found.by_class == {PROTECTED: 10, BATCH: 30}


def test_what_is_not_known_of_a_group_is_not_taken_for_nothing() -> None:
    assert filled(L3S[0], {"a": of(10)}, [of(25), of(None)], {}).others_bytes is None
    assert filled(L3S[0], {"a": of(10)}, [of(25), None], {}).others_bytes is None
    assert filled(L3S[0], {"a": of(10)}, [], {}).others_bytes is None
    assert filled(L3S[0], {"a": of(30)}, [of(25)], {}).others_bytes == 0


# ---------------------------------------------------------------------- for people


def row_of(number: int, size: object, per_s: object = None, problem: str = "") -> dict[str, object]:
    whole = 32 << 20
    return {
        "l3": f"l3-{number}",
        "size_bytes": whole,
        "bytes": size,
        "bytes_per_s": per_s,
        "problem": problem,
    }


@pytest.mark.parametrize(
    ("is_watched", "l3s", "texts"),
    [
        pytest.param(
            True,
            [row_of(3, 12 << 20, 340e6), row_of(4, 1536 << 10)],
            ["fills 12 of 32 MiB of l3-3; 340 MB/s from and to memory", "fills 1.5 of 32 MiB of l3-4"],
            id="one line each",
        ),
        pytest.param(
            True,
            [row_of(number, (number + 1) << 20, 10e6) for number in range(5)],
            ["fills 15 MiB of 5 L3s, the most of l3-4: 5 of 32 MiB; 50 MB/s from and to memory"],
            id="many L3s",
        ),
        pytest.param(
            True,
            [row_of(3, None, problem="llc_occupancy: Unavailable")],
            ["what it fills of l3-3 is not known: the kernel says llc_occupancy: Unavailable"],
            id="not known",
        ),
        pytest.param(
            False,
            [],
            [
                "what it fills of L3s is not known: it has no monitoring group yet (8 of 9 containers are watched)"
            ],
            id="no RMID",
        ),
    ],
)
def test_explain_says_what_a_container_fills(is_watched: bool, l3s: list[object], texts: list[str]) -> None:
    row = {"is_watched": is_watched, "note": "8 of 9 containers are watched", "l3s": l3s}
    assert cache_texts(row) == texts
