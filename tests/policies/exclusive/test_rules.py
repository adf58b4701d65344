"""Who owns CPUs: the table of the topology-aware policies, row by row, and what annotations make of it."""

from __future__ import annotations

from typing import Optional

import pytest

from policies.exclusive.place import CpuDemand, ask_of
from policies.model import PlacementPreferences, Qos
from policies.settings import PlacementSettings
from tests.scenes import HYGON, TOPOLOGY_AWARE, Number, make_container, make_pod

G, B, E = Qos.GUARANTEED, Qos.BURSTABLE, Qos.BESTEFFORT
NOTHING = PlacementPreferences()
PREFER_SHARED = PlacementSettings(ownership="exclusive", prefer_shared=True)
NO_ISOLATED = PlacementSettings(ownership="exclusive", prefer_isolated=False)


def shared(milli: int) -> CpuDemand:
    return CpuDemand(milli_shared=milli)


#: (row, QoS, CPU request, wishes, settings) -> what it is to get.
ROWS = [
    (
        "1: prefers reserved",
        G,
        2,
        PlacementPreferences(reserved=True),
        TOPOLOGY_AWARE,
        CpuDemand(0, 2000, True),
    ),
    (
        "1: Burstable prefers reserved",
        B,
        0.1,
        PlacementPreferences(reserved=True),
        TOPOLOGY_AWARE,
        CpuDemand(0, 100, True),
    ),
    ("3: Burstable", B, 3, NOTHING, TOPOLOGY_AWARE, shared(3000)),
    ("4: BestEffort", E, None, NOTHING, TOPOLOGY_AWARE, shared(0)),
    ("5: Guaranteed below one", G, 0.999, NOTHING, TOPOLOGY_AWARE, shared(999)),
    ("6: Guaranteed one", G, 1, NOTHING, TOPOLOGY_AWARE, CpuDemand(1, 0, isolated="prefer")),
    ("6: isolated not preferred", G, 1, NOTHING, NO_ISOLATED, CpuDemand(1, 0)),
    ("6: isolated refused", G, 1, PlacementPreferences(isolated="avoid"), TOPOLOGY_AWARE, CpuDemand(1, 0)),
    ("6: annotated shared", G, 1, PlacementPreferences(ownership="shared"), TOPOLOGY_AWARE, shared(1000)),
    (
        "6: shared preferred by config does not count",
        G,
        1,
        NOTHING,
        PREFER_SHARED,
        CpuDemand(1, 0, isolated="prefer"),
    ),
    ("7: one and a half", G, 1.5, NOTHING, TOPOLOGY_AWARE, CpuDemand(1, 500, isolated="prefer")),
    ("7: shared preferred by config", G, 1.5, NOTHING, PREFER_SHARED, shared(1500)),
    ("7: annotated shared", G, 1.5, PlacementPreferences(ownership="shared"), TOPOLOGY_AWARE, shared(1500)),
    ("8: two", G, 2, NOTHING, TOPOLOGY_AWARE, CpuDemand(2, 0)),
    (
        "8: isolated if annotated",
        G,
        2,
        PlacementPreferences(isolated="prefer"),
        TOPOLOGY_AWARE,
        CpuDemand(2, 0, isolated="prefer"),
    ),
    ("8: annotated shared", G, 4, PlacementPreferences(ownership="shared"), TOPOLOGY_AWARE, shared(4000)),
    ("9: two and a half", G, 2.5, NOTHING, TOPOLOGY_AWARE, shared(2500)),
    (
        "9: annotated exclusive",
        G,
        2.5,
        PlacementPreferences(ownership="exclusive"),
        TOPOLOGY_AWARE,
        CpuDemand(2, 500),
    ),
    (
        "strictly isolated",
        G,
        2,
        PlacementPreferences(isolated="require"),
        TOPOLOGY_AWARE,
        CpuDemand(2, 0, isolated="require"),
    ),
    (
        "Burstable that asks",
        B,
        2.5,
        PlacementPreferences(ownership="exclusive"),
        TOPOLOGY_AWARE,
        CpuDemand(2, 500),
    ),
    ("a whole L3 is owned", B, 2, PlacementPreferences(l3="exclusive"), HYGON, CpuDemand(2, 0)),
    ("hygon: two", G, 2, NOTHING, HYGON, shared(2000)),
    ("hygon: two, asked for", G, 2, PlacementPreferences(ownership="exclusive"), HYGON, CpuDemand(2, 0)),
    (
        "hygon: isolated demanded",
        G,
        1,
        PlacementPreferences(isolated="require"),
        HYGON,
        CpuDemand(1, 0, isolated="require"),
    ),
    ("nothing to own below one CPU", G, 0.5, PlacementPreferences(ownership="exclusive"), HYGON, shared(500)),
]


@pytest.mark.parametrize(
    ("qos", "request_cpus", "preferences", "settings", "expected"),
    [r[1:] for r in ROWS],
    ids=[r[0] for r in ROWS],
)
def test_who_gets_what(
    qos: Qos,
    request_cpus: Optional[Number],
    preferences: PlacementPreferences,
    settings: PlacementSettings,
    expected: CpuDemand,
) -> None:
    limit = request_cpus if qos is G else None
    container = make_container("app", limit=limit, request=request_cpus, qos=qos, preferences=preferences)
    assert ask_of(container, settings) == expected


@pytest.mark.parametrize(
    ("reserved", "has_reserved", "expected"),
    [
        (None, True, CpuDemand(0, 2000, True)),
        (False, True, CpuDemand(2, 0)),
        (None, False, CpuDemand(2, 0)),
        (True, False, CpuDemand(0, 2000, True)),
    ],
    ids=["row 2", "row 2: opted out", "no reserved CPUs: like others", "asks for them all the same"],
)
def test_a_reserved_namespace(reserved: Optional[bool], has_reserved: bool, expected: CpuDemand) -> None:
    pod = make_pod("dns", namespace="kube-system")
    container = make_container(
        "dns", limit=2, qos=G, pod=pod, preferences=PlacementPreferences(reserved=reserved)
    )
    assert ask_of(container, TOPOLOGY_AWARE, has_reserved) == expected
