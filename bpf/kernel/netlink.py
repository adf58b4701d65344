"""Sockets, addresses and rewritten flows of UDP as the kernel lists them by netlink. Bytes in, values out.

Layouts: include/uapi/linux/inet_diag.h, unix_diag.h, sock_diag.h, tcp.h, rtnetlink.h (stable since 4.6), and
netfilter/nfnetlink_conntrack.h; asking conntrack for UDP only needs kernel 5.8.
A socket of this module sees the network namespace it was opened in (``in_netns``), from any thread.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Optional

from bpf.kernel.procfs import in_netns

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_RTM_GETADDR = 22
_IFADDRMSG_LENGTH = 8
_IFA_ADDRESSES = (1, 2)  # of the interface (or of its peer), local
_NLM_F_REQUEST = 0x1
_NLM_F_REQUEST_DUMP = _NLM_F_REQUEST | 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
#: Groups of sock_diag that tell of every TCP socket that ends: IPv4, IPv6.
_TCP_DESTROY_GROUPS = (1, 3)
_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_SO_RCVBUFFORCE = 33

TCP_LISTEN = 10
#: All states but TIME_WAIT, SYN_RECV, CLOSE and NEW_SYN_RECV: those have no bytes, and on busy hosts are most.
_TCP_LIVE = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 10, 11))
_ALL_STATES = 0xFFFFFFFF

_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
_CGROUP_ID = struct.Struct("=Q")
_INODE = struct.Struct("=I")
_ATTRIBUTE = struct.Struct("=HH")
_INET_REQUEST = struct.Struct("=BBBBI48x")
# family, state, timer, retransmits, ports (network order), addresses, interface, cookie, expires, queues, uid, inode
_INET_MESSAGE = struct.Struct(">BBxxHH16s16s4x")
_INET_TAIL = struct.Struct("=Q16xI")
_INET_TAIL_AT = 44
_INET_LENGTH = 72
_INET_DIAG_INFO = 2
_INET_DIAG_CGROUP_ID = 21
# tcp_info: bytes_acked, bytes_received at 120; data_segs_in, data_segs_out at 152.
_TCP_INFO_BYTES = struct.Struct("=QQ")
_TCP_INFO_BYTES_AT = 120
_TCP_INFO_SEGMENTS = struct.Struct("=II")
_TCP_INFO_SEGMENTS_AT = 152
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_UNIX_MESSAGE = struct.Struct("=2xBxI8x")
_UNIX_SHOW_NAME, _UNIX_SHOW_PEER = 1, 4
_UNIX_DIAG_NAME, _UNIX_DIAG_PEER = 0, 2
_ANY_COOKIE = 0xFFFFFFFF
_V4_IN_V6 = bytes(10) + b"\xff\xff"
_BUFFER_BYTES = 1 << 16

#: An address (4 or 16 bytes; IPv4 inside IPv6 is IPv4) and a port.
Address = tuple[bytes, int]
_NETLINK_NETFILTER = 12
_CTNETLINK_GET = 1 << 8 | 1
_NESTED = 0x8000
_TUPLE_ORIG, _TUPLE_REPLY, _FILTER = 1, 2, 25
_TUPLE_PROTO, _PROTO_NUM = 2, 1
_FILTER_ORIG_FLAGS, _BY_PROTO_NUM = 1, 1 << 3
_FAMILY = struct.Struct("=BBH")
#: CTA_TUPLE_IP (source, target), CTA_TUPLE_PROTO (number, source port, target port), each with its attribute header:
#: so every kernel writes the tuple of a protocol with ports. One with a zone of its own is longer.
_TUPLES: dict[int, struct.Struct] = {
    socket.AF_INET: struct.Struct(">4x 4x4s 4x4s 4x 4xB3x 4xH2x 4xH2x"),
    socket.AF_INET6: struct.Struct(">4x 4x16s 4x16s 4x 4xB3x 4xH2x 4xH2x"),
}


class InetSocket(NamedTuple):
    """A TCP socket. ``cookie``: the kernel's name for it, never used twice. Bytes since it was opened.

    ``inode`` is 0 in the news of its end; ``cgroup_id`` is 0 there and on kernels before 5.8.
    """

    cookie: int
    state: int
    local: Address
    remote: Address
    inode: int = 0
    cgroup_id: int = 0
    bytes_acked: int = 0
    bytes_received: int = 0
    segments: int = 0


class UnixSocket(NamedTuple):
    """A unix socket. ``peer``: the inode of the socket it is connected to, 0 = none, or not accepted yet.

    ``name``: the path that it, or what accepted it, was bound to; after NUL an abstract one; b"" = none, or not asked for.
    """

    inode: int
    peer: int
    name: bytes = b""
    is_listening: bool = False


class NetlinkError(OSError):
    """The kernel has refused a request."""


class SockDiag:
    """The sockets of the network namespace this was opened in."""

    def __init__(self) -> None:
        self._questions = Questions(NETLINK_SOCK_DIAG)

    def tcp(self, family: int) -> Iterator[InetSocket]:
        """The TCP sockets of one family (AF_INET, AF_INET6) that listen or have bytes."""
        extensions = 1 << (_INET_DIAG_INFO - 1)
        request = _INET_REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, _TCP_LIVE)
        for start, end in self._questions.ask(_SOCK_DIAG_BY_FAMILY, request):
            yield parse_inet(self._questions.buffer, start, end)

    def unix(self) -> Iterator[UnixSocket]:
        """All unix sockets that were made in this namespace."""
        request = _UNIX_REQUEST.pack(
            socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _UNIX_SHOW_NAME | _UNIX_SHOW_PEER, 0, 0
        )
        for start, end in self._questions.ask(_SOCK_DIAG_BY_FAMILY, request):
            yield parse_unix(self._questions.buffer, start, end)

    def unix_of(self, inode: int) -> Optional[UnixSocket]:
        """One unix socket, with its name; None: none of this namespace has that inode, or the kernel tells of none.

        A list that is read while other sockets come and go may lack one that was there all the time; this does not.
        """
        show = _UNIX_SHOW_NAME | _UNIX_SHOW_PEER
        request = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, inode, show, _ANY_COOKIE, _ANY_COOKIE)
        try:
            start, end = self._questions.ask_one(_SOCK_DIAG_BY_FAMILY, request)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        return parse_unix(self._questions.buffer, start, end)

    def close(self) -> None:
        self._questions.close()


class EndedTcp:
    """The TCP sockets of one network namespace that end, with their last counters.

    The kernel queues them until ``ended()``; what does not fit ``buffer_bytes`` is lost, in ``lost`` times.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self.lost = 0
        self._socket = _open(NETLINK_SOCK_DIAG)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        for group in _TCP_DESTROY_GROUPS:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        self._buffer = bytearray(_BUFFER_BYTES)

    def ended(self) -> Iterator[InetSocket]:
        """The sockets ended since the last call."""
        while True:
            try:
                size = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost += 1
                continue
            for kind, start, end in messages(self._buffer, size):
                if kind == _SOCK_DIAG_BY_FAMILY:
                    yield parse_inet(self._buffer, start, end)

    def fileno(self) -> int:
        """Readable when there is news (select)."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def local_addresses() -> frozenset[bytes]:
    """All addresses of the calling thread's network namespace."""
    found = set()
    questions = Questions(NETLINK_ROUTE)
    try:
        for start, end in questions.ask(_RTM_GETADDR, bytes(_IFADDRMSG_LENGTH)):
            for kind, value_start, value_end in attributes(questions.buffer, start + _IFADDRMSG_LENGTH, end):
                if kind in _IFA_ADDRESSES:
                    found.add(bytes(questions.buffer[value_start:value_end]))
    finally:
        questions.close()
    return frozenset(found)


