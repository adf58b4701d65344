"""A NodePlacement's status stays small enough, and says what was left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.api import node_placement
from cluster.api.crds import definitions
from cluster.api.fit import MOST_REMOTE, OBJECT_BYTES, STATUS_BYTES, fit, size
from cluster.api.schema import faults

STATUS = node_placement.schema()["properties"]["status"]


def placement(number: int, **other: Any) -> dict[str, Any]:
    """A row with everything in it, with names as long as Deployments make them."""
    return {
        "namespace": f"team-{number % 20}-production",
        "pod": f"payments-api-gateway-{number:04d}-7c9d8b6f5d-x{number:04d}",
        "podUid": f"3f2b8c1e-9a4d-4c57-b8e6-{number:012d}",
        "container": "payments-api-gateway",
        "containerId": f"{number:064x}",
        "qos": "Burstable",
        "milliCpus": 100 + number,
        "cpus": "0-3,64-67",
        "mems": "0",
        "level": "ccx",
        "state": "managed",
        "why": f"its 1500m fit l3-{number % 16} (4 cores), the fullest in which they do, near 3 peers of its pod",
        "exclusive": False,
        "zone": f"l3-{number % 16}",
        "demand": "",
        **other,
    }


def status(containers: int, zones: int = 26, groups: int = 40) -> dict[str, Any]:
    return {
        "observedGeneration": 3,
        "version": "0.1.0",
        "mode": "enforce",
        "warnings": [],
        "zones": [
            {
                "name": f"l3-{n}",
                "type": "L3",
                "parent": f"node-{n // 4}",
                "cpus": f"{4 * n}-{4 * n + 3},{128 + 4 * n}-{131 + 4 * n}",
                "capacityMilliCpus": 8000,
                "allocatableMilliCpus": 8000,
                "chargedMilliCpus": 4000,
                "freeMilliCpus": 4000,
                "exclusiveCpus": "",
                "sharedCpus": f"{4 * n}-{4 * n + 3},{128 + 4 * n}-{131 + 4 * n}",
                "memoryBytes": 0,
            }
            for n in range(zones)
        ],
        "placements": [placement(number) for number in range(containers)],
        "affinityGroups": [
            {
                "members": [
                    {"namespace": "team-1-production", "pod": f"payments-{n}-{m}", "container": "payments"}
                    for m in range(4)
                ],
                "bytesPerSecond": 1_000_000 - n,
                "together": True,
                "zone": "node-0",
                "whyNot": "",
            }
            for n in range(groups)
        ],
        "remoteTraffic": [
            {
                "namespace": "team-1-production",
                "pod": f"payments-{n}-7d9f8b6c5d-bcdfg",
                "container": "payments",
                "address": f"fd00:10:244:1234:5678:9abc:def0:{n:x}",
                "bytesPerSecond": 1_000_000 - n,
            }
            for n in range(groups)
        ],
        "doctor": {"errors": 0, "warnings": 0, "problems": []},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "observedGeneration": 3}
        ],
    }


def managed_fields() -> list[dict[str, Any]]:
    """As a server keeps them: lists that are atomic are one field each, however long."""
    fields: dict[str, Any] = {f"f:{name}": {} for name in STATUS["properties"] if name != "conditions"}
    for name in ("counts", "doctor", "policy"):
        fields[f"f:{name}"] = {f"f:{key}": {} for key in STATUS["properties"][name]["properties"]}
    condition: dict[str, Any] = {
        f"f:{key}": {} for key in STATUS["properties"]["conditions"]["items"]["properties"]
    }
    fields["f:conditions"] = {
        f'k:{{"type":"{name}"}}': condition for name in ("Ready", "Degraded", "ConfigApplied")
    }
    entry = {"manager": "cri-resmgr-agent", "operation": "Apply", "apiVersion": "cri-resmgr.io/v1alpha1",
             "time": "2026-11-22T21:00:00Z", "fieldsType": "FieldsV1", "subresource": "status"}  # fmt: skip
    return [{**entry, "fieldsV1": {"f:status": fields}}, {**entry, "manager": "cri-resmgr-operator"}]


def test_500_containers_fit_whole_with_managed_fields_in_256_kib() -> None:
    found = fit(status(500))
    counts = found["counts"]
    assert (counts["placements"], counts["placementsLeftOut"], len(found["placements"])) == (500, 0, 500)
    whole = {
        "apiVersion": "cri-resmgr.io/v1alpha1",
        "kind": "NodePlacement",
        "metadata": {"name": "n" * 63, "uid": "u" * 36, "managedFields": managed_fields()},
        "spec": {},
        "status": found,
    }
    assert len(json.dumps(whole, separators=(",", ":"))) < OBJECT_BYTES
    assert list(faults(found, STATUS, "status")) == []


def test_no_list_of_a_status_has_an_entry_in_managed_fields_for_each_of_its_items() -> None:
    schema = definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    growing = ("zones", "placements", "affinityGroups", "remoteTraffic", "overrides", "warnings")
    assert {schema["properties"][name]["x-kubernetes-list-type"] for name in growing} == {"atomic"}
    assert schema["properties"]["machine"]["x-kubernetes-map-type"] == "atomic"


@pytest.mark.parametrize("containers", [1, 700, 1000, 3000, 11_000])
def test_however_many_there_are_it_fits_and_counts_add_up(containers: int) -> None:
    found = fit(status(containers, zones=300, groups=500))
    assert size(found) <= STATUS_BYTES
    counts = found["counts"]
    assert len(found["placements"]) + counts["placementsLeftOut"] == counts["placements"] == containers
    assert len(found["zones"]) + counts["zonesLeftOut"] == counts["zones"] == 300
    assert len(found["affinityGroups"]) + counts["affinityGroupsLeftOut"] == 500
    assert (counts["remoteTraffic"], counts["remoteTrafficLeftOut"]) == (500, 500 - MOST_REMOTE)
    assert [row["bytesPerSecond"] for row in found["remoteTraffic"]][-1] == 1_000_000 - MOST_REMOTE + 1
    assert list(faults(found, STATUS, "status")) == []


def test_containers_that_something_is_to_be_done_about_are_kept_first_and_the_order_stays() -> None:
    given = status(3000)
    odd = {5: {"state": "unplaced"}, 2000: {"demand": "l3"}, 2999: {"exclusive": True}}
    for number, other in odd.items():
        given["placements"][number].update(other)
    found = fit(given)
    pods = [row["pod"] for row in found["placements"]]
    assert {given["placements"][number]["pod"] for number in odd} <= set(pods)
    assert pods == sorted(pods)
    assert found["counts"]["unplaced"] == 1


def test_long_texts_end_in_three_dots_and_are_counted() -> None:
    given = status(1)
    given["placements"][0]["why"] = "w" * 5000
    given["warnings"] = ["é" * 5000] * 40
    given["doctor"]["problems"] = [{"severity": "error", "message": "p" * 5000}] * 40
    found = fit(given)
    assert found["placements"][0]["why"] == "w" * 197 + "..."
    counts = found["counts"]
    assert (counts["textsShortened"], counts["warningsLeftOut"], counts["problemsLeftOut"]) == (65, 8, 8)


def test_the_status_that_was_given_is_not_changed() -> None:
    given = status(900)
    before = json.dumps(given)
    fit(given)
    assert json.dumps(given) == before


def test_a_status_without_lists_gets_its_counts() -> None:
    assert fit({"version": "1"})["counts"]["placements"] == 0
    assert set(fit({})["counts"]) == set(node_placement.COUNTS)
