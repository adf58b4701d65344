"""Which CPUs handle interrupts: laws of the rule, and this machine's own interrupts, which are only read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy import effects
from cri_proxy.config.config import Config, read_config
from cri_proxy.isolation.interrupts import (
    Interrupt,
    InterruptSection,
    Routing,
    claims_of,
    is_controllable,
    matches,
    new_interrupts,
    pattern_fault,
    read_interrupts,
    route,
    same_mask,
    write_mask,
)
from cri_proxy.isolation.io.interrupts import Interrupts
from cri_proxy.isolation.io.originals import FILE_NAME, Originals, put_back
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.io.writer import LONGEST_PAUSE_S, Outcome, Writer
from cri_proxy.isolation.model import BATCH, PROTECTED, STANDARD, IsolatedContainer, Setting
from cri_proxy.isolation.plan import Plan
from cri_proxy.text.sources import SettingsSource
from policies.balloons.types import BalloonType
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus, parse_mask
from tests.isolation.kernel import KernelModel
from tests.machines import HYGON_7285_2S
from tests.scenes import topology

INTERRUPTS = """\
           CPU0       CPU1
  0:         45          0   IO-APIC   2-edge      timer
 24:          1          0  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 25:          0         17  IR-PCI-MSI 1048576-edge      eth0-TxRx-0
 26:          0
