"""Protobuf messages as bytes: entries cut out of them, however deep, and all else left as it is.

For what appending cannot do (design rule 2: a request is never rebuilt): an entry of a list or map goes, or a field
goes back to nothing. A message that was appended to holds an embedded message in several pieces; all are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


class NotProtobuf(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """Where a field is in its message: ``message[start:end]`` with its tag, ``message[value:end]`` its content."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


class FieldPath(NamedTuple):
    """Where a field is below a message: the numbers that lead to it, and how it is encoded."""

    numbers: tuple[int, ...]
    wire_type: int


def place_of(kind: Any, dotted: str) -> FieldPath:
    """A field below a message class: ``config.linux.resources`` of a CreateContainerRequest."""
    descriptor, numbers, field = kind.DESCRIPTOR, [], None
    for name in dotted.split("."):
        field = descriptor.fields_by_name[name]
        numbers.append(field.number)
        descriptor = field.message_type
    has_length = field is not None and field.cpp_type in (field.CPPTYPE_MESSAGE, field.CPPTYPE_STRING)
    return FieldPath(tuple(numbers), _BYTES if has_length else _VARINT)


def cut(message: bytes, place: FieldPath, is_cut: Callable[[bytes], bool]) -> bytes:
    """The message without those fields at a place whose content is to be cut.

    The content of an embedded message or a string is its bytes without the length, that of a number its encoding.
    A field of that number in another encoding is none of them: it is an unknown field.

    :raises NotProtobuf: the message, or one on the way, cannot be read.
    """
    number, rest = place.numbers[0], place.numbers[1:]
    kept = []
    for field in fields(message):
        whole, content = message[field.start : field.end], message[field.value : field.end]
        if field.number != number:
            kept.append(whole)
        elif not rest:
            if field.wire_type != place.wire_type or not is_cut(content):
                kept.append(whole)
        elif field.wire_type != _BYTES:
            kept.append(whole)
        else:
            shorter = cut(content, FieldPath(rest, place.wire_type), is_cut)
            if len(shorter) == len(content):
                kept.append(whole)
            else:
                _, tag_end = read_varint(message, field.start)
                kept.append(message[field.start : tag_end] + write_varint(len(shorter)) + shorter)
    return b"".join(kept)


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in their order.

    :raises NotProtobuf: it cannot be read from there on.
    """
    at = 0
    while at < len(message):
        field = _read_field(message, at)
        yield field
        at = field.end


def _read_field(message: bytes, start: int) -> Field:
    tag, at = read_varint(message, start)
    number, wire_type = tag >> 3, tag & 7
    value = at
    if wire_type == _VARINT:
        _, at = read_varint(message, at)
    elif wire_type == _BYTES:
        length, value = read_varint(message, at)
        at = value + length
    elif wire_type in (_FIXED64, _FIXED32):
        at += 8 if wire_type == _FIXED64 else 4
    elif wire_type == _GROUP:
        at = _skip_group(message, at, number)
    else:
        raise NotProtobuf(f"wire type {wire_type}")
    if at > len(message):
        raise NotProtobuf("it ends within a field")
    return Field(number, wire_type, start, value, at)


def _skip_group(message: bytes, at: int, number: int) -> int:
    """Where a group ends, with those inside it; without recursion, for its depth is the sender's choice."""
    numbers = [number]
    while numbers:
        tag, after = read_varint(message, at)
        if tag & 7 == _GROUP_END:
            if numbers.pop() != tag >> 3:
                raise NotProtobuf("a group ends that was not begun")
            at = after
        elif tag & 7 == _GROUP:
            numbers.append(tag >> 3)
            at = after
        else:
            at = _read_field(message, at).end
    return at


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where what follows it begins.

    :raises NotProtobuf: it does not end, or is longer than 70 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise NotProtobuf("it ends within a number")


def write_varint(value: int) -> bytes:
    """A number as protobuf writes it: a tag, a length."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
