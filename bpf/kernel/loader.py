"""Loads BPF programs without ever holding bcc: a child has compiled them (compiler.py), this process loads and attaches.

Everything is attached by a descriptor of this process (a link, a raw tracepoint, a perf event): however it ends,
nothing stays in the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from bpf.kernel import syscalls
from bpf.kernel.compiler import Compiled, Compiler
from bpf.service.log import log
from bpf.sources.samples import ProviderLost

#: All our programs are named so: what older versions left attached is found by it.
NAME_PREFIX = "crm_aff_"
#: BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD: the instruction's number is a map's descriptor.
_LOAD_NUMBER, _IS_MAP = 0x18, 1
_TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


class _Kind(NamedTuple):
    """enum bpf_prog_type; ``place``: enum bpf_attach_type, -1 = none, which some are loaded for already."""

    number: int
    place: int = -1
    is_loaded_for_place: bool = False


_KINDS = {
    "cgroup_egress": _Kind(8, syscalls.CGROUP_EGRESS),
    "cgroup_ingress": _Kind(8, syscalls.CGROUP_INGRESS),
    "cgroup_udp4": _Kind(18, syscalls.CGROUP_UDP4_RECVMSG, is_loaded_for_place=True),
    "cgroup_udp6": _Kind(18, syscalls.CGROUP_UDP6_RECVMSG, is_loaded_for_place=True),
    "raw_tracepoint": _Kind(17),
    "tracepoint": _Kind(5),
    "function_exit": _Kind(26, syscalls.TRACE_FEXIT, is_loaded_for_place=True),
}
_CGROUP_PLACES = [kind.place for name, kind in _KINDS.items() if name.startswith("cgroup_")]


@dataclass(frozen=True)
class Attachment:
    """Where a program of the C file goes.

    ``kind`` and ``target``: cgroup_egress, cgroup_ingress, cgroup_udp4 or cgroup_udp6 (the receiver) and the cgroup's
    folder; raw_tracepoint and its name; tracepoint and "category:name"; function_exit and the kernel's function, with the
    ``number`` that it has in the kernel's types. Not ``at_once``: attached later, by ``attach``.
    """

    kind: str
    program: str
    target: str
    at_once: bool = True
    number: int = 0


@dataclass
class LoadedPrograms:
    """Programs that run until ``close`` (or the end of the process). Descriptors by name."""

    programs: dict[str, int] = field(default_factory=dict)
    maps: dict[str, int] = field(default_factory=dict)
    links: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Detach and unload everything; a second time does nothing."""
        for fd in (*self.links, *self.programs.values(), *self.maps.values()):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.links, self.programs, self.maps = [], {}, {}


def load(
    source: Path,
    attachments: Sequence[Attachment],
    compiler: Optional[Compiler] = None,
    defines: Optional[Mapping[str, object]] = None,
) -> LoadedPrograms:
    """Compile a C file, load its programs, attach them. ``defines``: macros for the compiler.

    :raises ProviderLate: it is still being compiled.
    :raises ProviderLost: no bcc, no permission, or the compiler or the kernel refuses; one sentence says which.
    """
    programs = {wanted.program: wanted for wanted in attachments}
    compiled = (compiler or Compiler()).compile(with_includes(source), defines or {}, list(programs))
    loaded = _loaded(compiled, programs)
    try:
        for wanted in attachments:
            if wanted.at_once:
                loaded.links.append(attach(loaded.programs[wanted.program], wanted))
    except OSError as error:
        loaded.close()
        raise ProviderLost(f"{source.name} is loaded, but cannot be attached: {error}") from None
    except ProviderLost:
        loaded.close()
        raise
    return loaded


def with_includes(source: Path) -> str:
    """The text of a C file with that of the files beside it that it includes in quotes.

    bcc rewrites what is done to maps in the main file only.
    """

    def included(line: str) -> str:
        name = line[len('#include "') :].rstrip('"\n')
        return f'#line 1 "{name}"\n' + with_includes(source.with_name(name))

    with source.open(encoding="utf-8") as lines:
        return "".join(included(line) if line.startswith('#include "') else line for line in lines)


