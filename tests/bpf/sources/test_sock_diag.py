"""Bytes between real pods by sock_diag: bridges, services, loopback, short and long connections, v1 and v2."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bpf.sources.samples import Sample
from tests.bpf.pod_network import Pods, ask_short, connect, is_close, serve
from tests.bpf.pods import needs_hybrid

pytestmark = needs_hybrid

#: Of linux/tcp.h.
TCP_REPAIR = 19


@pytest.fixture
def v1_pods() -> Iterator[Pods]:
    made = Pods(v2=False)
    yield made
    made.host.close()


def between(sample: Sample, a: str, b: str) -> tuple[int, int]:
    """Bytes from a to b and back."""
    for flow in sample.flows:
        if (flow.a, flow.b) == (a, b):
            return flow.bytes_ab, flow.bytes_ba
        if (flow.a, flow.b) == (b, a):
            return flow.bytes_ba, flow.bytes_ab
    return 0, 0


def in_all(samples: Sequence[Sample], a: str, b: str) -> tuple[int, int]:
    there, back = zip(*(between(sample, a, b) for sample in samples))
    return sum(there), sum(back)


def test_a_connection_over_a_bridge_is_seen_in_both_directions(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    serve(server)
    provider = pods.provider(tmp_path)
    connect(client, server.address)
    client.talker.do("ask(c, 100, 3000)")
    first = provider.sample(10.0)
    client.talker.do("ask(c, 50, 3000)")
    second = provider.sample(20.0)
    assert is_close(between(first, client.container, server.container), (100_000, 300_000))
    assert is_close(between(second, client.container, server.container), (50_000, 150_000))
    assert first.flows[0].messages >= 200
    assert (second.at_s, second.seconds) == (20.0, 10.0)
    assert second.counters["resolved"] == 1
    assert second.counters["dropped"] == 0


def test_a_connection_that_is_older_than_the_observer_counts_from_its_start_on(
    pods: Pods, tmp_path: Path
) -> None:
    client, server = pods.add(), pods.add()
    serve(server)
    connect(client, server.address)
    client.talker.do("ask(c, 100, 3000)")
    provider = pods.provider(tmp_path)
    client.talker.do("ask(c, 10, 3000)")
    sample = provider.sample(10.0)
    assert is_close(between(sample, client.container, server.container), (10_000, 30_000))


def test_short_connections_that_no_list_has_shown_are_seen(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    serve(server)
    provider = pods.provider(tmp_path)
    ask_short(client.talker, server, 200)
    sample, rest = provider.sample(10.0), provider.sample(20.0)
    assert is_close(in_all((sample, rest), client.container, server.container), (200_000, 600_000))
    assert rest.counters["missed"] == 0


def test_a_service_address_does_not_hide_the_server(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    serve(server, port=8080)
    address = pods.service(client, server)
    provider = pods.provider(tmp_path)
    connect(client, address)
    client.talker.do("ask(c, 100, 3000)")
    sample = provider.sample(10.0)
    assert is_close(between(sample, client.container, server.container), (100_000, 300_000))


def test_ipv6_is_seen(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    serve(server, address="::")
    provider = pods.provider(tmp_path)
    connect(client, f"{pods.net6}:{server.address.rpartition('.')[2]}")
    client.talker.do("ask(c, 100, 3000)")
    client.talker.do("first = c")  # stays open: the kernel tells of an ended one a little later
    connect(client, server.address)  # IPv4 on the server's IPv6 socket
    client.talker.do("ask(c, 100, 3000)")
    sample = provider.sample(10.0)
    assert is_close(between(sample, client.container, server.container), (200_000, 600_000))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_two_containers_of_one_pod_over_loopback_are_told_apart(
    pods: Pods, tmp_path: Path, address: str
) -> None:
    server, other = pods.add(), pods.add()
    client, other_client = pods.second_container(server), pods.second_container(other)
    for pair in ((client, server), (other_client, other)):
        serve(pair[1], address=address)
        connect(pair[0], address)
    provider = pods.provider(tmp_path)
    client.talker.do("ask(c, 100, 3000)")
    other_client.talker.do("ask(c, 10, 3000)")
    sample = provider.sample(10.0)
    assert is_close(between(sample, client.container, server.container), (100_000, 300_000))
    assert is_close(between(sample, other_client.container, other.container), (10_000, 30_000))
    assert len(sample.flows) == 2


def test_short_connections_of_a_pod_with_two_containers_are_the_pods(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    pods.second_container(client)
    serve(server)
    provider = pods.provider(tmp_path)
    ask_short(client.talker, server, 20)
    samples = [provider.sample(10.0), provider.sample(20.0)]
    ends = {end for sample in samples for flow in sample.flows for end in (flow.a, flow.b)}
    assert f"pod:{client.uid}" in ends
    assert ends <= {f"pod:{client.uid}", client.container, server.container}


def test_a_pod_that_comes_later_is_seen_and_one_that_goes_leaves_nothing(pods: Pods, tmp_path: Path) -> None:
    server = pods.add()
    serve(server)
    provider = pods.provider(tmp_path)
    client = pods.add()
    connect(client, server.address)
    client.talker.do("ask(c, 100, 3000)")
    assert is_close(between(provider.sample(10.0), client.container, server.container), (100_000, 300_000))
    client.talker.close()
    server.talker.close()
    assert provider.sample(20.0).counters["missed"] == 0
    assert provider.sample(30.0).flows == ()


def test_what_a_pod_sent_last_counts_when_it_is_gone(pods: Pods, tmp_path: Path) -> None:
    client, server = pods.add(), pods.add()
    serve(server)
    provider = pods.provider(tmp_path)
    ask_short(client.talker, server, 100)
    client.talker.close()
    samples = [provider.sample(10.0), provider.sample(20.0)]
    sums = [sum(two) for two in zip(*(between(s, client.container, server.container) for s in samples))]
    assert is_close((sums[0], sums[1]), (100_000, 300_000))


def test_the_hosts_own_clients_give_no_flow(pods: Pods, tmp_path: Path) -> None:
    server = pods.add()
    serve(server)
    provider = pods.provider(tmp_path)
    probe = pods.host.start_outside()
    ask_short(probe, server, 20)
    samples = [provider.sample(10.0), provider.sample(20.0)]
    assert [sample.flows for sample in samples] == [(), ()]
    assert samples[1].counters["missed"] == 0


def test_a_connection_whose_other_end_has_vanished_is_not_missed_while_it_is_silent(
    pods: Pods, tmp_path: Path
) -> None:
    """Of the host itself, as a killed process may leave one behind."""
    serve(pods.add())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as left_over:
            client.sendall(b"x")
            assert left_over.recv(1) == b"x"
            client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)  # It is closed without a word.
            client.close()
            provider = pods.provider(tmp_path)
            counters = [provider.sample(at_s).counters for at_s in (10.0, 20.0, 30.0)][-1]
    assert counters == {"resolved": 0, "missed": 0, "outside": 0, "dropped": 0}


def test_what_is_rewritten_twice_is_missed_and_counted_without_hints(v1_pods: Pods, tmp_path: Path) -> None:
    pods = v1_pods
    client, server = pods.add(), pods.add()
    serve(server, port=8080)
    address = pods.service(client, server, masquerade=True)
    provider = pods.provider(tmp_path)
    connect(client, address)
    client.talker.do("ask(c, 100, 3000)")
    assert provider.sample(10.0).flows == ()
    assert provider.sample(20.0).flows == ()
    assert provider.sample(30.0).counters == {"resolved": 0, "missed": 1, "outside": 0, "dropped": 0}


def test_the_first_sample_is_as_long_as_the_provider_is_open(v1_pods: Pods, tmp_path: Path) -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    provider = v1_pods.provider(tmp_path)
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 10.0 <= provider.sample(after_s + 10.0).seconds <= after_s + 10.0 - before_s


def test_the_detail_says_how_owners_are_told(v1_pods: Pods, tmp_path: Path) -> None:
    v1_pods.add()
    provider = v1_pods.provider(tmp_path)
    assert provider.inner.name == "sock_diag"
    assert "by their open files (no cgroup v2 here)" in provider.inner.detail


def test_pods_for_which_there_are_no_descriptors_left_do_not_hide_the_others(
    pods: Pods, tmp_path: Path
) -> None:
    """In a child that may open only a few."""
    for _ in range(4):
        pods.add()
    probe = pods.host.start_outside()
    probe.do(
        "import os, sys; sys.path.insert(0, '.')\n"
        "import resource\n"
        "from bpf.identity.attribution import Attribution\n"
        "from bpf.sources.sock_diag import SockDiagProvider\n"
        f"attribution = Attribution({pods.host.root(tmp_path)!r})\n"
        # The host's namespace and two pods, and what one opening takes for a moment.
        "limit = 3 * 2 + 3 + max(map(int, os.listdir('/proc/self/fd')))\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))\n"
        "provider = SockDiagProvider(attribution)\n"
    )
    assert "; pods not seen: 2 (Too many open files); " in probe.do("print(provider.detail)")
    probe.do(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 4, most))\nsample = provider.sample(10.0)\n"
    )
    assert "not seen" not in probe.do("print(provider.detail)")


def test_a_namespace_that_may_not_be_entered_loses_the_provider(v1_pods: Pods, tmp_path: Path) -> None:
    """In a child without CAP_SYS_ADMIN."""
    v1_pods.add()
    root = v1_pods.host.root(tmp_path)
    probe = v1_pods.host.start_outside()
    probe.do(
        "import sys; sys.path.insert(0, '.')\n"
        "import ctypes\n"
        "from bpf.identity.attribution import Attribution\n"
        "from bpf.sources.samples import ProviderLost\n"
        "from bpf.sources.sock_diag import SockDiagProvider\n"
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "data = (ctypes.c_uint32 * 6)(1 << 19, 1 << 19, 0, 0, 0, 0)  # CAP_SYS_PTRACE\n"
        "assert ctypes.CDLL(None).capset(header, data) == 0"
    )
    answer = probe.do(
        f"try:\n    SockDiagProvider(Attribution({root!r}))\nexcept ProviderLost as error:\n    print(error)"
    )
    assert answer.startswith("sock_diag cannot list the sockets of pods: ")
    assert "Operation not permitted" in answer
