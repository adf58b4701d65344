"""bpf(2) on the real kernel: maps drained, programs described."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.kernel import syscalls
from bpf.kernel.loader import Attachment, LoadedPrograms, load
from tests.bpf.talkers import needs_bcc

pytestmark = needs_bcc

SOURCE = """
BPF_HASH(numbers, u64, u64, 4096);
BPF_ARRAY(places, u64, 4096);
int crm_aff_t_free(struct bpf_raw_tracepoint_args *context) { return 0; }
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPrograms]:
    source = tmp_path_factory.mktemp("source") / "numbers.c"
    source.write_text(SOURCE)
    program = load(source, [Attachment("raw_tracepoint", "crm_aff_t_free", "sched_process_free")])
    yield program
    program.close()


def fill(fd: int, count: int) -> dict[bytes, bytes]:
    entries = {struct.pack("=Q", key): struct.pack("=Q", key * key) for key in range(count)}
    for key, value in entries.items():
        syscalls.update(fd, key, value)
    return entries


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 4096])
def test_a_drain_returns_every_entry_once_and_leaves_none(loaded: LoadedPrograms, count: int) -> None:
    fd = loaded.maps["numbers"]
    entries = fill(fd, count)
    drained = syscalls.drain(fd, 8, 8)
    assert (len(drained), dict(drained)) == (count, entries)
    assert syscalls.keys(fd, 8) == []


def test_a_map_without_batches_is_drained_key_by_key(loaded: LoadedPrograms) -> None:
    fd = loaded.maps["numbers"]
    entries = fill(fd, 100)
    assert dict(syscalls._drain_keys(fd, 8, 8)) == entries
    assert syscalls.keys(fd, 8) == []


def test_a_batch_smaller_than_a_bucket_grows(loaded: LoadedPrograms) -> None:
    fd = loaded.maps["numbers"]
    entries = fill(fd, 500)
    assert dict(syscalls._drain_batches(fd, 8, 8, size=1)) == entries


def test_a_part_of_an_array_is_set_to_zero(loaded: LoadedPrograms) -> None:
    fd = loaded.maps["places"]
    for index in range(4096):
        syscalls.update(fd, struct.pack("=I", index), struct.pack("=Q", 7))
    syscalls.clear_array(fd, 8, range(1000, 3000))
    left = [index for index in range(4096) if any(syscalls.lookup(fd, struct.pack("=I", index), 8))]
    assert left == [*range(1000), *range(3000, 4096)]


def test_programs_are_told_by_name_and_maps_by_their_room(loaded: LoadedPrograms) -> None:
    assert syscalls.program_info(loaded.programs["crm_aff_t_free"]).name == "crm_aff_t_free"
    assert syscalls.most_entries(loaded.maps["numbers"]) == 4096


def test_an_absent_key_is_an_error_that_names_the_command(loaded: LoadedPrograms) -> None:
    with pytest.raises(FileNotFoundError, match="BPF_MAP_LOOKUP_ELEM"):
        syscalls.lookup(loaded.maps["numbers"], struct.pack("=Q", 9999), 8)


def test_a_file_that_is_no_map_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="BPF_OBJ_GET_INFO_BY_FD"):
        syscalls.most_entries(file.fileno())
