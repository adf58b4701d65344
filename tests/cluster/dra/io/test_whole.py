"""Kubelet's calls through the plugin to a real daemon: what it holds, the files of CDI, and what the pod's Events say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent.io.daemon import DaemonClient
from cluster.dra.claims import CLAIMS, ClaimName
from cluster.dra.io.plugin import Plugin
from cluster.kube.io.client import Client
from cri_api import dra_health_pb2 as health_api
from policies.machine.cpus import parse_cpus
from tests.agent import Agent
from tests.cluster.api_server import ApiServer
from tests.cluster.dra.io.kubelet import Kubelet
from tests.cluster.dra.io.serving import Rounds, end, put, until_done
from tests.cluster.dra.io.serving import api_client as api_client  # fixtures, of these tests too
from tests.cluster.dra.io.serving import api_server as api_server
from tests.cluster.dra.io.serving import four as four
from tests.cluster.dra.io.serving import rounds as rounds
from tests.cluster.dra.objects import DRIVER, NODE, claim, config, result
from tests.functional.conftest import ask, until
from tests.functional.conftest import start_agent as start_agent
from tests.machines import HYGON_7285_2S, machine, take_offline

ON = {"dra": {"enabled": True}, "constants": {"topology_interval_s": 0.05}}


@pytest.fixture
async def daemon(start_agent: Any) -> Agent:
    """On a two-socket Hygon, with claims on."""
    agent: Agent = await start_agent(**ON)
    return agent


@pytest.fixture
async def kubelet(daemon: Agent, api_client: Client, folder: Path, rounds: Rounds) -> AsyncIterator[Kubelet]:
    plugin = Plugin(DaemonClient(daemon.control), api_client, NODE, DRIVER, folder / "k", rounds.clock())
    task = asyncio.ensure_future(plugin.run())
    made = Kubelet(folder / "k")
    await made.register()
    yield made
    await made.close()
    await end(task)


async def held(daemon: Agent) -> dict[str, Any]:
    """The claims that the daemon has prepared, by UID."""
    return {row["uid"]: row for row in (await ask(daemon, "claims"))["claims"]}


def known_to_cdi(daemon: Agent) -> list[str]:
    """The devices that a runtime finds, by their qualified names."""
    files = [json.loads(path.read_text()) for path in (daemon.folder / "root/var/run/cdi").glob("*.json")]
    return sorted(f"{each['kind']}={device['name']}" for each in files for device in each["devices"])


async def test_a_claim_has_its_cpus_and_the_runtime_knows_the_name_that_kubelet_is_told(
    kubelet: Kubelet, daemon: Agent, four: ClaimName
) -> None:
    [device] = (await kubelet.prepare(four))[four.uid].devices
    row = (await held(daemon))[four.uid]
    assert (row["namespace"], row["name"], row["devices"], row["healthy"]) == ("shop", "four", ["l3-0"], True)
    assert len(parse_cpus(row["cpus"])) == 4
    assert list(device.cdi_device_ids) == known_to_cdi(daemon) != []

    assert await kubelet.unprepare(four) == await kubelet.unprepare(four) == {four.uid: ""}
    assert await held(daemon) == {} and known_to_cdi(daemon) == []


async def test_requests_of_one_claim_are_told_apart(
    kubelet: Kubelet, daemon: Agent, api_server: ApiServer
) -> None:
    both = put(api_server, result("a/small", cpu="2"), result("b", "l3-1-whole", None))
    devices = (await kubelet.prepare(both))[both.uid].devices
    told = {each.request_names[0]: (each.device_name, list(each.cdi_device_ids)) for each in devices}
    assert [told["a"][0], told["b"][0]] == ["l3-0", "l3-1-whole"]
    assert sorted(told["a"][1] + told["b"][1]) == known_to_cdi(daemon) and len(known_to_cdi(daemon)) == 2


async def test_a_daemon_that_was_killed_has_the_claim_still(
    kubelet: Kubelet, daemon: Agent, four: ClaimName
) -> None:
    first, row = await kubelet.prepare(four), (await held(daemon))[four.uid]
    await daemon.kill()
    assert (await kubelet.unprepare(four))[four.uid].startswith(f"the daemon of {NODE} does not answer")
    await daemon.start()
    assert await kubelet.prepare(four) == first
    assert (await held(daemon))[four.uid]["cpus"] == row["cpus"]
    assert await kubelet.unprepare(four) == {four.uid: ""} and await held(daemon) == {}


async def test_what_the_daemon_refuses_is_said_in_its_own_words(
    kubelet: Kubelet, daemon: Agent, api_server: ApiServer
) -> None:
    cases = {
        "many": [result(cpu="400")],
        "none": [result(device="l3-99")],
    }
    named = {name: put(api_server, *results, name=name) for name, results in cases.items()}
    asked = config(apiVersion="cpu.cri-resmgr.io/v1alpha1", smt="ful-core")
    misspelt = api_server.put(CLAIMS, claim(name="misspelt", configs=[asked]))
    named["misspelt"] = ClaimName("shop", "misspelt", misspelt["metadata"]["uid"])
    answers = await kubelet.prepare(*named.values())
    errors = {name: answers[each.uid].error for name, each in named.items()}
    assert "400" in errors["many"] and "l3-0" in errors["many"]
    assert errors["none"].startswith("the request cpus was allocated l3-99, and this node has no such device")
    assert "smt is 'ful-core', expected full-core, hide or any" in errors["misspelt"]
    assert await held(daemon) == {} and known_to_cdi(daemon) == []


async def test_where_claims_are_off_prepare_is_refused_and_what_is_held_is_given_back(
    kubelet: Kubelet, daemon: Agent, four: ClaimName, api_server: ApiServer
) -> None:
    await kubelet.prepare(four)
    daemon.write_config({"dra": {"enabled": False}})
    daemon.reload()
    await until(daemon, lambda found: not found["enabled"], "claim-devices")
    other = put(api_server, name="other")
    assert "dra.enabled" in (await kubelet.prepare(other))[other.uid].error
    assert await kubelet.unprepare(four) == {four.uid: ""} and await held(daemon) == {}


async def test_claims_of_forty_pods_come_and_go_at_once(
    kubelet: Kubelet, daemon: Agent, api_server: ApiServer
) -> None:
    named = [
        put(api_server, result(device=f"l3-{number % 16}", cpu="2"), name=f"c{number}")
        for number in range(40)
    ]
    for _ in range(2):
        answers = await asyncio.gather(*(kubelet.prepare(each) for each in named))
        assert [answer[each.uid].error for each, answer in zip(named, answers)] == [""] * len(named)
        rows = await held(daemon)
        owned = [cpu for row in rows.values() for cpu in parse_cpus(row["cpus"])]
        assert len(rows) == len(named) and len(owned) == len(set(owned)) == 80
        assert len(known_to_cdi(daemon)) == len(named)
        given_back = await asyncio.gather(*(kubelet.unprepare(each) for each in named))
        assert all(not error for each in given_back for error in each.values())
        assert await held(daemon) == {} and known_to_cdi(daemon) == []


async def test_cpus_that_go_offline_make_their_device_unhealthy_and_back(
    kubelet: Kubelet, daemon: Agent, api_server: ApiServer, rounds: Rounds
) -> None:
    whole = put(api_server, result("all", "l3-0-whole", None))
    assert (await kubelet.prepare(whole))[whole.uid].error == ""
    cpus = parse_cpus((await held(daemon))[whole.uid]["cpus"])
    stream = kubelet.health()
    assert health_of(await stream.read())["l3-0-whole"] == health_api.HEALTHY

    reading = asyncio.ensure_future(stream.read())
    daemon.write_topology(take_offline(machine(HYGON_7285_2S), {max(cpus)}))
    await until(daemon, lambda found: not found["claims"][0]["healthy"], "claims")
    assert health_of(await until_done(rounds, reading))["l3-0-whole"] == health_api.UNHEALTHY

    reading = asyncio.ensure_future(stream.read())
    daemon.write_topology(machine(HYGON_7285_2S))
    await until(daemon, lambda found: found["claims"][0]["healthy"], "claims")
    assert health_of(await until_done(rounds, reading))["l3-0-whole"] == health_api.HEALTHY
    stream.cancel()


def health_of(message: Any) -> dict[str, int]:
    return {each.device.device_name: each.health for each in message.devices}
