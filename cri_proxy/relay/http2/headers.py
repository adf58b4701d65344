"""Header blocks (HPACK, RFC 7541): read along in step with both sides, and written so that neither falls out of step.

One ``HeaderReader`` reads all blocks of one direction, also those of no interest: each may change the table
that later ones refer to. What is written here are static table entries and literals without indexing (6.1, 6.2.2):
the tables of the client and of the runtime stay as they are, whatever is put in between.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Optional, Union

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from cri_proxy.relay.http2.frames import MAX_BLOCK_BYTES, Error, ProtocolError
from cri_proxy.relay.status import Code, Metadata
from cri_proxy.version import VERSION

Headers = Sequence[tuple[bytes, bytes]]

#: Blocks that are known by heart, and what all of them may take in memory, about. A client has a few dozen different ones,
#: of 200 bytes and ten fields.
KNOWN_BLOCKS = 256
KNOWN_BLOCK_BYTES = 4_096
KNOWN_BYTES = 128 << 10
#: What an entry of a table counts beside its texts (RFC 7541, 4.1).
_ENTRY_BYTES = 32
#: Longer texts, as they are sent, are cut: a client may not take more than 8 KiB of headers (grpc's default).
MESSAGE_BYTES = 6_000
_STATUS_200 = b"\x88"
#: "content-type", entry 31 of the static table, without indexing: a prefix of 4 bits, then the rest.
_CONTENT_TYPE = b"\x0f\x10"
#: What gRPC puts around trailing metadata.
_NOT_METADATA = frozenset([b":status", b"content-type", b"grpc-status", b"grpc-message"])
#: What a timeout has at most (gRPC over HTTP/2, "TimeoutValue").
_MOST_TIMEOUT = 99_999_999
_UNSAFE = re.compile(rb"[^\x20-\x24\x26-\x7e]")


class HeaderReader:
    """Decodes the header blocks of one direction, in their order.

    The tables and the Huffman code are hpack's; its ``Decoder`` takes eight times as long, and grpc-go, which puts
    the deadline of each call into the table, makes every block a new one.
    """

    def __init__(self) -> None:
        self._table = HeaderTable()
        self._allowed_bytes = self._table.maxsize
        #: What blocks mean that leave the table as it is, until another changes it.
        self._known: dict[bytes, Headers] = {}
        self._known_bytes = 0

    def allow_table(self, size: int) -> None:
        """The receiver allows the sender a table of this size. A smaller one is the sender's to announce (4.2)."""
        self._allowed_bytes = max(size, self._allowed_bytes)

    def read(self, block: bytes) -> Headers:
        """Names and values.

        :raises ProtocolError: it is not a header block.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers, leaves_table = self._decode(block)
        except (HPACKError, ValueError, IndexError) as error:
            raise ProtocolError(
                Error.COMPRESSION_ERROR, f"a header block that cannot be read: {error}"
            ) from None
        if not leaves_table:
            self._known.clear()
            self._known_bytes = 0
        elif len(self._known) < KNOWN_BLOCKS and len(block) <= KNOWN_BLOCK_BYTES:
            self._learn(block, headers)
        return headers

    def _learn(self, block: bytes, headers: Headers) -> None:
        size = 4 * len(block) + 128 * len(headers)
        if self._known_bytes + size <= KNOWN_BYTES:
            self._known[block] = headers
            self._known_bytes += size

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The fields, and whether the table is what it was."""
        table, leaves_table = self._table, True
        headers: list[tuple[bytes, bytes]] = []
        at, size, left = 0, len(block), 4 * MAX_BLOCK_BYTES
        while at < size:
            first = block[at]
            if first & 0x80:  # a field of the table (6.1)
                index, at = _read_integer(block, at, 0x7F) if first == 0xFF else (first & 0x7F, at + 1)
                field = table.get_by_index(index)
            elif first & 0x60 == 0x20:  # the table has another size (6.3)
                if headers:
                    raise ValueError("the size of the table changes behind a field")
                leaves_table = False
                table.maxsize, at = self._read_table_size(block, at)
                continue
            else:  # a literal (6.2), which goes into the table or not
                index, at = _read_integer(block, at, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, at = _read_string(block, at)
                value, at = _read_string(block, at)
                field = (name, value)
                if first & 0x40:
                    leaves_table = False
                    table.add(name, value)
            left -= len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if left < 0:
                raise ValueError(f"more than {4 * MAX_BLOCK_BYTES} bytes of fields")
            headers.append(field)
        return headers, leaves_table

    def _read_table_size(self, block: bytes, at: int) -> tuple[int, int]:
        size, at = _read_integer(block, at, 0x1F)
        if size > self._allowed_bytes:
            raise ValueError(f"a table of {size} bytes, at most {self._allowed_bytes} allowed")
        return size, at


def _read_integer(block: bytes, at: int, most: int) -> tuple[int, int]:
    """An integer whose prefix holds values below ``most`` (5.1), and where it ends."""
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("an integer of more than 32 bits")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string literal (5.2), and where it ends."""
    is_huffman = block[at] & 0x80
    length, at = _read_integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise ValueError("a string that is longer than its block")
    text = block[at:end]
    return (decode_huffman(text) if is_huffman else text), end


def value_of(headers: Headers, name: bytes) -> bytes:
    """The first value of a name; empty if there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""


# ---------------------------------------------------------------------- gRPC's words

#: What a reset means ("HTTP2 Transport Mapping", Errors); any other: INTERNAL.
_RESETS = {
    int(Error.REFUSED_STREAM): Code.UNAVAILABLE,
    int(Error.CANCEL): Code.CANCELLED,
    int(Error.ENHANCE_YOUR_CALM): Code.RESOURCE_EXHAUSTED,
}
#: What an HTTP status means where no gRPC server has answered (grpc/http-grpc-status-mapping.md); any other: UNKNOWN.
_HTTP_STATUSES = {
    b"400": Code.INTERNAL,
    b"401": Code.UNAUTHENTICATED,
    b"403": Code.PERMISSION_DENIED,
    b"404": Code.UNIMPLEMENTED,
    b"429": Code.UNAVAILABLE,
    b"502": Code.UNAVAILABLE,
    b"503": Code.UNAVAILABLE,
    b"504": Code.UNAVAILABLE,
}


def code_of_reset(error: int) -> Code:
    """The status that a reset stands for, by its HTTP/2 error."""
    return _RESETS.get(error, Code.INTERNAL)


def code_of_http(headers: Headers) -> Code:
    """The status that the last headers of a call stand for which have no status of gRPC's."""
    return _HTTP_STATUSES.get(value_of(headers, b":status"), Code.UNKNOWN)


def status_of(trailers: Headers) -> tuple[Optional[int], str]:
    """The gRPC status and its message; without one, None, and what HTTP says."""
    text = value_of(trailers, b"grpc-status")
    if text.isdigit() and len(text) < 4:
        return int(text), _percent_decoded(value_of(trailers, b"grpc-message"))
    http = value_of(trailers, b":status").decode("ascii", "replace")
    return None, f"no grpc-status in the trailers (HTTP status {http or 'unknown'})"


def read_metadata(trailers: Headers) -> list[tuple[str, Union[str, bytes]]]:
    """Trailing metadata; binary values that are no base64 are left out."""
    found: list[tuple[str, Union[str, bytes]]] = []
    for name, value in trailers:
        if name in _NOT_METADATA:
            continue
        key = name.decode("ascii", "replace")
        if not name.endswith(b"-bin"):
            found.append((key, value.decode(errors="replace")))
            continue
        for part in value.split(b","):
            try:
                found.append((key, base64.b64decode(part + b"=" * (-len(part) % 4))))
            except binascii.Error:
                continue
    return found


def write_request(
    method: str, timeout_s: Optional[float] = None, metadata: tuple[tuple[str, Union[str, bytes]], ...] = ()
) -> bytes:
    """The block of a call of our own; ``method`` is the full one, ``/runtime.v1.RuntimeService/Version``."""
    return _request(method, timeout_s) + _fields(metadata)


# A program makes the same few calls again and again.
@lru_cache(maxsize=64)
def _request(method: str, timeout_s: Optional[float]) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-python-cri-resmgr/" + VERSION.encode()),
    ]
    if timeout_s is not None:
        fields.append((b"grpc-timeout", _timeout(timeout_s)))
    return write_fields(fields)


