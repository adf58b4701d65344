"""What goes on while calls pass: the runtime is followed, its list compared, its events read.

A round that fails by a bug is logged and shown in the status; the next one is made all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable
from typing import Callable, Optional

from bpf.kernel.notify import notify
from cri_api.waiting import wait_within
from cri_proxy.daemon.engine_host import Assembly
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.invariants import unmet_in_short
from cri_proxy.front_ends.events import note_event
from cri_proxy.relay.status import RpcError
from cri_proxy.runtime import NoRuntime, discover
from cri_proxy.services.services import Services
from policies.model import Pod

#: How often the runtime is asked while it is not known which CPUs are owned, seconds.
BOOKS_AGAIN_S = 0.25
#: How often an engine is tried while there is none, seconds: reading a large sysfs takes some 100 ms.
RETRY_S = 5.0
#: How long after a create was left in doubt the runtime is asked, seconds; after twice as long each time it has not
#: told what became of it.
DOUBT_LOOK_S = 1.0
#: How long a runtime that does not answer as one is left alone, seconds.
IDENTIFY_AGAIN_S = 1.0
#: How often a runtime is looked for where none was found, seconds.
FIND_S = 1.0
#: How long the runtime may be away before that is a reason, seconds. A restart of it takes one or two.
ABSENT_S = 5.0


class Looks:
    """When the runtime is looked at for what is left open: a moment later, then after growing pauses, until it is settled.

    ``loop``: whose clock is used; the running one by default.
    """

    def __init__(self, look: Callable[[], None], loop: Optional[asyncio.AbstractEventLoop] = None) -> None:
        self._look = look
        self._loop = loop
        self._pause_s = DOUBT_LOOK_S
        self._timer: Optional[asyncio.TimerHandle] = None
        #: Whether something was left open since the last look: a round that was under way may not have seen it.
        self._is_news = False

    def soon(self) -> None:
        """Something was left open just now."""
        self._is_news = True
        self._pause_s = DOUBT_LOOK_S
        self._set_timer()

    def compared(self, is_settled: bool, longest_s: float) -> None:
        """A round is over: it has left nothing open, or there is another look ``longest_s`` later at most."""
        self._pause_s = min(self._pause_s, longest_s)
        if not is_settled or self._is_news:
            self._set_timer()
            return
        self._pause_s = DOUBT_LOOK_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        loop, timer = self._loop or asyncio.get_running_loop(), self._timer
        if timer is not None:
            if timer.when() <= loop.time() + self._pause_s:
                return
            timer.cancel()
        self._timer = loop.call_later(self._pause_s, self._ring)

    def _ring(self) -> None:
        self._is_news = False
        self._timer = None
        self._pause_s *= 2
        self._look()


class Maintenance:
    """Each public coroutine runs until it is cancelled.

    ``bring_up`` tries to get an engine: is there one? ``afterwards`` is called after every round that did not fail.
    """

    def __init__(
        self,
        services: Services,
        assembly: Assembly,
        bring_up: Callable[[], Awaitable[bool]],
        afterwards: Callable[[], Awaitable[None]],
    ) -> None:
        self._services = services
        self._assembly = assembly
        self._bring_up = bring_up
        self._afterwards = afterwards
        self._looks = Looks(services.look.set)
        #: The engine that a full round has gone through before.
        self._known: Optional[Engine] = None
        #: When the runtime has listed its containers last, as Unix time.
        self.listed_s: Optional[float] = None

    def look_soon(self) -> None:
        """A create was left in doubt: the runtime usually knows a moment later."""
        self._looks.soon()

    async def note_pod(self, pod: Pod) -> None:
        """A pod tells where kubelet's cgroup is: what that allows must be known before its first container."""
        if self._services.machine.note_cgroup(pod.cgroup_parent):
            self._services.log.info("a pod's cgroup is news", cgroup_parent=pod.cgroup_parent)
            await self._assembly.follow_machine()

    async def watchdog(self, period_s: float) -> None:
        """Tell systemd that the event loop turns."""
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(period_s)

    async def find_runtime(self, candidates: tuple[str, ...], found: Callable[[str], None]) -> None:
        """Where no runtime was found: look until there is one, and tell its path."""
        while True:
            await asyncio.sleep(FIND_S)
            with contextlib.suppress(NoRuntime):
                return found(discover("", candidates))

    async def follow_runtime(self, returned: Callable[[], None]) -> None:
        """Keep the connection trying; when the runtime appears, find out what it is and compare lists."""
        services, runtime = self._services, self._services.runtime
        while True:
            await self._until_connected()
            try:
                runtime.api = ""
                await runtime.identify()
            except RpcError as error:
                services.health.note(
                    "runtime", f"{runtime.path} does not answer as a CRI runtime: {error.details}"
                )
                await asyncio.sleep(IDENTIFY_AGAIN_S)
                continue
            services.health.note("runtime", "")
            returned()
            services.log.info("runtime", name=runtime.name, version=runtime.version, api=runtime.api)
            services.look.set()
            await runtime.wait_lost()
            services.log.warning("the runtime's connection was lost", path=runtime.path)

    async def _until_connected(self) -> None:
        absent = asyncio.get_running_loop().call_later(ABSENT_S, self._note_absent)
        try:
            await self._services.runtime.wait_ready()
        finally:
            absent.cancel()

    def _note_absent(self) -> None:
        health, path = self._services.health, self._services.runtime.path
        if "runtime" not in health.reasons:  # a sentence that says more
            health.note("runtime", absence_of(path))

    async def reconcile(self) -> None:
        """Look for exits every poll, at cpusets every interval, at both whenever something has happened."""
        services, loop, constants = (
            self._services,
            asyncio.get_running_loop(),
            self._services.config.constants,
        )
        full_at = 0.0
        while True:
            books = services.node_state.books
            waiting_s = RETRY_S if services.node_state.engine is None else constants.reconcile_poll_s
            if not books.are_true:
                waiting_s = min(waiting_s, BOOKS_AGAIN_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_within(waiting_s, services.look.wait())
            full = services.look.is_set() or loop.time() >= full_at or not books.are_true
            services.look.clear()
            if full:
                full_at = loop.time() + constants.reconcile_interval_s
            is_settled = False
            try:
                is_settled = await self._reconcile_once(full)
                await self._afterwards()
            except Exception as error:
                services.node_state.note_compared(is_done=False)
                services.log.error("a comparison with the runtime failed", exc_info=True)
                services.health.note(
                    "reconcile", f"comparing with the runtime fails: {type(error).__name__}: {error}"
                )
            else:
                services.health.note("reconcile", "")
            self._looks.compared(is_settled, constants.reconcile_interval_s)

    async def _reconcile_once(self, full: bool) -> bool:
        """One round; returns whether it has left nothing open that another look could settle."""
        services, node_state, is_compared = self._services, self._services.node_state, True
        if node_state.engine is None and not await self._bring_up():
            return True
        engine = node_state.active()
        if engine is None:
            return True
        if full:
            await self._assembly.follow_machine()
            node_state.updates.hurry()
            await services.store.checkpoint()
        if services.runtime.api and (full or not self._events_read):
            is_compared = await self._compare(full)
        # Pods that ran before us tell it, too; the newest is asked, for kubelet's cgroup may have been moved.
        newest = next(reversed(tuple(engine.pods.values())), None)
        if newest is not None:
            await self.note_pod(newest)
        # It may have been replaced meanwhile.
        engine = node_state.active()
        if engine is not None:
            engine.tick(node_state.clock())
            # Nothing is to change because a daemon starts: containers move from an engine's second round on.
            may_move = engine is self._known and node_state.gives_cpus
            self._known = engine if node_state.books.are_true else None
            if may_move and is_compared:
                engine.relieve(node_state.clock())
            node_state.save()
            if full:
                self._follow_quotas(engine)
                await self._mend(engine, may_move)
        services.health.note("state", services.store.problem)
        # A runtime that is away is looked at when it is back.
        doubts = engine is not None and any(ticket.in_doubt for ticket in engine.tickets.values())
        return not services.runtime.is_connected or (is_compared and not doubts)

    async def _mend(self, engine: Engine, may_move: bool) -> None:
        """What must never be is mended, where that can be, and calls pass in between; what is left of it is a reason."""
        node_state = self._services.node_state
        if may_move:
            for broken in engine.mend_slices(node_state.clock()):
                node_state.save()
                if broken:
                    self._services.log.warning("invariants were broken", sentences=broken)
                await asyncio.sleep(0)
                if engine is not node_state.active() or not node_state.gives_cpus:
                    break
            node_state.save()
            await asyncio.sleep(0)
        self._services.health.note("invariants", unmet_in_short(engine))

    async def _compare(self, full: bool) -> bool:
        """Whether the runtime's list could be had."""
        services = self._services
        try:
            await services.reconciler.run(with_cpusets=full)
        except RpcError as error:
            services.metrics.resyncs.labels("failed").inc()
            services.node_state.note_compared(is_done=False)
            services.log.warning("the runtime's list could not be had", error=error.details)
            # A runtime that is away is another reason than one that is stuck.
            if services.runtime.is_connected:
                services.health.note("list", f"the runtime does not list its containers: {error.details}")
            return False
        services.health.note("list", "")
        self.listed_s = time.time()
        return True

    def _follow_quotas(self, engine: Engine) -> None:
        """Lift again what kubelet has limited anew: it writes pods' cgroups itself."""
        node_state = self._services.node_state
        node_state.follow_quotas()
        if node_state.quotas is not None:
            under_way = engine.under_way
            found = node_state.quotas.drifted(engine.grants.values(), self._services.reconciler.cgroup_of)
            for key, is_lifted, why in list(found):
                if key not in under_way:
                    engine.saw(key, is_lifted=is_lifted, cause=why)
            node_state.updates.wake()
            self._services.health.warn("quotas", node_state.quotas.sentences(engine.pods.values()))

    @property
    def _events_read(self) -> bool:
        return self._services.events.streams > 0 or self._services.events.own_stream

    async def read_events(self) -> None:
        """Our own event stream: only while no client has one and where that takes nothing from a client."""
        services, node_state = self._services, self._services.node_state
        while True:
            await asyncio.sleep(1)
            engine = node_state.active()
            if engine is None or services.events.streams or not services.runtime.events_can_be_shared():
                continue
            try:
                services.events.own_stream = True
                async for event in services.runtime.events():
                    note_event(node_state, engine, event)
                    if services.events.streams or engine is not node_state.active():
                        break
            except (RpcError, ValueError):
                pass  # polling notices exits, too
            except Exception:
                services.log.error("an event could not be followed", exc_info=True)
            finally:
                services.events.own_stream = False


def absence_of(path: str) -> str:
    """Why there is no runtime at a socket, in a sentence. Does not wait: a connection that is queued counts as accepted."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except BlockingIOError:
        return f"the runtime does not answer: it accepts no further connections at {path}"
    except ConnectionRefusedError:
        return f"the runtime is not there: nothing accepts connections at {path}"
    except OSError as error:
        return f"the runtime is not there: {path}: {error.strerror}"
    return f"the runtime does not answer: it accepts connections at {path} and says nothing"
