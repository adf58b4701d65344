"""Kubelet's files tell which CPUs are its own; one that cannot be read tells of none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.shell.kubelet import read_exclusive, read_reserved
from policies.cpus import format_cpus

STATIC: dict[str, Any] = {
    "policyName": "static",
    "defaultCpuSet": "0,4-7",
    "entries": {"uid-1": {"app": "1-2", "side": "3"}},
    "checksum": 1,
}
NOTHING_EXCLUSIVE = {
    "policy none": json.dumps({**STATIC, "policyName": "none"}),
    "no entries": json.dumps({**STATIC, "entries": None}),
    "a key that is missing": json.dumps({"policyName": "static"}),
    "entries of another shape": json.dumps({**STATIC, "entries": ["uid-1"]}),
    "containers of another shape": json.dumps({**STATIC, "entries": {"uid-1": "1-2"}}),
    "a set that is a number": json.dumps({**STATIC, "entries": {"uid-1": {"app": 1}}}),
    "a bad set": json.dumps({**STATIC, "entries": {"uid-1": {"app": "one"}}}),
    "a list": "[]",
    "half a file": json.dumps(STATIC)[:40],
    "empty": "",
}


def test_exclusive_cpus_are_read_by_pod_and_container(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC))
    found = {who: format_cpus(cpus) for who, cpus in read_exclusive(tmp_path).items()}
    assert found == {("uid-1", "app"): "1-2", ("uid-1", "side"): "3"}


@pytest.mark.parametrize("case", NOTHING_EXCLUSIVE)
def test_no_cpus_are_exclusive_by(case: str, tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(NOTHING_EXCLUSIVE[case])
    assert read_exclusive(tmp_path) == {}


def test_bytes_that_are_no_text_count_as_no_file(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_bytes(b"\xff\xfe")
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    assert read_exclusive(tmp_path) == {}
    assert read_reserved(tmp_path) == frozenset()


def test_without_files_nothing_is_kubelets(tmp_path: Path) -> None:
    assert read_exclusive(tmp_path) == {}
    assert read_reserved(tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("reservedSystemCPUs: 0-1,8", "0-1,8"),
        ("reservedSystemCPUs: '0-1'\nkind: KubeletConfiguration", "0-1"),
        ("reservedSystemCPUs: 3", "3"),
        ("reservedSystemCPUs: ''", ""),
        ("reservedSystemCPUs:", ""),
        ("reservedSystemCPUs: most", ""),
        ("reservedSystemCPUs: [0, 1]", ""),
        ("kind: KubeletConfiguration", ""),
        ("- a list", ""),
        ("a: [", ""),
        ("", ""),
    ],
)
def test_reserved_cpus_are_those_of_kubelets_configuration(text: str, cpus: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert format_cpus(read_reserved(tmp_path)) == cpus
