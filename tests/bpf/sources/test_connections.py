"""Hints from the tracepoint: its format file, and real connections whose addresses were rewritten twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpf.identity.attribution import Attribution
from bpf.kernel.compiler import Compiler
from bpf.sources.samples import ProviderLost
from bpf.sources.sock_diag import ConnectionHints, open_sock_diag, parse_format
from tests.bpf.pod_network import Pods, ask_short, connect, is_close, serve
from tests.bpf.pods import Talker, needs_hybrid

FORMAT = """name: inet_sock_set_state
ID: 2287
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:const void * skaddr;	offset:8;	size:8;	signed:0;
	field:int oldstate;	offset:16;	size:4;	signed:1;
	field:int newstate;	offset:20;	size:4;	signed:1;
	field:__u16 sport;	offset:24;	size:2;	signed:0;
	field:__u16 dport;	offset:26;	size:2;	signed:0;
	field:__u16 family;	offset:28;	size:2;	signed:0;
	field:__u16 protocol;	offset:30;	size:2;	signed:0;
	field:__u8 saddr[4];	offset:32;	size:4;	signed:0;
	field:__u8 daddr[4];	offset:36;	size:4;	signed:0;
	field:__u8 saddr_v6[16];	offset:40;	size:16;	signed:0;
	field:__u8 daddr_v6[16];	offset:56;	size:16;	signed:0;

print fmt: "family=%s ..."
"""


def test_offsets_are_the_formats_own() -> None:
    assert parse_format(FORMAT) == {
        "skaddr": 8,
        "oldstate": 16,
        "newstate": 20,
        "sport": 24,
        "dport": 26,
        "protocol": 30,
        "saddr_v6": 40,
        "daddr_v6": 56,
    }


CHANGED = {
    "a field is gone": (FORMAT.replace("__u16 sport", "__u16 source_port"), "no field sport as expected"),
    "a field has another size (4.16: protocol has one byte)": (
        FORMAT.replace("protocol;	offset:30;	size:2", "protocol;	offset:30;	size:1"),
        "no field protocol as expected",
    ),
    "an empty file": ("", "no field daddr_v6, dport, newstate"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_tracepoint_that_is_not_as_expected_is_refused_with_the_fields_name(name: str) -> None:
    text, sentence = CHANGED[name]
    with pytest.raises(ProviderLost, match=sentence):
        parse_format(text)


OBSERVE = """
import sys, ctypes, json
sys.path.insert(0, '.')
from bpf.identity.attribution import Attribution
from bpf.kernel.compiler import Compiler
from bpf.sources.sock_diag import open_sock_diag
libc = ctypes.CDLL(None)
# tracefs where nobody else sees it: a mount namespace of this process.
assert libc.unshare(0x20000) == 0
assert libc.mount(b'none', b'/', None, 0x44000, None) == 0
assert libc.mount(b'nodev', b'/sys/kernel/tracing', b'tracefs', 0, None) == 0
def sample(now_s):
    attribution.refresh()
    s = provider.sample(now_s)
    print(json.dumps([[[f.a, f.b, f.bytes_ab, f.bytes_ba] for f in s.flows], s.counters]))
"""


@pytest.fixture
def observer(pods: Pods, tmp_path: Path) -> Talker:
    """A process with a provider that has hints."""
    started = pods.host.start_outside()
    started.do(OBSERVE)
    started.do(f"attribution = Attribution({pods.host.root(tmp_path)!r})")
    started.do("provider = open_sock_diag(attribution, Compiler())")
    detail = started.do("print(provider.detail)")
    if "has no bcc" in detail:
        pytest.skip(detail)
    assert "rewritten" not in detail
    return started


def sample(observer: Talker, now_s: float) -> tuple[dict[tuple[str, str], tuple[int, int]], dict[str, int]]:
    flows, counters = json.loads(observer.do(f"sample({now_s})"))
    seen = {}
    for a, b, forth, back in flows:
        seen[a, b], seen[b, a] = (forth, back), (back, forth)
    return seen, counters


@needs_hybrid
def test_dnat_with_masquerade_and_random_ports_does_not_hide_the_client(pods: Pods, observer: Talker) -> None:
    client, server = pods.add(), pods.add()
    pods.second_container(client)
    serve(server, port=8080)
    address = pods.service(client, server, masquerade=True)
    sample(observer, 10.0)
    connect(client, address)
    client.talker.do("ask(c, 100, 3000)")
    seen, counters = sample(observer, 20.0)
    assert is_close(seen[client.container, server.container], (100_000, 300_000))
    assert counters["missed"] == 0


@needs_hybrid
def test_short_connections_of_a_pod_with_two_containers_are_the_right_ones(
    pods: Pods, observer: Talker
) -> None:
    client, server = pods.add(), pods.add()
    pods.second_container(client)
    serve(server)
    sample(observer, 10.0)
    ask_short(client.talker, server, 50)
    seen, _ = sample(observer, 20.0)
    rest, counters = sample(observer, 30.0)
    pair = client.container, server.container
    sums = [sum(two) for two in zip(seen.get(pair, (0, 0)), rest.get(pair, (0, 0)))]
    assert is_close((sums[0], sums[1]), (50_000, 150_000))
    assert {end for two in (*seen, *rest) for end in two} == set(pair)
    assert counters["missed"] == 0


@needs_hybrid
def test_nothing_is_left_in_the_kernel_when_the_provider_is_closed(pods: Pods, observer: Talker) -> None:
    observer.do("import glob, os")
    observer.do("provider.close()")
    left = observer.do(
        "print([t for t in (os.readlink(f) for f in glob.glob('/proc/self/fd/*') if os.path.lexists(f)) if 'bpf' in t])"
    )
    assert left == "[]"


@needs_hybrid
def test_without_tracefs_the_provider_works_and_says_what_it_does_not_see(tmp_path: Path) -> None:
    if Path("/sys/kernel/tracing/events").exists() or Path("/sys/kernel/debug/tracing/events").exists():
        pytest.skip("tracefs is mounted here")
    with pytest.raises(ProviderLost, match="tracefs is not mounted at /sys/kernel/tracing"):
        ConnectionHints(Attribution(str(tmp_path)))
    provider = open_sock_diag(Attribution(str(tmp_path)), Compiler())
    assert "none whose source address was rewritten (tracefs is not mounted" in provider.detail
    provider.close()
