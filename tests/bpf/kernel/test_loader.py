"""Loading and attaching on the real kernel, and what is said where it does not work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bpf.kernel import syscalls
from bpf.kernel.compiler import Compiler
from bpf.kernel.loader import Attachment, NotLoaded, detach_leftovers, load
from bpf.service.options import SYSTEM_PYTHON
from bpf.sources.samples import ProviderLost
from tests.bpf.pods import Host
from tests.bpf.talkers import needs_bcc

SOURCE = """
BPF_HASH(seen, u64, u64, 16);
static void mark(u64 key) { u64 one = 1; seen.update(&key, &one); }
int crm_aff_t_eg(struct __sk_buff *skb) { mark(1); return 1; }
int crm_aff_t_in(struct __sk_buff *skb) { mark(2); return 1; }
int crm_aff_t_raw(struct bpf_raw_tracepoint_args *context) { mark(3); return 0; }
int crm_aff_t_tp(void *context) { mark(4); return 0; }
"""
#: Not mounted on every host; so in a mount namespace of the test's own.
WITH_TRACEFS = "test -d /sys/kernel/tracing/events || mount -t tracefs tracefs /sys/kernel/tracing"
RAW = Attachment("raw_tracepoint", "crm_aff_t_raw", "sched_waking")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "program.c"
    path.write_text(SOURCE)
    return path


@needs_bcc
def test_every_kind_of_attachment_runs(source: Path) -> None:
    host = Host()
    try:
        cgroup = str(host.cgroups("talk")[0])
        wanted = [
            Attachment("cgroup_egress", "crm_aff_t_eg", cgroup),
            Attachment("cgroup_ingress", "crm_aff_t_in", cgroup),
            RAW,
        ]
        loaded = load(source, wanted)
        try:
            talk_in(cgroup)
            drained = syscalls.drain(loaded.maps["seen"], 8, 8)
        finally:
            loaded.close()
        assert sorted(key[0] for key, _ in drained) == [1, 2, 3]
    finally:
        host.close()


def talk_in(cgroup: str) -> None:
    """A connection over loopback whose ends are in a cgroup."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())"
    command = f'echo $$ > {cgroup}/cgroup.procs; exec {sys.executable} -c "{code}"'
    subprocess.run(["sh", "-c", command], check=True)


@needs_bcc
def test_closing_takes_everything_out_of_the_kernel(source: Path) -> None:
    loaded = load(source, [RAW])
    number = syscalls.program_info(loaded.programs["crm_aff_t_raw"]).id
    loaded.close()
    loaded.close()
    wait_until_gone(number)


