"""Memory of containers below a described hierarchy of v2, and what v1 of this machine has."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.isolation.io.memory import PROMISED, Memory, promised_bytes
from cri_proxy.isolation.io.originals import Originals
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.writer import Outcome, Writer
from cri_proxy.isolation.memory_classes import HIGH, LOW, MIN, SWAP_MAX
from cri_proxy.isolation.model import BATCH, PROTECTED, IsolatedContainer
from cri_proxy.isolation.plan import Plan
from cri_proxy.node.cgroups import Cgroups
from policies.model import Qos
from tests.e2e.cgroups import remove_cgroup
from tests.isolation.kernel import KernelModel
from tests.machines import HYGON_7285_2S, VM_NO_CACHE_INFO
from tests.scenes import make_container, make_pod, topology

MIB = 1 << 20
CLASSES = "control: {memory: {classes: [{name: batch, swaplimitratio: 0.5, low: 1Mi}]}}"
BEFORE = {HIGH: "max\n", LOW: "0\n", MIN: "0\n", SWAP_MAX: "0\n"}


class MemoryNode:
    """Containers below ``root``, as ``Cgroups`` takes it, and what isolation writes there."""

    def __init__(self, folder: Path, root: Path, text: str) -> None:
        self.cgroups = Cgroups(root)
        self.subject = Memory(self.cgroups)
        self.originals = Originals(folder / "state", "boot")
        self.writer = Writer(KernelModel({}), self.originals, lambda: 0.0, [self.subject])
        self.config = read_config([SettingsSource("c.yaml", text)]).config
        self.paths: dict[str, str] = {}
        self.containers: list[IsolatedContainer] = []

    def add(self, key: str, cls: str, path: str, memory: int = 1) -> None:
        described = make_container("app", 1, qos=Qos.GUARANTEED, pod=make_pod("p"), memory=memory)
        self.containers.append(
            IsolatedContainer(key, f"default/p/{key}", cls, "", frozenset(), container=described)
        )
        self.paths[key] = path

    def round(self) -> Outcome:
        before = dict(self.originals.values)
        sight = Sight(self.containers, self.paths, topology(HYGON_7285_2S), self.config, before)
        return self.writer.apply(Plan(files=tuple(self.subject.settings(sight))))


def describe(root: Path, path: str, used: int = 0, cache: int = 0) -> None:
    folder = root / path.strip("/")
    folder.mkdir(parents=True)
    for name, text in BEFORE.items():
        (folder / name).write_text(text)
    (folder / "memory.current").write_text(f"{used + cache}\n")
    (folder / "memory.stat").write_text(f"anon {used}\ninactive_file {cache}\n")


@pytest.fixture
def described(tmp_path: Path) -> MemoryNode:
    root = tmp_path / "cgroup"
    for path in ("/kubepods", "/kubepods/pod1"):
        describe(root, path)
    return MemoryNode(tmp_path, root, CLASSES)


def picture(root: Path) -> dict[Path, str]:
    # What a shorter value leaves of a longer one in a plain file is behind the first line.
    return {path: path.read_text().splitlines()[0] for path in root.rglob("memory.*")}


def read(node: MemoryNode, path: str, name: str) -> str:
    return Path(node.cgroups.memory_folder(path), name).read_text().strip()


def test_containers_and_all_above_have_their_values_and_then_those_of_before(described: MemoryNode) -> None:
    root = Path(described.cgroups.memory_folder(""))
    describe(root, "/kubepods/pod1/c1", used=MIB, cache=900 * MIB)
    describe(root, "/kubepods/pod1/c2")
    pictured = picture(root)
    described.add("c1", BATCH, "/kubepods/pod1/c1")
    described.add("c2", PROTECTED, "/kubepods/pod1/c2", memory=2)
    assert not described.round().refusals
    assert read(described, "/kubepods/pod1/c1", HIGH) == str(512 * MIB)
    assert read(described, "/kubepods/pod1/c1", SWAP_MAX) == "max"
    assert read(described, "/kubepods/pod1/c2", LOW) == str(2048 * MIB)
    assert read(described, "/kubepods/pod1", LOW) == read(described, "/kubepods", LOW) == str(2049 * MIB)
    described.containers.clear()
    assert described.round().is_clean
    assert picture(root) == pictured


def test_a_value_that_the_runtimes_update_has_reset_is_written_again_and_nothing_is_told(
    described: MemoryNode,
) -> None:
    describe(Path(described.cgroups.memory_folder("")), "/kubepods/pod1/c1")
    described.add("c1", BATCH, "/kubepods/pod1/c1")
    for _ in range(5):
        assert not described.round().drift
        high = Path(described.cgroups.memory_folder("/kubepods/pod1/c1"), HIGH)
        assert high.read_text().strip() == str(512 * MIB)
        high.write_text("max\n")  # systemd writes all values of a unit of which one is set


def test_the_kernel_counts_pages() -> None:
    subject, page = Memory(Cgroups(Path("/nowhere"))), os.sysconf("SC_PAGE_SIZE")
    assert subject.is_same("", str(page), str(page + 1)) and subject.is_same("", "max", "max")
    assert not subject.is_same("", str(page), str(2 * page)) and not subject.is_same("", "max", "0")


def test_a_part_of_the_machines_memory_is_promised_where_it_is_known() -> None:
    machine = topology(HYGON_7285_2S)
    sizes = [machine.memory_bytes(node) or 0 for node in machine.memory_nodes]
    assert promised_bytes(machine) == (int(sum(sizes) * PROMISED) if all(sizes) else None)
    if all(sizes):
        assert promised_bytes(machine, 1 << 30) == sum(sizes) - (1 << 30)
    assert promised_bytes(topology(VM_NO_CACHE_INFO), 1 << 60) in (0, None)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    cgroups = Cgroups()
    path = f"/crm-memory-{os.getpid()}"
    folder = Path(cgroups.memory_folder(path))
    if os.geteuid() or not (folder.parent / "memory.limit_in_bytes").exists():
        pytest.skip("it needs root, and memory on cgroup v1")
    (folder / "c1").mkdir(parents=True)
    yield path
    remove_cgroup(folder, time.monotonic() + 20.0)


def test_on_v1_nothing_is_written_and_what_cannot_be_had_is_said(real: str, tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, Path("/sys/fs/cgroup"), CLASSES)
    node.add("c1", BATCH, f"{real}/c1")
    outcome = node.round()
    assert outcome.is_clean and not outcome.refusals
    assert [note.partition(" ")[0] for note in node.subject.notes()] == [HIGH, LOW, SWAP_MAX]
