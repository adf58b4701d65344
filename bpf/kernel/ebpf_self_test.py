"""Tries the eBPF programs out: a connection over loopback between two cgroups must be seen, with all its bytes.

The asking end is this process; the accepting end gets a cgroup below that of this process, which is ours to write
in. The root of the v2 tree has mode 0555: there it takes CAP_DAC_OVERRIDE, which a service need not have.
Two self-tests never share a cgroup: observers of two containers may have the same process id.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Protocol

from bpf.kernel.capabilities import overriding
from bpf.sources.samples import ProviderLost

_REQUEST_BYTES, _RESPONSE_BYTES = 1000, 3000
#: Its bytes are counted before the last call on its sockets returns; a busy kernel thread may be a little later.
_ATTEMPTS, _PAUSE_S = 20, 0.02
_TIMEOUT_S = 10.0
_ACCEPTOR = Path(__file__).with_name("ebpf_acceptor.py")


class SeenConnection(Protocol):
    """The observations that must be there."""

    @property
    def a(self) -> int: ...
    @property
    def b(self) -> int: ...
    @property
    def bytes_ab(self) -> int: ...
    @property
    def bytes_ba(self) -> int: ...


def self_test(cgroup_root: str, drain: Callable[[], Sequence[SeenConnection]]) -> None:
    """Connect two cgroups in the tree of ``cgroup_root`` and look for it in what ``drain`` returns.

    :raises ProviderLost: it was not seen, or could not be tried.
    """
    try:
        with child_cgroup(cgroup_root) as cgroup:
            acceptor = cgroup.stat().st_ino
            _talk(cgroup)
            for _ in range(_ATTEMPTS):
                for flow in drain():
                    if flow.a == acceptor and flow.bytes_ab:
                        _check(flow)
                        return
                time.sleep(_PAUSE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProviderLost(f"the eBPF programs cannot be tried out: {error}") from None
    raise ProviderLost(
        "the eBPF programs are loaded, but did not see a connection over 127.0.0.1 between two cgroups"
    )


def _check(flow: SeenConnection) -> None:
    seen, wanted = (flow.bytes_ba, flow.bytes_ab), (_REQUEST_BYTES, _RESPONSE_BYTES)
    if seen != wanted:
        raise ProviderLost(f"the eBPF programs saw {seen} bytes of a connection of {wanted}")


@contextlib.contextmanager
def child_cgroup(root: str) -> Iterator[Path]:
    """A new cgroup below that of this process, or of ``root``; removed at the end."""
    cgroup = _made_below(own_cgroup(root), Path(root))
    try:
        yield cgroup
    finally:
        for _ in range(_ATTEMPTS):
            # A cgroup is busy for a moment after its last process has ended.
            with contextlib.suppress(OSError), overriding():
                cgroup.rmdir()
                break
            time.sleep(_PAUSE_S)


def own_cgroup(root: str, own: str = "/proc/self/cgroup") -> Path:
    """The cgroup of this process; ``root`` where it is not seen below that, as in a namespace of another's."""
    with open(own, encoding="utf-8") as lines:
        path = next((line[len("0::/") :].rstrip("\n") for line in lines if line.startswith("0::/")), "")
    found = Path(root, path)
    return found if found.is_dir() and ".." not in found.parts else Path(root)


def _made_below(own: Path, root: Path) -> Path:
    name = f"cri-resmgr-self-test-{os.urandom(8).hex()}"
    with overriding():
        with contextlib.suppress(OSError):  # not ours to write in: perhaps the root is
            (own / name).mkdir()
            return own / name
        (root / name).mkdir()
    return root / name


def _talk(cgroup: Path) -> None:
    """A child in ``cgroup`` accepts and answers; this process asks."""
    # A program of its own, for forking is not safe where there are threads.
    command = [
        sys.executable,
        "-I",
        "-S",
        str(_ACCEPTOR),
        str(cgroup),
        str(_REQUEST_BYTES),
        str(_RESPONSE_BYTES),
    ]
    acceptor = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert acceptor.stdout is not None
        port = acceptor.stdout.readline()
        if port:
            with socket.create_connection(("127.0.0.1", int(port)), timeout=_TIMEOUT_S) as connection:
                connection.sendall(bytes(_REQUEST_BYTES))
                while connection.recv(65536):
                    pass
        _, complaint = acceptor.communicate(timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        acceptor.kill()
        acceptor.communicate()
        raise
    if acceptor.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(f"the child in {cgroup} failed: {' '.join(last)}")
