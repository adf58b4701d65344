"""Header blocks are read in step with their writers, and any reader takes ours without a trace in its tables."""

from __future__ import annotations

from typing import Any, Callable, Optional

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.hpack import encode_integer
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_proxy.relay.http2.frames import MAX_BLOCK_BYTES, ProtocolError
from cri_proxy.relay.http2.headers import HeaderReader, status_of, value_of, write_response, write_trailers

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/runtime.v1.RuntimeService/Version"),
    (b":authority", b"localhost"),
    (b"user-agent", b"grpc-go/1.60"),
]
NAMES = st.sampled_from([b"a", b"b", b"grpc-timeout", b"x" * 40])
BLOCKS = st.lists(st.lists(st.tuples(NAMES, st.binary(max_size=60)), max_size=5), max_size=30)


@given(BLOCKS, st.sampled_from([0, 64, 200, 4096]), st.booleans())
def test_blocks_are_read_as_they_were_written(
    blocks: list[list[tuple[bytes, bytes]]], table: int, huffman: bool
) -> None:
    writer, reader = Encoder(), HeaderReader()
    writer.header_table_size = table
    for block in blocks:
        assert list(reader.read(writer.encode(block, huffman=huffman))) == block


#: Indexed fields, literals of each kind, with and without Huffman code, sizes of tables, and integers in many bytes.
PARTS = st.one_of(
    st.integers(0x80, 0xFF).map(lambda index: bytes([index])),
    st.sampled_from(
        [b"\x40\x01a\x01b", b"\x00\x01a\x01c", b"\x10\x01s\x01d", b"\x41\x82\x1c\x64", b"\x7e\x01x"]
    ),
    st.sampled_from(
        [b"\x20", b"\x3f\x20", b"\x3f\xe1\x1f", b"\x3f\xe1\x3f", b"\x40\x01k\x7f\x00" + b"v" * 127]
    ),
    st.sampled_from(
        [b"\xff\x00", b"\xff\x80\x80\x01", b"\xff\xff\xff\xff\xff\x0f", b"\x0f\x10\x00", b"\x7f\x05\x01y"]
    ),
    st.builds(
        lambda raw, bits: bytes([0x44, bits | len(raw)]) + raw,
        st.binary(max_size=20),
        st.sampled_from([0, 0x80]),
    ),
    st.binary(max_size=4),
)


def outcome(read: Callable[[bytes], Any], block: bytes) -> Any:
    """The fields; None: it is no block."""
    try:
        return [(bytes(name), bytes(value)) for name, value in read(block)]
    except (ProtocolError, HPACKError, ValueError, IndexError):
        return None


@settings(max_examples=8 * settings().max_examples)
@given(st.lists(st.lists(PARTS, max_size=6).map(b"".join), min_size=1, max_size=8))
def test_whatever_comes_is_read_as_the_hpack_library_reads_it(blocks: list[bytes]) -> None:
    reader, decoder = HeaderReader(), Decoder(max_header_list_size=4 * MAX_BLOCK_BYTES)
    for block in blocks:
        read = outcome(reader.read, block)
        assert read == outcome(lambda raw: decoder.decode(raw, raw=True), block)
        if read is None:
            return


def test_texts_of_any_length_are_read_whole() -> None:
    """Of all whose length has one or two bytes, and around each power of two after that."""
    around = (size for bits in range(14, 20) for size in range((1 << bits) - 2, (1 << bits) + 260))
    for size in (*range(600), *range(600, 1 << 14, 101), *around):
        text = bytes(size)
        block = b"\x00\x01k" + bytes(encode_integer(size, 7)) + text
        assert HeaderReader().read(block) == [(b"k", text)]


def test_large_blocks_are_not_kept_in_memory() -> None:
    reader = HeaderReader()
    for number in range(300):
        reader.read(b"\x00\x01k\x7f\xa1\x1f" + bytes([97 + number % 26]) * 4128)
    assert reader._known == {}


def test_a_known_block_means_something_else_after_the_table_has_changed() -> None:
    writer, reader = Encoder(), HeaderReader()
    writer.encode([(b"x", b"1")])
    for text in (b"1", b"2", b"1", b"3"):
        reader.read(b"\x40\x01x\x01" + text)  # a new entry at the front
        assert reader.read(b"\xbe") == reader.read(b"\xbe") == [(b"x", text)]


