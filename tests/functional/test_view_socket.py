"""The view socket answers what is asked about a node, refuses whatever would change it, and tells it in one document."""

from __future__ import annotations

import asyncio
import grp
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cri_api.control import ControlError, read_reply, write_request
from cri_proxy.daemon.commands import Commands
from cri_proxy.daemon.commands_view import SLICE
from tests.agent import Agent
from tests.functional.conftest import ask
from tests.functional.support import new_agent, run_pod_with

QUESTIONS = {
    "status",
    "topology",
    "placements",
    "explain",
    "affinity",
    "metrics",
    "moves",
    "report",
    "history",
    "isolation",
    "claims",
    "claim-devices",
}


def view_of(agent: Agent) -> Path:
    return agent.control.parent / "view" / "view.sock"


async def look(agent: Agent, command: str, **arguments: Any) -> Any:
    """What the view socket answers."""
    reader, writer = await asyncio.open_unix_connection(str(view_of(agent)), limit=1 << 24)
    try:
        writer.write(write_request(command, arguments))
        return read_reply(await reader.readline())
    finally:
        writer.close()
        await writer.wait_closed()


async def test_every_command_that_is_no_question_is_refused(agent) -> None:
    names = set(Commands(None).table())
    assert names > QUESTIONS
    for name in sorted(names - QUESTIONS - {"doctor"}):
        with pytest.raises(ControlError, match="this daemon does not know the command"):
            await look(agent, name)
    assert (await ask(agent, "status"))["mode"] == "enforce"


async def test_the_view_socket_is_roots_alone(agent) -> None:
    assert stat.S_IMODE(view_of(agent).stat().st_mode) == 0o600


async def test_a_group_that_is_there_may_look(start_agent) -> None:
    group = grp.getgrgid(os.getgroups()[0] if os.getgroups() else os.getgid())
    agent = await start_agent(control={"view_group": group.gr_name})
    shown = view_of(agent).stat()
    assert (stat.S_IMODE(shown.st_mode), shown.st_gid) == (0o660, group.gr_gid)
    assert stat.S_IMODE(agent.control.stat().st_mode) == 0o600


async def test_both_sockets_give_the_same_answers(agent, client) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    for name in sorted(QUESTIONS - {"status", "metrics", "explain"}):
        assert await look(agent, name) == await ask(agent, name), name
    shown = await look(agent, "explain", container="web")
    assert shown["containers"][0]["pod"] == "web"


async def test_the_report_has_zones_containers_and_what_the_daemon_is(agent, client) -> None:
    _, container_id = await run_pod_with(client, "web", cpu_limit=2000)
    report = await look(agent, "report", events_since=None)
    assert (report["mode"], report["front_end"], report["policy"]) == ("enforce", "cri", "hygon")
    [row] = report["placements"]
    assert (row["container_id"], row["state"], row["zone"]) == (container_id, "managed", "l3-0")
    zones = {zone["name"]: zone for zone in report["zones"]}
    assert zones["l3-0"]["charged_milli_cpus"] == row["milli_cpus"]
    assert len(report["machine"]["numa_nodes"]) == 8
    assert report["cluster"]["state"] == "none"


async def test_moves_and_edges_may_be_asked_for_in_a_number(agent) -> None:
    assert await look(agent, "moves", most=0) == await look(agent, "moves") == {"moves": []}
    assert "groups" in await look(agent, "affinity")
    few = await look(agent, "affinity", most=10)
    assert few["edges"] == [] and "groups" not in few and "observer" in few
    for command in ("moves", "affinity"):
        for most in (-1, True, "x", 1.5):
            with pytest.raises(ControlError, match="expected a whole number of 0 or more, or null"):
                await look(agent, command, most=most)


async def test_another_life_of_the_daemon_has_another_instance(agent) -> None:
    first = (await look(agent, "report"))["instance"]
    await agent.kill()
    await agent.start()
    assert (await look(agent, "report"))["instance"] != first


async def test_events_since_must_be_a_number(agent) -> None:
    with pytest.raises(ControlError, match="events_since is 'x', expected a whole number of 0 or more"):
        await look(agent, "report", events_since="x")


async def test_a_degraded_daemon_reports_why_without_a_machine(runtime) -> None:
    async with new_agent(runtime, topology={"source": "/nowhere/at/all"}) as agent:
        await agent.start()
        report = await look(agent, "report")
        assert report["machine"] is None and report["placements"] == []
        assert "topology" in report["degraded"]


async def test_without_a_view_socket_there_is_none(start_agent) -> None:
    agent = await start_agent(control={"view_socket": ""})
    assert not view_of(agent).exists()


async def test_a_view_socket_that_cannot_be_had_is_a_warning_and_degrades_nothing(runtime) -> None:
    async with new_agent(runtime) as agent:
        view_of(agent).parent.mkdir()
        view_of(agent).write_text("in the way")
        await agent.start()
        status = await ask(agent, "status")
        assert not status["degraded"]
        assert any("control.view_socket" in sentence for sentence in status["warnings"])


async def test_containers_of_more_than_one_slice_are_all_told(agent, client) -> None:
    await asyncio.gather(*(run_pod_with(client, f"web-{n}", cpu_limit=100) for n in range(SLICE + 1)))
    report = await look(agent, "report")
    assert len(report["placements"]) == SLICE + 1


async def test_of_a_report_only_the_parts_that_are_asked_for_are_told(agent, client) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    whole = await look(agent, "report")
    for parts in (["cluster", "machine", "telepathy"], ["placements", "instance"], []):
        told = await look(agent, "report", parts=parts)
        assert told == {key: whole[key] for key in parts if key in whole}


async def test_parts_must_be_a_list_of_texts(agent) -> None:
    for parts in ("cluster", [1], {"cluster": True}):
        with pytest.raises(ControlError, match="expected a list of texts"):
            await look(agent, "report", parts=parts)
