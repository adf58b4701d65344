"""The yardstick of ``bench.relay_latency``: a relay behind grpc.aio's server, which receives each call and makes it anew.

It decides nothing and looks into nothing; a unary call is sent on in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Optional

import grpc

from tests.cri_client import CHANNEL_OPTIONS
from tests.fake_runtime import SERVER_OPTIONS

#: How long a call waits to be seen whole. The end of a unary request comes with the message, or right behind it.
LOOK_AHEAD_S = 0.05
#: Request headers that gRPC sets itself on the way to the runtime.
OWN_HEADERS = frozenset(["user-agent", "te", "content-type", "grpc-accept-encoding", "grpc-timeout"])
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcRelay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handler of a grpc.aio server, in front of the runtime at a path."""

    def __init__(self, runtime: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{runtime}", options=CHANNEL_OPTIONS)
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        if method not in self._handlers:

            async def behaviour(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
                await self._pass(method, requests, context)

            self._handlers[method] = grpc.stream_stream_rpc_method_handler(behaviour)
        return self._handlers[method]

    async def serve(self, path: str) -> grpc.aio.Server:
        """Serve on a socket."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return server

    async def _pass(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        upstream = await self._start(method, requests, context)
        try:
            initial = await upstream.initial_metadata()
            if initial:
                await context.send_initial_metadata(tuple(initial))
            while (message := await upstream.read()) is not grpc.aio.EOF:
                await context.write(message)
        except grpc.aio.AioRpcError:
            pass
        except BaseException:
            upstream.cancel()
            raise
        code = (await upstream.code()).value[0]
        details = await upstream.details() or ""
        trailing = await upstream.trailing_metadata()
        if trailing:
            context.set_trailing_metadata(tuple(trailing))
        if code:
            context.set_code(_CODES[code])
            context.set_details(details)

    async def _start(self, method: str, requests: AsyncIterator[bytes], context: Any) -> Any:
        message, others = await _look_ahead(requests)
        metadata = tuple((k, v) for k, v in context.invocation_metadata() or () if k not in OWN_HEADERS)
        options = {"timeout": context.time_remaining(), "metadata": metadata}
        if others is None:
            return self._channel.unary_stream(method)(message, **options)
        return self._channel.stream_stream(method)(others, **options)


async def _first(requests: AsyncIterator[bytes]) -> Optional[bytes]:
    async for message in requests:
        return message
    return None


async def _look_ahead(requests: AsyncIterator[bytes]) -> tuple[bytes, Optional[AsyncIterator[bytes]]]:
    """The only message; or, of a call with none, with several or that is still open, an iterator over what comes."""
    ahead: list[asyncio.Future[Optional[bytes]]] = []
    while len(ahead) < 2:
        ahead.append(asyncio.ensure_future(_first(requests)))
        await asyncio.wait(ahead[-1:], timeout=LOOK_AHEAD_S)
        if not ahead[-1].done() or ahead[-1].result() is None:
            break
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
