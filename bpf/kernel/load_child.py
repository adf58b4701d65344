"""Compiles and loads a C file with bcc and hands the descriptors over. Run as a program of its own, by loader.py.

It runs under the system's Python, which has bcc, not under ours: nothing is imported but bcc and the standard
library (Python 3.9, bcc 0.18). It ends at once, and with it the 120 MB that bcc holds.
"""

import array
import ctypes
import json
import os
import socket
import struct
import sys

BPF_PROG_LOAD = 5


def main() -> int:
    """Arguments: the socket's descriptor. On stdin, as JSON: {text, include, cflags, bpf_number: that of bpf(2),
    programs: {name: [kind, place it is attached to, whether it is loaded for that place only]}}."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    request = json.load(sys.stdin)
    # Read by bcc when it compiles: the tree that stands for the kernel's.
    os.environ["BCC_KERNEL_SOURCE"] = request["include"]
    try:
        from bcc import BPF, lib
    except ImportError as error:
        return fail(parent, "bcc", str(error))
    try:
        # By text: given a file name bcc also looks into PATH.
        module = BPF(text=request["text"].encode(), cflags=request["cflags"])
    except Exception as error:
        return fail(parent, "compile", str(error))
    loaded = []
    for name, (kind, place, is_loaded_for_place) in request["programs"].items():
        try:
            if is_loaded_for_place:
                code = module.dump_func(name.encode())
                loaded.append(load_for(place, getattr(BPF, kind), name, code, request["bpf_number"]))
            else:
                loaded.append(module.load_func(name.encode(), getattr(BPF, kind)).fd)
        except Exception as error:
            return fail(parent, "load", str(error))
    maps = maps_of(lib, module.module)
    descriptors = loaded + list(maps.values())
    answer = {"programs": list(request["programs"]), "maps": list(maps)}
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    parent.sendmsg([json.dumps(answer).encode()], [rights])
    return 0


def load_for(place: int, kind: int, name: str, instructions: bytes, bpf_number: int) -> int:
    """Load a program that the kernel checks for one place to attach it to, which bcc 0.18 cannot say.

    :raises OSError: the kernel refuses; its reasons are on stderr, as with bcc.
    """
    code, license_text = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    reasons = ctypes.create_string_buffer(65536)
    # union bpf_attr for BPF_PROG_LOAD: type, count, code, license, log level, size, buffer, versions, flags, name.
    layout = struct.pack(
        "=IIQQIIQII16sII", kind, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(license_text),
        1, len(reasons), ctypes.addressof(reasons), 0, 0, name.encode()[:15], 0, place,
    )  # fmt: skip
    attributes = ctypes.create_string_buffer(layout, 128)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(bpf_number, BPF_PROG_LOAD, ctypes.byref(attributes), len(attributes))
    if fd < 0:
        number = ctypes.get_errno()
        print(reasons.value.decode(errors="replace"), file=sys.stderr)
        raise OSError(number, os.strerror(number))
    return int(fd)


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
    code = main()
    # Without bcc's own end of program: it detaches what it attached, and there is nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
