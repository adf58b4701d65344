"""The sets of a node's containers by what they use: which is looked at when, and what becomes larger or smaller first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.affinity.demand.controller import (
    FAST_S,
    GROW_AGAIN_S,
    SHRINK_AGAIN_S,
    ContainerSet,
    DemandController,
    SizeChange,
)
from cri_proxy.affinity.demand.estimate import DemandSample, DemandSettings

#: One to three CCXs of a node of the Hygon machine, the node, a CCX more, two nodes.
STEPS = (8_000, 16_000, 24_000, 32_000, 40_000, 64_000)
S = 1_000_000_000
SETTINGS = DemandSettings(window_s=60.0, shrinks_per_minute=2)


class SimulatedNode:
    """Containers with counters, whose sets become what the controller asks for."""

    def __init__(self, keys: str, settings: DemandSettings = SETTINGS) -> None:
        self.controller = DemandController(settings)
        self.now_s = 1000.0
        self.sets = {key: ContainerSet(STEPS, STEPS[-1], 1_000, 64_000) for key in keys}
        self.used_ns = dict.fromkeys(keys, 0)
        self.waited_ns = dict.fromkeys(keys, 0)
        self.looked: list[str] = []
        self.refuses = False
        self.controller.follow(self.sets)

    def run(
        self, seconds: float, milli: Mapping[str, int], waiting: Optional[float] = 0.0
    ) -> list[SizeChange]:
        """Time in which containers use so much; everything that was asked for meanwhile."""
        end_s, asked = self.now_s + seconds, []
        self.looked = []
        while self.now_s < end_s:
            self.pass_time(min(0.5, end_s - self.now_s), milli, waiting or 0.0)
            for key in self.controller.due(self.now_s):
                self.looked.append(key)
                self.controller.sample(key, self.read(key, waiting is not None))
            asked += self.answer()
        return asked

    def pass_time(self, seconds: float, milli: Mapping[str, int], waiting: float = 0.0) -> None:
        self.now_s += seconds
        for key in self.sets:
            self.used_ns[key] += int(milli.get(key, 0) / 1000 * seconds * S)
            self.waited_ns[key] += int(waiting * seconds * S)

    def read(self, key: str, has_psi: bool = True) -> DemandSample:
        waited = self.waited_ns[key] if has_psi else None
        return DemandSample(int(self.now_s * S), self.used_ns[key], 0, waited)

    def answer(self) -> list[SizeChange]:
        asked = self.controller.decide(self.now_s)
        for resize in asked:
            if self.refuses:
                self.controller.refused(resize, self.now_s)
                continue
            was = self.sets[resize.key]
            self.sets[resize.key] = ContainerSet(
                was.steps, was.steps[resize.step], was.milli_request, was.milli_limit
            )
            self.controller.made(resize, self.now_s)
        self.controller.follow(self.sets)
        return asked


@pytest.fixture
def node() -> SimulatedNode:
    return SimulatedNode("a")


def test_containers_at_the_rung_of_their_limit_are_looked_at_every_few_seconds_only():
    node = SimulatedNode("ab")
    node.run(50, {})
    assert (node.looked.count("a"), node.looked.count("b")) == (10, 10)
    assert node.controller.wants_trigger == frozenset()


def test_one_in_a_shrunk_set_is_looked_at_twice_a_second_unless_it_has_a_trigger(node):
    node.sets["a"] = ContainerSet(STEPS, 8_000, 1_000, 64_000)
    node.controller.follow(node.sets)
    assert node.controller.wants_trigger == {"a"}
    node.run(10, {"a": 1_000})
    assert node.looked.count("a") == 10 / FAST_S
    node.controller.set_triggers({"a"})
    node.run(10, {"a": 1_000})
    assert node.looked.count("a") == 2


def test_the_next_look_is_when_the_first_of_them_is_due():
    node = SimulatedNode("ab")
    assert node.controller.next_due_s(node.now_s) == node.now_s
    node.controller.due(node.now_s)
    assert node.controller.next_due_s(node.now_s) == node.now_s + SETTINGS.interval_s
    assert DemandController(SETTINGS).next_due_s(5.0) == float("inf")


def test_one_that_loses_its_trigger_is_looked_at_soon(node):
    node.sets["a"] = ContainerSet(STEPS, 8_000, 1_000, 64_000)
    node.controller.follow(node.sets)
    node.controller.set_triggers({"a"})
    node.controller.due(node.now_s)
    node.controller.set_triggers(())
    assert node.controller.next_due_s(node.now_s) == node.now_s + FAST_S


def test_sets_shrink_to_what_is_used_one_step_a_window_and_no_more_of_them_a_minute_than_allowed():
    node = SimulatedNode("abcd")
    assert node.run(60, dict.fromkeys("abcd", 2_000)) == []
    first = node.run(7, dict.fromkeys("abcd", 2_000))
    assert [(resize.action, resize.key) for resize in first] == [("shrink", "a"), ("shrink", "b")]
    assert [node.sets[key].milli_set for key in "abcd"] == [40_000, 40_000, 64_000, 64_000]
    assert node.run(40, dict.fromkeys("abcd", 2_000)) == []
    node.run(2_000, dict.fromkeys("abcd", 2_000))
    assert {each.milli_set for each in node.sets.values()} == {8_000}


def test_a_trigger_grows_a_set_at_once_and_to_twice_of_it(node):
    node.run(1_000, {"a": 2_000})
    assert node.sets["a"].milli_set == 8_000
    node.controller.set_triggers({"a"})
    node.run(5, {"a": 2_000})
    node.pass_time(0.4, {"a": 8_000}, waiting=0.7)
    node.controller.sample("a", node.read("a"), is_triggered=True)
    [resize] = node.answer()
    assert (resize.action, STEPS[resize.step]) == ("grow", 16_000)
    assert "waited" in resize.why


def test_a_trigger_says_that_what_was_waited_came_at_the_end_of_the_time_since_the_last_look(node):
    node.run(1_000, {"a": 2_000})
    node.controller.set_triggers({"a"})
    node.run(5, {"a": 2_000})
    node.pass_time(4.5, {"a": 2_000})
    node.pass_time(0.3, {"a": 8_000}, waiting=1.0)
    node.controller.sample("a", node.read("a"), is_triggered=True)
    assert [resize.action for resize in node.answer()] == ["grow"]


def test_a_size_is_more_than_the_step_below_holds_so_that_the_place_is_of_that_step(node):
    asked = node.run(2_000, {"a": 2_000})
    assert [resize.action for resize in asked] == ["shrink"] * 5
    assert [resize.milli_size for resize in asked] == [32_001, 24_001, 16_001, 8_001, 2_500]


def test_a_container_that_grows_back_to_the_rung_of_its_limit_has_no_size_of_its_own(node):
    node.run(1_000, {"a": 2_000})
    [*_, last] = node.run(5, {"a": 60_000}, waiting=0.5)
    assert (last.step, last.milli_size) == (5, None)


def test_growth_comes_before_any_shrink_and_is_never_held_back_by_the_budget():
    settings = DemandSettings(window_s=60.0, shrinks_per_minute=0)
    node = SimulatedNode("abcdefgh", settings)
    node.sets = {key: ContainerSet(STEPS, 8_000, 1_000, 64_000) for key in node.sets}
    node.sets["a"] = ContainerSet(STEPS, 64_000, 1_000, 64_000)
    node.controller.follow(node.sets)
    asked = node.run(2, dict.fromkeys("bcdefgh", 8_000), waiting=0.5)
    assert {resize.key for resize in asked} == set("bcdefgh")
    assert all(resize.is_growth for resize in asked)


def test_a_growth_takes_nothing_of_the_budget_of_shrinks():
    node = SimulatedNode("abcd")
    node.run(60, dict.fromkeys("abcd", 2_000))
    for _ in range(5):
        node.controller.made(SizeChange("gone", "grow", 1, 16_000, "for a test"), node.now_s)
    assert [resize.key for resize in node.run(7, dict.fromkeys("abcd", 2_000))] == ["a", "b"]


def test_without_psi_a_set_that_is_nearly_full_grows():
    node = SimulatedNode("a", DemandSettings(window_s=60.0, percentile=0.5))
    node.run(1_000, {"a": 2_000}, waiting=None)
    assert node.sets["a"].milli_set == 8_000
    [resize] = node.run(1, {"a": 7_500}, waiting=None)
    assert "used 7.5 of 8 CPUs" in resize.why


@pytest.mark.parametrize(("is_growth", "again_s"), [(True, GROW_AGAIN_S), (False, SHRINK_AGAIN_S)])
def test_what_could_not_be_made_is_asked_for_again_after_a_while(node, is_growth, again_s):
    node.refuses = True
    load, waiting = {"a": 2_000}, 0.0
    if is_growth:
        node.sets["a"] = ContainerSet(STEPS, 8_000, 1_000, 64_000)
        node.controller.follow(node.sets)
        load, waiting = {"a": 8_000}, 0.5
    while not (asked := node.run(0.5, load, waiting)):
        pass
    assert [resize.is_growth for resize in asked] == [is_growth]
    assert node.run(again_s - 1, load, waiting) == []
    assert len(node.run(7, load, waiting)) >= 1


def test_a_container_that_is_new_or_comes_back_has_seen_nothing_of_its_window(node):
    node.run(30, {"a": 2_000})
    assert node.controller.report("a", node.now_s).seen_s > 20
    sets = dict(node.sets)
    node.controller.follow({})
    assert node.controller.report("a", node.now_s) is None
    node.controller.follow(sets)
    assert node.controller.report("a", node.now_s).seen_s == 0
    assert node.run(60, {"a": 2_000}) == []


def test_a_report_tells_both_rungs_the_window_and_the_growths_with_their_cause():
    node = SimulatedNode("a", DemandSettings(window_s=60.0, percentile=0.5))
    node.run(1_000, {"a": 2_000})
    node.run(0.5, {"a": 8_000}, waiting=0.6)
    report = node.controller.report("a", node.now_s)
    assert (report.milli_by_limit, report.milli_set) == (64_000, 16_000)
    assert report.milli_by_demand == 8_000
    assert (report.milli_demand, report.milli_need) == (2_000, 2_500)
    assert report.seen_s < report.window_s == 60
    assert [growth.cause for growth in report.growths] == ["its tasks waited 60% of the time"]
    assert node.controller.counts() == (1, 1)


def test_other_settings_count_from_then_on_and_what_was_seen_stays(node):
    node.run(50, {"a": 2_000})
    node.controller.settings = DemandSettings(window_s=30.0, headroom=1.0)
    report = node.controller.report("a", node.now_s)
    assert (report.milli_demand, report.milli_need, report.seen_s) == (2_000, 4_000, 30)


@given(st.lists(st.tuples(st.integers(0, 64_000), st.floats(0, 1), st.booleans()), max_size=40))
def test_whatever_is_used_every_size_is_of_its_step_and_within_the_bounds(loads):
    node = SimulatedNode("a")
    for milli, waiting, has_psi in loads:
        for resize in node.run(20, {"a": milli}, waiting if has_psi else None):
            assert STEPS[resize.step] == node.sets["a"].milli_set or resize.step < len(STEPS)
            if resize.milli_size is None:
                assert resize.step == len(STEPS) - 1
            else:
                assert max(STEPS[resize.step - 1] if resize.step else 0, 999) < resize.milli_size
                assert resize.milli_size <= STEPS[resize.step]


def test_what_containers_in_the_sets_of_their_limits_need_is_told_when_it_has_changed_by_a_fifth():
    node = SimulatedNode("ab", DemandSettings(window_s=60.0, percentile=1.0))
    assert node.controller.uses() == {}
    node.run(10, {"a": 2_000, "b": 4_000})
    assert node.controller.uses() == {"a": 2_500, "b": 5_000}
    assert node.controller.uses() == {}
    node.run(10, {"a": 2_300, "b": 6_000})
    assert node.controller.uses() == {"b": 7_500}


def test_of_those_in_shrunk_sets_nothing_is_told_until_they_are_in_the_set_of_their_limit_again():
    node = SimulatedNode("a", DemandSettings(window_s=60.0, growths_per_hour=0))
    node.run(10, {"a": 2_000})
    assert node.controller.uses() == {"a": 2_500}
    node.run(65, {"a": 2_000})
    assert node.sets["a"].is_shrunk
    assert node.controller.uses() == {}
    [resize] = node.run(1, {"a": 2_000}, waiting=0.9)
    assert resize.action == "limit"
    assert list(node.controller.uses()) == ["a"]
