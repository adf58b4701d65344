"""The ``rdt`` section on machines: masks and bandwidth of classes, and a sentence where they cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.isolation.model import EIGHTHS, PREFIX, BandwidthInfo, CacheInfo, ResctrlInfo
from cri_proxy.isolation.rdt import (
    ROOT_CLASS,
    Allocations,
    Partition,
    RdtSection,
    read_ids,
    read_limit,
    read_portion,
)
from policies.model import Qos
from tests.isolation.rdt_machines import (
    CASES,
    IN_MBPS,
    IN_PERCENT,
    as_the_kernel_takes,
    described,
    machine,
    resolved,
)

WAYS_11 = CacheInfo(0x7FF)
ONE_CACHE = machine(l3=WAYS_11, ids=(0,))
#: Zen's, as the kernel shows it: no least, no step, no limit at 2048.
ZEN = BandwidthInfo(minimum=1, step=1, no_limit=2048, unit=EIGHTHS)


def masks(document: dict[str, Any], info: ResctrlInfo = ONE_CACHE) -> dict[str, str]:
    """The mask of the first L3 by class."""
    found = resolved(document, info)
    assert found.errors == ()
    return {name: one.schemata["L3"][0] for name, one in found.classes.items() if one.schemata}


def errors(document: dict[str, Any], info: ResctrlInfo = ONE_CACHE) -> tuple[str, ...]:
    found = resolved(document, info)
    assert found.errors == () or not found.classes
    return found.errors


def of_l3(*partitions: Any, classes: Any = None) -> dict[str, Any]:
    """A section with these L3 allocations, of partitions a, b, ..., the first with classes."""
    named = {name: {"l3Allocation": each, "classes": {}} for name, each in zip("abcdef", partitions)}
    named["a"]["classes"] = {
        name: {"l3Allocation": each} for name, each in (classes or {"c": "100%"}).items()
    }
    return {"partitions": named}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_section_gives_the_schemata_that_it_gives_with_goresctrl(case: dict[str, Any]) -> None:
    info = described(case["machine"])
    found = resolved(case["section"], info)
    assert found.errors == ()
    assert {one.group: one.schemata for one in found.classes.values() if one.schemata} == {
        group: as_the_kernel_takes("\n".join(lines), info) for group, lines in case["schemata"].items()
    }


# ---------------------------------------------------------------- what cannot be had

REFUSALS = {
    "more than all": (of_l3("60%", "50%"), "L3 cache id 0: partitions have 110% together, expected at most 100%"),
    "a partition that says nothing beside one that does": (
        {"partitions": {"a": {"l3Allocation": "50%"}, "b": {}}},
        'L3 cache id 0: unified is not said for "b", expected it for every partition or for none',
    ),
    "code and data of one partition only": (
        of_l3({"all": {"unified": "50%", "code": "50%", "data": "50%"}}, "50%"),
        'L3 cache id 0: code is not said for "b", expected it for every partition or for none',
    ),
    "masks that overlap": (
        of_l3("0xf", "3-6"),
        'L3 cache id 0: partition "b" has "3-6", expected bits that no other partition has',
    ),
    "a mask beside a percentage": (
        of_l3("50%", "0xf"),
        'L3 cache id 0: partition "a" has "50%", expected a mask as other partitions have it, or percentages for all',
    ),
    "a mask beyond the cache": (of_l3("8-11"), 'L3 cache id 0: partition "a" has "8-11", expected bits of 0x7ff'),
    "a range of percentages for a partition": (
        of_l3("20-50%"),
        'L3 cache id 0: partition "a" has "20-50%", expected one percentage or a mask for a partition',
    ),
    "percentages that are no bits": (
        of_l3("5%", "3%"),
        "L3 cache id 0: 8% of 11 bits are 0, expected 1 or more for each of 2 partitions",
    ),
    "nothing at all for everything": (
        of_l3("0%"),
        "L3 cache id 0: 0% of 11 bits are 0, expected 1 or more for each of 1 partitions",
    ),
    "a class's mask beyond its partition": (
        of_l3("0-3", classes={"c": "0x18"}),
        'L3 of class "c" in cache id 0 is "0x18", expected bits that are among the 4 bits of its partition (0xf)',
    ),
    "a level that is not there": (
        {"partitions": {"a": {"l2Allocation": "50%", "classes": {"c": {"l2Allocation": "50%"}}}}},
        'class "c" has L2, which this kernel does not divide, expected options.l2.optional: true for such machines',
    ),
    "bandwidth that is not there": (
        {"partitions": {"a": {"mbAllocation": ["50%"], "classes": {"c": {"mbAllocation": ["50%"]}}}}},
        'class "c" has MB, which this kernel does not divide, expected options.mb.optional: true for such machines',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("document", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_had_is_one_sentence_and_no_class_is_there(
    document: dict[str, Any], sentence: str
) -> None:
    assert errors(document) == (sentence,)


def test_every_class_that_cannot_be_had_has_its_own_sentence() -> None:
    found = errors(of_l3("0-3", classes={"c": "0x18", "d": "4", "e": "50%"}))
    assert [sentence.partition(" in ")[0] for sentence in found] == ['L3 of class "c"', 'L3 of class "d"']


def test_masks_with_too_few_bits_for_the_hardware_are_named() -> None:
    info = machine(l3=CacheInfo(0x7FF, min_bits=2), ids=(0,))
    assert errors(of_l3("3"), info) == ('L3 of partition "a" is "3", expected at least 2 bits',)
    assert errors(of_l3("0-5", classes={"c": "0x1"}), info) == (
        'L3 of class "c" is "0x1", expected at least 2 bits',
    )


def test_the_unit_that_the_kernel_counts_in_must_be_said() -> None:
    said = {
        "partitions": {"a": {"mbAllocation": ["50%"], "classes": {"c": {"mbAllocation": ["70%", "5MBps"]}}}}
    }
    assert errors(said, machine(bandwidth=IN_MBPS)) == (
        'MB of partition "a" has no rate in MBps, expected one, as this kernel counts in MB/s',
    )
    said["partitions"]["a"] = {"mbAllocation": ["50%"], "classes": {"c": {"mbAllocation": ["5MBps"]}}}
    assert errors(said, machine(bandwidth=IN_PERCENT)) == (
        'MB of class "c" has no percentage, expected one, as this kernel counts in percent',
    )


# ---------------------------------------------------------------- what goresctrl does not know


def test_a_kernel_that_names_no_least_number_of_bits_is_given_one_bit() -> None:
    info = machine(l3=CacheInfo(0x7FF, min_bits=0), ids=(0,))
    assert masks(of_l3("0%", "100%"), info) == {"c": "1"}


def test_units_of_bandwidth_are_had_from_the_rate_else_from_the_percentage() -> None:
    limits = {
        "a rate": ["50%", "4000MBps"],
        "a percentage": ["50%"],
        "neither": None,
        "none": ["0%"],
        "a rate beyond its partition's": ["1000000MBps"],
    }
    classes = {name: {"mbAllocation": limit} if limit else {} for name, limit in limits.items()}
    document = {"partitions": {"p": {"mbAllocation": ["100%", "20000MBps"], "classes": classes}}}
    found = resolved(document, machine(bandwidth=ZEN, ids=(3,)))
    assert {name: one.schemata["MB"][3] for name, one in found.classes.items() if one.schemata} == {
        "a rate": "32",  # eighths of GB/s
        "a percentage": "220",  # of what a CCX can have
        "neither": "160",
        "none": "1",
        "a rate beyond its partition's": "160",
    }


def test_a_section_without_limits_leaves_a_kernel_of_units_unlimited() -> None:
    found = resolved({"partitions": {"p": {"classes": {"c": {}}}}}, machine(bandwidth=ZEN, ids=(3,)))
    assert found.classes["c"].schemata == {"MB": {3: "2048"}}


def test_the_group_of_a_class_is_never_that_of_batch_containers() -> None:
    found = resolved(
        of_l3("100%", classes={"batch": "10%", "other": "10%", ROOT_CLASS: "10%"}), machine(l3=WAYS_11)
    )
    groups = {name: one.group for name, one in found.classes.items()}
    assert groups == {"batch": f"{PREFIX}rdt.batch", "other": f"{PREFIX}other", ROOT_CLASS: ""}


def test_the_class_of_the_root_group_may_be_asked_for_where_none_is_configured() -> None:
    assert resolved(of_l3("50%"), machine(l3=WAYS_11)).classes[ROOT_CLASS].schemata == {}
    assert resolved({"partitions": {}}, machine(l3=WAYS_11)).classes == {}


# ---------------------------------------------------------------- the class of a container

WITH_GUARANTEED = {"p": Partition(classes={"Guaranteed": Allocations(), "gold": Allocations()})}


@pytest.mark.parametrize(
    ("by_qos", "asked", "qos", "name"),
    [
        (False, "", Qos.GUARANTEED, ""),
        (False, "gold", Qos.GUARANTEED, "gold"),
        (True, "", Qos.GUARANTEED, "Guaranteed"),
        (True, "gold", Qos.GUARANTEED, "gold"),
        (True, "", Qos.BESTEFFORT, ""),
        (True, "silver", Qos.GUARANTEED, ""),
        (False, ROOT_CLASS, Qos.GUARANTEED, ROOT_CLASS),
    ],
)
def test_a_container_has_the_class_it_asks_for_else_by_its_qos_class_where_that_is_configured(
    by_qos: bool, asked: str, qos: Qos, name: str
) -> None:
    assert RdtSection(WITH_GUARANTEED, by_qos=by_qos).class_of(asked, qos) == name


def test_a_section_that_is_off_has_no_class_for_a_container_that_asks() -> None:
    assert RdtSection().class_of("gold", Qos.GUARANTEED) == ""


# ---------------------------------------------------------------- values

BAD_PORTIONS = {
    "": "a percentage",
    "64": "a percentage",
    "101%": "percentages up to 100, the lower one first",
    "60-20%": "percentages up to 100, the lower one first",
    "x%": "a percentage",
    "0xg": "a percentage",
    "3-3": "a percentage",
    "0x0": "bits in one block, at least one",
    "0x5": "bits in one block, at least one",
    "0,2": "bits in one block, at least one",
}


@pytest.mark.parametrize(("text", "expected"), BAD_PORTIONS.items())
def test_a_part_of_a_cache_that_is_none_says_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_portion(text)


@pytest.mark.parametrize(
    ("text", "mask"), [("0xff0", 0xFF0), ("4-7", 0xF0), ("3", 8), ("1,0,2-3", 0xF), ("63", 1 << 63)]
)
def test_a_mask_is_written_as_it_is_or_by_the_numbers_of_its_bits(text: str, mask: int) -> None:
    assert read_portion(text).mask == mask


@pytest.mark.parametrize(("text", "ids"), [("0", (0,)), ("0,2,4-7", (0, 2, 4, 5, 6, 7)), ("1023", (1023,))])
def test_cache_ids_are_a_list_of_numbers_and_ranges(text: str, ids: tuple[int, ...]) -> None:
    assert read_ids(text) == ids


@pytest.mark.parametrize("text", ["", "-1", "a", "7-4", "1024", "0-9999", "1,,2"])
def test_a_list_of_cache_ids_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cache ids|a range that rises|numbers up to 1023"):
        read_ids(text)


def test_of_a_bandwidth_the_first_text_of_each_unit_counts_and_others_are_told() -> None:
    limit, others = read_limit(["1GBps", "50%", "70%", "1000MBps"])
    assert (limit.percent, limit.mbps, others) == (50, 1000, ("1GBps",))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], "a list of a percentage"),
        (["5"], "a list of a percentage"),
        (["101%"], "at most 100%"),
        (["4294967296MBps"], "at most 4294967295MBps"),
    ],
)
def test_a_bandwidth_that_is_none_says_what_was_expected(texts: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_limit(texts)
