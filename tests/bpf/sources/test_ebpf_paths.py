"""Bytes of connections on every path between two containers, on the real kernel."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Union

import pytest

from bpf.kernel.netlink import Conntrack, TranslatedFlow
from tests.bpf.pods import Talker
from tests.bpf.talkers import Stage, StandingProvider, between, needs_bcc

pytestmark = needs_bcc

#: (requests on a connection, connections, request bytes, response bytes): short ones end before the program keeps
#: anything at the socket, long ones are added up while they last.
SHORT, MANY_SHORT, LONG, BULK = (
    (1, 1, 100, 5000),
    (2, 50, 700, 300),
    (500, 1, 100, 900),
    (4, 1, 100, 20_000_000),
)
Load = tuple[int, int, int, int]
ON_TCP = 0.01
ON_UDP = 0.05


@pytest.fixture(scope="module")
def observer() -> Iterator[StandingProvider]:
    """For the tests that begin with an observer at rest; a provider of its own where its history matters."""
    with closing(StandingProvider()) as standing:
        yield standing


def assert_tcp(
    observer: StandingProvider, stage: Stage, client: Talker, address: str, port: int, load: Load
) -> None:
    """Make the calls while a provider looks on, and compare."""
    count, connections, request, response = load
    provider = observer.follow(stage)
    client.do(f"call_tcp({address!r}, {port}, {request}, {response}, {count}, {connections})")
    sample = provider.sample()
    calls = count * connections
    assert between(sample.flows, "tcp") == (
        pytest.approx(calls * request, rel=ON_TCP, abs=2),
        pytest.approx(calls * response, rel=ON_TCP, abs=2),
    )


@pytest.mark.parametrize("load", [SHORT, MANY_SHORT, LONG, BULK], ids=["short", "many short", "long", "bulk"])
def test_tcp_over_a_bridge_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, load: Load
) -> None:
    client, server = stage.bridged()
    port = int(server.do(f"serve_tcp(socket.AF_INET, '{stage.net}.3', 0, {load[2]}, {load[3]})"))
    assert_tcp(observer, stage, client, f"{stage.net}.3", port, load)


@pytest.mark.parametrize("load", [MANY_SHORT, LONG], ids=["many short", "long"])
def test_tcp_over_ipv6_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, load: Load
) -> None:
    client, server = stage.bridged()
    port = int(server.do(f"serve_tcp(socket.AF_INET6, '{stage.net6}::3', 0, {load[2]}, {load[3]})"))
    assert_tcp(observer, stage, client, f"{stage.net6}::3", port, load)


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
@pytest.mark.parametrize("load", [MANY_SHORT, LONG], ids=["many short", "long"])
def test_tcp_over_a_pods_loopback_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, family: str, address: str, load: Load
) -> None:
    client, server = stage.one_pod()
    port = int(server.do(f"serve_tcp(socket.{family}, '{address}', 0, {load[2]}, {load[3]})"))
    assert_tcp(observer, stage, client, address, port, load)


@pytest.mark.parametrize("masquerade", [False, True], ids=["DNAT", "DNAT and MASQUERADE --random"])
@pytest.mark.parametrize("load", [MANY_SHORT, LONG], ids=["many short", "long"])
def test_tcp_through_nat_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, masquerade: bool, load: Load
) -> None:
    client, server = stage.routed()
    server.do(f"serve_tcp(socket.AF_INET, '{stage.net}.130', 8080, {load[2]}, {load[3]})")
    assert_tcp(observer, stage, client, stage.service("tcp", masquerade), 80, load)


def test_a_storm_of_a_thousand_connections_loses_none(observer: StandingProvider, stage: Stage) -> None:
    load = (1, 1000, 100, 1000)
    client, server = stage.bridged()
    port = int(server.do(f"serve_tcp(socket.AF_INET, '{stage.net}.3', 0, {load[2]}, {load[3]})"))
    assert_tcp(observer, stage, client, f"{stage.net}.3", port, load)


@pytest.mark.parametrize("masquerade", [False, True], ids=["DNAT", "DNAT and MASQUERADE --random"])
def test_a_connection_older_than_the_observer_counts_from_then_on(stage: Stage, masquerade: bool) -> None:
    client, server = stage.routed()
    server.do(f"serve_tcp(socket.AF_INET, '{stage.net}.130', 8080, 100, 400)")
    address = stage.service("tcp", masquerade)
    client.do(f"c = socket.create_connection(('{address}', 80), timeout=30)")
    ask = "for _ in range({}):\n    c.sendall(bytes(100)); assert read(c, 400)\n"
    client.do(ask.format(200))
    provider = stage.provider()
    client.do(ask.format(1000) + "c.close()")
    flows = provider.sample(0.0).flows
    assert between(flows, "tcp") == (pytest.approx(100_000, rel=0.02), pytest.approx(400_000, rel=0.02))


def test_traffic_of_a_connection_that_stays_open_is_seen_while_it_does(
    observer: StandingProvider, stage: Stage
) -> None:
    client, server = stage.bridged()
    port = int(server.do(f"serve_tcp(socket.AF_INET, '{stage.net}.3', 0, 100, 400)"))
    provider = observer.follow(stage)
    client.do(f"c = socket.create_connection(('{stage.net}.3', {port}), timeout=30)")
    client.do("for _ in range(2000):\n    c.sendall(bytes(100)); assert read(c, 400)\n")
    flows = provider.sample().flows
    assert between(flows, "tcp") == (pytest.approx(200_000, rel=ON_TCP), pytest.approx(800_000, rel=ON_TCP))


@pytest.mark.parametrize("count", [1, 5, 500])
@pytest.mark.parametrize("path", ["bridge", "loopback"])
def test_tcp_fast_open_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, path: str, count: int
) -> None:
    client, server = stage.one_pod() if path == "loopback" else stage.bridged()
    for talker in (client, server):
        talker.do("allow_fast_open()")
    address = "127.0.0.1" if path == "loopback" else f"{stage.net}.3"
    port = int(server.do(f"serve_tcp(socket.AF_INET, {address!r}, 0, 100, 1000)"))
    provider = observer.follow(stage)
    client.do(f"call_fast({address!r}, {port}, 100, 1000, {count}, 20)")
    assert int(client.do("fast_opened()")) >= 20
    assert between(provider.sample().flows, "tcp") == (
        pytest.approx(20 * count * 100, rel=ON_TCP),
        pytest.approx(20 * count * 1000, rel=ON_TCP),
    )


@pytest.mark.parametrize("path", ["bridge", "loopback"])
@pytest.mark.parametrize("by", ["client", "server", "server that has not read all"])
def test_short_connections_that_end_by_a_reset_count(
    observer: StandingProvider, stage: Stage, path: str, by: str
) -> None:
    client, server = stage.one_pod() if path == "loopback" else stage.bridged()
    address = "127.0.0.1" if path == "loopback" else f"{stage.net}.3"
    serve, call = {
        "client": ("serve_tcp(socket.AF_INET, {!r}, 0, 100, 1000)", "reset_tcp({!r}, {}, 100, 1000, 2, 50)"),
        "server": ("serve_resets({!r}, 0, 200, 2000, 0)", "call_until_reset({!r}, {}, 200, 2000, 50)"),
        "server that has not read all": (
            "serve_resets({!r}, 0, 200, 2000, 10)",
            "call_until_reset({!r}, {}, 200, 2000, 50)",
        ),
    }[by]
    port = int(server.do(serve.format(address)))
    provider = observer.follow(stage)
    client.do(call.format(address, port))
    assert between(provider.sample().flows, "tcp") == (10_000, 100_000)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("count", [1, 5, 300])
@pytest.mark.parametrize("path", ["bridge", "IPv6", "loopback", "DNAT"])
def test_udp_counts_what_the_programs_sent(
    observer: StandingProvider, stage: Stage, path: str, count: int, connected: bool
) -> None:
    client, server = (
        stage.one_pod() if path == "loopback" else stage.routed() if path == "DNAT" else stage.bridged()
    )
    listen = {"bridge": f"{stage.net}.3", "IPv6": f"{stage.net6}::3", "loopback": "127.0.0.1"}
    address = listen.get(path, f"{stage.net}.130")
    family = "socket.AF_INET6" if path == "IPv6" else "socket.AF_INET"
    port = int(server.do(f"serve_udp({family}, {address!r}, {8080 if path == 'DNAT' else 0}, 500)"))
    if path == "DNAT":
        address, port = stage.service("udp"), 80
    provider = observer.follow(stage)
    client.do(f"call_udp({family}, {address!r}, {port}, 100, 500, {count}, {connected})")
    flows = provider.sample().flows
    assert between(flows, "udp") == (
        pytest.approx(count * 100, rel=ON_UDP),
        pytest.approx(count * 500, rel=ON_UDP),
    )


def begin_udp(stage: Stage, path: str, serve: str) -> tuple[Talker, Talker, str, int]:
    """Client, server, and where the client finds what ``serve`` starts at the server's ``{address}``."""
    client, server = stage.routed() if path == "DNAT" else stage.bridged()
    address = f"{stage.net}.130" if path == "DNAT" else f"{stage.net}.3"
    port = int(server.do(serve.format(address=repr(address))))
    if path == "DNAT":
        address, port = stage.service("udp"), 80
    return client, server, address, port


