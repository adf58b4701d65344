"""What ``cri-resmgr isolation`` says, of documents that a reconciler has made on the model of a kernel."""

from __future__ import annotations

from typing import Any

import pytest

from cri_proxy.isolation.report import isolation_summary, isolation_text, treatment_lines, value_text
from policies.model import Qos
from tests.isolation.test_reconciler import Make, make  # noqa: F401  (a fixture)


def protection(**changed: Any) -> dict[str, Any]:
    return {
        "mode": "enforce",
        "how": "by fills from memory",
        "counted": 1,
        "left_out": 0,
        "domains": [
            {
                "domain": 3,
                "level": 2,
                "levels": 4,
                "cache_share": 0.13,
                "bandwidth_share": None,
                "age_s": 180.0,
                "why": "default/app/main is over its limit",
                "helped": {
                    "container": "default/app/main", "words": "fills", "usual": 1.0, "before": 4.0, "after": 1.5,
                    "helped": True,
                },
                "protected": [
                    {
                        "key": "k", "container": "default/app/main", "words": "fills", "signal": "fills", "current": 1.5,
                        "usual": 1.0, "limit": 2.0, "baseline": "its own, of 60 windows", "is_over": False,
                    }
                ],
            }
        ],
        **changed,
    }  # fmt: skip


def test_what_is_off_says_what_switches_it_on() -> None:
    document = {"subjects": {"caches": {"configured": "off", "mode": "off"}}}
    assert isolation_text(document).startswith("off: isolation.caches, isolation.cpu and others switch it on")


