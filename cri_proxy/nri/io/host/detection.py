"""Whether a runtime has NRI itself, so that no plugins are hosted for it."""

from __future__ import annotations

from typing import Callable

#: Where runtimes that have NRI listen for plugins.
RUNTIME_NRI_SOCKET = "/var/run/nri/nri.sock"


def unhosted_because(wanted: str, read: Callable[[], str], own: str) -> str:
    """Why no plugins are hosted, of what can be known without the runtime; "" = that is open, or they are.

    ``wanted``: the setting nri.host; ``read`` and ``own`` as of ``runtime_nri``.
    """
    if wanted == "off":
        return "nri.host is off"
    found = runtime_nri(read, own) if wanted == "auto" else ""
    return f"the runtime has NRI itself: it listens on {found}" if found else ""


def runtime_nri(read: Callable[[], str], own: str) -> str:
    """The socket on which a runtime listens for NRI plugins; "" if it does not. ``own``: our own, which is not one.

    ``read`` gives /proc/net/unix. Asking the socket itself would not do: containerd waits 5 s for what connects to
    register, and lets nothing else in meanwhile.
    """
    try:
        lines = read().splitlines()[1:]
    except OSError:
        return ""
    names = {RUNTIME_NRI_SOCKET, RUNTIME_NRI_SOCKET[len("/var") :]} - {own, own[len("/var") :]}
    for line in lines:
        words = line.split()
        # Num: RefCount Protocol Flags Type St Inode Path; flag 0x10000 is that of a socket that listens (SO_ACCEPTCON).
        if len(words) == 8 and words[7] in names and int(words[3], 16) & 0x10000:
            return words[7]
    return ""
