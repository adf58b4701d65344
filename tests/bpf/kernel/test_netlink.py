"""The kernel's lists of sockets: bytes into values, and real sockets."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.kernel.netlink import (
    TCP_LISTEN,
    EndedTcp,
    InetSocket,
    NetlinkError,
    SockDiag,
    attributes,
    local_addresses,
    messages,
    parse_inet,
    parse_unix,
)
from bpf.kernel.procfs import in_netns
from tests.bpf.pods import Host, needs_root

LOOPBACK = bytes((127, 0, 0, 1))


def inet_message(
    family: int = socket.AF_INET,
    state: int = 1,
    source: bytes = LOOPBACK,
    target: bytes = bytes((10, 0, 0, 2)),
    attributes: bytes = b"",
) -> bytes:
    head = struct.pack(
        ">BBBBHH16s16s", family, state, 0, 0, 80, 40000, source.ljust(16, b"\0"), target.ljust(16, b"\0")
    )
    return head + struct.pack("=IQIIIII", 3, 77, 0, 0, 0, 0, 4711) + attributes


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def tcp_info(acked: int, received: int, segments_in: int, segments_out: int, length: int = 232) -> bytes:
    info = (
        bytes(120)
        + struct.pack("=QQ", acked, received)
        + bytes(16)
        + struct.pack("=II", segments_in, segments_out)
    )
    return info.ljust(length, b"\0")[:length]


MAPPED = bytes(10) + b"\xff\xff" + bytes((10, 1, 2, 3))
V6 = bytes.fromhex("fd00000000000000000000000000000a")

INET = {
    "counters and cgroup": (
        inet_message(
            attributes=attribute(2, tcp_info(100, 200, 3, 4)) + attribute(21, struct.pack("=Q", 2**40))
        ),
        InetSocket(77, 1, (LOOPBACK, 80), (bytes((10, 0, 0, 2)), 40000), 4711, 2**40, 100, 200, 7),
    ),
    "an old kernel's shorter tcp_info has no segments": (
        inet_message(attributes=attribute(2, tcp_info(100, 200, 3, 4, length=144))),
        InetSocket(77, 1, (LOOPBACK, 80), (bytes((10, 0, 0, 2)), 40000), 4711, 0, 100, 200, 0),
    ),
    "attributes of odd lengths are skipped": (
        inet_message(
            attributes=attribute(5, b"\1") + attribute(8, b"\0") + attribute(2, tcp_info(1, 2, 0, 0))
        ),
        InetSocket(77, 1, (LOOPBACK, 80), (bytes((10, 0, 0, 2)), 40000), 4711, 0, 1, 2, 0),
    ),
    "a listener's counters are its queue's, not bytes": (
        inet_message(state=TCP_LISTEN, attributes=attribute(2, tcp_info(9, 9, 9, 9))),
        InetSocket(77, TCP_LISTEN, (LOOPBACK, 80), (bytes((10, 0, 0, 2)), 40000), 4711),
    ),
    "IPv6": (
        inet_message(family=socket.AF_INET6, source=V6, target=V6),
        InetSocket(77, 1, (V6, 80), (V6, 40000), 4711),
    ),
    "IPv4 on an IPv6 socket is IPv4": (
        inet_message(family=socket.AF_INET6, source=MAPPED, target=MAPPED),
        InetSocket(77, 1, (bytes((10, 1, 2, 3)), 80), (bytes((10, 1, 2, 3)), 40000), 4711),
    ),
    "an attribute without a length ends the list": (
        inet_message(attributes=bytes(8)),
        InetSocket(77, 1, (LOOPBACK, 80), (bytes((10, 0, 0, 2)), 40000), 4711),
    ),
}


@pytest.mark.parametrize("name", INET)
def test_an_inet_message_becomes_a_socket(name: str) -> None:
    message, expected = INET[name]
    padded = b"xx" + message + b"xx"
    assert parse_inet(padded, 2, 2 + len(message)) == expected


def test_a_unix_message_becomes_a_socket_with_its_peer() -> None:
    message = struct.pack("=BBBBIQ", socket.AF_UNIX, socket.SOCK_STREAM, 1, 0, 55, 9)
    message += attribute(0, b"\0name") + attribute(2, struct.pack("=I", 56))
    assert parse_unix(message, 0, len(message)) == (55, 56, b"\0name", False)


def test_a_datagram_is_cut_into_messages_at_four_bytes() -> None:
    datagram = (
        struct.pack("=IHHII", 18, 20, 2, 1, 0) + b"ab" + b"\0\0" + struct.pack("=IHHII", 16, 3, 2, 1, 0)
    )
    assert list(messages(datagram, len(datagram))) == [(20, 16, 18), (3, 36, 36)]


@pytest.mark.parametrize("length", [0, 15, 4000])
def test_a_message_of_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(NetlinkError, match=f"netlink message of {length} bytes in a datagram with 16 left"):
        list(messages(struct.pack("=IHHII", length, 20, 2, 1, 0), 16))


def test_an_attribute_that_is_cut_off_ends_where_its_message_ends() -> None:
    assert list(attributes(struct.pack("=HH", 400, 2) + b"abcd", 0, 8)) == [(2, 4, 8)]


def connected(family: int, address: str) -> tuple[socket.socket, socket.socket, socket.socket]:
    listener = socket.create_server((address, 0), family=family)
    client = socket.create_connection(listener.getsockname()[:2])
    return listener, client, listener.accept()[0]


@pytest.fixture
def diag() -> Iterator[SockDiag]:
    opened = SockDiag()
    yield opened
    opened.close()


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_tcp_sockets_are_listed_with_what_they_sent_and_received(
    diag: SockDiag, family: socket.AddressFamily, address: str
) -> None:
    listener, client, server = connected(family, address)
    with listener, client, server:
        client.sendall(b"q" * 1000)
        received = len(server.recv(1000, socket.MSG_WAITALL))
        server.sendall(b"a" * 30)
        received += len(client.recv(30, socket.MSG_WAITALL))
        assert received == 1030
        by_inode = {seen.inode: seen for seen in diag.tcp(family)}
        of_server = by_inode[os.fstat(server.fileno()).st_ino]
        of_client = by_inode[os.fstat(client.fileno()).st_ino]
        assert by_inode[os.fstat(listener.fileno()).st_ino].state == TCP_LISTEN
    assert of_server.bytes_received == 1000
    assert of_client.bytes_received == 30
    assert of_server.segments == 2
    assert (of_server.local, of_server.remote) == (of_client.remote, of_client.local)
    assert of_server.local[0] == socket.inet_pton(family, address)


def test_the_end_of_a_tcp_socket_is_told_with_its_last_counters() -> None:
    ended = EndedTcp(1 << 20)
    listener, client, server = connected(socket.AF_INET, "127.0.0.1")
    with listener:
        port = listener.getsockname()[1]
        client.sendall(b"q" * 500)
        client.shutdown(socket.SHUT_WR)
        assert len(server.recv(1000, socket.MSG_WAITALL)) == 500
        # The server closes last, so both sockets have ended when the client has read to the end and is closed.
        server.close()
        assert client.recv(1) == b""
        client.close()
    counts: dict[int, int] = {}
    while len(counts) < 2:
        # (The listener ends as well; it has no remote port.)
        for seen in ended.ended():
            if port in (seen.local[1], seen.remote[1]) and seen.remote[1]:
                counts[seen.local[1]] = seen.bytes_received
    ended.close()
    assert counts[port] in (500, 501)  # FIN counts as one byte


def test_news_that_do_not_fit_are_counted_as_lost_and_the_next_ones_arrive() -> None:
    ended = EndedTcp(0)  # the kernel makes some 4 KiB of it
    overrun = select.poll()
    overrun.register(ended.fileno(), 0)  # the error alone: the kernel tells of ends in a thread of its own
    for _ in range(40):
        listener, client, server = connected(socket.AF_INET, "127.0.0.1")
        for opened in (server, client, listener):
            opened.close()
    assert overrun.poll(10_000)
    list(ended.ended())
    assert ended.lost >= 1
    after: set[int] = set()
    told: set[int] = set()
    while not after & told:  # what ended before may still be told, and take the room again
        listener, client, server = connected(socket.AF_INET, "127.0.0.1")
        after.add(client.getsockname()[1])
        for opened in (server, client, listener):
            opened.close()
        told |= {seen.local[1] for seen in ended.ended()}
    ended.close()


def test_a_list_that_was_given_up_does_not_disturb_the_next(diag: SockDiag) -> None:
    pairs = [socket.socketpair() for _ in range(300)]
    next(iter(diag.unix()))
    listed = {seen.inode: seen.peer for seen in diag.unix()}
    for a, b in pairs:
        assert listed[os.fstat(a.fileno()).st_ino] == os.fstat(b.fileno()).st_ino
        a.close()
        b.close()


def test_one_unix_socket_is_told_with_its_name_also_after_a_list_that_was_given_up(
    diag: SockDiag, folder: Path
) -> None:
    path = f"{folder}/s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        with server.accept()[0] as accepted:
            of_client, of_accepted, of_server = (
                os.fstat(each.fileno()).st_ino for each in (client, accepted, server)
            )
            next(iter(diag.unix()))
            assert diag.unix_of(of_client) == (of_client, of_accepted, b"", False)
            assert diag.unix_of(of_accepted) == (of_accepted, of_client, path.encode(), False)
            assert diag.unix_of(of_server) == (of_server, 0, path.encode(), True)
    assert diag.unix_of(of_client) is None


def test_a_family_that_the_kernel_cannot_list_is_refused_with_a_reason(diag: SockDiag) -> None:
    with pytest.raises(NetlinkError, match="the kernel refuses to list"):
        list(diag.tcp(200))


def test_the_addresses_of_this_namespace_are_known() -> None:
    assert LOOPBACK in local_addresses()


@needs_root
def test_a_socket_made_in_another_namespace_lists_that_one_also_from_outside() -> None:
    host = Host()
    try:
        name = host.namespace()
        other = host.start_outside(name)
        other.do("import socket; s = socket.create_server(('127.0.0.1', 4321))")
        before = os.readlink("/proc/thread-self/ns/net")
        with in_netns("/proc", other.pid) as number:
            inside = SockDiag()
            assert local_addresses() == {LOOPBACK, bytes(15) + b"\x01"}
        assert number == os.stat(f"/proc/{other.pid}/ns/net").st_ino
        assert os.readlink("/proc/thread-self/ns/net") == before
        assert [seen.local for seen in inside.tcp(socket.AF_INET)] == [(LOOPBACK, 4321)]
        inside.close()
    finally:
        host.close()


@needs_root
def test_a_thread_that_enters_a_namespace_leaves_the_others_where_they_are() -> None:
    host = Host()
    seen: list[str] = []
    home = os.readlink("/proc/thread-self/ns/net")
    has_started, may_look = threading.Event(), threading.Event()

    def look() -> None:
        has_started.set()
        may_look.wait()
        seen.append(os.readlink("/proc/thread-self/ns/net"))

    thread = threading.Thread(target=look)
    thread.start()
    has_started.wait()
    try:
        other = host.start_outside(host.namespace())
        with in_netns("/proc", other.pid):
            may_look.set()
            thread.join()
            assert os.readlink("/proc/thread-self/ns/net") != home
    finally:
        may_look.set()
        host.close()
    assert seen == [home]


def test_a_namespace_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1" / "ns").mkdir(parents=True)
    (tmp_path / "1" / "ns" / "net").touch()
    with pytest.raises(OSError, match="network namespace not entered"), in_netns(str(tmp_path), 1):
        raise AssertionError("entered")
