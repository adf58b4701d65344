"""Kubelet's files tell which CPUs are its own; one that cannot be read tells of none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.kubelet.io.cpu_manager import (
    Assignments,
    NotUnderstood,
    read_exclusive,
    read_reserved,
    read_topology_manager,
)
from policies.machine.cpus import format_cpus

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
}
NOT_UNDERSTOOD = {
    "entries of another shape": json.dumps({**STATIC, "entries": ["uid-1"]}),
    "containers of another shape": json.dumps({**STATIC, "entries": {"uid-1": ["app"]}}),
    "pods of another shape": json.dumps({**STATIC, "podEntries": {"uid-1": "1-2"}}),
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


FORMATS: dict[str, tuple[dict[str, Any], dict[tuple[str, str], str]]] = {
    "by container id (kubelet up to 1.17)": ({"entries": {"id-1": "1-2"}}, {("", "id-1"): "1-2"}),
    "by pod and container": ({"entries": {"uid-1": {"app": "1-2"}}}, {("uid-1", "app"): "1-2"}),
    "and of whole pods": (
        {"entries": {"uid-1": {"app": "1-2"}}, "podEntries": {"uid-1": {"cpuSet": "1-4"}, "uid-2": {}}},
        {("uid-1", "app"): "1-2", ("uid-1", ""): "1-4"},
    ),
}


@pytest.mark.parametrize("version", FORMATS)
def test_every_format_of_the_file_is_read(version: str, tmp_path: Path) -> None:
    document, wanted = FORMATS[version]
    (tmp_path / "cpu_manager_state").write_text(json.dumps({"policyName": "static", **document}))
    assert {who: format_cpus(cpus) for who, cpus in read_exclusive(tmp_path).items()} == wanted


def test_a_file_that_is_missing_though_kubelet_keeps_one_is_a_sentence(tmp_path: Path) -> None:
    assert read_exclusive(tmp_path) == {}
    for text, is_static in (
        ("cpuManagerPolicy: static", True),
        ("cpuManagerPolicy: none", False),
        ("- 1", False),
    ):
        (tmp_path / "config.yaml").write_text(text)
        if is_static:
            with pytest.raises(NotUnderstood, match="cpuManagerPolicy is static, and this file is not there"):
                read_exclusive(tmp_path)
        else:
            assert read_exclusive(tmp_path) == {}


def test_a_new_file_is_news_until_it_is_read(tmp_path: Path) -> None:
    assignments, path = Assignments(), tmp_path / "cpu_manager_state"
    assert not assignments.is_news(tmp_path)
    for count in (1, 2):
        (tmp_path / "new").write_text(json.dumps({**STATIC, "entries": {"u": {"c": f"0-{count}"}}}))
        (tmp_path / "new").rename(path)
        assert assignments.is_news(tmp_path)
        assert {who: format_cpus(cpus) for who, cpus in assignments.read(tmp_path).items()} == {
            ("u", "c"): f"0-{count}"
        }
        assert not assignments.is_news(tmp_path)
    path.unlink()
    assert assignments.is_news(tmp_path)
    assert assignments.read(tmp_path) == {}
    assert not assignments.is_news(tmp_path)


@pytest.mark.parametrize("case", NOTHING_EXCLUSIVE)
def test_no_cpus_are_exclusive_by(case: str, tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(NOTHING_EXCLUSIVE[case])
    assert read_exclusive(tmp_path) == {}


@pytest.mark.parametrize("case", NOT_UNDERSTOOD)
def test_what_cannot_be_understood_is_a_sentence(case: str, tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(NOT_UNDERSTOOD[case])
    with pytest.raises(
        NotUnderstood, match="/cpu_manager_state cannot be used: .*; which CPUs kubelet has given"
    ):
        read_exclusive(tmp_path)


def test_bytes_that_are_no_text_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_bytes(b"\xff\xfe")
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    for read in (read_exclusive, read_reserved):
        with pytest.raises(NotUnderstood):
            read(tmp_path)


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
        ("kind: KubeletConfiguration", ""),
        ("", ""),
    ],
)
def test_reserved_cpus_are_those_of_kubelets_configuration(text: str, cpus: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert format_cpus(read_reserved(tmp_path)) == cpus


@pytest.mark.parametrize(
    "text", ["reservedSystemCPUs: most", "reservedSystemCPUs: [0, 1]", "- a list", "a: ["]
)
def test_reserved_cpus_that_cannot_be_understood_are_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(NotUnderstood, match="/config.yaml cannot be used: .*; no reserved CPUs"):
        read_reserved(tmp_path)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("kind: KubeletConfiguration\n", ("none", "container", 0)),
        (
            "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"
            'topologyManagerPolicyOptions: {max-allowable-numa-nodes: "16"}\n',
            ("single-numa-node", "pod", 16),
        ),
    ],
    ids=["nothing said", "all said"],
)
def test_the_topology_manager_is_told_in_kubelets_words(
    config: str, found: tuple[str, str, int], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    keys = ("policy", "scope", "most_numa_nodes")
    assert read_topology_manager(tmp_path) == dict(zip(keys, found))


def test_without_kubelets_configuration_its_topology_manager_is_not_known(tmp_path: Path) -> None:
    assert read_topology_manager(tmp_path) is None
    (tmp_path / "config.yaml").write_text("topologyManagerPolicyOptions: {max-allowable-numa-nodes: many}")
    with pytest.raises(NotUnderstood, match="its topology manager is not known"):
        read_topology_manager(tmp_path)
