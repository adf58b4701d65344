"""What a screen shows of a snapshot, and how keys change that. Pure.

The size of the terminal is part of it: a page is as long as the list on the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Optional

from cri_proxy.view.snapshot import ContainerView, FlowView, Moved, NodeSnapshot

MACHINE, CONTAINERS, TRAFFIC, MOVES = PANES = ("machine", "containers", "traffic", "moves")
#: What containers go by, in the order of the key.
SORTS = ("name", "traffic", "request", "place")
#: The least terminal that anything is drawn in.
LEAST_WIDTH, LEAST_HEIGHT = 40, 10


@dataclass(frozen=True)
class ScreenState:
    """One state of the program. ``namespace``: only those that begin with it; ``typed``: not None while it is typed.

    ``selected``: a container's id, "" = the first. ``top``: the first line of a list that is shown. ``opened``: the
    container that is explained, "" = none; ``scroll``: the first line of that, or of the help.
    """

    width: int = 80
    height: int = 24
    pane: str = MACHINE
    sort: str = "name"
    is_reversed: bool = False
    namespace: str = ""
    typed: Optional[str] = None
    selected: str = ""
    top: int = 0
    opened: str = ""
    scroll: int = 0
    is_frozen: bool = False
    is_help: bool = False
    is_over: bool = False


# ---------------------------------------------------------------------- what is listed


def containers_shown(snapshot: NodeSnapshot, state: ScreenState) -> list[ContainerView]:
    """The containers of the namespaces that are asked for, in the order that is asked for."""
    keys: dict[str, Callable[[ContainerView], tuple[object, ...]]] = {
        "name": lambda one: (one.namespace, one.pod, one.name),
        "traffic": lambda one: (-one.bytes_per_s, one.namespace, one.pod, one.name),
        "request": lambda one: (-one.milli_cpus, one.namespace, one.pod, one.name),
        "place": lambda one: (_natural(one.zone), one.namespace, one.pod, one.name),
    }
    found = [one for one in snapshot.containers if one.namespace.startswith(_wanted(state))]
    return sorted(found, key=keys[state.sort], reverse=state.is_reversed)


def flows_shown(snapshot: NodeSnapshot, state: ScreenState) -> list[FlowView]:
    """Traffic of which an end is in one of the namespaces, the heaviest first."""
    wanted = _wanted(state)
    found = (flow for flow in snapshot.flows if flow.a.startswith(wanted) or flow.b.startswith(wanted))
    return sorted(found, key=lambda flow: (-flow.bytes_per_s, flow.a, flow.b))


def moves_shown(snapshot: NodeSnapshot, state: ScreenState) -> list[Moved]:
    """Moves of which a container that is named is in one of the namespaces, the latest first."""
    wanted = _wanted(state)
    return [move for move in snapshot.moves if any(path.startswith(wanted) for path in move.containers)]


def _wanted(state: ScreenState) -> str:
    """What is typed holds at once."""
    return state.namespace if state.typed is None else state.typed


def _natural(zone: str) -> tuple[str, int]:
    """``l3-2`` before ``l3-10``."""
    kind, _, number = zone.partition("-")
    return kind, int(number) if number.isdigit() else -1


def selection(containers: list[ContainerView], state: ScreenState) -> int:
    """Which line is selected; 0 where the container is not listed any more."""
    return next((index for index, one in enumerate(containers) if one.id == state.selected), 0)


# ---------------------------------------------------------------------- keys


def press(state: ScreenState, key: str, snapshot: Optional[NodeSnapshot], rows: int) -> ScreenState:
    """The state after a key. ``rows``: the lines of the list, or of the text that is open, on the screen.

    ``key``: a character, or one of up, down, left, right, page-up, page-down, home, end, enter, escape, tab,
    back-tab, backspace.
    """
    if state.typed is not None:
        return _type(state, state.typed, key)
    if state.is_help:
        return _scrolled(state, key, rows) or replace(state, is_help=False, scroll=0)
    if state.opened:
        return _read(state, key, rows)
    if key in _PANE_KEYS:
        return replace(state, pane=_PANE_KEYS[key], top=0)
    if key in _PLAIN_KEYS:
        return _PLAIN_KEYS[key](state)
    if key in ("n", "N"):
        return _next_namespace(state, snapshot, -1 if key == "N" else 1)
    listed = [] if snapshot is None else containers_shown(snapshot, state)
    if key == "enter":
        if state.pane != CONTAINERS:
            return replace(state, pane=CONTAINERS, top=0)
        return replace(state, opened=listed[selection(listed, state)].id, scroll=0) if listed else state
    if state.pane == CONTAINERS:
        return _select(state, key, listed, rows)
    return replace(state, top=_moved(state.top, key, rows, 1 << 30))


def resized(state: ScreenState, width: int, height: int) -> ScreenState:
    """The state in a terminal of another size."""
    return replace(state, width=width, height=height)


def _turned(state: ScreenState, by: int) -> ScreenState:
    return replace(state, pane=PANES[(PANES.index(state.pane) + by) % len(PANES)], top=0)


def _next_sort(state: ScreenState) -> ScreenState:
    return replace(
        state, sort=SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)], pane=CONTAINERS, selected="", top=0
    )


_MOVING = ("up", "down", "page-up", "page-down", "home", "end", "j", "k")
_PANE_KEYS = {"1": MACHINE, "2": CONTAINERS, "3": TRAFFIC, "4": MOVES}
_PLAIN_KEYS: dict[str, Callable[[ScreenState], ScreenState]] = {
    "q": lambda state: replace(state, is_over=True),
    "?": lambda state: replace(state, is_help=True, scroll=0),
    "h": lambda state: replace(state, is_help=True, scroll=0),
    "f": lambda state: replace(state, is_frozen=not state.is_frozen),
    " ": lambda state: replace(state, is_frozen=not state.is_frozen),
    "s": _next_sort,
    "r": lambda state: replace(state, is_reversed=not state.is_reversed, selected="", top=0),
    "/": lambda state: replace(state, typed=state.namespace),
    "escape": lambda state: replace(state, namespace="", top=0),
    "tab": lambda state: _turned(state, 1),
    "right": lambda state: _turned(state, 1),
    "back-tab": lambda state: _turned(state, -1),
    "left": lambda state: _turned(state, -1),
}


def _type(state: ScreenState, typed: str, key: str) -> ScreenState:
    """A namespace is typed: Enter takes it, Escape leaves what was."""
    if key == "enter":
        return replace(state, namespace=typed, typed=None, top=0)
    if key == "escape":
        return replace(state, typed=None)
    if key == "backspace":
        return replace(state, typed=typed[:-1])
    # A Kubernetes name: RFC 1123.
    return (
        replace(state, typed=typed + key, top=0) if len(key) == 1 and (key.isalnum() or key == "-") else state
    )


def _read(state: ScreenState, key: str, rows: int) -> ScreenState:
    """A container is open."""
    if key in ("enter", "escape", "backspace", "left"):
        return replace(state, opened="", scroll=0)
    if key in ("q", "f", " "):
        return _PLAIN_KEYS[key](state)
    return _scrolled(state, key, rows) or state


def _scrolled(state: ScreenState, key: str, rows: int) -> Optional[ScreenState]:
    if key not in _MOVING:
        return None
    return replace(state, scroll=_moved(state.scroll, key, rows, 1 << 30))


def _next_namespace(state: ScreenState, snapshot: Optional[NodeSnapshot], by: int) -> ScreenState:
    """All of them, then one after another."""
    names = ("", *(snapshot.namespaces if snapshot is not None else ()))
    at = names.index(state.namespace) if state.namespace in names else 0
    return replace(state, namespace=names[(at + by) % len(names)], selected="", top=0)


def _select(state: ScreenState, key: str, listed: list[ContainerView], rows: int) -> ScreenState:
    if not listed or key not in _MOVING:
        return state
    now = selection(listed, state)
    index = min(_moved(now, key, rows, len(listed) - 1), len(listed) - 1)
    if index == now and state.selected:
        return state
    top = min(max(state.top, index - rows + 1), index)
    return replace(state, selected=listed[index].id, top=max(0, top))


def _moved(at: int, key: str, rows: int, last: int) -> int:
    """A line further up or down. The last line of a text is found when it is drawn."""
    page = max(1, rows - 1)
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -page, "page-down": page}
    if key in ("home", "end"):
        return 0 if key == "home" else last
    return min(last, max(0, at + steps.get(key, 0)))
