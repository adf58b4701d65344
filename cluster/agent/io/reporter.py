"""The reporting half: what the view socket tells becomes the node's status, its NodeResourceTopology, and Events.

It has no way to change anything on the node. Each look at the daemon is followed by the writes due at the API server, and
neither waits for the other: a daemon that is away is a condition, and with the API server away the newest status is
what will be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cluster.agent.events import EventCursor, add_row
from cluster.agent.io.daemon import DOCTOR_PATIENCE_S, DaemonAway, DaemonClient, FolderGone, daemon_trouble
from cluster.agent.io.log import TroubleLog, log
from cluster.agent.io.written import NO_ANSWER, PLACEMENTS, Written
from cluster.agent.spec import read_spec
from cluster.agent.status import AgentView, conditions_of, status_of, written_before
from cluster.api import names, node_placement
from cluster.api.fit import fit
from cluster.api.heartbeat import lease, lease_name
from cluster.kube.events import Events
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.event_writer import EventWriter
from cluster.kube.io.known_fields import KnownFields
from cluster.kube.known import not_written
from cluster.kube.pace import WriteRate
from cluster.kube.requests import HOPELESS, LEASES, ApiError, Resource
from cluster.topology import resource_topology
from cluster.topology.resource_topology import (
    TopologyManager,
    read_topology_manager,
    reported_topology_manager,
)
from cri_api.control import ControlError
from cri_api.supervisor import Supervisor

TOPOLOGIES = Resource(resource_topology.GROUP, resource_topology.VERSION, resource_topology.PLURAL)

#: Doctor takes a second of CPU: asked rarely, and at once where the daemon or its policy is another.
DOCTOR_EVERY_S = 300.0
#: Without the CRD of NodeResourceTopology it is tried again this rarely. Without the right to it, as after any failure:
#: the operator gives a new node its rights while its agent is at work already.
NO_TOPOLOGY_S = 600.0
FORBIDDEN = 403
#: Between two renewals of the node's Lease, and a fifth more as it comes; with the rounds 45 to 60 s.
RENEW_S = 45.0


@dataclass(frozen=True)
class Reporting:
    """``poll_s``: between two looks at the daemon; ``period_s``: at most one write of each object in so long."""

    node: str
    poll_s: float = 5.0
    period_s: float = 10.0
    #: Another process, or none, carries out the spec: then its condition is not written here.
    commands_elsewhere: bool = True
    writes_topology: bool = True
    single_numa_node: bool = False
    kubelet_config: Optional[Path] = None


class Reporter:
    """One node's reporting half. ``run`` never ends by itself."""

    def __init__(
        self,
        daemon: DaemonClient,
        client: Client,
        reporting: Reporting,
        clock: Clock,
        beat: Callable[[], None] = lambda: None,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._beat = beat
        self._supervisor = supervisor or Supervisor()
        self._daemon, self._client, self._reporting, self._clock = daemon, client, reporting, clock
        self._report: Optional[Mapping[str, Any]] = None
        self._trouble = ""
        self._asked = False
        self._cursor = EventCursor()
        self._events = Events(names.AGENT, f"{int(clock.wall()):x}", reporting.node)
        self._event_writer = EventWriter(
            client, clock, self._events, lambda count: log("info", "events not written", count=count)
        )
        self._status = Written(WriteRate(reporting.period_s), names.AGENT_MANAGER)
        self._known = KnownFields(client, PLACEMENTS, node_placement.schema(), clock.monotonic)
        self._topology = Written(WriteRate(reporting.period_s))
        self._lease = Written(WriteRate(RENEW_S))
        self._doctor = _Doctor(daemon, clock)
        self._owner: Optional[dict[str, Any]] = None
        self._daemon_said, self._api_said = TroubleLog("daemon"), TroubleLog("api server")
        self._topology_said = TroubleLog("node resource topology", "it is written", level="info")
        self._lease_said = TroubleLog("heartbeat", "the Lease is renewed", level="info")
        self._known_said = TroubleLog("schema", "all fields are written")

    async def run(self) -> None:
        """Look and write, until cancelled."""
        await self._begin()
        follow = self._supervisor.keep("watch of its object", self._follow)
        try:
            while True:
                await self.round()
                self._beat()
                await self._clock.sleep(self._reporting.poll_s * (0.9 + 0.2 * self._clock.random01()))
        finally:
            follow.cancel()
            self._doctor.stop()

    async def round(self) -> None:
        """One look at the daemon, and the writes that are due after it."""
        await self._look()
        self._doctor.look(self._report if not self._trouble else None)
        try:
            asked = [
                # First: an agent that writes its status long after its Lease is taken for one that has none.
                await self._renew_lease(),
                await self._write_status(),
                await self._write_topology(),
                await self._event_writer.round(),
            ]
            # A round in which nothing was due has heard nothing; nor does another object's write end a status's trouble.
            if any(asked) and not self._status.has_failed:
                self._api_said.well()
        except NO_ANSWER as error:
            self._api_said.trouble(f"the API server does not answer: {error}")
        except ApiError as error:
            self._api_said.trouble(_sentence(error, self._reporting.node))

    async def problems_known(self) -> None:
        """Return once doctor has answered, if it is being asked."""
        await self._doctor.answered()

    async def _begin(self) -> None:
        """Read the writes of an earlier process: its events are not repeated, and conditions keep their times."""
        try:
            found = await self._client.get(PLACEMENTS, self._reporting.node)
        except (ApiError, *NO_ANSWER):
            return
        before = written_before(found)
        self._cursor.already_told(before.instance or "-")
        self._status.told = {"conditions": conditions_of(found), "doctor": before.doctor}
        self._asked = _asks(found)
        self._owner = _owner(found)
        self._doctor.judged_hash = before.judged

    async def _follow(self) -> None:
        """Whether the object is the one that was written; and where nothing on this node carries it out, whether its spec
        asks for something."""
        events = self._client.watch(
            PLACEMENTS,
            field_selector=f"metadata.name={self._reporting.node}",
            keep=lambda found: (self._status.mark(found), _asks(found)),
            metadata_only=self._reporting.commands_elsewhere,
        )
        async for event in events:
            found = event.object if event.kind == "SYNC" else [event.object]
            self._asked = False
            if found and event.kind != "DELETED":
                mark, self._asked = found[0]
                self._status.heard(mark)

    async def _look(self) -> None:
        try:
            self._report = await self._daemon.report(self._cursor.since)
            self._trouble = ""
            self._daemon_said.well()
        except (DaemonAway, ControlError) as error:
            self._trouble = daemon_trouble(self._reporting.node, error)
            self._daemon_said.trouble(str(error))
            return
        for row in self._cursor.new_rows(self._report):
            add_row(self._events, row, self._clock.stamp())

    def seen(self) -> AgentView:
        """All that is known now."""
        is_report_only = not self._reporting.commands_elsewhere
        return AgentView(
            self._report,
            self._trouble,
            self._doctor.problems,
            is_report_only,
            self._asked,
            self._known.left_out,
            self._doctor.judged(self._report),
        )

    async def _write_status(self) -> bool:
        """Whether the API server was asked, as in the two after this."""
        status = status_of(self.seen(), self._status.told, self._clock.stamp())
        if self._known.is_old():
            self._status.forget()
        if not self._status.is_due(status, self._clock):
            return False
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.NODE_PLACEMENT,
            "metadata": {"name": self._reporting.node},
            "status": fit(status),
        }
        answer = await self._status.write(
            status,
            self._clock,
            self._known.apply(
                self._reporting.node,
                body,
                manager=names.AGENT_MANAGER,
                subresource="status",
                metadata_only=True,
            ),
        )
        self._owner = _owner(answer)
        if left_out := self._known.left_out:
            self._known_said.trouble(not_written(left_out))
        else:
            self._known_said.well()
        return True

    async def _write_topology(self) -> bool:
        if not self._reporting.writes_topology or self._report is None or self._trouble:
            return False
        wanted = resource_topology.node_resource_topology(
            self._reporting.node,
            self._report,
            self._kubelet(self._report),
            single_numa_node=self._reporting.single_numa_node,
            owners=() if self._owner is None else (self._owner,),
        )
        if wanted is None or not self._topology.is_due(wanted, self._clock):
            return False
        try:
            await self._topology.write(
                wanted,
                self._clock,
                self._client.apply(
                    TOPOLOGIES, self._reporting.node, wanted, manager=names.AGENT_MANAGER, metadata_only=True
                ),
            )
        except ApiError as error:
            if error.status not in HOPELESS:
                raise
            # No scheduler here looks for it; nothing else depends on it.
            self._topology_said.trouble(error.message)
            if error.status != FORBIDDEN:
                self._topology.pace.wait_longer(self._clock.monotonic(), NO_TOPOLOGY_S)
        else:
            self._topology_said.well()
        return True

    async def _renew_lease(self) -> bool:
        """A status is written where it is another only: that this agent lives is told by its Lease."""
        node, clock = self._reporting.node, self._clock
        if self._owner is None:
            return False
        wanted = lease(node, self._owner, clock.wall())
        if not self._lease.is_due(wanted, clock):
            return False
        try:
            await self._lease.write(
                wanted,
                clock,
                self._client.apply(
                    LEASES,
                    lease_name(node),
                    wanted,
                    manager=names.AGENT_MANAGER,
                    namespace=names.NAMESPACE,
                    metadata_only=True,
                ),
            )
        except ApiError as error:
            if error.status not in HOPELESS:
                raise
            # As with the rights of a version before, or kubelet's. A node that has no Lease is not called silent.
            self._lease_said.trouble(error.message)
        else:
            self._lease_said.well()
        return True

    def _kubelet(self, report: Mapping[str, Any]) -> Optional[TopologyManager]:
        """From kubelet's file; in a pod, which has no such file, from the daemon that has."""
        path = self._reporting.kubelet_config
        try:
            if path is not None:
                return read_topology_manager(path.read_text())
        except (OSError, ValueError):
            pass
        return reported_topology_manager(report)