NMI:          0          0   Non-maskable interrupts
ERR:          0
"""
NO_SECTION = InterruptSection()
MACHINE = topology(HYGON_7285_2S)
ONLINE = MACHINE.online
NEAR = [[domain.cpus for domain in MACHINE.at(level)] for level in ("l3", "numa", "socket")]


def container(
    name: str, owned: str = "", cls: str = PROTECTED, balloon: str = "", cpus: str = ""
) -> IsolatedContainer:
    return IsolatedContainer(
        name, f"default/{name}/app", cls, "", parse_cpus(cpus or owned), parse_cpus(owned), balloon=balloon
    )


def routed(
    cpus: str,
    *containers: IsolatedContainer,
    types: Iterable[BalloonType] = (),
    section: InterruptSection = NO_SECTION,
    name: str = "IR-PCI-MSI 1-edge eth0-TxRx-0",
) -> Optional[Routing]:
    claims = claims_of(containers, types, section)
    return route(Interrupt(25, name, parse_cpus(cpus)), claims, ONLINE, NEAR)


def cpus_of(found: Optional[Routing]) -> str:
    assert found is not None
    return format_cpus(found.cpus)


# ---------------------------------------------------------------------- what is read


def test_numbered_lines_are_interrupts_with_the_name_that_peers_match() -> None:
    assert read_interrupts(INTERRUPTS) == {
        0: "IO-APIC 2-edge timer",
        24: "PCI-MSIX-0000:00:02.0 1-edge virtio1-req.0",
        25: "IR-PCI-MSI 1048576-edge eth0-TxRx-0",
        26: "",
    }
    assert read_interrupts("") == {}


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("*nvme*", "PCI-MSI 1-edge nvme0q1", True),
        ("*eth0-TxRx-[0-3]", "PCI-MSI 1-edge eth0-TxRx-2", True),
        ("*eth0-TxRx-[^0-3]", "PCI-MSI 1-edge eth0-TxRx-2", False),
        ("eth0*", "PCI-MSI 1-edge eth0-TxRx-2", False),
        ("*", "GPIO 1-edge card/slot", False),
        ("*card?slot", "GPIO 1-edge card/slot", False),
        (r"*ahci\[0000:00:17.0\]", "PCI-MSI 1-edge ahci[0000:00:17.0]", True),
        ("*(a.c)", "PCI-MSI 1-edge (abc)", False),
        ("*[", "PCI-MSI 1-edge [", False),
    ],
)
def test_patterns_are_those_of_the_peers(pattern: str, name: str, is_match: bool) -> None:
    assert matches(pattern, name) is is_match


@given(st.text("*?[]^-\\a/", max_size=8), st.text("ab/", max_size=4))
def test_any_text_is_a_pattern_or_has_a_fault(pattern: str, name: str) -> None:
    assert not (pattern_fault(pattern) and matches(pattern, name))


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_a_mask_is_what_the_kernel_writes(cpus: frozenset[int]) -> None:
    mask = write_mask(cpus)
    assert parse_mask(mask) == cpus
    assert all(len(word) == 8 for word in mask.split(",")[1:])
    assert same_mask(f"00000000,{mask}" if "," in mask else f"0{mask}", mask)


# ---------------------------------------------------------------------- the rule


def test_an_interrupt_leaves_the_cpus_that_a_protected_container_owns() -> None:
    found = routed("0-15", container("web", "0-3"))
    assert cpus_of(found) == "4-15"
    assert found == Routing(parse_cpus("4-15"), "default/web/app is protected", ("web",))


def test_one_that_has_nothing_to_leave_is_left_alone() -> None:
    assert routed("8-15", container("web", "0-3")) is None
    assert routed("0-3", container("web", cpus="0-3"), container("job", "0-3", BATCH)) is None


def test_one_with_no_cpu_left_goes_as_near_as_it_can() -> None:
    l3 = format_cpus(next(cpus for cpus in NEAR[0] if 0 in cpus))
    one = cpus_of(routed("0", container("web", "0-1")))
    assert parse_cpus(one) == parse_cpus(l3) - {0, 1}
    whole = parse_cpus(cpus_of(routed("0", container("web", l3))))
    node = next(cpus for cpus in NEAR[1] if 0 in cpus)
    assert whole == node - parse_cpus(l3)
    assert routed("0", container("web", format_cpus(ONLINE))) is None


def test_a_claim_counts_before_a_sink_and_a_sink_before_what_was_there() -> None:
    types = [
        BalloonType("net", irq_claim=("*eth0*", "99"), irq_mode="isolate"),
        BalloonType("house", irq_mode="sink"),
    ]
    seen = [
        container("a", "4-5", STANDARD, "net"),
        container("b", "6-7", STANDARD, "net"),
        container("c", "8-9", STANDARD, "house"),
    ]
    assert cpus_of(routed("0-15", *seen, types=types)) == "4-7"
    assert cpus_of(routed("0-15", *seen, types=types, name="PCI-MSI 1-edge nvme0q1")) == "8-9"
    assert cpus_of(routed("0-15", *seen[:2], types=types, name="PCI-MSI 1-edge nvme0q1")) == "0-3,8-15"
    found = routed("0-15", *seen, types=types)
    assert found is not None and found.why == "the balloon type net claims it" and found.keys == ("a", "b")
    number = route(Interrupt(99, "x", NO_CPUS), claims_of(seen, types, InterruptSection()), ONLINE, NEAR)
    assert cpus_of(number) == "4-7"


def test_a_sink_of_the_section_counts_without_balloons_and_spares_protected_containers() -> None:
    section = InterruptSection(sink=parse_cpus("0-3"))
    assert cpus_of(routed("0-63", section=section)) == "0-3"
    assert cpus_of(routed("0-63", container("web", "2-3"), section=section)) == "0-1"


SETS = st.frozensets(st.sampled_from(sorted(ONLINE)), max_size=12)
KINDS = (
    BalloonType("net", irq_claim=("*eth*",), irq_mode="isolate"),
    BalloonType("house", irq_mode="sink"),
    BalloonType("quiet", irq_mode="isolate"),
    BalloonType("plain"),
)
SOME = st.builds(
    lambda n, cls, kind, owned: IsolatedContainer(str(n), str(n), cls, "", owned, owned, balloon=kind),
    st.integers(0, 9),
    st.sampled_from((PROTECTED, STANDARD, BATCH)),
    st.sampled_from(("", *(kind.name for kind in KINDS))),
    SETS,
)


@given(st.lists(SOME, max_size=6, unique_by=lambda c: c.key), SETS, SETS, SETS, st.booleans())
def test_every_interrupt_has_an_online_cpu_and_none_an_isolated_one_while_there_are_others(
    containers: list[IsolatedContainer],
    before: frozenset[int],
    offline: frozenset[int],
    sink: frozenset[int],
    is_claimed: bool,
) -> None:
    online = ONLINE - offline
    claims = claims_of(containers, KINDS, InterruptSection(sink=sink))
    name = "PCI-MSI 1-edge eth0" if is_claimed else "PCI-MSI 1-edge nvme0q1"
    found = route(Interrupt(1, name, before), claims, online, NEAR)
    if found is None:
        others = online - claims.isolated_cpus
        assert not claims.sink & online
        assert before.isdisjoint(claims.isolated_cpus) or not others
        return
    assert found.cpus & online
    has_claim = is_claimed and any(each.cpus & online for each in claims.claims)
    if not has_claim and online - claims.isolated_cpus:
        assert found.cpus.isdisjoint(claims.isolated_cpus)
    # The same again changes nothing.
    assert route(Interrupt(1, name, before), claims, online, NEAR) == found
    new = new_interrupts(before, claims, online)
    assert new is None or new.cpus & online


def test_none_is_controlled_that_the_configuration_does_not_name() -> None:
    section = InterruptSection(("*eth*", "*nvme*"))
    assert is_controllable("PCI-MSI 1-edge nvme0q1", section)
    assert not is_controllable("IO-APIC 2-edge timer", section)
    assert is_controllable("anything/at all", InterruptSection())


# ---------------------------------------------------------------------- a machine


class Tree:
    """A machine's /proc. ``managed``: interrupts that refuse to be written, as the kernel's do."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.now_s = folder / "proc", 0.0
        self.managed: set[int] = set()
        self.tries: list[str] = []
        (self.proc / "irq").mkdir(parents=True)
        (self.proc / "irq" / "default_smp_affinity").write_text("ffff\n")
        self.names: dict[int, str] = {}
        self.state = folder / "state"
        monkeypatch.setattr(effects, "before", self._before)
        self.restart()

    def _before(self, kind: str, about: str) -> None:
        if kind == effects.SYSTEM:
            self.tries.append(about)
            if any(f"/irq/{number}/" in about for number in self.managed):
                raise OSError(errno.EIO, "Input/output error")
            os.truncate(about, 0)  # a file of the kernel's has what was written last

    def restart(self) -> None:
        self.originals = Originals(self.state, "boot")
        self.originals.load()
        self.subject = Interrupts(self.proc)
        self.writer = Writer(KernelModel({}), self.originals, lambda: self.now_s, [self.subject])

    def add(
        self, number: int, name: str = "PCI-MSI 1-edge eth0", cpus: str = "0-15", mode: int = 0o644
    ) -> None:
        folder = self.proc / "irq" / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "smp_affinity_list").write_text(f"{cpus}\n")
        (folder / "smp_affinity_list").chmod(mode)
        self.names[number] = name
        self._list()

    def remove(self, number: int) -> None:
        (self.proc / "irq" / str(number) / "smp_affinity_list").unlink()
        del self.names[number]
        self._list()

    def _list(self) -> None:
        lines = [f" {number}: 0 0 {name}" for number, name in sorted(self.names.items())]
        (self.proc / "interrupts").write_text("\n".join(["  CPU0 CPU1", *lines, "NMI: 0 0 Non-maskable"]))

    def __getitem__(self, number: int) -> str:
        return (self.proc / "irq" / str(number) / "smp_affinity_list").read_text().strip()

    @property
    def default(self) -> str:
        return (self.proc / "irq" / "default_smp_affinity").read_text().strip()

    def settings(self, *containers: IsolatedContainer, **control: Any) -> list[Setting]:
        config = configured({"control": {"interrupts": control}} if control else {})
        sight = Sight(containers, {}, MACHINE, config, self.originals.values)
        return list(self.subject.settings(sight))

    def round(self, *containers: IsolatedContainer, **control: Any) -> Outcome:
        self.now_s += 2 * LONGEST_PAUSE_S
        self.tries.clear()
        return self.writer.apply(Plan(files=tuple(self.settings(*containers, **control))))


