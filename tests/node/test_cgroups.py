"""Cpusets are read alike from cgroup v1, v2 and hybrid trees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import pytest

from cri_proxy.node.cgroups import KUBEPODS, Cgroups, Cpusets
from policies.machine.cpus import NO_CPUS, parse_cpus

POD = "/kubepods/burstable/pod1"
TREES = ("v1", "v2", "hybrid")


def make_tree(kind: str, root: Path, groups: Mapping[str, tuple[str, str]]) -> Cgroups:
    """Cgroups by path with their CPUs and memory nodes; on v2 those with "" inherit."""
    base = root if kind == "v2" else root / "cpuset"
    if kind == "hybrid":
        (root / "unified" / "kubepods").mkdir(parents=True)
    for path, (cpus, mems) in groups.items():
        folder = base / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        effective = ("cpuset.cpus.effective", "cpuset.mems.effective")
        names = effective if kind == "v2" else ("cpuset.effective_cpus", "cpuset.effective_mems")
        for name, text in zip((*names, "cpuset.cpus", "cpuset.mems"), (cpus, mems, cpus, mems)):
            (folder / name).write_text(text + "\n")
    return Cgroups(root, root / "proc")


def cpusets(cpus: str, mems: str) -> Cpusets:
    return Cpusets(parse_cpus(cpus), parse_cpus(mems))


# ---------------------------------------------------------------------- what a cgroup may use


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("0-7", "0-1")),
        ("/kubepods", ("2-7", "0")),
        (POD, ("4-5", "0")),
        ("kubepods", ("2-7", "0")),
        ("/kubepods/besteffort/pod9/app", ("2-7", "0")),
        ("/kubepods/burstable", ("2-7", "0")),
        ("/elsewhere", ("0-7", "0-1")),
    ],
    ids=["root", "kubepods", "pod", "no slash", "missing", "empty", "outside"],
)
def test_what_may_be_used_is_the_nearest_ancestors(
    kind: str, path: str, expected: tuple[str, str], tmp_path: Path
) -> None:
    groups = {
        "/": ("0-7", "0-1"),
        "/kubepods": ("2-7", "0"),
        "/kubepods/burstable": ("", ""),
        POD: ("4-5", "0"),
    }
    assert make_tree(kind, tmp_path, groups).effective(path) == cpusets(*expected)


def test_v1_without_effective_files_shows_the_configured_ones(tmp_path: Path) -> None:
    tree = make_tree("v1", tmp_path, {"/kubepods": ("0-3", "0")})
    for path in (tmp_path / "cpuset" / "kubepods").glob("cpuset.effective_*"):
        path.unlink()
    assert tree.effective("/kubepods") == cpusets("0-3", "0")


@pytest.mark.parametrize("kind", TREES)
def test_without_cpusets_nothing_is_known(kind: str, tmp_path: Path) -> None:
    tree = make_tree(kind, tmp_path, {})
    assert tree.effective("/kubepods") is None
    assert tree.configured("/kubepods") is None


def test_the_search_stays_below_the_mount(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    for name in ("cpuset.cpus.effective", "cpuset.mems.effective"):
        (tmp_path / name).write_text("0-7")
    root.mkdir()
    assert Cgroups(root).effective("/kubepods") is None


@pytest.mark.parametrize("kind", TREES)
def test_exact_is_of_this_very_cgroup(kind: str, tmp_path: Path) -> None:
    tree = make_tree(kind, tmp_path, {"/": ("0-7", "0"), "/kubepods": ("2-7", "0")})
    assert tree.exact("/kubepods") == cpusets("2-7", "0")
    assert tree.exact("/kubepods/gone") is None


# ---------------------------------------------------------------------- what was written


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize(
    ("path", "expected"),
    [(POD, ("4-5", "0")), ("/kubepods", ("", "")), ("/gone", None)],
    ids=["set", "inherited", "gone"],
)
def test_configured_is_what_was_written_and_no_ancestors(
    kind: str, path: str, expected: Optional[tuple[str, str]], tmp_path: Path
) -> None:
    tree = make_tree(kind, tmp_path, {"/": ("0-7", "0"), "/kubepods": ("", ""), POD: ("4-5", "0")})
    assert tree.configured(path) == (None if expected is None else cpusets(*expected))


@pytest.mark.parametrize(("kind", "inherited"), [("v1", ""), ("v2", "2-7"), ("hybrid", "")])
def test_an_empty_cpuset_is_inherited_on_v2_alone(kind: str, inherited: str, tmp_path: Path) -> None:
    tree = make_tree(kind, tmp_path, {POD: ("2-7", "0")})
    (tree.base / POD.lstrip("/") / "cpuset.cpus").write_text("\n")
    assert tree.configured(POD) == Cpusets(NO_CPUS, parse_cpus("0"), parse_cpus(inherited))


def test_a_file_that_holds_no_cpu_list_counts_as_none(tmp_path: Path) -> None:
    assert make_tree("v2", tmp_path, {"/kubepods": ("all", "0")}).configured("/kubepods") is None


# ---------------------------------------------------------------------- where things are


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("path", KUBEPODS)
def test_kubelets_cgroup_is_found_by_its_usual_names(kind: str, path: str, tmp_path: Path) -> None:
    assert make_tree(kind, tmp_path, {path: ("0", "0")}).kubepods() == path


@pytest.mark.parametrize("kind", TREES)
def test_without_kubelets_cgroup_there_is_no_path(kind: str, tmp_path: Path) -> None:
    assert make_tree(kind, tmp_path, {"/system.slice": ("0", "0")}).kubepods() == ""


V1_LINES = "12:cpu,cpuacct:/a\n4:cpuset:/kubepods/pod1\n1:name=systemd:/b\n"
PROCESSES: dict[str, tuple[str, str, Optional[str]]] = {
    "v1": ("v1", V1_LINES, "/kubepods/pod1"),
    "v1 with controllers together": ("v1", "4:cpu,cpuset:/x\n", "/x"),
    "v1 without cpusets": ("v1", "4:cpu:/x\n", None),
    "hybrid": ("hybrid", V1_LINES + "0::/unified\n", "/kubepods/pod1"),
    "v2": ("v2", "0::/kubepods.slice/a.scope\n", "/kubepods.slice/a.scope"),
    "v2 with a colon in the name": ("v2", "0::/a:b:c\n", "/a:b:c"),
    "v2 beside named hierarchies": ("v2", "1:name=systemd:/b\n0::/x\n", "/x"),
}


@pytest.mark.parametrize("case", PROCESSES)
def test_a_process_is_in_the_cgroup_of_the_hierarchy_with_cpusets(case: str, tmp_path: Path) -> None:
    kind, text, expected = PROCESSES[case]
    tree = make_tree(kind, tmp_path, {"/": ("0", "0")})
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(text)
    assert tree.of_process(7) == expected


ID = "6b0f8a1c"
SCOPE = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"
CRUN = f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"
#: Where its first process is, what is configured from the container's cgroup on down, and which is the container's.
CONTAINERS: dict[str, tuple[str, Mapping[str, str], Optional[str]]] = {
    "cgroupfs driver": (f"{POD}/{ID}", {f"{POD}/{ID}": "4-5"}, f"{POD}/{ID}"),
    "systemd driver": (SCOPE, {SCOPE: "4-5"}, SCOPE),
    "moved into a child": (f"{SCOPE}/init", {SCOPE: "4-5", f"{SCOPE}/init": ""}, SCOPE),
    "moved far down": (f"{POD}/{ID}/a/b", {f"{POD}/{ID}": "4-5", f"{POD}/{ID}/a": ""}, f"{POD}/{ID}"),
    "a child with a cpuset of its own": (f"{SCOPE}/init", {SCOPE: "4-5", f"{SCOPE}/init": "4"}, SCOPE),
    "a child without the controller": (f"{SCOPE}/init", {SCOPE: ""}, SCOPE),
    "nothing is set": (f"{SCOPE}/init", {SCOPE: "", f"{SCOPE}/init": ""}, SCOPE),
    "crun": (f"{CRUN}/container", {CRUN: "4-5", f"{CRUN}/container": "4-5"}, CRUN),
    "crun before 1.11": (f"{CRUN}/container", {CRUN: "", f"{CRUN}/container": "4-5"}, f"{CRUN}/container"),
    "the same, and moved into a child": (
        f"{CRUN}/container/init",
        {CRUN: "", f"{CRUN}/container": "4-5", f"{CRUN}/container/init": ""},
        f"{CRUN}/container",
    ),
    "its id again further down": (f"{POD}/{ID}/docker/{ID}", {f"{POD}/{ID}": "4-5"}, f"{POD}/{ID}"),
    "another's": (f"{POD}/0815", {f"{POD}/0815": "4-5"}, None),
}


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("case", CONTAINERS)
def test_a_containers_cgroup_is_the_one_with_its_id_wherever_its_process_has_gone(
    case: str, kind: str, tmp_path: Path
) -> None:
    process, configured, expected = CONTAINERS[case]
    tree = make_tree(kind, tmp_path, {path: (cpus, "0") for path, cpus in configured.items()})
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"4:cpuset:{process}\n0::{process}\n")
    assert tree.of_container(7, ID) == expected


def test_a_container_whose_process_is_gone_has_no_cgroup(tmp_path: Path) -> None:
    assert make_tree("v2", tmp_path, {}).of_container(7, ID) is None


# ---------------------------------------------------------------------- whether it binds anything


def populate(tree: Cgroups, path: str, processes: str) -> None:
    """Processes of a cgroup itself; on v2 its ancestors tell of them, too."""
    folder = tree.base / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(processes)
    if not tree.is_v1:
        for each in (folder, *folder.parents):
            if tree.base in each.parents:
                (each / "cgroup.events").write_text(f"populated {int(bool(processes))}\nfrozen 0\n")


# ---------------------------------------------------------------------- memory

#: As kernel 6.12 has it (cgroup v2), of a container with 1 MiB of tmpfs; the rows that count are not together.
V2_NUMA_STAT = """\
anon N0=8388608 N1=4096
file N0=3145728 N1=0
kernel_stack N0=32768 N1=0
pagetables N0=131072 N1=4096
sec_pagetables N0=0 N1=0
shmem N0=1048576 N1=0
file_mapped N0=0 N1=0
file_dirty N0=0 N1=0
file_writeback N0=0 N1=0
swapcached N0=0 N1=0
anon_thp N0=0 N1=0
file_thp N0=0 N1=0
shmem_thp N0=0 N1=0
inactive_anon N0=8380416 N1=4096
active_anon N0=1056768 N1=0
inactive_file N0=2097152 N1=0
active_file N0=0 N1=0
unevictable N0=0 N1=0
slab_reclaimable N0=524288 N1=8192
slab_unreclaimable N0=262144 N1=0
workingset_refault_anon N0=0 N1=0
workingset_refault_file N0=0 N1=0
"""
#: v1, in pages: its own, and with the cgroups below.
V1_NUMA_STAT = """\
total=7 N0=6 N1=1
file=4 N0=4 N1=0
anon=2 N0=1 N1=1
unevictable=1 N0=1 N1=0
hierarchical_total=70 N0=60 N1=10
hierarchical_file=40 N0=40 N1=0
hierarchical_anon=20 N0=10 N1=10
hierarchical_unevictable=10 N0=10 N1=0
"""
V1_WITHOUT_HIERARCHY = "".join(V1_NUMA_STAT.splitlines(keepends=True)[:4])
PAGE = os.sysconf("SC_PAGE_SIZE")
NUMA_STATS = {
    "v2": (V2_NUMA_STAT, ((0, 8388608 + 1048576 + 32768 + 131072 + 262144), (1, 8192))),
    "v2 of an old kernel": ("anon N0=4096\nfile N0=8192\nshmem N0=0\n", ((0, 4096),)),
    "v2, nothing held": ("anon N0=0\nfile N0=8192\n", ()),
    "v1": (V1_NUMA_STAT, ((0, 20 * PAGE), (1, 10 * PAGE))),
    "v1 of an old kernel": (V1_WITHOUT_HIERARCHY, ((0, 2 * PAGE), (1, PAGE))),
    "empty": ("", None),
    "garbage": ("anon N0=many\n", None),
    "of a machine without NUMA": (None, None),
}


@pytest.mark.parametrize("case", NUMA_STATS)
def test_what_is_held_is_what_cannot_be_given_back(case: str, tmp_path: Path) -> None:
    text, held = NUMA_STATS[case]
    kind = case[:2] if case[:2] in TREES else "v2"
    tree = make_tree(kind, tmp_path, {POD: ("", "")})
    folder = (tmp_path / "memory" if kind == "v1" else tmp_path) / POD.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    tree = Cgroups(tmp_path, tmp_path / "proc")
    if text is not None:
        (folder / "memory.numa_stat").write_text(text)
    assert tree.held(POD) == held


def test_of_a_hybrid_tree_memory_may_be_on_v2(tmp_path: Path) -> None:
    tree = make_tree("hybrid", tmp_path, {POD: ("", "")})
    folder = tmp_path / "unified" / POD.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "memory.numa_stat").write_text("anon N0=4096\n")
    assert tree.held(POD) == ((0, 4096),)


#: Where the first process is, where any others are; what there is to say of it.
WHEREABOUTS: dict[str, tuple[str, Mapping[str, str], Optional[str]]] = {
    "in the pod's cgroup, as a sandbox": (POD, {f"{POD}/{ID}": "", POD: "7\n"}, POD),
    "beside an own cgroup that was not made": (f"{POD}/sandbox", {f"{POD}/sandbox": "7\n"}, f"{POD}/sandbox"),
    "its own processes are deeper": (POD, {f"{POD}/{ID}": "", f"{POD}/{ID}/docker/1": "9\n"}, ""),
    "where no pod is": ("/elsewhere", {}, None),
}


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("case", WHEREABOUTS)
def test_a_cgroup_that_no_process_is_in_or_below_binds_nothing(case: str, kind: str, tmp_path: Path) -> None:
    process, populated, expected = WHEREABOUTS[case]
    tree = make_tree(kind, tmp_path, {"/": ("0-7", "0")})
    for path, processes in populated.items():
        populate(tree, path, processes)
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"4:cpuset:{process}\n0::{process}\n")
    assert tree.outside(7, f"{POD}/{ID}") == expected


@pytest.mark.parametrize("kind", TREES)
def test_of_a_process_that_is_gone_nothing_is_said(kind: str, tmp_path: Path) -> None:
    tree = make_tree(kind, tmp_path, {POD: ("0-7", "0")})
    assert tree.outside(7, f"{POD}/{ID}") is None


def test_a_process_that_is_gone_has_no_cgroup(tmp_path: Path) -> None:
    assert make_tree("v2", tmp_path, {}).of_process(7) is None


@pytest.mark.parametrize(
    ("home", "told", "expected"),
    [
        ("/kubepods/podA/ours", "/../../podB/theirs", "/kubepods/podB/theirs"),
        ("/kubepods/podA/ours", "/../theirs", "/kubepods/podA/theirs"),
        ("/kubepods/podA/ours", "/../../../system.slice/x", "/system.slice/x"),
        ("", "/../theirs", None),
    ],
)
def test_in_a_cgroup_namespace_of_our_own_paths_are_told_from_the_mount(
    home: str, told: str, expected: Optional[str], tmp_path: Path
) -> None:
    tree = make_tree("v2", tmp_path, {"/kubepods/podA/ours": ("0", "0"), "/kubepods/podB/theirs": ("0", "0")})
    for path in tmp_path.rglob("kubepods/**/"):
        (path / "cgroup.procs").write_text("1\n")
    if home:
        (tmp_path / home.lstrip("/") / "cgroup.procs").write_text(f"12\n{os.getpid()}\n")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(f"0::{told}\n")
    assert tree.of_process(7) == expected


def test_own_cpusets_are_found_by_ids_whatever_the_driver_and_below_containers_nothing_is_read(
    tmp_path: Path,
) -> None:
    ids = [f"{number:064x}" for number in range(5)]
    for path, cpus in {
        f"kubepods.slice/kubepods-podu.slice/cri-containerd-{ids[0]}.scope": "0-3\n",
        f"kubepods.slice/kubepods-podu.slice/cri-containerd-{ids[0]}.scope/crio-{ids[1]}.scope": "7\n",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-podv.slice/crio-{ids[2]}.scope": "\n",
        f"kubepods.slice/podw/{ids[3]}": "rubbish\n",
        f"system.slice/cri-containerd-{ids[4]}.scope": "5\n",
    }.items():
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "cpuset.cpus").write_text(cpus)
    assert Cgroups(tmp_path).own_cpusets(set(ids)) == {ids[0]: frozenset(range(4)), ids[2]: frozenset()}
    assert Cgroups(tmp_path / "system.slice").own_cpusets(set(ids)) == {}


def test_a_monitor_beside_its_container_is_not_taken_for_it(tmp_path: Path) -> None:
    """CRI-O's cgroupfs driver runs conmon in the pod's cgroup, in one of its own; systemd's does if it is told to."""
    ids = ["0" * 64, "1" * 64]
    for path, cpus in {
        f"kubepods/podu/crio-{ids[0]}": "1\n",
        f"kubepods/podu/crio-conmon-{ids[0]}": "0-7\n",
        f"kubepods/podu/crio-conmon-{ids[1]}.scope": "0-7\n",
    }.items():
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "cpuset.cpus").write_text(cpus)
    assert Cgroups(tmp_path).own_cpusets(set(ids)) == {ids[0]: frozenset({1})}


