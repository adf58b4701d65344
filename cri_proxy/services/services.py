"""The parts of one daemon that its other parts work with. Only ``daemon.py`` has them made.

``Health`` has why the daemon does less than it should, reason by reason, and tells the log, the metrics and systemd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from bpf.kernel.notify import notify
from cri_api.supervisor import Supervisor, Worker
from cri_proxy.config.config import Config
from cri_proxy.metrics import Metrics
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader
from cri_proxy.runtime import RuntimeClient
from cri_proxy.services.node_state import MODES, NodeState
from cri_proxy.services.reconciler import Reconciler
from cri_proxy.services.updates import Updates
from cri_proxy.state.store import Store
from cri_proxy.state.writer import StateWriter

#: Why a daemon is not well that has nothing to say against it yet.
STARTING = (
    "it has just started: machine and state are being read, and what starts until then keeps what it has"
)


class Health:
    """Reasons by topic. READY is sent only after ``serving``; every change after it is told at once."""

    def __init__(self, metrics: Metrics, log: Any, mode: Callable[[], str]) -> None:
        self.reasons: dict[str, str] = {}
        #: What systemd is told that we do, where all is well.
        self.doing = "serving"
        self._metrics = metrics
        self._log = log
        self._mode = mode
        self._warnings: dict[str, tuple[str, ...]] = {}
        #: What was said last of a task or thread that fails, by topic.
        self._failures: dict[str, str] = {}
        self._is_serving = False
        self._told = ""

    def note(self, topic: str, reason: str) -> None:
        """Set a degraded reason, or (empty) clear it."""
        if self.reasons.get(topic, "") == reason:
            return
        if reason:
            self.reasons[topic] = reason
            self._log.warning("degraded", topic=topic, reason=reason)
        else:
            del self.reasons[topic]
            self._log.info("recovered", topic=topic)
        self.tell()

    def warn(self, origin: str, sentences: Iterable[str]) -> None:
        """What an operator should look at, of one origin; replaces what that said before."""
        known, found = self._warnings.get(origin, ()), tuple(sentences)
        self._warnings[origin] = found
        for sentence in found:
            if sentence not in known:
                self._log.warning(sentence)

    def supervised(self, worker: Worker, error: Optional[BaseException]) -> None:
        """A task or thread has failed, or does well again. A bad moment is a warning, more than that a reason."""
        topic, sentence = f"task {worker.name}", ""
        if error is not None:
            self._metrics.background_failures.labels(worker.name).inc()
            sentence = (
                f"the background {'thread' if worker.kind == 'thread' else 'task'} {worker.name!r} has failed"
            )
            sentence = f"{sentence}: {worker.problem}"
            if self._failures.get(topic) != sentence:
                self._log.error("a background task failed", task=worker.name, exc_info=error)
        self._failures[topic] = sentence
        self.warn(topic, [sentence] if sentence and not worker.is_troubled else [])
        self.note(topic, sentence if worker.is_troubled else "")

    @property
    def warnings(self) -> list[str]:
        return [sentence for sentences in self._warnings.values() for sentence in sentences]

    def serving(self) -> None:
        """Calls pass from now on."""
        self._is_serving = True
        self.tell()

    def tell(self, again: bool = False) -> None:
        """Tell systemd and the metrics how things are.

        ``again``: a reload is over, so READY is said, also if nothing is new. systemd takes it for the end of a reload: what
        is noted during one is told without it.
        """
        mode = self._mode()
        self._metrics.degraded.set(1 if self.reasons else 0)
        for name in MODES:
            self._metrics.mode.labels(name).set(1 if name == mode else 0)
        message = f"STATUS={one_line(self.sentence()) or mode + ', ' + self.doing}"
        if self._is_serving and (again or message != self._told):
            notify(f"READY=1\n{message}" if again or not self._told else message)
            self._told = message

    def told(self, is_asked: bool) -> dict[str, str]:
        """The reasons, for those that wait until all is well; ``is_asked``: there is an engine to ask about containers."""
        if is_asked or self.reasons:
            return dict(self.reasons)
        return {"engine": STARTING}

    def sentence(self) -> str:
        """All reasons in one; "" if there are none."""
        return "degraded: " + "; ".join(self.reasons.values()) if self.reasons else ""


def one_line(text: str) -> str:
    """A text without line breaks: systemd takes each line for a message of its own."""
    return " ".join(text.split())


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
