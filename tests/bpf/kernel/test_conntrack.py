"""Conntrack as the kernel lists it, in a network namespace of the test's own."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from bpf.kernel.netlink import Conntrack, TranslatedFlow, parse_flow
from tests.bpf.pods import Host, needs_root
from tests.bpf.talkers import Stage

FAMILIES = {
    "AF_INET": ("iptables", "10.99.0.1", "127.0.0.1"),
    "AF_INET6": ("ip6tables", "fd99::1", "::1"),
}


def send(host: Host, family: str, count: int = 1) -> Conntrack:
    """Conntrack of a new namespace in which ``count`` sockets have sent to a virtual address, and to a real one."""
    command, virtual, real = FAMILIES[family]
    netns = host.namespace()
    host.run(f"ip -n {netns} addr add {virtual}/{128 if ':' in virtual else 32} dev lo nodad")
    nat = f"ip netns exec {netns} {command} -w -t nat -A OUTPUT -d {virtual} -p udp --dport 80"
    host.run(f"{nat} -j DNAT --to-destination {f'[{real}]' if ':' in real else real}:8080")
    talker = host.start_outside(netns)
    talker.do(
        "import socket\n"
        f"sockets = [socket.socket(socket.{family}, socket.SOCK_DGRAM) for _ in range({count})]\n"
        f"for caller in sockets: caller.sendto(b'', ({virtual!r}, 80)); caller.sendto(b'', ({real!r}, 9))"
    )
    conntrack = Conntrack(pid=talker.pid)
    host.on_close(conntrack.close)
    return conntrack


@needs_root
@pytest.mark.parametrize("family", FAMILIES)
def test_flows_that_nat_changes_are_listed_and_no_others(stage: Stage, family: str) -> None:
    _, virtual, real = (FAMILIES[family][0], *(socket.inet_pton(getattr(socket, family), text)
                        for text in FAMILIES[family][1:]))  # fmt: skip
    [flow] = send(stage.host, family).translated_udp(100)
    assert flow.target == (virtual, 80)
    assert flow.answer_source == (real, 8080)
    assert flow.answer_target == flow.source


@needs_root
def test_of_many_flows_so_many_are_looked_at_and_the_next_time_again(stage: Stage) -> None:
    conntrack = send(stage.host, "AF_INET", 200)
    assert len(list(conntrack.translated_udp(1000))) == 200
    first = list(conntrack.translated_udp(10))
    assert len(first) <= 10
    assert len(list(conntrack.translated_udp(1000))) == 200


@needs_root
def test_a_namespace_without_flows_has_none(stage: Stage) -> None:
    talker = stage.host.start_outside(stage.host.namespace())
    with closing(Conntrack(pid=talker.pid)) as conntrack:
        assert list(conntrack.translated_udp(100)) == []


@pytest.mark.parametrize(
    "message",
    [bytes([2, 0, 0, 0]), bytes([7, 0, 0, 0]), bytes.fromhex("02000000 08000180 00000000 08000280 00000000")],
    ids=["no tuples", "another family", "tuples of another shape"],
)
def test_an_entry_of_another_shape_is_left_out(message: bytes) -> None:
    assert parse_flow(message, 0, len(message)) is None


def test_an_entry_is_read_at_its_place_in_the_buffer() -> None:
    there = "14000180 08000100 0a000002 08000200 0a090909 1c000280 05000100 11000000 06000200 9c400000 06000300 00500000"
    back = "14000180 08000100 0a000003 08000200 0a000001 1c000280 05000100 11000000 06000200 1f900000 06000300 75300000"
    message = bytes.fromhex("ffff 02000000 34000180" + there + "34000280" + back)
    flow = parse_flow(message, 2, len(message))
    assert flow == TranslatedFlow(
        (bytes([10, 0, 0, 2]), 40000),
        (bytes([10, 9, 9, 9]), 80),
        (bytes([10, 0, 0, 3]), 8080),
        (bytes([10, 0, 0, 1]), 30000),
    )
