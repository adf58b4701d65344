"""Runs a program that gets no netlink socket: ``without_netlink.py PROGRAM ARGUMENT...``

Chromium learns by one which addresses this machine has. Whenever that changes it breaks off all that it loads, with
ERR_NETWORK_CHANGED; and other tests make and remove interfaces at any time. Without one it takes the network as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
#: The number of socket(2), and where its family is in struct seccomp_data (linux/seccomp.h).
_SOCKET = {"x86_64": 41, "aarch64": 198}
_NUMBER_AT, _FAMILY_AT = 0, 16


def refuse_netlink() -> None:
    """From now on this process and those that it starts get no netlink socket."""
    filters = (
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 0, 3, _SOCKET[platform.machine()]),
        (_LOAD, 0, 0, _FAMILY_AT),
        (_JUMP_IF_EQUAL, 0, 1, int(socket.AF_NETLINK)),
        (_RETURN, 0, 0, _RET_ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _RET_ALLOW),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in filters))
    described = struct.pack("@HP", len(filters), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), described, ctypes.c_ulong(0), ctypes.c_ulong(0)),
    ):  # fmt: skip
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse_netlink()
    os.execvp(sys.argv[1], sys.argv[1:])
