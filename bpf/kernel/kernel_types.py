"""Where the running kernel keeps fields of its structs, and the numbers of its functions: its own description (BTF).

The layout: <linux/btf.h>, and Documentation/bpf/btf.rst of the kernel. It is read once, from its beginning to its end
(150,000 types take 0.1 s), and nothing of it is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bpf.sources.samples import ProviderLost

VMLINUX = "/sys/kernel/btf/vmlinux"
_MAGIC = 0xEB9F
#: magic, version, flags, length of the header, offset and length of the types, of the names.
_HEADER = struct.Struct("=HBBIIIII")
_TYPE, _MEMBER = struct.Struct("=III"), struct.Struct("=III")
_STRUCT, _FUNCTION = 4, 12
#: Bytes after the twelve of a type, and those for each of its members, by its kind.
_AFTER = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
_LAST_KIND = 19


@dataclass(frozen=True)
class KernelTypes:
    """``offsets``: bytes from a struct's beginning, by (struct, field). ``functions``: numbers by name."""

    offsets: Mapping[tuple[str, str], int]
    functions: Mapping[str, int]


def read_types(
    fields: Collection[tuple[str, str]], functions: Collection[str], path: str = VMLINUX
) -> KernelTypes:
    """What the kernel tells of these (struct, field) and functions.

    :raises ProviderLost: it describes itself not at all, not in a way known here, or has not all of them; which is said.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise ProviderLost(f"the kernel does not describe its types: {path}: {error.strerror}") from None
    try:
        found = _found(raw, fields, functions)
    except (struct.error, ValueError, IndexError) as error:
        raise ProviderLost(f"{path} is no description of types as known here: {error}") from None
    missing = [f"{outer}.{field}" for outer, field in fields if (outer, field) not in found.offsets]
    missing += [f"{function}()" for function in functions if function not in found.functions]
    if missing:
        raise ProviderLost(f"this kernel has no {', '.join(missing)} in {path}")
    return found


def _found(raw: bytes, fields: Collection[tuple[str, str]], functions: Collection[str]) -> KernelTypes:
    magic, _, _, header, types_at, types_length, names_at, names_length = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic:#x}, not with {_MAGIC:#x}")
    begin = header + names_at
    names = raw[begin : begin + names_length]
    # Names are compared by where they are: each is there once.
    structs = _places(names, {outer for outer, _ in fields})
    members = _places(names, {field for _, field in fields})
    called = _places(names, functions)
    offsets: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    begin = header + types_at
    for each in _types(raw, begin, begin + types_length):
        if each.kind == _FUNCTION and each.name in called:
            numbers.setdefault(called[each.name], each.number)
        elif each.kind == _STRUCT and each.name in structs:
            listed = raw[each.members : each.members + each.member_count * _MEMBER.size]
            for member, _, bits in _MEMBER.iter_unpack(listed):
                wanted = (structs[each.name], members.get(member, ""))
                if wanted in fields:
                    offsets.setdefault(wanted, (bits & 0xFFFFFF if each.has_sizes else bits) // 8)
    return KernelTypes(offsets, numbers)


def _places(names: bytes, wanted: Collection[str]) -> dict[int, str]:
    """Names by their place."""
    found = {names.find(b"\0" + name.encode() + b"\0") + 1: name for name in wanted}
    found.pop(0, None)
    return found


class _Type(NamedTuple):
    """A struct or a function. ``name``, ``members``: where they are; ``has_sizes``: above offsets are those of bitfields."""

    number: int
    name: int
    kind: int
    has_sizes: bool
    members: int
    member_count: int


def _types(raw: bytes, at: int, end: int) -> Iterator[_Type]:
    number = 0
    while at < end:
        name, info, _ = _TYPE.unpack_from(raw, at)
        kind, count = info >> 24 & 31, info & 0xFFFF
        if not 0 < kind <= _LAST_KIND:
            raise ValueError(f"type {number + 1} is of kind {kind}")
        number += 1
        at += _TYPE.size
        if kind in (_STRUCT, _FUNCTION):
            yield _Type(number, name, kind, bool(info >> 31), at, count)
        at += _AFTER.get(kind, 0) + _EACH.get(kind, 0) * count