def _timeout(timeout_s: float) -> bytes:
    milliseconds = max(1, -int(-timeout_s * 1000 // 1))
    if milliseconds <= _MOST_TIMEOUT:
        return b"%dm" % milliseconds
    return b"%dS" % min(_MOST_TIMEOUT, milliseconds // 1000)


def write_response(metadata: Metadata = ()) -> bytes:
    """The block that a gRPC response begins with."""
    return _STATUS_200 + _CONTENT_TYPE + _string(b"application/grpc") + _fields(metadata)


def write_trailers(code: int, details: str, metadata: Metadata = ()) -> bytes:
    """The block that ends a gRPC response. Behind ``write_response`` in one block it is "trailers-only"."""
    block = b"\x00" + _string(b"grpc-status") + _string(b"%d" % code)
    if details:
        block += b"\x00" + _string(b"grpc-message") + _string(_percent_encoded(details))
    return block + _fields(metadata)


def write_fields(headers: Headers) -> bytes:
    """Fields as they were read, in their order."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def _fields(metadata: Metadata) -> bytes:
    block = b""
    for key, value in metadata:
        raw = base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode()
        block += b"\x00" + _string(key.encode()) + _string(raw)
    return block


def _string(text: bytes) -> bytes:
    """A string literal without Huffman code (5.2), its length as an integer with a prefix of 7 bits (5.1)."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text
    rest, encoded = length - 127, bytearray(b"\x7f")
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    encoded.append(rest)
    return bytes(encoded) + text


def _percent_encoded(text: str) -> bytes:
    raw = text.encode(errors="replace")
    encoded = _UNSAFE.sub(lambda found: b"%%%02X" % found.group()[0], raw)
    if len(encoded) <= MESSAGE_BYTES:
        return encoded
    # Without the rest of a character in which it was cut, or of the %XX of one.
    cut = re.sub(rb"%[0-9A-F]?$", b"", encoded[:MESSAGE_BYTES])
    return _percent_encoded(_unquoted(cut).decode(errors="ignore"))


def _percent_decoded(text: bytes) -> str:
    return _unquoted(text).decode("utf-8", "replace")


def _unquoted(text: bytes) -> bytes:
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found.group(1), 16)]), text)
