"""What doctor reads of block I/O: where the controller is not passed on, and which disks know weights."""

from __future__ import annotations

from pathlib import Path

from cri_proxy.config.config import Config, read_config
from cri_proxy.doctor.facts import DiskFacts
from cri_proxy.doctor.io.disks import read_disk_facts
from cri_proxy.text.sources import SettingsSource


def config(text: str = "blockio: {Classes: {slow: [{Weight: 10}]}}") -> Config:
    return read_config([SettingsSource("c.yaml", text)]).config


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def cgroups(root: Path, **passed: str) -> Path:
    """A cgroup v2, with what each of these cgroups passes on."""
    base = root / "sys/fs/cgroup"
    write(base / "cgroup.controllers", "cpuset cpu io memory\n")
    (base / "kubepods.slice").mkdir()
    for path, names in passed.items():
        write(base / path.replace("_", "/") / "cgroup.subtree_control", f"{names}\n")
    return base


def disk(root: Path, name: str, scheduler: str, number: str = "8:0") -> None:
    write(root / "sys/block" / name / "queue/scheduler", f"{scheduler}\n")
    write(root / "sys/block" / name / "dev", f"{number}\n")


def test_the_first_cgroup_that_does_not_pass_the_controller_on_is_named(tmp_path: Path) -> None:
    base = cgroups(tmp_path)
    assert read_disk_facts(tmp_path, base, config()).off_below == "/"
    write(base / "cgroup.subtree_control", "cpu io\n")
    assert read_disk_facts(tmp_path, base, config()).off_below == "/kubepods.slice"
    write(base / "kubepods.slice/cgroup.subtree_control", "io\n")
    assert read_disk_facts(tmp_path, base, config("")) == DiskFacts(str(base))


def test_disks_that_weigh_have_bfq_or_costs(tmp_path: Path) -> None:
    base = cgroups(tmp_path)
    disk(tmp_path, "sda", "mq-deadline kyber [bfq] none")
    disk(tmp_path, "sdb", "[none] mq-deadline", "8:16")
    disk(tmp_path, "sdc", "[mq-deadline] none", "8:32")
    disk(tmp_path, "loop0", "[none]", "7:0")
    write(base / "io.cost.qos", "8:16 enable=1 ctrl=user min=100.00 max=100.00\n8:32 enable=0 ctrl=auto\n")
    found = read_disk_facts(tmp_path, base, config())
    assert found.schedulers == {"sda": "bfq", "sdb": "none", "sdc": "mq-deadline"}
    assert found.weighing == {"sda", "sdb"} and found.weighs
    assert not read_disk_facts(tmp_path, base, config("")).weighs


def test_v1_has_no_controllers_to_pass_on(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpuset/kubepods").mkdir(parents=True)
    base = tmp_path / "sys/fs/cgroup"
    assert read_disk_facts(tmp_path, base, config("")) == DiskFacts(is_v2=True)
    (base / "blkio").mkdir()
    assert read_disk_facts(tmp_path, base, config("")) == DiskFacts(str(base / "blkio"), False)
