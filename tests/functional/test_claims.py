"""Claims of CPUs with the real daemon as a process: its sockets, its command line, and kill -9 in the middle of claims."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cri_api.control import ControlError
from cri_proxy.claims.cdi import file_name
from cri_proxy.control import DaemonAbsent, ask
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.fake_runtime import FakeRuntime
from tests.machines import HYGON_7285_2S, machine

ON = {"dra": {"enabled": True}, "control": {"view_socket": ""}}


def claim(number: int, device: str = "l3-0", cpus: int = 1) -> dict[str, Any]:
    results = [{"request": "cpus", "device": device, "cpus": cpus, "share": "s"}]
    return {"uid": f"u-{number}", "namespace": "default", "name": f"c{number}", "results": results}


def cdi(agent: Agent) -> set[str]:
    return {path.name for path in (agent.folder / "root/var/run/cdi").iterdir()}


async def asked(agent: Agent, command: str, arguments: dict[str, Any]) -> Any:
    return await asyncio.to_thread(ask, agent.control, command, arguments)


@pytest.fixture
async def runtime(tmp_path: Path) -> Any:
    runtime = FakeRuntime(tmp_path / "r.sock")
    await runtime.start()
    yield runtime
    await runtime.stop()


async def test_the_command_line_shows_claims_and_the_view_socket_only_tells(runtime: FakeRuntime) -> None:
    agent = Agent(runtime.socket, machine(HYGON_7285_2S), ON)
    view = agent.folder / "v.sock"
    agent.write_config({"control": {"view_socket": str(view)}})
    async with agent:
        assert (await agent.cli("claims"))[1] == "no claims\n"
        await asked(agent, "claim-prepare", claim(1, cpus=2))
        code, out, _ = await agent.cli("claims")
        assert code == 0 and out.splitlines()[1].startswith("default/c1  cpus     l3-0")
        [row] = (await agent.ask("claims"))["claims"]
        assert len(parse_cpus(row["cpus"])) == 2
        assert await asyncio.to_thread(ask, view, "claims") == await agent.ask("claims")
        assert (await asyncio.to_thread(ask, view, "claim-devices"))["devices"]
        for command in ("claim-prepare", "claim-unprepare"):
            with pytest.raises(ControlError, match="does not know the command"):
                await asyncio.to_thread(ask, view, command, claim(1))
        status = await agent.ask("status")
        assert status["claims"] == {"enabled": True, "reason": "", "driver": "cpu.cri-resmgr.io", "count": 1}
        _, metrics, _ = await agent.cli("metrics")
        assert "cri_resmgr_claims 1.0" in metrics and "cri_resmgr_claimed_cpus 2.0" in metrics
        assert 'cri_resmgr_claim_calls_total{call="prepare",result="done"} 1.0' in metrics


async def test_a_daemon_killed_while_claims_are_prepared_and_unprepared_begins_with_files_that_are_its_claims(
    runtime: FakeRuntime,
) -> None:
    """What was answered is there; what was not is there as a whole, or not at all."""
    async with Agent(runtime.socket, machine(HYGON_7285_2S), ON) as agent:
        for turn in range(4):
            numbers = range(10 * turn, 10 * turn + 8)
            done: list[int] = []

            async def prepare(number: int, done: list[int]) -> None:
                try:
                    await asked(agent, "claim-prepare", claim(number, f"l3-{number % 10}"))
                    done.append(number)
                    if number % 2:
                        await asked(agent, "claim-unprepare", {"uid": f"u-{number}"})
                except (ControlError, DaemonAbsent):
                    pass  # it was killed, or is away

            working = [asyncio.ensure_future(prepare(number, done)) for number in numbers]
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            await agent.kill()
            await asyncio.gather(*working)
            await agent.start()
            known = {row["uid"] for row in (await agent.ask("claims"))["claims"]}
            assert known >= {f"u-{number}" for number in done if number % 2 == 0}
            # A claim that is asked for again is there, and its answer waits for what the start does with files.
            for number in numbers:
                await asked(agent, "claim-prepare", claim(number, f"l3-{number % 10}"))
                if number % 2:
                    await asked(agent, "claim-unprepare", {"uid": f"u-{number}"})
            wanted = {f"u-{n}" for t in range(turn + 1) for n in range(10 * t, 10 * t + 8) if n % 2 == 0}
            rows = (await agent.ask("claims"))["claims"]
            assert {row["uid"] for row in rows} == wanted
            assert cdi(agent) == {file_name(uid) for uid in wanted}
            owned = [parse_cpus(row["cpus"]) for row in rows]
            assert sum(map(len, owned)) == len(frozenset().union(*owned)) == len(wanted)
        assert (await agent.ask("status"))["invariants"] == []
        document = json.loads((agent.folder / "root/var/run/cdi" / file_name("u-0")).read_text())
        assert document["devices"][0]["name"] == "u-0_cpus"
