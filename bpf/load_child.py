"""Compiles and loads a C file with bcc and hands the descriptors over. Run as a program of its own, by loader.py.

It runs under the system's Python, which has bcc, not under ours: nothing is imported but bcc and the standard
library (Python 3.9, bcc 0.18). It ends at once, and with it the 120 MB that bcc holds.
"""

import array
import ctypes
import json
import os
import socket
import sys


def main() -> int:
    """Arguments: the socket's descriptor, and {source, include, cflags, programs: {name: kind}} as JSON."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    request = json.loads(sys.argv[2])
    # Read by bcc when it compiles: the tree that stands for the kernel's.
    os.environ["BCC_KERNEL_SOURCE"] = request["include"]
    try:
        from bcc import BPF, lib
    except ImportError as error:
        return fail(parent, "bcc", str(error))
    kinds = {"cgroup_skb": BPF.CGROUP_SKB, "raw_tracepoint": BPF.RAW_TRACEPOINT, "tracepoint": BPF.TRACEPOINT}
    with open(request["source"], "rb") as source:
        text = source.read()
    try:
        # By text: given a file name bcc also looks into PATH.
        module = BPF(text=text, cflags=request["cflags"])
    except Exception as error:
        return fail(parent, "compile", str(error))
    loaded = []
    for name, kind in request["programs"].items():
        try:
            loaded.append(module.load_func(name.encode(), kinds[kind]).fd)
        except Exception as error:
            return fail(parent, "load", str(error))
    maps = maps_of(lib, module.module)
    descriptors = loaded + list(maps.values())
    answer = {"programs": list(request["programs"]), "maps": list(maps)}
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    parent.sendmsg([json.dumps(answer).encode()], [rights])
    return 0


def maps_of(lib: ctypes.CDLL, module: int) -> "dict[str, int]":
    """The descriptors of all maps by name. bcc's Python side declares no types for these functions."""
    lib.bpf_num_tables.restype = ctypes.c_size_t
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    lib.bpf_table_name.restype = ctypes.c_char_p
    lib.bpf_table_fd_id.restype = ctypes.c_int
    for function in (lib.bpf_table_name, lib.bpf_table_fd_id):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    indexes = range(lib.bpf_num_tables(module))
    return {
        lib.bpf_table_name(module, index).decode(): lib.bpf_table_fd_id(module, index) for index in indexes
    }


def fail(parent: socket.socket, step: str, reason: str) -> int:
    """Tell the parent at what step it failed."""
    parent.sendall(json.dumps({"failed": step, "reason": reason}).encode())
    return 1


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    # Without bcc's own end of program: it detaches what it attached, and there is nothing.
    sys.stderr.flush()
    os._exit(code)
