"""Compiles a C file with bcc and tells what came out. Run as a program of its own, by compiler.py.

It runs under the system's Python, which has bcc, not under ours: nothing is imported but bcc and the standard
library (Python 3.9, bcc 0.18). It ends at once, and with it the 120 MB that bcc holds.

bcc makes the maps while it compiles; they go with this process. What a program needs of them is told by their numbers,
so that the observer can make them again whenever it starts.
"""

import base64
import ctypes
import json
import os
import struct
import sys
from typing import Any

BTF_GET_FD_BY_ID, OBJ_GET_INFO = 19, 15
#: BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD: the instruction's number is a map's descriptor.
LOAD_NUMBER, IS_MAP = 0x18, 1


def main() -> int:
    """Arguments: the descriptor of the file that the answer goes to. On stdin, as JSON: {text, include, cflags,
    bpf_number: that of bpf(2), programs: [name]}."""
    request = json.load(sys.stdin)
    with open(int(sys.argv[1]), "w", closefd=False) as answer:
        found = compiled(request)
        json.dump(found, answer)
    return 1 if "failed" in found else 0


def compiled(request: "dict[str, Any]") -> "dict[str, Any]":
    """What compiler.Compiled is made of, or at what step it failed and why."""
    # Read by bcc when it compiles: the tree that stands for the kernel's.
    os.environ["BCC_KERNEL_SOURCE"] = str(request["include"])
    try:
        from bcc import BPF, lib
    except ImportError as error:
        return {"failed": "bcc", "reason": str(error)}
    try:
        # By text: given a file name bcc also looks into PATH.
        module = BPF(text=request["text"].encode(), cflags=request["cflags"])
    except Exception as error:
        return {"failed": "compile", "reason": str(error)}
    descriptors = maps_of(lib, module.module)
    kernel = Kernel(request["bpf_number"])
    places = {fd: index for index, fd in enumerate(descriptors.values())}
    try:
        maps, types = kernel.described(descriptors)
        programs = {
            name: base64.b64encode(with_places(module.dump_func(name.encode()), places)).decode()
            for name in request["programs"]
        }
    except (OSError, KeyError) as error:
        return {"failed": "describe", "reason": str(error)}
    return {"maps": maps, "programs": programs, "types": base64.b64encode(types).decode()}


def with_places(code: bytes, places: "dict[int, int]") -> bytes:
    """Instructions in which a map is named by its place in the list of maps, not by a descriptor."""
    found = bytearray(code)
    for at in range(0, len(found), 8):
        if found[at] == LOAD_NUMBER and found[at + 1] >> 4 == IS_MAP:
            struct.pack_into("=i", found, at + 4, places[struct.unpack_from("=i", found, at + 4)[0]])
    return bytes(found)


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


class Kernel:
    """What the kernel tells of maps and of the types (BTF) of their entries."""

    def __init__(self, bpf_number: int) -> None:
        self._number = bpf_number
        self._libc = ctypes.CDLL(None, use_errno=True)

    def described(self, maps: "dict[str, int]") -> "tuple[list[dict[str, object]], bytes]":
        """The maps in their order, and the types that those of sockets' storage refer to. :raises OSError:"""
        found, types = [], b""
        for name, fd in maps.items():
            # struct bpf_map_info: type, id, sizes of key and value, entries, flags, ..., BTF's id and its types' numbers.
            info = self._info(fd, 128)
            kind, _, key_bytes, value_bytes, entries, flags = struct.unpack_from("=6I", info)
            btf, key_type, value_type = struct.unpack_from("=3I", info, 64)
            entry = {"name": name, "kind": kind, "key_bytes": key_bytes, "value_bytes": value_bytes}
            entry.update({"entries": entries, "flags": flags, "key_type": 0, "value_type": 0})
            if kind == 24:  # BPF_MAP_TYPE_SK_STORAGE: the only one that needs them
                entry.update({"key_type": key_type, "value_type": value_type})
                types = self._types(btf)
            found.append(entry)
        return found, types

    def _types(self, number: int) -> bytes:
        fd = self._bpf(BTF_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))
        try:
            size = struct.unpack_from("=I", self._info(fd, 32), 8)[0]
            raw = ctypes.create_string_buffer(size)
            self._info(fd, 32, struct.pack("=QI", ctypes.addressof(raw), size))
            return raw.raw
        finally:
            os.close(fd)

    def _info(self, fd: int, size: int, given: bytes = b"") -> bytes:
        info = ctypes.create_string_buffer(given, size)
        self._bpf(OBJ_GET_INFO, struct.pack("=IIQ", fd, size, ctypes.addressof(info)))
        return info.raw

    def _bpf(self, command: int, layout: bytes) -> int:
        attributes = ctypes.create_string_buffer(layout, 128)
        result = self._libc.syscall(self._number, command, ctypes.byref(attributes), len(attributes))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"bpf({command}): {os.strerror(number)}")
        return int(result)


if __name__ == "__main__":
    code = main()
    # Without bcc's own end of program: it detaches what it attached, and there is nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
