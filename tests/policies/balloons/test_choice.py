"""Which type a container is of, and which balloon of it the container joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from policies.balloons.choice import TypeChooser, group_of
from policies.balloons.types import BalloonSettings, BalloonType, all_types
from policies.model import Container, MatchExpression, PlacementPreferences
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.policies.balloons.test_policy import Pools, asks
from tests.scenes import Number

LABELLED = MatchExpression("labels/tier", "Equals", ("gold",))
TYPES = (
    BalloonType("gold", match=(MatchExpression("pod/labels/tier", "Equals", ("gold",)), LABELLED)),
    BalloonType("prod", namespaces=("prod-*",)),
    BalloonType("late", namespaces=("prod-late", "other")),
)
DB = BalloonType("db", namespaces=("db", "db-*"))

# ---------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        pytest.param(asks("a", 1, "prod-x"), "prod", id="by namespace glob"),
        pytest.param(asks("a", 1, "prod-late"), "prod", id="the first type that matches"),
        pytest.param(asks("a", 1, "x", labels={"tier": "gold"}), "gold", id="by match expression"),
        pytest.param(
            asks("a", 1, "prod-x", preferences=PlacementPreferences(balloon="late")),
            "late",
            id="annotation first",
        ),
        pytest.param(asks("a", 1, "kube-system"), "reserved", id="reserved namespace"),
        pytest.param(
            asks("a", 1, "prod-x", preferences=PlacementPreferences(reserved=True)),
            "reserved",
            id="reserved by wish",
        ),
        pytest.param(
            asks("a", 1, "kube-system", preferences=PlacementPreferences(reserved=False)),
            "default",
            id="not reserved",
        ),
        pytest.param(asks("a", 1, "nowhere"), "default", id="who matches nothing"),
    ],
)
def test_the_type_of_a_container(container: Container, kind: str) -> None:
    chooser = TypeChooser(all_types(BalloonSettings(TYPES)), False, ("kube-system",))
    assert chooser.find(container, has_reserved=True).name == kind


def test_without_reserved_cpus_reserved_namespaces_are_like_others() -> None:
    chooser = TypeChooser(all_types(BalloonSettings(TYPES)), False, ("kube-system",))
    assert chooser.find(asks("a", 1, "kube-system"), has_reserved=False).name == "default"


def test_group_by_puts_what_is_known_of_the_container_into_the_text() -> None:
    kind = replace(DB, group_by="${pod/labels/app}-${pod/namespace}${nothing}")
    assert group_of(kind, asks("a", 1, labels={"app": "shop"})) == "shop-db"


# ---------------------------------------------------------------------- balloons

Step = tuple[str, Number, str, Optional[str]]


@pytest.mark.parametrize(
    ("kind", "steps", "groups"),
    [
        pytest.param(
            replace(DB, max_cpus=4),
            [("a", 3, "p", "db"), ("b", 1, "q", "db"), ("c", 1, "r", "db")],
            ["db[0]", "db[0]", "db[1]"],
            id="filled, inflated to MaxCPUs, then a new one",
        ),
        pytest.param(
            replace(DB, prefer_new_balloons=True),
            [("a", 1, "p", "db"), ("b", 1, "q", "db"), ("c", 1, "p", "db")],
            ["db[0]", "db[1]", "db[0]"],
            id="new ones preferred, a pod stays together",
        ),
        pytest.param(
            replace(DB, prefer_new_balloons=True, prefer_spreading_pods=True),
            [("a", 1, "p", "db"), ("b", 1, "p", "db")],
            ["db[0]", "db[1]"],
            id="new ones preferred, a pod is spread",
        ),
        pytest.param(
            replace(DB, max_cpus=2, max_balloons=2, prefer_spreading_pods=True),
            [("a", 2, "p", "db"), ("b", 1, "q", "db"), ("c", 0, "p", "db"), ("d", 0, "q", "db")],
            ["db[0]", "db[1]", "db[1]", "db[0]"],
            id="a pod is spread over the balloons there are",
        ),
        pytest.param(
            replace(DB, prefer_per_namespace_balloon=True),
            [("a", 1, "p", "db"), ("b", 1, "q", "db-x"), ("c", 1, "r", "db"), ("d", 1, "s", "db-x")],
            ["db[0]", "db[1]", "db[0]", "db[1]"],
            id="a namespace has its own",
        ),
        pytest.param(
            replace(DB, group_by="${pod/name}", max_cpus=2),
            [("a", 2, "p", "db"), ("b", 1, "q", "db"), ("c", 1, "p", "db")],
            ["db[0]", "db[1]", "db[0]"],
            id="a group shares one, even if it is too small",
        ),
        pytest.param(
            replace(DB, max_balloons=1, max_cpus=2, prefer_new_balloons=True),
            [("a", 2, "p", "db"), ("b", 2, "q", "db")],
            ["db[0]", "db[0]"],
            id="never more than MaxBalloons",
        ),
        pytest.param(
            replace(DB, min_balloons=2, min_cpus=4),
            [("a", 1, "p", "db"), ("b", 1, "q", "db"), ("c", 4, "r", "db")],
            ["db[0]", "db[1]", "db[0]"],
            id="those of MinBalloons are filled evenly before one grows",
        ),
        pytest.param(
            replace(DB, min_balloons=2, max_balloons=2, min_cpus=4, max_cpus=4),
            [(name, 0, name, "db") for name in "abcd"],
            ["db[0]", "db[1]", "db[0]", "db[1]"],
            id="without requests they are spread by count",
        ),
        pytest.param(
            replace(DB, min_balloons=3),
            [(name, 0, name, "db") for name in "abcdef"],
            ["db[0]", "db[1]", "db[2]"] * 2,
            id="over balloons that have no CPUs yet, too",
        ),
        pytest.param(
            replace(DB, min_balloons=2, max_balloons=2, max_cpus=2),
            [("a", 2, "p", "db"), ("b", 2, "q", "db"), ("c", 2, "r", "db")],
            ["db[0]", "db[1]", "db[0]"],
            id="those of MinBalloons have CPUs when they have containers",
        ),
        pytest.param(
            replace(DB, min_balloons=2, min_cpus=4),
            [
                ("a", 1, "p", "db"),
                *((name, 0, name, "db") for name in "bcd"),
                ("e", 1, "q", "db"),
                ("f", 0, "r", "db"),
            ],
            ["db[0]", "db[1]", "db[1]", "db[1]", "db[1]", "db[0]"],
            id="where requests tell more than their count they go by these",
        ),
        pytest.param(
            replace(DB, min_balloons=2, min_cpus=4),
            [("a", 0, "p", "db"), ("b", 0, "p", "db"), ("c", 0, "q", "db")],
            ["db[0]", "db[0]", "db[1]"],
            id="a pod without requests stays together",
        ),
    ],
)
def test_the_balloon_a_container_joins(kind: BalloonType, steps: list[Step], groups: list[str]) -> None:
    pools = Pools(HYGON_7285_2S, kind)
    found = [pools.put(asks(name, milli, namespace or "db", pod)) for name, milli, pod, namespace in steps]
    assert [decision.placement.group for decision in found] == groups


def test_new_balloons_are_preferred_only_while_there_are_cpus_for_them() -> None:
    pools = Pools(VM_NO_CACHE_INFO, replace(DB, prefer_new_balloons=True))
    pools.put(asks("a", 5))
    pools.put(asks("b", 3))
    decision = pools.put(asks("c", 0))
    assert decision.placement.group in ("db[0]", "db[1]")


def test_a_balloon_that_can_grow_inside_its_ccx_is_taken_before_one_that_cannot() -> None:
    pools = Pools(
        HYGON_7285_2S,
        replace(DB, max_cpus=10, prefer_spreading_pods=True),
        BalloonType("web", namespaces=("web",)),
    )
    pools.put(asks("a", 8))
    pools.put(asks("b", 3, pod="other"))
    decision = pools.put(asks("c", 2, pod="third"))
    assert decision.placement.group == "db[1]"


def test_a_number_that_is_free_again_is_used_again() -> None:
    pools = Pools(HYGON_7285_2S, replace(DB, prefer_new_balloons=True))
    for name in ("a", "b", "c"):
        pools.put(asks(name, 1))
    pools.remove("b")
    assert pools.put(asks("d", 1)).placement.group == "db[1]"