@pytest.mark.parametrize("path", ["bridge", "DNAT"])
def test_udp_to_a_server_that_never_answers_counts(stage: Stage, path: str) -> None:
    client, server, address, port = begin_udp(stage, path, "serve_udp(socket.AF_INET, {address}, 8080, 0)")
    provider = stage.provider()
    client.do(f"call_udp(socket.AF_INET, {address!r}, {port}, 100, 0, 20, False)")
    server.do("await_taken(20)")
    flows = provider.sample(0.0).flows
    assert between(flows, "udp") == (2000, 0)


@pytest.mark.parametrize("path", ["bridge", "DNAT"])
def test_a_receiver_that_neither_answers_nor_asks_for_the_sender_is_looked_for(
    stage: Stage, path: str
) -> None:
    client, server, address, port = begin_udp(stage, path, "read_udp({address}, 8080)")
    client.do("c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    send = f"for _ in range(50):\n    c.sendto(bytes(100), ({address!r}, {port}))\n"
    provider = stage.provider()
    seen = []
    for now_s in (10.0, 20.0, 30.0, 40.0):
        client.do(send)
        server.do("await_taken(50)")
        seen.append(between(provider.sample(now_s).flows, "udp"))
    # The first sample has shown that much waits; nothing of it is lost.
    assert seen == [(0, 0), (10_000, 0), (5000, 0), (5000, 0)]


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_udp_through_nat_of_both_addresses_counts_what_the_programs_sent(
    stage: Stage, connected: bool
) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    provider = stage.provider()
    client.do(f"call_udp(socket.AF_INET, {address!r}, 80, 100, 500, 300, {connected})")
    assert between(provider.sample(10.0).flows, "udp") == (30_000, 150_000)


def test_a_server_that_answers_several_senders_behind_nat_of_both_addresses_counts(stage: Stage) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    client.do("callers = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(5)]")
    ask = (
        "for number in range(100):\n    for caller in callers:\n"
        f"        caller.sendto(bytes(100), ({address!r}, 80)); caller.recv(65536)\n"
    )
    provider = stage.provider()
    for now_s in (10.0, 20.0, 30.0):
        client.do(ask)
        assert between(provider.sample(now_s).flows, "udp") == (50_000, 250_000)


def test_a_receiver_behind_nat_of_both_addresses_that_never_answers_is_looked_for(stage: Stage) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 0)")
    address = stage.service("udp", masquerade=True)
    client.do("c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    provider = stage.provider()
    seen = []
    for now_s in (10.0, 20.0, 30.0, 40.0):
        client.do(f"for _ in range(50):\n    c.sendto(bytes(100), ({address!r}, 80))\n")
        server.do("await_taken(50)")
        seen.append(between(provider.sample(now_s).flows, "udp"))
    # The receiver's own address shows where packets come in, which is looked at after the first sample.
    assert seen == [(0, 0), (10_000, 0), (5000, 0), (5000, 0)]


@pytest.mark.parametrize("samples", [1, 3])
def test_udp_through_nat_of_both_addresses_with_a_socket_for_each_message_counts(
    stage: Stage, samples: int
) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    provider = stage.provider()
    for number in range(samples):
        client.do(f"call_udp_anew({address!r}, 80, 100, 500, 2000)")
        assert between(provider.sample(10.0 * number).flows, "udp") == (
            pytest.approx(200_000, rel=ON_UDP),
            pytest.approx(1_000_000, rel=ON_UDP),
        )


def test_more_flows_than_are_read_from_conntrack_are_seen_where_packets_come_in(stage: Stage) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    provider = stage.provider(translations=lambda: Listed(list[TranslatedFlow]()))
    seen, unattributed = [], []
    for now_s in (10.0, 20.0, 30.0):
        client.do(f"call_udp_anew({address!r}, 80, 100, 500, 500)")
        sample = provider.sample(now_s)
        seen.append(between(sample.flows, "udp"))
        unattributed.append(sample.counters["udp_unattributed_bytes"])
    # Once in a while a port is one of the first round's: what has waited there counts then.
    for there, back in seen[1:]:
        assert (there, back) == (pytest.approx(50_000, rel=ON_UDP), pytest.approx(250_000, rel=ON_UDP))
    assert seen[0] == (0, 0)
    # Others on this machine may send where nothing listens.
    assert 300_000 <= unattributed[0] == pytest.approx(unattributed[2], abs=30_000)


def test_a_conntrack_that_is_long_is_not_read_again_while_packets_are_looked_at_where_they_come_in(
    stage: Stage,
) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    nowhere = (packed("192.0.2.1"), 9)
    conntrack = Listed([TranslatedFlow(nowhere, nowhere, nowhere, nowhere)] * 5000)
    provider = stage.provider(translations=lambda: conntrack)
    seen = []
    for now_s in (10.0, 20.0, 30.0):
        client.do(f"call_udp_anew({address!r}, 80, 100, 500, 50)")
        seen.append(between(provider.sample(now_s).flows, "udp"))
    assert (seen[0], conntrack.times) == ((0, 0), 1)
    # Once in a while a port is one of the first round's: what has waited there counts then.
    for there, back in seen[1:]:
        assert (there, back) == (pytest.approx(5000, rel=ON_UDP), pytest.approx(25_000, rel=ON_UDP))


def test_a_flow_that_ends_in_conntrack_is_not_taken_for_the_next_with_its_addresses(stage: Stage) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    flows: list[TranslatedFlow] = []
    provider = stage.provider(translations=lambda: Listed(flows))
    client.do("c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    ask = f"for _ in range(50):\n    c.sendto(bytes(100), ({address!r}, 80)); c.recv(65536)\n"
    client.do(ask)
    with closing(Conntrack()) as conntrack:
        flows += [flow for flow in conntrack.translated_udp(10_000) if flow.target == (packed(address), 80)]
    assert between(provider.sample(10.0).flows, "udp") == (5000, 25_000)
    flows.clear()
    provider.sample(20.0)
    client.do(ask)
    assert between(provider.sample(30.0).flows, "udp") == (0, 0)


def test_where_conntrack_cannot_be_read_that_is_counted_and_said(stage: Stage) -> None:
    client, server = stage.routed()
    server.do(f"serve_udp(socket.AF_INET, '{stage.net}.130', 8080, 500)")
    address = stage.service("udp", masquerade=True)
    provider = stage.provider(translations=lambda: Listed(OSError(errno.EPROTONOSUPPORT, "no conntrack")))
    assert "NAT" not in provider.detail
    client.do(f"call_udp(socket.AF_INET, {address!r}, 80, 100, 500, 50, False)")
    sample = provider.sample(10.0)
    assert between(sample.flows, "udp") == (0, 0)
    assert sample.counters["conntrack_unread"] == 1
    assert "UDP through NAT of both addresses is not seen" in provider.detail
    assert "no conntrack" in provider.detail


class Listed:
    """What stands for conntrack: these flows, or why there are none."""

    def __init__(self, flows: Union[list[TranslatedFlow], OSError]) -> None:
        self._flows = flows
        self.times = 0

    def translated_udp(self, most: int) -> list[TranslatedFlow]:
        self.times += 1
        if isinstance(self._flows, OSError):
            raise self._flows
        return self._flows

    def close(self) -> None:
        """Holds nothing."""


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


#: Of the range for documentation: nobody here has it.
AWAY = "('192.0.2.1', 9)"


def begin_sending_away(stage: Stage) -> tuple[Talker, Talker]:
    """Client and server with a socket each, that of the server with a port of its own; both can send."""
    client, server = stage.bridged()
    for talker in (client, server):
        talker.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30)")
    server.do(f"s.bind(('{stage.net}.3', 7946))")
    return client, server


def test_what_a_server_sends_to_another_machine_is_not_for_who_asks_it(stage: Stage) -> None:
    client, server = begin_sending_away(stage)
    provider = stage.provider()
    server.do(f"for _ in range(1000):\n    s.sendto(bytes(1000), {AWAY})\n")
    client.do(f"s.sendto(bytes(10), ('{stage.net}.3', 7946))")
    server.do("s.sendto(bytes(20), s.recvfrom(1000)[1])")
    client.do("s.recvfrom(1000)")
    sample = provider.sample(0.0)
    assert between(sample.flows, "udp") == (10, 20)
    assert sample.counters["udp_given_up"] == 1000


def test_a_receiver_that_is_slow_does_not_get_what_was_sent_to_another_machine_meanwhile(
    stage: Stage,
) -> None:
    client, server = begin_sending_away(stage)
    provider = stage.provider()
    client.do(f"s.sendto(bytes(10), ('{stage.net}.3', 7946))")
    server.do("s.sendto(bytes(20), s.recvfrom(1000)[1])")
    server.do(f"for _ in range(1000):\n    s.sendto(bytes(1000), {AWAY})\n")
    client.do("s.recvfrom(1000)")
    assert between(provider.sample(0.0).flows, "udp") == (10, 20)


def test_of_two_receivers_that_stay_unknown_none_gets_the_bytes_of_the_other(stage: Stage) -> None:
    client, server = stage.bridged()
    port = int(server.do(f"read_udp('{stage.net}.3', 8080)"))
    client.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    provider = stage.provider()
    provider.sample(10.0)
    # Much waits, so that receivers are looked for where packets come in.
    client.do(f"for _ in range(50):\n    s.sendto(bytes(1000), {AWAY})\n")
    provider.sample(20.0)
    client.do(f"s.sendto(bytes(10), ('{stage.net}.3', {port})); s.sendto(bytes(1000), {AWAY})")
    client.do(f"s.sendto(bytes(10), ('{stage.net}.3', {port}))")
    server.do("await_taken(2)")
    assert between(provider.sample(30.0).flows, "udp") == (20, 0)


def test_loopback_addresses_of_two_pods_are_not_taken_for_each_other(stage: Stage) -> None:
    first = stage.start("first", stage.host.namespace())
    second = stage.start("second", stage.host.namespace())
    for talker in (first, second):
        talker.do("serve_udp(socket.AF_INET, '127.0.0.1', 5353, 10)")
    provider = stage.provider()
    for talker in (first, second):
        talker.do("call_udp(socket.AF_INET, '127.0.0.1', 5353, 100, 10, 10, False)")
    flows = provider.sample(0.0).flows
    assert [flow for flow in flows if flow.kind == "udp"] == []
