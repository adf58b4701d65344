"""The two ends of connections, in tables of sockets: who talked to whom, and how much of it counts."""

from __future__ import annotations

from typing import Optional

import pytest

from bpf.kernel.netlink import TCP_LISTEN, Address, InetSocket
from bpf.sources.tcp_pairs import Exchange, TcpEnds, total

A, B, HOST = 1, 2, 3  # namespaces
CLIENT: Address = (bytes((10, 0, 0, 1)), 40000)
SERVER: Address = (bytes((10, 0, 0, 2)), 80)
SERVICE: Address = (bytes((10, 96, 0, 9)), 8080)
NODE: Address = (bytes((192, 168, 0, 1)), 61000)
OUTSIDE: Address = (bytes((8, 8, 8, 8)), 443)
LOCAL = frozenset(address for address, _ in (CLIENT, SERVER, NODE))
OWNERS = {A: "a", B: "b", HOST: ""}


def tcp(cookie: int, local: Address, remote: Address, acked: int = 0, received: int = 0) -> InetSocket:
    return InetSocket(cookie, 1, local, remote, 0, 0, acked, received, 2)


def listener(port: int = 80) -> InetSocket:
    return InetSocket(99, TCP_LISTEN, (bytes(4), port), (bytes(4), 0))


def owner_by_namespace(namespace: int, _: InetSocket) -> Optional[str]:
    return OWNERS[namespace]


class Seen:
    """Hints from a table."""

    def __init__(self, openers: dict[Address, str], clients: dict[Address, str]) -> None:
        self._openers = openers
        self._clients = clients

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass

    def opener(self, local: Address, remote: Address) -> Optional[str]:
        return self._openers.get(local)

    def client_behind(self, local: Address, remote: Address) -> Optional[str]:
        return self._clients.get(remote)


@pytest.fixture
def ends() -> TcpEnds:
    return TcpEnds(owner_by_namespace)


MATCHES = {
    "plain": (tcp(1, CLIENT, SERVER), tcp(2, SERVER, CLIENT, 10, 20)),
    "DNAT: the client's target is a Service": (tcp(1, CLIENT, SERVICE), tcp(2, SERVER, CLIENT, 10, 20)),
}


@pytest.mark.parametrize("name", MATCHES)
def test_the_passive_end_counts_and_the_other_names_the_peer(ends: TcpEnds, name: str) -> None:
    client, server = MATCHES[name]
    ends.see(A, client._replace(bytes_acked=999, bytes_received=9))
    ends.see(B, listener())
    ends.see(B, server)
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]
    assert ends.counters == {"resolved": 1, "missed": 0, "outside": 0}


def test_only_what_was_sent_since_the_last_time_counts(ends: TcpEnds) -> None:
    ends.see(B, listener())
    ends.see(A, tcp(1, CLIENT, SERVER))
    ends.see(B, tcp(2, SERVER, CLIENT, 500, 500))
    ends.begin_here()
    for total_sent in (600, 600, 900):
        ends.see(B, listener())
        ends.see(A, tcp(1, CLIENT, SERVER))
        ends.see(B, tcp(2, SERVER, CLIENT, total_sent, 500))
        if total_sent == 600:
            first = ends.exchanges(LOCAL)
        else:
            last = ends.exchanges(LOCAL)
    assert first == []  # the second 600
    assert [exchange.sent for exchange in last] == [300]
    assert ends.counters["resolved"] == 1


def test_sockets_beyond_the_most_are_told_by_container_until_there_is_room() -> None:
    ends = TcpEnds(owner_by_namespace, most_sockets=2)
    first, second = tcp(1, CLIENT, SERVER), tcp(2, SERVER, CLIENT, 10, 20)
    more = [tcp(3, (CLIENT[0], 40001), SERVER), tcp(4, SERVER, (CLIENT[0], 40001), 30, 40)]

    def look(*seen: InetSocket) -> list[Exchange]:
        ends.see(B, listener())
        for each in seen:
            ends.see(B if each.local == SERVER else A, each)
        return ends.exchanges(LOCAL)

    assert look(first, second, *more) == [Exchange("b", "a", 10, 20, 2)]
    assert (ends.followed, ends.lost, ends.not_followed) == (2, {"a": 1, "b": 1}, 2)
    # Two looks later the first two are forgotten.
    for _ in range(3):
        look(*more)
    assert look(*more) == []
    assert (ends.followed, ends.lost) == (2, {})
    assert look(more[0], more[1]._replace(bytes_acked=31)) == [Exchange("b", "a", 1, 0, 0)]


