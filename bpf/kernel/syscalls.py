"""bpf(2) and perf_event_open(2) by ctypes: links, maps and what the kernel says of programs. <linux/bpf.h>.

Only this module knows numbers and layouts. Failures are OSErrors that name the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

#: Else one table serves: that of aarch64, riscv64 and loongarch64 (asm-generic/unistd.h).
BPF_NUMBER, _PERF_EVENT_OPEN_NUMBER = {"x86_64": (321, 298), "ppc64le": (361, 319), "s390x": (351, 331)}.get(
    os.uname().machine, (280, 241)
)

_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT_KEY = 0, 1, 2, 3, 4
_PROG_LOAD, _BTF_LOAD = 5, 18
_PROG_DETACH, _PROG_TEST_RUN, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO, _PROG_QUERY = 9, 10, 13, 15, 16
_RAW_TRACEPOINT_OPEN, _LOOKUP_AND_DELETE_BATCH, _UPDATE_BATCH, _LINK_CREATE = 17, 25, 26, 28
CGROUP_INGRESS, CGROUP_EGRESS, CGROUP_UDP4_RECVMSG, CGROUP_UDP6_RECVMSG = 0, 1, 19, 20
TRACE_FEXIT = 25

#: The kernel takes a shorter union bpf_attr than its own, and a longer one if the rest is zero.
_ATTRIBUTES_BYTES = 128
_ETHERNET_HEADER_BYTES = 14
_PERF_TYPE_TRACEPOINT = 2
_PERF_IOC_ENABLE, _PERF_IOC_SET_BPF = 0x2400, 0x40042408
_NAME_BYTES = 15
#: What the verifier says of a program that it refuses; the end of it is what is told.
_LOG_BYTES = 1 << 20
#: Entries fetched in one call of a batch: 1,024 of 64 bytes are cheap to keep, and four calls are a full map.
_BATCH = 1024
#: ENOTSUPP is the kernel's own number; EINVAL comes from kernels that do not know the command (before 5.6).
_NO_BATCH = (524, errno.EINVAL, errno.EOPNOTSUPP)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class ProgramInfo:
    """A loaded program. The last two grow only while kernel.bpf_stats_enabled is 1."""

    id: int
    name: str
    run_ns: int
    runs: int


def _syscall(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _bpf(command: int, name: str, attributes: ctypes.Array[ctypes.c_char]) -> int:
    try:
        return _syscall(BPF_NUMBER, command, ctypes.byref(attributes), len(attributes))
    except OSError as error:
        raise OSError(error.errno, f"{name}: {error.strerror}") from None


def _attributes(layout: str, *values: Union[int, bytes]) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("=" + layout, *values), _ATTRIBUTES_BYTES)


# --- loading


class Refused(OSError):
    """The kernel does not load a program. ``said``: the verifier's reasons."""

    def __init__(self, error: OSError, said: str) -> None:
        super().__init__(error.errno, error.strerror)
        self.said = said


def load_types(btf: bytes) -> int:
    """A descriptor of types that maps refer to."""
    data = ctypes.create_string_buffer(btf, len(btf))
    return _bpf(_BTF_LOAD, "BPF_BTF_LOAD", _attributes("QQIII", ctypes.addressof(data), 0, len(btf), 0, 0))


def make_map(
    name: str,
    kind: int,
    key_bytes: int,
    value_bytes: int,
    entries: int,
    flags: int,
    types: Optional[tuple[int, int, int]] = None,
) -> int:
    """A new map. ``types``: a descriptor of ``load_types``, and the numbers of the key's and the value's type."""
    attributes = _attributes(
        "IIIIIII16sIIII", kind, key_bytes, value_bytes, entries, flags, 0, 0,
        name.encode()[:_NAME_BYTES], 0, *(types or (0, 0, 0)),
    )  # fmt: skip
    return _bpf(_MAP_CREATE, "BPF_MAP_CREATE", attributes)


def load_program(name: str, kind: int, place: int, code: bytes, function: int = 0) -> int:
    """Load instructions (enum bpf_prog_type; ``place``: enum bpf_attach_type, 0 where the kernel does not ask; ``function``:
    its number in the kernel's types, 0 = none).

    :raises Refused: the kernel does not take them.
    """
    program, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")

    def attempt(said: Optional[ctypes.Array[ctypes.c_char]]) -> int:
        level, size, buffer = (1, len(said), ctypes.addressof(said)) if said is not None else (0, 0, 0)
        # union bpf_attr for BPF_PROG_LOAD: type, count, code, license, log level, size, buffer, version, flags, name,
        # interface, place, what tells of types of its own (three), the function.
        attributes = _attributes(
            "IIQQIIQII16sII36xI", kind, len(code) // 8, ctypes.addressof(program), ctypes.addressof(license_text),
            level, size, buffer, 0, 0, name.encode()[:_NAME_BYTES], 0, place, function,
        )  # fmt: skip
        return _bpf(_PROG_LOAD, "BPF_PROG_LOAD", attributes)

    try:
        return attempt(None)
    except OSError as error:
        # Only now: what the verifier has to say takes it time and memory.
        said = ctypes.create_string_buffer(_LOG_BYTES)
        with contextlib.suppress(OSError):
            return attempt(said)
        raise Refused(error, said.value.decode(errors="replace")) from None


