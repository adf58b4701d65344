"""``cri-resmgr top`` in a real terminal (tmux), of a real daemon: what it shows, keys, sizes, a daemon that is away."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests.agent import ROOT, Agent
from tests.cri_client import CriClient
from tests.functional.conftest import HANG_S
from tests.functional.support import run_pod_with
from tests.functional.test_affinity import create, flow
from tests.observer import ObserverProcess

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux (Debian package)")


class Terminal:
    """A terminal of its own server, with one program in it."""

    def __init__(
        self, folder: Path, agent: Agent, term: str, *options: str, size: tuple[int, int] = (80, 24)
    ) -> None:
        self._socket = folder / "tmux"
        words = [sys.executable, "-m", "cri_proxy", "--control-socket", str(agent.control), "top", *options]
        program = f"env PYTHONPATH={ROOT} TERM={term} LC_ALL=C.UTF-8 {shlex.join(words)}; echo ended with $?; read _"
        self._tmux(
            "-f", "/dev/null", "-u", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), program
        )

    def _tmux(self, *words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *words],
            env={**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
            capture_output=True, encoding="utf-8", check=True,
        )  # fmt: skip
        return done.stdout

    def press(self, *keys: str) -> None:
        """Keys, as tmux calls them."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, *, with_looks: bool = False) -> str:
        """What stands on it; ``with_looks``: with the sequences that colour it."""
        return self._tmux("capture-pane", "-p", *(["-e"] if with_looks else []))

    async def until(self, holds: Callable[[str], bool]) -> str:
        """The screen, as soon as it is like that."""
        deadline = asyncio.get_running_loop().time() + HANG_S
        while not holds(text := self.screen()):
            assert asyncio.get_running_loop().time() < deadline, f"the screen stays\n{text}"
            await asyncio.sleep(0.02)
        return text

    async def shows(self, *words: str) -> str:
        return await self.until(lambda text: all(word in text for word in words))

    def end(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def open_top(busy: Agent) -> Iterator[Callable[..., Terminal]]:
    """Opens the program in a terminal, which ends with the test."""
    opened: list[Terminal] = []

    def open_one(term: str = "screen-256color", *options: str, size: tuple[int, int] = (80, 24)) -> Terminal:
        opened.append(Terminal(busy.folder, busy, term, *options, size=size))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.end()


async def test_a_node_is_seen_with_its_boxes_and_containers(open_top: Callable[..., Terminal]) -> None:
    top = open_top()
    text = await top.shows("  1 container ", "l3-15", "q end")
    lines = text.splitlines()
    assert lines[0].startswith("cri-resmgr enforce hygon  load ")
    assert " a default" in lines[1]
    assert "┌ numa-0 " in text and "│ a web" in text
    assert "\x1b[36ma web" in top.screen(with_looks=True)  # the namespace's colour
    top.press("q")
    await top.shows("ended with 0")


async def test_a_terminal_without_colours_shows_the_same(open_top: Callable[..., Terminal]) -> None:
    top = open_top("vt100")
    text = await top.shows("  1 container ", "l3-15", "q end")
    assert "│ a web" in text
    looks = top.screen(with_looks=True)
    assert not any(f"\x1b[{code}m" in looks for code in (*range(30, 38), *range(40, 48)))
    top.press("2")
    await top.shows(">a default/web/web")
    top.press("q")
    await top.shows("ended with 0")


async def test_without_box_characters_all_is_ascii(open_top: Callable[..., Terminal]) -> None:
    text = await open_top("vt100", "--ascii").shows("+ numa-0", "| a web")
    assert text.isascii()


async def test_a_container_is_opened_and_closed(open_top: Callable[..., Terminal]) -> None:
    top = open_top()
    await top.shows("  1 container ")
    top.press("2")
    await top.shows(">a default/web/web")
    top.press("Enter")
    await top.shows("why: 2 CPUs wanted", "decisions:", "Enter back")
    top.press("Escape")
    await top.shows(">a default/web/web", "q end")


async def test_namespaces_are_typed_and_help_is_shown(open_top: Callable[..., Terminal]) -> None:
    top = open_top()
    await top.shows("  1 container ")
    top.press("2", "/", "x")
    await top.shows("no containers in such a namespace", "begin with: x_")
    top.press("BSpace", "d", "Enter")
    await top.shows("default/web/web", "only namespaces d*")
    top.press("?")
    await top.shows("freeze the picture")


async def test_the_terminal_may_change_its_size(open_top: Callable[..., Terminal]) -> None:
    top = open_top()
    await top.shows("  1 container ", "q end")
    top.resize(120, 50)
    text = await top.shows("asked █")
    assert max(map(len, text.splitlines())) == 120
    top.resize(60, 15)
    await top.until(lambda text: max(map(len, text.splitlines())) <= 60 and "1 machine" in text)
    top.resize(30, 5)
    await top.shows("needs 40 x 10")


async def test_a_new_container_comes_by_itself_unless_the_picture_is_frozen(
    open_top: Callable[..., Terminal], busy: Agent
) -> None:
    top = open_top()
    await top.shows("  1 container ")
    async with CriClient(busy.socket) as client:
        await run_pod_with(client, "db", cpu_limit=1000)
        await top.shows("  2 containers")
        top.press("f")
        frozen = await top.shows("FROZEN")
        await run_pod_with(client, "cache", cpu_limit=1000)
        # A key is answered, and the picture is the one of before.
        top.press("2")
        text = await top.shows(">a default/db/db")
        assert "  2 containers" in text and "cache" not in text
        assert text.splitlines()[0] == frozen.splitlines()[0]
        top.press("f")
        await top.shows("  3 containers", "cache")


async def test_a_daemon_that_is_away_is_said_until_it_is_back(
    open_top: Callable[..., Terminal], busy: Agent
) -> None:
    top = open_top()
    await top.shows("  1 container ")
    await busy.kill()
    text = await top.shows("asking again: the daemon is not running")
    assert "l3-15" in text and re.search(r"^old, of \d\d:\d\d:\d\d: asking again", text, re.MULTILINE)
    await busy.start()
    await top.until(lambda text: "not running" not in text and "  1 container " in text)


async def test_it_waits_for_a_daemon_that_was_never_there(
    open_top: Callable[..., Terminal], busy: Agent
) -> None:
    await busy.kill()
    top = open_top()
    await top.shows("the daemon is not running")
    await busy.start()
    await top.shows("  1 container ")


async def test_traffic_and_moves_are_listed_with_their_reason(
    open_top: Callable[..., Terminal], busy: Agent
) -> None:
    async with CriClient(busy.socket) as client, ObserverProcess(busy, [flow("api", "db")]):
        await create(client, "api")
        await create(client, "db")
        top = open_top(size=(120, 40))
        await top.shows("default/api/app - default/db/app", "MB/s")
        code, _, error = await busy.cli("rebalance")
        assert code == 0, error
        top.press("4")
        await top.shows("/app moved to ", "near default/", "plan: ")
        top.press("3")
        await top.shows("same L3")


async def test_traffic_of_a_killed_observer_is_said_to_be_old(
    open_top: Callable[..., Terminal], busy: Agent
) -> None:
    async with CriClient(busy.socket) as client, ObserverProcess(busy, [flow("api", "db")]) as observer:
        await create(client, "api")
        await create(client, "db")
        top = open_top(size=(120, 40))
        top.press("3")
        await top.shows("MB/s", "BETWEEN (1)")
        await observer.end(signal.SIGKILL)
        await top.shows("OLD: traffic is of ", " ago: ", "MB/s")
        top.press("2")
        await top.shows("OLD TRAFFIC")
        await observer.start()
        await top.until(lambda text: "OLD" not in text)


async def test_without_a_terminal_it_is_refused_with_a_hint(busy: Agent) -> None:
    code, out, error = await busy.cli("top")
    assert (code, out) == (1, "")
    assert error.startswith("cri-resmgr: top needs a terminal\n  for programs: cri-resmgr placements --json")