def test_a_connection_that_came_and_went_between_two_samples_counts(ends: TcpEnds) -> None:
    ends.see(B, listener())
    ends.see(A, tcp(1, CLIENT, SERVER), has_ended=True)
    ends.see(B, tcp(2, SERVER, CLIENT, 10, 20), has_ended=True)
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]
    assert ends.exchanges(LOCAL) == []


@pytest.mark.parametrize("first", ["client", "server"])
def test_ends_that_are_told_in_two_different_samples_are_joined_and_nothing_is_lost(
    ends: TcpEnds, first: str
) -> None:
    told = {
        "client": lambda: ends.see(A, tcp(1, CLIENT, SERVER), has_ended=True),
        "server": lambda: ends.see(B, tcp(2, SERVER, CLIENT, 10, 20), has_ended=True),
    }
    ends.see(B, listener())
    told.pop(first)()
    assert ends.exchanges(LOCAL) == []
    ends.see(B, listener())
    for tell in told.values():
        tell()
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]
    assert ends.counters["missed"] == 0


def test_two_clients_with_one_address_and_port_to_different_targets_are_not_guessed_between() -> None:
    owners = {1: "a1", 2: "a2", 3: "b"}
    ends = TcpEnds(lambda _, seen: owners.get(seen.cookie, "b"))
    ends.see(A, tcp(1, CLIENT, SERVICE))
    ends.see(A, tcp(2, CLIENT, (SERVICE[0], 9090)))
    ends.see(B, listener())
    ends.see(B, tcp(3, SERVER, CLIENT, 10, 20))
    assert ends.exchanges(LOCAL) == []


def test_a_client_whose_server_is_known_is_not_taken_for_another_one() -> None:
    owners = {1: "a1", 2: "a2"}
    ends = TcpEnds(lambda _, seen: owners.get(seen.cookie, "b"))
    ends.see(A, tcp(1, CLIENT, SERVER))
    ends.see(A, tcp(2, CLIENT, SERVICE))
    ends.see(B, listener())
    ends.see(B, listener(81))
    ends.see(B, tcp(3, SERVER, CLIENT, 10, 20))
    ends.see(B, tcp(4, (SERVER[0], 81), CLIENT, 30, 40))
    assert [exchange.client for exchange in ends.exchanges(LOCAL)] == ["a1", "a2"]


def test_loopback_of_two_pods_is_told_apart() -> None:
    ends = TcpEnds(lambda namespace, seen: f"{namespace}/{'server' if seen.local[1] == 80 else 'client'}")
    loopback = bytes((127, 0, 0, 1))
    for namespace in (A, B):
        ends.see(namespace, listener())
        ends.see(namespace, tcp(namespace * 10, (loopback, 40000), (loopback, 80)))
        ends.see(namespace, tcp(namespace * 10 + 1, (loopback, 80), (loopback, 40000), namespace, 0))
    assert ends.exchanges(LOCAL) == [
        Exchange("1/server", "1/client", 1, 0, 2),
        Exchange("2/server", "2/client", 2, 0, 2),
    ]


UNRESOLVED = {
    "a client on another machine": (OUTSIDE, "outside"),
    "a client whose address was rewritten to the node's": (NODE, "missed"),
}


@pytest.mark.parametrize("name", UNRESOLVED)
def test_a_connection_without_its_other_end_is_counted_once_and_told_apart(ends: TcpEnds, name: str) -> None:
    remote, counter = UNRESOLVED[name]
    for _ in range(4):
        ends.see(B, listener())
        ends.see(B, tcp(2, SERVER, remote, 10, 20))
        assert ends.exchanges(LOCAL) == []
    assert ends.counters == {"resolved": 0, "missed": 0, "outside": 0, counter: 1}


def test_a_connection_without_its_other_end_is_missed_only_from_its_first_byte_on(ends: TcpEnds) -> None:
    """One that a killed process left behind, for instance: nothing of it is missing in the graph."""
    ends.see(B, listener())
    ends.see(B, tcp(2, SERVER, NODE, 10, 20))
    ends.begin_here()
    for sent, missed in ((10, 0), (10, 0), (10, 0), (11, 1), (12, 1)):
        ends.see(B, listener())
        ends.see(B, tcp(2, SERVER, NODE, sent, 20))
        assert ends.exchanges(LOCAL) == []
        assert ends.counters["missed"] == missed


