"""Decompressed messages, which are counted together for as long as any of them is in use.

Outside ``http2``, which is compiled: mypyc compiles no class that is made of ``bytes``.
"""

from __future__ import annotations

#: Decompressed messages in memory at once, of all connections: a few kilobytes make one of 16 MiB.
MAX_INFLATED_BYTES = 64 << 20


class Inflated(bytes):
    """A decompressed message. ``total``: the bytes of all that are in use."""

    total = 0

    def __new__(cls, message: bytes) -> Inflated:
        Inflated.total += len(message)
        return super().__new__(cls, message)

    def __del__(self) -> None:
        Inflated.total -= len(self)
