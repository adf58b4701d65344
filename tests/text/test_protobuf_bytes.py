"""Entries cut out of messages by their bytes; what stays is the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.text.protobuf_bytes import FieldPath, NotProtobuf, cut, fields, place_of

REQUEST = cri.CreateContainerRequest
#: Fields no version of CRI has: a number, 8 bytes, a string, 4 bytes, a group with a group in it.
UNKNOWN = (
    b"\xa8\x3f\x07" b"\xb1\x3f12345678" b"\xba\x3f\x02ab" b"\xc5\x3f1234"
    b"\xcb\x3f\x0a\x01x\xd3\x3f\x08\x01\xd4\x3f\xcc\x3f"
)  # fmt: skip


def envs(*keys: str) -> bytes:
    config = cri.ContainerConfig(envs=[cri.KeyValue(key=key, value=b"1") for key in keys])
    return bytes(REQUEST(config=config).SerializeToString())


def without(key: str, message: bytes) -> bytes:
    return cut(
        message, place_of(REQUEST, "config.envs"), lambda content: cri.KeyValue.FromString(content).key == key
    )


def test_a_place_is_the_numbers_that_lead_to_it() -> None:
    assert place_of(REQUEST, "config.envs") == FieldPath((2, 6), 2)
    assert place_of(REQUEST, "config.linux.resources.oom_score_adj") == FieldPath((2, 15, 1, 5), 0)
    assert place_of(REQUEST, "config.linux.resources.cpuset_cpus") == FieldPath((2, 15, 1, 6), 2)


def test_an_entry_is_cut_out_and_nothing_else_changes() -> None:
    assert without("B", envs("A", "B", "C")) == envs("A", "C")
    assert without("X", envs("A", "B")) == envs("A", "B")


def test_all_pieces_of_a_message_are_looked_at() -> None:
    assert without("B", envs("A", "B") + envs("B", "C") + envs("B")) == envs("A") + envs("C") + b"\x12\x00"


def test_a_message_shorter_than_its_length_said_gets_a_shorter_length() -> None:
    long = envs("A" * 200, "B")
    assert without("A" * 200, long) == envs("B")
    assert without("B", long) == envs("A" * 200)


def test_unknown_fields_stay() -> None:
    assert without("A", UNKNOWN + envs("A", "B") + UNKNOWN) == UNKNOWN + envs("B") + UNKNOWN


def test_a_field_of_the_number_in_another_encoding_is_none_of_them() -> None:
    odd = REQUEST(config=cri.ContainerConfig()).SerializeToString() + b"\x12\x02\x30\x05"  # envs as a number
    assert cut(odd, place_of(REQUEST, "config.envs"), lambda _: True) == odd
    assert cut(b"\x10\x05", place_of(REQUEST, "config.envs"), lambda _: True) == b"\x10\x05"


def test_a_number_is_cut_out() -> None:
    linux = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(cpu_shares=7, oom_score_adj=-5))
    message = REQUEST(config=cri.ContainerConfig(linux=linux)).SerializeToString()
    shorter = cut(message, place_of(REQUEST, "config.linux.resources.oom_score_adj"), lambda _: True)
    assert REQUEST.FromString(shorter).config.linux.resources == cri.LinuxContainerResources(cpu_shares=7)


@pytest.mark.parametrize(
    "message",
    [b"\x12", b"\x12\x05ab", b"\x0f", b"\x80", b"\x80" * 11, b"\x09123", b"\x0b", b"\x0b\x14", b"\x0c"],
    ids=["no length", "too short", "wire type 7", "half a tag", "an endless tag", "half a number", "an open group",
         "another group's end", "an end without a group"],
)  # fmt: skip
def test_what_is_no_protobuf_is_said_to_be_none(message: bytes) -> None:
    with pytest.raises(NotProtobuf):
        list(fields(message))


def test_groups_in_groups_do_not_recurse() -> None:
    deep = b"\x0b" * 50_000 + b"\x0c" * 50_000
    assert [field.end for field in fields(deep)] == [len(deep)]


@given(st.binary(max_size=64))
def test_cutting_nothing_gives_the_same_bytes(message: bytes) -> None:
    try:
        assert cut(message, place_of(REQUEST, "config.envs"), lambda _: False) == message
    except NotProtobuf:
        pass
