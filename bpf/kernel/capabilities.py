"""Gives up the rights of root that the observer does not need. Linux capabilities(7), by prctl(2) and capset(2).

What stays, and why, by the provider that is configured (auto: all of it, for the better ones are tried again):

* DAC_READ_SEARCH: the folders /proc/PID/fd and the maps of processes that are not root's.
* SYS_PTRACE: to follow what is in them, and in /proc/PID/ns.
* SYS_ADMIN: to enter network namespaces; on kernels before 5.8 also for everything of BPF.
* NET_ADMIN: to attach to a cgroup; to hear of connections that end.
* BPF, PERFMON: to load programs and to read their maps.
* SYS_RESOURCE: to lift RLIMIT_MEMLOCK, which BPF maps are counted against before 5.11.
* DAC_OVERRIDE, where this process is in the root of the v2 tree, which has mode 0555: for the self-test's cgroup. It is kept
  without effect but in ``overriding``. A unit's or a container's own cgroup can be written in without it.

A capability is a right of one thread: drop them before any other thread is started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable, Iterator

_OVERRIDE = "dac_override"
_NUMBERS = {
    _OVERRIDE: 1,
    "dac_read_search": 2,
    "net_admin": 12,
    "sys_ptrace": 19,
    "sys_admin": 21,
    "sys_resource": 24,
    "perfmon": 38,
    "bpf": 39,
}
_LOOKING = ("dac_read_search", "sys_ptrace", "sys_admin", "net_admin")
_LOADING = ("bpf", "perfmon", "sys_resource")
NEEDED: dict[str, tuple[str, ...]] = {
    "auto": _LOOKING + _LOADING,
    "ebpf": _LOOKING + _LOADING,
    "sock_diag": _LOOKING + _LOADING,
    "declared": (),
}

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
#: _LINUX_CAPABILITY_VERSION_3: two words of 32 bits each.
_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def keep_only(names: Iterable[str], own_cgroup: str = "") -> list[str]:
    """Give up all other capabilities, for good, for this thread and what it starts; returns what is left.

    Capabilities that it did not have it does not get. Nothing at all can be regained by starting a program.
    ``own_cgroup``: where the self-test will make its cgroup, "" = nowhere.

    :raises OSError: the kernel refuses, which it never does to a process that asks for less.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    effective = _held(libc, names)
    kept = dict(effective)
    if own_cgroup and not os.stat(own_cgroup).st_mode & stat.S_IWUSR:
        kept.update(_held(libc, (_OVERRIDE,)))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(_MOST_CAPABILITIES):
        if number not in effective.values():
            # EINVAL: the kernel knows no such number; EPERM: without SETPCAP, where NO_NEW_PRIVS must do.
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    _set(libc, effective.values(), kept.values())
    return sorted(kept)


@contextlib.contextmanager
def overriding() -> Iterator[None]:
    """This thread may write where a mode forbids it, if that right was kept. No program is started in between."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = _read(libc)
    number = _NUMBERS[_OVERRIDE]
    if not words[0].permitted & ~words[0].effective & 1 << number:
        yield
        return
    words[0].effective |= 1 << number
    _check(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), words))
    try:
        yield
    finally:
        words[0].effective &= ~(1 << number)
        _check(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), words))


def _held(libc: ctypes.CDLL, names: Iterable[str]) -> dict[str, int]:
    words = _read(libc)
    held = words[0].permitted | words[1].permitted << 32
    return {name: _NUMBERS[name] for name in names if held >> _NUMBERS[name] & 1}


def _set(libc: ctypes.CDLL, effective: Iterable[int], permitted: Iterable[int]) -> None:
    in_effect, allowed = (sum(1 << number for number in numbers) for numbers in (effective, permitted))
    words = (_Data * 2)()
    for index, word in enumerate(words):
        word.effective, word.permitted = (
            in_effect >> 32 * index & 0xFFFFFFFF,
            allowed >> 32 * index & 0xFFFFFFFF,
        )
    _check(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), words))


def _read(libc: ctypes.CDLL) -> ctypes.Array[_Data]:
    words = (_Data * 2)()
    _check(libc.capget(ctypes.byref(_Header(_VERSION_3, 0)), words))
    return words


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
