"""Kill -9 at any instant loses nothing and moves nothing; a state file that is no use is set aside and rebuilt."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, cpus_of, rows, until
from tests.functional.support import (
    BusyKubelet,
    cpusets,
    eventually,
    live_cpusets,
    new_agent,
    placed,
    restart,
    run_pod_with,
    run_without_us,
    start,
    updates,
)
from tests.machines import HYGON_7285_2S, machine, take_offline

OPERATIONS = 200
#: Calls that a kill may find under way, and whether the runtime has done it by then.
HELD = [
    (method, done)
    for method in (
        "CreateContainer",
        "StartContainer",
        "UpdateContainerResources",
        "RemoveContainer",
        "RunPodSandbox",
    )
    for done in (False, True)
]


# ---------------------------------------------------------------------- a long run


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_daemon_that_is_killed_again_and_again_loses_nothing_and_moves_nothing(runtime, seed) -> None:
    choose = random.Random(seed)
    kubelet = BusyKubelet(runtime, seed)
    kills = sorted(choose.sample(range(15, OPERATIONS), 7))
    async with new_agent(runtime) as agent:
        await start(agent)
        done = 0
        for stop_at in [*kills, OPERATIONS]:
            async with CriClient(agent.socket) as client:
                while done < stop_at:
                    await kubelet.operation(client)
                    done += 1
                await _check_all_is_known(agent, runtime)
                if stop_at == OPERATIONS:
                    break
                before = await placed(agent)
                if choose.random() < 0.3:
                    await agent.kill()
                    untouched = set(before)
                else:
                    under_way = await _kill_in_the_middle(agent, runtime, client, kubelet, choose)
                    untouched = set(before) - under_way
            at_the_runtime, sent = cpusets(runtime), updates(runtime)
            await start(agent)
            assert cpusets(runtime) == at_the_runtime, f"restart {stop_at} changed a cpuset"
            assert updates(runtime) == sent
            after = await _check_all_is_known(agent, runtime)
            for key in untouched & set(after):
                # A round later, as without a restart, one that was squeezed may go back.
                goes_back = after[key]["why"].startswith("squeezed no more")
                is_there = after[key]["cpus"] == before[key]["cpus"]
                assert is_there or goes_back, f"restart {stop_at} forgot a place"


async def _kill_in_the_middle(
    agent: Agent, runtime: FakeRuntime, client: CriClient, kubelet: BusyKubelet, choose: random.Random
) -> set[str]:
    """Kill the daemon while requests are under way; the containers they were about."""
    method, done = choose.choice(HELD)
    hold = asyncio.Event()
    script = runtime.script(method, hold=hold, act_before_error=done)
    seen = len(runtime.calls)
    tasks = [asyncio.ensure_future(operation) for operation in kubelet.several(client, 4)]
    settled = asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: script.used > 0 or all(task.done() for task in tasks), "nothing happens")
    await agent.kill()
    for result in await settled:
        assert (
            result is None
            or not isinstance(result, BaseException)
            or isinstance(result, grpc.aio.AioRpcError)
        )
    hold.set()
    await eventually(lambda: all(call.finished for call in runtime.calls), "calls of the dead go on")
    runtime.scripts.remove(script)
    # Of a request that was held only the headers have come.
    messages = [call.message for call in runtime.calls[seen:] if call.request]
    about = {getattr(message, "container_id", "") for message in messages}
    pods = {getattr(message, "pod_sandbox_id", "") for message in messages}
    return about | {key for key, record in runtime.containers.items() if record.sandbox_id in pods}


async def _check_all_is_known(agent: Agent, runtime: FakeRuntime) -> dict[str, Any]:
    """No container is lost, none is invented, all runs where the daemon says, invariants hold."""
    status = await ask(agent, "status")
    assert status["invariants"] == []
    assert status["degraded"] == {}
    known = await placed(agent)
    live = live_cpusets(runtime)
    assert set(live) <= set(known) <= set(runtime.containers)
    for key, cpus in live.items():
        assert known[key]["cpus"] == cpus, known[key]
    return known


async def test_what_was_under_way_at_a_kill_is_found_again(runtime, agent) -> None:
    hold = asyncio.Event()
    script = runtime.script("CreateContainer", hold=hold, act_before_error=True)
    async with CriClient(agent.socket) as client:
        pod = await client.run_pod("web")
        create = asyncio.ensure_future(client.create(pod, "web", cpu_limit=8000))
        await runtime.wait_until(lambda: script.used == 1)
        await agent.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await create
    [container_id] = runtime.containers
    await start(agent)
    row = (await placed(agent))[container_id]
    assert (row["stance"], row["cpus"]) == ("placed", runtime.cpuset(container_id))


async def test_a_resize_that_a_kill_kept_from_the_runtime_moves_nothing(runtime, agent) -> None:
    script = runtime.script("UpdateContainerResources", hold=asyncio.Event(), times=1)
    async with CriClient(agent.socket) as client:
        _, container_id = await run_pod_with(client, "web", cpu_limit=4000)
        before = runtime.cpuset(container_id)
        resize = asyncio.ensure_future(client.update(container_id, cpu_quota=1_600_000, cpu_period=100_000))
        await runtime.wait_until(lambda: script.used == 1)
        await agent.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await resize
    await start(agent)
    assert (await placed(agent))[container_id]["cpus"] == before
    assert runtime.cpuset(container_id) == before


async def test_the_place_of_a_container_that_ended_is_held_through_a_kill(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "first", cpu_limit=8000)
        pod, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        place = runtime.cpuset(container_id)
        await client.stop(container_id)
    status = await restart(agent)
    assert status["held"] == 1
    async with CriClient(agent.socket) as client:
        again = await client.create(pod, "web", attempt=1, cpu_limit=8000)
    assert runtime.cpuset(again) == place


# ---------------------------------------------------------------------- a node that was there before


async def test_the_first_start_on_a_busy_node_adopts_all_and_moves_nothing(runtime) -> None:
    anywhere = run_without_us(runtime, "anywhere", cpu_limit=4000)
    fenced = run_without_us(runtime, "fenced", cpuset="8-15", cpu_limit=4000)
    alone = run_without_us(
        runtime, "alone", qos="guaranteed", cpuset="32-33", cpu_limit=2000, memory_limit=1 << 30
    )
    waiting = run_without_us(runtime, "waiting", running=False)
    at_the_runtime = cpusets(runtime)
    async with new_agent(runtime) as agent:
        status = await start(agent)
        known = await placed(agent)
        assert status["containers"] == {"adopted": 4}
        assert known[anywhere]["cpus"] == "0-127"
        assert (known[fenced]["cpus"], known[alone]["cpus"]) == ("8-15", "32-33")
        assert (known[fenced]["state"], known[waiting]["state"]) == ("running", "created")
        async with CriClient(agent.socket) as client:
            _, new = await run_pod_with(client, "new", cpu_limit=8000)
            assert (await placed(agent))[new]["stance"] == "placed"
    assert (updates(runtime), cpusets(runtime)) == (0, {**at_the_runtime, new: runtime.cpuset(new)})


# ---------------------------------------------------------------------- a state file that is no use


def _overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _change(path: Path, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute(statement, values).rowcount != 0
        db.commit()


def _replace_by_another_database(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE pods (name TEXT)")
        db.commit()


DAMAGES = {
    "empty": lambda path: _overwrite(path, b""),
    "no database": lambda path: _overwrite(path, b"cache: {}\n" * 1000),
    "truncated": lambda path: _overwrite(path, path.read_bytes()[: path.stat().st_size // 2]),
    "corrupt": lambda path: _overwrite(path, path.read_bytes()[:4096] + b"\xff" * 8192),
    "another program's": _replace_by_another_database,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_state_file_that_is_no_use_is_kept_aside_and_rebuilt(runtime, agent, damage) -> None:
    async with CriClient(agent.socket) as client:
        for name in ("a", "b", "c"):
            await run_pod_with(client, name, cpu_limit=8000)
    assert await agent.terminate() == 0
    at_the_runtime = cpusets(runtime)
    state = agent.state / "state.db"
    damage(state)
    damaged = state.read_bytes()

    status = await start(agent)
    [(topic, reason)] = status["degraded"].items()
    assert (topic, status["containers"]) == ("lost state", {"adopted": 3})
    assert "set aside as state.db.aside-1" in reason and "cri-resmgr acknowledge" in reason
    assert (agent.state / "state.db.aside-1").read_bytes() == damaged
    await agent.logged("set aside as state.db.aside-1")
    async with CriClient(agent.socket) as client:
        _, new = await run_pod_with(client, "d", cpu_limit=8000)
    status = await restart(agent)
    assert status["containers"] == {"adopted": 3, "placed": 1}
    # A reason until it is acknowledged, and none from then on.
    assert status["degraded"] == {"lost state": reason}
    assert reason.startswith((await ask(agent, "acknowledge"))["acknowledged"])
    assert (await ask(agent, "status"))["degraded"] == {}
    assert (await ask(agent, "acknowledge")) == {"acknowledged": ""}
    assert (await restart(agent))["degraded"] == {}
    assert (updates(runtime), cpusets(runtime)) == (0, {**at_the_runtime, new: runtime.cpuset(new)})


@pytest.mark.parametrize("loss", ["the file", "a record"])
async def test_what_of_the_state_is_lost_is_a_reason(runtime, agent, loss) -> None:
    async with CriClient(agent.socket) as client:
        ids = [(await run_pod_with(client, name, cpu_limit=8000))[1] for name in ("a", "b", "c")]
    assert await agent.terminate() == 0
    state = agent.state / "state.db"
    if loss == "the file":
        state.unlink()
        expected, containers = f"{state} is gone; ", {"adopted": 3}
    else:
        garbled = f"UPDATE records SET value = '{{}}' WHERE kind = 'grant' AND key = '{ids[0]}'"
        _change(state, garbled)
        expected, containers = (
            f"records in {state} could not be read: grant {ids[0]} (",
            {"adopted": 1, "placed": 2},
        )
    status = await start(agent)
    assert expected in status["degraded"]["lost state"]
    assert (status["containers"], updates(runtime)) == (containers, 0)
    assert not list(agent.state.glob("*.aside-*"))


async def test_a_log_that_is_gone_is_a_reason_and_what_runs_is_right(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        for name in ("a", "b"):
            await run_pod_with(client, name, cpu_limit=8000)
    await agent.kill()
    at_the_runtime = cpusets(runtime)
    # As if the file had taken nothing in by then.
    with contextlib.closing(sqlite3.connect(agent.state / "state.db", isolation_level=None)) as db:
        mark = db.execute("SELECT * FROM meta WHERE key = 'log'").fetchone()
        db.execute("DELETE FROM records")
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", mark)
    (agent.state / "state.db-log").unlink()
    status = await start(agent)
    reason = status["degraded"]["lost state"]
    assert "state.db-log is gone" in reason and "no record, or an older one, of 2 containers" in reason
    assert status["containers"] == {"adopted": 2}
    assert (cpusets(runtime), updates(runtime)) == (at_the_runtime, 0)


async def test_what_a_release_without_daemon_finds_lost_is_told_by_the_next(agent) -> None:
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "a", cpu_limit=8000)
    await agent.kill()
    for path in agent.state.glob("state.db*"):
        path.write_bytes(b"no database" * 1000)
    code, _, _ = await agent.cli("release", "--all", "--config", str(agent.config_file))
    status = await start(agent)
    assert (code, status["containers"]) == (0, {"released": 1})
    assert "set aside as state.db.aside-1" in status["degraded"]["lost state"]


async def test_a_state_file_of_a_later_version_keeps_what_is_placed(agent) -> None:
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "a", cpu_limit=8000)
    assert await agent.terminate() == 0
    _change(agent.state / "state.db", "UPDATE meta SET value = '99' WHERE key = 'format'")
    status = await start(agent)
    assert (status["degraded"], status["containers"]) == ({}, {"placed": 1})
    await agent.logged("is of format 99")


async def test_a_state_that_was_set_aside_by_command_is_not_lost(agent) -> None:
    assert await agent.terminate() == 0
    code, _, _ = await agent.cli("reset-policy", "--config", str(agent.config_file))
    assert code == 0
    assert (await start(agent))["degraded"] == {}


async def test_a_state_file_that_is_deleted_under_the_daemon_is_written_anew(agent) -> None:
    async with CriClient(agent.socket) as client:
        await run_pod_with(client, "a", cpu_limit=8000)
        for path in agent.state.glob("state.db*"):
            path.unlink()
        await run_pod_with(client, "b", cpu_limit=8000)
    status = await restart(agent)
    assert (status["containers"], status["degraded"]) == ({"placed": 2}, {})


# ---------------------------------------------------------------------- a disk that is no use


#: After a failure the next write is tried a second later, by a request or by the next look at the runtime.
OFTEN = {"reconcile_poll_s": 0.1}


class Disk:
    """A small file system for the state, full when ``fill`` was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 512):
                pass

    def empty(self) -> None:
        (self.folder / "filler").unlink()

    def remount(self, how: str) -> None:
        _run("mount", "-o", f"remount,{how}", str(self.folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder))
    try:
        yield Disk(folder)
    finally:
        _run("umount", "-l", str(folder))


