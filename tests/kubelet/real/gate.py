"""A gate before the runtime: calls pass it as bytes, and one is held where a test wants it, before or after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Optional

import grpc
import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CHANNEL_OPTIONS

HOLD_TIMEOUT_S = 120.0
#: Methods with a stream of replies.
STREAMS = frozenset(
    method.name
    for service in cri.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.server_streaming
)


@dataclass
class Hold:
    """One call of a method that is held."""

    method: str
    #: Held with the runtime's reply, not with the request.
    replied: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    #: The call has left the gate, or its caller is gone.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: Once it is released the caller does not get the reply: as if the connection broke.
    is_lost: bool = False

    async def until_reached(self) -> None:
        await asyncio.wait_for(self.reached.wait(), HOLD_TIMEOUT_S)

    async def until_ended(self) -> None:
        await asyncio.wait_for(self.ended.wait(), HOLD_TIMEOUT_S)


class Gate(grpc.GenericRpcHandler):
    """Listens at ``socket`` and passes calls on to the runtime's."""

    def __init__(self, socket: str, runtime: str) -> None:
        self.socket = socket
        self._runtime = runtime
        self._hold: Optional[Hold] = None
        self._server: Any = None
        self._channel: Any = None

    async def __aenter__(self) -> Gate:
        self._channel = grpc.aio.insecure_channel(f"unix:{self._runtime}", options=CHANNEL_OPTIONS)
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)
        await self._channel.close()

    def hold(self, method: str, *, replied: bool) -> Hold:
        """From now on the next call of this method waits at the gate until it is released."""
        self._hold = Hold(method, replied)
        return self._hold

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        full_method = handler_call_details.method

        async def stream(request: bytes, context: Any) -> Any:
            try:
                async for message in self._channel.unary_stream(full_method)(request):
                    yield message
            except grpc.aio.AioRpcError as error:
                await _abort(context, error)

        async def unary(request: bytes, context: Any) -> bytes:
            return await self._pass(full_method, request, context)

        if full_method.rpartition("/")[2] in STREAMS:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _pass(self, full_method: str, request: bytes, context: Any) -> bytes:
        hold = self._hold
        if hold is None or full_method.rpartition("/")[2] != hold.method:
            return await self._ask(full_method, request, context)
        self._hold = None
        try:
            if not hold.replied:
                await _wait_at(hold)
            reply = await self._ask(full_method, request, context)
            if hold.replied:
                await _wait_at(hold)
            if hold.is_lost:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            return reply
        finally:
            hold.ended.set()

    async def _ask(self, full_method: str, request: bytes, context: Any) -> bytes:
        call = self._channel.unary_unary(full_method)
        try:
            return bytes(await call(request, timeout=context.time_remaining()))
        except grpc.aio.AioRpcError as error:
            await _abort(context, error)
            raise AssertionError("unreachable") from None


async def _wait_at(hold: Hold) -> None:
    hold.reached.set()
    await hold.released.wait()


async def _abort(context: Any, error: grpc.aio.AioRpcError) -> None:
    """End a call as the runtime has ended it."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
