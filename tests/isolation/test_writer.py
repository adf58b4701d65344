"""The kernel is brought to a plan: differences only, in an order that a cut leaves nothing behind by."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io import originals, writer
from cri_proxy.isolation.io import writer as writer_module
from cri_proxy.isolation.io.originals import FILE_NAME, Originals
from cri_proxy.isolation.io.writer import FIRST_PAUSE_S, Outcome, Writer
from cri_proxy.isolation.model import Group, Setting, Wanted
from cri_proxy.isolation.plan import NOTHING, Plan
from tests.isolation.kernel import INTEL, KernelModel

CPUS = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
BATCH, GOLD = "cri-resmgr.batch", "cri-resmgr.gold"


class Node:
    """A writer, its kernel, its directory and its clock."""

    def __init__(self, directory: Path, kernel: KernelModel) -> None:
        self.kernel = kernel
        self.directory = directory
        self.now_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Another daemon takes over, which knows what is on disk."""
        self.originals = Originals(self.directory, "boot")
        self.originals.load()
        self.writer = Writer(self.kernel, self.originals, lambda: self.now_s)

    def bring(self, *groups: Group, files: tuple[Setting, ...] = ()) -> Outcome:
        self.kernel.writes.clear()
        return self.writer.apply(Plan(Wanted(groups), Wanted(groups), files))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, KernelModel(CPUS))


def group(name: str, l3: str = "f", other: str = "ffff") -> Group:
    return Group(name, {"L3": {0: l3, 1: other}, "MB": {0: "2048", 1: "2048"}})


def test_a_group_is_made_and_only_values_that_differ_are_written(node: Node) -> None:
    outcome = node.bring(group(BATCH))
    assert node.kernel.writes == [f"mkdir {BATCH}", f"{BATCH}/L3:0=f;1=ffff", f"{BATCH}/MB:0=2048;1=2048"]
    assert outcome.groups == {BATCH} and not outcome.refusals
    node.bring(group(BATCH, "3"))
    assert node.kernel.writes == [f"{BATCH}/L3:0=3"]


def test_nothing_is_written_where_nothing_differs(node: Node) -> None:
    node.bring(group(BATCH))
    assert node.bring(group(BATCH)).writes == {} and node.kernel.writes == []


def test_a_daemon_that_takes_over_writes_nothing_that_is_there(node: Node) -> None:
    node.bring(group(BATCH))
    node.restart()
    assert node.bring(group(BATCH)).drift == {} and node.kernel.writes == []


def test_groups_that_are_not_wanted_go_before_others_are_made(node: Node) -> None:
    node.kernel.limit_closids(2)
    node.bring(group(BATCH))
    outcome = node.bring(group(GOLD))
    assert node.kernel.writes[:2] == [f"rmdir {BATCH}", f"mkdir {GOLD}"]
    assert outcome.groups == {GOLD} and not outcome.refusals


def test_where_classes_of_service_are_used_up_the_least_important_group_gives_way(node: Node) -> None:
    node.kernel.limit_closids(3)
    node.kernel.make_other("kepler")
    node.bring(group(BATCH))
    outcome = node.bring(group(GOLD), group(BATCH))
    assert outcome.groups == {GOLD}
    assert [(each.place, each.sentence) for each in outcome.refusals] == [
        (f"resctrl:{BATCH}", "No space left on device: Out of CLOSIDs")
    ]
    assert node.kernel.others() == ["kepler"]


def test_a_refusal_is_tried_again_after_a_pause_that_doubles(node: Node) -> None:
    node.kernel.limit_closids(1)
    tries = [node.bring(group(BATCH)).refusals[0].tries]
    for now_s in (FIRST_PAUSE_S - 1, FIRST_PAUSE_S, 3 * FIRST_PAUSE_S - 1, 3 * FIRST_PAUSE_S):
        node.now_s = now_s
        tries.append(node.bring(group(BATCH)).refusals[0].tries)
    assert tries == [1, 1, 2, 2, 3]
    assert node.writer.next_try_s == 3 * FIRST_PAUSE_S + 4 * FIRST_PAUSE_S


def test_a_refusal_is_over_when_it_is_taken_or_not_wanted(node: Node) -> None:
    node.kernel.limit_closids(1)
    node.bring(group(BATCH))
    assert node.bring().refusals == ()
    node.bring(group(BATCH))
    node.kernel.limit_closids(2)
    node.now_s = 1000.0
    assert node.bring(group(BATCH)).refusals == ()