def detach_leftovers(cgroup: str) -> list[str]:
    """Detach our programs that are attached without a link, which a killed process of another version left behind.

    Names of those detached. Programs with a link belong to an observer that lives, and stay.
    """
    detached = []
    cgroup_fd = os.open(cgroup, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for place in _CGROUP_PLACES:
            for number in syscalls.attached_to_cgroup(cgroup_fd, place):
                name = _detach_ours(number, cgroup_fd, place)
                if name:
                    detached.append(name)
    except OSError as error:
        # Without rights there is nothing to be done here, and load() says why.
        log("debug", "leftovers not looked for", reason=error)
    finally:
        os.close(cgroup_fd)
    return detached


def _detach_ours(program_id: int, cgroup_fd: int, place: int) -> str:
    """Detach a program if it is ours and without link; its name then, else ""."""
    try:
        fd = syscalls.program_by_id(program_id)
    except FileNotFoundError:
        return ""
    try:
        name = syscalls.program_info(fd).name
        if not name.startswith(NAME_PREFIX):
            return ""
        syscalls.detach_from_cgroup(fd, cgroup_fd, place)
        return name
    except FileNotFoundError:
        return ""  # attached by a link
    finally:
        os.close(fd)


class NotLoaded(ProviderLost):
    """The kernel does not take the program as it is."""


def _loaded(compiled: Compiled, programs: Mapping[str, Attachment]) -> LoadedPrograms:
    """Make the maps, load the programs."""
    # Before 5.11 maps count against it. Without SYS_RESOURCE it may be high enough.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    loaded = LoadedPrograms()
    try:
        loaded.maps = _made_maps(compiled)
        for name, wanted in programs.items():
            code = _with_descriptors(compiled.programs[name], list(loaded.maps.values()))
            loaded.programs[name] = _loaded_program(wanted, code)
    except ProviderLost:
        loaded.close()
        raise
    return loaded


def _made_maps(compiled: Compiled) -> dict[str, int]:
    made: dict[str, int] = {}
    types = -1
    try:
        if compiled.types:
            types = syscalls.load_types(compiled.types)
        for each in compiled.maps:
            made[each["name"]] = syscalls.make_map(
                each["name"], each["kind"], each["key_bytes"], each["value_bytes"], each["entries"], each["flags"],
                (types, each["key_type"], each["value_type"]) if each["value_type"] else None,
            )  # fmt: skip
    except OSError as error:
        for fd in made.values():
            os.close(fd)
        raise ProviderLost(
            f"the kernel makes no BPF maps: {error.strerror} (CAP_BPF or CAP_SYS_ADMIN, seccomp filters)"
        ) from None
    finally:
        if types >= 0:
            os.close(types)
    return made


def _with_descriptors(code: bytes, maps: Sequence[int]) -> bytes:
    """Instructions with the descriptors of maps in the place of their numbers in the list."""
    found = bytearray(code)
    for at in range(0, len(found), 8):
        if found[at] == _LOAD_NUMBER and found[at + 1] >> 4 == _IS_MAP:
            struct.pack_into("=i", found, at + 4, maps[struct.unpack_from("=i", found, at + 4)[0]])
    return bytes(found)


def _loaded_program(wanted: Attachment, code: bytes) -> int:
    kind = _KINDS[wanted.kind]
    place = kind.place if kind.is_loaded_for_place else 0
    try:
        return syscalls.load_program(wanted.program, kind.number, place, code, wanted.number)
    except syscalls.Refused as error:
        said = [line.strip() for line in error.said.splitlines() if line.strip()]
        last = [line for line in said if not line.startswith(("processed ", "verification time"))][-1:]
        detail = f" ({last[0]})" if last else ""
        raise NotLoaded(
            f"the kernel does not load the program {wanted.program}: {error.strerror}{detail}"
        ) from None


def attach(program_fd: int, wanted: Attachment) -> int:
    """A descriptor that holds the attachment.

    :raises OSError, ProviderLost: the kernel refuses.
    """
    if wanted.kind == "raw_tracepoint":
        return syscalls.open_raw_tracepoint(program_fd, wanted.target)
    if wanted.kind == "function_exit":
        return syscalls.open_raw_tracepoint(program_fd, "")
    if wanted.kind == "tracepoint":
        return syscalls.open_tracepoint(program_fd, int(read_tracepoint(wanted.target, "id")))
    cgroup_fd = os.open(wanted.target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syscalls.link_to_cgroup(program_fd, cgroup_fd, _KINDS[wanted.kind].place)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise ProviderLost(
                f"no program can be attached to {wanted.target}: not permitted, or one without ALLOW_MULTI is there"
            ) from None
        raise
    finally:
        os.close(cgroup_fd)


def read_tracepoint(target: str, file: str) -> str:
    """A file (``id``, ``format``) of the tracepoint "category:name", from tracefs.

    :raises ProviderLost: there is none.
    """
    for tracefs in _TRACEFS:
        path = tracefs / "events" / target.replace(":", "/") / file
        if path.exists():
            return path.read_text()
    raise ProviderLost(f"tracefs is not mounted at {_TRACEFS[0]}, or the kernel has no tracepoint {target}")
