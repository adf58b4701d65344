"""Header blocks (HPACK, RFC 7541): read along in step with both sides, and written so that nobody falls out of step.

One ``HeaderReader`` reads all blocks of one direction, also those that interest nobody: each may change the table
that later ones refer to. What is written here are static table entries and literals without indexing (6.1, 6.2.2):
the tables of the client and of the runtime stay as they are, whatever is put in between.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Union, cast

from hpack import Decoder
from hpack.exceptions import HPACKError

from cri_proxy.core.http2.frames import MAX_BLOCK_BYTES, Doubt, Error

Headers = Sequence[tuple[bytes, bytes]]
Metadata = Iterable[tuple[str, Union[str, bytes]]]

#: Blocks that are known by heart. A client has a few dozen different ones.
KNOWN_BLOCKS = 256
#: Longer texts are cut: the client may not take more than 8 KiB of headers (grpc's default).
MESSAGE_BYTES = 4_000
_STATUS_200 = b"\x88"
#: "content-type", entry 31 of the static table, without indexing: a prefix of 4 bits, then the rest.
_CONTENT_TYPE = b"\x0f\x10"
_UNSAFE = re.compile(rb"[^\x20-\x24\x26-\x7e]")


class HeaderReader:
    """Decodes the header blocks of one direction, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=4 * MAX_BLOCK_BYTES)
        #: What blocks mean that leave the table as it is, until another changes it. Most calls are of this kind.
        self._known: dict[bytes, Headers] = {}

    def allow_table(self, size: int) -> None:
        """The receiver allows the sender a table of this size. A smaller one is the sender's to announce (4.2)."""
        self._decoder.max_allowed_table_size = max(size, self._decoder.max_allowed_table_size)

    def read(self, block: bytes) -> Headers:
        """Names and values.

        :raises Doubt: it is not a header block.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table()  # holds the entry at the front, so that a later one cannot be the same object
        try:
            headers = cast(Headers, self._decoder.decode(block, raw=True))
        except (HPACKError, ValueError, IndexError) as error:
            raise Doubt(Error.COMPRESSION_ERROR, f"a header block that cannot be read: {error}") from None
        if not _same(self._table(), before):
            self._known.clear()
        elif len(self._known) < KNOWN_BLOCKS:
            self._known[block] = headers
        return headers

    def _table(self) -> tuple[int, int, object]:
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return table.maxsize, len(entries), entries[0] if entries else None


def _same(one: tuple[int, int, object], other: tuple[int, int, object]) -> bool:
    """A new entry is a new object at the front, also if it equals the one that was there."""
    return one[:2] == other[:2] and one[2] is other[2]


def value_of(headers: Headers, name: bytes) -> bytes:
    """The first value of a name; empty if there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""


# ---------------------------------------------------------------------- gRPC's words


def status_of(trailers: Headers) -> tuple[int, str]:
    """The gRPC status and its message; without one, UNKNOWN, or what HTTP says."""
    text = value_of(trailers, b"grpc-status")
    if text.isdigit() and len(text) < 4:
        return int(text), _percent_decoded(value_of(trailers, b"grpc-message"))
    http = value_of(trailers, b":status").decode("ascii", "replace")
    return 2, f"no grpc-status in the trailers (HTTP status {http or 'unknown'})"


def write_response(metadata: Metadata = ()) -> bytes:
    """The block that a gRPC response begins with."""
    return _STATUS_200 + _CONTENT_TYPE + _string(b"application/grpc") + _fields(metadata)


def write_trailers(code: int, details: str, metadata: Metadata = ()) -> bytes:
    """The block that ends a gRPC response. Behind ``write_response`` in one block it is "trailers-only"."""
    block = b"\x00" + _string(b"grpc-status") + _string(b"%d" % code)
    if details:
        block += b"\x00" + _string(b"grpc-message") + _string(_percent_encoded(details))
    return block + _fields(metadata)


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
    raw = text.encode()
    if len(raw) > MESSAGE_BYTES:
        raw = raw[:MESSAGE_BYTES].decode(errors="ignore").encode()
    return _UNSAFE.sub(lambda found: b"%%%02X" % found.group()[0], raw)


def _percent_decoded(text: bytes) -> str:
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found.group(1), 16)]), text)
    return raw.decode("utf-8", "replace")
