"""A shell that asks what may follow is told the containers there are, by the daemon that runs, or nothing."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.agent import ROOT, Agent
from tests.functional.support import run_pod_with


async def offered(agent: Agent, *words: str, shell: str = "bash") -> list[str]:
    """What is offered in the place of the last word."""
    line = ["cri-resmgr", "--control-socket", str(agent.control), *words]
    environment = {
        **os.environ,
        "_CRI_RESMGR_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(line),
        "COMP_CWORD": str(len(line) - 1) if shell != "fish" else words[-1],
    }
    program = "import sys; sys.argv[0] = 'cri-resmgr'; from cri_proxy.cli.main import cli; cli()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return [line.rpartition(",")[2] for line in out.decode().split("\n") if line]


async def test_containers_are_offered_by_name_or_id(agent, client) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=2000)
    await run_pod_with(client, "db", cpu_limit=2000)
    assert await offered(agent, "release", "def") == ["default/db/db", "default/web/web"]
    assert await offered(agent, "explain", "default/d") == ["default/db", "default/db/db"]
    assert await offered(agent, "release", "default/w") == ["default/web/web"]
    assert await offered(agent, "adopt", "we") == ["web", "web/web"]
    assert await offered(agent, "explain", web[:8]) == [web]
    assert await offered(agent, "history", "default/w") == ["default/web", "default/web/web"]
    assert await offered(agent, "explain", "nobody") == []
    assert await offered(agent, "explain", "default/w", shell="fish") == ["default/web", "default/web/web"]


async def test_where_no_daemon_answers_nothing_is_offered_and_nothing_said(agent) -> None:
    await agent.kill()
    assert await offered(agent, "explain", "def") == []
    assert "placements" in await offered(agent, "pla")
