"""The agent's part for claims between a daemon, kubelet's folder and an API server: what begins, ends and is put right."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from cluster.agent.io.daemon import DaemonClient
from cluster.dra.claims import CLAIMS, ClaimName
from cluster.dra.io.driver import Driver
from cluster.dra.io.plugin import socket_paths
from cluster.dra.io.publisher import NODES
from cluster.dra.recovery import ASK_S, STATE_FILE, YOUNG_S
from cluster.dra.slices import SLICES
from cluster.kube.io.access import Access
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.event_writer import EVENTS
from cri_api.supervisor import Supervisor
from tests.agent import ROOT
from tests.cluster.api_server import ApiServer, Fault
from tests.cluster.dra.devices import devices
from tests.cluster.dra.io.daemon import ClaimDaemon
from tests.cluster.dra.io.kubelet import Kubelet
from tests.cluster.dra.kubelet_state import kubelet_state
from tests.cluster.dra.objects import DRIVER, NODE, UID, claim

FOUR = ClaimName("shop", "four", UID)


class Time:
    """Waiting takes a turn of the loop; a test lets hours pass."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.clock = Clock(monotonic=lambda: self.now_s, sleep=self._sleep, random01=lambda: 0.0)

    async def _sleep(self, seconds: float) -> None:
        self.now_s += min(seconds, 1.0)
        await asyncio.sleep(0.001)