class _Doctor:
    """``doctor``'s answer, asked beside the reports: it takes seconds."""

    def __init__(self, daemon: DaemonClient, clock: Clock) -> None:
        self._daemon, self._clock = daemon, clock
        self.problems: Optional[Sequence[Mapping[str, Any]]] = None
        self._asked_at_s = 0.0
        self._about: Any = None
        self._task: Optional[asyncio.Task[None]] = None
        #: Of the cluster's policy that was in force when doctor was asked for the answer that is here; "" = none was.
        self.judged_hash = ""

    def look(self, report: Optional[Mapping[str, Any]]) -> None:
        """Ask, if it is time to, or the daemon or its policy is another than when it was asked."""
        if report is None or (self._task is not None and not self._task.done()):
            return
        now_s = self._clock.monotonic()
        about = report.get("instance"), (report.get("cluster") or {}).get("policy")
        if about != self._about or now_s - self._asked_at_s >= DOCTOR_EVERY_S:
            if about != self._about:
                self.judged_hash = self.judged_hash if self._about is None else ""
            self._about, self._asked_at_s = about, now_s
            self._task = asyncio.ensure_future(self._ask(_policy_hash(report) or ""))

    def judged(self, report: Optional[Mapping[str, Any]]) -> Optional[str]:
        """Hash of the policy that this report and doctor's answer both know; "" = of none, None = it is not told."""
        there = None if report is None else _policy_hash(report)
        return there if there is None or there == self.judged_hash else ""

    async def answered(self) -> None:
        if self._task is not None:
            await self._task

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, policy_hash: str) -> None:
        try:
            found = await self._daemon.ask("doctor", DOCTOR_PATIENCE_S)
            self.problems = [problem for problem in found["problems"] if isinstance(problem, dict)]
        except (DaemonAway, FolderGone, ControlError, KeyError, TypeError):
            # An older daemon knows no such command: the last answer is better than none.
            pass
        self.judged_hash = policy_hash


def _policy_hash(report: Mapping[str, Any]) -> Optional[str]:
    cluster = report.get("cluster")
    return None if cluster is None else str((cluster.get("policy") or {}).get("hash") or "")


def _owner(node_placement: Mapping[str, Any]) -> dict[str, Any]:
    """A reference to it, for what goes with it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.NODE_PLACEMENT,
        **{key: node_placement["metadata"][key] for key in ("name", "uid")},
    }


def _asks(node_placement: Mapping[str, Any]) -> bool:
    return read_spec(node_placement).asks


def _sentence(error: ApiError, node: str) -> str:
    if error.status == 404:
        return f"there is no NodePlacement {node}: the operator makes it for each node, and this agent waits"
    return f"the API server says {error.status} {error.reason}: {error.message}"
