"""Kubernetes quantities: what is read, to which number, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.text.quantity import BadQuantity, parse_bytes, parse_milli


@pytest.mark.parametrize(
    ("given_value", "milli"),
    [
        ("0", 0),
        ("4", 4000),
        (4, 4000),
        (1.5, 1500),
        ("1.5", 1500),
        (".5", 500),
        ("2.", 2000),
        ("750m", 750),
        (" 750m ", 750),
        ("1k", 1_000_000),
        ("1e3", 1_000_000),
        ("1E-2", 10),
        ("0.0001", 1),
        ("1.0005", 1001),
        ("100.5m", 101),
    ],
)
def test_cpus_in_milli_rounded_up(given_value: object, milli: int) -> None:
    assert parse_milli(given_value) == milli


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1k", 1000),
        ("1Ki", 1024),
        ("64Gi", 64 * 1024**3),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("2G", 2 * 1000**3),
        ("1Ei", 1024**6),
        ("9223372036854775807", 2**63 - 1),
        ("1500m", 2),
        ("1e6", 1_000_000),
    ],
)
def test_memory_in_bytes_rounded_up(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "value",
    ["", " ", "m", "-1", "+-1", "1 m", "1mi", "1K", "1Mib", "0x10", "1e100", "1_000", "nan", "inf", "\u0661"],
)
def test_what_is_not_a_quantity_is_refused(value: str) -> None:
    with pytest.raises(BadQuantity):
        parse_milli(value)
    with pytest.raises(BadQuantity):
        parse_bytes(value)


@pytest.mark.parametrize("value", ["9" * 5_000, "9" * 5_000 + "m", "1e19", "1e99", "10E", "8Ei", 10**19])
def test_more_than_any_machine_has_is_refused(value: object) -> None:
    for parse in (parse_milli, parse_bytes):
        with pytest.raises(BadQuantity, match="is more than any machine has$") as refused:
            parse(value)
        assert len(str(refused.value)) < 100


@pytest.mark.parametrize("value", [True, False, None, [1], float("nan"), float("inf"), -1, -0.5])
def test_values_that_are_not_numbers_of_0_or_more_are_refused(value: object) -> None:
    with pytest.raises(BadQuantity):
        parse_milli(value)


def test_the_message_says_what_was_found_and_what_was_expected() -> None:
    with pytest.raises(BadQuantity) as cpus:
        parse_milli("many")
    with pytest.raises(BadQuantity) as memory:
        parse_bytes("64GB")
    assert str(cpus.value) == '\'many\' is not a quantity of CPUs such as "750m" or "2"'
    assert str(memory.value) == '\'64GB\' is not a quantity of memory such as "512Mi" or "2Gi"'


@given(st.integers(min_value=0, max_value=10**9))
def test_milli_cpus_survive_being_written(milli: int) -> None:
    assert parse_milli(f"{milli}m") == milli


@given(st.text(max_size=20))
def test_no_text_does_worse_than_bad_quantity(text: str) -> None:
    try:
        assert parse_milli(text) >= 0
        assert parse_bytes(text) >= 0
    except BadQuantity:
        pass
