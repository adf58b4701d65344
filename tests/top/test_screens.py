"""Screens, as they look: each is a text in ``screens/``. ``python -m tests.top.test_screens`` writes them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy.cli.placement_text import explain_text
from cri_proxy.engine.report import explain
from cri_proxy.top.canvas import ALARM, COLOURS, SELECTED, text_of
from cri_proxy.top.screen import Opened, Scene, draw, rows
from cri_proxy.top.snapshot import clean
from cri_proxy.top.view import CONTAINERS, MACHINE, MOVES, PANES, TRAFFIC, View, press
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
from tests.top.nodes import busy_engine, scene_of, snapshot_of

FOLDER = Path(__file__).parent / "screens"
#: Name, machine, containers, view.
SCREENS = [
    ("hygon", HYGON_7285_2S, 30, View()),
    ("hygon-500", HYGON_7285_2S, 500, View()),
    ("hygon-500-high", HYGON_7285_2S, 500, View(120, 50)),
    ("hygon-500-containers", HYGON_7285_2S, 500, View(pane=CONTAINERS, sort="traffic")),
    ("hygon-containers-below-the-machine", HYGON_7285_2S, 30, View(100, 40, CONTAINERS, sort="place")),
    ("hygon-traffic", HYGON_7285_2S, 30, View(pane=TRAFFIC)),
    ("hygon-one-namespace", HYGON_7285_2S, 30, View(namespace="shop")),
    ("epyc-full-moves", EPYC_NPS4_1S, 500, View(pane=MOVES)),
    ("epyc-wide", EPYC_NPS4_1S, 60, View(160, 40)),
    ("epyc-one-node", EPYC_NPS1_1S, 100, View()),
    ("l3-larger-than-a-node", SNC_2S, 40, View()),
    ("node-larger-than-a-socket", NODE_INTERLEAVED, 40, View()),
    ("no-caches-known", VM_NO_CACHE_INFO, 12, View()),
    ("one-cpu", ONE_CPU, 3, View()),
    ("uneven", UNEVEN_CCX, 20, View()),
    ("memoryless-narrow", MEMORYLESS_NODE, 20, View(60, 20)),
    ("kunpeng", KUNPENG_48_2S, 40, View()),
    ("more-l3s-than-boxes", BIG_1024, 500, View(top=100)),
    ("help", HYGON_7285_2S, 3, View(is_help=True)),
]


OTHERS = ("opened", "ascii")


def screen(name: str) -> str:
    if name == "opened":
        return text_of(draw(*opened()))
    if name == "ascii":
        return text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 30)), View(), ascii_only=True))
    [(machine, count, view)] = [rest for its_name, *rest in SCREENS if its_name == name]
    return text_of(draw(scene_of(busy_engine(machine, count)), view))


def opened() -> tuple[Scene, View]:
    engine = busy_engine(HYGON_7285_2S, 30)
    key = sorted(engine.grants)[4]
    document = explain(engine, key, 100.0)
    assert document is not None
    scene = replace(scene_of(engine), opened=Opened(key, explain_text(document)))
    return scene, View(opened=key)


@pytest.mark.parametrize("name", [*(name for name, *_ in SCREENS), *OTHERS])
def test_a_screen_looks_as_it_is_kept(name: str) -> None:
    assert screen(name) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_every_machine_is_drawn_inside_of_every_terminal(machine: str) -> None:
    scene = scene_of(busy_engine(machine, 40, own=0))
    for width, height in ((1, 1), (40, 10), (79, 23), (80, 24), (132, 43), (300, 90)):
        for pane in PANES:
            lines = draw(scene, View(width, height, pane))
            assert len(lines) == height
            assert max(sum(len(span.text) for span in line) for line in lines) <= width


def test_every_l3_of_a_hygon_is_on_a_screen_of_80_by_24() -> None:
    text = text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 500)), View()))
    for zone in (
        [f"l3-{n} " for n in range(16)] + [f"node-{n} " for n in range(8)] + ["socket-0 ", "socket-1 "]
    ):
        assert text.count(zone) == 1, zone


def test_a_namespace_has_one_colour_everywhere() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 30))
    for pane in (MACHINE, CONTAINERS):
        spans = [span for line in draw(scene, View(pane=pane)) for span in line]
        found = {span.look: span.text.split()[0].lower()[:1] for span in spans if span.look in COLOURS}
        assert found == dict(zip(COLOURS, "abcd"))


def test_without_colours_letters_say_the_same() -> None:
    text = text_of(draw(scene_of(busy_engine(HYGON_7285_2S, 30)), View()))
    assert " a default  b kube-system  c monitoring  d shop" in text
    assert "│ ABdd" in text  # two of them with CPUs of their own


def test_the_selected_container_is_on_the_screen_wherever_it_is() -> None:
    scene = scene_of(busy_engine(HYGON_7285_2S, 500))
    view = View(pane=CONTAINERS)
    for key in ("end", "page-up", "up", "up", "home", "page-down", "down"):
        view = press(view, key, scene.snapshot, rows(scene, view))
        [chosen] = [span for line in draw(scene, view) for span in line if span.look == SELECTED]
        assert scene.snapshot is not None
        [path] = [one.path for one in scene.snapshot.containers if one.id == view.selected]
        assert path in chosen.text
        assert chosen.text.startswith(">")


def test_a_daemon_that_is_away_is_said_and_the_last_picture_stays() -> None:
    scene = replace(
        scene_of(busy_engine(HYGON_7285_2S, 30)), trouble="asking again: the daemon is not running"
    )
    lines = draw(scene, View())
    assert [(span.text, span.look) for span in lines[1]] == [
        ("asking again: the daemon is not running", ALARM)
    ]
    assert "l3-15" in text_of(lines)
    assert "the daemon is not running" in text_of(draw(Scene(trouble=scene.trouble), View()))
    assert "asking the daemon" in text_of(draw(Scene(), View()))


def test_a_degraded_daemon_without_a_machine_says_why() -> None:
    snapshot = replace(
        snapshot_of(busy_engine(HYGON_7285_2S, 0)), places=(), degraded=("topology: nothing can be read",)
    )
    for pane in PANES:
        text = text_of(draw(Scene(snapshot), View(pane=pane)))
        assert "DEGRADED topology: nothing can be read" in text


def test_what_spans_sockets_is_counted_in_the_first_line() -> None:
    snapshot = snapshot_of(busy_engine(HYGON_7285_2S, 4, own=0))
    wide = replace(snapshot, containers=tuple(replace(one, zone="") for one in snapshot.containers))
    assert "4 over sockets" in text_of(draw(Scene(wide), View()))


def test_more_namespaces_than_letters_are_drawn() -> None:
    snapshot = snapshot_of(busy_engine(HYGON_7285_2S, 40, own=0))
    many = tuple(replace(one, namespace=f"ns-{n:02}") for n, one in enumerate(snapshot.containers))
    names = tuple(one.namespace for one in many)
    for pane in PANES:
        draw(Scene(replace(snapshot, containers=many, namespaces=names)), View(pane=pane))


def test_names_and_sentences_cannot_command_the_terminal() -> None:
    assert clean("a\x1b[2Jb\n c\x07") == "a?[2Jb c?"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in (*(name for name, *_ in SCREENS), *OTHERS):
        (FOLDER / f"{name}.txt").write_text(screen(name))
