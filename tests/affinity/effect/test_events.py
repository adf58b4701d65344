"""The events of each CPU: by family and model, as their sources have them."""

from __future__ import annotations

import pytest

from cri_proxy.affinity.effect.events import (
    HYGON_1,
    TYPE_HARDWARE,
    TYPE_RAW,
    ZEN_1,
    ZEN_2,
    ZEN_3,
    ZEN_4,
    ZEN_5,
    CpuModel,
    EventSet,
    events_of,
    misses_of,
)

KNOWN = {
    "EPYC 7601": (CpuModel("AuthenticAMD", 0x17, 0x01), ZEN_1),
    "Ryzen 2700": (CpuModel("AuthenticAMD", 0x17, 0x08), ZEN_1),
    "EPYC 7742": (CpuModel("AuthenticAMD", 0x17, 0x31), ZEN_2),
    "Ryzen 3900": (CpuModel("AuthenticAMD", 0x17, 0x71), ZEN_2),
    "Hygon 7285": (CpuModel("HygonGenuine", 0x18, 0x01), HYGON_1),
    "EPYC 7763": (CpuModel("AuthenticAMD", 0x19, 0x01), ZEN_3),
    "Ryzen 5900": (CpuModel("AuthenticAMD", 0x19, 0x21), ZEN_3),
    "EPYC 9654": (CpuModel("AuthenticAMD", 0x19, 0x11), ZEN_4),
    "EPYC 9754": (CpuModel("AuthenticAMD", 0x19, 0xA0), ZEN_4),
    "EPYC 9755": (CpuModel("AuthenticAMD", 0x1A, 0x02), ZEN_5),
}
NOT_KNOWN = {
    "a Hygon of a later generation": CpuModel("HygonGenuine", 0x18, 0x04),
    "Zen 6": CpuModel("AuthenticAMD", 0x1A, 0x50),
    "an Intel": CpuModel("GenuineIntel", 6, 0x8F),
    "no /proc/cpuinfo": CpuModel(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_cpu_has_the_events_of_its_generation(name: str) -> None:
    cpu, events = KNOWN[name]
    assert events_of(cpu) is events


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_a_cpu_that_is_not_in_the_table_has_none(name: str) -> None:
    assert events_of(NOT_KNOWN[name]) is None


@pytest.mark.parametrize("events", [ZEN_1, HYGON_1, ZEN_2, ZEN_3, ZEN_4, ZEN_5], ids=lambda e: e.cpu)
def test_fills_from_the_own_l3_and_own_memory_are_never_counted(events: EventSet) -> None:
    """Unit masks of PMCx043: 0x01 own L2, 0x02 own L3, 0x08 own node's memory."""
    for event in events.events:
        assert event.config & 0xFF == 0x43
        assert event.config >> 8 & 0x0B == 0
        assert event.source


def test_where_a_near_l3_cannot_be_told_from_the_own_that_is_said() -> None:
    for events in (ZEN_1, HYGON_1, ZEN_2):
        assert "do not show" in events.unseen
        assert all(event.config >> 8 & 0x04 == 0 for event in events.events)
        assert "another L3" not in " ".join(event.words for event in events.events)
    for events in (ZEN_3, ZEN_4, ZEN_5):
        assert events.unseen == ""
        assert [event.config for event in events.events] == [0x1443, 0x4043]


# ---------------------------------------------------------------------- misses of the L3


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name", "type_"),
    [
        ("HygonGenuine", 24, 1, "memory", TYPE_RAW),
        ("AuthenticAMD", 25, 0x11, "memory", TYPE_RAW),
        ("HygonGenuine", 24, 6, "cycles", TYPE_HARDWARE),
        ("AuthenticAMD", 99, 1, "cycles", TYPE_HARDWARE),
        ("GenuineIntel", 6, 143, "cache_misses", TYPE_HARDWARE),
        ("", 0, 0, "cache_misses", TYPE_HARDWARE),
    ],
)
def test_every_cpu_has_an_event_that_tells_a_neighbour_in_the_l3(vendor, family, model, name, type_) -> None:
    events = misses_of(CpuModel(vendor, family, model))
    assert [(event.name, event.type) for event in events.events] == [(name, type_)]
    assert events.base.type == type_ and events.base.name == "instructions"


def test_fills_from_memory_are_those_from_near_and_far() -> None:
    (event,) = misses_of(CpuModel("HygonGenuine", 24, 1)).events
    assert event.config == 0x4843
