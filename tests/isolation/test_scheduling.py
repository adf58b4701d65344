"""Which scheduling class a container has, what a thread should have by it, and which threads are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.isolation.model import IsolatedContainer
from cri_proxy.isolation.scheduling import (
    FLAGS,
    IO_CLASSES,
    NICE,
    POLICIES,
    REALTIME,
    Attributes,
    CpuAttributes,
    IoAttributes,
    SchedulingClass,
    SchedulingSection,
    decide,
    read_attributes,
    read_class,
    settings,
    threads_parts,
    unknown_classes,
    write_attributes,
    write_class,
)
from policies.model import PlacementPreferences, Qos
from tests.scenes import make_container, make_pod

NAMES = ("asked", "balloon", "namespace", "qos", "Burstable", "batch")
SECTION = SchedulingSection(
    {name: SchedulingClass(nice=number) for number, name in enumerate(NAMES)},
    {"ci": "namespace"},
    {"burstable": "qos"},
)


def seen(**preferences: str) -> IsolatedContainer:
    pod, asked = replace(make_pod("p"), namespace="ci"), PlacementPreferences(**preferences)
    container = make_container("c", 2, qos=Qos.BURSTABLE, pod=pod, preferences=asked)
    return IsolatedContainer("key", "ci/p/c", "batch", "", frozenset((0,)), container=container, balloon="b")


def test_annotation_then_balloon_then_namespace_then_qos_then_the_names_of_classes() -> None:
    classes, found = dict(SECTION.classes), []
    while classes:
        section = replace(SECTION, classes=classes)
        name = section.class_of(seen(scheduling_class="asked"), "balloon")
        assert name is not None
        found.append(name)
        del classes[name]
    assert found == [*NAMES]


def test_words_of_a_plugin_count_before_any_class_and_a_pod_without_a_cgroup_has_none() -> None:
    one = [seen()]
    (setting,) = settings(one, {"key": "/kubepods/p"}, SECTION)
    assert (setting.value, threads_parts(setting.place)) == ("nice=2", ("/kubepods/p", "key", "nice=2"))
    assert setting.why == "ci/p/c is of the scheduling class namespace"
    (setting,) = settings([replace(one[0], scheduling="idle")], {"key": "/kubepods/p"}, SECTION)
    assert setting.value == "idle"
    assert settings(one, {}, SECTION) == []


def test_a_class_that_is_not_configured_is_named_once() -> None:
    asked = [seen(scheduling_class="x"), seen(scheduling_class="x")]
    (sentence,) = unknown_classes(asked, SECTION, ["", "qos"])
    assert sentence.startswith('the scheduling class "x" is not configured: ')


# ---------------------------------------------------------------------- laws

_times = st.integers(1, 1000)
_flags = st.frozensets(st.just("reset-on-fork"))
cpus = st.one_of(
    st.builds(CpuAttributes, st.sampled_from(NICE), st.integers(-20, 19), flags=_flags),
    st.builds(CpuAttributes, st.sampled_from(REALTIME), priority=st.integers(1, 99)),
    st.builds(CpuAttributes, st.just("deadline"), runtime=_times, deadline=_times, period=_times),
)  # fmt: skip
ios = st.one_of(
    st.builds(IoAttributes, st.sampled_from(["rt", "be"]), st.integers(0, 7)),
    st.builds(IoAttributes, st.sampled_from(["none", "idle"])),
)
attributes = st.builds(Attributes, cpus, ios)
numbers = st.none() | st.integers(0, 19)
classes = st.builds(
    SchedulingClass,
    st.none() | st.sampled_from([*POLICIES]),
    numbers, numbers, numbers, numbers, numbers,
    st.frozensets(st.sampled_from([*FLAGS, "keep-policy", "keep-params"])),
    st.none() | st.sampled_from([*IO_CLASSES]),
    st.none() | st.integers(0, 7),
)  # fmt: skip


@given(classes, attributes)
def test_what_is_written_reads_back(cls: SchedulingClass, had: Attributes) -> None:
    again = read_class(write_class(cls))
    assert again.over(had) == cls.over(had)
    assert read_attributes(write_attributes(had)) == had


@given(classes, attributes, attributes)
def test_a_thread_that_was_set_is_right_and_comes_back_to_what_it_had(
    cls: SchedulingClass, began: Attributes, other: Attributes
) -> None:
    wanted = cls.over(began)
    for had in (began, other):
        found = decide(had, wanted, (began,))
        now = Attributes(found.cpu or had.cpu, found.io or had.io)
        again = decide(now, wanted, (began,))
        assert (again.cpu, again.is_own) == (None, found.is_own)
        if had == began:
            assert not found.is_own
            back = decide(now, began, (wanted,))
            assert (back.cpu or now.cpu) == began.cpu


@pytest.mark.parametrize(
    ("had", "io"),
    [
        (CpuAttributes(nice=5), IoAttributes("be", 5)),
        (CpuAttributes("idle", 3), IoAttributes("idle")),
        (CpuAttributes("fifo", priority=3), IoAttributes("rt", 4)),
    ],
)
def test_an_io_priority_that_the_kernel_derives_is_none_of_the_programs(
    had: CpuAttributes, io: IoAttributes
) -> None:
    """Some kernels tell it where a thread has none."""
    wanted = Attributes(had, IoAttributes("be", 7))
    assert decide(Attributes(had, io), wanted, (Attributes(),)).io == wanted.io
