"""Keys change what is shown, and nothing else."""

from __future__ import annotations

import pytest

from cri_proxy.view.snapshot import NodeSnapshot
from cri_proxy.view.top.keys import (
    CONTAINERS,
    MACHINE,
    MOVES,
    PANES,
    SORTS,
    TRAFFIC,
    ScreenState,
    containers_shown,
    flows_shown,
    press,
    resized,
)
from tests.machines import HYGON_7285_2S
from tests.view.nodes import busy_engine, edges_of, snapshot_of

ROWS = 10


@pytest.fixture(scope="module")
def snapshot() -> NodeSnapshot:
    engine = busy_engine(HYGON_7285_2S, 40)
    return snapshot_of(engine, edges_of(engine, 30))


def pressed(state: ScreenState, keys: str, snapshot: NodeSnapshot) -> ScreenState:
    """The state after some keys: words, or single characters."""
    for key in keys.split(","):
        state = press(state, key, snapshot, ROWS)
    return state


def test_panes_have_numbers_and_take_turns(snapshot: NodeSnapshot) -> None:
    assert [pressed(ScreenState(), str(n), snapshot).pane for n in (1, 2, 3, 4)] == list(PANES)
    assert pressed(ScreenState(), "tab,tab", snapshot).pane == TRAFFIC
    assert pressed(ScreenState(), "back-tab", snapshot).pane == MOVES
    assert pressed(ScreenState(), "right,left", snapshot).pane == MACHINE


def test_q_ends_it(snapshot: NodeSnapshot) -> None:
    assert pressed(ScreenState(), "q", snapshot).is_over
    assert pressed(ScreenState(opened="x"), "q", snapshot).is_over


def test_containers_are_sorted_by_each_order_in_turn(snapshot: NodeSnapshot) -> None:
    state = ScreenState(pane=CONTAINERS)
    seen = []
    for _ in SORTS:
        state = pressed(state, "s", snapshot)
        seen.append(state.sort)
    assert seen == [*SORTS[1:], SORTS[0]]
    listed = containers_shown(snapshot, ScreenState(sort="traffic"))
    assert [one.bytes_per_s for one in listed] == sorted((one.bytes_per_s for one in listed), reverse=True)
    listed = containers_shown(snapshot, ScreenState(sort="request"))
    assert [one.milli_cpus for one in listed] == sorted((one.milli_cpus for one in listed), reverse=True)
    zones = [one.zone for one in containers_shown(snapshot, ScreenState(sort="place"))]
    assert zones.index("l3-2") < zones.index("l3-10")


def test_r_turns_the_order_round(snapshot: NodeSnapshot) -> None:
    state = pressed(ScreenState(pane=CONTAINERS), "r", snapshot)
    assert containers_shown(snapshot, state) == containers_shown(snapshot, ScreenState())[::-1]


def test_n_steps_through_the_namespaces(snapshot: NodeSnapshot) -> None:
    state, seen = ScreenState(), []
    for _ in range(5):
        state = pressed(state, "n", snapshot)
        seen.append(state.namespace)
    assert seen == ["default", "kube-system", "monitoring", "shop", ""]
    assert pressed(ScreenState(), "N", snapshot).namespace == "shop"


def test_a_typed_namespace_holds_at_once_and_escape_takes_it_back(snapshot: NodeSnapshot) -> None:
    state = pressed(ScreenState(), "/,s,h", snapshot)
    assert {one.namespace for one in containers_shown(snapshot, state)} == {"shop"}
    assert all("shop/" in (flow.a + flow.b) for flow in flows_shown(snapshot, state))
    taken = pressed(state, "enter", snapshot)
    assert (taken.namespace, taken.typed) == ("sh", None)
    assert pressed(state, "escape", snapshot).namespace == ""
    assert pressed(taken, "escape", snapshot).namespace == ""
    # What is typed is text: q does not end it.
    assert pressed(ScreenState(), "/,q", snapshot).typed == "q"
    assert pressed(ScreenState(), "/,q,backspace,up", snapshot).typed == ""


def test_enter_opens_the_selected_container_and_closes_it(snapshot: NodeSnapshot) -> None:
    listed = containers_shown(snapshot, ScreenState())
    state = pressed(ScreenState(), "enter", snapshot)
    assert (state.pane, state.opened) == (CONTAINERS, "")
    state = pressed(state, "down,down,enter", snapshot)
    assert state.opened == listed[2].id
    state = pressed(state, "down,down", snapshot)
    assert (state.scroll, state.selected) == (2, listed[2].id)
    assert pressed(state, "enter", snapshot).opened == pressed(state, "escape", snapshot).opened == ""


def test_the_selection_stays_with_its_container(snapshot: NodeSnapshot) -> None:
    state = pressed(ScreenState(pane=CONTAINERS), "down,down,down", snapshot)
    chosen = state.selected
    fewer = NodeSnapshot(
        "", "", "", "", containers=tuple(one for one in snapshot.containers if one.id != chosen)
    )
    assert press(state, "down", snapshot, ROWS).selected == containers_shown(snapshot, state)[4].id
    # Gone: from the first one on.
    assert press(state, "down", fewer, ROWS).selected == containers_shown(fewer, state)[1].id
    assert press(state, "enter", NodeSnapshot("", "", "", ""), ROWS).opened == ""


def test_pages_and_ends(snapshot: NodeSnapshot) -> None:
    listed = [one.id for one in containers_shown(snapshot, ScreenState())]
    state = ScreenState(pane=CONTAINERS)
    assert pressed(state, "page-down", snapshot).selected == listed[ROWS - 1]
    assert pressed(state, "end", snapshot).selected == listed[-1]
    assert pressed(state, "end,home", snapshot).selected == listed[0]
    assert pressed(ScreenState(pane=TRAFFIC), "down,down,up", snapshot).top == 1


def test_going_up_moves_the_selection_before_the_list(snapshot: NodeSnapshot) -> None:
    state = pressed(ScreenState(pane=CONTAINERS), "end", snapshot)
    assert pressed(state, "up,up", snapshot).top == state.top == len(snapshot.containers) - ROWS


def test_f_and_space_freeze(snapshot: NodeSnapshot) -> None:
    for key in ("f", " "):
        state = pressed(ScreenState(), key, snapshot)
        assert state.is_frozen
        assert not pressed(state, key, snapshot).is_frozen


def test_help_is_left_by_any_key_that_does_not_scroll_it(snapshot: NodeSnapshot) -> None:
    state = pressed(ScreenState(), "?", snapshot)
    assert state.is_help and pressed(state, "down", snapshot).is_help
    assert not pressed(state, "q", snapshot).is_help
    assert not pressed(state, "q", snapshot).is_over


def test_an_unknown_key_changes_nothing(snapshot: NodeSnapshot) -> None:
    for pane in PANES:
        for key in ("", "Z", "~"):
            assert press(ScreenState(pane=pane), key, snapshot, ROWS) == ScreenState(pane=pane)
            assert press(ScreenState(pane=pane), key, None, ROWS) == ScreenState(pane=pane)


def test_another_size_is_only_that(snapshot: NodeSnapshot) -> None:
    assert resized(ScreenState(sort="place"), 132, 43) == ScreenState(132, 43, sort="place")
