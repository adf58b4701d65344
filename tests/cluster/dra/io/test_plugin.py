"""The plugin with a gRPC client in kubelet's place, an API server, and a control socket in the daemon's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cluster.agent.io.daemon import DaemonClient
from cluster.dra.claims import CLAIMS, ClaimName
from cluster.dra.io.plugin import Plugin, socket_paths
from cluster.dra.io.preparing import MOST_AT_ONCE
from cluster.kube.io.client import Client
from cri_api import dra_health_pb2 as health_api
from cri_api import dra_v1_pb2 as api
from cri_api.checked_requests import MOST_BYTES
from cri_api.socket_paths import SocketTaken
from tests.cluster.api_server import ApiServer, Fault
from tests.cluster.dra.io.daemon import ClaimDaemon
from tests.cluster.dra.io.kubelet import PREPARE, UNPREPARE, Kubelet
from tests.cluster.dra.io.serving import Rounds, end, put, until_done
from tests.cluster.dra.io.serving import api_client as api_client  # fixtures, of these tests too
from tests.cluster.dra.io.serving import api_server as api_server
from tests.cluster.dra.io.serving import four as four
from tests.cluster.dra.io.serving import rounds as rounds
from tests.cluster.dra.objects import DRIVER, NODE, result


@pytest.fixture
async def daemon(folder: Path) -> AsyncIterator[ClaimDaemon]:
    made = ClaimDaemon(folder / "control.sock")
    await made.start()
    yield made
    await made.stop()


def make_plugin(api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds) -> Plugin:
    return Plugin(DaemonClient(daemon.socket), api_client, NODE, DRIVER, folder / "k", rounds.clock())


@pytest.fixture
async def plugin(
    api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> AsyncIterator[asyncio.Task[None]]:
    """The task in which it runs."""
    task = asyncio.ensure_future(make_plugin(api_client, daemon, folder, rounds).run())
    yield task
    await end(task)


@pytest.fixture
async def kubelet(plugin: Any, folder: Path) -> AsyncIterator[Kubelet]:
    """It has registered the plugin."""
    made = Kubelet(folder / "k")
    await made.register()
    yield made
    await made.close()


# ---------------------------------------------------------------------- registration


async def test_kubelet_finds_the_plugin_and_its_service(plugin: Any, folder: Path, capfd: Any) -> None:
    kubelet = Kubelet(folder / "k")
    info = await kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(folder / "k/plugins" / DRIVER / "dra.sock")
    assert info.supported_versions[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert [path.name for path in kubelet.found] == [f"{DRIVER}-reg.sock"]
    assert [path.stat().st_mode & 0o777 for path in socket_paths(folder / "k", DRIVER)] == [0o600, 0o600]
    await kubelet.close()
    assert 'event="registered with kubelet"' in capfd.readouterr().err


async def test_an_older_kubelet_is_served_by_its_own_version(
    four: ClaimName, plugin: Any, folder: Path
) -> None:
    kubelet = Kubelet(folder / "k", "v1beta1.DRAPlugin")
    await kubelet.register()
    assert (await kubelet.prepare(four))[four.uid].error == ""
    await kubelet.close()


async def test_what_kubelet_says_against_the_plugin_is_logged(plugin: Any, folder: Path, capfd: Any) -> None:
    kubelet = Kubelet(folder / "k", "v9.DRAPlugin")
    await kubelet.register()
    assert (
        'event="kubelet has not registered the plugin" reason="no version is known"' in capfd.readouterr().err
    )


async def test_its_end_leaves_no_socket_and_no_connection(
    four: ClaimName, kubelet: Kubelet, plugin: Any, folder: Path
) -> None:
    assert (await kubelet.prepare(four))[four.uid].error == ""
    await end(plugin)
    assert not any(path.exists() for path in socket_paths(folder / "k", DRIVER))
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.prepare(four, timeout_s=0.2)


async def test_sockets_that_a_killed_agent_has_left_are_replaced(
    four: ClaimName, api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> None:
    for path in socket_paths(folder / "k", DRIVER):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    task = asyncio.ensure_future(make_plugin(api_client, daemon, folder, rounds).run())
    kubelet = Kubelet(folder / "k")
    with contextlib.suppress(
        grpc.aio.AioRpcError
    ):  # until it is replaced, the socket that was left may be found
        await kubelet.register()
    while kubelet._channel is None:
        await kubelet.register()
    assert (await kubelet.prepare(four))[four.uid].error == ""
    await kubelet.close()
    await end(task)


async def test_a_plugin_that_runs_is_not_robbed(
    four: ClaimName, kubelet: Kubelet, api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> None:
    with pytest.raises(SocketTaken, match=r"dra.sock is served by another process"):
        await make_plugin(api_client, daemon, folder, rounds).run()
    assert (await kubelet.prepare(four))[four.uid].error == ""
    assert len(kubelet.found) == 1


async def test_a_driver_of_the_same_name_goes_first(
    api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> None:
    service, registration = socket_paths(folder / "k", DRIVER)
    other = registration.with_name(f"{DRIVER}-0b5a-reg.sock")
    other.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(other))
        server.listen()
        with pytest.raises(
            SocketTaken, match=f"registers a driver called {DRIVER} already; remove that driver"
        ):
            await make_plugin(api_client, daemon, folder, rounds).run()
    assert not service.exists() and not registration.exists()
    task = asyncio.ensure_future(make_plugin(api_client, daemon, folder, rounds).run())
    while not registration.exists():
        await asyncio.sleep(0)
    await end(task)


async def test_what_is_no_socket_is_left_alone(
    api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> None:
    service, registration = socket_paths(folder / "k", DRIVER)
    registration.parent.mkdir(parents=True)
    registration.write_text("notes")
    with pytest.raises(SocketTaken, match=r"-reg.sock exists and is not a socket; remove it$"):
        await make_plugin(api_client, daemon, folder, rounds).run()
    assert registration.read_text() == "notes" and not service.exists()


async def test_a_path_that_no_socket_can_have_is_a_sentence(
    api_client: Client, daemon: ClaimDaemon, folder: Path, rounds: Rounds
) -> None:
    with pytest.raises(SocketTaken, match=r"dra.sock cannot be served: .*too long"):
        await make_plugin(api_client, daemon, folder / ("d" * 100), rounds).run()


@pytest.mark.parametrize("number", [0, 1])
async def test_a_socket_that_is_removed_comes_back(
    four: ClaimName, kubelet: Kubelet, folder: Path, rounds: Rounds, number: int
) -> None:
    path = socket_paths(folder / "k", DRIVER)[number]
    path.unlink()
    while not path.is_socket():
        await rounds.next()
        await asyncio.sleep(0)
    await kubelet.register()
    assert (await kubelet.prepare(four))[four.uid].error == ""


# ---------------------------------------------------------------------- prepare and unprepare


async def test_a_claim_is_prepared_with_what_the_api_says(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon
) -> None:
    answer = (await kubelet.prepare(four))[four.uid]
    [device] = answer.devices
    assert answer.error == "" and device == api.Device(
        request_names=["cpus"],
        pool_name=NODE,
        device_name="l3-0",
        cdi_device_ids=[f"cri-resmgr.io/cpu={four.uid}_cpus"],
        share_id="share-cpus",
    )
    assert daemon.commands("claim-prepare")[0]["pods"] == [{"name": "web", "uid": "pod-1"}]


async def test_a_whole_device_has_no_share(four: ClaimName, kubelet: Kubelet, api_server: ApiServer) -> None:
    put(api_server, result("all", "l3-1-whole", None))
    [device] = (await kubelet.prepare(four))[four.uid].devices
    assert device.device_name == "l3-1-whole" and not device.HasField("share_id")


async def test_preparing_again_gives_the_same(four: ClaimName, kubelet: Kubelet) -> None:
    assert await kubelet.prepare(four) == await kubelet.prepare(four)


async def test_a_claim_is_given_back_without_the_api(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon, api_server: ApiServer
) -> None:
    await kubelet.prepare(four)
    api_server.remove(CLAIMS, "four", "shop")
    calls = len(api_server.calls)
    assert await kubelet.unprepare(four) == {four.uid: ""}
    assert await kubelet.unprepare(four) == {four.uid: ""}
    assert daemon.held == {} and len(api_server.calls) == calls


async def test_each_claim_of_a_call_has_its_own_answer(
    kubelet: Kubelet, daemon: ClaimDaemon, api_server: ApiServer
) -> None:
    good, full = put(api_server, name="good"), put(api_server, name="full")
    anew = put(api_server, name="anew")._replace(uid="before")
    gone = ClaimName("shop", "gone", "uid-gone")
    daemon.refusals["full"] = "l3-0 has 2 CPUs left, and 4 are wanted: shop/web owns 0-5"
    found = await kubelet.prepare(good, anew, full, gone)
    assert {uid: each.error.partition(":")[0] for uid, each in found.items()} == {
        good.uid: "",
        "before": "the claim shop/anew was deleted and made anew",
        full.uid: "l3-0 has 2 CPUs left, and 4 are wanted",
        "uid-gone": "the claim shop/gone is gone from the API server",
    }
    assert [uid for uid, each in found.items() if each.devices] == [good.uid] == list(daemon.held)


async def test_a_daemon_that_is_away_is_a_sentence_and_kubelet_asks_again(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon
) -> None:
    await daemon.stop()
    for errors in (
        {uid: each.error for uid, each in (await kubelet.prepare(four)).items()},
        await kubelet.unprepare(four),
    ):
        assert errors[four.uid].startswith(f"the daemon of {NODE} does not answer; its log says why")
    await daemon.start()
    assert (await kubelet.prepare(four))[four.uid].error == ""
    assert await kubelet.unprepare(four) == {four.uid: ""}


async def test_an_api_server_that_does_not_answer_well_is_a_sentence(
    four: ClaimName, kubelet: Kubelet, api_server: ApiServer, daemon: ClaimDaemon
) -> None:
    api_server.faults += [Fault("refuse", status=403), Fault("refuse", status=500), Fault("text")]
    said = [(await kubelet.prepare(four))[four.uid].error for _ in range(3)]
    assert said[0].startswith("the node agent may not read the claim shop/four: ")
    assert all(
        each.startswith("the claim shop/four could not be read from the API server: ") for each in said[1:]
    )
    assert daemon.held == {}
    assert (await kubelet.prepare(four))[four.uid].error == ""


async def test_a_long_sentence_is_cut_and_shown_as_it_can_be(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon
) -> None:
    daemon.refusals["four"] = "\x1b" + "x" * 5000
    said = (await kubelet.prepare(four))[four.uid].error
    assert said.startswith("\\x1bxxx") and len(said) < 1024


async def test_the_same_claim_twice_at_a_time_is_one(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon
) -> None:
    daemon.gate = asyncio.Event()
    first = asyncio.ensure_future(kubelet.prepare(four))
    await daemon.until(lambda: daemon.commands("claim-prepare"))
    second = asyncio.ensure_future(kubelet.prepare(four))
    # A call of another claim that is answered shows that the second call has been taken.
    assert (await kubelet.prepare(ClaimName("shop", "none", "uid-none")))["uid-none"].error
    daemon.gate.set()
    assert await first == await second
    assert len(daemon.commands("claim-prepare")) == 1


async def test_giving_back_waits_for_a_prepare_that_kubelet_has_given_up(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon
) -> None:
    daemon.gate = asyncio.Event()
    given_up = asyncio.ensure_future(kubelet.prepare(four))
    await daemon.until(lambda: daemon.commands("claim-prepare"))
    given_up.cancel()
    back = asyncio.ensure_future(kubelet.unprepare(four))
    assert (await kubelet.prepare(ClaimName("shop", "none", "uid-none")))["uid-none"].error
    assert not daemon.commands("claim-unprepare")
    daemon.gate.set()
    assert await back == {four.uid: ""} and daemon.held == {}
    assert [name for name, _ in daemon.asked] == ["claim-prepare", "claim-unprepare"]


async def test_many_claims_are_worked_on_a_few_at_a_time(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon, api_server: ApiServer
) -> None:
    named = [put(api_server, name=f"c{number}") for number in range(3 * MOST_AT_ONCE)]
    daemon.gate = asyncio.Event()
    answer = asyncio.ensure_future(kubelet.prepare(*named))
    await daemon.until(lambda: daemon.at_once == MOST_AT_ONCE - 1)
    daemon.gate.set()
    assert all(each.error == "" for each in (await answer).values())
    assert len(daemon.held) == len(named) and daemon.most_at_once <= MOST_AT_ONCE


async def test_while_the_api_server_does_not_answer_claims_are_given_back(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon, api_server: ApiServer
) -> None:
    assert (await kubelet.prepare(four))[four.uid].error == ""
    others = [put(api_server, name=f"c{number}") for number in range(MOST_AT_ONCE)]
    hangs = Fault("hang")
    api_server.faults = [hangs]
    waiting = asyncio.ensure_future(kubelet.prepare(*others))
    await api_server.until(lambda: not hangs.times)
    assert await kubelet.unprepare(four) == {four.uid: ""}
    assert not waiting.done()
    waiting.cancel()


# ---------------------------------------------------------------------- requests that are none

REQUESTS = {
    "bytes that are no message": (b"\x0a\xff", "INVALID_ARGUMENT", "the request's bytes are no "),
    "text that is no UTF-8": (b"\x0a\x03\x0a\x01\xff", "INVALID_ARGUMENT", "the request's bytes are no "),
    "too many bytes": (b"\x00" * (MOST_BYTES + 1), "RESOURCE_EXHAUSTED", "the request has "),
    "a claim without a name": (
        api.NodePrepareResourcesRequest(claims=[api.Claim(uid="u", namespace="n")]).SerializeToString(),
        "INVALID_ARGUMENT",
        "each claim has a namespace, a name and a UID",
    ),
    "two claims with one UID": (
        api.NodePrepareResourcesRequest(
            claims=[api.Claim(uid="u", namespace="n", name=name) for name in "ab"]
        ).SerializeToString(),
        "INVALID_ARGUMENT",
        "each claim has a namespace, a name and a UID",
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("method", [PREPARE, UNPREPARE])
async def test_requests_that_are_none_are_refused_with_a_sentence(
    kubelet: Kubelet, daemon: ClaimDaemon, method: str, name: str, capfd: Any
) -> None:
    request, status, sentence = REQUESTS[name]
    found = await kubelet.refusal(method, request)
    assert found[0] == status and found[1].startswith(sentence)
    assert daemon.asked == [] and "Traceback" not in capfd.readouterr().err


async def test_a_request_without_claims_has_an_answer_without_claims(kubelet: Kubelet) -> None:
    assert await kubelet.prepare() == {} and await kubelet.unprepare() == {}


async def test_methods_of_other_services_are_not_there(kubelet: Kubelet) -> None:
    assert (await kubelet.refusal("NodeRepairResources", b""))[0] == "UNIMPLEMENTED"


async def test_bytes_that_are_no_http_end_their_connection_only(
    four: ClaimName, kubelet: Kubelet, folder: Path
) -> None:
    for path in socket_paths(folder / "k", DRIVER):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(4096))
        with contextlib.suppress(OSError):
            await writer.drain()
            await reader.read()
        writer.close()
    assert (await kubelet.prepare(four))[four.uid].error == ""


# ---------------------------------------------------------------------- health


def health_of(message: Any) -> dict[str, int]:
    assert {each.device.pool_name for each in message.devices} <= {NODE}
    return {each.device.device_name: each.health for each in message.devices}


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_told_at_first_and_when_it_changes(
    four: ClaimName, kubelet: Kubelet, daemon: ClaimDaemon, rounds: Rounds, version: str
) -> None:
    await kubelet.prepare(four)
    stream = kubelet.health(version)
    first = await stream.read()
    assert health_of(first) == {"l3-0": health_api.HEALTHY, "l3-1": health_api.HEALTHY}
    assert {each.last_updated_time for each in first.devices} == {int(rounds.wall)}

    # Rounds without news are not told.
    for count in range(2, 5):
        await rounds_until(rounds, daemon, count)
    daemon.troubles[four.uid] = {"healthy": False, "cpus": "0-2"}
    reading = asyncio.ensure_future(stream.read())
    await until_done(rounds, reading)
    assert health_of(reading.result()) == {"l3-0": health_api.UNHEALTHY, "l3-1": health_api.HEALTHY}
    [bad] = [each for each in reading.result().devices if each.health == health_api.UNHEALTHY]
    assert bad.message.endswith("as CPUs are offline; its CPUs are 0-2 now")

    daemon.troubles.clear()
    reading = asyncio.ensure_future(stream.read())
    await until_done(rounds, reading)
    assert set(health_of(reading.result()).values()) == {health_api.HEALTHY}
    stream.cancel()


async def test_what_does_not_change_is_told_again_before_kubelet_forgets_it(
    kubelet: Kubelet, rounds: Rounds
) -> None:
    stream = kubelet.health()
    first = await stream.read()
    timeout_s = min(each.health_check_timeout_seconds for each in first.devices)
    reading = asyncio.ensure_future(stream.read())
    await until_done(rounds, reading, timeout_s / 2)
    assert health_of(reading.result()) == health_of(first)
    stream.cancel()


async def test_with_the_daemon_away_nothing_is_said_of_health(
    kubelet: Kubelet, daemon: ClaimDaemon, rounds: Rounds
) -> None:
    await daemon.stop()
    stream = kubelet.health()
    reading = asyncio.ensure_future(stream.read())
    for _ in range(20):
        await rounds.next(1000)
        await asyncio.sleep(0)
    assert not reading.done()
    await daemon.start()
    await until_done(rounds, reading)
    assert health_of(reading.result())
    stream.cancel()


async def test_a_kubelet_that_connects_again_is_told_all(kubelet: Kubelet, daemon: ClaimDaemon) -> None:
    for _ in range(3):
        stream = kubelet.health()
        assert len(health_of(await stream.read())) == 2
        stream.cancel()


async def rounds_until(rounds: Rounds, daemon: ClaimDaemon, count: int) -> None:
    """Go on until the daemon was asked for its claims so often."""
    while len(daemon.commands("claims")) < count:
        await rounds.next()
        await asyncio.sleep(0)
