"""Screens, as they look: each is a text in ``screens/``. ``python -m tests.view.top.test_screens`` writes them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.report import explain
from cri_proxy.text.ages import CONTAINERS as AGES_CONTAINERS
from cri_proxy.text.ages import TRAFFIC as AGES_TRAFFIC
from cri_proxy.view.snapshot import clean, read_snapshot
from cri_proxy.view.top.canvas import ALARM, COLOURS, DIM, SELECTED, TITLE, cut_inside, text_of
from cri_proxy.view.top.keys import CONTAINERS, MACHINE, MOVES, PANES, TRAFFIC, ScreenState, press
from cri_proxy.view.top.screen import LEGEND, Opened, Scene, draw, rows
from tests.machines import (
    ALL_MACHINES,
    BIG_1024,
    EPYC_NPS1_1S,
    EPYC_NPS4_1S,
    HYGON_7285_2S,
    KUNPENG_48_2S,
    MEMORYLESS_NODE,
    NODE_INTERLEAVED,
    ONE_CPU,
    SNC_2S,
    UNEVEN_CCX,
    VM_NO_CACHE_INFO,
)
from tests.view.nodes import busy_engine, fills_of, report_of, scene_of, snapshot_of, steady_loads

FOLDER = Path(__file__).parent / "screens"
#: Name, machine, containers, state.
SCREENS = [
    ("hygon", HYGON_7285_2S, 30, ScreenState()),
    ("hygon-500", HYGON_7285_2S, 500, ScreenState()),
    ("hygon-500-high", HYGON_7285_2S, 500, ScreenState(120, 50)),
    ("hygon-500-containers", HYGON_7285_2S, 500, ScreenState(pane=CONTAINERS, sort="traffic")),
    ("hygon-containers-below-the-machine", HYGON_7285_2S, 30, ScreenState(100, 40, CONTAINERS, sort="place")),
    ("hygon-traffic", HYGON_7285_2S, 30, ScreenState(pane=TRAFFIC)),
    ("hygon-one-namespace", HYGON_7285_2S, 30, ScreenState(namespace="shop")),
    ("epyc-full-moves", EPYC_NPS4_1S, 500, ScreenState(pane=MOVES)),
    ("epyc-wide", EPYC_NPS4_1S, 60, ScreenState(160, 40)),
    ("epyc-one-node", EPYC_NPS1_1S, 100, ScreenState()),
    ("l3-larger-than-a-node", SNC_2S, 40, ScreenState()),
    ("node-larger-than-a-socket", NODE_INTERLEAVED, 40, ScreenState()),
    ("no-caches-known", VM_NO_CACHE_INFO, 12, ScreenState()),
    ("one-cpu", ONE_CPU, 3, ScreenState()),
    ("uneven", UNEVEN_CCX, 20, ScreenState()),
    ("memoryless-narrow", MEMORYLESS_NODE, 20, ScreenState(60, 20)),
    ("kunpeng", KUNPENG_48_2S, 40, ScreenState()),
    ("more-l3s-than-boxes", BIG_1024, 500, ScreenState(top=100)),
    ("help", HYGON_7285_2S, 3, ScreenState(is_help=True)),
]


OTHERS = ("opened", "ascii", "caches", "caches-containers")


def screen(name: str) -> str:
    if name == "opened":
        return text_of(draw(*opened()))
    if name == "ascii":
        return text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 30)), ScreenState(), ascii_only=True))
    if name.startswith("caches"):
        pane = CONTAINERS if name.endswith("containers") else MACHINE
        return text_of(draw(filled_scene(), ScreenState(160, 50, pane)))
    [(machine, count, state)] = [rest for its_name, *rest in SCREENS if its_name == name]
    return text_of(draw(scene_of(busy_engine(machine, count)), state))


def filled_scene() -> Scene:
    """L3s that are monitored."""
    engine = busy_engine(HYGON_7285_2S, 30)
    report = {**report_of(engine), "caches": fills_of(engine)}
    return Scene(read_snapshot(report, {}, {}, steady_loads(engine.host.topology)), clock="12:34:56")


def opened() -> tuple[Scene, ScreenState]:
    engine = busy_engine(HYGON_7285_2S, 30)
    key = sorted(engine.grants)[4]
    document = explain(engine, key, 100.0)
    assert document is not None
    scene = replace(scene_of(engine), opened=Opened(key, explain_text(document)))
    return scene, ScreenState(opened=key)


@pytest.mark.parametrize("name", [*(name for name, *_ in SCREENS), *OTHERS])
def test_a_screen_looks_as_it_is_kept(name: str) -> None:
    assert screen(name) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_every_machine_is_drawn_inside_of_every_terminal(machine: str) -> None:
    scene = scene_of(busy_engine(machine, 40, own=0))
    for width, height in ((1, 1), (40, 10), (79, 23), (80, 24), (132, 43), (300, 90)):
        for pane in PANES:
            lines = draw(scene, ScreenState(width, height, pane))
            assert len(lines) == height
            assert max(sum(len(span.text) for span in line) for line in lines) <= width


def test_every_l3_of_a_hygon_is_on_a_screen_of_80_by_24() -> None:
    text = text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 500)), ScreenState()))
    for zone in (
        [f"l3-{n} " for n in range(16)] + [f"numa-{n} " for n in range(8)] + ["socket-0 ", "socket-1 "]
    ):
        assert text.count(zone) == 1, zone


def test_80_by_24_has_the_legend_of_what_is_on_it() -> None:
    lines = text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 500)), ScreenState())).splitlines()
    assert lines[-2] == LEGEND and "…" not in lines[-2]


def test_a_long_name_keeps_both_of_its_ends() -> None:
    name = "shop/recommendation-service-7d9c5b8f4-x7k2p/server"
    assert cut_inside(name, 60) == name
    for width in (5, 20, 21):
        assert len(cut_inside(name, width)) == width
    assert cut_inside(name, 20) == "shop/recom…2p/server"


def test_a_namespace_has_one_colour_everywhere() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 30))
    for pane in (MACHINE, CONTAINERS):
        spans = [span for line in draw(scene, ScreenState(pane=pane)) for span in line]
        found = {span.look: span.text.split()[0].lower()[:1] for span in spans if span.look in COLOURS}
        assert found == dict(zip(COLOURS, "abcd"))


def test_without_colours_letters_say_the_same() -> None:
    text = text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 30)), ScreenState()))
    assert " a default  b kube-system  c monitoring  d shop" in text
    assert "│ ABdd" in text  # two of them with exclusive CPUs


def test_the_selected_container_is_on_the_screen_wherever_it_is() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 500))
    state = ScreenState(pane=CONTAINERS)
    for key in ("end", "page-up", "up", "up", "home", "page-down", "down"):
        state = press(state, key, scene.snapshot, rows(scene, state))
        [chosen] = [span for line in draw(scene, state) for span in line if span.look == SELECTED]
        assert scene.snapshot is not None
        [path] = [one.path for one in scene.snapshot.containers if one.id == state.selected]
        assert path in chosen.text
        assert chosen.text.startswith(">")


def test_a_daemon_that_is_away_is_said_and_the_last_picture_stays() -> None:
    scene = replace(
        scene_of(busy_engine(HYGON_7285_2S, 30)),
        trouble="asking again: the daemon is not running",
        clock="12:03:44",
    )
    lines = draw(scene, ScreenState())
    assert [(span.text, span.look) for span in lines[1]] == [
        ("old, of 12:03:44: asking again: the daemon is not running", ALARM)
    ]
    # Neither a load nor a namespace has its colour: none of it is of now.
    assert {span.look for line in lines[2:] for span in line} <= {DIM, TITLE}
    assert "l3-15" in text_of(lines)
    assert "the daemon is not running" in text_of(draw(Scene(trouble=scene.trouble), ScreenState()))
    assert "asking the daemon" in text_of(draw(Scene(), ScreenState()))


def test_traffic_that_is_old_is_grey_and_says_since_when_and_why() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 30))
    assert scene.snapshot is not None
    row = {"since_s": 1764418984.0, "age_s": 241.0, "why": "the observer has ended"}
    old = Scene(replace(scene.snapshot, old={AGES_TRAFFIC: row}))
    lines = draw(old, ScreenState(100, pane=TRAFFIC))
    text = text_of(lines)
    assert "OLD: traffic is of 4 min ago: the observer has ended" in text
    assert {span.look for line in lines if "MB/s" in text_of([line]) for span in line} == {DIM}
    lines = draw(old, ScreenState(100, pane=CONTAINERS))
    assert "OLD TRAFFIC" in text_of(lines)
    assert {span.look for line in lines for span in line if "B/s" in span.text} == {DIM, SELECTED}
    assert "OLD" not in text_of(draw(scene, ScreenState(100, pane=CONTAINERS)))


def test_containers_that_the_runtime_tells_nothing_of_are_said_to_be_old() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 30))
    assert scene.snapshot is not None
    row = {"since_s": None, "age_s": None, "why": "the runtime is not there"}
    [span] = draw(Scene(replace(scene.snapshot, old={AGES_CONTAINERS: row})), ScreenState(100))[1]
    assert (span.text, span.look) == (
        "containers' states are of before the daemon's start: the runtime is not there",
        ALARM,
    )


def test_a_degraded_daemon_without_a_machine_says_why() -> None:
    snapshot = replace(
        snapshot_of(busy_engine(HYGON_7285_2S, 0)), places=(), degraded=("topology: nothing can be read",)
    )
    for pane in PANES:
        text = text_of(draw(Scene(snapshot), ScreenState(pane=pane)))
        assert "DEGRADED topology: nothing can be read" in text


def test_what_spans_sockets_is_counted_in_the_first_line() -> None:
    snapshot = snapshot_of(busy_engine(HYGON_7285_2S, 4, own=0))
    wide = replace(snapshot, containers=tuple(replace(one, zone="") for one in snapshot.containers))
    assert "4 over sockets" in text_of(draw(Scene(wide), ScreenState()))


def test_more_namespaces_than_letters_are_drawn() -> None:
    snapshot = snapshot_of(busy_engine(HYGON_7285_2S, 40, own=0))
    many = tuple(replace(one, namespace=f"ns-{n:02}") for n, one in enumerate(snapshot.containers))
    names = tuple(one.namespace for one in many)
    for pane in PANES:
        draw(Scene(replace(snapshot, containers=many, namespaces=names)), ScreenState(pane=pane))


def test_names_and_sentences_cannot_command_the_terminal() -> None:
    assert clean("a\x1b[2Jb\n c\x07") == r"a\x1b[2Jb c\x07"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in (*(name for name, *_ in SCREENS), *OTHERS):
        (FOLDER / f"{name}.txt").write_text(screen(name))
