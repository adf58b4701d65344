"""The whole screen: a scene and a state in, lines of spans out. Pure.

From the top: what the daemon is and the machine in one line, what is wrong or which colour is which namespace, the pane,
the keys. Where the terminal is high enough the machine stands above the lists, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from cri_proxy.engine.moves import bytes_text
from cri_proxy.isolation.monitoring import mib_text
from cri_proxy.text.ages import CONTAINERS as CONTAINERS_OLD
from cri_proxy.text.ages import TRAFFIC as TRAFFIC_OLD
from cri_proxy.text.ages import old_text
from cri_proxy.text.terminal import duration_text
from cri_proxy.view.snapshot import ContainerView, FlowView, Moved, NodeSnapshot
from cri_proxy.view.top.canvas import (
    ALARM,
    BOLD,
    DIM,
    PLAIN,
    SELECTED,
    TITLE,
    Canvas,
    Line,
    TextSpan,
    cut,
    cut_inside,
    dimmed,
)
from cri_proxy.view.top.keys import (
    CONTAINERS,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    MACHINE,
    MOVES,
    PANES,
    TRAFFIC,
    ScreenState,
    containers_shown,
    flows_shown,
    moves_shown,
    selection,
)
from cri_proxy.view.top.machine import (
    Grid,
    Namespaces,
    arrange,
    draw_boxes,
    height_of,
    list_lines,
    percent,
    shape_of,
)

#: A list that stands below the machine has at least so many lines.
LEAST_LIST = 12
#: The least columns of a container's name, and what stands beside it.
NAME = 20
_FIELDS = (("PLACE", 8), ("CPUS", 12), ("REQUEST", 8), ("TRAFFIC", 10), ("STATE", 9))
#: Beside those, where L3s are monitored: what a container fills of them.
_CACHE = ("L3 MIB", 7)
#: What the machine's figures and letters are, above the keys.
LEGEND = "28% load  4/8 CPUs requested  x4 exclusive  a, web container  A exclusive  a9 9"
#: A lower terminal has no line for it.
LEGEND_HEIGHT = 24
_OLD_TRAFFIC = ("OLD TRAFFIC", 11)
HELP = """\
1 2 3 4, Tab    machine, containers, traffic, last moves
Up Down, j k    a line; PgUp PgDn: a page; Home End: the first, the last
Enter           open the selected container: why it is where it is; Esc: back
s               sort containers by name, traffic, request, place
r               the other way round
n N             only the next namespace, the one before; at the end all
/               only namespaces that begin with what is typed; Esc: all
f, Space        freeze the picture (not the daemon), and let it go on
? h             this help
q               end

