"""Which package, and which steps in which order: from every state of a host to every state that is wanted."""

from __future__ import annotations

import itertools
from typing import Optional

import pytest

from cluster.installer.plan import (
    LEFTOVERS,
    UNITS,
    CannotInstall,
    HostState,
    Package,
    Platform,
    Target,
    choose,
    steps,
)
from cluster.installer.record import BadRecord, InstallationRecord, read_record, write_record

CARRIED = [
    Package("deb", python, f"1-1+py{python}", f"cri-resmgr_1-1+py{python}_amd64.deb", f"d{python}")
    for python in ("3.9", "3.11", "3.13")
] + [Package("rpm", "3.9", "1-1.py39", "cri-resmgr-1-1.py39.x86_64.rpm", "r3.9")]
DEB = CARRIED[1]


@pytest.mark.parametrize(
    ("kind", "pythons", "chosen"),
    [
        ("deb", ("3.11",), "d3.11"),
        ("deb", ("3.9", "3.13"), "d3.9"),
        ("deb", ("3.12", "3.13"), "d3.13"),
        ("rpm", ("3.9",), "r3.9"),
        ("rpm", ("3.11",), "Python on this node: 3.11; the rpm packages of this image are for: 3.9"),
        ("deb", (), "Python on this node: none; the deb packages of this image are for: 3.9, 3.11, 3.13"),
        ("", ("3.11",), "this node has neither dpkg nor rpm: cri-resmgr cannot be installed on it"),
    ],
)
def test_the_package_is_for_the_hosts_manager_and_python(
    kind: str, pythons: tuple[str, ...], chosen: str
) -> None:
    try:
        found = choose(CARRIED, Platform(kind, pythons)).sha256
    except CannotInstall as error:
        found = str(error)
    assert found == chosen


STATES = [
    HostState(version, sha256, units, units, kubelet, left)
    for version, sha256 in (("", ""), (DEB.version, DEB.sha256), (DEB.version, ""))
    for units in (frozenset[str](), frozenset(UNITS))
    for kubelet in (False, True, None)
    for left in (frozenset[str](), frozenset(LEFTOVERS))
]
TARGETS = [
    Target(package, frozenset(UNITS), frozenset(UNITS), True) if package else Target(left=left)
    for package in (DEB, None)
    for left in (frozenset[str](), frozenset(LEFTOVERS[:1]))
]


def names(now: HostState, target: Target) -> list[str]:
    return [step.name for step in steps("deb", now, target)]


def place(found: list[str], name: str) -> Optional[int]:
    return found.index(name) if name in found else None


@pytest.mark.parametrize("target", TARGETS)
def test_kubelet_leaves_before_units_and_package_and_comes_after_them(target: Target) -> None:
    for now in STATES:
        found = names(now, target)
        order = ["kubelet back", "units stopped", "units disabled", "package removed", "leftovers removed"]
        order += ["package installed", "units enabled", "units started", "kubelet switched"]
        places = [place(found, name) for name in order]
        there = [number for number in places if number is not None]
        assert there == sorted(there) and len(there) == len(found)


def test_a_host_that_is_as_wanted_needs_no_step() -> None:
    units = frozenset(UNITS)
    now = HostState(DEB.version, DEB.sha256, units, units, True, frozenset(LEFTOVERS))
    assert steps("deb", now, Target(DEB, units, units, True)) == ()
    assert steps("deb", HostState(), Target()) == ()


def test_kubelet_of_which_nothing_can_be_said_is_told_both_ways() -> None:
    units = frozenset(UNITS)
    now = HostState(DEB.version, DEB.sha256, units, units, None)
    assert names(now, Target(DEB, units, units, True)) == ["kubelet switched"]
    assert names(now, Target())[0] == "kubelet back"


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_only_what_was_not_there_before_is_removed(kind: str) -> None:
    now = HostState("1", "", left=frozenset(LEFTOVERS))
    found = steps(kind, now, Target(left=frozenset([LEFTOVERS[0]])))
    assert [step.removes for step in found if step.removes] == [(LEFTOVERS[1],)]
    assert "--purge" not in itertools.chain.from_iterable(step.command for step in found)


@pytest.mark.parametrize(
    "record",
    [
        InstallationRecord(HostState(left=frozenset(LEFTOVERS)), underway=DEB),
        InstallationRecord(HostState(enabled=frozenset(UNITS)), installed=DEB, underway=CARRIED[0]),
    ],
)
def test_a_record_is_read_as_it_was_written(record: InstallationRecord) -> None:
    assert read_record(write_record(record)) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "before": {}}'])
def test_what_is_no_record_is_said_by_the_files_name(text: str) -> None:
    with pytest.raises(BadRecord, match=r"^/var/lib/cri-resmgr-installer/record\.json: "):
        read_record(text)
