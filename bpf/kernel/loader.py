"""Loads BPF programs without ever holding bcc: a child compiles, this process gets the descriptors and attaches.

Everything is attached by a descriptor of this process (a link, a raw tracepoint, a perf event): however it ends,
nothing stays in the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from bpf.kernel import syscalls
from bpf.service.log import log
from bpf.service.options import SYSTEM_PYTHON
from bpf.sources.samples import ProviderLost

STUB_TREE = Path(__file__).with_name("stub")
#: All our programs are named so: what older versions left attached is found by it.
NAME_PREFIX = "crm_aff_"
_CHILD = Path(__file__).with_name("load_child.py")
#: A compile takes 0.15 s, under full emulation 25 s.
_COMPILE_TIMEOUT_S = 120.0
_MOST_DESCRIPTORS = 64
_TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


class _Kind(NamedTuple):
    """bcc's name; ``place``: in the cgroup, -1 = none; ``is_loaded_for_place``: the kernel wants to know at once."""

    name: str
    place: int = -1
    is_loaded_for_place: bool = False


_KINDS = {
    "cgroup_egress": _Kind("CGROUP_SKB", syscalls.CGROUP_EGRESS),
    "cgroup_ingress": _Kind("CGROUP_SKB", syscalls.CGROUP_INGRESS),
    "cgroup_udp4": _Kind("CGROUP_SOCK_ADDR", syscalls.CGROUP_UDP4_RECVMSG, is_loaded_for_place=True),
    "cgroup_udp6": _Kind("CGROUP_SOCK_ADDR", syscalls.CGROUP_UDP6_RECVMSG, is_loaded_for_place=True),
    "raw_tracepoint": _Kind("RAW_TRACEPOINT"),
    "tracepoint": _Kind("TRACEPOINT"),
}
_PLACES = [kind.place for kind in _KINDS.values() if kind.place >= 0]


@dataclass(frozen=True)
class Attachment:
    """Where a program of the C file goes.

    ``kind`` and ``target``: cgroup_egress, cgroup_ingress, cgroup_udp4 or cgroup_udp6 (the receiver) and the cgroup's
    folder; raw_tracepoint and its name; tracepoint and "category:name". Not ``at_once``: attached later, by ``attach``.
    """

    kind: str
    program: str
    target: str
    at_once: bool = True


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
    python: str = SYSTEM_PYTHON,
    defines: Optional[Mapping[str, object]] = None,
) -> LoadedPrograms:
    """Compile a C file, load its programs, attach them. ``defines``: macros for the compiler.

    :raises ProviderLost: no bcc, no permission, or the compiler or the kernel refuses; one sentence says which.
    """
    request = {
        "text": with_includes(source),
        "include": str(STUB_TREE),
        "cflags": [f"-D{name}={value}" for name, value in (defines or {}).items()],
        "bpf_number": syscalls.BPF_NUMBER,
        "programs": {wanted.program: _KINDS[wanted.kind] for wanted in attachments},
    }
    loaded = _run_child(request, python)
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
        for place in _PLACES:
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


def _run_child(request: Mapping[str, object], python: str) -> LoadedPrograms:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        # -I: neither our packages nor the environment's settings reach the system's Python.
        command = [python, "-I", str(_CHILD), str(theirs.fileno())]
        try:
            done = subprocess.run(
                command, pass_fds=[theirs.fileno()], input=json.dumps(request).encode(), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=_COMPILE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except OSError as error:
            raise ProviderLost(f"{python} cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise ProviderLost(f"bcc did not finish within {_COMPILE_TIMEOUT_S:.0f} s") from None
        ours.setblocking(False)
        try:
            message, descriptors, _, _ = socket.recv_fds(ours, 65536, _MOST_DESCRIPTORS)
        except BlockingIOError:
            message, descriptors = b"", []
    # They survive no exec: the daemon's other children have no business with them.
    for fd in descriptors:
        os.set_inheritable(fd, False)
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0 or not message:
        log("debug", "bcc failed", output=text)
        raise _failure(message, text, done.returncode, python)
    answer = json.loads(message)
    count = len(answer["programs"])
    return LoadedPrograms(
        programs=dict(zip(answer["programs"], descriptors[:count])),
        maps=dict(zip(answer["maps"], descriptors[count:])),
    )


class NotLoaded(ProviderLost):
    """The kernel does not take the program as it is."""


def _failure(message: bytes, output: str, code: int, python: str) -> ProviderLost:
    """Why the child failed, in one sentence."""
    answer = json.loads(message) if message else {}
    step, reason = answer.get("failed", ""), answer.get("reason", "")
    if step == "bcc":
        return ProviderLost(
            f"{python} has no bcc ({reason}); Debian, Ubuntu: python3-bpfcc; RHEL: python3-bcc; openEuler: one of the two"
        )
    if step == "compile" and "could not open bpf map" in output:
        # bcc makes the maps while it compiles.
        said = _first_with(output, "could not open bpf map").rpartition("error: ")[2]
        return ProviderLost(
            f"the kernel makes no BPF maps: {said} (CAP_BPF or CAP_SYS_ADMIN, seccomp filters)"
        )
    if step == "compile":
        return ProviderLost(f"bcc does not compile the program: {_first_with(output, 'error') or reason}")
    if step == "load":
        said_last = [
            line.strip() for line in output.splitlines() if line.strip() and not _is_statistics(line)
        ][-1:]
        detail = f" ({said_last[0]})" if said_last and not reason.startswith("Need") else ""
        return NotLoaded(f"the kernel does not load the program: {reason}{detail}")
    last = output.strip().splitlines()[-1:] or ["no message"]
    return ProviderLost(f"{python} ended with {code} while bcc was at work: {last[0]}")


def _first_with(output: str, word: str) -> str:
    return next((line.strip() for line in output.splitlines() if word in line), "")


def _is_statistics(line: str) -> bool:
    return line.startswith(("processed ", "HINT:", "verification time"))


def attach(program_fd: int, wanted: Attachment) -> int:
    """A descriptor that holds the attachment.

    :raises OSError, ProviderLost: the kernel refuses.
    """
    if wanted.kind == "raw_tracepoint":
        return syscalls.open_raw_tracepoint(program_fd, wanted.target)
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