def configured(values: Mapping[str, Any]) -> Config:
    return read_config([SettingsSource("test", values=values)]).config


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


WEB = container("web", "0-3")


def test_interrupts_leave_come_back_and_nothing_is_left(tree: Tree) -> None:
    tree.add(1)
    tree.add(2, cpus="8-15")
    tree.round(WEB)
    assert (tree[1], tree[2], parse_mask(tree.default)) == ("4-15", "8-15", parse_cpus("4-15"))
    tree.round(WEB)
    assert tree.tries == []
    # Another container: what was there before counts, not what is there now.
    tree.round(container("db", "8-9"))
    assert (tree[1], tree[2]) == ("0-7,10-15", "10-15")
    assert tree.round().is_clean
    assert (tree[1], tree[2], tree.default) == ("0-15", "8-15", "ffff")
    assert not (tree.state / FILE_NAME).exists()


def test_after_kill_minus_nine_the_next_daemon_knows_what_was_there(tree: Tree, tmp_path: Path) -> None:
    tree.add(1)
    tree.round(WEB)
    tree.restart()
    tree.round(container("db", "8-9"))
    assert tree[1] == "0-7,10-15"
    boot = tmp_path / "boot_id"
    boot.write_text("boot\n")
    assert put_back(tree.state, KernelModel({}), boot) == []
    assert (tree[1], tree.default) == ("0-15", "ffff")


