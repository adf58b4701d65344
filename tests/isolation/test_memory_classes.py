"""What containers have of memory by their class, and that no more is kept for them than there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.isolation.memory_classes import (
    HIGH,
    LOW,
    MIN,
    SWAP_MAX,
    UNIFIED,
    Amount,
    MemoryCgroup,
    MemoryClass,
    MemoryParent,
    MemorySection,
    memory_settings,
    memory_wishes,
    read_amount,
    within,
)
from cri_proxy.isolation.model import BATCH, PROTECTED, STANDARD, IsolatedContainer, Setting
from cri_proxy.isolation.notes import MOST, some
from policies.model import PlacementPreferences, Qos
from tests.scenes import make_container, make_pod

GIB = 1 << 30
POD = "/kubepods/burstable/pod"
NOTHING = {HIGH: "max", LOW: "0", MIN: "0", SWAP_MAX: "max"}
SECTION = MemorySection(
    (
        MemoryClass("batch", high=Amount(part=0.5), swap_max=Amount()),
        MemoryClass("gold", low=Amount(part=1.0), min=Amount(size_bytes=GIB)),
    ),
    (HIGH, LOW),
)


def container(
    cls: str = STANDARD,
    memory: int = 4,
    asked: str = "",
    annotations: Optional[Mapping[str, str]] = None,
    key: str = "k",
    qos: Qos = Qos.BURSTABLE,
) -> IsolatedContainer:
    preferences = PlacementPreferences(memory_class=asked)
    pod = make_pod("p", annotations=annotations)
    described = make_container("app", 1, pod=pod, qos=qos, memory=memory, preferences=preferences)
    return IsolatedContainer(key, f"default/p/{key}", cls, "", frozenset(), container=described)


def cgroup(
    key: str = "k", before: Mapping[str, str] = {}, now: Mapping[str, str] = {}, used_bytes: int = 0
) -> MemoryCgroup:
    found = {**NOTHING, **before}
    files = {name: f"{POD}/{key}/{name}" for name in UNIFIED}
    return MemoryCgroup(f"{POD}/{key}", files, found, {**found, **now}, used_bytes)


def settings(
    containers: Sequence[tuple[IsolatedContainer, MemoryCgroup]],
    parents: Sequence[MemoryParent],
    section: MemorySection,
    promised_bytes: int,
) -> tuple[list[Setting], list[str]]:
    notes: list[str] = []
    wishes = memory_wishes([each for each, _ in containers], section, notes)
    wanted = [(each, wishes[each.key], there) for each, there in containers if each.key in wishes]
    return memory_settings(wanted, parents, promised_bytes, notes), notes


def values(
    each: IsolatedContainer,
    there: Optional[MemoryCgroup] = None,
    section: MemorySection = SECTION,
    promised_bytes: int = 1 << 40,
) -> tuple[dict[str, str], list[str]]:
    found, notes = settings([(each, there or cgroup())], (), section, promised_bytes)
    return {one.place.rpartition("/")[2]: one.value for one in found}, notes


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (container(BATCH), {HIGH: str(2 * GIB), SWAP_MAX: "max"}),
        (container(STANDARD), {}),
        (container(STANDARD, asked="gold"), {LOW: str(4 * GIB), MIN: str(GIB)}),
        (container(annotations={"class.memory-qos.nri.io": "gold"}), {LOW: str(4 * GIB), MIN: str(GIB)}),
        (
            container(annotations={"class.memory-qos.nri.io": "batch", "class.memory-qos.nri.io/app": "gold"}),
            {LOW: str(4 * GIB), MIN: str(GIB)},
        ),
        (container(PROTECTED), {LOW: str(4 * GIB)}),
        (container(BATCH, annotations={"memory.high.memory-qos.nri.io/app": "1Gi"}), {HIGH: str(GIB), SWAP_MAX: "max"}),
        (container(annotations={"memory.low.memory-qos.nri.io": "10737418240"}), {LOW: str(4 * GIB)}),
        (container(annotations={"memory.high.memory-qos.nri.io/other": "1Gi"}), {}),
    ],
)  # fmt: skip
def test_a_container_has_what_its_annotations_its_class_or_what_it_is_to_others_says(
    each: IsolatedContainer, wanted: dict[str, str]
) -> None:
    assert values(each) == (wanted, [])


@pytest.mark.parametrize(
    ("each", "note"),
    [
        (container(asked="x"), 'the memory class "x" is not configured: its containers are treated as if they did not '
         "ask for it"),
        (container(annotations={"memory.min.memory-qos.nri.io": "1"}), 'default/p/k: the annotation '
         '"memory.min.memory-qos.nri.io" is not allowed by unifiedannotations of control.memory'),
        (container(annotations={"memory.low.memory-qos.nri.io": "much"}), 'default/p/k: the annotation '
         '"memory.low.memory-qos.nri.io" is "much", expected a percentage such as "80%", memory such as "512Mi", or max'),
        (container(BATCH, memory=0), "default/p/k has no memory limit, and the high of its class batch is a part of that"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_a_note_and_the_rest_counts(each: IsolatedContainer, note: str) -> None:
    assert values(each)[1] == [note]


def test_what_the_runtime_has_set_itself_is_not_made_less() -> None:
    kubelets = cgroup(before={HIGH: str(3 * GIB), MIN: str(2 * GIB)})
    assert values(container(BATCH), kubelets)[0] == {SWAP_MAX: "max"}
    assert values(container(asked="gold"), kubelets)[0] == {LOW: str(4 * GIB)}


def test_a_container_that_uses_more_than_its_high_gets_it_when_it_uses_less() -> None:
    found, (note,) = values(container(BATCH), cgroup(used_bytes=3 * GIB))
    assert found == {SWAP_MAX: "max"} and note.endswith(
        f"it gets its memory.high of {2 * GIB} when it uses less"
    )
    # What is there already stays, and so does a smaller one.
    there = cgroup(now={HIGH: str(2 * GIB)}, used_bytes=3 * GIB)
    assert values(container(BATCH), there) == ({HIGH: str(2 * GIB), SWAP_MAX: "max"}, [])
    lower = cgroup(now={HIGH: str(GIB)}, used_bytes=3 * GIB)
    assert values(container(BATCH), lower)[0][HIGH] == str(2 * GIB)
    higher = cgroup(now={HIGH: str(3 * GIB)}, used_bytes=3 * GIB)
    assert values(container(BATCH), higher)[0][HIGH] == str(3 * GIB)


def test_what_is_kept_below_is_kept_above_and_never_less_than_kubelet_has_written_there() -> None:
    parents = [
        MemoryParent(
            "/kubepods", {LOW: "/kubepods/low", MIN: "/kubepods/min"}, {LOW: "0", MIN: str(9 * GIB)}
        ),
        MemoryParent(POD, {LOW: "/pod/low"}, {LOW: "0"}),
        MemoryParent("/kubepods/burstable/pod2", {LOW: "/pod2/low"}, {LOW: "0"}),
    ]
    both = [(container(asked="gold", key=key), cgroup(key)) for key in ("a", "b")]
    found, _ = settings(both, parents, SECTION, 1 << 40)
    above = {each.place[len("file:") :]: each.value for each in found if POD + "/" not in each.place}
    assert above == {"/kubepods/low": str(8 * GIB), "/pod/low": str(8 * GIB)}


def test_more_than_the_node_can_promise_is_less_for_all_with_a_note() -> None:
    both = [(container(PROTECTED, key=key, memory=size), cgroup(key)) for key, size in (("a", 4), ("b", 8))]
    found, (note,) = settings(both, (), MemorySection(), 6 * GIB)
    assert [int(each.value) // GIB for each in found] == [2, 4]
    assert note == (
        f"containers ask to keep {12 * GIB} bytes of memory, and the node can promise {6 * GIB}: each keeps less, in "
        "proportion"
    )


def test_files_that_are_not_there_are_one_note_each() -> None:
    nothing = replace(cgroup(), files={SWAP_MAX: f"/{SWAP_MAX}"})
    found, notes = values(container(BATCH), nothing)
    assert found == {SWAP_MAX: "max"}
    assert notes == [f"{HIGH} is not there on this node: cgroup v1 has no such file"]


BYTES = st.integers(0, 1 << 44)


@given(
    wanted=st.dictionaries(st.sampled_from("abcdef"), st.tuples(BYTES, BYTES), min_size=1),
    floors=st.lists(st.tuples(BYTES, BYTES), min_size=6, max_size=6),
    promised_bytes=BYTES,
)
def test_no_more_is_kept_than_is_promised_and_nothing_is_less_than_what_was_there(
    wanted: dict[str, tuple[int, int]], floors: list[tuple[int, int]], promised_bytes: int
) -> None:
    there = dict(zip(wanted, floors))
    kept = within(wanted, there, promised_bytes)
    assert sum(map(max, kept.values())) <= max(promised_bytes, sum(map(max, there.values())))
    for key, (least, low) in kept.items():
        assert there[key][0] <= least <= max(wanted[key][0], there[key][0])
        assert there[key][1] <= low <= max(wanted[key][1], there[key][1])


@given(wanted=st.dictionaries(st.sampled_from("abcdef"), st.tuples(BYTES, BYTES), min_size=1))
def test_what_can_be_promised_is_as_it_is_asked(wanted: dict[str, tuple[int, int]]) -> None:
    none = dict.fromkeys(wanted, (0, 0))
    assert within(wanted, none, sum(map(max, wanted.values()))) == within(wanted, none, None) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("max", Amount()), ("80%", Amount(part=0.8)), ("1Gi", Amount(GIB)), (" 0 ", Amount(0)), ("0.5%", Amount(part=0.005))],
)  # fmt: skip
def test_an_amount_is_a_part_or_bytes_or_everything(text: str, wanted: Amount) -> None:
    assert read_amount(text) == wanted


@pytest.mark.parametrize("text", ["", "101%", "-1%", "nan%", "inf%", "lots", "%", "1_0%"])
def test_other_texts_are_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="a percentage such as"):
        read_amount(text)


def test_of_many_sentences_some_are_told() -> None:
    assert some(["a", "b", "a"]) == ("a", "b")
    assert some(map(str, range(MOST + 2))) == (*map(str, range(MOST)), "and 2 more like these")
