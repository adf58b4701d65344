"""The flows of UDP whose addresses the kernel rewrites, as conntrack lists them by netlink. Bytes in, values out.

Layouts: include/uapi/linux/netfilter/nfnetlink_conntrack.h; asking for UDP only needs kernel 5.8.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Optional

from bpf.kernel.namespaces import in_netns
from bpf.kernel.netlink import Address, Questions, attributes

_NETLINK_NETFILTER = 12
_CTNETLINK_GET = 1 << 8 | 1
_NESTED = 0x8000
_TUPLE_ORIG, _TUPLE_REPLY, _FILTER = 1, 2, 25
_TUPLE_PROTO, _PROTO_NUM = 2, 1
_FILTER_ORIG_FLAGS, _BY_PROTO_NUM = 1, 1 << 3
_FAMILY = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
#: CTA_TUPLE_IP (source, target), CTA_TUPLE_PROTO (number, source port, target port), each with its attribute header:
#: so every kernel writes the tuple of a protocol with ports. One with a zone of its own is longer.
_TUPLES: dict[int, struct.Struct] = {
    socket.AF_INET: struct.Struct(">4x 4x4s 4x4s 4x 4xB3x 4xH2x 4xH2x"),
    socket.AF_INET6: struct.Struct(">4x 4x16s 4x16s 4x 4xB3x 4xH2x 4xH2x"),
}


class TranslatedFlow(NamedTuple):
    """A flow as its opener sends it (source, target), and its answers as the other end sends them."""

    source: Address
    target: Address
    answer_source: Address
    answer_target: Address


class Conntrack:
    """Conntrack of the network namespace that a process is in; by default the calling thread's.

    :raises OSError: the kernel has none, or it may not be asked.
    """

    def __init__(self, proc: str = "/proc", pid: int = 0) -> None:
        if pid:
            with in_netns(proc, pid):
                self._questions = Questions(_NETLINK_NETFILTER)
        else:
            self._questions = Questions(_NETLINK_NETFILTER)

    def translated_udp(self, most: int) -> Iterator[TranslatedFlow]:
        """The flows that NAT changes, of the first ``most`` flows of UDP of each family.

        :raises OSError: the kernel does not list them.
        """
        for family in _TUPLES:
            request = _FAMILY.pack(family, 0, 0) + _UDP_ONLY
            for start, end in islice(self._questions.ask(_CTNETLINK_GET, request), most):
                flow = parse_flow(self._questions.buffer, start, end)
                if flow is not None:
                    yield flow

    def close(self) -> None:
        self._questions.close()


def parse_flow(buffer: bytearray | bytes, start: int, end: int) -> Optional[TranslatedFlow]:
    """An entry of conntrack; None where nothing is translated, or where it has not the shape that is known."""
    layout = _TUPLES.get(buffer[start])
    if layout is None:
        return None
    tuples = {}
    # The tuples come first.
    for kind, value_start, value_end in islice(attributes(buffer, start + _FAMILY.size, end), 2):
        if value_end - value_start == layout.size:
            tuples[kind & ~_NESTED] = layout.unpack_from(buffer, value_start)
    with suppress(KeyError):
        source, target, protocol, source_port, target_port = tuples[_TUPLE_ORIG]
        answer_source, answer_target, _, answer_source_port, answer_target_port = tuples[_TUPLE_REPLY]
        is_plain = (source, source_port, target, target_port) == (
            answer_target, answer_target_port, answer_source, answer_source_port
        )  # fmt: skip
        if protocol == socket.IPPROTO_UDP and not is_plain:
            return TranslatedFlow(
                (source, source_port),
                (target, target_port),
                (answer_source, answer_source_port),
                (answer_target, answer_target_port),
            )
    return None


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


_UDP_ONLY = _attribute(
    _TUPLE_ORIG | _NESTED,
    _attribute(_TUPLE_PROTO | _NESTED, _attribute(_PROTO_NUM, bytes([socket.IPPROTO_UDP]))),
) + _attribute(_FILTER | _NESTED, _attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", _BY_PROTO_NUM)))