def test_a_hint_names_the_client_of_what_was_rewritten_twice() -> None:
    ends = TcpEnds(owner_by_namespace, Seen({}, {NODE: "a"}))
    ends.see(A, tcp(1, CLIENT, SERVICE))
    ends.see(B, listener())
    ends.see(B, tcp(2, SERVER, NODE, 10, 20))
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]


WRONG_HINTS = {
    "it has no connection that could be this one": (CLIENT, SERVER),
    "the client is on another machine": (OUTSIDE, SERVICE),
}


@pytest.mark.parametrize("name", WRONG_HINTS)
def test_a_thread_that_was_only_interrupted_is_not_taken_for_the_client(name: str) -> None:
    remote, target = WRONG_HINTS[name]
    other_server: Address = (bytes((10, 0, 0, 3)), 80)
    ends = TcpEnds(owner_by_namespace, Seen({}, {NODE: "a", OUTSIDE: "a"}))
    ends.see(B, listener())
    # a's only connection is with another server.
    ends.see(A, tcp(1, CLIENT, other_server if target == SERVER else SERVICE))
    ends.see(B, tcp(4, other_server, CLIENT, 1, 1))
    ends.see(B, tcp(2, SERVER, NODE if remote == CLIENT else OUTSIDE, 10, 20))
    assert sum(exchange.received for exchange in ends.exchanges(LOCAL)) == 1


def test_a_hint_names_the_container_where_only_the_pod_is_known() -> None:
    ends = TcpEnds(lambda namespace, _: "b" if namespace == B else "pod:x", Seen({CLIENT: "a2"}, {}))
    ends.see(A, tcp(1, CLIENT, SERVER), has_ended=True)
    ends.see(B, listener())
    ends.see(B, tcp(2, SERVER, CLIENT, 10, 20), has_ended=True)
    assert ends.exchanges(LOCAL) == [Exchange("b", "a2", 10, 20, 2)]


def test_an_accepted_socket_of_which_only_the_pod_is_known_is_its_listeners() -> None:
    ends = TcpEnds(lambda _, seen: "b" if seen.state == TCP_LISTEN else "pod:x" if seen.cookie == 2 else "a")
    ends.see(A, tcp(1, CLIENT, SERVER))
    ends.see(B, listener())
    ends.see(B, tcp(2, SERVER, CLIENT, 10, 20), has_ended=True)
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]


def test_the_hosts_own_clients_are_known_but_do_not_count(ends: TcpEnds) -> None:
    ends.see(HOST, tcp(1, NODE, SERVER))
    ends.see(B, listener())
    ends.see(B, tcp(2, SERVER, NODE, 10, 20))
    assert ends.exchanges(LOCAL) == []
    assert ends.counters == {"resolved": 0, "missed": 0, "outside": 0}


def test_without_a_listener_the_lower_port_is_the_passive_end(ends: TcpEnds) -> None:
    ends.see(A, tcp(1, CLIENT, SERVER, 20, 10))
    ends.see(B, tcp(2, SERVER, CLIENT, 10, 20))
    assert ends.exchanges(LOCAL) == [Exchange("b", "a", 10, 20, 2)]


def test_a_listener_that_has_ended_is_no_connection(ends: TcpEnds) -> None:
    ends.see(B, listener())
    ends.see(B, listener()._replace(state=7), has_ended=True)
    ends.exchanges(LOCAL)
    ends.exchanges(LOCAL)
    assert ends.counters == {"resolved": 0, "missed": 0, "outside": 0}


def test_sums_are_by_pair_and_leave_out_what_stays_inside_one_container() -> None:
    exchanges = [Exchange("b", "a", 10, 20, 1), Exchange("a", "b", 1, 2, 1), Exchange("a", "a", 5, 5, 5)]
    assert total(exchanges) == {("a", "b"): (21, 12, 2)}


def test_sockets_that_are_gone_are_forgotten(ends: TcpEnds) -> None:
    for cookie in range(100):
        ends.see(B, listener())
        ends.see(A, tcp(cookie * 2, (CLIENT[0], cookie + 1), SERVER), has_ended=cookie % 2 == 0)
        ends.exchanges(LOCAL)
    assert ends.followed <= 3
