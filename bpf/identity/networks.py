"""Networks of addresses, such as those of a cluster's pods: as people write them, and as traffic_remote.h asks for them.

Addresses are kept as IPv6 writes them: 16 bytes, of an IPv4 address ::ffff:a.b.c.d.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_MAPPED = bytes(10) + b"\xff\xff"


def parse_network(text: str) -> tuple[bytes, bytes]:
    """The address and the mask of ``10.0.0.0/8`` or ``fd00::/8``.

    :raises ValueError: it is none; one sentence.
    """
    address, slash, length = text.partition("/")
    family, most = (socket.AF_INET6, 128) if ":" in address else (socket.AF_INET, 32)
    try:
        packed = socket.inet_pton(family, address)
    except (OSError, ValueError):
        packed = b""
    if not packed or not slash or not length.isdigit() or int(length) > most:
        raise ValueError(f"{text!r} is not a network such as 10.244.0.0/16 or fd00:10:244::/56")
    ones = int(length) + (128 - most)
    mask = ((1 << 128) - (1 << (128 - ones))).to_bytes(16, "big")
    return bytes(a & m for a, m in zip(mapped(packed), mask)), mask


def mapped(packed: bytes) -> bytes:
    """An address of 4 or 16 bytes as IPv6 writes it."""
    return packed if len(packed) == 16 else _MAPPED + packed


def expression(networks: Sequence[str]) -> str:
    """A condition in C on ``address``, four 32-bit words as they are in a packet: whether it is in one of these.

    :raises ValueError: as ``parse_network``.
    """
    return "||".join(f"({_condition(*parse_network(text))})" for text in networks)


def _condition(address: bytes, mask: bytes) -> str:
    words = zip(struct.unpack("=4I", address), struct.unpack("=4I", mask))
    parts = [f"(address[{index}]&{m:#x})=={a:#x}" for index, (a, m) in enumerate(words) if m]
    return "&&".join(parts) or "1"


def address_text(packed: bytes) -> str:
    """The address that 16 bytes stand for."""
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return socket.inet_ntop(socket.AF_INET6, packed)