def parse_inet(buffer: bytearray | bytes, start: int, end: int) -> InetSocket:
    """An inet_diag_msg with its attributes."""
    family, state, sport, dport, source, target = _INET_MESSAGE.unpack_from(buffer, start)
    cookie, inode = _INET_TAIL.unpack_from(buffer, start + _INET_TAIL_AT)
    cgroup_id = acked = received = segments = 0
    # Not by attributes(): with it a socket takes 1.7 times as long, and there may be 10,000.
    at = start + _INET_LENGTH
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(buffer, at)
        if length < 4:
            break
        if kind == _INET_DIAG_INFO and state != TCP_LISTEN:
            if length >= 4 + _TCP_INFO_BYTES_AT + 16:
                acked, received = _TCP_INFO_BYTES.unpack_from(buffer, at + 4 + _TCP_INFO_BYTES_AT)
            if length >= 4 + _TCP_INFO_SEGMENTS_AT + 8:
                segments = sum(_TCP_INFO_SEGMENTS.unpack_from(buffer, at + 4 + _TCP_INFO_SEGMENTS_AT))
        elif kind == _INET_DIAG_CGROUP_ID:
            (cgroup_id,) = _CGROUP_ID.unpack_from(buffer, at + 4)
        at += (length + 3) & ~3
    return InetSocket(
        cookie,
        state,
        (_address(family, source), sport),
        (_address(family, target), dport),
        inode,
        cgroup_id,
        acked,
        received,
        segments,
    )


