"""A client's stream of container events, read along: exits are noticed without a stream of our own."""

from __future__ import annotations

from typing import Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import parse
from cri_proxy.engine.engine import Engine
from cri_proxy.relay.interception import CallEnd, Forward, Outcome
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.services import EventCount


class EventStream:
    """A client's GetContainerEvents, read along: exits are noticed without a stream of our own."""

    filter: Optional[Callable[[bytes], bytes]] = None

    def __init__(self, node_state: NodeState, count: EventCount) -> None:
        self._node_state = node_state
        self._count = count
        self._counted = False

    async def request(self, message: bytes) -> Outcome:
        self._counted = True
        self._count.add(1)
        return Forward()

    async def replied(self, message: bytes) -> None:
        engine = self._node_state.active()
        if engine is None:
            return
        try:
            note_event(self._node_state, engine, parse(cri.ContainerEventResponse, message))
        except Exception as error:
            self._node_state.log.error("event not understood", error=str(error))

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        if self._counted:
            self._count.add(-1)
        self._node_state.log.info("GetContainerEvents ended", code=code)


def note_event(node_state: NodeState, engine: Engine, event: cri.ContainerEventResponse) -> None:
    """Tell the engine what a container event says."""
    if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
        codes = [
            s.exit_code for s in event.containers_statuses if s.id == event.container_id and s.finished_at
        ]
        engine.exited(event.container_id, codes[0] if codes else None, node_state.clock())
    elif event.container_event_type == cri.CONTAINER_DELETED_EVENT:
        engine.remove(event.container_id)
    elif event.container_event_type == cri.CONTAINER_STARTED_EVENT:
        engine.started(event.container_id)
        node_state.on_started(event.container_id)
    else:
        return
    node_state.save()
