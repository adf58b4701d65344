"""What a screen shows of a snapshot, and how keys change that. Pure.

The size of the terminal is part of it: a page is as long as the list on the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Optional

from cri_proxy.top.snapshot import Container, Flow, Moved, Snapshot

MACHINE, CONTAINERS, TRAFFIC, MOVES = PANES = ("machine", "containers", "traffic", "moves")
#: What containers go by, in the order of the key.
SORTS = ("name", "traffic", "request", "place")
#: The least terminal that anything is drawn in.
LEAST_WIDTH, LEAST_HEIGHT = 40, 10


@dataclass(frozen=True)
class View:
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


def containers_shown(snapshot: Snapshot, view: View) -> list[Container]:
    """The containers of the namespaces that are asked for, in the order that is asked for."""
    keys: dict[str, Callable[[Container], tuple[object, ...]]] = {
        "name": lambda one: (one.namespace, one.pod, one.name),
        "traffic": lambda one: (-one.bytes_per_s, one.namespace, one.pod, one.name),
        "request": lambda one: (-one.milli_cpus, one.namespace, one.pod, one.name),
        "place": lambda one: (_natural(one.zone), one.namespace, one.pod, one.name),
    }
    found = [one for one in snapshot.containers if one.namespace.startswith(_wanted(view))]
    return sorted(found, key=keys[view.sort], reverse=view.is_reversed)


def flows_shown(snapshot: Snapshot, view: View) -> list[Flow]:
    """Traffic of which an end is in one of the namespaces."""
    wanted = _wanted(view)
    return [flow for flow in snapshot.flows if flow.a.startswith(wanted) or flow.b.startswith(wanted)]


def moves_shown(snapshot: Snapshot, view: View) -> list[Moved]:
    """Moves of which a container that is named is in one of the namespaces, the latest first."""
    wanted = _wanted(view)
    return [move for move in snapshot.moves if any(path.startswith(wanted) for path in move.containers)]


def _wanted(view: View) -> str:
    """What is typed holds at once."""
    return view.namespace if view.typed is None else view.typed


def _natural(zone: str) -> tuple[str, int]:
    """``l3-2`` before ``l3-10``."""
    kind, _, number = zone.partition("-")
    return kind, int(number) if number.isdigit() else -1


def selection(containers: list[Container], view: View) -> int:
    """Which line is selected; 0 where the container is not listed any more."""
    return next((index for index, one in enumerate(containers) if one.id == view.selected), 0)


# ---------------------------------------------------------------------- keys


def press(view: View, key: str, snapshot: Optional[Snapshot], rows: int) -> View:
    """The state after a key. ``rows``: the lines of the list, or of the text that is open, on the screen.

    ``key``: a character, or one of up, down, left, right, page-up, page-down, home, end, enter, escape, tab,
    back-tab, backspace.
    """
    if view.typed is not None:
        return _type(view, view.typed, key)
    if view.is_help:
        return _scrolled(view, key, rows) or replace(view, is_help=False, scroll=0)
    if view.opened:
        return _read(view, key, rows)
    if key in _PANE_KEYS:
        return replace(view, pane=_PANE_KEYS[key], top=0)
    if key in _PLAIN_KEYS:
        return _PLAIN_KEYS[key](view)
    if key in ("n", "N"):
        return _next_namespace(view, snapshot, -1 if key == "N" else 1)
    listed = [] if snapshot is None else containers_shown(snapshot, view)
    if key == "enter":
        if view.pane != CONTAINERS:
            return replace(view, pane=CONTAINERS, top=0)
        return replace(view, opened=listed[selection(listed, view)].id, scroll=0) if listed else view
    if view.pane == CONTAINERS:
        return _select(view, key, listed, rows)
    return replace(view, top=_moved(view.top, key, rows, 1 << 30))


def resized(view: View, width: int, height: int) -> View:
    """The state in a terminal of another size."""
    return replace(view, width=width, height=height)


def _turned(view: View, by: int) -> View:
    return replace(view, pane=PANES[(PANES.index(view.pane) + by) % len(PANES)], top=0)


def _next_sort(view: View) -> View:
    return replace(
        view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], pane=CONTAINERS, selected="", top=0
    )


_MOVING = ("up", "down", "page-up", "page-down", "home", "end", "j", "k")
_PANE_KEYS = {"1": MACHINE, "2": CONTAINERS, "3": TRAFFIC, "4": MOVES}
_PLAIN_KEYS: dict[str, Callable[[View], View]] = {
    "q": lambda view: replace(view, is_over=True),
    "?": lambda view: replace(view, is_help=True, scroll=0),
    "h": lambda view: replace(view, is_help=True, scroll=0),
    "f": lambda view: replace(view, is_frozen=not view.is_frozen),
    " ": lambda view: replace(view, is_frozen=not view.is_frozen),
    "s": _next_sort,
    "r": lambda view: replace(view, is_reversed=not view.is_reversed, selected="", top=0),
    "/": lambda view: replace(view, typed=view.namespace),
    "escape": lambda view: replace(view, namespace="", top=0),
    "tab": lambda view: _turned(view, 1),
    "right": lambda view: _turned(view, 1),
    "back-tab": lambda view: _turned(view, -1),
    "left": lambda view: _turned(view, -1),
}


def _type(view: View, typed: str, key: str) -> View:
    """A namespace is typed: Enter takes it, Escape leaves what was."""
    if key == "enter":
        return replace(view, namespace=typed, typed=None, top=0)
    if key == "escape":
        return replace(view, typed=None)
    if key == "backspace":
        return replace(view, typed=typed[:-1])
    # A Kubernetes name: RFC 1123.
    return (
        replace(view, typed=typed + key, top=0) if len(key) == 1 and (key.isalnum() or key == "-") else view
    )


def _read(view: View, key: str, rows: int) -> View:
    """A container is open."""
    if key in ("enter", "escape", "backspace", "left"):
        return replace(view, opened="", scroll=0)
    if key in ("q", "f", " "):
        return _PLAIN_KEYS[key](view)
    return _scrolled(view, key, rows) or view


def _scrolled(view: View, key: str, rows: int) -> Optional[View]:
    if key not in _MOVING:
        return None
    return replace(view, scroll=_moved(view.scroll, key, rows, 1 << 30))


def _next_namespace(view: View, snapshot: Optional[Snapshot], by: int) -> View:
    """All of them, then one after another."""
    names = ("", *(snapshot.namespaces if snapshot is not None else ()))
    at = names.index(view.namespace) if view.namespace in names else 0
    return replace(view, namespace=names[(at + by) % len(names)], selected="", top=0)


def _select(view: View, key: str, listed: list[Container], rows: int) -> View:
    if not listed or key not in _MOVING:
        return view
    now = selection(listed, view)
    index = min(_moved(now, key, rows, len(listed) - 1), len(listed) - 1)
    if index == now and view.selected:
        return view
    top = min(max(view.top, index - rows + 1), index)
    return replace(view, selected=listed[index].id, top=max(0, top))


def _moved(at: int, key: str, rows: int, last: int) -> int:
    """A line further up or down. The last line of a text is found when it is drawn."""
    page = max(1, rows - 1)
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -page, "page-down": page}
    if key in ("home", "end"):
        return 0 if key == "home" else last
    return min(last, max(0, at + steps.get(key, 0)))
