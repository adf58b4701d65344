"""The eBPF provider: what it makes of what the kernel counted, and how it starts and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bpf.kernel import syscalls
from bpf.kernel.loader import load
from bpf.sources.ebpf import EbpfProvider, attachments_at, cgroup_v2_root
from bpf.sources.samples import Peers, ProviderLost
from tests.bpf.pods import Host, pod_uid
from tests.bpf.talkers import Stage, between, needs_bcc

ROOT = Path(__file__).parents[3]
CONNECTED = Peers(unix={("client", "server")})
#: A kernel that does not describe its types: what is sent over unix sockets is not counted there.
NONE = "/nowhere/vmlinux"
WHY_NONE = f"the kernel does not describe its types: {NONE}: No such file or directory"


@needs_bcc
def test_two_containers_on_a_unix_socket_wake_each_other(stage: Stage, tmp_path: Path) -> None:
    client, server = stage.start("client"), stage.start("server")
    server.do(f"serve_unix('{tmp_path}/s', 10, 10)")
    provider = stage.provider(peers=lambda: CONNECTED, types=NONE)
    provider.sample(0.0)
    assert provider.detail.endswith(f"by wake-ups only: {WHY_NONE}")
    client.do(f"call_unix('{tmp_path}/s', 10, 10, 1000)")
    sample = provider.sample(10.0)
    wakes = sum(flow.messages for flow in sample.flows if flow.kind == "unix")
    # Two for each round trip; fewer where the other end was not asleep yet.
    assert 300 <= wakes <= 4000
    assert between(sample.flows, "tcp") == (0, 0)


@needs_bcc
def test_wakes_are_counted_only_while_containers_share_something(stage: Stage, tmp_path: Path) -> None:
    client, server = stage.start("client"), stage.start("server")
    shared = [Peers(), CONNECTED, Peers(), CONNECTED]
    provider = stage.provider(peers=lambda: shared.pop(0), types=NONE)
    messages, counted = [], []
    for number in range(4):
        server.do(f"serve_unix('{tmp_path}/s{number}', 10, 10)")
        sample = provider.sample(10.0 * number)
        client.do(f"call_unix('{tmp_path}/s{number}', 10, 10, 1000)")
        messages.append(sum(flow.messages for flow in sample.flows if flow.kind == "unix"))
        counters = provider.counters()
        counted.append(counters["wakes"] + counters["wakes_unknown"])
    # A sample tells of what was before it: the attachment follows it.
    assert counted[0] == 0
    assert counted[1] >= 300
    assert counted[3] > counted[2]
    assert counted[2] - counted[1] < 100
    assert messages[:2] == [0, 0]


@needs_bcc
def test_two_providers_see_the_same_and_one_survives_the_other(stage: Stage) -> None:
    client, server = stage.one_pod()
    port = int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 100, 200)"))
    first, second = stage.provider(), stage.provider()
    client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 10)")
    seen = [between(provider.sample(0.0).flows, "tcp") for provider in (first, second)]
    assert seen == [(1000, 2000), (1000, 2000)]
    first.close()
    client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 10)")
    assert between(second.sample(0.0).flows, "tcp") == (1000, 2000)


@needs_bcc
def test_what_a_sample_has_told_the_next_one_does_not(stage: Stage) -> None:
    client, server = stage.one_pod()
    port = int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 100, 200)"))
    provider = stage.provider()
    client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 3)")
    assert between(provider.sample(10.0).flows, "tcp") == (300, 600)
    assert between(provider.sample(20.0).flows, "tcp") == (0, 0)


@needs_bcc
def test_a_container_that_is_not_known_yet_is_asked_for_once_more(stage: Stage) -> None:
    client, server = stage.one_pod()
    port = int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 100, 200)"))
    known = dict(stage.names)
    ids = set(known)
    provider = EbpfProvider(lambda number: known.get(number, None if number in ids else ""))
    try:
        known.clear()
        client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 3)")
        before = provider.sample(10.0)
        known.update(stage.names)
        after = provider.sample(20.0)
        known.clear()
        client.do(f"call_tcp('127.0.0.1', {port}, 100, 200, 1, 3)")
        provider.sample(30.0)
        last = provider.sample(40.0)
    finally:
        provider.close()
    assert between(before.flows, "tcp") == (0, 0)
    assert between(after.flows, "tcp") == (300, 600)
    assert last.flows == ()
    assert before.counters["missed"] == after.counters["missed"] == 0
    assert last.counters["missed"] >= 1


@needs_bcc
def test_edges_that_found_no_room_are_counted(stage: Stage) -> None:
    pods = [(stage.start(f"a{number}", "", pod_uid()), stage.start(f"b{number}")) for number in range(3)]
    ports = [int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 10, 10)")) for _, server in pods]
    provider = stage.provider(edges=1)
    for (client, _), port in zip(pods, ports):
        client.do(f"call_tcp('127.0.0.1', {port}, 10, 10, 1, 2)")
    sample = provider.sample(0.0)
    assert sample.counters["edges_full"] >= 2
    assert sample.counters["dropped"] >= sample.counters["edges_full"]
    assert sample.lost.keys() >= {"a2", "b2"}
    assert sample.fill == 1.0
    assert provider.sample(10.0).fill == 0.0


@needs_bcc
def test_a_sample_tells_how_full_the_table_of_pairs_was(stage: Stage) -> None:
    client, server = stage.one_pod()
    port = int(server.do("serve_tcp(socket.AF_INET, '127.0.0.1', 0, 10, 10)"))
    # Other tests' connections are in it as well.
    provider = stage.provider(edges=4096)
    assert provider.sample(0.0).fill < 0.5
    client.do(f"call_tcp('127.0.0.1', {port}, 10, 10, 1, 2)")
    assert 1 / 4096 <= provider.sample(10.0).fill < 0.5


@needs_bcc
def test_a_killed_observer_leaves_nothing_in_the_kernel(stage: Stage) -> None:
    code = (
        "import sys; from bpf.kernel import syscalls; from bpf.sources.ebpf import EbpfProvider\n"
        "loaded = EbpfProvider(lambda number: '').loaded\n"
        "print(*(syscalls.program_info(fd).id for fd in loaded.programs.values()), flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, cwd=ROOT)
    try:
        assert process.stdout is not None
        numbers = [int(word) for word in process.stdout.readline().split()]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert numbers
    egress = os.open(cgroup_v2_root(), os.O_RDONLY)
    try:
        attached = [syscalls.attached_to_cgroup(egress, kind) for kind in (0, 1, 19, 20)]
    finally:
        os.close(egress)
    assert not set(numbers) & {number for ids in attached for number in ids}


@needs_bcc
def test_without_the_right_to_load_programs_the_reason_is_told() -> None:
    # Neither BPF, nor SYS_ADMIN, nor PERFMON.
    code = (
        "from bpf.kernel.capabilities import keep_only; keep_only(['net_admin', 'dac_read_search'])\n"
        "from bpf.sources.ebpf import EbpfProvider; from bpf.sources.samples import ProviderLost\n"
        "try:\n    EbpfProvider(lambda number: '')\nexcept ProviderLost as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.count("\n") == 1
    assert "the kernel does not load the program" in done.stdout or "makes no BPF maps" in done.stdout


@needs_bcc
def test_the_observers_own_process_stays_small() -> None:
    code = (
        "import json, sys; from bpf.sources.ebpf import EbpfProvider; provider = EbpfProvider(lambda number: '')\n"
        "rss = [int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmRSS')][0]\n"
        "provider.close(); print(json.dumps([rss, 'bcc' in sys.modules, 'ssl' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    rss_kib, *forbidden = json.loads(done.stdout.splitlines()[-1])
    assert forbidden == [False, False]
    assert rss_kib < 20 * 1024


@needs_bcc
def test_it_opens_again_in_a_unit_that_has_given_up_its_rights() -> None:
    # As in its service: a cgroup of its own, and of the capabilities what is left after the start.
    code = (
        "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from bpf.kernel.capabilities import NEEDED, keep_only; print(keep_only(NEEDED['ebpf'], sys.argv[1]))\n"
        "from bpf.sources.ebpf import EbpfProvider; EbpfProvider(lambda number: '').close()\n"
        "print(os.listdir(sys.argv[1]))"
    )
    host = Host()
    try:
        cgroup = str(host.cgroups("unit")[0])
        done = subprocess.run([sys.executable, "-c", code, cgroup], capture_output=True, text=True, cwd=ROOT)
    finally:
        host.close()
    assert done.returncode == 0, done.stderr
    assert "self-test" not in done.stdout and "dac_override" not in done.stdout


@needs_bcc
def test_a_program_that_loads_but_sees_nothing_is_no_provider() -> None:
    host = Host()
    try:
        # Attached to a cgroup that the self-test's client is not in: openers leave no entry.
        root = str(host.cgroups("elsewhere")[0])
        with pytest.raises(ProviderLost, match="did not see a connection"):
            EbpfProvider(lambda number: "", cgroup_root=root)
    finally:
        host.close()


@needs_bcc
def test_the_kernel_before_network_namespaces_can_be_told_loads_too() -> None:
    loaded = load(
        ROOT / "bpf" / "sources" / "traffic.c", attachments_at(cgroup_v2_root()), defines={"EDGES": 64}
    )
    loaded.close()


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("26 24 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "/sys/fs/cgroup"),
        (
            "25 24 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            "26 24 0:23 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate",
            "/sys/fs/cgroup/unified",
        ),
        ("26 24 0:23 / /mnt/a\\040b rw - cgroup2 none rw", "/mnt/a b"),
    ],
    ids=["v2", "hybrid", "a blank in the path"],
)
def test_the_v2_tree_is_found_where_it_is_mounted(tmp_path: Path, text: str, root: str) -> None:
    (tmp_path / "mountinfo").write_text(text + "\n")
    assert cgroup_v2_root(str(tmp_path / "mountinfo")) == root


def test_a_host_without_cgroup_v2_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("25 24 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")
    with pytest.raises(ProviderLost, match="cgroup v2 is not mounted"):
        cgroup_v2_root(str(tmp_path / "mountinfo"))
