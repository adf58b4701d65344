"""What a host's Synchronize says, against our records: answered at once, gone through afterwards.

There are two seconds for it on nodes with hundreds of containers. Nothing is moved by it; what the cgroups say is
compared in the next round of the reconciler, which this asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.cri.messages import UnreadableRequest
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resync import SLICE, Listing, Resync, merged, resync_slices, unknown_ids
from cri_proxy.nri import containers as reader
from cri_proxy.nri.io.plugin.placing import NriPlacing
from cri_proxy.services.node_state import NodeState
from policies.model import Container


class Snapshot:
    """The pods and containers of one Synchronize, which may come in several messages."""

    def __init__(self) -> None:
        self.pods: list[nri.PodSandbox] = []
        self.containers: list[nri.Container] = []
        self.at_s = 0.0

    def add(self, request: nri.SynchronizeRequest, now_s: float) -> bool:
        """Take one message. True: it was the last one."""
        self.pods += request.pods
        self.containers += request.containers
        self.at_s = now_s
        return not request.more


async def follow(node_state: NodeState, placing: NriPlacing, snapshot: Snapshot) -> Resync:
    """Bring the records in line with a snapshot, in slices between which events pass."""
    engine = node_state.active()
    if engine is None:
        return Resync()
    _note_pods(engine, snapshot.pods, node_state.log)
    for container in snapshot.containers:
        placing.bind(container.id)
    seen = reader.read_seen(snapshot.containers, engine.pods, engine.grants)
    details = await _details(node_state, engine, snapshot, unknown_ids(engine, seen.values()))
    # A host tells the cpuset it has written down: enough to know where a container runs that has no record, not
    # enough to call a known one's changed.
    listing = Listing(seen, snapshot.at_s, details, pending=frozenset(engine.grants))
    parts = []
    for part in resync_slices(engine, listing, node_state.clock()):
        node_state.send(part.updates)
        node_state.save()
        parts.append(part)
        await asyncio.sleep(0)
        if engine is not node_state.active():
            break
    return merged(parts)


def _note_pods(engine: Engine, pods: list[nri.PodSandbox], log: Any) -> None:
    for message in pods:
        known = engine.pods.get(message.id)
        try:
            pod = reader.read_pod(message, known)
        except UnreadableRequest as error:
            log.warning("a pod is not understood", id=message.id, error=str(error))
            continue
        if pod != known:
            engine.add_pod(pod)


async def _details(
    node_state: NodeState, engine: Engine, snapshot: Snapshot, ids: tuple[str, ...]
) -> dict[str, Container]:
    unknown = set(ids)
    details = {}
    for number, container in enumerate(snapshot.containers):
        if number % SLICE == 0:  # each takes a tenth of a millisecond to read
            await asyncio.sleep(0)
        pod = engine.pods.get(container.pod_sandbox_id)
        if container.id in unknown and pod is not None:
            with contextlib.suppress(UnreadableRequest):  # it is left as it is
                read = reader.read_container(container, pod, 0, node_state.memory_bytes)
                details[container.id] = read.container
    return details
