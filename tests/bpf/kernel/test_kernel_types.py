"""The kernel's description of its types: the real one, read against what C says of a struct; and such as cannot be used."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpf.kernel.kernel_types import VMLINUX, read_types
from bpf.sources.samples import ProviderLost

needs_types = pytest.mark.skipif(not Path(VMLINUX).exists(), reason=f"this kernel has no {VMLINUX}")


@needs_types
def test_fields_and_functions_of_this_kernel_are_found() -> None:
    # UAPI: <linux/bpf.h> fixes where the fields of struct bpf_sock_addr are, on every machine.
    wanted = [("bpf_sock_addr", "user_family"), ("bpf_sock_addr", "user_port"), ("bpf_sock_addr", "protocol")]
    types = read_types(wanted, ["unix_stream_sendmsg"])
    assert types.offsets == dict(zip(wanted, (0, 24, 36)))
    assert types.functions["unix_stream_sendmsg"] > 0


@needs_types
def test_all_that_is_not_there_is_named() -> None:
    with pytest.raises(ProviderLost) as refused:
        read_types([("sock", "nothing"), ("no_struct", "sk"), ("socket", "sk")], ["no_function"])
    assert str(refused.value) == f"this kernel has no sock.nothing, no_struct.sk, no_function() in {VMLINUX}"


def described(types: bytes, names: bytes, magic: int = 0xEB9F) -> bytes:
    return struct.pack("=HBBIIIII", magic, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names


NAMES = b"\0one\0field\0does\0"
#: struct one { unsigned field : 3 (at 128 bits, with bitfields' sizes) }, and a function; an int and an enumeration before.
TYPES = b"".join(
    [
        struct.pack("=IIII", 0, 1 << 24, 4, 32),
        struct.pack("=IIIIII", 0, 6 << 24 | 1, 4, 0, 0, 0)[:20],
        struct.pack("=IIIIII", 1, 1 << 31 | 4 << 24 | 1, 20, 5, 1, 3 << 24 | 128),
        struct.pack("=III", 11, 12 << 24, 1),
    ]
)


def test_offsets_beside_bitfields_and_numbers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(described(TYPES, NAMES))
    types = read_types([("one", "field")], ["does"], str(file))
    assert (types.offsets, types.functions) == ({("one", "field"): 16}, {"does": 4})


DAMAGED = {
    "nothing": b"",
    "another file": described(TYPES, NAMES, magic=0x457F),
    "cut in a type": described(TYPES[:30], NAMES)[:-20],
    "a kind that is not known": described(struct.pack("=III", 0, 31 << 24, 0), NAMES),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_description_is_told_in_a_sentence(tmp_path: Path, name: str) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(DAMAGED[name])
    with pytest.raises(ProviderLost, match=r"vmlinux( is no description| *$)|this kernel has no"):
        read_types([("one", "field")], [], str(file))


def test_a_kernel_without_it_is_told_so() -> None:
    with pytest.raises(ProviderLost, match="the kernel does not describe its types: /nowhere: No such file"):
        read_types([], ["unix_stream_sendmsg"], "/nowhere")