async def test_a_shared_l3_is_shown_with_what_batch_has_there_and_why(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    node.protected()
    node.batch()
    await node.isolation.round()
    lines = isolation_text(node.isolation.status()).splitlines()
    assert lines[:2] == ["caches       enforce", "bandwidth    enforce"]
    [group] = [line for line in lines if line.startswith("cri-resmgr.batch")]
    assert group.startswith("cri-resmgr.batch: enforced for 0 s; default/c1/c1")
    [shared] = [line for line in lines if "is protected and may run in L3" in line]
    assert "5 ways (1f), bandwidth 132, as default/c0/c0 is protected" in shared
    assert "  every other L3: all of it" in lines


async def test_what_would_be_made_is_not_said_to_be_there(make: Make) -> None:  # noqa: F811
    node = await make(caches="observe", bandwidth="observe").begin()
    node.protected()
    node.batch()
    await node.isolation.round()
    text = isolation_text(node.isolation.status())
    assert "caches       observe" in text
    assert "cri-resmgr.batch: would be made" in text and "enforced" not in text


async def test_where_nothing_meets_that_is_said(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    node.start(Qos.BURSTABLE)
    await node.isolation.round()
    assert "no L3 is shared by protected and batch containers" in isolation_text(node.isolation.status())


async def test_a_kernel_without_resctrl_is_said_with_what_to_do(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    node.kernel.missing = "resctrl is not mounted: mount -t resctrl resctrl /sys/fs/resctrl"
    document = {**node.isolation.status(), "missing": node.kernel.missing}
    assert "nothing is divided: resctrl is not mounted: mount -t resctrl" in isolation_text(document)


async def test_protection_says_its_step_and_whether_it_has_helped(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    text = isolation_text({**node.isolation.status(), "protection": protection()})
    assert "measured protection (enforce)\n  by fills from memory\n" in text
    assert (
        "  L3 3: step 2 of 4, for 3 min, batch has cache 13%: default/app/main is over its limit\n"
        "    it has helped default/app/main: fills 4 before, 1.5 after\n"
        "    default/app/main: fills 1.5, usual 1 (its own, of 60 windows)"
    ) in text


async def test_protection_that_is_off_says_nothing(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    assert "protection" not in isolation_text(
        {**node.isolation.status(), "protection": protection(mode="off")}
    )


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("L3", "1f", "5 ways (1f)"),
        ("L3CODE", "1", "1 way (1) for code"),
        ("L2DATA", "ff", "8 ways (ff) for data"),
        ("MB", "2048", "bandwidth 2048"),
    ],
)
def test_values_are_said_as_what_they_are(resource: str, value: str, text: str) -> None:
    assert value_text(resource, value) == text


def test_threads_refusals_drift_and_others_have_a_line_each() -> None:
    document = {
        "subjects": {"caches": {"configured": "enforce", "mode": "observe"}},
        "tasks": {
            "k": {
                "container": "default/job/main",
                "group": "cri-resmgr.batch",
                "moved": 3,
                "ran_before_s": 0.25,
                "moment": "start",
                "problem": "",
            },
            "r": {"group": "", "moved": 0, "ran_before_s": 0.0, "moment": "", "problem": ""},
        },
        "refusals": [{"place": "resctrl:x#L3:0", "value": "0", "sentence": "no bits", "tries": 2}],
        "drift": {"resctrl:x#L3:1": 3},
        "notes": ["a note"],
        "other_groups": ["theirs"],
        "other_monitors": 2,
    }
    text = isolation_text(document)
    assert "caches       observe (configured: enforce)" in text
    assert "  default/job/main: 3 moved into cri-resmgr.batch, after it had run for 0.250 s (start)\n" in text
    assert "  resctrl:x#L3:0 = 0: no bits (tried 2 times)\n" in text
    assert "  resctrl:x#L3:1: 3 times\n" in text
    assert "  groups of others, left alone: theirs\n  monitoring groups of others, left alone: 2" in text


async def test_a_container_is_told_its_treatment(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    protected, batch, other = node.protected(), node.batch(), node.start(Qos.BURSTABLE)
    await node.isolation.round()
    document = node.isolation.status()
    paths = {key: node.engine.grants[key].container.path for key in (protected, batch, other)}
    [line] = treatment_lines(document, paths[batch])
    assert line.startswith("in cri-resmgr.batch: L3 ") and "5 ways (1f), bandwidth 132" in line
    [line] = treatment_lines(document, paths[protected])
    assert line.startswith("batch gives way in L3 ")
    assert treatment_lines(document, paths[other]) == []
    document["protection"] = protection()
    document["protection"]["domains"][0]["domain"] = document["meetings"][0]["l3"]
    _, step, helped = treatment_lines(document, paths[protected])
    assert "step 2 of 4" in step and helped.startswith("it has helped default/app/main")
    assert len(treatment_lines(document, paths[batch])) == 3
    assert treatment_lines(document, paths[other]) == []


async def test_a_treatment_that_is_only_observed_says_so(make: Make) -> None:  # noqa: F811
    node = await make(caches="observe", bandwidth="off").begin()
    node.protected()
    batch = node.batch()
    await node.isolation.round()
    [line] = treatment_lines(node.isolation.status(), node.engine.grants[batch].container.path)
    assert line.startswith("would be in cri-resmgr.batch: L3 ") and "bandwidth" not in line


async def test_reports_on_the_node_are_told_a_summary(make: Make) -> None:  # noqa: F811
    node = await make().begin()
    node.protected()
    node.batch()
    await node.isolation.round()
    found = isolation_summary(node.isolation.status())
    assert found is not None
    assert (found["modes"], found["groups"]) == ({"caches": "enforce", "bandwidth": "enforce"}, 1)
    [shared] = found["l3s"]
    assert (shared["protected"], shared["batch"], shared["batch_has"]) == (1, 1, "5 ways (1f), bandwidth 132")
    document = {**node.isolation.status(), "protection": protection()}
    document["protection"]["domains"][0]["domain"] = shared["l3"]
    [shared] = (isolation_summary(document) or {})["l3s"]
    assert shared["step"].startswith("step 2 of 4; it has helped default/app/main: fills 4 before")
    assert isolation_summary({"subjects": {"caches": {"configured": "off", "mode": "off"}}}) is None
