"""From configuration and machine to the host: usable, reserved and kubelet's CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from cri_proxy.config.config import Config, engine_options
from cri_proxy.config.options.table import OPTIONS
from cri_proxy.engine.build import Machine, make_engine, make_host, make_policy
from policies.machine.cpus import format_cpus, parse_cpus
from policies.machine.topology import Topology
from policies.model import NO_CONSTRAINT
from policies.registry import POLICIES
from tests.config.configs import AVAILABLE, RESERVED, read
from tests.machines import HYGON_7285_2S, KUNPENG_48_2S, OFFLINE_CPUS, machine
from tests.scenes import topology

HYGON = topology(HYGON_7285_2S)


def config(**options: Optional[str]) -> Config:
    keys = {
        "available": AVAILABLE,
        "reserved": RESERVED,
        "policy": "policy.Active",
        "ladder": "placement.ladder",
    }
    return read("\n".join(f"{keys[name]}: {value}" for name, value in options.items()) or "{}").config


# ---------------------------------------------------------------------- usable

USABLE: dict[str, tuple[Optional[str], Optional[str], str]] = {
    "nothing is said": (None, None, "0-127"),
    "kubelet's cgroup": (None, "0-9,200", "0-9"),
    "a set": ("cpuset:4-7", None, "4-7"),
    "a set within kubelet's cgroup": ("cpuset:4-7", "0-5", "4-5"),
    "a count takes whole leaves": ("16", None, "0-7,64-71"),
    "a count is rounded up": ("7500m", None, "0-3,64-67"),
    "a count is rounded up from the first of a thousand": ("7001m", None, "0-3,64-67"),
    "a count of whole CPUs": ("7", None, "0-3,64-66"),
    "a count within kubelet's cgroup": ("4", "8-63,72-127", "8-9,72-73"),
    "all but a set": ("exclude-cpuset:0-63", None, "64-127"),
    "all of kubelet's cgroup but a set": ("exclude-cpuset:4-127", "2-7", "2-3"),
    "a cgroup": ("cgroup:/ours", None, "16-31"),
    "a cgroup that is unknown": ("cgroup:/theirs", None, "0-127"),
}


@pytest.mark.parametrize("case", USABLE)
def test_usable_cpus(case: str) -> None:
    available, parent, expected = USABLE[case]
    parent_cpus = None if parent is None else parse_cpus(parent)
    settings = config(reserved='""') if available is None else config(reserved='""', available=available)
    host, warnings = make_host(settings, Machine(HYGON, parent_cpus), {"/ours": parse_cpus("16-31")})
    assert format_cpus(host.usable) == expected
    assert host.parent_cpus == (HYGON.online if parent_cpus is None else parent_cpus & HYGON.online)
    unknown = (
        "policy.AvailableResources.CPU names the cgroup /theirs, which has no cpuset; it counts as not given"
    )
    assert warnings == ((unknown,) if available == "cgroup:/theirs" else ())


# ---------------------------------------------------------------------- the leaves of the tree


@pytest.mark.parametrize(
    ("name", "policy", "ladder", "leaves"),
    [
        (KUNPENG_48_2S, "hygon", "manual", 4),
        (KUNPENG_48_2S, "hygon", "fine", 24),
        (KUNPENG_48_2S, "topology-aware", "fine", 24),
        (KUNPENG_48_2S, "balloons", "fine", 4),
        (HYGON_7285_2S, "hygon", "fine", 16),
    ],
)
def test_clusters_are_leaves_for_the_fine_ladder_alone(
    name: str, policy: str, ladder: str, leaves: int
) -> None:
    found = config(reserved='"6"', policy=policy, ladder=ladder)
    for tree in (Topology(machine(name)), Topology(machine(name), to_clusters=True)):
        host, _ = make_host(found, Machine(tree))
        assert len(host.topology.leaves) == leaves
        # What is reserved is of one L3, not of one cluster.
        assert len(host.reserved) == 6
        assert host.topology.data is tree.data


# ---------------------------------------------------------------------- pods with a parent of their own

ALL_MEMS = HYGON.memory_nodes


def test_a_parent_inside_of_kubelets_bounds_its_own_pods_alone() -> None:
    parents = {"kubepods": (HYGON.online, ALL_MEMS), "kubepods/system": (parse_cpus("0-3"), ALL_MEMS)}
    host, _ = make_host(config(reserved='""'), Machine(HYGON, HYGON.online, ALL_MEMS, parents=parents))
    assert host.usable == HYGON.online
    assert format_cpus(host.bounded(NO_CONSTRAINT, "/kubepods/system/podx").cpus or ()) == "0-3"
    assert host.bounded(NO_CONSTRAINT, "/kubepods/burstable/podx") == NO_CONSTRAINT


def test_a_parent_beside_kubelets_has_its_cpus_and_kubelets_pods_do_not_see_them() -> None:
    kubepods = parse_cpus("8-127")
    parents = {"kubepods": (kubepods, ALL_MEMS), "system.slice/pods": (parse_cpus("0-7"), parse_cpus("0"))}
    settings = config(reserved='"2"')
    host, _ = make_host(settings, Machine(HYGON, kubepods, ALL_MEMS, parents=parents))
    alone, _ = make_host(settings, Machine(HYGON, kubepods, ALL_MEMS))
    assert host.usable == HYGON.online
    assert (host.parent_cpus, host.reserved) == (alone.parent_cpus, alone.reserved)
    for path in ("/kubepods/podx", "", "/kubepods/burstable/podx"):
        assert host.bounded(NO_CONSTRAINT, path).cpus == alone.usable
    system = host.bounded(NO_CONSTRAINT, "/system.slice/pods/podx")
    assert (system.cpus, system.mems) == (parse_cpus("0-7"), parse_cpus("0"))


def test_parents_that_allow_the_same_bound_nothing() -> None:
    kubepods = parse_cpus("8-127")
    machine_ = Machine(HYGON, kubepods, ALL_MEMS, parents={"kubepods": (kubepods, ALL_MEMS)})
    assert make_host(config(), machine_)[0].bounds == {}


def test_parents_say_nothing_of_a_topology_that_states_its_cgroup() -> None:
    tree = Topology(replace(machine(HYGON_7285_2S), parent_cpus=parse_cpus("0-31")))
    host, _ = make_host(config(), Machine(tree, parents={"kubepods/system": (parse_cpus("40"), ALL_MEMS)}))
    assert (format_cpus(host.usable), host.bounds) == ("0-31", {})


def test_available_cpus_outside_kubelets_cgroup_are_ignored_with_a_warning() -> None:
    host, [warning] = make_host(
        config(reserved='""', available="cpuset:64-127"), Machine(HYGON, parse_cpus("0-7"))
    )
    assert format_cpus(host.usable) == "0-7"
    assert warning == "no CPU of AvailableResources is one of kubelet's cgroup (0-7): ignored"


def test_offline_cpus_are_not_usable() -> None:
    tree = topology(OFFLINE_CPUS)
    host, _ = make_host(config(), Machine(tree, tree.online | machine(OFFLINE_CPUS).offline))
    assert host.usable == tree.online


def test_a_topology_that_states_its_cgroup_counts_over_this_machines() -> None:
    tree = Topology(
        replace(machine(HYGON_7285_2S), parent_cpus=parse_cpus("0-31"), parent_mems=parse_cpus("0"))
    )
    host, _ = make_host(config(), Machine(tree, parse_cpus("32-63"), parse_cpus("1")))
    assert (format_cpus(host.usable), format_cpus(host.mems)) == ("0-31", "0")


@pytest.mark.parametrize(("parent", "mems"), [(None, "0-7"), ("0-1", "0-1"), ("1,99", "1"), ("99", "0-7")])
def test_memory_nodes_are_those_kubelets_cgroup_allows_if_there_are_any(
    parent: Optional[str], mems: str
) -> None:
    given = None if parent is None else parse_cpus(parent)
    host, _ = make_host(config(), Machine(HYGON, parent_mems=given))
    assert format_cpus(host.mems) == mems


# ---------------------------------------------------------------------- reserved

RESERVATIONS: dict[str, tuple[str, str, str]] = {
    "none": ('""', "", ""),
    "a quantity takes whole cores": ("750m", "", "0,64"),
    "a quantity goes on in the same L3": ("4", "", "0-1,64-65"),
    "kubelet's own come first": ("2", "8,72", "8,72"),
    "a set": ("cpuset:4,68", "", "4,68"),
    "a set, whatever kubelet's is": ("cpuset:4,68", "8,72", "4,68"),
    "all but a set": ("exclude-cpuset:2-63,66-127", "", "0-1,64-65"),
    "a cgroup": ("cgroup:/system", "", "1,65"),
}


@pytest.mark.parametrize("case", RESERVATIONS)
def test_reserved_cpus(case: str) -> None:
    wanted, kubelet, expected = RESERVATIONS[case]
    seen = Machine(HYGON, kubelet_reserved=parse_cpus(kubelet))
    host, warnings = make_host(config(reserved=wanted), seen, {"/system": parse_cpus("1,65")})
    assert (format_cpus(host.reserved), warnings) == (expected, ())
    assert host.usable == HYGON.online


def test_reserved_cpus_need_not_be_available() -> None:
    host, warnings = make_host(config(available="cpuset:1-15", reserved="cpuset:0"), Machine(HYGON))
    assert (format_cpus(host.usable), format_cpus(host.reserved), warnings) == ("0-15", "0", ())


def test_reserved_cpus_that_are_not_usable_are_left_out_with_a_warning() -> None:
    host, [warning] = make_host(config(reserved="cpuset:0,64,8"), Machine(HYGON, parse_cpus("0-7,64-71")))
    assert format_cpus(host.reserved) == "0,64"
    assert warning == "reserved CPUs 8 are not usable here (usable: 0-7,64-71)"


# ---------------------------------------------------------------------- kubelet's, and the engine


def test_kubelets_exclusive_cpus_are_nobodys_in_the_engine() -> None:
    own = {("uid", "app"): parse_cpus("60-61")}
    host, _ = make_host(config(), Machine(HYGON, kubelet_exclusive=own))
    assert host.kubelet_exclusive == own
    engine = make_engine(config(), host)
    assert not engine.node.shared & parse_cpus("60-61")
    assert not engine.grants


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_active_policy_is_made(name: str) -> None:
    assert make_policy(config(policy=name), HYGON).name == name


#: Another value than the default, of every option that a reload gives to policy, engine or host.
OTHER_VALUES = {
    "policy.Active": "none",
    "policy.ReservedResources.CPU": "2",
    "policy.AvailableResources.CPU": "0-63",
    "policy.balloons.BalloonTypes": "[{Name: a}]",
    "placement.cpus": "exclusive",
    "placement.ladder": "fine",
    "placement.unlimited": "ccx",
    "placement.besteffort": "ccx",
    "placement.l3": "require",
    "placement.smt": "hide",
    "placement.cfs_quota": "lift",
    "placement.prefer_isolated": "false",
    "placement.prefer_shared": "true",
    "placement.hints": "[]",
    "placement.colocate_pods": "true",
    "placement.colocate_namespaces": "true",
    "placement.max_moves": "0",
    "placement.move_exclusive": "true",
    "placement.memory": "pin",
    "placement.memory_only_nodes": "7",
    "placement.reserved_namespaces": "[]",
    "placement.unmanaged_namespaces": "[a]",
    "placement.unmanaged_handlers": "[a]",
    "policy.ReservedResources.Memory": "1Gi",
    "placement.preserve": "[{key: name, operator: Exists}]",
    "policy.balloons.ShowContainersInNrt": "true",
    "placement.size": "demand",
}
#: Those that say something only beside a balloon type, and those that the daemon reads itself.
OTHERS = {
    "policy.balloons.AllocatorTopologyBalancing",
    "policy.balloons.LoadClasses",
    "policy.balloons.PreferSpreadOnPhysicalCores",
    "placement.fail_closed_namespaces",
}


def parts_of(text: str) -> tuple[object, ...]:
    """All that a reload hands to the engine."""
    found = read(text).config
    policy = make_policy(found, HYGON)
    host, _ = make_host(found, Machine(HYGON))
    return policy.name, getattr(policy, "settings", None), engine_options(found), host


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_a_change_of_any_option_reaches_policy_engine_or_host(key: str) -> None:
    assert parts_of(f"{key}: {OTHER_VALUES[key]}") != parts_of("{}")


def test_no_option_of_placement_is_forgotten() -> None:
    placing = {option.key for option in OPTIONS if option.key.startswith(("policy.", "placement."))}
    assert placing == OTHER_VALUES.keys() | OTHERS
