"""Requests to a service of grpclib, read with care: one that is none is refused with a sentence.

grpclib answers UNKNOWN to what it cannot read, logs a traceback each time, and has no bound for a request's length, which
is the client's word.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.stream import StreamIterator

#: Of one request. The longest are the name of a symbol, asked of reflection, and the claims of a pod.
MOST_BYTES = 64 * 1024
#: Whether the message is compressed, and its length (gRPC over HTTP/2, Length-Prefixed-Message).
_PREFIX = struct.Struct(">?I")


class CheckedRequests:
    """A service of grpclib that is given only requests that can be read; the others are refused before it sees them."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __mapping__(self) -> dict[str, Handler]:
        return {path: _checked(handler) for path, handler in self._service.__mapping__().items()}


def _checked(handler: Handler) -> Handler:
    async def answer(stream: Any) -> None:
        await handler.func(CheckedStream(stream, handler))

    return handler._replace(func=answer)


class CheckedStream(StreamIterator[Any]):
    """A call, as grpclib's handlers know it."""

    def __init__(self, stream: Any, handler: Handler) -> None:
        self.send_message = stream.send_message
        self.send_trailing_metadata = stream.send_trailing_metadata
        # grpclib has no public way to a request's bytes.
        self._receive = stream._stream.recv_data
        self._message = handler.request_type
        self._is_stream = handler.cardinality in (Cardinality.STREAM_UNARY, Cardinality.STREAM_STREAM)

    async def recv_message(self) -> Any:
        """The next request; None = a stream of requests has ended.

        :raises GRPCError: it is none, and why.
        """
        prefix = await self._read(_PREFIX.size)
        if not prefix:
            if self._is_stream:
                return None
            raise _cut()
        is_compressed, length = _PREFIX.unpack(prefix)
        if is_compressed:
            raise GRPCError(
                Status.UNIMPLEMENTED, "the request is compressed, which this service does not read"
            )
        if length > MOST_BYTES:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"the request has {length} bytes; {MOST_BYTES} are the most"
            )
        try:
            return self._message.FromString(await self._read(length))
        except DecodeError:
            name = self._message.DESCRIPTOR.full_name
            raise GRPCError(Status.INVALID_ARGUMENT, f"the request's bytes are no {name}") from None

    async def _read(self, length: int) -> bytes:
        try:
            data: bytes = await self._receive(length)
        except AssertionError:  # by which grpclib says that there are fewer
            raise _cut() from None
        return data


def _cut() -> GRPCError:
    return GRPCError(Status.INVALID_ARGUMENT, "the call has ended before its request")
