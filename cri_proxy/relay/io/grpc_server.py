"""The transport: a grpc.aio server that passes every call of every method on to the runtime, as bytes.

All methods are served by one generic stream-stream handler without serializers (a unary call is a stream of
one message each way). Metadata, deadline, cancellation, status, details and trailers go through; so do
methods this version has never heard of. Calls for which the interceptor opens an ``Interception`` have their
messages shown to it; what it decides is carried out here, nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

import grpc

from cri_proxy.relay.interception import (
    INTERNAL,
    TRACE,
    TRACE_HEADERS,
    UNAVAILABLE,
    Answer,
    AnswerFailed,
    Around,
    CallEnd,
    Forward,
    Interception,
    Interceptor,
    Outcome,
    Refuse,
    as_it_is,
    end_of,
)
from cri_proxy.relay.io.drain import DrainedCall, Settling, grace_of

#: kubelet allows replies of 16 MiB; we set no limit of our own.
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
    # Clients may ping as often as they like: containerd's server does not mind either.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
CHANNEL_OPTIONS = (
    *SERVER_OPTIONS[:4],
    # A runtime that comes back is found within half a second (design: works again within a second).
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not the least wait, as the name says, but how long a connection may take: on a busy node, some time (seen).
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
    # Else a connection that was refused elsewhere in this process would make this one wait.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
)
#: Request headers that gRPC sets itself on the way to the runtime.
OWN_HEADERS = frozenset(["user-agent", "te", "content-type", "grpc-accept-encoding", "grpc-timeout"])
#: Calls that may last for minutes: they are ended when the daemon stops; clients call again.
LONG_CALLS = frozenset(["GetContainerEvents", "PullImage"])
#: How long a call waits to be seen whole. The end of a unary request comes with the message, or right behind it.
LOOK_AHEAD_S = 0.05
STOPPING = "cri-resmgr is stopping; call again"
_LOOK_S = 0.01

#: Words by which grpc says that a call never left this process.
_NEVER_SENT = ("failed to connect", "connections to all backends failing", "empty address list")

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def open_channel(path: str) -> grpc.aio.Channel:
    """A channel to a unix socket with our options; it connects when used."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS)


