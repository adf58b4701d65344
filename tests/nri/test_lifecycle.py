"""Which events are due; ``S`` is StopContainer, ``R`` RemoveContainer, ``SP`` and ``RP`` the pod's."""

from __future__ import annotations

from collections.abc import Iterable

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.lifecycle import Due, Lifecycle, State

NAMES = {
    nri.STOP_CONTAINER: "S",
    nri.REMOVE_CONTAINER: "R",
    nri.STOP_POD_SANDBOX: "SP",
    nri.REMOVE_POD_SANDBOX: "RP",
}


def said(due: Iterable[Due]) -> list[str]:
    return [f"{NAMES[d.event]} {d.container_id or d.pod_id}" for d in due]


def lifecycle(*containers: str) -> Lifecycle:
    """One pod, ``p``, that runs, with containers that run."""
    made = Lifecycle()
    made.pod_created("p")
    made.pod_running("p")
    for key in containers:
        made.created(key, "p")
        made.started(key)
    return made


def test_what_is_made_anew_is_told_of_as_one() -> None:
    it = lifecycle()
    it.created("c", "p")
    it.hold("c")
    assert it.held() == {"c": ("p", State.CREATED)}
    asked_at = it.now
    # Neither a list nor a rebuild has it while it is not there.
    assert said(it.compare({"p": State.RUNNING}, {}, asked_at)) == []
    it.rebuild({"p": State.RUNNING}, {})
    it.made_anew("c", "d")
    assert it.held() == {}
    # An old list does not know the new one.
    assert said(it.compare({"p": State.RUNNING}, {}, asked_at)) == []
    assert (it.state("c"), it.state("d"), it.pod_of("d")) == (None, State.CREATED, "p")
    assert said(it.compare({"p": State.RUNNING}, {}, it.now)) == ["S d", "R d"]


def test_what_is_removed_while_it_is_made_anew_stays_removed() -> None:
    it = lifecycle()
    it.created("c", "p")
    it.hold("c")
    assert said(it.pod_removed("p")) == ["S c", "SP p", "R c", "RP p"]
    it.made_anew("c", "d")
    assert said(it.removed("d")) == []


def test_a_stop_is_told_once() -> None:
    it = lifecycle("c")
    assert said(it.stopped("c")) == ["S c"]
    assert said(it.stopped("c")) == []
    assert it.state("c") is State.STOPPED


def test_what_was_created_and_not_started_is_stopped_and_removed_all_the_same() -> None:
    it = lifecycle()
    it.created("c", "p")
    assert said(it.removed("c")) == ["S c", "R c"]
    assert said(it.removed("c")) == []
    assert it.state("c") is None


def test_a_removal_after_a_stop_is_only_a_removal() -> None:
    it = lifecycle("c")
    it.stopped("c")
    assert said(it.removed("c")) == ["R c"]


def test_what_is_not_known_has_no_events() -> None:
    it = lifecycle()
    it.started("x")
    assert said([*it.stopped("x"), *it.removed("x"), *it.pod_stopped("q"), *it.pod_removed("q")]) == []
    assert (it.state("x"), it.pod_state("q"), it.pod_of("x")) == (None, None, "")


def test_a_pods_end_is_told_after_its_containers_and_once() -> None:
    it = lifecycle("a", "b")
    it.stopped("a")
    assert said(it.pod_stopped("p")) == ["S b", "SP p"]
    assert said(it.pod_stopped("p")) == []
    assert said(it.pod_removed("p")) == ["R a", "R b", "RP p"]
    assert said(it.pod_removed("p")) == []


def test_a_pod_that_is_removed_while_it_runs_is_stopped_first() -> None:
    assert said(lifecycle("a").pod_removed("p")) == ["S a", "SP p", "R a", "RP p"]


def test_other_pods_containers_are_left_alone() -> None:
    it = lifecycle("a")
    it.pod_running("q")
    it.created("b", "q")
    assert said(it.pod_removed("p")) == ["S a", "SP p", "R a", "RP p"]
    assert (it.containers_of("q"), it.running()) == (("b",), ("b",))


def test_a_pod_whose_hooks_refuse_it_is_stopped_and_removed() -> None:
    it = Lifecycle()
    it.pod_created("p")
    assert said([*it.pod_stopped("p"), *it.pod_removed("p")]) == ["SP p", "RP p"]


def test_a_container_made_anew_ends_the_one_before_and_begins_again() -> None:
    it = lifecycle()
    it.created("c1", "p")
    assert said(it.removed("c1")) == ["S c1", "R c1"]
    it.created("c2", "p")
    assert (it.containers_of("p"), it.state("c2")) == (("c2",), State.CREATED)


def test_a_start_that_failed_is_a_stop_and_a_later_one_may_succeed() -> None:
    it = lifecycle()
    it.created("c", "p")
    assert said(it.stopped("c")) == ["S c"]
    it.started("c")
    assert said(it.stopped("c")) == ["S c"]


# ---------------------------------------------------------------------- lists

RUNS = {"p": State.RUNNING}


def test_exits_and_removals_past_us_are_found_in_a_list() -> None:
    it = lifecycle("a", "b", "c")
    asked = it.now
    listed = {"a": ("p", State.RUNNING), "b": ("p", State.STOPPED)}
    assert said(it.compare(RUNS, listed, asked)) == ["S b", "S c", "R c"]
    assert said(it.compare(RUNS, listed, it.now)) == []


def test_a_pod_that_ended_past_us_is_found_in_a_list() -> None:
    it = lifecycle("a")
    assert said(it.compare({"p": State.STOPPED}, {"a": ("p", State.STOPPED)}, it.now)) == ["S a", "SP p"]
    assert said(it.compare({}, {}, it.now)) == ["R a", "RP p"]


def test_what_is_new_in_a_list_is_known_without_an_event() -> None:
    it = Lifecycle()
    listed = {"a": ("p", State.RUNNING), "b": ("p", State.STOPPED)}
    assert said(it.compare(RUNS, listed, it.now)) == []
    assert said(it.pod_removed("p")) == ["S a", "SP p", "R a", "R b", "RP p"]


def test_a_list_says_nothing_of_what_happened_since_it_was_asked_for() -> None:
    it = lifecycle("gone")
    asked = it.now
    it.created("new", "p")
    it.removed("gone")
    listed = {"gone": ("p", State.RUNNING)}
    assert said(it.compare(RUNS, listed, asked)) == []
    assert (it.state("gone"), it.state("new")) == (None, State.CREATED)
    assert said(it.compare(RUNS, {}, it.now)) == ["S new", "R new"]


def test_a_start_past_us_is_known_from_a_list() -> None:
    it = lifecycle()
    it.created("a", "p")
    assert said(it.compare(RUNS, {"a": ("p", State.RUNNING)}, it.now)) == []
    assert it.state("a") is State.RUNNING


def test_after_a_restart_the_map_is_what_is_listed() -> None:
    it = lifecycle("a")
    it.rebuild(RUNS, {"b": ("p", State.RUNNING)})
    assert (it.state("a"), it.state("b")) == (None, State.RUNNING)
    assert said(it.pod_removed("p")) == ["S b", "SP p", "R b", "RP p"]