# --- attaching


def link_to_cgroup(program_fd: int, cgroup_fd: int, attach_type: int) -> int:
    """A link between program and cgroup, which lives as long as the descriptor (kernel 5.7)."""
    return _bpf(_LINK_CREATE, "BPF_LINK_CREATE", _attributes("IIII", program_fd, cgroup_fd, attach_type, 0))


def open_raw_tracepoint(program_fd: int, name: str) -> int:
    """Attach to a raw tracepoint for as long as the descriptor lives; ``name`` "": to what the program was loaded for."""
    text = ctypes.create_string_buffer(name.encode())
    attributes = _attributes("QI", ctypes.addressof(text) if name else 0, program_fd)
    return _bpf(_RAW_TRACEPOINT_OPEN, f"BPF_RAW_TRACEPOINT_OPEN {name}".rstrip(), attributes)


def open_tracepoint(program_fd: int, tracepoint_id: int) -> int:
    """Attach to the tracepoint with this number (tracefs, events/CATEGORY/NAME/id), by a perf event on all CPUs."""
    # struct perf_event_attr, version 0: type, size, config, sample_period, sample_type, read_format, flags, ...
    attributes = struct.pack("=IIQQQQQII", _PERF_TYPE_TRACEPOINT, 64, tracepoint_id, 1, 0, 0, 0, 1, 0)
    buffer = ctypes.create_string_buffer(attributes, 64)
    close_on_exec = 8
    event = _syscall(_PERF_EVENT_OPEN_NUMBER, ctypes.byref(buffer), -1, 0, -1, close_on_exec)
    try:
        fcntl.ioctl(event, _PERF_IOC_SET_BPF, program_fd)
        fcntl.ioctl(event, _PERF_IOC_ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event


def attached_to_cgroup(cgroup_fd: int, attach_type: int) -> list[int]:
    """The ids of the programs attached to this very cgroup, by links too."""
    ids = (ctypes.c_uint32 * 64)()
    attributes = _attributes("IIIIQI", cgroup_fd, attach_type, 0, 0, ctypes.addressof(ids), len(ids))
    _bpf(_PROG_QUERY, "BPF_PROG_QUERY", attributes)
    count = struct.unpack_from("=I", attributes, 24)[0]
    return list(ids[:count])


def detach_from_cgroup(program_fd: int, cgroup_fd: int, attach_type: int) -> None:
    """Undo an attachment without link.

    :raises OSError: ENOENT where the program is attached by a link, which only its owner ends.
    """
    _bpf(_PROG_DETACH, "BPF_PROG_DETACH", _attributes("IIII", cgroup_fd, program_fd, attach_type, 0))


def program_by_id(program_id: int) -> int:
    """A descriptor of a loaded program."""
    return _bpf(_PROG_GET_FD_BY_ID, "BPF_PROG_GET_FD_BY_ID", _attributes("III", program_id, 0, 0))


def program_info(fd: int) -> ProgramInfo:
    """A program's struct bpf_prog_info."""
    raw = _info(fd, 256)
    # run_time_ns and run_cnt came with 5.1; older kernels leave them zero.
    run_ns, runs = struct.unpack_from("=QQ", raw, 192)
    name = raw[64:80].split(b"\0")[0].decode(errors="replace")
    return ProgramInfo(struct.unpack_from("=I", raw, 4)[0], name, run_ns, runs)


def run_on_packet(fd: int, payload: bytes) -> int:
    """Run a CGROUP_SKB program on a packet of its own that has this payload and no known protocol; its return value."""
    packet = bytes(_ETHERNET_HEADER_BYTES) + payload
    data = ctypes.create_string_buffer(packet, len(packet))
    # program, return value, size in, size out, data in, data out, repeat, duration.
    attributes = _attributes("IIIIQQII", fd, 0, len(packet), 0, ctypes.addressof(data), 0, 1, 0)
    _bpf(_PROG_TEST_RUN, "BPF_PROG_TEST_RUN", attributes)
    return int(struct.unpack_from("=I", attributes, 4)[0])


def _info(fd: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    _bpf(_OBJ_GET_INFO, "BPF_OBJ_GET_INFO_BY_FD", _attributes("IIQ", fd, size, ctypes.addressof(buffer)))
    return buffer.raw


# --- maps


def lookup(fd: int, key: bytes, value_bytes: int) -> bytes:
    """The value of a key; for a map per CPU ``value_bytes`` is that of all CPUs together.

    :raises OSError: ENOENT where there is none.
    """
    key_buffer, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(value_bytes)
    attributes = _attributes("IIQQQ", fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value), 0)
    _bpf(_MAP_LOOKUP, "BPF_MAP_LOOKUP_ELEM", attributes)
    return value.raw


def update(fd: int, key: bytes, value: bytes) -> None:
    """Set the value of a key."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value, len(value))
    attributes = _attributes("IIQQQ", fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0)
    _bpf(_MAP_UPDATE, "BPF_MAP_UPDATE_ELEM", attributes)


def delete(fd: int, key: bytes) -> None:
    """Take a key out.

    :raises OSError: ENOENT where there is none.
    """
    key_buffer = ctypes.create_string_buffer(key, len(key))
    _bpf(_MAP_DELETE, "BPF_MAP_DELETE_ELEM", _attributes("IIQ", fd, 0, ctypes.addressof(key_buffer)))


def clear_array(fd: int, value_bytes: int, indexes: range) -> None:
    """Set these entries of an array to zero, in one call, or one by one where the kernel has none for it."""
    raw = struct.pack(f"={len(indexes)}I", *indexes)
    keys_buffer = ctypes.create_string_buffer(raw, len(raw))
    values = ctypes.create_string_buffer(value_bytes * len(indexes))
    attributes = _attributes("QQQQIIQQ", 0, 0, ctypes.addressof(keys_buffer), ctypes.addressof(values), len(indexes),
                             fd, 0, 0)  # fmt: skip
    try:
        _bpf(_UPDATE_BATCH, "BPF_MAP_UPDATE_BATCH", attributes)
    except OSError as error:
        if error.errno not in _NO_BATCH:
            raise
        for index in indexes:
            update(fd, struct.pack("=I", index), bytes(value_bytes))


def most_entries(fd: int) -> int:
    """How many entries a map has room for (struct bpf_map_info)."""
    return int(struct.unpack_from("=I", _info(fd, 128), 16)[0])


def keys(fd: int, key_bytes: int) -> list[bytes]:
    """All keys. Keys that come and go meanwhile may be missed or be there twice."""
    found: list[bytes] = []
    most = most_entries(fd)
    following = ctypes.create_string_buffer(key_bytes)
    before = 0
    while len(found) < most:
        attributes = _attributes("IIQQ", fd, 0, before, ctypes.addressof(following))
        try:
            _bpf(_MAP_NEXT_KEY, "BPF_MAP_GET_NEXT_KEY", attributes)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        found.append(following.raw)
        current = ctypes.create_string_buffer(following.raw, key_bytes)
        before = ctypes.addressof(current)
    return found


def drain(fd: int, key_bytes: int, value_bytes: int) -> list[tuple[bytes, bytes]]:
    """Take all entries out of a hash map, in batches, or one by one where the kernel has none for it."""
    try:
        return list(_drain_batches(fd, key_bytes, value_bytes))
    except OSError as error:
        if error.errno not in _NO_BATCH:
            raise
    return list(_drain_keys(fd, key_bytes, value_bytes))


def _drain_batches(
    fd: int, key_bytes: int, value_bytes: int, size: int = _BATCH
) -> Iterator[tuple[bytes, bytes]]:
    position, following = (
        ctypes.create_string_buffer(max(key_bytes, 4)),
        ctypes.create_string_buffer(max(key_bytes, 4)),
    )
    started = False
    while True:
        key_array, values = (
            ctypes.create_string_buffer(size * key_bytes),
            ctypes.create_string_buffer(size * value_bytes),
        )
        attributes = _attributes("QQQQIIQQ", ctypes.addressof(position) if started else 0, ctypes.addressof(following),
                                 ctypes.addressof(key_array), ctypes.addressof(values), size, fd, 0, 0)  # fmt: skip
        is_last = False
        try:
            _bpf(_LOOKUP_AND_DELETE_BATCH, "BPF_MAP_LOOKUP_AND_DELETE_BATCH", attributes)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # a bucket holds more than the batch
                size *= 2
                continue
            if error.errno != errno.ENOENT:
                raise
            is_last = True
        count = struct.unpack_from("=I", attributes, 32)[0]
        # ``raw`` is a copy of the whole.
        all_keys, all_values = key_array.raw, values.raw
        for index in range(count):
            key = all_keys[index * key_bytes : (index + 1) * key_bytes]
            yield key, all_values[index * value_bytes : (index + 1) * value_bytes]
        if is_last:
            return
        ctypes.memmove(position, following, len(position))
        started = True


def _drain_keys(fd: int, key_bytes: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    for key in keys(fd, key_bytes):
        try:
            value = lookup(fd, key, value_bytes)
            delete(fd, key)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            continue
        yield key, value
