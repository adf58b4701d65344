"""Until the first comparison has ended it is not known which CPUs are owned, and none of them is given to a container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime, Script
from tests.functional import support
from tests.functional.conftest import HANG_S, ask, counter, cpus_of, run_guaranteed, until
from tests.functional.support import run_without_us

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OWNING = {"policy": {"Active": "topology-aware"}}
POLL = {"constants": {"reconcile_poll_s": 0.1}}
SIX_CPUS = {"cpu_quota": 600_000, "cpu_period": 100_000, "cpu_shares": 6144}
GIVEN_UP = "books_waits_total{what=CreateContainer,result=given up}"


@pytest_asyncio.fixture
async def node(runtime: FakeRuntime) -> AsyncIterator[Agent]:
    """A daemon that gives Guaranteed containers of whole CPUs their own, not started yet."""
    async with support.new_agent(runtime, **OWNING, **POLL) as agent:
        yield agent


async def owner(client: CriClient, name: str, cpus: int = 4) -> str:
    """A running container with CPUs of its own."""
    pod = await run_guaranteed(client, name)
    container_id = await client.create(
        pod, name, cpu_limit=cpus * 1000, memory_limit=1 << 30, qos="guaranteed"
    )
    await client.start(container_id)
    return container_id


async def beginning(client: CriClient, name: str, cpus: int = 4) -> asyncio.Task[str]:
    """The same, while it is under way; its sandbox is there."""
    pod = await run_guaranteed(client, name)
    call = client.create(pod, name, cpu_limit=cpus * 1000, memory_limit=1 << 30, qos="guaranteed")
    return asyncio.ensure_future(call)


def held(runtime: FakeRuntime) -> Script:
    """The runtime says nothing about single containers until ``hold`` is set."""
    return runtime.script("ContainerStatus", hold=asyncio.Event(), times=1 << 20)


def let_go(script: Script) -> None:
    assert script.hold is not None
    script.hold.set()


async def in_question(agent: Agent) -> Any:
    return await until(agent, lambda status: bool(status["books"]))


async def own(agent: Agent, *names: str) -> dict[str, str]:
    """What containers own, once all of them do, and nothing waits to be told or is left open."""

    def is_calm(status: Any) -> bool:
        return not (status["books"] or status["updates_waiting"] or status["in_doubt"])

    await until(agent, is_calm)
    found = await until(
        agent, lambda found: {r["container"] for r in found if r["exclusive"]} >= set(names), "placements"
    )
    assert not (await ask(agent, "status"))["invariants"]
    return {row["container"]: row["exclusive"] for row in found if row["exclusive"]}


def assert_apart(runtime: FakeRuntime, *ids: str) -> None:
    """All run on CPUs that none of the others has."""
    sets = [cpus_of(runtime, key) for key in ids]
    assert all(sets) and sum(map(len, sets)) == len(frozenset().union(*sets)), sets


async def test_reset_policy_gives_no_cpu_of_a_container_that_it_has_not_read_yet(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client:
        first = await owner(client, "first")
        had = runtime.cpuset(first)
        script = held(runtime)
        resetting = asyncio.ensure_future(ask(node, "reset-policy"))
        await in_question(node)
        # What waits for too long is made where nothing is owned.
        second = await asyncio.wait_for(await beginning(client, "second"), HANG_S)
        assert counter(await ask(node, "status"), GIVEN_UP) == 1
        assert_apart(runtime, first, second)
        await client.start(second)
        let_go(script)
        assert (await asyncio.wait_for(resetting, HANG_S))["adopted"] >= 1
        found = await own(node, "first", "second")
    assert found["first"] == had == runtime.cpuset(first)
    assert_apart(runtime, first, second)
    assert found["second"] == runtime.cpuset(second)


async def test_a_create_that_waits_is_placed_as_soon_as_it_is_known_what_is_owned(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client:
        first = await owner(client, "first")
        had, script = runtime.cpuset(first), held(runtime)
        resetting = asyncio.ensure_future(ask(node, "reset-policy"))
        await in_question(node)
        creating = await beginning(client, "second")
        let_go(script)
        second = await asyncio.wait_for(creating, HANG_S)
        await resetting
        found = await own(node, "first", "second")
    assert found == {"first": had, "second": runtime.cpuset(second)}
    assert_apart(runtime, first, second)


async def test_a_create_that_is_under_way_keeps_its_cpus_over_reset_policy(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client, CriClient(node.socket) as other:
        slow = runtime.script("CreateContainer", hold=asyncio.Event(), act_before_error=True, times=1)
        creating = await beginning(client, "slow")
        await runtime.wait_for_call("CreateContainer")
        await asyncio.wait_for(ask(node, "reset-policy"), HANG_S)
        second = await owner(other, "second")
        let_go(slow)
        first = await asyncio.wait_for(creating, HANG_S)
        found = await own(node, "slow", "second")
    assert_apart(runtime, first, second)
    assert found == {"slow": runtime.cpuset(first), "second": runtime.cpuset(second)}


@pytest.mark.parametrize("state", ["lost", "unsaved", "first start"])
async def test_a_start_gives_no_cpu_of_a_container_that_it_knows_nothing_of(runtime, node, state) -> None:
    first = run_without_us(
        runtime, "first", cpuset="96-99", qos="guaranteed", cpu_request=4000, cpu_limit=4000
    )
    if state != "first start":
        await support.start(node)
        async with CriClient(node.socket) as client:
            saved = await owner(client, "saved")
        if state == "unsaved":  # it was made, moved and told after the last record that is on disk
            runtime.set_cpuset(saved, "100-103")
            old = run_without_us(
                runtime, "late", cpuset="0-3", qos="guaranteed", cpu_request=4000, cpu_limit=4000
            )
        await node.kill()
        if state == "lost":
            for file in node.state.glob("state.db*"):
                file.unlink()
        else:
            node.control.with_name("unsaved").write_text(BOOT_ID.read_text().strip())
    before, script = support.cpusets(runtime), held(runtime)
    await node.start()
    await in_question(node)
    async with CriClient(node.socket) as client:
        newest = await asyncio.wait_for(await beginning(client, "newest"), HANG_S)
        assert not any(cpus_of(runtime, newest) & cpus_of(runtime, key) for key in before)
        await client.start(newest)
        let_go(script)
        names = {"first start": ("first",), "lost": ("first", "saved"), "unsaved": ("first", "saved", "late")}
        found = await own(node, *names[state], "newest")
    assert {key: runtime.cpuset(key) for key in before} == before
    assert_apart(runtime, *before, newest)
    assert found["newest"] == runtime.cpuset(newest) and found["first"] == runtime.cpuset(first)
    if state == "unsaved":
        assert (found["late"], found["saved"]) == (runtime.cpuset(old), "100-103")


async def test_where_cgroups_tell_what_may_be_owned_a_create_that_gives_up_waiting_is_made_beside_it(
    runtime, node
) -> None:
    asks = {"qos": "guaranteed", "cpu_request": 4000, "cpu_limit": 4000}
    cpusets = {"alone": "96-99", "one": "0-31,64-95", "two": "0-31,64-95", "anywhere": ""}
    ids = {name: run_without_us(runtime, name, cpuset=cpus, **asks) for name, cpus in cpusets.items()}
    cpusets["created"] = "96-99"  # and not started: it is in no owner's way
    ids["created"] = run_without_us(runtime, "created", cpuset="96-99", running=False, **asks)
    for number, (name, cpus) in enumerate(cpusets.items()):
        cgroup = node.folder / "cgroup/kubepods" / f"pod{number}" / f"cri-containerd-{ids[name]}.scope"
        cgroup.mkdir(parents=True)
        (cgroup / "cpuset.cpus").write_text(f"{cpus}\n")
    script = held(runtime)
    await node.start()
    await in_question(node)
    async with CriClient(node.socket) as client:
        newest = await asyncio.wait_for(await beginning(client, "newest"), HANG_S)
        # It shares what no container may own, and owns nothing yet.
        assert cpus_of(runtime, newest) == frozenset(range(128)) - parse_cpus("96-99")
        await client.start(newest)
        let_go(script)
        found = await own(node, "alone", "newest")
    assert (found["alone"], found["newest"]) == ("96-99", runtime.cpuset(newest))


async def test_mode_off_is_a_time_of_which_nothing_is_known(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client:
        first = await owner(client, "first")
        await ask(node, "mode", mode="off")
        taken = runtime.cpuset(first)
        await client.remove(first)
        late = run_without_us(
            runtime, "late", cpuset=taken, qos="guaranteed", cpu_request=4000, cpu_limit=4000
        )
        assert not (await ask(node, "status"))["books"]
        script = held(runtime)
        await ask(node, "mode", mode="enforce")
        await in_question(node)
        creating = await beginning(client, "second")
        let_go(script)
        second = await asyncio.wait_for(creating, HANG_S)
        found = await own(node, "late", "second")
    assert_apart(runtime, late, second)
    assert found == {"late": taken, "second": runtime.cpuset(second)}


async def test_what_lasts_is_a_reason_and_commands_say_what_they_wait_for(runtime, node) -> None:
    run_without_us(runtime, "old", cpuset="96-99", qos="guaranteed", cpu_request=4000, cpu_limit=4000)
    script = held(runtime)
    await node.start()
    status = await until(node, lambda status: "books" in status["degraded"])
    assert "it has just started" in status["degraded"]["books"] and "crictl ps" in status["degraded"]["books"]
    let_go(script)
    status = await until(node, lambda status: not status["degraded"])
    assert not status["books"]


async def test_a_resize_in_that_time_is_made_by_the_comparison(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client:
        first = await owner(client, "first")
    script = held(runtime)
    await node.kill()
    await node.start()
    await in_question(node)
    async with CriClient(node.socket) as client:
        await asyncio.wait_for(client.update(first, **SIX_CPUS), HANG_S)
        second = await asyncio.wait_for(await beginning(client, "second"), HANG_S)
        await client.start(second)
        let_go(script)
        await until(
            node, lambda found: {row["cpu_limit_milli"] for row in found} == {4000, 6000}, "placements"
        )
        found = await own(node, "first", "second")
    assert_apart(runtime, first, second)
    assert len(cpus_of(runtime, first)) == 6
    assert found == {"first": runtime.cpuset(first), "second": runtime.cpuset(second)}


async def test_what_is_resized_in_that_time_is_an_owner_all_the_same(runtime, node) -> None:
    await support.start(node)
    async with CriClient(node.socket) as client:
        first = await owner(client, "first")
        had, script = runtime.cpuset(first), held(runtime)
        resetting = asyncio.ensure_future(ask(node, "reset-policy"))
        await in_question(node)
        await asyncio.wait_for(client.update(first, **SIX_CPUS), HANG_S)
        let_go(script)
        await resetting
        second = await owner(client, "second")
        found = await own(node, "first", "second")
    assert found == {"first": had, "second": runtime.cpuset(second)}
    assert_apart(runtime, first, second)
