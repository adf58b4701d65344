"""Keys change what is shown, and nothing else."""

from __future__ import annotations

import pytest

from cri_proxy.top.snapshot import Snapshot
from cri_proxy.top.view import (
    CONTAINERS,
    MACHINE,
    MOVES,
    PANES,
    SORTS,
    TRAFFIC,
    View,
    containers_shown,
    flows_shown,
    press,
    resized,
)
from tests.machines import HYGON_7285_2S
from tests.top.nodes import busy_engine, edges_of, snapshot_of

ROWS = 10


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    engine = busy_engine(HYGON_7285_2S, 40)
    return snapshot_of(engine, edges_of(engine, 30))


def pressed(view: View, keys: str, snapshot: Snapshot) -> View:
    """The view after some keys: words, or single characters."""
    for key in keys.split(","):
        view = press(view, key, snapshot, ROWS)
    return view


def test_panes_have_numbers_and_take_turns(snapshot: Snapshot) -> None:
    assert [pressed(View(), str(n), snapshot).pane for n in (1, 2, 3, 4)] == list(PANES)
    assert pressed(View(), "tab,tab", snapshot).pane == TRAFFIC
    assert pressed(View(), "back-tab", snapshot).pane == MOVES
    assert pressed(View(), "right,left", snapshot).pane == MACHINE


def test_q_ends_it(snapshot: Snapshot) -> None:
    assert pressed(View(), "q", snapshot).is_over
    assert pressed(View(opened="x"), "q", snapshot).is_over


def test_containers_are_sorted_by_each_order_in_turn(snapshot: Snapshot) -> None:
    view = View(pane=CONTAINERS)
    seen = []
    for _ in SORTS:
        view = pressed(view, "s", snapshot)
        seen.append(view.sort)
    assert seen == [*SORTS[1:], SORTS[0]]
    listed = containers_shown(snapshot, View(sort="traffic"))
    assert [one.bytes_per_s for one in listed] == sorted((one.bytes_per_s for one in listed), reverse=True)
    listed = containers_shown(snapshot, View(sort="request"))
    assert [one.milli_cpus for one in listed] == sorted((one.milli_cpus for one in listed), reverse=True)
    zones = [one.zone for one in containers_shown(snapshot, View(sort="place"))]
    assert zones.index("l3-2") < zones.index("l3-10")


def test_r_turns_the_order_round(snapshot: Snapshot) -> None:
    view = pressed(View(pane=CONTAINERS), "r", snapshot)
    assert containers_shown(snapshot, view) == containers_shown(snapshot, View())[::-1]


def test_n_steps_through_the_namespaces(snapshot: Snapshot) -> None:
    view, seen = View(), []
    for _ in range(5):
        view = pressed(view, "n", snapshot)
        seen.append(view.namespace)
    assert seen == ["default", "kube-system", "monitoring", "shop", ""]
    assert pressed(View(), "N", snapshot).namespace == "shop"


def test_a_typed_namespace_holds_at_once_and_escape_takes_it_back(snapshot: Snapshot) -> None:
    view = pressed(View(), "/,s,h", snapshot)
    assert {one.namespace for one in containers_shown(snapshot, view)} == {"shop"}
    assert all("shop/" in (flow.a + flow.b) for flow in flows_shown(snapshot, view))
    taken = pressed(view, "enter", snapshot)
    assert (taken.namespace, taken.typed) == ("sh", None)
    assert pressed(view, "escape", snapshot).namespace == ""
    assert pressed(taken, "escape", snapshot).namespace == ""
    # What is typed is text: q does not end it.
    assert pressed(View(), "/,q", snapshot).typed == "q"
    assert pressed(View(), "/,q,backspace,up", snapshot).typed == ""


def test_enter_opens_the_selected_container_and_closes_it(snapshot: Snapshot) -> None:
    listed = containers_shown(snapshot, View())
    view = pressed(View(), "enter", snapshot)
    assert (view.pane, view.opened) == (CONTAINERS, "")
    view = pressed(view, "down,down,enter", snapshot)
    assert view.opened == listed[2].id
    view = pressed(view, "down,down", snapshot)
    assert (view.scroll, view.selected) == (2, listed[2].id)
    assert pressed(view, "enter", snapshot).opened == pressed(view, "escape", snapshot).opened == ""


def test_the_selection_stays_with_its_container(snapshot: Snapshot) -> None:
    view = pressed(View(pane=CONTAINERS), "down,down,down", snapshot)
    chosen = view.selected
    fewer = Snapshot("", "", "", containers=tuple(one for one in snapshot.containers if one.id != chosen))
    assert press(view, "down", snapshot, ROWS).selected == containers_shown(snapshot, view)[4].id
    # Gone: from the first one on.
    assert press(view, "down", fewer, ROWS).selected == containers_shown(fewer, view)[1].id
    assert press(view, "enter", Snapshot("", "", ""), ROWS).opened == ""


def test_pages_and_ends(snapshot: Snapshot) -> None:
    listed = [one.id for one in containers_shown(snapshot, View())]
    view = View(pane=CONTAINERS)
    assert pressed(view, "page-down", snapshot).selected == listed[ROWS - 1]
    assert pressed(view, "end", snapshot).selected == listed[-1]
    assert pressed(view, "end,home", snapshot).selected == listed[0]
    assert pressed(View(pane=TRAFFIC), "down,down,up", snapshot).top == 1


def test_going_up_moves_the_selection_before_the_list(snapshot: Snapshot) -> None:
    view = pressed(View(pane=CONTAINERS), "end", snapshot)
    assert pressed(view, "up,up", snapshot).top == view.top == len(snapshot.containers) - ROWS


def test_f_and_space_freeze(snapshot: Snapshot) -> None:
    for key in ("f", " "):
        view = pressed(View(), key, snapshot)
        assert view.is_frozen
        assert not pressed(view, key, snapshot).is_frozen


def test_help_is_left_by_any_key_that_does_not_scroll_it(snapshot: Snapshot) -> None:
    view = pressed(View(), "?", snapshot)
    assert view.is_help and pressed(view, "down", snapshot).is_help
    assert not pressed(view, "q", snapshot).is_help
    assert not pressed(view, "q", snapshot).is_over


def test_an_unknown_key_changes_nothing(snapshot: Snapshot) -> None:
    for pane in PANES:
        for key in ("", "Z", "~"):
            assert press(View(pane=pane), key, snapshot, ROWS) == View(pane=pane)
            assert press(View(pane=pane), key, None, ROWS) == View(pane=pane)


def test_another_size_is_only_that(snapshot: Snapshot) -> None:
    assert resized(View(sort="place"), 132, 43) == View(132, 43, sort="place")