async def test_a_disk_that_is_full_costs_durability_until_there_is_space_again(runtime) -> None:
    async with new_agent(runtime, constants=OFTEN) as agent:
        with small_disk(agent.state) as disk:
            await start(agent)
            disk.fill()
            async with CriClient(agent.socket) as client:
                for name in ("a", "b", "c"):
                    await run_pod_with(client, name, cpu_limit=8000)
                status = await until(agent, lambda status: "state" in status["degraded"])
                assert "full" in status["degraded"]["state"]
                assert status["containers"] == {"placed": 3}
                disk.empty()
                await run_pod_with(client, "d", cpu_limit=8000)
            await until(agent, lambda status: not status["degraded"])
            status = await restart(agent)
            assert (status["containers"], updates(runtime)) == ({"placed": 4}, 0)
            await agent.kill()


async def test_a_daemon_that_starts_on_a_full_disk_keeps_all_once_there_is_space(runtime) -> None:
    async with new_agent(runtime, constants=OFTEN) as agent:
        with small_disk(agent.state) as disk:
            disk.fill()
            status = await start(agent)
            assert "restart would lose it" in status["degraded"]["state"]
            async with CriClient(agent.socket) as client:
                await run_pod_with(client, "a", cpu_limit=8000)
                disk.empty()
                await run_pod_with(client, "b", cpu_limit=8000)
            await until(agent, lambda status: "state" not in status["degraded"])
            status = await restart(agent)
            assert (status["containers"], status["degraded"]) == ({"placed": 2}, {})
            await agent.kill()
            assert not list(agent.state.glob("*.aside-*"))