def test_a_larger_table_may_be_used_once_it_is_allowed() -> None:
    bigger = b"\x3f\xe1\x3f"  # 8192
    with pytest.raises(ProtocolError):
        HeaderReader().read(bigger + b"\x88")
    reader = HeaderReader()
    reader.allow_table(8192)
    reader.allow_table(100)  # announced by the writer, if it does
    assert reader.read(bigger + b"\x88") == [(b":status", b"200")]


def test_a_few_bytes_that_stand_for_very_many_are_no_block() -> None:
    reader, size = HeaderReader(), 2000
    entry = b"\x40\x01k" + bytes(encode_integer(size, 7)) + bytes(size)
    at_most = 4 * MAX_BLOCK_BYTES // (size + len("k") + 32)  # as a table counts a field (RFC 7541, 4.1)
    assert len(reader.read(entry + b"\xbe" * (at_most - 1))) == at_most
    with pytest.raises(ProtocolError, match=f"more than {4 * MAX_BLOCK_BYTES} bytes of fields"):
        reader.read(b"\xbe" * (at_most + 1))


@pytest.mark.parametrize(
    "block", [b"\x80", b"\xff\xff\xff\xff\xff", b"\x40", b"\x00\x85\xff\xff\xff\xff\xff\x00"]
)
def test_what_is_no_block_is_a_doubt(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        HeaderReader().read(block)


@pytest.mark.parametrize(
    "details",
    ["", "plain", "größer 龙 🐉", "one\ntwo\r\n", "100% of %2F", "x" * 127, "x" * 128, "x" * 3000, "ü" * 900],
)
def test_our_blocks_are_read_by_anybody_and_leave_no_trace(details: str) -> None:
    decoder = Decoder()
    block = write_response([("x-initial", "i")]) + write_trailers(
        9, details, [("t-bin", b"\xfe\x00"), ("t", "")]
    )
    read = [(name, value) for name, value in decoder.decode(block, raw=True)]
    assert read[:3] == [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-initial", b"i")]
    assert read[-2:] == [(b"t-bin", b"/gA"), (b"t", b"")]
    assert status_of(read) == (9, details)
    assert list(decoder.header_table.dynamic_entries) == []


CUT = {
    "not at all": ("x" * 6_000, 6_000),
    "plain": ("x" * 10_000, 6_000),
    "at a character": ("ü" * 10_000, 1_000),
    "at a character of four bytes": ("🐉" * 10_000, 500),
    "at a character behind others": ("%x" + "ü" * 10_000, 2 + 999),
    "inside of what stands for a percent sign": ("x" * 5_999 + "%" * 1_000, 5_999),
}


@pytest.mark.parametrize(("details", "kept"), CUT.values(), ids=CUT)
def test_a_message_that_no_client_would_take_is_cut(details: str, kept: int) -> None:
    block = write_trailers(2, details)
    assert len(block) < 6_100
    assert status_of(list(Decoder().decode(block, raw=True))) == (2, details[:kept])


def test_a_text_that_no_message_can_have_is_written_all_the_same() -> None:
    read = Decoder().decode(write_trailers(2, "no such file: \udcff"), raw=True)
    assert status_of(list(read)) == (2, "no such file: ?")


@pytest.mark.parametrize(
    ("trailers", "status"),
    [
        ([(b"grpc-status", b"0")], (0, "")),
        ([(b"grpc-status", b"16"), (b"grpc-message", b"50%25 %zz %")], (16, "50% %zz %")),
        ([(b"grpc-status", b"abc")], (None, "no grpc-status in the trailers (HTTP status unknown)")),
        ([(b":status", b"503")], (None, "no grpc-status in the trailers (HTTP status 503)")),
    ],
)
def test_a_status_is_read_as_a_client_would(
    trailers: list[tuple[bytes, bytes]], status: tuple[Optional[int], str]
) -> None:
    assert status_of(trailers) == status


def test_of_several_values_the_first_counts() -> None:
    assert value_of([(b"a", b"1"), (b"a", b"2")], b"a") == b"1" and value_of(REQUEST, b"a") == b""
