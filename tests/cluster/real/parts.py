"""The cluster half as processes: the operator, agents, and nodes that are described and have daemon and agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from cluster.api.names import (
    AGENT,
    API_VERSION,
    NAMESPACE,
    NODE_PLACEMENT,
    NODE_PLACEMENTS,
    PLACEMENT_POLICIES,
    PLACEMENT_POLICY,
)
from cri_proxy import control
from tests.agent import ROOT, Agent
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.node import found
from tests.e2e.node import REAL_CGROUPS, until
from tests.fake_runtime import FakeRuntime
from tests.machines import machine

PLACEMENTS = f"/apis/{API_VERSION}/{NODE_PLACEMENTS}"
POLICIES = f"/apis/{API_VERSION}/{PLACEMENT_POLICIES}"
AGENT_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
APPLY = "application/apply-patch+yaml"
#: For what agents and the operator do of themselves; against seconds.
WAIT_S = 120.0
#: Its doctor sees no kubelet of another node.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
#: Between two heartbeats of a described node; a node is lost after 40 s without.
HEARTBEAT_S = 5.0
ABORT_ON = ("Degraded", "NotReady", "ConfigRefused")


class Part:
    """One program of ours as a process. It may be killed and started again as often as a test wants."""

    def __init__(self, folder: Path, name: str, *command: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._command = command
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.process: Optional[asyncio.subprocess.Process] = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command, stdout=log, stderr=log, env=self._environment
            )

    async def end(self, number: int = signal.SIGKILL) -> int:
        """The exit code; what has ended already may be ended again."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 30)

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def resident_bytes(self) -> int:
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def node_agent(
    folder: Path,
    name: str,
    daemon: Agent,
    kubeconfig: Path,
    *more: str,
    program: Sequence[str] = ("cluster.agent",),
) -> Part:
    """A node's agent with both sockets of its daemon, not started."""
    return Part(
        folder, f"agent-{name}", *program, f"--kubeconfig={kubeconfig}",
        f"--view-socket={view_socket(daemon)}", f"--control-socket={daemon.control}",
        f"--state-dir={folder}", f"--kubelet-config={folder}/none", "--period=0.5", "--poll=0.2", *more,
        environment={"NODE_NAME": name},
    )  # fmt: skip


def view_socket(daemon: Agent) -> Path:
    """Where `with_view_socket` has it."""
    return daemon.folder / "v.sock"


def with_view_socket(daemon: Agent) -> Agent:
    """A daemon that is not started yet, and will have one."""
    daemon.write_config({"control": {"view_socket": str(view_socket(daemon))}})
    return daemon


def operator(
    folder: Path,
    kubeconfig: Path,
    *more: str,
    name: str = "operator",
    program: Sequence[str] = ("cluster.operator",),
) -> Part:
    """An operator that is not started; it does not wait longer than it must."""
    return Part(
        folder,
        name,
        *program,
        f"--kubeconfig={kubeconfig}",
        "--quiet=1",
        *more,
        environment={},
    )


class DescribedNode:
    """A node without a kubelet: a daemon on a described machine, a runtime made for tests, an agent, a Node object.

    The Node has heartbeats: without them the controllers take it for lost a minute after its creation. The agent has
    the token of a pod on that node, which never runs. ``more``: of the daemon's command line. ``program``: the agent's.
    """

    def __init__(
        self,
        api: ControlPlane,
        folder: Path,
        name: str,
        described: str,
        url: str = "",
        more: Sequence[str] = (),
        program: Sequence[str] = ("cluster.agent",),
    ) -> None:
        self.api = api
        self.name, self.folder = name, folder
        folder.mkdir()
        self.runtime = FakeRuntime(str(folder / "r.sock"))
        self.daemon = with_view_socket(Agent(folder / "r.sock", machine(described), REAL_CGROUPS))
        self._kubeconfig, self._url = folder / "kubeconfig", url
        self.agent = node_agent(folder, name, self.daemon, self._kubeconfig, program=program)
        self._more = more
        self._beats: Optional[asyncio.Future[None]] = None

    async def start(self, **labels: str) -> None:
        """Create the Node and start its processes."""
        await create_node(self.api, self.name, labels)
        token = await asyncio.to_thread(agent_token, self.api, self.name)
        self.api.kubeconfig(self._kubeconfig, token=token, url=self._url)
        self._beats = asyncio.ensure_future(self._beat())
        await self.runtime.start()
        await self.start_daemon()
        await self.agent.start()

    async def start_daemon(self) -> None:
        await self.daemon.start(*self._more, command=(*ALONE, sys.executable, "-m", "cri_proxy"))

    def reload_daemon(self) -> None:
        """SIGHUP for the daemon itself, which is the child of the program that sets it alone."""
        assert self.daemon.process is not None
        parent = self.daemon.process.pid
        os.kill(int(Path(f"/proc/{parent}/task/{parent}/children").read_text()), signal.SIGHUP)

    async def _beat(self) -> None:
        """Kubelet's part, for as long as the node is there; a server that is away hears of it later."""
        path = f"/api/v1/nodes/{self.name}/status"
        kind = "application/strategic-merge-patch+json"
        while True:
            now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "reason": "Tests", "lastHeartbeatTime": now}
            body = {"status": {"conditions": [ready]}}
            with contextlib.suppress(Refused, OSError):
                await asyncio.to_thread(
                    lambda body=body: self.api.ask("PATCH", path, body, content_type=kind)
                )
            await asyncio.sleep(HEARTBEAT_S)

    async def close(self) -> None:
        """End what runs, delete the Node, and show what the agent has said if the test fails."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self.agent.process is not None:
            await self.agent.end()
        await self.daemon.close()
        await self.runtime.stop()
        print(f"--- {self.agent.name}", *self.agent.log().splitlines()[-40:], sep="\n")
        await delete(self.api, f"{AGENT_PODS}/agent-{self.name}?gracePeriodSeconds=0")
        await delete(self.api, f"/api/v1/nodes/{self.name}")
        await delete(self.api, f"{PLACEMENTS}/{self.name}")


async def create_node(api: ControlPlane, name: str, labels: Mapping[str, str]) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    await asyncio.to_thread(api.ask, "POST", "/api/v1/nodes", node)


def agent_token(api: ControlPlane, node: str) -> str:
    """The token of the agent's pod on a node, as kubelet asks for it; the pod is made where there is none."""
    name = f"agent-{node}"
    spec = {
        "nodeName": node,
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        "containers": [{"name": "report", "image": "cri-resmgr"}],
    }
    with contextlib.suppress(Refused):
        api.ask("POST", AGENT_PODS, {"metadata": {"name": name}, "spec": spec})
    return api.account_token(NAMESPACE, AGENT, pod=name)


