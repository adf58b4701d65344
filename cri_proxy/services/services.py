"""The parts of one daemon that its other parts work with. Only ``daemon.py`` has them made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.supervisor import Supervisor
from cri_proxy.config.config import Config
from cri_proxy.metrics import Metrics
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services.health import Health
from cri_proxy.services.node_state import NodeState
from cri_proxy.services.reconciler import Reconciler
from cri_proxy.services.updates import Updates
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter


class EventCount:
    """How many clients read the runtime's event stream through us; tells what waits for a change of that."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.streams = 0
        #: Whether we read an event stream of our own.
        self.own_stream = False
        self.changed = changed

    def add(self, number: int) -> None:
        self.streams += number
        self.changed()


async def _nothing() -> None:
    pass


@dataclass
class Services:
    """``config`` is replaced by a reload. ``look`` is set when the runtime's list should be looked at now.

    ``reload``: read the configuration again, as SIGHUP has it done.
    """

    config: Config
    log: Any
    metrics: Metrics
    health: Health
    runtime: RuntimeClient
    store: StateWriter
    node_state: NodeState
    cgroups: Cgroups
    machine: MachineReader
    reconciler: Reconciler
    events: EventCount
    look: asyncio.Event
    reload: Callable[[], Awaitable[None]] = _nothing
    #: What begins every task and thread that lives as long as the daemon.
    supervisor: Supervisor = field(default_factory=Supervisor)


def make_parts(
    config: Config,
    log: Any,
    metrics: Metrics,
    health: Health,
    runtime: RuntimeClient,
    supervisor: Optional[Supervisor] = None,
) -> Services:
    """The parts as a configuration has them, with nothing read yet. ``supervisor``: one of their own by default."""
    supervisor = supervisor or Supervisor()
    store = StateWriter(Store(Path(config["state.directory"])), metrics, log, supervisor)
    updates = Updates(runtime, metrics, log)
    updates.written = store.settled
    updates.supervisor = supervisor
    node_state = NodeState(store, updates, metrics, log)
    node_state.switch(config["relay.mode"])
    cgroups = Cgroups(Path(config["topology.cgroup_root"]))
    look = asyncio.Event()
    return Services(
        config=config,
        log=log,
        metrics=metrics,
        health=health,
        runtime=runtime,
        store=store,
        node_state=node_state,
        cgroups=cgroups,
        machine=MachineReader(Path(config["topology.source"]), cgroups, Path(config["kubelet.directory"])),
        reconciler=Reconciler(runtime, cgroups, node_state),
        events=EventCount(look.set),
        look=look,
        supervisor=supervisor,
    )
