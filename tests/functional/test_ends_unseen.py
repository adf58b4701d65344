"""Every long-lived task and thread of a real daemon dies of an exception, and is back, named and counted.

What a daemon keeps is read from its source, so that a new one is struck here as well.
"""

from __future__ import annotations

import ast
import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.agent import ROOT, Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import HANG_S, ask, until
from tests.functional.nri.support import hosting
from tests.functional.support import new_agent, start
from tests.functional.test_traces import SAMPLED, Collector, collector, create

__all__ = ["collector"]

#: What this daemon has none of, and where it is struck.
ELSEWHERE = {
    "search": "only without a runtime at the start: tests/functional/test_runtime_comes_and_goes.py has it",
    "stranded clients": "only while the runtime is away: tests/relay",
    "NRI launcher": "only where plugins are units: tests/nri/io/host/test_launch.py",
    "NRI plugin {}": "its own loop launches it again: tests/nri/io/host/test_launched.py",
    "NRI socket": "only while its path is taken: tests/nri/io/host/test_connections.py",
    "pressure thread": "only where the kernel tells pressure: tests/affinity/demand/io/test_triggers.py",
}
#: Names that the source makes from others.
MADE = {
    "{} thread": ("state thread", "history thread", "isolation thread"),
    "front.name": ("proxy",),
    "{} door": ("control.socket door", "control.view_socket door", "metrics door"),
    "{} door {}": (),  # of an address with several: as the first
}


def kept_names() -> Iterator[str]:
    """The names in all calls of ``keep`` and ``keep_thread`` of the daemon's packages."""
    for path in sorted((ROOT / "cri_proxy").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("keep", "keep_thread"):
                name = name_of(node.args[0])
                yield from MADE.get(name, (name,) if name else ())


def name_of(argument: ast.expr) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in argument.values
        )
    text = ast.unparse(argument)
    return text if text in MADE else ""


async def strike(path: Path, name: str) -> None:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(name.encode() + b"\n")
    assert await reader.readline() == b"it lives again\n"
    writer.close()


def background(status: Any) -> dict[str, Any]:
    return {each["name"]: each for each in status["background"]}


async def test_each_that_dies_is_back_named_and_counted(runtime: FakeRuntime, collector: Collector) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    # With a subject of isolation, so that what belongs to it is there.
    isolation = {"caches": "observe"}
    settings = {
        "tracing": {"endpoint": collector.endpoint},
        "nri": hosting(),
        "metrics": {"listen": listen},
        "isolation": isolation,
    }
    async with new_agent(runtime, **settings) as agent:
        strikes = agent.folder / "strikes.sock"
        await start(
            agent,
            command=(sys.executable, "-m", "tests.functional.struck_daemon"),
            environment={"CRI_RESMGR_STRIKES": str(strikes), "WATCHDOG_USEC": "60000000"},
        )
        async with CriClient(agent.socket) as client:
            await create(client, SAMPLED, "before")
            known = background(await until(agent, lambda status: "history thread" in background(status)))
            assert set(known) == set(kept_names()) - set(ELSEWHERE)
            for number, (name, each) in enumerate(known.items()):
                dying = asyncio.ensure_future(strike(strikes, name))
                while not dying.done():
                    if each["kind"] == "thread":  # which notices with its next step
                        await create(client, SAMPLED, f"pod-{number}-{len(runtime.containers)}")
                    await asyncio.wait({dying}, timeout=0.1)
                await dying
                status = await ask(agent, "status")
                assert background(status)[name]["failures"] == 1, name
                assert any(f"{name!r} has failed" in warning for warning in status["warnings"]), name
            status = await until(agent, well)
            assert set(background(status)) == set(known)
            metrics = (await ask(agent, "metrics")).splitlines()
            counted = [line for line in metrics if line.startswith("cri_resmgr_background_failures_total{")]
            assert len(counted) == len(known)
            await works(agent, client, collector)
        assert await agent.terminate() == 0


def well(status: Any) -> bool:
    return not status["degraded"] and not any(each["problem"] for each in status["background"])


async def works(agent: Agent, client: CriClient, collector: Collector) -> None:
    """A container is placed, its decision is in the history, and its span is sent."""
    container_id = await create(client, SAMPLED, "after")
    placements = await ask(agent, "placements")
    assert container_id in {row["id"] for row in placements}
    while not (await asyncio.wait_for(collector.next(), HANG_S))["name"].endswith("CreateContainer"):
        pass
    await until(agent, lambda found: any("after" in str(row) for row in found["entries"]), "history")
