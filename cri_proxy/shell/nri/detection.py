"""Whether a runtime has NRI itself."""

from __future__ import annotations

from typing import Callable

#: Where runtimes that have NRI listen for plugins.
RUNTIME_NRI_SOCKET = "/var/run/nri/nri.sock"


def runtime_nri(read: Callable[[], str], own: str) -> str:
    """The socket on which a runtime listens for NRI plugins; "" if it does not. ``own``: our own, which is not one.

    ``read`` gives /proc/net/unix. Asking the socket itself would not do: containerd waits 5 s for whoever connects to
    register, and lets nobody else in meanwhile.
    """
    try:
        lines = read().splitlines()[1:]
    except OSError:
        return ""
    names = {RUNTIME_NRI_SOCKET, RUNTIME_NRI_SOCKET[len("/var") :]} - {own, own[len("/var") :]}
    for line in lines:
        words = line.split()
        # Num: RefCount Protocol Flags Type St Inode Path; flag 0x10000 is that of one who listens (SO_ACCEPTCON).
        if len(words) == 8 and words[7] in names and int(words[3], 16) & 0x10000:
            return words[7]
    return ""
