"""Becomes a pre-registered NRI plugin: puts its connection on descriptor 3 and its environment in order, then runs it.

As a child of the daemon (``python -I launcher.py child PARENT DESCRIPTOR PATH``), or as the program of the unit
cri-resmgr-nri@NN-NAME.service (``cri-resmgr nri launch NN-NAME``), which fetches both from the daemon. Standard
library only: it starts often, and becomes the plugin.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys

#: Here the daemon hands connections out.
SOCKET = "/run/cri-resmgr/nri/launch.sock"
#: The descriptor that NRI_PLUGIN_SOCKET names.
PLUGIN_FD = 3
_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 65536
_WAIT_S = 10.0


def main(words: list[str]) -> int:
    """Does not return, unless the plugin cannot be run."""
    if len(words) == 4 and words[0] == "child":
        return _child(int(words[1]), int(words[2]), words[3])
    if len(words) in (1, 2):
        return _unit(_unescaped(words[0]), words[1] if len(words) > 1 else SOCKET)
    return _fail("usage: cri-resmgr nri launch NN-NAME [SOCKET]")


def unit_name(title: str) -> str:
    """The unit of a plugin ``NN-NAME``: characters not allowed in unit names are escaped (systemd.unit(5))."""
    escaped = re.sub(r"[^A-Za-z0-9_.:-]", lambda match: f"\\x{ord(match[0]):02x}", title)
    return f"cri-resmgr-nri@{escaped}.service"


def _unescaped(instance: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), instance)


def _child(parent: int, descriptor: int, path: str) -> int:
    with contextlib.suppress(Exception):  # without it, a plugin ends with its connection
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # it has ended meanwhile
    return _become(path, descriptor, dict(os.environ))


def _unit(title: str, address: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.settimeout(_WAIT_S)
        try:
            daemon.connect(address)
            daemon.sendall(title.encode() + b"\n")
            data, descriptors, _, _ = socket.recv_fds(daemon, _MOST_BYTES, 1)
        except OSError as error:
            return _fail(f"no connection for {title} from {address}: {error.strerror or error}")
    if not data or not descriptors:
        return _fail(f"the daemon does not want {title} to be started now")
    told = json.loads(data)
    return _become(told["path"], descriptors[0], told["environment"])


def _become(path: str, descriptor: int, environment: dict[str, str]) -> int:
    if descriptor != PLUGIN_FD:
        os.dup2(descriptor, PLUGIN_FD)
        os.close(descriptor)
    os.set_inheritable(PLUGIN_FD, True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as Python found it
    try:
        os.execve(path, [path], environment)
    except OSError as error:
        return _fail(f"{path} cannot be run: {error.strerror}")


def _fail(sentence: str) -> int:
    print(f"cri-resmgr: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