@needs_bcc
def test_a_killed_process_leaves_no_program_behind(source: Path) -> None:
    cgroup = "/sys/fs/cgroup/unified"
    code = (
        "import sys, time; from pathlib import Path; from bpf.kernel import syscalls; from bpf.kernel.loader import *\n"
        f"loaded = load(Path({str(source)!r}), [Attachment('cgroup_egress', 'crm_aff_t_eg', {cgroup!r}), "
        "Attachment('raw_tracepoint', 'crm_aff_t_raw', 'sched_waking'), "
        "Attachment('tracepoint', 'crm_aff_t_tp', 'sock:inet_sock_set_state')])\n"
        "print(*(syscalls.program_info(fd).id for fd in loaded.programs.values()), flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f'{WITH_TRACEFS}; exec "$@"', "sh", sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        numbers = [int(word) for word in process.stdout.readline().split()]
        assert len(numbers) == 3
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for number in numbers:
        wait_until_gone(number)
    assert not set(numbers) & set(attached(cgroup))


def attached(cgroup: str) -> list[int]:
    fd = os.open(cgroup, os.O_RDONLY)
    try:
        return syscalls.attached_to_cgroup(fd, syscalls.CGROUP_EGRESS)
    finally:
        os.close(fd)


def wait_until_gone(program_id: int) -> None:
    """The kernel frees a program a moment after its last descriptor is closed."""
    for _ in range(500):
        try:
            os.close(syscalls.program_by_id(program_id))
        except FileNotFoundError:
            return
        subprocess.run(["true"], check=True)  # lets the kernel's own threads run
    pytest.fail(f"program {program_id} is still in the kernel")


@needs_bcc
@pytest.mark.parametrize(("name", "is_ours"), [("crm_aff_old", True), ("someone_elses", False)])
def test_only_our_own_leftovers_of_older_versions_are_detached(
    tmp_path: Path, name: str, is_ours: bool
) -> None:
    host = Host()
    try:
        cgroup = str(host.cgroups("leftover")[0])
        attach_without_link(cgroup, name)
        assert detach_leftovers(cgroup) == ([name] if is_ours else [])
        assert len(attached(cgroup)) == (0 if is_ours else 1)
    finally:
        host.close()


def attach_without_link(cgroup: str, name: str) -> None:
    """As bcc attaches, by a process that ends without undoing it."""
    code = f"""
import os
from bcc import BPF, lib
module = BPF(text="int {name}(struct __sk_buff *skb) {{ return 1; }}")
program = module.load_func(b"{name}", BPF.CGROUP_SKB)
# What attach_func calls, which bcc 0.18 does not have.
os._exit(lib.bpf_prog_attach(program.fd, os.open("{cgroup}", 0), 1, 2))
"""
    stub = Path(__file__).parents[3] / "bpf" / "kernel" / "stub"
    subprocess.run(
        [SYSTEM_PYTHON, "-I", "-c", code], check=True, env={**os.environ, "BCC_KERNEL_SOURCE": str(stub)}
    )


@needs_bcc
def test_a_program_with_a_link_is_no_leftover(source: Path) -> None:
    host = Host()
    try:
        cgroup = str(host.cgroups("linked")[0])
        loaded = load(source, [Attachment("cgroup_egress", "crm_aff_t_eg", cgroup)])
        try:
            assert detach_leftovers(cgroup) == []
            assert len(attached(cgroup)) == 1
        finally:
            loaded.close()
    finally:
        host.close()


@needs_bcc
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "int crm_aff_t_raw(void *context) { return nothing; }",
            "does not compile.*undeclared identifier 'nothing'",
        ),
        ("int crm_aff_t_raw(void *context) { return bpf_skb_cgroup_id(context); }", "kernel does not load"),
    ],
    ids=["the compiler refuses", "the verifier refuses"],
)
def test_a_refusal_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.c"
    path.write_text(text)
    with pytest.raises(ProviderLost, match=said) as caught:
        load(path, [RAW])
    assert "\n" not in str(caught.value)


@needs_bcc
def test_a_kernel_that_makes_no_maps_is_not_taken_for_a_compiler_that_fails(tmp_path: Path) -> None:
    source, python = tmp_path / "map.c", tmp_path / "python"
    source.write_text("BPF_ARRAY(seen, u64, 1);\nint crm_aff_t_raw(void *context) { return 0; }\n")
    python.write_text('#!/bin/sh\nexec setpriv --bounding-set=-all --inh-caps=-all /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    said = "^the kernel makes no BPF maps: Operation not permitted"
    with pytest.raises(ProviderLost, match=said) as caught:
        load(source, [RAW], Compiler(str(python)))
    assert not isinstance(caught.value, NotLoaded)


@needs_bcc
def test_a_target_that_does_not_exist_is_named(source: Path) -> None:
    with pytest.raises(ProviderLost, match="no_such_tracepoint"):
        load(source, [Attachment("raw_tracepoint", "crm_aff_t_raw", "no_such_tracepoint")])
    with pytest.raises(ProviderLost, match="no tracepoint sock:none"):
        load(source, [Attachment("tracepoint", "crm_aff_t_tp", "sock:none")])


def test_a_python_that_does_not_exist_is_named(source: Path) -> None:
    with pytest.raises(ProviderLost, match="/nonexistent/python3 cannot be run: No such file"):
        load(source, [RAW], Compiler("/nonexistent/python3"))


def test_a_python_without_bcc_is_named_with_the_package(source: Path, tmp_path: Path) -> None:
    # A Python that sees nothing but the standard library.
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ProviderLost, match=r"has no bcc .*python3-bpfcc; RHEL: python3-bcc;"):
        load(source, [RAW], Compiler(str(bare)))
