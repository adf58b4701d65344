"""The host of NRI plugins as a part of the proxy: an ``Interceptor`` around the engine's, and its background work.

It is off where the runtime has NRI itself, as plugins would be asked twice. While no plugin is connected, calls pass as
without it, but creates are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api import runtime_v1_pb2 as cri
from cri_api.supervisor import together
from cri_api.waiting import wait_within
from cri_proxy.cri.messages import UnreadableRequest, linux_delta, parse
from cri_proxy.cri.visibility import Visibility, container_key, sandbox_key
from cri_proxy.engine import model as grants
from cri_proxy.nri.io.host.calls import (
    ContainerEvents,
    HostContext,
    HostedCall,
    Remove,
    RemovePod,
    Run,
    Showing,
    Start,
    StepsUnderWay,
    Stop,
    StopPod,
    UpdateContainer,
    UpdatePod,
)
from cri_proxy.nri.io.host.capabilities import Capabilities
from cri_proxy.nri.io.host.cleanup import Cleanup
from cri_proxy.nri.io.host.create import Create
from cri_proxy.nri.io.host.dispatcher import EventDispatcher
from cri_proxy.nri.io.host.host import NriHost
from cri_proxy.nri.io.host.intent_log import IntentLog
from cri_proxy.nri.io.host.pod_view import PodView
from cri_proxy.nri.io.host.unhosted import unhosted_because
from cri_proxy.nri.io.host.upstream import Upstream
from cri_proxy.nri.lifecycle import Lifecycle
from cri_proxy.nri.validate import nri_settings
from cri_proxy.nri.view import view_resources
from cri_proxy.relay.interception import (
    SHOWING,
    AnswerFailed,
    CallEnd,
    Interception,
    Interceptor,
    Outcome,
    runtime_method,
)
from cri_proxy.services.node_state import OFF
from cri_proxy.services.services import Services

#: The runtime is asked for its version when plugins are to be hosted; clients wait for that.
IDENTIFY_TIMEOUT_S = 1.0
#: Seconds between looks at the runtime's list for ended containers; and while its events are read.
LOOK_S, LOOK_WITH_EVENTS_S = 2.0, 10.0
#: How long after a passed create its status is asked for: a plugin that connects waits less then.
WARM_AFTER_S = 1.0
_KINDS: dict[str, type[HostedCall]] = {
    "StopPodSandbox": StopPod,
    "RemovePodSandbox": RemovePod,
    "UpdatePodSandboxResources": UpdatePod,
    "StartContainer": Start,
    "StopContainer": Stop,
    "RemoveContainer": Remove,
    "UpdateContainerResources": UpdateContainer,
}
_MAKING = ("RunPodSandbox", "CreateContainer")


class NriHosting:
    """``engine``: the interceptor that places containers; it is asked first, and alone while no plugin is there."""

    def __init__(self, services: Services, engine: Interceptor, unix_sockets: Path) -> None:
        self._services = services
        self._engine = engine
        self._unix_sockets = unix_sockets
        #: "": undecided, as the runtime has not answered.
        self.state = ""
        self.why = "the runtime has not answered yet"
        config, log = services.config, services.log
        upstream, hidden, lifecycle = Upstream(services.runtime), Visibility(), Lifecycle()
        intents = IntentLog(Path(config["state.directory"]), log, services.store)
        self._expression = Capabilities(services)
        self.pod_view = PodView(
            services.runtime, upstream, hidden, lifecycle, engine.open, self._expression, log
        )
        runtime = services.runtime
        self.host = NriHost(
            nri_settings(config),
            self.pod_view,
            log,
            services.metrics,
            lambda: (runtime.name, runtime.version),
            services.supervisor,
        )
        dispatcher = EventDispatcher(self.host, self.pod_view, log)
        cleanup = Cleanup(upstream, intents, hidden, services.node_state, log)
        under_way = StepsUnderWay()
        self._context = HostContext(
            self.host,
            self.pod_view,
            lifecycle,
            hidden,
            dispatcher,
            upstream,
            intents,
            cleanup,
            under_way,
            log,
        )
        self._calls_in_flight = CallsInFlight()
        self.pod_view.on_due = dispatcher.soon
        self.pod_view.settled = under_way.settled
        self.host.on_change = self._changed
        self._deliver = services.node_state.updates.deliver
        services.node_state.updates.deliver = self._move
        self._is_begun = False
        self._starting: Optional[asyncio.Task[None]] = None
        #: Whether the host has started, in which it can fail.
        self._has_started = False

    # ------------------------------------------------------------------ interceptor

    def open(self, full_method: str) -> Optional[Interception]:
        """As the engine's, with plugins around it."""
        context, method = self._context, runtime_method(full_method)
        if method in SHOWING:
            is_needed = self._is_asking or bool(context.hidden)
            return Showing(context.hidden, method) if is_needed else None
        engine = self._engine.open(full_method)
        if method == "GetContainerEvents":
            return ContainerEvents(context, engine, full_method)
        if method in _MAKING and (self.is_on or len(context.cleanup)):
            return _Undecided(self, engine, full_method)
        kind = _KINDS.get(method) if self._is_asking else None
        return engine if kind is None else kind(context, engine, full_method)

    def open_making(self, engine: Optional[Interception], full_method: str) -> Interception:
        """A RunPodSandbox or CreateContainer whose request has come: hosted, or counted."""
        if not self._is_asking:
            return self._calls_in_flight.open(self._context, engine, full_method)
        if runtime_method(full_method) == "CreateContainer":
            return Create(self._context, engine, full_method, self._expression)
        return Run(self._context, engine, full_method)

    @property
    def is_on(self) -> bool:
        """Whether plugins are hosted."""
        return self.state == "on"

    @property
    def _is_asking(self) -> bool:
        """Whether calls are told to plugins: in mode off nothing but bytes passes."""
        return self.is_on and self.host.connected and self._services.node_state.mode != OFF

    def _changed(self) -> None:
        if not self.host.connected:
            self.pod_view.is_following = False

    # ------------------------------------------------------------------ life

    def begin(self) -> None:
        """Take over the marks of the daemon before; not while another one runs, which owns them."""
        owner = self._services.health.reasons.get("owner", "")
        if owner:
            self.why = owner
        elif not self._is_begun:
            self._is_begun = True
            self._context.cleanup.load()

    async def start(self) -> None:
        """Decide whether plugins are hosted, and begin; before clients are served, if the runtime answers."""
        self.begin()
        if self._is_begun:
            await self._try("NRI plugins cannot be hosted", self.decide())

    def runtime_returned(self) -> None:
        """Ask it whether it has NRI itself."""
        if self._is_begun:
            self._context.dispatcher.spawn(self._try("NRI plugins cannot be hosted", self.decide()))

    async def decide(self) -> None:
        """Find out whether the runtime has NRI itself; start the host if not. May be called any time."""
        if not self.state:
            await self._choose()
        if self.is_on and not self._has_started and (self._starting is None or self._starting.done()):
            self._starting = asyncio.ensure_future(self.host.start())
        if self._starting is not None:
            await asyncio.shield(self._starting)
            self._has_started = True
            self._services.health.warn("nri", tuple(self.host.problems))

    async def _choose(self) -> None:
        settings = self.host.settings
        is_open = settings.host == "auto"
        if is_open and not await self._runtime_answers():
            return
        why = unhosted_because(settings.host, self._unix_sockets.read_text, settings.socket)
        if why:
            self._set("off", why)
        else:
            self._set("on", "the runtime has no NRI of its own" if is_open else "nri.host is on")

    async def _runtime_answers(self) -> bool:
        runtime = self._services.runtime
        try:
            if not runtime.api:
                await wait_within(IDENTIFY_TIMEOUT_S, runtime.identify())
        except Exception:  # it is not there, or not a runtime: the rounds say so
            return False
        return True

    def _set(self, state: str, why: str) -> None:
        self.state, self.why = state, why
        self._services.log.info(
            "NRI plugins are hosted" if state == "on" else "no NRI plugins are hosted", why=why
        )

    async def run(self) -> None:
        """Background work, until the daemon cancels it."""
        await together(self._look(), self._warm(), self._context.cleanup.run())

    async def _look(self) -> None:
        """Notice containers that ended."""
        while True:
            streams = self._services.events.streams
            await asyncio.sleep(LOOK_WITH_EVENTS_S if streams else LOOK_S)
            if not self.state or (self.is_on and not self._has_started):
                await self.start()
            if self._has_started:
                self._services.health.warn("nri", tuple(self.host.problems))
            # Mode off, or no plugin: the next snapshot or list finds what happens meanwhile.
            if self._is_asking and self.pod_view.is_following:
                await self._try("the list could not be had", self.pod_view.look())

    async def _move(self, update: grants.CpusetUpdate) -> None:
        """Deliver an update of the engine's own: plugins are shown where the container is now."""
        await self._deliver(update)
        linux = linux_delta(update.placement, update.give_back)
        self.pod_view.pod_cache.note_resources(update.id, view_resources(linux))

    async def _warm(self) -> None:
        """Know the pods and containers before a plugin asks for all of them."""
        # At first at once: a plugin from before a restart comes as soon as it can.
        pause_s = 0.0
        while True:
            await self._calls_in_flight.wait()
            await asyncio.sleep(pause_s)
            pause_s = WARM_AFTER_S
            if self.is_on:
                await self._try("statuses could not be had", self.pod_view.warm())

    async def _try(self, sentence: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AnswerFailed as error:
            self._services.log.info(sentence, error=error.message)
        except Exception:
            self._services.log.error(sentence, exc_info=True)

    def reconfigured(self) -> None:
        """Timeouts, rules and reactions are live; sockets and folders are not."""
        self.host.settings = nri_settings(self._services.config)

    def status(self) -> dict[str, Any]:
        """For ``status --json`` and ``nri status``."""
        return {
            "host": self.state or "waiting",
            "why": self.why,
            "socket": self.host.settings.socket if self.is_on else "",
            "plugins": self.host.plugins() if self.is_on else [],
            "problems": [
                *(self.host.problems if self.is_on else ()),
                *filter(None, [self._context.intents.problem]),
            ],
            "is_asking": self._is_asking,
            "unfinished": len(self._context.hidden.making) + len(self._context.hidden.making_sandboxes),
        }

    async def close(self) -> None:
        """After the last call has ended."""
        if self._starting is not None:
            if not self._starting.done():
                self._starting.cancel()
                await asyncio.wait({self._starting})
            await self.host.close()
        await self._context.dispatcher.close()


class CallsInFlight:
    """Calls that make pods and containers while no plugin is connected: they pass, and are counted.

    A plugin that connects is shown a list of what there is. A create under way would be in no list yet, and no plugin
    would be asked about it: so the list waits for these calls. ``wait`` returns when one has ended.
    """

    def __init__(self) -> None:
        #: Set when one has ended, and once in the beginning.
        self._some = asyncio.Event()
        self._some.set()

    def open(self, context: HostContext, engine: Optional[Interception], full_method: str) -> Interception:
        return CallInFlight(context, engine, full_method, self)

    async def wait(self) -> None:
        await self._some.wait()
        self._some.clear()

    def over(self) -> None:
        self._some.set()


class CallInFlight(HostedCall):
    def __init__(
        self, context: HostContext, engine: Optional[Interception], full_method: str, passing: CallsInFlight
    ) -> None:
        super().__init__(context, engine, full_method)
        self._calls_in_flight = passing
        context.under_way.begun(self)

    async def request(self, message: bytes) -> Outcome:
        # A leftover of that name by the daemon before goes first, whatever plugins are there now.
        cleanup = self.context.cleanup
        try:
            if runtime_method(self.full_method) == "CreateContainer":
                await cleanup.clear_for(container_key(parse(cri.CreateContainerRequest, message)))
            else:
                await cleanup.clear_for_sandbox(sandbox_key(parse(cri.RunPodSandboxRequest, message)))
        except (AnswerFailed, UnreadableRequest):
            pass  # the runtime answers with its error
        return await super().request(message)

    async def after(self, end: CallEnd, code: int) -> None:
        self.context.under_way.over(self)
        self._calls_in_flight.over()


class _Undecided:
    """A plugin may connect between a call's headers and its request: hosting is decided with the request."""

    def __init__(self, hosting: NriHosting, engine: Optional[Interception], full_method: str) -> None:
        self._hosting = hosting
        self._engine = engine
        self._full_method = full_method
        self._call: Optional[Interception] = None

    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]:
        return None

    async def request(self, message: bytes) -> Outcome:
        self._call = self._hosting.open_making(self._engine, self._full_method)
        return await self._call.request(message)

    async def replied(self, message: bytes) -> None:
        if self._call is not None:
            await self._call.replied(message)

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        if self._call is not None:
            await self._call.ended(end, code, details)