@dataclass(eq=False)
class _Call(DrainedCall):
    """A call under way: what is needed to end it when the daemon stops."""

    upstream: Any = None
    stopped: bool = False
    #: Whether it has had its time since the stop began.
    is_due: bool = False

    def stop(self) -> None:
        self.stopped = True
        if self.upstream is not None:
            self.upstream.cancel()


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handler of a grpc.aio server. ``images``: the channel for ImageService where that is another process."""

    def __init__(
        self,
        runtime: grpc.aio.Channel,
        images: Optional[grpc.aio.Channel],
        interceptor: Interceptor,
        around: Around = as_it_is,
    ) -> None:
        self._runtime = runtime
        self._images = images or runtime
        self._interceptor = interceptor
        self._around = around
        self._active: set[_Call] = set()
        #: Answers under way: they outlive the calls they are made for.
        self._answers: set[asyncio.Task[Any]] = set()
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """grpc asks for a method's handler: every method has this one."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:

            async def behaviour(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
                await self._serve(method, requests, context)

            handler = grpc.stream_stream_rpc_method_handler(behaviour)
            if len(self._handlers) < 1000:  # invented method names must not grow our memory
                self._handlers[method] = handler
        return handler

    async def settle(self, drain_s: float, stops_s: float, only_stops: bool) -> None:
        """Serve on until those that have a right to it have ended (``Settling``).

        A client that connects while the calls under way are awaited must wait for the next daemon, and kubelet does that
        for 5 s (its minConnectionTimeout). So the wait for old calls comes first, while all are served.
        """
        loop = asyncio.get_running_loop()
        settling = Settling(loop.time(), drain_s, stops_s, only_stops)
        while any(settling.waits_for(c, loop.time()) for c in self._active if not is_long(c.method)):
            await asyncio.sleep(_LOOK_S)
        for call in self._active:
            call.is_due = settling.is_due(call, loop.time())

    async def drain(self, seconds: float, is_busy: Callable[[], bool] = lambda: False) -> None:
        """End the calls under way: long ones and streams at once, the others when ``seconds`` are over.

        Those that ``settle`` has waited for in vain are ended at once, too.

        ``is_busy``: whether there are calls that have not come here yet.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._stop([call for call in self._active if is_long(call.method) or call.is_due])
            if (
                not (self._active or self._answers or is_busy())
                or asyncio.get_running_loop().time() >= deadline
            ):
                break
            await asyncio.sleep(_LOOK_S)
        self._stop(list(self._active))
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    def _stop(self, calls: list[_Call]) -> None:
        for call in calls:
            if not call.stopped:
                call.stop()

    async def _serve(
        self, method: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        call = _Call(method, asyncio.get_running_loop().time())
        self._active.add(call)
        try:
            interception = self._interceptor.open(method)
            if interception is None:
                await self._pass(call, requests, context)
            else:
                trace = _trace(context)
                interception = self._around(method, dict(trace).get(TRACE_HEADERS[0], ""), interception)
                TRACE.set(trace)
                await self._intercept(call, interception, requests, context)
        finally:
            self._active.discard(call)

    # ------------------------------------------------------------------ bytes through

    async def _pass(
        self, call: _Call, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        upstream = await self._start(call, context, requests)
        try:
            await _copy_replies(call, None, upstream, context)
        except BaseException:
            upstream.cancel()
            raise
        await _finish(call, upstream, context)

    async def _start(
        self, call: _Call, context: grpc.aio.ServicerContext, requests: AsyncIterator[bytes]
    ) -> Any:
        message, others = await _look_ahead(requests)
        channel = self._images if "ImageService/" in call.method else self._runtime
        metadata = tuple((k, v) for k, v in context.invocation_metadata() or () if k not in OWN_HEADERS)
        options = {"timeout": context.time_remaining(), "metadata": metadata}
        if others is None:
            # In one piece with its headers. A runtime that does not know the method answers these at once; for a
            # message that is sent after that grpc.aio makes the answer INTERNAL, "Internal error from Core" (seen).
            call.upstream = channel.unary_stream(call.method)(message, **options)
        else:
            call.upstream = channel.stream_stream(call.method)(others, **options)
        if call.stopped:  # while its request was awaited
            call.upstream.cancel()
        return call.upstream

    # ------------------------------------------------------------------ intercepted

    async def _intercept(
        self,
        call: _Call,
        interception: Interception,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext,
    ) -> None:
        message = await _first(requests)
        if message is None:
            # A call without a request: the runtime has its own words for that.
            await self._pass(call, requests, context)
            return
        call.grace_s = grace_of(call.method, message)
        end, code, details = CallEnd.REFUSED, 1, "the client went away"
        upstream: Any = None
        answered = False
        try:
            outcome: Outcome = await interception.request(message)
            if isinstance(outcome, Forward):
                upstream = await self._start(call, context, _prepend(message + outcome.delta, requests))
                end = CallEnd.UNKNOWN
                await _copy_replies(call, interception, upstream, context)
                code, details = await _status(upstream)
                end = end_of(code, not details.startswith(_NEVER_SENT))
            elif isinstance(outcome, Refuse):
                code, details = outcome.code, outcome.message
            else:
                answered = True
                code, details = await self._answer(interception, outcome, context)
        finally:
            if upstream is not None and not upstream.done():
                upstream.cancel()
            # Before the client learns the end, the state knows it.
            if not answered:
                await interception.ended(end, code, details)
        if upstream is not None:
            await _finish(call, upstream, context)
        elif code:
            await context.abort(_CODES.get(code, grpc.StatusCode.UNKNOWN), details)

    async def _answer(
        self, interception: Interception, outcome: Answer, context: grpc.aio.ServicerContext
    ) -> tuple[int, str]:
        """Run an answer to its end, whether or not the client waits for it."""
        task = asyncio.ensure_future(_run_answer(interception, outcome))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        reply, code, details, trailers = await asyncio.shield(task)
        if trailers:
            context.set_trailing_metadata(tuple(trailers))
        if reply is not None:
            await context.write(reply)
        return code, details


def _trace(context: grpc.aio.ServicerContext) -> tuple[tuple[str, str], ...]:
    found = dict(context.invocation_metadata() or ())
    return tuple([(name, str(found[name])) for name in TRACE_HEADERS if name in found])


def is_long(method: str) -> bool:
    """Whether calls of a method last for minutes, so that a stop does not wait for them."""
    name = method.rpartition("/")[2]
    return name in LONG_CALLS or name.startswith("Stream")


async def _first(requests: AsyncIterator[bytes]) -> Optional[bytes]:
    async for message in requests:
        return message
    return None


async def _look_ahead(requests: AsyncIterator[bytes]) -> tuple[bytes, Optional[AsyncIterator[bytes]]]:
    """The only message; or, of a call with none, with several or that is still open, an iterator over what comes."""
    ahead: list[asyncio.Future[Optional[bytes]]] = []
    try:
        while len(ahead) < 2:
            ahead.append(asyncio.ensure_future(_first(requests)))
            await asyncio.wait(ahead[-1:], timeout=LOOK_AHEAD_S)
            if not ahead[-1].done():
                break
            message = ahead[-1].result()
            if message is None:
                break
    except BaseException:
        for reading in ahead:
            reading.cancel()
        raise
    if len(ahead) == 2 and ahead[1].done() and ahead[1].result() is None:
        return ahead[0].result() or b"", None
    return b"", _later(ahead, requests)


async def _later(
    ahead: list[asyncio.Future[Optional[bytes]]], rest: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    for reading in ahead:
        message = await reading
        if message is None:
            return
        yield message
    async for message in rest:
        yield message


async def _prepend(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for message in rest:
        yield message


async def _run_answer(
    interception: Interception, outcome: Answer
) -> tuple[Optional[bytes], int, str, Sequence[tuple[str, Union[str, bytes]]]]:
    """The reply (None: it failed), code, details and trailers of an answer; its end is told here."""
    reply: Optional[bytes] = None
    trailers: Sequence[tuple[str, Union[str, bytes]]] = ()
    end, code, details = CallEnd.UNKNOWN, UNAVAILABLE, STOPPING
    try:
        reply = await outcome.reply()
        end, code, details = CallEnd.OK, 0, ""
    except AnswerFailed as error:
        code, details, trailers = error.code, error.message, error.trailers
        end = end_of(code, True)
    except asyncio.CancelledError:
        pass  # by a stop of ours, for which there was no more time
    except Exception as error:
        code, details = INTERNAL, f"cri-resmgr: {type(error).__name__}: {error}"
    await interception.ended(end, code, details)
    return reply, code, details, trailers


async def _copy_replies(
    call: _Call, interception: Optional[Interception], upstream: Any, context: grpc.aio.ServicerContext
) -> None:
    """Until the runtime, or a stop of ours, ends the call; how it ended is asked of ``upstream``."""
    try:
        await _send_initial_metadata(upstream, context)
        while (message := await upstream.read()) is not grpc.aio.EOF:
            if interception is not None:
                await interception.replied(message)
                if (cut := interception.filter) is not None:
                    message = cut(message)
            if message is not None:
                await context.write(message)
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        if not call.stopped:  # by us: grpc.aio says so in this way
            raise


async def _send_initial_metadata(upstream: Any, context: grpc.aio.ServicerContext) -> None:
    initial = await upstream.initial_metadata()
    if initial:
        await context.send_initial_metadata(tuple(initial))


async def _status(upstream: Any) -> tuple[int, str]:
    code = await upstream.code()
    return code.value[0], await upstream.details() or ""


async def _finish(call: _Call, upstream: Any, context: grpc.aio.ServicerContext) -> None:
    """Give the runtime's status, details and trailers to the client."""
    code, details = await _status(upstream)
    trailing = await upstream.trailing_metadata()
    if trailing:
        context.set_trailing_metadata(tuple(trailing))
    if call.stopped:
        code, details = UNAVAILABLE, STOPPING
    if code:
        context.set_code(_CODES.get(code, grpc.StatusCode.UNKNOWN))
        context.set_details(details)
