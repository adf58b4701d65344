"""What of the node cannot be looked at is one sentence that names the place, whatever the kernel says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.machine import MachineReader, NoMachine
from policies.machine.cpus import format_cpus
from tests.machines import MONOLITHIC_2S, write_sysfs

#: No file system has it, and to look for it is an error of its own.
IMPOSSIBLE = Path("/" + "x" * 300)


@pytest.mark.parametrize("what", ["the source", "the cgroups"])
def test_a_place_that_cannot_be_looked_at_is_no_machine(what: str, tmp_path: Path) -> None:
    reader = MachineReader(Path("/sys"), Cgroups(tmp_path), tmp_path)
    if what == "the source":
        reader.source = IMPOSSIBLE
        assert reader.signature() == ""
    else:
        reader.cgroups.base = IMPOSSIBLE
    with pytest.raises(NoMachine, match=r"^/x+.*: File name too long"):
        reader.read()


#: What the kernel says of memory, by whether a sysfs without NUMA nodes is believed beside it.
ALLOWED = {
    "no NUMA": ("Mems_allowed_list:\t0\n", True),
    "it does not tell": ("Name:\tdaemon\n", True),
    "another format": ("Mems_allowed_list:\t?\n", True),
    "two nodes": ("Mems_allowed_list:\t0-1\n", False),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_a_sysfs_that_hides_the_numa_nodes_is_no_machine(case: str, tmp_path: Path) -> None:
    text, is_believed = ALLOWED[case]
    root = write_sysfs(MONOLITHIC_2S, tmp_path)
    nodes = root / "devices/system/node"
    shutil.rmtree(nodes)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text(text)
    reader = MachineReader(root, Cgroups(tmp_path), tmp_path, tmp_path / "proc")
    if is_believed:
        assert {cpu.numa for cpu in reader.read().topology.data.cpus} == {0}
    else:
        with pytest.raises(NoMachine, match=f"^{nodes} names no NUMA node, .* nodes 0-1"):
            reader.read()


# ---------------------------------------------------------------------- what pods' cgroups allow


def limit(base: Path, path: str, cpus: str) -> None:
    folder = base / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpuset.cpus.effective").write_text(f"{cpus}\n")
    (folder / "cpuset.mems.effective").write_text("0\n")


def test_pods_with_one_parent_are_read_together_and_a_pod_with_another_is_news(tmp_path: Path) -> None:
    base = tmp_path / "cgroup"
    for path in ("", "kubepods", "kubepods/pod3"):
        limit(base, path, "0-7")
    for path in ("kubepods/burstable", "kubepods/burstable/pod1"):
        limit(base, path, "2-7")
    for path in ("kubepods/system", "kubepods/system/pod2"):
        limit(base, path, "0-1")
    reader = MachineReader(write_sysfs(MONOLITHIC_2S, tmp_path), Cgroups(base), tmp_path, tmp_path / "proc")
    pods = ["/kubepods/burstable/pod1", "/kubepods/system/pod2", "/kubepods/pod3"]

    def parents() -> dict[str, str]:
        return {path: format_cpus(cpus) for path, (cpus, _) in reader.read(None, pods).parents.items()}

    assert parents() == {"kubepods/burstable": "2-7", "kubepods/system": "0-1", "kubepods": "0-7"}
    assert reader.note_cgroup("/kubepods/pod4")  # where kubelet's cgroup is was not known
    parents()
    # Of a pod's cgroup that is not there yet its parent's counts.
    for known in ("/kubepods/pod4", "/kubepods/system/pod5", ""):
        assert not reader.note_cgroup(known), known
    limit(base, "kubepods/system/pod5", "1")
    assert reader.note_cgroup("/kubepods/system/pod5")
    assert parents()["kubepods/system/pod5"] == "1"
    assert not reader.note_cgroup("/kubepods/system/pod5")


def test_a_file_that_describes_borders_no_machine_has_is_settled_with_warnings(tmp_path: Path) -> None:
    source = tmp_path / "machine.json"
    source.write_text(json.dumps({"cpus": [{"cpu": c, "core": 0, "l3": 0, "socket": c} for c in range(4)]}))
    reader = MachineReader(source, Cgroups(tmp_path), tmp_path)
    assert [len(socket.cpus) for socket in reader.read().topology.at("socket")] == [4]
    assert len(reader.warnings) == 2 and all("the machine's description shows" in w for w in reader.warnings)