class DriverNode:
    """A node with kubelet's folder, a daemon that knows of claims, and the agent's part for them."""

    def __init__(self, api: ApiServer, client: Client, folder: Path) -> None:
        self.api, self._client = api, client
        self.kubelet_dir = folder / "kubelet"
        for name in ("plugins", "plugins_registry"):
            (self.kubelet_dir / name).mkdir(parents=True)
        self.daemon = ClaimDaemon(folder / "control.sock")
        self.daemon.document = devices()
        self.time = Time()
        self._supervisor = Supervisor()
        self._task: Optional[asyncio.Future[None]] = None
        api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    def start(self) -> None:
        daemon = DaemonClient(self.daemon.socket)
        clock, supervisor = self.time.clock, self._supervisor
        driver = Driver(daemon, self._client, NODE, self.kubelet_dir, clock, supervisor=supervisor)
        self._task = asyncio.ensure_future(driver.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._supervisor.end()

    @property
    def sockets(self) -> list[Path]:
        return [path for path in socket_paths(self.kubelet_dir, DRIVER) if path.exists()]

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.api.objects(SLICES)

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Looked at with each command that the daemon gets."""
        await self.daemon.until(is_so)

    async def rounds(self, count: int = 3) -> None:
        """So many looks at the daemon."""
        before = len(self.daemon.commands("claim-devices"))
        await self.until(lambda: len(self.daemon.commands("claim-devices")) >= before + count)

    def kubelet_has(self, *claims: ClaimName) -> None:
        text = kubelet_state(*((each, DRIVER) for each in claims))
        new = self.kubelet_dir / "new"
        new.write_text(text)
        new.replace(self.kubelet_dir / STATE_FILE)

    def is_held(self) -> bool:
        return UID in self.daemon.held


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def node(api: ApiServer, folder: Path) -> AsyncIterator[DriverNode]:
    client = Client(Access.kubeconfig(api.kubeconfig(folder / "kubeconfig")), user_agent="test")
    made = DriverNode(api, client, folder)
    await made.daemon.start()
    yield made
    await made.stop()
    await client.close()
    await made.daemon.stop()


# ---------------------------------------------------------------------- on and off


async def test_where_claims_are_on_the_plugin_is_served_and_slices_are_there(node: DriverNode) -> None:
    node.start()
    await node.until(lambda: len(node.slices) == 2)
    assert len(node.sockets) == 2


async def test_where_claims_are_off_there_is_nothing_and_little_is_asked(node: DriverNode) -> None:
    node.daemon.document = {"enabled": False, "reason": "dra.enabled is false", "driver": DRIVER}
    node.start()
    await node.rounds()
    assert (node.slices, node.sockets, node.daemon.commands("claims")) == ([], [], [])
    assert node.api.calls == []


async def test_switched_off_while_it_runs_everything_goes(node: DriverNode) -> None:
    node.start()
    await node.until(lambda: len(node.slices) == 2)
    node.daemon.document = {**devices(), "enabled": False}
    await node.until(lambda: not node.slices and not node.sockets)
    await node.rounds()
    assert not (node.kubelet_dir / "plugins" / DRIVER).exists()
    node.daemon.document = devices()
    await node.until(lambda: len(node.slices) == 2 and len(node.sockets) == 2)


async def test_switched_off_the_plugin_stays_until_the_last_claim_is_given_back(node: DriverNode) -> None:
    node.start()
    node.daemon.held[UID] = [{"device": "l3-0"}]
    node.kubelet_has(FOUR)
    await node.until(lambda: len(node.slices) == 2)
    node.daemon.document = {**devices(), "enabled": False}
    await node.until(lambda: not node.slices)
    await node.rounds()
    assert len(node.sockets) == 2
    # The daemon has ended it, and kubelet has not been told so yet: without the plugin it never would be.
    node.daemon.held.clear()
    await node.rounds()
    assert len(node.sockets) == 2
    node.kubelet_has()
    await node.until(lambda: not node.sockets)


async def test_switched_off_while_the_agent_was_away_everything_goes(node: DriverNode) -> None:
    node.start()
    await node.until(lambda: len(node.slices) == 2)
    await node.stop()
    assert (len(node.slices), node.sockets) == (2, [])  # an agent that is updated keeps its slices
    node.daemon.document = {**devices(), "enabled": False}
    node.start()
    await node.until(lambda: not node.slices)


async def test_another_name_of_the_driver_is_published_after_the_old_one_is_gone(node: DriverNode) -> None:
    node.start()
    await node.until(lambda: len(node.slices) == 2)
    node.daemon.document = devices(driver="dra.cpu")
    await node.until(lambda: {each["spec"]["driver"] for each in node.slices} == {"dra.cpu"})
    assert node.sockets == []


async def test_another_driver_of_the_name_keeps_its_socket_and_its_slices(node: DriverNode) -> None:
    theirs = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 7}}
    node.api.put(SLICES, {"metadata": {"name": "theirs"}, "spec": theirs})
    socket, _ = socket_paths(node.kubelet_dir, DRIVER)
    socket.parent.mkdir()
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), str(socket))
    node.start()
    await node.rounds(10)
    assert [each["metadata"]["name"] for each in node.slices] == ["theirs"]
    server.close()
    await server.wait_closed()
    socket.unlink(missing_ok=True)
    await node.until(lambda: len(node.slices) == 2 and len(node.sockets) == 2)


async def test_while_the_daemon_is_away_slices_and_sockets_stay(node: DriverNode) -> None:
    node.start()
    await node.until(lambda: len(node.slices) == 2)
    await node.daemon.stop()
    began_s = node.time.now_s
    while node.time.now_s < began_s + 60:
        await asyncio.sleep(0.001)
    assert (len(node.slices), len(node.sockets)) == (2, 2)
    await node.daemon.start()
    node.daemon.document = devices(4)
    await node.until(lambda: any(len(each["spec"].get("devices", ())) == 9 for each in node.slices))


async def test_a_daemon_that_knows_no_claims_is_asked_on(node: DriverNode) -> None:
    node.daemon.refusals["claim-devices"] = "there is no such command"
    node.start()
    await node.rounds()
    node.daemon.refusals.clear()
    await node.until(lambda: len(node.slices) == 2)


# ---------------------------------------------------------------------- recovery


async def test_a_claim_that_neither_the_api_nor_kubelet_has_ends(node: DriverNode) -> None:
    node.daemon.held[UID] = [{"device": "l3-0"}]
    node.kubelet_has()
    began_s = node.time.now_s
    node.start()
    await node.until(lambda: node.daemon.commands("claim-unprepare") == [{"uid": UID}])
    assert node.time.now_s - began_s >= YOUNG_S


async def test_a_claim_that_was_made_anew_under_its_name_is_another(node: DriverNode) -> None:
    node.daemon.held[UID] = [{"device": "l3-0"}]
    node.api.put(CLAIMS, claim())  # the server gives it a UID of its own
    node.start()
    await node.until(lambda: node.daemon.commands("claim-unprepare") == [{"uid": UID}])


async def test_while_the_api_cannot_be_read_every_claim_stays(node: DriverNode) -> None:
    node.daemon.held[UID] = [{"device": "l3-0"}]
    faults = [Fault("refuse", times=1000, path="resourceclaims", status=status) for status in (403, 500)]
    node.start()
    for fault in faults:
        node.api.faults = [fault]
        left = fault.times
        began_s = node.time.now_s
        await node.until(lambda fault=fault, left=left: fault.times < left)
        await node.until(lambda began_s=began_s: node.time.now_s > began_s + 2 * ASK_S)
        assert node.is_held()
    node.api.faults = []
    node.api.missing.add("resourceclaims")
    began_s = node.time.now_s
    await node.until(lambda: node.time.now_s > began_s + 2 * ASK_S)
    assert node.is_held()
    node.api.missing.clear()
    await node.until(lambda: not node.is_held())


async def test_with_kubelets_own_credentials_a_claim_of_none_of_its_pods_is_gone(node: DriverNode) -> None:
    node.daemon.held[UID] = [{"device": "l3-0"}]
    sentence = f"no relationship found between node '{NODE}' and this object"
    node.api.refuse = lambda call: sentence if "resourceclaims" in call.path else ""
    node.start()
    began_s = node.time.now_s
    await node.until(lambda: node.time.now_s > began_s + 2 * ASK_S)
    assert node.is_held()  # kubelet's state is not known
    node.kubelet_has()
    await node.until(lambda: not node.is_held())


async def test_a_claim_that_kubelet_has_and_the_daemon_lost_is_prepared_again(node: DriverNode) -> None:
    stored = node.api.put(CLAIMS, claim())
    node.kubelet_has(ClaimName("shop", "four", stored["metadata"]["uid"]))
    node.start()
    await node.until(lambda: node.daemon.commands("claim-prepare"))
    [asked] = node.daemon.commands("claim-prepare")
    assert (asked["uid"], asked["name"]) == (stored["metadata"]["uid"], "four")
    assert asked["results"][0]["cpus"] == 4
    await node.rounds()
    assert len(node.daemon.commands("claim-prepare")) == 1


async def test_what_cannot_be_prepared_again_is_an_event_on_the_pod(node: DriverNode) -> None:
    stored = node.api.put(CLAIMS, claim())
    node.kubelet_has(ClaimName("shop", "four", stored["metadata"]["uid"]))
    node.daemon.refusals["four"] = "l3-0 has 2 CPUs left, 4 are wanted"
    node.start()
    await node.api.until(lambda: node.api.objects(EVENTS))
    [event] = node.api.objects(EVENTS)
    assert (event["reason"], event["involvedObject"]["name"]) == ("ClaimNotRestored", "web")
    assert "l3-0 has 2 CPUs left" in event["message"]


async def test_a_damaged_file_of_kubelets_is_as_none(node: DriverNode) -> None:
    (node.kubelet_dir / STATE_FILE).write_text("{")
    stored = node.api.put(CLAIMS, claim())
    node.daemon.held[stored["metadata"]["uid"]] = [{"device": "l3-0"}]
    node.daemon.held[UID] = [{"device": "l3-0"}]
    node.start()
    await node.until(lambda: not node.is_held())
    assert stored["metadata"]["uid"] in node.daemon.held


@pytest.fixture
async def kubelet(node: DriverNode) -> AsyncIterator[Kubelet]:
    """It registers the plugin when a test says so."""
    made = Kubelet(node.kubelet_dir)
    yield made
    await made.close()


async def test_what_kubelet_gives_back_while_it_is_prepared_again_is_given_back(
    node: DriverNode, kubelet: Kubelet
) -> None:
    four = ClaimName("shop", "four", node.api.put(CLAIMS, claim())["metadata"]["uid"])
    node.kubelet_has(four)
    node.daemon.gate = asyncio.Event()
    node.start()
    await node.until(lambda: node.daemon.commands("claim-prepare"))
    await kubelet.register()
    back = asyncio.ensure_future(kubelet.unprepare(four))
    # A call of another claim that is answered shows that the call before has been taken.
    assert (await kubelet.prepare(ClaimName("shop", "none", "uid-none")))["uid-none"].error
    node.daemon.gate.set()
    assert await back == {four.uid: ""}
    assert not node.daemon.held


async def test_what_kubelet_has_given_back_and_not_yet_forgotten_is_not_lost(
    node: DriverNode, kubelet: Kubelet
) -> None:
    four = ClaimName("shop", "four", node.api.put(CLAIMS, claim())["metadata"]["uid"])
    node.start()
    await kubelet.register()
    assert (await kubelet.prepare(four))[four.uid].error == ""
    node.kubelet_has(four)
    assert await kubelet.unprepare(four) == {four.uid: ""}
    # Kubelet writes its file after it has the answer; a machine that is busy takes long.
    began_s = node.time.now_s
    await node.until(lambda: node.time.now_s > began_s + 2 * ASK_S)
    assert not node.daemon.held
    # Asked for again and lost then, it is.
    assert (await kubelet.prepare(four))[four.uid].error == ""
    node.daemon.held.clear()
    await node.until(lambda: four.uid in node.daemon.held)


# ---------------------------------------------------------------------- small


def test_an_agent_without_claims_imports_no_grpc() -> None:
    program = "import sys, cluster.agent.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"grpclib", "google", "h2", "grpc"}
    assert not {"cluster.dra.io.plugin", "cluster.dra.io.publisher"} & set(done.stdout.split())