async def test_a_directory_that_cannot_be_written_is_reported_and_used_once_it_can(runtime) -> None:
    async with new_agent(runtime, constants=OFTEN) as agent:
        with small_disk(agent.state) as disk:
            disk.remount("ro")
            status = await start(agent)
            assert "Read-only file system" in status["degraded"]["state"]
            async with CriClient(agent.socket) as client:
                await run_pod_with(client, "a", cpu_limit=8000)
                disk.remount("rw")
                await run_pod_with(client, "b", cpu_limit=8000)
            await until(agent, lambda status: not status["degraded"])
            status = await restart(agent)
            assert status["containers"] == {"placed": 2}
            await agent.kill()


# ---------------------------------------------------------------------- the machine is another


async def test_a_reboot_ends_holds_and_records(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        _, ended = await run_pod_with(client, "ended", cpu_limit=8000)
        _, running = await run_pod_with(client, "running", cpu_limit=8000)
        await client.stop(ended)
    assert await agent.terminate() == 0
    _change(agent.state / "state.db", "UPDATE meta SET value = 'another' WHERE key = 'boot_id'")
    status = await start(agent)
    assert (status["held"], status["containers"]) == (0, {"adopted": 1})
    assert set(await placed(agent)) == {running}
    assert (await ask(agent, "explain", container=running))["history"] == []
    assert updates(runtime) == 0


async def test_only_places_with_cpus_that_are_gone_are_chosen_anew(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        for name, limit in (("first", 8000), ("second", 8000), ("node", 14000)):
            await run_pod_with(client, name, cpu_limit=limit)
    before = {name: row["cpus"] for name, row in (await rows(agent)).items()}
    assert before["first"] == "0-3,64-67"
    await agent.terminate()
    data = machine(HYGON_7285_2S)
    gone = {0, 1, 2, 3, 64, 65, 66, 67}
    agent.write_topology(replace(data, cpus=tuple(cpu for cpu in data.cpus if cpu.cpu not in gone)))
    status = await start(agent)
    await eventually(lambda: updates(runtime) == 1, "the container without CPUs is moved")
    after = {name: row["cpus"] for name, row in (await rows(agent)).items()}
    assert status["invariants"] == []
    assert {name: cpus for name, cpus in after.items() if name != "first"} == {
        name: cpus for name, cpus in before.items() if name != "first"
    }
    [moved] = [call.message for call in runtime.calls_of("UpdateContainerResources")]
    assert moved.linux.cpuset_cpus == after["first"] != before["first"]


async def test_a_cpu_that_is_offline_at_a_start_is_left(runtime, agent) -> None:
    async with CriClient(agent.socket) as client:
        _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
    assert 3 in cpus_of(runtime, container_id)
    await agent.kill()
    agent.write_topology(take_offline(machine(HYGON_7285_2S), {3}))
    await start(agent)
    await eventually(lambda: 3 not in cpus_of(runtime, container_id), "the cpuset without the offline CPU")
    # It has one less than its limit there, and goes where it has all.
    await until(
        agent, lambda found: [row["cpus"] for row in found] == [runtime.cpuset(container_id)], "placements"
    )
    assert (await ask(agent, "status"))["invariants"] == []