# ---------------------------------------------------------------------- what runs in a cgroup


@pytest.mark.parametrize("kind", TREES)
def test_the_threads_of_a_cgroup_are_those_below_it_too_and_none_of_other_pid_namespaces(
    kind: str, tmp_path: Path
) -> None:
    cgroups = make_tree(kind, tmp_path, {POD: ("", ""), f"{POD}/a": ("", ""), f"{POD}/a/nested": ("", "")})
    name = "cgroup.threads" if kind == "v2" else "tasks"
    for path, text in ((POD, "1\n"), (f"{POD}/a", "7\n9\n0\n0\n"), (f"{POD}/a/nested", "12\n")):
        (cgroups.base / path.lstrip("/") / name).write_text(text)
    assert cgroups.threads(f"{POD}/a") == {7, 9, 12}
    assert cgroups.threads(POD) == {1, 7, 9, 12}
    assert cgroups.threads(f"{POD}/gone") == set()


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("name", ["{}", "cri-containerd-{}.scope", "crio-{}", "crio-{}.scope"])
def test_a_containers_cgroup_is_found_in_its_pods_by_its_id(kind: str, name: str, tmp_path: Path) -> None:
    own, other = "c" * 64, "d" * 64
    names = [name.format(other), f"crio-conmon-{own}.scope", name.format(own)]
    cgroups = make_tree(kind, tmp_path, {f"{POD}/{each}": ("", "") for each in names})
    assert cgroups.below(POD, own) == cgroups.below(POD.lstrip("/"), own) == f"{POD}/{names[2]}"
    assert cgroups.below(POD, "e" * 64) == cgroups.below("/kubepods/gone", own) == ""
