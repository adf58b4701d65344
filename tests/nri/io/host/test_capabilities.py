from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.config.config import read_config
from cri_proxy.config.options.nri_capabilities import CLASSES, REACTIONS, Cdi, Reaction
from cri_proxy.nri.io.host.capabilities import (
    DEV,
    SYS_DEV,
    Capabilities,
    HostFiles,
    cdi_of,
    classes_of,
    isolated_by,
    reactions,
)
from cri_proxy.nri.io.host.host import PluginRefused
from cri_proxy.text.sources import SettingsSource
from policies.model import NO_CONSTRAINT
from tests.daemon.parts import parts
from tests.scenes import make_container

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Only root makes devices.")
NULL = nri.LinuxDevice(path="/dev/zilch", type="c", major=1, minor=3)
NOBODYS = nri.LinuxDevice(path="/dev/x", type="c", major=4095, minor=7)


def test_a_device_is_found_by_its_numbers(tmp_path: Path) -> None:
    files = HostFiles(SYS_DEV, DEV, tmp_path / "made")
    assert files.node(NULL) == "/dev/null"
    assert not (tmp_path / "made").exists()


def test_a_node_of_the_wanted_name_is_only_taken_if_it_is_that_device(tmp_path: Path) -> None:
    files = HostFiles(SYS_DEV, DEV, tmp_path / "made")
    assert files.node(nri.LinuxDevice(path="/dev/zero", type="c", major=1, minor=3)) == "/dev/null"


@needs_root
def test_a_node_that_the_host_lacks_is_made_once(tmp_path: Path) -> None:
    files = HostFiles(tmp_path / "sys", tmp_path / "dev", tmp_path / "made")
    path = files.node(NULL)
    found = Path(path).stat()
    assert stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE(found.st_mode) == 0o666
    assert files.node(NULL) == path
    assert Path(path).stat() == found


@needs_root
def test_a_node_has_the_mode_and_the_owner_that_are_asked_for(tmp_path: Path) -> None:
    files = HostFiles(SYS_DEV, DEV, tmp_path / "made")
    host = Path("/dev/null").stat()
    mode = stat.S_IMODE(host.st_mode)
    same = nri.LinuxDevice(path="/dev/null", type="c", major=1, minor=3)
    same.file_mode.value, same.uid.value = mode, host.st_uid
    assert files.node(same) == "/dev/null"
    for asked, wanted in (
        ({"file_mode": 0o640}, (0o640, host.st_uid, host.st_gid)),
        ({"uid": 7, "gid": 8}, (mode, 7, 8)),
        ({"file_mode": 0o600, "gid": 9}, (0o600, host.st_uid, 9)),
    ):
        device = nri.LinuxDevice(path="/dev/null", type="c", major=1, minor=3)
        for name, value in asked.items():
            getattr(device, name).value = value
        found = Path(files.node(device)).stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == wanted
        assert found.st_rdev == os.makedev(1, 3)
    assert len(list((tmp_path / "made").iterdir())) == 3


def test_what_cannot_be_made_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = HostFiles(tmp_path / "sys", tmp_path / "dev", tmp_path / "file")
    assert files.node(NOBODYS) == ""
    assert files.node(nri.LinuxDevice(path="/dev/p", type="p")) == ""


@pytest.mark.parametrize(
    ("name", "version", "cdi"),
    [
        ("containerd", "1.6.20~ds1", Cdi.NONE),
        ("containerd", "v1.7.24", Cdi.FIELD),
        ("containerd", "2.1.0", Cdi.FIELD),
        ("cri-o", "1.26.3", Cdi.ANNOTATION),
        ("cri-o", "1.34.0", Cdi.FIELD),
        ("iSulad", "2.1.5", Cdi.NONE),
        ("containerd", "", Cdi.NONE),
    ],
)
def test_runtimes_take_cdi_devices_in_their_own_way(name: str, version: str, cdi: Cdi) -> None:
    assert cdi_of(name, version) is cdi


@pytest.mark.parametrize(
    ("name", "version", "classes"),
    [
        ("containerd", "1.5.9", ()),
        ("containerd", "1.6.20~ds1", ("rdt_class",)),
        ("containerd", "v1.7.24", CLASSES),
        ("containerd", "2.1.0", CLASSES),
        ("cri-o", "1.26.3", CLASSES),
        ("iSulad", "2.1.5", ()),
        ("containerd", "", ()),
    ],
)
def test_runtimes_take_classes_from_their_annotations(
    name: str, version: str, classes: tuple[str, ...]
) -> None:
    assert classes_of(name, version) == classes


def test_what_is_set_to_be_warned_of_goes_before_the_default() -> None:
    assert reactions([]) == REACTIONS
    found = reactions(["rlimits"])
    assert (found["rlimits"], found["hooks"]) == (Reaction.WARN, Reaction.REJECT)


CLASSES_OF_ALL = """\
control:
  rdt: {enable: true, partitions: {p: {l3Allocation: 100%, classes: {gold: {l3Allocation: 50%}}}}}
  blockio: {classes: {slow: [{Weight: 10}]}}
"""


def test_isolation_does_what_is_enforced_and_of_classes_those_that_are_configured() -> None:
    def of(isolation: str) -> set[str]:
        loaded = read_config([SettingsSource("c.yaml", f"{CLASSES_OF_ALL}isolation: {{{isolation}}}")])
        found = isolated_by(loaded.config)
        return {*found, *(cls for classes in found.values() for cls in classes)}

    assert of("caches: observe, disks: observe, scheduling: observe") == set()
    assert of("bandwidth: enforce") == {"rdt_class", "gold", "system/default"}
    assert of("disks: enforce, scheduling: enforce") == {"blockio_class", "slow", "scheduler", "io_priority"}


async def test_a_class_that_an_update_asks_for_is_the_containers_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = parts(tmp_path, monkeypatch)
    settings = f"{CLASSES_OF_ALL}isolation: {{disks: enforce}}\nstate: {{directory: {tmp_path}}}"
    services.config = read_config([SettingsSource("c.yaml", settings)]).config
    engine = services.node_state.engine
    assert engine is not None and services.node_state.enforcing
    engine.bind(engine.admit(make_container("c"), NO_CONSTRAINT, 0.0).ticket, "key", 0.0)
    update = nri.ContainerUpdate(container_id="as plugins know it")
    update.linux.resources.blockio_class.value = "slow"
    capabilities = Capabilities(services)
    assert capabilities.resources(update, container_id="key").ByteSize() == 0
    assert engine.grants["key"].asked == (("blockio_class", "slow"),)
    for cls, key in (("fast", "key"), ("slow", "of no record")):
        update.linux.resources.blockio_class.value = cls
        with pytest.raises(PluginRefused, match="only when a container is created; isolation.disks: enforce"):
            capabilities.resources(update, container_id=key)
    assert engine.grants["key"].asked == (("blockio_class", "slow"),)
