"""CPU lists are read and written as the kernel does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.machine.cpus import MAX_ID, BadCpuList, format_cpus, parse_cpus, parse_mask

LISTS = [
    ("", []),
    ("\n", []),
    ("0", [0]),
    ("0\n", [0]),
    ("0-3", [0, 1, 2, 3]),
    ("0-3,8", [0, 1, 2, 3, 8]),
    ("8,0-3", [0, 1, 2, 3, 8]),
    ("3,3,2-4", [2, 3, 4]),
    ("5-5", [5]),
    ("007", [7]),
    (f"{MAX_ID}", [MAX_ID]),
    # As kernel 5.10 on Kunpeng 920 ends them.
    ("0-3\n\0", [0, 1, 2, 3]),
    ("\n\0", []),
]


@pytest.mark.parametrize(("text", "ids"), LISTS)
def test_a_list_is_read(text: str, ids: list[int]) -> None:
    assert parse_cpus(text) == frozenset(ids)


MASKS = [
    ("1", [0]),
    ("0000010f\n", [0, 1, 2, 3, 8]),
    ("00000001,80000000", [31, 32]),
    ("F,0000000F\n\0", [0, 1, 2, 3, 32, 33, 34, 35]),
    ("00000000,00000000", []),
]


@pytest.mark.parametrize(("text", "ids"), MASKS)
def test_a_mask_is_read(text: str, ids: list[int]) -> None:
    assert parse_mask(text) == frozenset(ids)


@pytest.mark.parametrize("text", ["", "\0", "0x0f", "0-3", "g", "1 2", "f" * (MAX_ID // 4 + 2)])
def test_what_is_no_mask_is_refused(text: str) -> None:
    with pytest.raises(BadCpuList, match="is not a mask of CPUs"):
        parse_mask(text)


SETS = [
    ([], ""),
    ([0], "0"),
    ([1, 0], "0-1"),
    ([0, 1, 2, 64, 65, 66], "0-2,64-66"),
    ([9, 7, 5], "5,7,9"),
    ([0, 2, 3], "0,2-3"),
]


@pytest.mark.parametrize(("ids", "text"), SETS)
def test_a_set_is_written_ascending_with_ranges_joined(ids: list[int], text: str) -> None:
    assert format_cpus(ids) == text
    assert format_cpus(iter(ids)) == text


@given(st.frozensets(st.integers(min_value=0, max_value=MAX_ID), max_size=200))
def test_what_is_written_reads_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


@given(st.frozensets(st.integers(min_value=0, max_value=300), max_size=300))
def test_the_text_is_as_short_as_it_can_be(cpus: frozenset[int]) -> None:
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    assert len([part for part in format_cpus(cpus).split(",") if part]) == len(starts)


@given(st.text(alphabet="0123456789,- x", max_size=12))
def test_a_text_is_a_list_or_is_refused(text: str) -> None:
    try:
        cpus = parse_cpus(text)
    except BadCpuList:
        return
    assert parse_cpus(format_cpus(cpus)) == cpus


MALFORMED = [
    ("letters", "0,x", "'x' is neither an id nor a range"),
    ("nothing between commas", "0,,2", "'' is neither an id nor a range"),
    ("a comma at the end", "0-3,", "'' is neither an id nor a range"),
    ("a negative id", "-1", "'-1' is neither an id nor a range"),
    ("an open range", "0,4-", "'4-' is neither an id nor a range"),
    ("two dashes", "1-2-3", "'1-2-3' is neither an id nor a range"),
    ("a stride", "0-15:2/4", "'0-15:2/4' is neither an id nor a range"),
    ("a blank inside", "0, 1", "' 1' is neither an id nor a range"),
    ("digits that are not ASCII", "٣", "'٣' is neither an id nor a range"),
    ("a sign", "+1", "'+1' is neither an id nor a range"),
    ("a range that runs backwards", "0,7-4", "the range '7-4' runs backwards"),
    ("an id beyond all machines", "0-99999999", f"99999999 is larger than {MAX_ID}"),
]


@pytest.mark.parametrize(("text", "message"), [c[1:] for c in MALFORMED], ids=[c[0] for c in MALFORMED])
def test_a_malformed_list_is_refused_by_the_name_of_its_part(text: str, message: str) -> None:
    with pytest.raises(BadCpuList) as caught:
        parse_cpus(text)
    assert str(caught.value) == f"{text!r} is not a CPU list: {message}"


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(BadCpuList) as caught:
        parse_cpus("0," * 5000 + "x")
    assert len(str(caught.value)) < 150
    assert str(caught.value).endswith("'x' is neither an id nor a range")
