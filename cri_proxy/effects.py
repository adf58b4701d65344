"""What this process does that outlives it, or that another process sees, passes here first: the one place to cut it.

Every write of state and cgroups, every call to the runtime, every answer to a client, every message to an NRI plugin or
host is told by one call of ``before`` just before it is done. In production that does nothing. A test sets ``before``:
what has not passed by then has not happened to the next process (tests/effects). Callers write ``effects.before(...)``,
and never import the function, which is looked up with each effect.
"""

from __future__ import annotations

from typing import Callable


def _nothing(kind: str, about: str) -> None:
    pass


#: Called in the thread that has the effect, with its kind and what it is about: a file's name, or a method's.
before: Callable[[str, str], None] = _nothing

#: Kinds. A file in the state directory is changed; a file of a cgroup is written; a call of the daemon's own goes to the
#: runtime; a client's request goes there; a client gets a reply, or the end of its call; an NRI message is sent; something
#: below /sys is written: groups of resctrl, and files of devices and the machine; a claim's CDI file is written or removed.
STATE, CGROUP, CALL, REQUEST, ANSWER, NRI = "state", "cgroup", "call", "request", "answer", "nri"
RESCTRL, SYSTEM, CDI = "resctrl", "system", "cdi"
