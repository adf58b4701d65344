"""Reads what the doctor must know of claims of CPUs: what serves the driver's sockets at kubelet."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

from cri_proxy.bounded_files import read_beginning
from cri_proxy.doctor.facts import ClaimFacts
from cri_proxy.doctor.io.parts import Places

#: How long a socket may take to take a connection, seconds.
_CONNECT_S = 0.5
_COMMAND_BYTES = 4096
#: Words of the command line of what serves our own driver: ``python -m cluster.agent``, ``cri-resmgr agent run``.
_OURS = ("cluster.agent", "cri-resmgr")


def read_claim_facts(places: Places) -> ClaimFacts:
    """Where claims are off nothing is looked at."""
    config = places.config
    if not config["dra.enabled"]:
        return ClaimFacts()
    driver, kubelet = str(config["dra.driver_name"]), places.at("kubelet.directory")
    return ClaimFacts(True, driver, _others(kubelet, driver, places.proc))


def _others(kubelet: Path, driver: str, proc: Path) -> tuple[str, ...]:
    """The programs that serve sockets of this driver's and are not ours, each ``NAME (process N)``."""
    registry = kubelet / "plugins_registry"
    paths = [kubelet / "plugins" / driver / "dra.sock"]
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(registry))
        paths += [
            registry / n for n in names if n.startswith(driver) and n.endswith(".sock") and _is_of(n, driver)
        ]
    found = {pid for path in paths if (pid := _served_by(path))}
    return tuple(f"{words[0]} (process {pid})" for pid in sorted(found) if (words := _command(proc, pid)))


def _is_of(name: str, driver: str) -> bool:
    # dra.cpu-reg.sock, dra.cpu-UID-reg.sock; not those of a driver whose name only begins so.
    return name[len(driver) :].startswith(("-", ".sock"))


def _served_by(path: Path) -> int:
    """The process that listens on a socket; 0 = none does, or it is not known."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(str(path))
            size = struct.calcsize("3i")
            return int(
                struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
            )
        except OSError:
            return 0


def _command(proc: Path, pid: int) -> list[str]:
    """A process's program and its arguments; none where it is our agent's, or not to be seen."""
    try:
        words = (
            read_beginning(proc / str(pid) / "cmdline", _COMMAND_BYTES).decode(errors="replace").split("\0")
        )
    except OSError:
        return []
    is_ours = any(word.rpartition("/")[2].startswith(_OURS) for word in words)
    return [] if is_ours or not words[0] else [words[0].rpartition("/")[2], *words[1:]]