""" + (
    "A box is a socket, a NUMA node or an L3. Its percentage is how busy its CPUs are (/proc/stat). 5.5/8: the CPUs "
    "that requests ask for, and those there are. exclusive 2-3, x2: CPUs that belong to single containers. 3/64 "
    "GiB: memory that is allocated, and what there is. A letter or a name is a container, its letter and colour its "
    "namespace; a14: 14 of them. Capital letters have exclusive CPUs. What lies in several boxes stands on the edge "
    "of the one around them, what spans sockets is counted in the first line. cache and L3 MIB, with "
    "isolation.monitoring: whose lines fill an L3 (█ others), and what a container fills of L3s."
)

#: Why there is no answer, by the view socket's causes.
AWAY = {
    "late": "the daemon has not answered within {seconds:.0f} s; see its log: journalctl -u cri-resource-manager",
    "refused": "no permission for {path}; try again as root",
    "absent": "the daemon is not running: nothing serves {path}",
    "closed": "the daemon closed the connection without an answer",
}


@dataclass(frozen=True)
class Opened:
    """The explanation of one container, as text."""

    id: str
    text: str


@dataclass(frozen=True)
class Scene:
    """What is known now. ``trouble``: why the daemon does not answer, "" = it does; ``clock``: when it last did."""

    snapshot: Optional[NodeSnapshot] = None
    trouble: str = ""
    clock: str = ""
    opened: Optional[Opened] = None


def draw(scene: Scene, state: ScreenState, *, ascii_only: bool = False) -> list[Line]:
    """The screen, ``state.height`` lines of at most ``state.width`` characters."""
    canvas = Canvas(state.width, state.height)
    if state.width < LEAST_WIDTH or state.height < LEAST_HEIGHT:
        canvas.put(0, 0, cut(f"needs {LEAST_WIDTH} x {LEAST_HEIGHT}", state.width))
        return canvas.lines(ascii_only=ascii_only)
    snapshot = scene.snapshot
    _draw_title(canvas, scene, state)
    if _has_legend(state):
        canvas.put(state.height - 2, 0, cut(LEGEND, state.width), DIM)
    canvas.line(state.height - 1, _keys_line(state))
    body = _body(state)
    if state.is_help:
        _draw_text(canvas, "keys", HELP, state.scroll, state)
    elif state.opened:
        _draw_opened(canvas, scene, state)
    elif snapshot is None:
        for line, text in enumerate(
            textwrap.wrap(scene.trouble or "asking the daemon", state.width - 2)[:body]
        ):
            canvas.put(3 + line, 1, text)
    elif state.pane == MACHINE:
        _draw_machine(canvas, snapshot, state)
    else:
        used = _machine_above(snapshot, state)
        if used is not None:
            draw_boxes(canvas, 2, snapshot, containers_shown(snapshot, state), used)
        top = 2 + (0 if used is None else height_of(shape_of(snapshot.places), used))
        _draw_list(canvas, top, 2 + _body(state) - top, snapshot, state, state.pane)
    lines = canvas.lines(ascii_only=ascii_only)
    # Nothing that is shown is of now, but for why.
    return [*lines[:2], *map(dimmed, lines[2:])] if scene.trouble else lines


def rows(scene: Scene, state: ScreenState) -> int:
    """The lines of the list, or of the open text, for the keys that turn pages."""
    if state.is_help or state.opened or scene.snapshot is None or state.pane == MACHINE:
        return _body(state) - 1
    used = _machine_above(scene.snapshot, state)
    above = 0 if used is None else height_of(shape_of(scene.snapshot.places), used)
    return max(1, _body(state) - above - 1)


def _body(state: ScreenState) -> int:
    """The lines between the head and what stands below: the legend, where there is one, and the keys."""
    return state.height - 3 - _has_legend(state)


def _has_legend(state: ScreenState) -> bool:
    return state.height >= LEGEND_HEIGHT and state.pane == MACHINE and not state.is_help and not state.opened


# ---------------------------------------------------------------------- head and keys


def _draw_title(canvas: Canvas, scene: Scene, state: ScreenState) -> None:
    snapshot = scene.snapshot
    if snapshot is None:
        canvas.put(0, 0, f"cri-resmgr top{'':{state.width}}", TITLE)
        return
    places = snapshot.places
    charged, whole = (
        sum(getattr(place, name) for place in places) / 1000
        for name in ("charged_milli", "allocatable_milli")
    )
    known = [(place.load, len(place.cpus)) for place in places if place.load is not None]
    load = sum(part * count for part, count in known) / sum(count for _, count in known) if known else None
    wide = [container for container in snapshot.containers if not container.zone]
    words = [
        f"cri-resmgr {snapshot.mode} {snapshot.policy}",
        f"load {percent(load).strip()}",
        f"asked {charged:.1f}".replace(".0", "") + f"/{whole:g}",
        f"{len(snapshot.containers)} container{'' if len(snapshot.containers) == 1 else 's'}",
    ]
    if wide:
        words.append(f"{len(wide)} over sockets")
    right = f"{'FROZEN ' if state.is_frozen else ''}{scene.clock}"
    left = cut("  ".join(words), state.width - len(right) - 1)
    canvas.put(0, 0, f"{left:{state.width - len(right)}}{right}", TITLE)
    canvas.line(1, _second_line(scene, snapshot, state))


def _second_line(scene: Scene, snapshot: NodeSnapshot, state: ScreenState) -> Line:
    if scene.trouble:
        return (TextSpan(cut(f"old, of {scene.clock}: {scene.trouble}", state.width), ALARM),)
    if snapshot.degraded:
        return (TextSpan(cut("DEGRADED " + "; ".join(snapshot.degraded), state.width), ALARM),)
    if CONTAINERS_OLD in snapshot.old:
        return (TextSpan(cut(old_text(CONTAINERS_OLD, snapshot.old[CONTAINERS_OLD]), state.width), ALARM),)
    if state.typed is None and state.namespace:
        return (TextSpan(cut(f"only namespaces {state.namespace}*; Esc: all", state.width), BOLD),)
    return Namespaces(snapshot.namespaces).legend()


def _keys_line(state: ScreenState) -> Line:
    if state.typed is not None:
        return (TextSpan(f"only namespaces that begin with: {state.typed}", BOLD), TextSpan("_", BOLD))
    if state.is_help:
        return (TextSpan("any key: back", DIM),)
    if state.opened:
        return (TextSpan("Enter back  Up Down PgUp PgDn read  f freeze  q end", DIM),)
    spans: list[TextSpan] = []
    for number, pane in enumerate(PANES, 1):
        spans += [TextSpan(f"{number} {pane}", BOLD if pane == state.pane else DIM), TextSpan(" ", DIM)]
    order = f"{state.sort}{'(r)' if state.is_reversed else ''}" if state.pane == CONTAINERS else "sort"
    return (*spans, TextSpan(f"s {order} n / f freeze ? help q end", DIM))


# ---------------------------------------------------------------------- panes


def _machine_above(snapshot: NodeSnapshot, state: ScreenState) -> Optional[Grid]:
    """The machine above a list, where there is room for both."""
    used = arrange(shape_of(snapshot.places), state.width, _body(state) - LEAST_LIST)
    return used if used is not None and used.lines >= 2 else None


def _draw_machine(canvas: Canvas, snapshot: NodeSnapshot, state: ScreenState) -> None:
    shape, body = shape_of(snapshot.places), _body(state)
    shown = containers_shown(snapshot, replace(state, sort="name", is_reversed=False))
    # 1. Two thirds, as long as each cell has a line for its containers; else all of the room.
    used = arrange(shape, state.width, (state.height - 3) * 2 // 3)
    if used is None or used.lines < 2:
        used = arrange(shape, state.width, body)
    # 2. More L3s than boxes have room.
    if used is None:
        _draw_lines(canvas, 2, body, list_lines(snapshot, shown, state.width), state.top)
        return
    draw_boxes(canvas, 2, snapshot, shown, used)
    top = 2 + height_of(shape, used)
    # 3. Below it the heaviest traffic and the last moves.
    left = 2 + body - top
    traffic = left if left < 4 else -(-left // 2)
    if traffic >= 2:
        _draw_list(canvas, top, traffic, snapshot, replace(state, top=0), TRAFFIC)
    if left - traffic >= 2:
        _draw_list(canvas, top + traffic, left - traffic, snapshot, replace(state, top=0), MOVES)


def _draw_list(
    canvas: Canvas, top: int, height: int, snapshot: NodeSnapshot, state: ScreenState, pane: str
) -> None:
    """A heading, and the lines of a list that fit."""
    if pane == CONTAINERS:
        _draw_containers(canvas, top, height, containers_shown(snapshot, state), state, snapshot)
    elif pane == TRAFFIC:
        flows = flows_shown(snapshot, state)
        old = snapshot.old.get(TRAFFIC_OLD)
        head = _flow_head(len(flows)) if old is None else f"OLD: {old_text(TRAFFIC_OLD, old)}"
        canvas.put(top, 0, f"{cut(head, state.width):{state.width}}", TITLE)
        note = snapshot.traffic_note or "no traffic between containers is seen"
        lines = [_flow_line(flow, state.width) for flow in flows] or [(TextSpan(note, DIM),)]
        if old is not None:
            lines = list(map(dimmed, lines))
        _draw_lines(canvas, top + 1, height - 1, lines, state.top)
    else:
        moves = moves_shown(snapshot, state)
        canvas.put(top, 0, f"{'LAST MOVES':{state.width}}", TITLE)
        note = snapshot.moves_note or "nothing has moved"
        moved = [line for move in moves for line in _move_lines(move, state.width, state.pane == MOVES)]
        _draw_lines(canvas, top + 1, height - 1, moved or [(TextSpan(note, DIM),)], state.top)


def _draw_lines(canvas: Canvas, y: int, height: int, lines: Sequence[Line], top: int) -> None:
    top = max(0, min(top, len(lines) - height))
    for offset, line in enumerate(lines[top : top + height]):
        canvas.line(y + offset, line)


def _draw_containers(
    canvas: Canvas,
    y: int,
    height: int,
    listed: Sequence[ContainerView],
    state: ScreenState,
    snapshot: NodeSnapshot,
) -> None:
    names, count = Namespaces(snapshot.namespaces), max(1, height - 1)
    # What has no room beside a name of NAME columns is left off, the last first.
    is_old = TRAFFIC_OLD in snapshot.old
    fields = [_OLD_TRAFFIC if is_old and title == "TRAFFIC" else (title, wide) for title, wide in _FIELDS]
    if any(one.cache_bytes is not None for one in snapshot.containers):
        fields.insert(3, _CACHE)
    while fields and sum(wide + 1 for _, wide in fields) + NAME > state.width:
        fields.pop()
    if fields and state.width >= 100:
        fields[1] = "CPUS", 18
    wide = state.width - sum(columns + 1 for _, columns in fields)
    head = [f"  {cut(f'CONTAINER ({len(listed)})', wide - 2)}"[:wide].ljust(wide)]
    head += [_aligned(title, title, columns) for title, columns in fields]
    canvas.put(y, 0, " ".join(head), TITLE)
    if not listed:
        canvas.put(
            y + 1,
            0,
            "no containers" + (" in such a namespace" if state.namespace or state.typed else ""),
            DIM,
        )
        return
    chosen = selection(list(listed), state)
    top = max(0, min(state.top, len(listed) - count))
    top = min(max(top, chosen - count + 1), chosen)
    for offset, one in enumerate(listed[top : top + count]):
        is_chosen = top + offset == chosen
        name = f"{'>' if is_chosen else ' '}{names.letter(one)} {cut_inside(one.path, wide - 3)}".ljust(wide)
        at = canvas.put(y + 1 + offset, 0, name, SELECTED if is_chosen else names.look(one))
        for title, columns in fields:
            look = DIM if (title, columns) == _OLD_TRAFFIC else PLAIN
            text = f" {_aligned(title, _value(one, title), columns)}"
            at = canvas.put(y + 1 + offset, at, text, SELECTED if is_chosen else look)


def _value(container: ContainerView, title: str) -> str:
    values = {
        "PLACE": container.zone or "sockets",
        "CPUS": container.cpus or "all",
        "REQUEST": f"{container.milli_cpus}m",
        "TRAFFIC": bytes_text(container.bytes_per_s) if container.bytes_per_s else "-",
        _OLD_TRAFFIC[0]: bytes_text(container.bytes_per_s) if container.bytes_per_s else "-",
        "STATE": container.state,
        _CACHE[0]: "-" if container.cache_bytes is None else mib_text(container.cache_bytes),
    }
    return values[title]


def _aligned(title: str, text: str, columns: int) -> str:
    return (
        cut(text, columns).rjust(columns)
        if title in ("REQUEST", "TRAFFIC", _OLD_TRAFFIC[0], _CACHE[0])
        else cut(text, columns).ljust(columns)
    )


def _flow_head(count: int) -> str:
    return f"{'TRAFFIC':>10} {'MESSAGES/S':>10}  {'WHERE':17} BETWEEN ({count})"


def _flow_line(flow: FlowView, width: int) -> Line:
    start = f"{bytes_text(flow.bytes_per_s):>10} {flow.messages_per_s:>10,.0f}  {cut(flow.where, 17):17} "
    # Both ends get as much of what is left as they need.
    room = width - len(start) - 3
    half = room // 2
    a = cut_inside(flow.a, max(half, room - len(flow.b)))
    return TextSpan(start, PLAIN), TextSpan(f"{a} - {cut_inside(flow.b, room - len(a))}", PLAIN)


def _move_lines(move: Moved, width: int, with_reason: bool) -> list[Line]:
    """When, what and where to; the reason behind it, or below it and whole."""
    more = f" and {move.count - len(move.containers)} more" if move.count > len(move.containers) else ""
    when = f"{duration_text(move.age_s):>7} ago "
    what = f"{', '.join(move.containers)}{more} {move.operation} to {move.cpus or 'all CPUs'} ({move.level})"
    if with_reason:
        lines: list[Line] = [(TextSpan(when, PLAIN), TextSpan(cut(what, width - len(when)), BOLD))]
        indent = " " * len(when)
        reason = textwrap.wrap(move.why, width, initial_indent=indent, subsequent_indent=indent)
        return [*lines, *((TextSpan(text, PLAIN),) for text in reason)]
    return [(TextSpan(cut(f"{when}{what}{': ' if move.why else ''}{move.why}", width), PLAIN),)]


# ---------------------------------------------------------------------- texts


def _draw_opened(canvas: Canvas, scene: Scene, state: ScreenState) -> None:
    found = scene.opened if scene.opened is not None and scene.opened.id == state.opened else None
    known = scene.snapshot.containers if scene.snapshot is not None else ()
    title = next((one.path for one in known if one.id == state.opened), state.opened[:13])
    _draw_text(canvas, title, "asking the daemon" if found is None else found.text, state.scroll, state)


def _draw_text(canvas: Canvas, title: str, text: str, scroll: int, state: ScreenState) -> None:
    canvas.put(2, 0, f"{cut(title, state.width):{state.width}}", TITLE)
    lines: list[Line] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += [
            (TextSpan(part, PLAIN),) for part in textwrap.wrap(line, state.width, subsequent_indent=indent)
        ] or [()]
    _draw_lines(canvas, 3, _body(state) - 1, lines, scroll)