def test_one_value_that_is_refused_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    node = Node(tmp_path, KernelModel(CPUS, INTEL))
    gappy = Group(BATCH, {"L3": {0: "5", 1: "3"}})
    outcome = node.bring(gappy)
    assert node.kernel.schemata[BATCH]["L3"] == {0: "ffff", 1: "3"}
    assert [(each.place, each.value) for each in outcome.refusals] == [(f"resctrl:{BATCH}#L3:0", "5")]
    assert node.bring(Group(BATCH, {"L3": {0: "7", 1: "3"}})).refusals == ()


def test_what_the_kernel_has_rounded_is_not_written_again(tmp_path: Path) -> None:
    node = Node(tmp_path, KernelModel(CPUS, INTEL))
    wanted = Group(BATCH, {"MB": {0: "25", 1: "100"}})
    node.bring(wanted)
    assert node.kernel.schemata[BATCH]["MB"][0] == "30"
    assert node.bring(wanted).drift == {} and node.kernel.writes == []


def test_what_another_program_changes_is_written_again_and_counted(node: Node) -> None:
    node.bring(group(BATCH))
    for times in (1, 2, 3):
        node.kernel.write_other(BATCH, "L3", 0, "ff")
        assert node.bring(group(BATCH)).drift == {f"resctrl:{BATCH}#L3:0": times}
        assert node.kernel.schemata[BATCH]["L3"][0] == "f"


def test_a_group_that_another_program_removes_is_made_again_and_counted(node: Node) -> None:
    node.bring(group(BATCH))
    node.kernel.remove_other(BATCH)
    outcome = node.bring(group(BATCH))
    assert outcome.drift == {f"resctrl:{BATCH}": 1} and node.kernel.schemata[BATCH]["L3"][0] == "f"


def test_the_root_group_gets_its_own_values_back(node: Node) -> None:
    node.kernel.write_other("", "L3", 1, "fff")
    before = node.kernel.picture()
    node.bring(Group("", {"L3": {0: "f", 1: "f"}}))
    assert node.kernel.schemata[""]["L3"] == {0: "f", 1: "f"}
    node.restart()
    node.bring(Group("", {"L3": {0: "f"}}))
    assert node.kernel.writes == ["/L3:1=fff"]
    assert node.bring().is_clean and node.kernel.picture() == before
    assert not (node.directory / FILE_NAME).exists()


def test_nothing_is_written_that_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    node = Node(tmp_path / "state", KernelModel(CPUS))
    outcome = node.bring(group(BATCH), Group("", {"L3": {0: "f"}}))
    assert node.kernel.writes == [] and [each.place for each in outcome.refusals] == [
        "isolation.json before a write"
    ]


