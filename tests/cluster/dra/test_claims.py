"""A ResourceClaim becomes the arguments of a prepare, or one sentence for the pod's Events."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.dra.claims import (
    ClaimName,
    ClaimUnusable,
    PreparedDevice,
    check_uid,
    prepare_arguments,
    prepared_devices,
    read_cpus,
)
from tests.cluster.dra.objects import DRIVER, NODE, UID, claim, config, result


def arguments(found: dict[str, Any]) -> dict[str, Any]:
    return prepare_arguments(found, DRIVER, NODE)


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(ClaimUnusable) as refused:
        arguments(found)
    return str(refused.value)


def test_a_claim_says_what_was_allocated_and_for_which_pods() -> None:
    whole = result("all", "l3-1-whole", None)
    assert arguments(claim(result(), whole)) == {
        "uid": UID,
        "namespace": "shop",
        "name": "four",
        "results": [
            {"request": "cpus", "device": "l3-0", "cpus": 4, "share": "share-cpus"},
            {"request": "all", "device": "l3-1-whole", "cpus": None, "share": ""},
        ],
        "parameters": [],
        "pods": [{"name": "web", "uid": "pod-1"}],
    }


def test_devices_of_other_drivers_are_left_to_them() -> None:
    nic = result("nic", "eth0", None, driver="nic.example.com", pool="elsewhere", adminAccess=True)
    assert [each["request"] for each in arguments(claim(nic, result()))["results"]] == ["cpus"]
    assert refusal(claim(nic)) == "the claim shop/four was given no device of cpu.cri-resmgr.io"


def test_a_qualified_capacity_is_read_where_the_driver_is_called_dra_cpu() -> None:
    consumed = {"consumedCapacity": {"dra.cpu/cpu": "2"}, "driver": "dra.cpu"}
    found = prepare_arguments(claim(result(cpu=None, **consumed)), "dra.cpu", NODE)
    assert found["results"] == [{"request": "cpus", "device": "l3-0", "cpus": 2, "share": ""}]


@pytest.mark.parametrize(
    ("quantity", "cpus"),
    [("4", 4), (4, 4), ("4000m", 4), ("4.0", 4), ("1k", 1000), ("1Ki", 1024), ("2e0", 2), ("3000000u", 3)],
)
def test_quantities_of_whole_cpus_are_read(quantity: Any, cpus: int) -> None:
    assert read_cpus(quantity, "request cpus") == cpus


@pytest.mark.parametrize(
    "quantity",
    [
        "",
        "0",
        "-1",
        "1500m",
        "four",
        "4 ",
        "1e99",
        "9" * 30,
        "4cpu",
        None,
        True,
        1.5,
        ["4"],
        "\u0664",
        ".",
        "1e-1",
    ],
)
def test_other_quantities_are_refused_with_the_place(quantity: Any) -> None:
    with pytest.raises(ClaimUnusable, match="^request cpus has .* CPUs, expected a "):
        read_cpus(quantity, "request cpus")


SENTENCES = {
    "a claim that the scheduler has not seen": (
        claim(allocation=None),
        "the claim shop/four has no allocation: the scheduler has not given it devices",
    ),
    "an allocation without devices": (
        claim(allocation={}),
        "the claim shop/four was given no device of cpu.cri-resmgr.io",
    ),
    "another node's device": (
        claim(result(pool="node-2")),
        "the claim shop/four was given l3-0 of the node node-2, and this is node-1",
    ),
    "admin access": (
        claim(result(adminAccess=True)),
        "request cpus of the claim shop/four asks for admin access, which CPUs do not have",
    ),
    "a part of a capacity that is not ours": (
        claim(result(consumedCapacity={"cpu": "1", "memory": "1Gi"})),
        'request cpus of the claim shop/four has a part of the capacity "memory"; '
        "devices of cpu.cri-resmgr.io have the capacity cpu only",
    ),
    "half a CPU": (
        claim(result(cpu="500m")),
        'request cpus of the claim shop/four has "500m" CPUs, expected a whole number of at least 1',
    ),
    "results that are no list": (
        claim(allocation={"devices": {"results": "none"}}),
        'the claim cannot be read: status.allocation.devices.results is "none", expected a list',
    ),
    "a result without a device": (
        claim({"driver": DRIVER, "request": "cpus", "pool": NODE}),
        "the claim cannot be read: status.allocation.devices.results[0] has no device, expected one",
    ),
    "settings from nowhere": (
        claim(configs=[config("FromSpace")]),
        "the claim cannot be read: status.allocation.devices.config[0].source is "
        '"FromSpace", expected FromClass or FromClaim',
    ),
    "no claim at all": ({}, "the claim cannot be read: metadata has no namespace, expected one"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_cannot_be_prepared_is_refused_with_a_sentence(name: str) -> None:
    found, sentence = SENTENCES[name]
    assert refusal(found) == sentence


def test_a_claim_that_was_made_anew_is_not_the_one_that_kubelet_means() -> None:
    check_uid(claim(), ClaimName("shop", "four", UID))
    with pytest.raises(
        ClaimUnusable, match=r"^the claim shop/four was deleted and made anew: it has the UID \"new\""
    ):
        check_uid(claim(uid="new"), ClaimName("shop", "four", UID))
    with pytest.raises(ClaimUnusable, match="UID null"):
        check_uid({}, ClaimName("shop", "four", UID))


def test_settings_of_a_claim_go_before_those_of_its_class() -> None:
    found = arguments(
        claim(
            configs=[
                config(smt="full-core"),
                config("FromClass", l3="one"),
                config("FromClass", driver="nic.example.com"),
                {"source": "FromClass"},
            ]
        )
    )
    assert found["parameters"] == [
        {"requests": [], "value": {"kind": "CpuParameters", "l3": "one"}},
        {"requests": [], "value": {"kind": "CpuParameters", "smt": "full-core"}},
    ]


def test_settings_of_a_request_are_for_each_of_its_alternatives() -> None:
    results = [result("a/small"), result("b")]
    configs = [
        config("FromClaim", "a", smt="any"),
        config("FromClaim", "a/large", smt="hide"),
        config("FromClaim", "a/small", "b", memory="pin"),
    ]
    found = arguments(claim(*results, configs=configs))
    assert [(each["requests"], each["value"]) for each in found["parameters"]] == [
        (["a/small"], {"kind": "CpuParameters", "smt": "any"}),
        (["a/small", "b"], {"kind": "CpuParameters", "memory": "pin"}),
    ]


def test_reservations_of_what_is_no_pod_are_passed_over() -> None:
    job = {"resource": "jobs", "apiGroup": "batch", "name": "j", "uid": "u"}
    assert arguments(claim(reservedFor=[job]))["pods"] == []
    assert arguments(claim(reservedFor=None))["pods"] == []


def test_kubelet_is_told_a_requests_name_once_and_without_its_alternative() -> None:
    asked = arguments(claim(result("a/small"), result("a/small", "l3-1"), result("b", "l3-2-whole", None)))
    parts = [{"request": "a/small", "cdi": "x=a", "cpus": "0-3"}, {"request": "b", "cdi": "x=b"}]
    assert prepared_devices(asked, {"parts": parts}, NODE) == (
        PreparedDevice("a", NODE, "l3-0", ("x=a",), "share-a/small"),
        PreparedDevice("a", NODE, "l3-1", (), "share-a/small"),
        PreparedDevice("b", NODE, "l3-2-whole", ("x=b",), ""),
    )


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({}, "the daemon has prepared nothing for request cpus"),
        (None, "the daemon has prepared nothing for request cpus"),
        ([], "the daemon's answer is a list of 0, expected a mapping"),
        ({"parts": [{"request": "cpus"}]}, r"the daemon's answer.parts[0] has no cdi, expected one"),
    ],
)
def test_an_answer_that_lacks_a_request_is_an_error(answer: Any, sentence: str) -> None:
    with pytest.raises(ClaimUnusable) as refused:
        prepared_devices(arguments(claim()), answer, NODE)
    assert str(refused.value) == sentence
