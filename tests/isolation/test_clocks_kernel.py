"""Clocks on files that refuse as the kernel does: whatever happens on a node, what is seen is what is wanted, no class is
slower than it says, and in the end all is as it was."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

import pytest

from cri_proxy.config.config import Config, read_config
from cri_proxy.isolation.clocks import (
    ClockInfo,
    CpuClass,
    CpuSection,
    IdleState,
    Planning,
    Usage,
    assign,
    is_same,
)
from cri_proxy.isolation.io.clocks import Clocks, usage_of
from cri_proxy.isolation.io.originals import FILE_NAME, Originals, put_back
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.writer import Outcome, Writer
from cri_proxy.isolation.model import FILE, IsolatedContainer
from cri_proxy.isolation.plan import NOTHING, Plan
from cri_proxy.text.sources import SettingsSource
from policies.machine.topology import Topology
from policies.model import PlacementPreferences
from tests.isolation.cpufreq import CPU, CpufreqModel
from tests.isolation.kernel import KernelModel
from tests.machines import OFFLINE_CPUS, ONE_CPU, UNEVEN_CCX, VM_NO_CACHE_INFO, machine, take_offline
from tests.scenes import make_container, make_pod, topology
from tests.vm.guest.clock_rules import differences

#: By hand more: CRI_RESMGR_SEEDS=200.
SEEDS = int(os.environ.get("CRI_RESMGR_SEEDS", "16"))
NAMES = ("fast", "slow", "plain", "odd")
GOVERNORS = ("", "performance", "powersave", "schedutil")
LIMITS = (
    *(("", ""), ("min", "turbo"), ("base", ""), ("turbo", "turbo"), ("min", "min"), ("base", "turbo")),
    *(
        ("2.2GHz", "2.2GHz"),
        ("1500MHz", "9GHz"),
        ("800000", "1500MHz"),
        ("", "2.2GHz"),
        ("9GHz", ""),
        ("", "base"),
    ),
)
PREFERENCES = ("", "performance", "balance_power", "255")
#: Large machines make steps slow, and are no other case.
MACHINES = (UNEVEN_CCX, VM_NO_CACHE_INFO, ONE_CPU, OFFLINE_CPUS)


@dataclass
class ClockNode:
    """One node: its kernel, its containers, and the writer of its daemon."""

    kernel: CpufreqModel
    name: str
    state: Path
    section: dict[str, Any] = field(default_factory=dict)
    containers: list[IsolatedContainer] = field(default_factory=list)
    offline: frozenset[int] = frozenset()
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.state.mkdir()
        self.restart()

    def restart(self) -> None:
        """Another daemon takes over."""
        self.originals = Originals(self.state, "boot")
        self.originals.load()
        self.clocks = Clocks()
        groups = KernelModel({0: frozenset((0,))})
        self.writer = Writer(groups, self.originals, lambda: self.now_s, [self.clocks])

    @property
    def topology(self) -> Topology:
        data = machine(self.name)
        return Topology(take_offline(data, self.offline)) if self.offline else topology(self.name)

    @property
    def config(self) -> Config:
        values = {"control": {"cpu": self.section}, "topology": {"source": str(self.kernel.root)}}
        return read_config([SettingsSource("test", values=values)]).config

    def sight(self) -> Sight:
        here = self.topology
        return Sight(self.containers, {}, here, self.config, dict(self.originals.values), here.online)

    def round(self) -> tuple[Plan, Outcome]:
        """As the reconciler has it; what was refused is tried again."""
        self.now_s += 1000.0
        plan = Plan(files=tuple(self.clocks.settings(self.sight())))
        return plan, self.writer.apply(plan)

    def end(self) -> Outcome:
        self.now_s += 1000.0
        return self.writer.apply(NOTHING)


def node_on(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: Optional[random.Random] = None,
    **values: Any,
) -> ClockNode:
    """``chance``: which CPUs share a policy; without it each has its own."""
    here = topology(name)
    online = sorted(here.online)
    policies = [frozenset((cpu,)) for cpu in online]
    if chance is not None and chance.random() < 0.6:
        boxes = here.cores if chance.random() < 0.5 else tuple(leaf.cpus for leaf in here.leaves)
        policies = [box & here.online for box in boxes if box & here.online]
    kernel = CpufreqModel(folder / "sys", policies, **values)
    kernel.install(monkeypatch)
    return ClockNode(kernel, name, folder / "state")


def container(key: str, cpus: frozenset[int], cls: str, is_owner: bool) -> IsolatedContainer:
    made = make_container(key, 1, pod=make_pod(key), preferences=PlacementPreferences(cpu_class=cls))
    owned = cpus if is_owner else frozenset[int]()
    return IsolatedContainer(key, f"ns/{key}", "standard", "", cpus, owned, container=made)


# ---------------------------------------------------------------------- random sequences


class Story:
    """One sequence on one node."""

    def __init__(self, node: ClockNode, chance: random.Random) -> None:
        self.node, self.chance, self.count = node, chance, 0
        self.before = node.kernel.picture()

    def step(self) -> None:
        choice = self.chance.choice
        choice(
            [self.start, self.start, self.start, self.stop, self.configure, self.hotplug, self.node.restart]
        )()

    def start(self) -> None:
        here = self.node.topology
        free = here.online.difference(*(each.owned for each in self.node.containers))
        if not free:
            return
        is_owner = self.chance.random() < 0.5
        box = self.chance.choice([here.root, *here.leaves]).cpus & free or free
        cpus = frozenset(self.chance.sample(sorted(box), self.chance.randint(1, min(4, len(box)))))
        if is_owner:  # the others make room
            shrunk = [replace(each, cpus=each.cpus - cpus | each.owned) for each in self.node.containers]
            self.node.containers = [each for each in shrunk if each.cpus]
        self.count += 1
        cls = self.chance.choice([*NAMES, *NAMES, "", "no such"])
        self.node.containers.append(container(f"c{self.count}", cpus if is_owner else box, cls, is_owner))

    def stop(self) -> None:
        if self.node.containers:
            self.node.containers.remove(self.chance.choice(self.node.containers))

    def configure(self) -> None:
        pick = self.chance.choice
        classes = {}
        for name in NAMES:
            low, high = pick(LIMITS)
            classes[name] = {
                "minFreq": low,
                "maxFreq": high,
                "freqGovernor": pick(GOVERNORS),
                "energyPerformancePreference": pick(PREFERENCES),
                "disabledCstates": pick([[], ["C2"], ["C3", "C6"]]),
                "turboPriority": pick([0, 0, 1, 5]),
            }
        self.node.section = {
            "classes": classes,
            "idle": pick(["", *NAMES]),
            "shared": pick(["", "", *NAMES]),
            "turboDomain": pick(["package", "system"]),
        }

    def hotplug(self) -> None:
        if self.node.offline:
            self.node.offline = frozenset()
        else:
            cpus = sorted(topology(self.node.name).online)
            self.node.offline = frozenset(self.chance.sample(cpus, len(cpus) // 4))
            gone = self.node.offline
            left = (replace(e, cpus=e.cpus - gone, owned=e.owned - gone) for e in self.node.containers)
            self.node.containers = [each for each in left if each.cpus]
        self.node.kernel.set_online(self.node.topology.online)

    def check(self) -> None:
        # What is put back of one limit, before the other one, is forgotten in the second round.
        for _ in range(2):
            self.node.round()
        plan, outcome = self.node.round()
        assert not outcome.refusals, (outcome.refusals, self.node.kernel.writes[-8:])
        assert not outcome.drift and not outcome.writes, self.node.kernel.writes[-8:]
        for each in plan.files:
            seen = Path(each.place[len(FILE) :]).read_text().strip()
            assert is_same(each.place, seen, each.value) or seen == each.value, each
        assert not self.node.kernel.violations
        self._nothing_is_slower_than_its_class()

    def _nothing_is_slower_than_its_class(self) -> None:
        sight = self.node.sight()
        section: Optional[CpuSection] = sight.config["control.cpu"]
        if section is None:
            assert self.node.kernel.picture() == self.before or self.node.offline
            return
        classed, unnamed = assign(section, usage_of(sight, section))
        start = {number: limits for number, limits, _, _ in self.before[0]}  # type: ignore[index]
        for policy in self.node.kernel.policies:
            low, high = policy.limits
            for cpu in policy.cpus & classed.keys():
                one = section.classes[classed[cpu].name]
                assert high >= _khz(one.max_freq, policy.most), (policy, one)
                assert low >= _khz(one.min_freq, 0) or one.min_freq == "turbo", (policy, one)
                if one.governor == "performance":
                    assert policy.governor == "performance" or "performance" not in policy.governors
                for state in one.disabled:
                    assert state == "C6" or self.node.kernel.disabled[cpu, int(state[1:])]
            if policy.cpus and policy.cpus.isdisjoint(classed):
                assert policy.limits == start[policy.number]
            if not policy.cpus.isdisjoint(unnamed):
                assert high >= start[policy.number][1]


def _khz(asked: object, nothing: int) -> int:
    """The least that a limit must be, whatever turbo and the table make of it."""
    if isinstance(asked, int):
        return (
            min(max(asked, 1_200_000), 2_000_000 if asked < 2_500_000 else 3_000_000) if nothing == 0 else 0
        )
    return 0 if asked is not None else nothing


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seen_is_wanted_and_all_is_put_back(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    name = MACHINES[seed % len(MACHINES)]
    kind = {"is_active": seed % 2 == 0, "is_old": seed % 3 == 0, "more": {"base_frequency": "2000000"}}
    node = node_on(name, tmp_path, monkeypatch, chance, **kind)
    story = Story(node, chance)
    for _ in range(12):
        story.step()
        story.check()
    node.offline = frozenset()
    node.kernel.set_online(node.topology.online)
    if seed % 2:
        node.end()
    else:
        (tmp_path / "boot").write_text("boot")
        assert put_back(node.state, KernelModel({}), tmp_path / "boot") == []
    assert node.kernel.picture() == story.before and not (node.state / FILE_NAME).exists()


# ---------------------------------------------------------------------- what the sequences may miss


def test_a_policy_whose_cpus_go_offline_is_no_refusal_and_has_its_value_when_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_on(VM_NO_CACHE_INFO, tmp_path, monkeypatch)
    before = node.kernel.picture()
    node.section = {"classes": {"slow": {"maxFreq": "2GHz", "disabledCstates": ["C2"]}}, "idle": "slow"}
    node.round()
    node.offline = frozenset((3,))
    node.kernel.set_online(node.topology.online)
    for _ in range(2):
        assert not node.round()[1].refusals
    assert not node.end().refusals and not node.originals.is_empty
    (tmp_path / "boot").write_text("boot")
    assert put_back(node.state, KernelModel({}), tmp_path / "boot") == [
        f"file:{node.kernel.root}/devices/system/cpu/cpufreq/policy3/scaling_max_freq is not as it was before: "
        "its CPUs are offline"
    ]
    node.offline = frozenset()
    node.kernel.set_online(node.topology.online)
    node.restart()
    assert node.end().is_clean and node.kernel.picture() == before


def test_the_model_answers_as_the_kernel_does(tmp_path: Path) -> None:
    kernel = CpufreqModel(tmp_path, [frozenset((0, 1)), frozenset((2, 3))])
    here = tmp_path / CPU

    def read(path: str) -> str:
        kernel.read(path)
        return Path(path).read_text()

    def set_online(is_online: bool) -> None:
        kernel.set_online(frozenset((0, 1, 2, 3) if is_online else (0, 1)))

    policy, disable = here / "cpufreq/policy2", here / "cpu2/cpuidle/state3/disable"
    assert differences(policy, disable, kernel.write, read, set_online) == []


def test_no_class_that_is_wanted_reads_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_on(VM_NO_CACHE_INFO, tmp_path, monkeypatch)
    monkeypatch.setattr(node.kernel, "read", lambda path: pytest.fail(path))
    assert node.round()[0].files == ()
    assert node.clocks.notes() == ("clocks: control.cpu has no classes: all CPUs stay as they are",)


def test_a_machine_without_cpufreq_or_without_sysfs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_on(VM_NO_CACHE_INFO, tmp_path, monkeypatch)
    node.section = {"classes": {"slow": {"maxFreq": "2GHz"}}, "idle": "slow"}
    node.kernel.root = tmp_path / "empty"
    node.kernel.root.mkdir()
    node.round()
    assert node.clocks.notes() == (
        "clocks: this kernel has neither cpufreq nor cpuidle, as in most virtual machines",
    )
    node.kernel.root = tmp_path / "machine.json"
    node.round()
    assert node.clocks.notes() == (
        f"clocks: {tmp_path}/machine.json is no sysfs: this machine's cpufreq and cpuidle are not known",
    )


@pytest.mark.parametrize(
    ("more", "base"),
    [({"base_frequency": "2400000"}, "2400000"), ({"cpb": "1"}, "3000000"), ({}, "3000000")],
    ids=["as the driver says", "the table's highest, as boost is above it", "not known"],
)
def test_the_frequency_without_boost_is_that_of_the_first_that_says_it(
    more: dict[str, str], base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_on(VM_NO_CACHE_INFO, tmp_path, monkeypatch, is_active="base_frequency" in more, more=more)
    node.section = {"classes": {"slow": {"maxFreq": "base"}}, "idle": "slow"}
    plan, _ = node.round()
    assert {each.value for each in plan.files} == {base}
    assert bool(node.clocks.notes()) is (not more)


def test_the_class_of_a_type_of_balloons_is_that_of_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_on(VM_NO_CACHE_INFO, tmp_path, monkeypatch)
    values = {
        "policy": {"Active": "balloons", "balloons": {"BalloonTypes": [{"Name": "db", "CpuClass": "fast"}]}},
        "control": {"cpu": {"classes": {"fast": {"minFreq": "2GHz"}, "default": {"maxFreq": "2GHz"}}}},
    }
    config = read_config([SettingsSource("test", values=values)]).config
    here = node.topology
    one = replace(container("a", frozenset((0, 1)), "", False), balloon="db")
    other = replace(container("b", frozenset((2,)), "", False), balloon="web")
    usage = usage_of(Sight((one, other), {}, here, config, {}, here.online), config["control.cpu"])
    found = {cpu: each.name for cpu, each in assign(config["control.cpu"], usage)[0].items()}
    assert {found.pop(0), found.pop(1)} == {"fast"} and {*found.values()} == {"default"}


def test_an_idle_state_of_this_machine_is_disabled_and_comes_back(tmp_path: Path) -> None:
    """By this machine's own kernel, where it has any that may be written here."""
    states = sorted(Path("/sys/devices/system/cpu/cpu0/cpuidle").glob("state*"))
    if not states or not os.access(states[-1] / "disable", os.W_OK):
        pytest.skip("This machine has no idle states that may be written here.")
    if os.geteuid() != 0 or (states[-1] / "disable").read_text().strip() != "0":
        pytest.skip("The idle states of this machine are somebody else's.")
    disable, name = states[-1] / "disable", (states[-1] / "name").read_text().strip()
    info = ClockInfo((), {0: (IdleState(name, str(disable)),)})
    section = CpuSection({"awake": CpuClass(disabled=(name,))}, idle="awake")
    here = topology(VM_NO_CACHE_INFO)
    settings = Planning(info, section, Usage((), here.online), here).settings()
    writer = Writer(KernelModel({}), Originals(tmp_path, "boot"), lambda: 0.0, [Clocks()])
    try:
        assert not writer.apply(Plan(files=tuple(settings))).refusals
        assert disable.read_text() == "1\n"
    finally:
        assert writer.apply(NOTHING).is_clean
    assert disable.read_text() == "0\n"
