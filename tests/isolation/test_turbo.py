"""Quota turbo as a rule: laws under loads made up by chance, and each reason by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.config.config import read_config
from cri_proxy.isolation.turbo import (
    KEEP_IDLE,
    MINUTE_S,
    RAISES,
    ROUND_S,
    IdleDomain,
    Turbo,
    TurboChange,
    TurboContainer,
    idle_domain,
    read_cpu_times,
    read_most,
)
from cri_proxy.text.sources import SettingsSource

PERIOD_US = 100_000
#: Two CPUs of a CCX of eight, throttled for a fifth of the time.
BUSY = TurboContainer("a", 2 * PERIOD_US, PERIOD_US, 8, (0,), throttled=0.2, used=2.0)
IDLE = {0: IdleDomain(8, 6.0), 1: IdleDomain(8, 8.0)}


def once(
    container: TurboContainer, domains: dict[int, IdleDomain] = IDLE, most: float = 2.0
) -> list[TurboChange]:
    return Turbo().decide([container], domains, most, 0.0)


def quotas(changes: list[TurboChange]) -> dict[str, int]:
    return {change.key: change.quota_us for change in changes}


def test_a_throttled_container_gets_a_step_of_a_quarter_while_its_l3_is_idle() -> None:
    assert quotas(once(BUSY)) == {"a": 250_000}
    assert quotas(once(replace(BUSY, now_us=250_000))) == {"a": 300_000}
    assert quotas(once(replace(BUSY, now_us=390_000))) == {"a": 400_000}
    assert once(replace(BUSY, now_us=400_000)) == []


@pytest.mark.parametrize(
    ("container", "domains", "most"),
    [
        (replace(BUSY, throttled=0.0, used=1.9), IDLE, 2.0),
        (BUSY, {0: IdleDomain(8, 0.7)}, 2.0),
        (BUSY, {}, 2.0),
        (BUSY, IDLE, 1.0),
        (BUSY, IDLE, 1.2),
        (replace(BUSY, may=False), IDLE, 2.0),
        (replace(BUSY, cpus=2), IDLE, 2.0),
        (replace(BUSY, throttled=None, used=None), IDLE, 2.0),
        (replace(BUSY, quota_us=100_000), IDLE, 2.0),
    ],
    ids=["needs no more", "busy", "not looked at", "off", "less", "class", "two CPUs", "unread", "resized"],
)
def test_its_own_quota_comes_back_in_one_round(
    container: TurboContainer, domains: dict[int, IdleDomain], most: float
) -> None:
    assert quotas(once(replace(container, now_us=300_000), domains, most)) == {"a": 0}
    if most != 1.2 and container.quota_us == BUSY.quota_us:
        assert once(container, domains, most) == []


def test_one_that_is_not_throttled_by_what_it_has_keeps_it_while_it_uses_it() -> None:
    assert once(replace(BUSY, now_us=300_000, throttled=0.0, used=2.5)) == []


def test_those_of_one_l3_share_what_is_idle_the_most_throttled_first() -> None:
    more = [replace(BUSY, key=str(n), throttled=n / 10) for n in range(1, 9)]
    found = quotas(Turbo().decide(more, {0: IdleDomain(8, 3.0)}, 2.0, 0.0))
    assert sorted(found) == ["7", "8"]


def test_raises_are_bounded_in_a_minute_and_returns_are_not() -> None:
    turbo, now_us, raised, back = Turbo(), 0, 0, 0
    rounds = int(MINUTE_S / ROUND_S)
    for number in range(rounds):
        idle = IDLE if number % 2 == 0 else {0: IdleDomain(8, 0.0)}
        for change in turbo.decide([replace(BUSY, now_us=now_us)], idle, 9.0, number * ROUND_S):
            now_us = change.quota_us
            raised, back = raised + bool(now_us), back + (not now_us)
    assert raised == back == min(RAISES, rounds // 2)
    assert quotas(turbo.decide([BUSY], IDLE, 2.0, 2 * MINUTE_S)) == {"a": 250_000}


CONTAINERS = st.builds(
    TurboContainer,
    st.sampled_from("abcdef"),
    st.integers(1_000, 800_000),
    st.sampled_from((PERIOD_US, 50_000)),
    st.integers(1, 16),
    st.sampled_from(((0,), (1,), (0, 1))),
    st.just(0),
    st.none() | st.floats(0, 3),
    st.none() | st.floats(0, 16),
    st.booleans(),
)
LOADS = st.tuples(
    st.lists(CONTAINERS, max_size=6, unique_by=lambda c: c.key), st.floats(0, 8), st.floats(0, 8)
)


@given(st.lists(LOADS, min_size=1, max_size=20), st.sampled_from((1.0, 1.1, 2.0, 10.0)))
def test_never_over_the_most_back_at_once_and_never_the_same_value_twice(
    loads: list[tuple[list[TurboContainer], float, float]], most: float
) -> None:
    turbo, now_us = Turbo(), {}
    raised_s: list[tuple[str, float]] = []
    for number, (containers, first, second) in enumerate(loads):
        now_s = number * ROUND_S
        domains = {0: IdleDomain(8, first), 1: IdleDomain(8, second)}
        seen = {c.key: replace(c, now_us=now_us.get(c.key, 0)) for c in containers}
        changes = turbo.decide([*seen.values()], domains, most, now_s)
        assert len({change.key for change in changes}) == len(changes)
        for change in changes:
            each = seen[change.key]
            assert change.quota_us != each.now_us
            if change.quota_us:
                assert each.may and each.quota_us < change.quota_us <= each.quota_us * most
                assert change.quota_us <= each.cpus * each.period_us
                raised_s.append((change.key, now_s))
            now_us[change.key] = change.quota_us
        for key, each in seen.items():
            idle = sum(domains[n].idle for n in each.domains) / (8 * len(each.domains))
            if idle < KEEP_IDLE or not each.may or most == 1.0:
                assert now_us.get(key, 0) == 0
    for key, at_s in raised_s:
        assert sum(k == key and at_s <= s < at_s + MINUTE_S for k, s in raised_s) <= RAISES


def test_a_raise_begins_at_its_own_quota_where_that_has_become_more_than_the_raised_one() -> None:
    each = TurboContainer("a", 200_000, PERIOD_US, 8, (0,), now_us=110_000, throttled=1.0, used=2.0)
    (change,) = Turbo().decide([each], {0: IdleDomain(8, 8.0)}, 1.1, 0.0)
    assert 200_000 < change.quota_us <= 220_000


# ---------------------------------------------------------------------- what is read

STAT = """\
cpu  100 0 100 700 100 0 0 0 0 0
cpu0 50 0 50 350 50 0 0 0 0 0
cpu1 50 0 50 350 50 0 0 0 20 0
intr 12345
ctxt 1
"""


def test_idle_is_what_ran_nothing_or_waited_for_a_disk() -> None:
    before = read_cpu_times(STAT)
    assert before == {0: (400, 500), 1: (400, 500)}
    now = {0: (500, 600), 1: (425, 600)}
    assert idle_domain((0, 1, 2), before, now) == IdleDomain(3, 1.25)
    assert idle_domain((0, 1), before, before).share == 0.0


@pytest.mark.parametrize(("text", "most"), [("off", 1.0), ("101%", 1.01), ("200%", 2.0), ("1000%", 10.0)])
def test_the_option_is_off_or_more_than_the_limit(text: str, most: float) -> None:
    loaded = read_config([SettingsSource("test", values={"isolation": {"turbo_most": text}})])
    assert read_most(loaded.config["isolation.turbo_most"]) == most


@pytest.mark.parametrize("text", ["100%", "99%", "0%", "1001%", "2", "on"])
def test_no_other_value_is_taken(text: str) -> None:
    with pytest.raises(Exception, match='off or a percentage above 100 \\("200%"\\)'):
        read_config([SettingsSource("test", values={"isolation": {"turbo_most": text}})])