def test_groups_and_disk_are_told_of_in_an_order_that_can_be_cut(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(effects, "before", lambda kind, about: told.append(f"{kind} {about}"))
    node.bring(group(BATCH))
    node.bring()
    assert told == [
        "state isolation.json",
        f"resctrl mkdir {BATCH}",
        f"resctrl {BATCH}/schemata",
        f"resctrl {BATCH}/schemata",
        f"resctrl rmdir {BATCH}",
        "state isolation.json",
    ]


def test_without_anything_wanted_or_left_the_tree_is_not_read(node: Node) -> None:
    node.kernel.missing = "resctrl is not mounted"
    assert node.writer.apply(NOTHING).is_clean


# ---------------------------------------------------------------------- files


def setting(path: Path, value: str) -> Setting:
    return Setting("clocks", f"file:{path}", value)


def test_a_file_gets_its_value_and_then_that_of_before(node: Node, tmp_path: Path) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.write_text("3300000\n")
    node.bring(files=(setting(clock, "2500000"),))
    assert clock.read_text() == "2500000\n"
    node.bring(files=(setting(clock, "1500000"),))
    node.restart()
    assert node.bring().is_clean and clock.read_text() == "3300000\n"


def test_a_file_that_has_its_value_is_neither_written_nor_remembered(node: Node, tmp_path: Path) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.write_text("2500000\n")
    outcome = node.bring(files=(setting(clock, "2500000"),))
    assert outcome.writes == {} and outcome.is_clean


def test_a_file_that_is_gone_is_no_refusal_and_hinders_no_other(node: Node, tmp_path: Path) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.write_text("3300000\n")
    outcome = node.bring(files=(setting(tmp_path / "gone", "1"), setting(clock, "2500000")))
    assert outcome.refusals == () and outcome.drift == {}
    assert clock.read_text() == "2500000\n"


def test_a_file_that_ends_while_it_is_wanted_is_forgotten(node: Node, tmp_path: Path) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.write_text("3300000\n")
    node.bring(files=(setting(clock, "2500000"),))
    assert node.originals.values == {f"file:{clock}": "3300000"}
    clock.unlink()
    outcome = node.bring(files=(setting(clock, "2500000"),))
    assert outcome.is_clean and outcome.refusals == () and outcome.drift == {}


def test_a_file_that_cannot_be_read_is_a_refusal_of_its_own(node: Node, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    outcome = node.bring(files=(setting(tmp_path / "folder", "1"),))
    assert [each.place for each in outcome.refusals] == [f"file:{tmp_path}/folder"]


def test_a_subject_says_when_two_texts_are_one_value(node: Node, tmp_path: Path) -> None:
    class Masks:
        name = "interrupts"

        def settings(self, sight: object) -> tuple[Setting, ...]:
            return ()

        def is_same(self, place: str, seen: str, value: str) -> bool:
            return int(seen, 16) == int(value, 16)

        def notes(self) -> tuple[str, ...]:
            return ()

    file = tmp_path / "smp_affinity"
    file.write_text("0000000f\n")
    writer = Writer(node.kernel, node.originals, lambda: 0.0, [Masks()])
    plan = Plan(files=(replace(setting(file, "f"), subject="interrupts"),))
    assert writer.apply(plan).writes == {}


def test_values_that_the_kernel_takes_in_one_order_only_are_written_in_one_round_and_come_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cpufreq does it: no minimum above the maximum, at any moment."""
    low, high = tmp_path / "scaling_min_freq", tmp_path / "scaling_max_freq"
    low.write_text("800\n")
    high.write_text("1500\n")
    wanted: dict[str, int] = {}

    def refuse(kind: str, about: str) -> None:
        other, is_low = (high, True) if about == str(low) else (low, False)
        if kind == effects.SYSTEM and (wanted[about] > int(other.read_text())) is is_low:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(effects, "before", refuse)
    for values in ((2000, 2500), (1000, 1200), (3000, 3300)):
        wanted.update({str(low): values[0], str(high): values[1]})
        outcome = node.bring(files=tuple(setting(file, str(wanted[str(file)])) for file in (low, high)))
        assert outcome.refusals == () and int(low.read_text()) == values[0]
    wanted.update({str(low): 800, str(high): 1500})
    assert node.bring().is_clean
    assert (int(low.read_text()), int(high.read_text())) == (800, 1500)


def test_what_was_written_last_is_put_back_first(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"file{number}" for number in range(3)]
    for file in files:
        file.write_text("0\n")
    for count in (1, 2, 3):
        node.bring(files=tuple(setting(file, "1") for file in files[:count]))
    node.restart()
    told: list[str] = []
    monkeypatch.setattr(effects, "before", lambda kind, about: told.append(about))
    node.bring()
    assert told[:3] == [str(file) for file in reversed(files)]


def test_a_round_between_two_looks_reads_what_has_changed_alone(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"file{number}" for number in range(500)]
    for file in files:
        file.write_text("0\n")
    settings = tuple(setting(file, "1") for file in files)
    read: list[str] = []

    def counted(path: str) -> str:
        read.append(path)
        return read_text(path)

    monkeypatch.setattr(writer, "read_text", counted)
    node.writer.apply(Plan(files=settings))
    read.clear()
    assert node.writer.apply(Plan(files=settings), is_look=False).writes == {} and read == []
    files[7].write_text("5\n")
    changed = (*settings[:9], replace(settings[9], value="2"), *settings[10:])
    assert node.writer.apply(Plan(files=changed), is_look=False).writes == {("clocks", "written"): 1}
    assert read == [str(files[9])]
    read.clear()
    assert node.writer.apply(Plan(files=changed)).drift == {f"file:{files[7]}": 1}
    assert len(read) == 500


def test_a_value_that_shows_a_moment_later_is_no_refusal(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits of cpufreq are taken over by a worker of the kernel's."""
    clock, said = tmp_path / "scaling_max_freq", ["3300000", "3300000", "3300000"]
    clock.write_text("3300000\n")
    monkeypatch.setattr(originals, "read_text", lambda path: said.pop() if said else clock.read_text())
    assert node.bring(files=(setting(clock, "2500000"),)).refusals == () and not said


def test_a_refusal_is_over_once_the_value_is_there(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "scaling_max_freq"
    clock.write_text("3300000\n")
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(originals, "read_text", lambda path: "3300000")
    assert len(node.bring(files=(setting(clock, "2500000"),)).refusals) == 1
    assert node.bring(files=(setting(clock, "2500000"),)).refusals == ()