def parse_unix(buffer: bytearray | bytes, start: int, end: int) -> UnixSocket:
    """A unix_diag_msg with its attributes."""
    state, inode = _UNIX_MESSAGE.unpack_from(buffer, start)
    peer, name = 0, b""
    for attribute, value_start, value_end in attributes(buffer, start + _UNIX_MESSAGE.size, end):
        if attribute == _UNIX_DIAG_PEER:
            (peer,) = _INODE.unpack_from(buffer, value_start)
        elif attribute == _UNIX_DIAG_NAME:
            name = bytes(buffer[value_start:value_end])
    return UnixSocket(
        inode, peer, name if name.startswith(b"\0") else name.rstrip(b"\0"), state == TCP_LISTEN
    )


def messages(buffer: bytearray | bytes, size: int) -> Iterator[tuple[int, int, int]]:
    """The netlink messages of a datagram: type, start and end of the payload."""
    at = 0
    while at + _HEADER.size <= size:
        length, kind, _, _, _ = _HEADER.unpack_from(buffer, at)
        if length < _HEADER.size or at + length > size:
            raise NetlinkError(f"netlink message of {length} bytes in a datagram with {size - at} left")
        yield kind, at + _HEADER.size, at + length
        at += (length + 3) & ~3


def attributes(buffer: bytearray | bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The attributes of a message: type, start and end of the value."""
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(buffer, start)
        if length < 4:
            return
        yield kind, start + 4, min(start + length, end)
        start += (length + 3) & ~3


def plain_address(raw: bytes) -> bytes:
    """An IPv6 address, or the IPv4 one inside it."""
    return raw[12:] if raw.startswith(_V4_IN_V6) else raw


def _address(family: int, raw: bytes) -> bytes:
    return raw[:4] if family == socket.AF_INET else plain_address(raw)


def _open(protocol: int) -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    opened.bind((0, 0))
    return opened


class Questions:
    """One netlink socket on which lists are asked for, one after the other."""

    def __init__(self, protocol: int) -> None:
        self.buffer = bytearray(_BUFFER_BYTES)
        self._socket = _open(protocol)
        self._is_answering = False

    def ask(self, kind: int, request: bytes) -> Iterator[tuple[int, int]]:
        """Where each answer starts and ends in ``buffer``; it is to be read before the next one is taken."""
        self._send(kind, request, _NLM_F_REQUEST_DUMP)
        yield from self._answers()

    def ask_one(self, kind: int, request: bytes) -> tuple[int, int]:
        """The same for the one answer to a question that is not for a list.

        :raises NetlinkError: there is none.
        """
        self._send(kind, request, _NLM_F_REQUEST)
        found = next(self._answers())
        self._is_answering = False
        return found

    def _send(self, kind: int, request: bytes, flags: int) -> None:
        if self._is_answering:
            # The last iteration was given up. The kernel takes no other request until its answer is read.
            for _ in self._answers():
                pass
        self._socket.send(_HEADER.pack(_HEADER.size + len(request), kind, flags, 0, 0) + request)
        self._is_answering = True

    def _answers(self) -> Iterator[tuple[int, int]]:
        while self._is_answering:
            size = self._socket.recv_into(self.buffer)
            for answer, start, end in messages(self.buffer, size):
                if answer == _NLMSG_DONE:
                    self._is_answering = False
                elif answer == _NLMSG_ERROR:
                    self._is_answering = False
                    (code,) = _ERROR.unpack_from(self.buffer, start)
                    raise NetlinkError(-code, f"the kernel refuses to list: {os.strerror(-code)}")
                else:
                    yield start, end

    def close(self) -> None:
        self._socket.close()


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
