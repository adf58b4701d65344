"""What was decided and what moved is there after restarts, and nothing that befalls it touches a container."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cri_api.control import ControlError
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.functional.conftest import ask, create_exclusive, run_guaranteed, until
from tests.functional.support import cpusets, new_agent, restart, run_pod_with, start
from tests.functional.test_view_socket import look


async def entries(agent: Agent, **arguments: Any) -> list[dict[str, Any]]:
    page = await ask(agent, "history", **arguments)
    return list(page["entries"])


async def test_what_moved_and_why_survives_a_kill(agent, client, runtime) -> None:
    _, web = await run_pod_with(client, "web", cpu_limit=8000)
    db = await run_guaranteed(client, "db")
    await create_exclusive(client, db, "db", runtime.cpuset(web).split(",")[0])
    before = await entries(agent)
    [created] = [row for row in before if row["id"] == web]
    assert (created["operation"], created["outcome"], created["cpus"] != "") == ("create", "created", True)
    [made_room] = [row for row in before if row["changes"]]
    assert made_room["operation"] == "kubelet's exclusive CPUs"
    [change] = made_room["changes"]
    assert (change["operation"], change["containers"]) == (
        "shrunk",
        [{"id": web, "container": "default/web/web"}],
    )
    await restart(agent)
    after = await entries(agent)
    assert [row for row in after if row in before] == before
    # What made room is known by the name of what it shrank, over the restart too.
    assert [row["number"] for row in await entries(agent, name="web")][-2:] == [
        made_room["number"],
        created["number"],
    ]


async def test_what_was_decided_just_before_a_kill_is_entered_by_the_next(agent, client) -> None:
    # Nothing has asked, and a second was not over: only the state has it.
    await run_pod_with(client, "web", cpu_limit=8000)
    await restart(agent)
    assert "default/web/web" in [row["container"] for row in await entries(agent)]


async def test_a_page_that_reads_on_sees_what_is_new(agent, client) -> None:
    page = await look(agent, "history", most=1)
    await run_pod_with(client, "web", cpu_limit=2000)
    page = await look(agent, "history", after=page["newest"])
    assert [row["container"] for row in page["entries"]] == ["default/web/web"]
    page = await look(agent, "history", after=page["newest"])
    assert page["entries"] == []


async def test_a_question_that_makes_no_sense_is_refused(agent) -> None:
    with pytest.raises(ControlError, match="most is 0, expected a whole number of 1 or more, or null"):
        await look(agent, "history", most=0)


async def test_bounds_follow_a_reload(start_agent) -> None:
    agent = await start_agent(history={"entries": 3})
    async with CriClient(agent.socket) as client:
        for name in ("a", "b", "c", "d"):
            await run_pod_with(client, name, cpu_limit=2000)
        assert len(await entries(agent)) == 3


async def test_a_file_that_cannot_be_written_is_a_warning_and_containers_are_placed(runtime) -> None:
    async with new_agent(runtime) as agent:
        (agent.state / "history.db").mkdir(parents=True)
        status = await start(agent)
        async with CriClient(agent.socket) as client:
            _, web = await run_pod_with(client, "web", cpu_limit=8000)
        assert cpusets(runtime)[web]
        with pytest.raises(ControlError, match="the history is not being kept: .*history.db"):
            await entries(agent)
        status = await until(agent, lambda status: any("history" in text for text in status["warnings"]))
        assert not status["degraded"]
        # What could not be written is there once it can be.
        (agent.state / "history.db").rmdir()
        await agent.terminate()
        await start(agent)
        assert "default/web/web" in [row["container"] for row in await entries(agent)]


async def test_a_degraded_daemon_tells_what_was(agent) -> None:
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "web", cpu_limit=2000)
    await agent.terminate()
    agent.write_config({"topology": {"source": "/nowhere/at/all"}})
    await agent.start()
    assert (await ask(agent, "status"))["mode"] == "off"
    assert "default/web/web" in [row["container"] for row in await entries(agent)]


async def test_the_command_line_tells_it_with_the_daemon_up_and_down(agent, client) -> None:
    for name in ("web", "db"):
        await run_pod_with(client, name, cpu_limit=2000)
    code, up, errors = await agent.cli("history", "default/web")
    assert (code, errors) == (0, "")
    assert "create default/web/web: " in up and "db" not in up
    _, all_of_it, _ = await agent.cli("history", "--json")
    rows = [json.loads(line) for line in all_of_it.splitlines()]
    assert [row["container"] for row in rows if row["operation"] == "create"] == [
        "default/web/web",
        "default/db/db",
    ]
    await agent.kill()
    code, down, errors = await agent.cli("history", "web", "--config", str(agent.config_file))
    assert (code, down) == (0, up)
    assert errors == f"the daemon is not running: reading {agent.state / 'history.db'}\n"
    code, none, _ = await agent.cli("history", "nobody", "--since", "1h", "--config", str(agent.config_file))
    assert (code, none) == (0, "no decisions or moves of nobody since then\n")


async def test_the_command_line_says_what_it_expects(agent) -> None:
    code, _, errors = await agent.cli("history", "--since", "yesterday")
    assert code == 2 and "'yesterday' is no time, expected a length of time" in errors
    code, _, errors = await agent.cli("history", "")
    assert code == 2 and "expected a container, a pod or an id" in errors


async def test_the_command_line_writes_a_trace(agent, client) -> None:
    await run_pod_with(client, "web", cpu_limit=2000)
    file = agent.folder / "node.pftrace"
    code, told, _ = await agent.cli("history", "--perfetto", str(file))
    assert code == 0 and "ui.perfetto.dev" in told
    assert b"default/web" in file.read_bytes()
    code, _, errors = await agent.cli("history", "--perfetto", str(agent.folder / "no" / "folder"))
    assert code == 1 and "cannot be written: No such file or directory\n  name a file" in errors
