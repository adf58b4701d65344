"""Every command and every screen, asked of a daemon whose answers hold what a terminal takes as commands.

The answers are a real daemon's, with such words put behind each of their texts: names, messages, versions, CPU lists.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cri_api.control import ControlError
from cri_proxy.control import ControlServer
from cri_proxy.view.io.daemon import ViewSocket
from cri_proxy.view.top.screen import AWAY
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.functional import support
from tests.functional.conftest import ask

WORDS = "\x1b[31m\x1b]0;x\x07\x9b2J\r\nall is well\u202e"
#: What commands choose by; a daemon of ours writes nothing else there.
CHOSEN = {"stance", "state", "mode", "wanted", "operation", "level", "host", "zone"}
COMMANDS = [
    ("status",), ("mode",), ("placements",), ("explain", "default/web"), ("history",), ("affinity",),
    ("affinity", "--groups"), ("affinity", "--graphml"), ("metrics",), ("config", "show"), ("config", "cluster-policy"),
    ("overrides",), ("freeze",), ("acknowledge",), ("nri", "status"), ("release", "--all"), ("adopt", "--all"),
    ("reset-policy",), ("rebalance", "--dry-run"), ("kubelet", "status"), ("doctor",),
]  # fmt: skip


def hostile(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        return value if key in CHOSEN else value + WORDS
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    if isinstance(value, dict):
        return {name: hostile(each, name) for name, each in value.items()}
    return value


class _Log:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest_asyncio.fixture
async def other(agent: Agent, client: CriClient, folder: Path) -> AsyncIterator[Path]:
    """The control socket of a daemon that says what ``agent`` says, and more."""
    await support.run_pod_with(client, "web", cpu_limit=8000)

    async def answer(name: str, arguments: dict[str, Any]) -> Any:
        if name == "mode" and arguments:
            raise ControlError(f"no{WORDS}")
        found = await ask(agent, name, **arguments)
        # A machine is drawn by its lists of CPUs: one that is none is a sentence.
        return {**hostile(found), "zones": found["zones"]} if name == "report" else hostile(found)

    names = {words[0] if words[0] != "config" else words[1] for words in COMMANDS}
    names = {*names, "config", "topology", "report", "moves", "cluster-policy"}
    commands = {name: lambda arguments, name=name: answer(name, arguments) for name in names}
    server = ControlServer(folder / "h.sock", commands, _Log())
    await server.start()
    yield server.path
    await server.stop()


def check(out: str, is_whole: bool = False) -> None:
    """``is_whole``: the lines are the daemon's own."""
    assert all(line.isprintable() for line in out.replace("\t", "").split("\n")), repr(out)
    assert is_whole or not any(line.startswith("all is well") for line in out.split("\n")), out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
async def test_a_command_shows_them_and_obeys_none(words: tuple[str, ...], other: Path, agent: Agent) -> None:
    given = ("--config", str(agent.config_file))
    told = (
        [words[0], *given, *words[1:]]
        if words[0] == "kubelet"
        else [*words, *(given if words == ("doctor",) else ())]
    )
    code, out, error = await agent.cli("--control-socket", str(other), *told)
    assert "Traceback" not in error
    assert (code in (0, 1)) and out + error
    check(out, is_whole=words == ("metrics",))
    check(error)


async def test_a_refusal_is_one_line(other: Path, agent: Agent) -> None:
    code, out, error = await agent.cli("--control-socket", str(other), "mode", "off")
    assert (code, out) == (1, "")
    assert error.startswith("cri-resmgr: no\\x1b[31m")
    check(error)


async def test_json_has_them_as_they_are(other: Path, agent: Agent) -> None:
    code, out, _ = await agent.cli("--control-socket", str(other), "placements", "--json")
    assert code == 0
    assert json.loads(out)[0]["pod"] == f"web{WORDS}"
    check(out)


async def test_screen_and_page_are_drawn_from_none(other: Path) -> None:
    snapshot = await ViewSocket(other, AWAY).look(with_moves=True)
    [container] = snapshot.containers
    assert container.pod.startswith("web\\x1b[31m")
    await asyncio.sleep(0)
    said = [snapshot.version, *snapshot.warnings, container.path, container.cpus, container.mems]
    assert all(text.isprintable() for text in said)
