"""Clocks on the kernel's own cpufreq and cpuidle: its rules, what CPUs have of their classes, and the way back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cri_proxy.bounded_files import read_text
from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.isolation.io.clocks import Clocks
from cri_proxy.isolation.io.originals import BOOT_ID, FILE_NAME, Originals, put_back, write_file
from cri_proxy.isolation.io.resctrl import Resctrl
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.writer import Outcome, Writer
from cri_proxy.isolation.model import IsolatedContainer
from cri_proxy.isolation.plan import Plan
from cri_proxy.node.sysfs import read_sysfs
from policies.machine.cpus import parse_cpus
from policies.machine.topology import Topology
from tests.vm.guest.clock_rules import WORKER_S, differences
from tests.vm.guest.node import Node, until

CPU = Path("/sys/devices/system/cpu")
_ON = """\
isolation: {clocks: enforce}
control:
  cpu:
    classes:
      protected: {minFreq: 2.4GHz, freqGovernor: performance, disabledCstates: [C2, C3]}
      slow: {maxFreq: 2GHz, freqGovernor: powersave}
    idle: slow
"""
FAST, SLOW = ("2500000", "3000000", "performance"), ("1200000", "2000000", "powersave")
_FILES = ("scaling_min_freq", "scaling_max_freq", "scaling_governor")


async def the_kernel_keeps_the_rules_that_the_model_of_clocks_has(node: Node) -> None:
    before = _picture()
    # The first CPU may be one that cannot go offline.
    policy = next(each for each in _policies() if 0 not in _cpus(each))
    cpus = _cpus(policy)
    disable = CPU / f"cpu{min(cpus)}" / "cpuidle" / "state3" / "disable"
    told = await asyncio.to_thread(
        differences, policy, disable, write_file, read_text, lambda is_online: _set_online(cpus, is_online)
    )
    assert told == [], "\n".join(told)
    await until(_picture, before.__eq__)


async def the_kernel_has_what_classes_say_and_all_of_it_comes_back(node: Node) -> None:
    """By the product's subject and writer alone: no container runs."""
    with _all_put_back(), TemporaryDirectory() as folder:
        await asyncio.to_thread(_kept_by_the_writer, Path(folder))
        await asyncio.sleep(WORKER_S)


def _kept_by_the_writer(folder: Path) -> None:
    """CPUs of each policy are owned in turn, over a restart of the daemon each; then those of one go and come."""
    for policy in _policies():
        owned = _cpus(policy)
        assert not _round(folder, owned, Clocks()).refusals
        _wait_for(owned)
    for is_online in (False, True):
        _set_online(owned, is_online)
        assert not _round(folder, frozenset(), Clocks()).refusals
    _wait_for(frozenset())
    _set_online(owned, False)
    told = put_back(folder)
    assert told and all(each.endswith("its CPUs are offline") for each in told), told
    _set_online(owned, True)
    assert put_back(folder) == [] and not (folder / FILE_NAME).exists()


def _wait_for(owned: frozenset[int]) -> None:
    """Limits show when a worker of the kernel's has come to them."""
    end_s = time.monotonic() + WORKER_S
    while not _is_as_wanted(owned):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def _round(folder: Path, owned: frozenset[int], subject: Clocks) -> Outcome:
    originals = Originals(folder, BOOT_ID.read_text().strip())
    originals.load()
    here = Topology(read_sysfs().data)
    config = read_config([SettingsSource("clocks", _ON)]).config
    containers = [IsolatedContainer("a", "ns/a", "protected", "", owned, owned)] if owned else []
    sight = Sight(containers, {}, here, config, dict(originals.values), here.online)
    writer = Writer(Resctrl(), originals, time.monotonic, [subject])
    outcome = writer.apply(Plan(files=tuple(subject.settings(sight))))
    assert not subject.notes(), subject.notes()
    return outcome


@contextmanager
def _all_put_back() -> Iterator[None]:
    before = _picture()
    yield
    assert _picture() == before


def _policies() -> list[Path]:
    return sorted((CPU / "cpufreq").glob("policy*"), key=lambda path: int(path.name[6:]))


def _cpus(policy: Path) -> frozenset[int]:
    return frozenset(map(int, (policy / "related_cpus").read_text().split()))


def _state(policy: Path) -> tuple[str, ...]:
    return tuple((policy / name).read_text().strip() for name in _FILES)


def _domain(policy: Path) -> frozenset[int]:
    return frozenset(map(int, (policy / "freqdomain_cpus").read_text().split()))


def _is_as_wanted(owned: frozenset[int]) -> bool:
    """Of each policy: fast where an owned CPU has its clock, else slow; the cores of owned CPUs stay awake."""
    cores = (parse_cpus((CPU / f"cpu{cpu}/topology/core_cpus_list").read_text()) for cpu in owned)
    awake = frozenset[int]().union(*cores)
    found = {policy.name: _state(policy) for policy in _policies()}
    wanted = {policy.name: FAST if _domain(policy) & owned else SLOW for policy in _policies()}
    print(found, sorted(owned), sorted(_disabled()))
    return found == wanted and _disabled() == {(cpu, name) for cpu in awake for name in ("C2", "C3")}


def _disabled() -> set[tuple[int, str]]:
    return {
        (int(path.parts[5][3:]), (path.parent / "name").read_text().strip())
        for path in CPU.glob("cpu[0-9]*/cpuidle/state*/disable")
        if path.read_text().strip() != "0"
    }


def _set_online(cpus: frozenset[int], is_online: bool) -> None:
    for cpu in cpus:
        (CPU / f"cpu{cpu}" / "online").write_text(str(int(is_online)))


def _picture() -> object:
    return {policy.name: _state(policy) for policy in _policies()}, _disabled()