def test_those_that_come_later_are_found_and_those_that_go_are_no_refusal(tree: Tree) -> None:
    tree.add(1)
    tree.round(WEB)
    tree.add(2)
    tree.remove(1)
    outcome = tree.round(WEB)
    assert (tree[2], outcome.refusals, outcome.drift) == ("4-15", (), {})


def test_what_irqbalance_changes_is_written_again_and_counted(tree: Tree) -> None:
    tree.add(1)
    tree.round(WEB)
    (tree.proc / "irq" / "1" / "smp_affinity_list").write_text("0\n")
    outcome = tree.round(WEB)
    assert tree[1] == "4-15" and [*outcome.drift.values()] == [1]


def test_the_same_cpus_in_other_words_are_no_difference(tree: Tree) -> None:
    tree.add(1)
    tree.round(WEB)
    (tree.proc / "irq" / "1" / "smp_affinity_list").write_text("4,5,6-15\n")
    (tree.proc / "irq" / "default_smp_affinity").write_text("00000000,0000fff0\n")
    outcome = tree.round(WEB)
    assert tree.tries == [] and outcome.drift == {}


def test_one_that_the_kernel_manages_is_tried_once_and_told_as_refused_for_good(
    tree: Tree, tmp_path: Path
) -> None:
    tree.add(1)
    tree.add(2, mode=0o444)
    tree.managed = {1, 2}
    outcome = tree.round(WEB)
    assert [(each.place.rpartition("/irq/")[2], each.is_final) for each in outcome.refusals] == [
        ("1/smp_affinity_list", True)
    ]
    tree.round(WEB)
    tree.round(container("db", "4-5"))
    assert [path for path in tree.tries if "/irq/1/" in path] == []
    # The way back asks nothing of it, with a daemon and without.
    assert tree.round().is_clean
    tree.round(WEB)
    boot = tmp_path / "boot_id"
    boot.write_text("boot\n")
    assert put_back(tree.state, KernelModel({}), boot) == []


def test_only_what_may_be_controlled_is_touched(tree: Tree) -> None:
    tree.add(1)
    tree.add(2, "PCI-MSI 1-edge nvme0q1")
    tree.round(WEB, controllable=["*nvme*"])
    assert (tree[1], tree[2], tree.default) == ("0-15", "4-15", "ffff")


def test_nothing_is_named_twice(tree: Tree) -> None:
    for number in range(5):
        tree.add(number)
    places = [each.place for each in tree.settings(WEB, container("db", "2-5"), sink="8-9")]
    assert len(places) == len({*places}) == 6


def test_this_machines_own_interrupts_are_understood(tmp_path: Path) -> None:
    sight = Sight((container("web", "0"),), {}, MACHINE, configured({}))
    found = list(Interrupts(Path("/proc")).settings(sight))
    names = read_interrupts(Path("/proc/interrupts").read_text())
    assert all("\n" not in name and "  " not in name for name in names.values())
    for each in found:
        file = Path(each.place.partition(":")[2])
        assert file.exists() and each.value
        if file.name.endswith("_list"):
            assert 0 not in parse_cpus(each.value) and int(file.parent.name) in names