def until_in_force(api: ControlPlane) -> None:
    """Until each of our admission policies refuses: the server goes by them a moment after they are written."""
    token = api.account_token(NAMESPACE, AGENT)
    metadata = {"name": "probe", "namespace": NAMESPACE}
    event = {"metadata": metadata, "involvedObject": {"namespace": NAMESPACE}}
    told = {"apiVersion": API_VERSION, "kind": NODE_PLACEMENT, "metadata": {"name": "probe"}, "status": {}}
    api.ask("POST", PLACEMENTS, told)
    refused: list[Callable[[], Any]] = [
        lambda: api.ask("PATCH", f"{PLACEMENTS}/probe/status?fieldManager=probe", told, token=token, content_type=APPLY),
        lambda: api.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/events?dryRun=All", event, token=token),
        lambda: api.ask("POST", f"{POLICIES}?dryRun=All", policy("probe", {"relay": {"socket": "/x"}})),
    ]  # fmt: skip

    def is_refused(ask: Callable[[], Any]) -> bool:
        try:
            ask()
        except Refused as said:
            return "ValidatingAdmissionPolicy" in str(said)
        return False

    for ask in refused:
        api.wait("kube-apiserver", lambda ask=ask: is_refused(ask))
    api.ask("DELETE", f"{PLACEMENTS}/probe")


async def delete(api: ControlPlane, path: str) -> None:
    """Delete an object that may be gone already."""
    if await found(api, path):
        await asyncio.to_thread(api.ask, "DELETE", path)


def policy(
    name: str,
    config: Mapping[str, Any],
    *,
    priority: int = 0,
    selector: Optional[Mapping[str, Any]] = None,
    **rollout: Any,
) -> dict[str, Any]:
    """A PlacementPolicy; without a selector it is every node's."""
    return {
        "apiVersion": API_VERSION,
        "kind": PLACEMENT_POLICY,
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": selector or {},
            "priority": priority,
            "config": config,
            "rollout": {
                "maxUnavailable": 1,
                "pauseSeconds": 0,
                "abortOn": ["Degraded", "NotReady", "ConfigRefused"],
                **rollout,
            },
        },
    }


async def put_policy(api: ControlPlane, wanted: Mapping[str, Any]) -> None:
    """Create a policy, or change it."""
    path = f"{POLICIES}/{wanted['metadata']['name']}"
    if await found(api, path):
        change = {"spec": wanted["spec"]}
        await asyncio.to_thread(
            lambda: api.ask("PATCH", path, change, content_type="application/merge-patch+json")
        )
    else:
        await asyncio.to_thread(api.ask, "POST", POLICIES, wanted)


async def placement(api: ControlPlane, name: str) -> Mapping[str, Any]:
    """A node's NodePlacement; {} if there is none."""
    return await found(api, f"{PLACEMENTS}/{name}")


def condition(of: Mapping[str, Any], type_: str) -> str:
    """The status of a condition; "" if there is none of this type."""
    conditions: Sequence[Mapping[str, Any]] = of.get("status", {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == type_), "")


async def until_ready(api: ControlPlane, *names: str) -> None:
    """Until the agents of these nodes say that they are ready."""
    for name in names:
        await until(
            lambda name=name: placement(api, name), lambda of: condition(of, "Ready") == "True", WAIT_S
        )


async def until_applied(api: ControlPlane, policy_name: str, *names: str) -> None:
    """Until these nodes have the policy; "": none."""

    def has(of: Mapping[str, Any]) -> bool:
        said = of.get("status", {}).get("policy") or {}
        state = said.get("state", "None")
        return (said.get("name", ""), state) == (policy_name, "Applied") if policy_name else state == "None"

    for name in names:
        await until(lambda name=name: placement(api, name), has, WAIT_S)


async def active(daemon: Agent) -> str:
    """The policy that a daemon places by."""
    return str((await asyncio.to_thread(control.ask, daemon.control, "status", {}))["policy"])


async def policy_status(api: ControlPlane, name: str) -> Mapping[str, Any]:
    return (await found(api, f"{POLICIES}/{name}")).get("status", {})
