"""One intercepted call on the frame relay: asks the interception, in order, and carries out what it decides."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Union

from cri_proxy import effects
from cri_proxy.relay.http2.headers import Headers, value_of
from cri_proxy.relay.http2.wire import Ended, ReplyReceived, RequestReceived
from cri_proxy.relay.interception import (
    TRACE,
    TRACE_HEADERS,
    Answer,
    AnswerFailed,
    Around,
    CallEnd,
    Forward,
    Interception,
    Outcome,
    Refuse,
)
from cri_proxy.relay.io.drain import STOPPING, DrainedCall, grace_of
from cri_proxy.relay.status import Code, Metadata

#: What is sent for each message that was shown; nothing: the messages.
Instead = Sequence[Optional[bytes]]
#: Called when a step is noted.
Done = Callable[[Instead], None]


class CallLink(Protocol):
    """What a call needs of the connection it came on."""

    def forward(self, stream: int, delta: bytes) -> None: ...
    def take_over(self, stream: int) -> None: ...
    def answer(self, stream: int, message: bytes) -> None: ...
    def finish(self, stream: int, code: int, details: str, metadata: Metadata = ()) -> None: ...
    def failed_open(self, error: Exception) -> None: ...


class FrameCall:
    """Made when the call's headers come; ``run`` when its request is there."""

    def __init__(self, method: str, interception: Interception, link: CallLink) -> None:
        self.method = method
        #: What a stop of the daemon is to know.
        self.under_way = DrainedCall(method, asyncio.get_running_loop().time())
        self._interception = interception
        self._link = link
        self._trace: tuple[tuple[str, str], ...] = ()
        self._steps: deque[tuple[Union[ReplyReceived, Ended], Done]] = deque()
        self._more = asyncio.Event()

    def trace(self, headers: Headers, around: Around) -> None:
        """Put its span around the interception. Called before ``run``."""
        trace = [
            (name, value_of(headers, name.encode()).decode("ascii", "replace")) for name in TRACE_HEADERS
        ]
        self._trace = tuple([(name, value) for name, value in trace if value])
        self._interception = around(self.method, dict(trace)[TRACE_HEADERS[0]], self._interception)

    def add(self, step: Union[ReplyReceived, Ended], done: Done) -> None:
        """Something was seen of the call."""
        self._steps.append((step, done))
        self._more.set()

    async def run(self, asked: RequestReceived) -> None:
        """From the request to the end, which is told to the interception exactly once."""
        self.under_way.grace_s = grace_of(self.method, asked.message)
        # Said if a stop of the daemon cancels this: nothing was sent yet.
        ended = Ended(asked.stream, self, CallEnd.REFUSED, Code.UNAVAILABLE, STOPPING)
        done: Done = _nothing
        try:
            outcome = await self._decide(asked.message)
            if any(isinstance(step, Ended) for step, _done in self._steps):
                outcome = Forward()  # nowhere, for the call is over: above all no answer is begun
            if not isinstance(outcome, Refuse):
                ended = Ended(asked.stream, self, CallEnd.UNKNOWN, Code.UNAVAILABLE, STOPPING)
            if isinstance(outcome, Forward):
                ended, done = await self._pass(asked, outcome)
            elif isinstance(outcome, Refuse):
                self._link.take_over(asked.stream)
                ended = Ended(asked.stream, self, CallEnd.REFUSED, outcome.code, outcome.message)
                done = self._finishing(ended, None)
            else:
                self._link.take_over(asked.stream)
                ended, done = await self._answer(asked, outcome)
        finally:
            # Before the client learns the end, the state knows it.
            await self._interception.ended(ended.end, ended.code, ended.details)
            effects.before(effects.ANSWER, self.method)
            done(())

    async def _decide(self, message: bytes) -> Outcome:
        """What the interception decides; the original bytes if it fails, which it is not to."""
        try:
            return await self._interception.request(message)
        except Exception as error:
            self._link.failed_open(error)
            return Forward()

    async def _pass(self, asked: RequestReceived, outcome: Forward) -> tuple[Ended, Done]:
        """Send the request on, and show the reply to the interception as it comes."""
        effects.before(effects.REQUEST, self.method)
        self._link.forward(asked.stream, outcome.delta)
        while True:
            while not self._steps:
                self._more.clear()
                await self._more.wait()
            step, done = self._steps.popleft()
            if isinstance(step, Ended):
                return step, done
            instead = [await self._note(message) for message in step.messages]
            effects.before(effects.ANSWER, self.method)
            done(instead)

    async def _note(self, message: bytes) -> Optional[bytes]:
        """Show a reply message; what of it is for the client."""
        try:
            await self._interception.replied(message)
            cut = self._interception.filter  # asked for anew: it may be set while a call lasts
            return message if cut is None else cut(message)
        except Exception as error:
            self._link.failed_open(error)
            return message

    async def _answer(self, asked: RequestReceived, outcome: Answer) -> tuple[Ended, Done]:
        """Make the reply ourselves; to its end, whether or not the client waits for it."""
        reply: Optional[bytes] = None
        trailers: Metadata = ()
        TRACE.set(self._trace)
        try:
            reply = await outcome.reply()
            ended = Ended(asked.stream, self, CallEnd.OK, 0, "")
        except AnswerFailed as error:
            ended = Ended(asked.stream, self, error.end, error.code, error.message)
            trailers = error.trailers
        except Exception as error:
            ended = Ended(
                asked.stream,
                self,
                CallEnd.UNKNOWN,
                Code.INTERNAL,
                f"cri-resmgr: {type(error).__name__}: {error}",
            )
        return ended, self._finishing(ended, reply, trailers)

    def _finishing(self, ended: Ended, reply: Optional[bytes], trailers: Metadata = ()) -> Done:
        def finish(_instead: Instead) -> None:
            if reply is not None:
                self._link.answer(ended.stream, reply)
            self._link.finish(ended.stream, ended.code, ended.details, trailers)

        return finish


def _nothing(_instead: Instead) -> None:
    pass


def run_call(call: FrameCall, asked: RequestReceived, tasks: set[asyncio.Task[Any]]) -> None:
    """Run a call in a task that is kept in ``tasks`` until it ends."""
    task = asyncio.get_running_loop().create_task(call.run(asked))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
