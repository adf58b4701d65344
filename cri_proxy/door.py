"""What clients beside the relay may cost it: connections, bytes in memory, and time of its event loop.

Whoever connects to an endpoint (metrics, control, view) shares the event loop with the calls of kubelet. So an endpoint
accepts one connection after the other, has a bounded number of them, ends those that are idle or slow, and answers one
question at a time. While calls pass, all its answers together have a small part of the loop's time; else it has its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Awaitable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Callable, Generic, Optional, TypeVar

from cri_api.supervisor import Supervisor
from cri_api.waiting import wait_within

Result = TypeVar("Result")

#: The part of the loop's time that answers may take while calls pass, and how much of it may be saved up, seconds. An
#: answer takes some 3 ms, as a call does: at two a second not one call in a hundred meets one.
ANSWERS, SAVED_S = 0.005, 0.02
#: The same of accepting, which takes some 0.1 ms a connection.
ACCEPTS = 0.01
#: Connections of an endpoint; one more is refused.
MOST_CONNECTIONS = 64
#: How long a client may take for a request it has begun, or for its first; and between two, seconds.
REQUEST_S, IDLE_S = 10.0, 300.0
#: How long a client may take to read an answer, seconds, and how many may be at it.
READING_S, MOST_READING = 10.0, 8
#: Out of descriptors or memory: accept again so much later, seconds.
AGAIN_S = 0.5
BACKLOG = 64
#: Bytes of a request that any client may have in memory; a longer one waits until there are fewer of these.
SMALL, MOST_LARGE = 16 << 10, 1
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Share:
    """One after the other, and of the loop's time no more than a part.

    ``is_busy``: whether there is anything to be spared now. ``work_clock``: of the time that work takes, seconds; CPU time,
    so that other processes are not counted.
    """

    def __init__(
        self,
        part: float,
        is_busy: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._part = part
        self._is_busy = is_busy
        self._clock = clock
        self.work_clock = work_clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        #: Until when what was taken is paid for.
        self._paid_s = clock()

    async def begin(self) -> None:
        """Wait for the turn, which ends with ``end``."""
        await self._turn.acquire()
        try:
            await self._sleep(0)  # calls that have come meanwhile go first
            while self._is_busy() and (wait_s := self._paid_s - self._clock()) > 0:
                await self._sleep(min(wait_s, _LOOK_S))
        except BaseException:
            self._turn.release()
            raise

    def end(self) -> None:
        self._turn.release()

    def took(self, seconds: float) -> None:
        """Work has taken so much of the loop's time."""
        saved_from_s = self._clock() - SAVED_S / self._part
        self._paid_s = max(self._paid_s, saved_from_s) + seconds / self._part

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What ``work`` returns or raises. It has the turn until it waits for something else."""
        try:
            await self.begin()
        except BaseException:
            work.close()
            raise
        return await _Metered(work, self)


#: How often it is looked whether calls still pass, seconds.
_LOOK_S = 0.1


class _Metered(Generic[Result]):
    """Runs a coroutine, and counts the time of its own steps."""

    def __init__(self, work: Coroutine[Any, Any, Result], share: Share) -> None:
        self._work = work
        self._share = share

    def __await__(self) -> Generator[Any, Any, Result]:
        share, clock = self._share, self._share.work_clock
        steps = self._work.__await__()
        thrown: Optional[BaseException] = None
        has_turn = True
        try:
            while True:
                began_s = clock()
                try:
                    waits_for = next(steps) if thrown is None else steps.throw(thrown)
                except StopIteration as over:
                    result: Result = over.value
                    return result
                finally:
                    share.took(clock() - began_s)
                thrown = None
                if waits_for is not None and has_turn:  # None: it only lets others go first
                    has_turn = False
                    share.end()
                try:
                    yield waits_for
                except BaseException as error:
                    thrown = error
        finally:
            if has_turn:
                share.end()


class Refused(Exception):
    """The connection is to be ended with these words."""

    def __init__(self, words: bytes) -> None:
        super().__init__(words)
        self.words = words


class Visitor:
    """One connection. Reads and writes are bounded in bytes and time."""

    def __init__(self, door: Door, connection: socket.socket) -> None:
        self._door = door
        self._connection = connection
        self._begun = bytearray()
        self._is_large = False

    async def request(self, end: bytes, most: int, idle_s: float = REQUEST_S) -> Optional[bytes]:
        """The next request up to and with its ``end``; None: there is no more. The one before has its answer.

        :raises EOFError: it is longer than ``most``.
        :raises asyncio.TimeoutError: it takes too long, or there was none for ``idle_s``.
        :raises OSError: the connection is lost.
        """
        self.forget()
        if not self._begun and not await wait_within(idle_s, self._read()):
            return None
        return await wait_within(REQUEST_S, self._rest(end, most))

    def forget(self) -> None:
        """The request is no longer in memory."""
        if self._is_large:
            self._is_large = False
            self._door.large.release()

    async def _rest(self, end: bytes, most: int) -> Optional[bytes]:
        looked = 0
        while (found := self._begun.find(end, looked)) < 0:
            looked = max(0, len(self._begun) - len(end) + 1)
            if len(self._begun) > most:
                raise EOFError
            if len(self._begun) > SMALL and not self._is_large:
                await self._door.large.acquire()
                self._is_large = True
            if not await self._read():
                return None
        line = bytes(self._begun[: found + len(end)])
        del self._begun[: found + len(end)]
        return line

    async def _read(self) -> bool:
        data = await asyncio.get_running_loop().sock_recv(self._connection, SMALL)
        self._begun += data
        return bool(data)

    async def answer(self, pieces: Sequence[bytes]) -> None:
        """Send an answer. Of clients that do not read theirs only so many are waited for.

        :raises OSError, asyncio.TimeoutError: the client is gone, or does not read.
        """
        for number, piece in enumerate(pieces):
            left = memoryview(piece)
            with contextlib.suppress(BlockingIOError):
                left = left[self._connection.send(left) :]
            if left:
                with self._door.reading():
                    rest = b"".join([left, *pieces[number + 1 :]])
                    await wait_within(
                        READING_S, asyncio.get_running_loop().sock_sendall(self._connection, rest)
                    )
                return


class Door:
    """Listens for one endpoint. ``serve`` has a visitor until the connection is to be closed.

    ``refusal``: the words for a connection too many, made of a sentence. ``note``: told why nothing can be accepted,
    or "" once it can be.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[Visitor], Awaitable[None]],
        refusal: Callable[[str], bytes],
        note: Callable[[str], object] = lambda why: None,
        supervisor: Optional[Supervisor] = None,
        is_busy: Callable[[], bool] = lambda: True,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self.answers = Share(ANSWERS, is_busy)
        self.large = asyncio.Semaphore(MOST_LARGE)
        self.refused = 0
        self._accepts = Share(ACCEPTS, is_busy)
        self._name = name
        self._serve = serve
        self._refusal = refusal
        self._note = note
        self._supervisor = supervisor or Supervisor()
        self._most = most
        self._reading = 0
        self._visits: set[asyncio.Task[None]] = set()
        self._accepting: list[asyncio.Task[Any]] = []
        self._listeners: list[socket.socket] = []

    @property
    def connections(self) -> int:
        return len(self._visits)

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Accept on these, which are listening, until ``close``."""
        self._listeners = list(listeners)
        for number, listener in enumerate(self._listeners):
            listener.setblocking(False)
            accept, keep = self._accept_on(listener), self._supervisor.keep
            self._accepting.append(
                keep(f"{self._name} door {number + 1}", accept)
                if number
                else keep(f"{self._name} door", accept)
            )

    async def close(self) -> None:
        """End all connections, and listen no more."""
        tasks = [*self._accepting, *self._visits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners, self._accepting = [], []

    def _accept_on(self, listener: socket.socket) -> Callable[[], Coroutine[Any, Any, None]]:
        async def accept() -> None:
            while True:
                try:
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                except OSError as error:
                    if error.errno not in _SHORT:
                        raise
                    self._note(f"nothing can connect: {error.strerror}")
                    await asyncio.sleep(AGAIN_S)
                    continue
                try:
                    await self._accepts.run(self._let_in(connection))
                except BaseException:
                    connection.close()
                    raise

        return accept

    async def _let_in(self, connection: socket.socket) -> None:
        self._note("")
        connection.setblocking(False)
        if len(self._visits) >= self._most:
            self.refused += 1
            with connection, contextlib.suppress(OSError):
                connection.send(self._refusal(f"{self._most} connections are open, which is the limit"))
            return
        visit = self._supervisor.begin(f"{self._name} connection", self._visit(connection))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, connection: socket.socket) -> None:
        visitor = Visitor(self, connection)
        with connection:
            try:
                await self._serve(visitor)
            except Refused as refused:
                with contextlib.suppress(OSError):
                    connection.send(refused.words)
            except (OSError, EOFError, asyncio.TimeoutError):
                pass  # gone, too slow, or too long
            finally:
                visitor.forget()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A client takes its time to read an answer, which is in memory meanwhile.

        :raises ConnectionError: too many do.
        """
        if self._reading >= MOST_READING:
            raise ConnectionError(f"{self._reading} clients do not read their answers")
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
