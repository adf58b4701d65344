"""The relay of HTTP/2 frames: serves clients' sockets, has one connection to the runtime for each of theirs.

Nothing is decided here: what passes and what does not is ``relay.http2.relay``'s, what becomes of a call is the
interceptor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from cri_api.socket_paths import listen_at
from cri_api.supervisor import Supervisor
from cri_proxy import greeting
from cri_proxy.relay.interception import Around, Interceptor, as_it_is
from cri_proxy.relay.io.drain import STOPPING, DrainedCall, Settling, is_long
from cri_proxy.relay.io.link import Link
from cri_proxy.relay.io.links import RESTING, Kind, Links
from cri_proxy.relay.io.subscription import Subscription
from cri_proxy.relay.status import Code
from cri_proxy.unix_sockets import bind_wanted, copy_access

#: How often a runtime that is away is looked for.
LOOK_FOR_RUNTIME_S = 0.1
#: Connections with calls; others wait at the socket. Each needs two descriptors, of which some stay for all else.
MAX_BUSY, SPARE_DESCRIPTORS = 4_000, 256
#: Connections without calls, by default, and those that were closed and whose clients have yet to go.
MAX_IDLE, MAX_GOING = 1_024, 256
#: Bytes in memory for all connections together: each that keeps more than ``SMALL`` has an equal share of it.
MAX_KEPT = 128 << 20
#: What a connection may keep whatever there is; a call costs as much, and so does a greeting.
SMALL = 4096
#: Connections accepted in one turn of the event loop; in the next one, what they say is read.
ACCEPT_AT_ONCE = 16
#: Out of descriptors: look again so much later.
ACCEPT_AGAIN_S = 0.5
BACKLOG = 4096
#: How long calls wait at a start. kubelet waits 5 s for an answer to its connection.
START_BEHIND_S = 2.0
#: A client that does not answer our ping within this is none that waits for anything.
FAREWELL_S = 2.0
#: How long clients have to take the last bytes of their calls.
LAST_BYTES_S = 1.0
_TICK_S = 1.0
_LOOK_S = 0.01

NO_DESCRIPTORS = (
    "no connection can be served: too few open files; LimitNOFILE of the unit must be 1024 or more"
)
#: What ``on_trouble`` is told about.
ACCEPTING, REACHING = "connections", "connections to the runtime"

Note = Callable[[str, str], None]


class FrameRelay:
    """``runtime``: the path of its socket. ``on_failed_open``: a request that passed unseen, its method and why.

    ``on_closing``: why a connection was closed about which there was a doubt. ``on_bug``: what an interception has
    raised, which passes its call on unchanged, or we have, which ends its connection. ``on_trouble``: why clients wait
    (a topic, and a sentence; empty when it is over). ``most_idle``: connections without calls; with more, the one that is
    missed least is closed, which ``on_dismissal`` is told. ``most_kept``: bytes in memory for all connections together; one
    with more than its share is closed, which ``on_loss`` is told with a sentence. ``around``: put around interceptions.
    ``supervisor``: begins what goes on by itself; one of its own by default.
    """

    def __init__(
        self,
        runtime: str,
        interceptor: Interceptor,
        on_failed_open: Note = lambda method, reason: None,
        on_closing: Callable[[str], None] = lambda reason: None,
        on_bug: Callable[[Exception], None] = lambda error: None,
        on_trouble: Note = lambda topic, sentence: None,
        most_idle: int = MAX_IDLE,
        on_dismissal: Callable[[], None] = lambda: None,
        most_kept: int = MAX_KEPT,
        on_loss: Callable[[str], None] = lambda sentence: None,
        around: Around = as_it_is,
        supervisor: Optional[Supervisor] = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self.runtime = runtime
        self.interceptor = interceptor
        self.around = around
        #: Paths that clients may use.
        self.sockets: list[Path] = []
        #: Intercepted calls under way.
        self.tasks: set[asyncio.Task[Any]] = set()
        self.failed_open = on_failed_open
        self.closing = on_closing
        self.failed = on_bug
        self._note_trouble = on_trouble
        #: Connections to the runtime that are being made.
        self.joining: set[asyncio.Task[None]] = set()
        self.subscriptions: set[Subscription] = set()
        self.last_call_s: Optional[float] = None
        self._dismissed = on_dismissal
        self._most_idle = most_idle
        self._lost = on_loss
        self._most_kept = most_kept
        #: Those that keep more than ``SMALL``.
        self._keeping: set[Link] = set()
        self._most_busy = min(
            MAX_BUSY, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS) // 2
        )
        self._links: Links[Link] = Links()
        self._own: dict[Path, socket.socket] = {}
        self._given: list[socket.socket] = []
        self._is_accepting = False
        self._ticking: Optional[asyncio.Task[None]] = None
        self._looking: Optional[asyncio.Task[None]] = None

    # ------------------------------------------------------------------ sockets

    async def open(self, wanted: Sequence[Path], given: Sequence[socket.socket]) -> dict[Path, str]:
        """Bind ``wanted`` (the first must be had), take the listening sockets we were ``given``.

        Returns why others are not served, by path. What connects from here on waits for ``start_behind``.

        :raises OSError: the first cannot be had.
        """
        self.sockets, problems = bind_wanted(wanted, given, self._bind)
        self._given = list(given)
        if self._most_busy < 1:
            self._note_trouble(ACCEPTING, NO_DESCRIPTORS)
        return problems

    def _bind(self, path: Path) -> None:
        self._own[path] = _bound(path)

    async def start_behind(self, work: Coroutine[Any, Any, object]) -> None:
        """Serve as soon as ``work`` is done, or it has taken too long; then wait for it."""
        async with behind(work):
            self._ticking = self._supervisor.keep("relay's clock", self._tick)
            for connection in greeting.take():
                self._begin(connection, is_greeted=True)
            self._accept_on(self._listeners())

    @property
    def last_call_age_s(self) -> Optional[float]:
        """Seconds since a client called last, intercepted or not; None: there was no call yet."""
        return None if self.last_call_s is None else asyncio.get_running_loop().time() - self.last_call_s

    def copy_access(self, runtime: Path) -> None:
        """Give clients' sockets the mode and owner of the runtime's."""
        copy_access(runtime, [path for path in self._own if path in self.sockets])

    def _listeners(self) -> list[socket.socket]:
        return [*self._own.values(), *self._given]

    # ------------------------------------------------------------------ connections

    def _accept_on(self, listeners: Iterable[socket.socket]) -> None:
        self._is_accepting = True
        for listener in listeners:
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _pause(self) -> None:
        """Accept no more; callers queue at the sockets."""
        self._is_accepting = False
        for listener in self._listeners():
            asyncio.get_running_loop().remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE if self._is_accepting else 0):
            if self._has_too_many_busy():
                limit = f"{self._most_busy} connections have calls, which is the limit"
                self._rest(limit if self._most_busy > 0 else NO_DESCRIPTORS)
                return
            try:
                accepted, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._note_trouble(ACCEPTING, "")
                return
            except OSError as error:  # no descriptors, no memory
                self._rest(f"no more connections can be accepted: {error.strerror or error}")
                return
            self._begin(accepted)

    def _has_too_many_busy(self) -> bool:
        """Whether no further connection may be accepted for those that have calls."""
        if len(self._links) - self._links.count(Kind.GOING) < self._most_busy:
            return False
        for link in self._links:
            self._follow(link)
        return self._links.count(Kind.BUSY) >= self._most_busy

    def _rest(self, why: str) -> None:
        """Accept no more for a while."""
        self._pause()
        self._note_trouble(ACCEPTING, f"{why}; a client that connects waits at the socket")
        asyncio.get_running_loop().call_later(ACCEPT_AGAIN_S, self._accept_again)

    def _accept_again(self) -> None:
        if not self._is_accepting and self._ticking is not None:
            self._accept_on(self._listeners())
            # At once: the trouble is over also if no call waits any more.
            for listener in self._listeners():
                self._accept(listener)

    def _begin(self, accepted: socket.socket, is_greeted: bool = False) -> None:
        Link(self, is_greeted).begin(accepted)

    def placed(self, link: Link, kind: Kind) -> None:
        """A client is there, or its connection has become something else."""
        self._links.place(link, kind)
        if kind is Kind.GOING:
            if self._links.count(Kind.GOING) > MAX_GOING:
                self._links.oldest(Kind.GOING).abort()
        elif kind in RESTING:
            self._dismiss_surplus()

    def _follow(self, link: Link) -> bool:
        """Follow what has become of a link by its calls; whether anything has."""
        kind = link.settle()
        if kind is not None:
            self._links.place(link, kind)
        return kind is not None

    def _dismiss_surplus(self) -> None:
        """Close one connection that rests, if there are too many."""
        # One that was used since is not the oldest any more; each is so once.
        while (surplus := self._links.surplus(self._most_idle)) is not None:
            if not self._follow(surplus):
                surplus.dismiss()
                self._dismissed()
                return

    def stranded(self) -> None:
        """A client is there for which there is no runtime."""
        if self._looking is None or self._looking.done():
            self._looking = self._supervisor.keep("stranded clients", self._look_for_runtime, may_end=True)

    def unreached(self, why: str) -> None:
        """The runtime may be there, and we cannot connect."""
        self._note_trouble(REACHING, why)

    def left(self, link: Link) -> None:
        """A client has gone."""
        self._links.discard(link)
        self._keeping.discard(link)

    def keeps(self, link: Link, size: int) -> None:
        """So many bytes are in memory for a connection; with more than its share it is closed."""
        if size <= SMALL or not link.client.is_open:
            self._keeping.discard(link)
            return
        self._keeping.add(link)
        share = max(SMALL, self._most_kept // len(self._keeping))
        if size <= share:
            return
        link.ask_queued()  # what was taken from it since is not counted at once
        if (kept := link.kept_bytes) > share:
            of_all = f"an equal share of {self._most_kept >> 20} MiB for {len(self._keeping)}"
            link.give_up(f"cri-resmgr keeps more in memory for this connection than {of_all}")
            self._lost(f"{kept >> 10} KiB were kept for it, more than {of_all}")

    async def _look_for_runtime(self) -> None:
        """While clients are here that have no runtime: when it is there again they connect anew."""
        while waiting := [link for link in self._links if link.is_stranded]:
            await asyncio.sleep(LOOK_FOR_RUNTIME_S)
            if await _is_there(self.runtime):
                for link in waiting:
                    link.send_away()
        self._note_trouble(REACHING, "")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = asyncio.get_running_loop().time()
            for link in self._links:
                try:
                    link.tick(now_s)
                    if self._follow(link):
                        self._dismiss_surplus()
                    self.keeps(link, link.kept_bytes)  # the more others there are, the less each may keep
                except Exception as error:  # of one; the others' time passes all the same
                    self.failed(error)
                    link.abort()

    # ------------------------------------------------------------------ the end

    async def close(self, drain_s: float, stops_s: float = 0.0) -> None:
        """Take no new calls, let those under way end, remove what we have made.

        Long calls and streams end at once, others when they have had their time (``Settling``). On sockets we were
        given no call fails that ends within it: a client that connects meanwhile waits for the next daemon, so the wait
        for old calls comes first.
        """
        await self._settle(drain_s, stops_s)
        ticking, self._ticking = self._ticking, None
        self._pause()
        await asyncio.gather(*self.joining)
        for link in self._links:
            link.say_farewell()
        # Not longer: others wait at the socket meanwhile, and kubelet for 5 s at most until a connection is answered.
        await self._until(lambda link: link.has_read_farewell, FAREWELL_S)
        await self._drain(drain_s)
        await self._until(lambda link: not link.is_busy, LAST_BYTES_S)
        for link in self._links:
            link.close()
        await self._until(lambda link: False, LAST_BYTES_S)
        for link in self._links:
            link.abort()
        await _cancelled([task for task in (ticking, self._looking, *self.tasks) if task is not None])
        for listener in self._listeners():
            listener.close()
        for path in self._own:
            path.unlink(missing_ok=True)
        self._own, self._given = {}, []

    async def _settle(self, drain_s: float, stops_s: float) -> None:
        """Serve on until those that have a right to it have ended; end those that have had their time."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        settling = Settling(now_s, drain_s, stops_s, only_stops=not self._given)
        under_way: dict[tuple[Link, int, str], DrainedCall] = {}
        while True:
            under_way = {
                call: under_way.get(call) or call[0].under_way(call[1]) or DrainedCall(call[2], now_s)
                for call in self._calls(long=False)
            }
            if not any(settling.waits_for(call, now_s) for call in under_way.values()):
                break
            await asyncio.sleep(_LOOK_S)
            now_s = loop.time()
        for (link, stream, _method), call in under_way.items():
            if settling.is_due(call, now_s):
                link.stop_call(stream, Code.UNAVAILABLE, STOPPING)

    async def _drain(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            for link, stream, _ in self._calls(long=True):
                link.stop_call(stream, Code.UNAVAILABLE, STOPPING)
            rest = self._calls(long=False)
            if not (rest or self.tasks) or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_LOOK_S)
        for link, stream, _ in rest:
            link.stop_call(stream, Code.UNAVAILABLE, STOPPING)

    def _calls(self, long: bool) -> list[tuple[Link, int, str]]:
        """The calls under way that last for minutes, or all others."""
        return [
            (link, stream, method)
            for link in self._links
            for stream, method in link.methods.items()
            if is_long(method) is long
        ]

    async def _until(self, holds: Callable[[Link], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not all(holds(link) for link in self._links) and loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def behind(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """A block that begins as soon as ``work`` is done, or it has taken too long; it ends with the work.

    What is waited for is the engine: no create of those that wait since a restart goes unplaced.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=START_BEHIND_S)
        yield
        await task
    finally:
        task.cancel()


def _bound(path: Path) -> socket.socket:
    return listen_at(path, "relay.socket or relay.extra_sockets", backlog=BACKLOG)


async def _is_there(path: str) -> bool:
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_unix_connection(path)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
