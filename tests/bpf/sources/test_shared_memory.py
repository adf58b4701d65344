"""Memory that two containers map: which mappings count, in text and between real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.identity.attribution import Attribution
from bpf.sources.peer_search import find_memory_peers, shared_segments
from bpf.sources.samples import pair
from tests.bpf.pods import Host, container_id, needs_hybrid, pod_uid

MAPPINGS = {
    "a segment of an emptyDir in memory": ("7f00-7f10 rw-s 00000000 00:4d 3 /shm/seg", True),
    "/dev/shm": ("7f00-7f10 rw-s 00000000 00:19 12 /dev/shm/boost.1", True),
    "huge pages": ("7f00-7f10 rw-s 00000000 00:1f 12 /dev/hugepages/map", True),
    "System V": ("7f00-7f10 rw-s 00000000 00:01 32769 /SYSV00001234 (deleted)", True),
    "a memfd": ("7f00-7f10 rw-s 00000000 00:01 2051 /memfd:queue (deleted)", True),
    "a database's file": ("7f00-7f10 rw-s 00000000 fe:01 991 /data/a file with spaces", True),
    "executable as well": ("7f00-7f10 rwxs 00000000 fe:01 991 /data/jit", True),
    "read only": ("7f00-7f10 r--s 00000000 fe:01 991 /usr/lib/locale/archive", False),
    "private": ("7f00-7f10 rw-p 00000000 fe:01 991 /usr/lib/libc.so.6", False),
    "anonymous, inherited": ("7f00-7f10 rw-s 00000000 00:01 2050 /dev/zero (deleted)", False),
    "a device": ("7f00-7f10 rw-s 00000000 00:05 733 /dev/nvidia0", False),
    "a ring of the kernel's": ("7f00-7f10 rw-s 00000000 00:0e 1031 anon_inode:[io_uring]", False),
    "without an inode": ("7f00-7f10 rw-s 00000000 00:00 0 ", False),
    "a private file whose name looks shared": ("7f00-7f10 r--p 00000000 fe:01 991 /tmp/x rw-s y", False),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_only_shared_writable_memory_counts(name: str) -> None:
    line, counts = MAPPINGS[name]
    maps = f"{line}\n5500-5510 r-xp 00000000 fe:01 12 /usr/bin/x\n".encode()
    assert bool(list(shared_segments(maps))) == counts


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def mapped(path: Path, mode: str = "WRITE") -> str:
    return (
        f"import mmap\nf = open({str(path)!r}, 'r+b')\n"
        f"m = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ{' | mmap.PROT_WRITE' if mode == 'WRITE' else ''})"
    )


@needs_hybrid
def test_two_containers_that_map_one_file_for_writing_are_peers_and_readers_are_not(
    host: Host, tmp_path: Path
) -> None:
    ids = [container_id() for _ in range(3)]
    talkers = [host.start(container, pod_uid()) for container in ids]
    segment, other = tmp_path / "segment", tmp_path / "other"
    for file in (segment, other):
        file.write_bytes(bytes(4096))
    talkers[0].do(mapped(segment))
    talkers[1].do(mapped(segment))
    talkers[2].do(mapped(segment, mode="READ"))
    attribution = Attribution(host.root(tmp_path))
    assert find_memory_peers(attribution) == {pair(ids[0], ids[1])}
    assert find_memory_peers(attribution, among=ids[1:]) == frozenset()
    assert find_memory_peers(attribution, most_bytes=0) == frozenset()
    talkers[1].do("m.close()")
    talkers[1].do(mapped(other))
    assert find_memory_peers(attribution) == frozenset()


SYSTEM_V = (
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\n"
    "libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]\n"
)


@needs_hybrid
def test_system_v_segments_are_told_apart_by_their_ipc_namespace(host: Host, tmp_path: Path) -> None:
    ids = [container_id() for _ in range(3)]
    talkers = [host.start(container, pod_uid()) for container in ids]
    for talker in talkers:
        talker.do(SYSTEM_V)
    # The third one is in an ipc namespace of its own, where segment numbers begin anew.
    talkers[2].do("assert libc.unshare(0x08000000) == 0")
    number = int(talkers[0].do("number = libc.shmget(0, 4096, 0o1600); print(number)"))
    try:
        for talker in talkers[:2]:
            talker.do(f"assert libc.shmat({number}, None, 0) != 2**64 - 1")
        talkers[2].do(
            f"while True:\n    own = libc.shmget(0, 4096, 0o1600)\n    if own >= {number} or own < 0: break\n"
            if number < 1000
            else "own = libc.shmget(0, 4096, 0o1600)"
        )
        talkers[2].do("assert libc.shmat(own, None, 0) != 2**64 - 1")
        assert find_memory_peers(Attribution(host.root(tmp_path))) == {pair(ids[0], ids[1])}
    finally:
        talkers[0].do(f"libc.shmctl({number}, 0, None)")


@needs_hybrid
def test_what_very_many_map_is_nobodys_affinity(host: Host, tmp_path: Path) -> None:
    ids = [container_id() for _ in range(17)]
    talkers = [host.start(container, pod_uid()) for container in ids]
    segment = tmp_path / "clock"
    segment.write_bytes(bytes(4096))
    for talker in talkers:
        talker.do(mapped(segment))
    assert find_memory_peers(Attribution(host.root(tmp_path))) == frozenset()
