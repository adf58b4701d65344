"""CDI files of claims: their names, and their text by the schema of the specification."""

from __future__ import annotations

import json

import pytest

from cri_api.claims import cdi_device, claims_of, part_name
from cri_proxy.claims.cdi import file_name, read_file_name, write_cdi

UID = "3f2a7c1e-0c6b-4d55-9a51-0a3c0f8e4b11"


def test_a_file_has_a_device_for_each_part_whose_variable_names_the_part() -> None:
    parts = [part_name(UID, "b"), part_name(UID, "a/large")]
    document = json.loads(write_cdi(parts))
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "cri-resmgr.io/cpu")
    assert [device["name"] for device in document["devices"]] == [f"{UID}_a.large", f"{UID}_b"]
    for device in document["devices"]:
        (variable,) = device["containerEdits"]["env"]
        name, _, value = variable.partition("=")
        assert value == device["name"]
        assert claims_of([], {name: value}) == claims_of([cdi_device(value)], {}) == (f"claim/{value}",)


def test_the_text_does_not_depend_on_the_order_of_parts() -> None:
    assert write_cdi(["u_a", "u_b"]) == write_cdi(["u_b", "u_a"])


def test_a_files_name_is_read_back() -> None:
    assert file_name(UID) == f"cri-resmgr.io-cpu-{UID}.json"
    assert read_file_name(file_name(UID)) == UID


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com-gpu.json",
        "cri-resmgr.io-cpu.json",
        "cri-resmgr.io-cpu-.json",
        "cri-resmgr.io-cpu-a_b.json",
        "cri-resmgr.io-cpu-a.yaml",
        "cri-resmgr.io-cpu-a.json.new",
        "cri-resmgrXio-cpu-a.json",
        f"cri-resmgr.io-cpu-{'a' * 64}.json",
    ],
)
def test_other_files_are_not_ours(name: str) -> None:
    assert read_file_name(name) is None
