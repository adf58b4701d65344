"""What the kernel has follows the ledger, the configuration and the steps of protection; and goes back to what it was."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cri_proxy import effects
from cri_proxy.isolation.io.originals import FILE_NAME
from cri_proxy.isolation.io.reconciler import FILES_LATE_S
from cri_proxy.isolation.io.subjects import Sight
from cri_proxy.isolation.model import Setting, Step
from cri_proxy.services.services import Services
from policies.model import Qos
from tests.isolation.kernel import KernelModel
from tests.isolation.node import IsolatedNode, l3s

BATCH = "cri-resmgr.batch"

Make = Callable[..., IsolatedNode]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[IsolatedNode] = []

    def one(**how: Any) -> IsolatedNode:
        made.append(IsolatedNode(tmp_path, monkeypatch, **how))
        return made[-1]

    yield one
    for node in made:
        node.isolation.close()


async def ended(running: asyncio.Future[None]) -> None:
    running.cancel()
    await asyncio.wait({running})


async def test_batch_gives_way_in_the_l3_that_a_protected_container_comes_to(make: Make) -> None:
    node = await make().begin()
    batch = node.batch()
    await node.isolation.round()
    assert BATCH not in node.kernel.schemata and node.isolation.group_of(batch) == ""
    protected = node.protected()
    await node.isolation.round()
    here = {number for number, cpus in l3s().items() if cpus & node.engine.grants[protected].cpus}
    assert node.masks == dict.fromkeys(here, "1f") and here
    assert node.isolation.group_of(batch) == BATCH and node.isolation.group_of(protected) == ""
    assert node.threads.rounds[-1][0].groups[0].members == {batch}


async def test_with_the_last_meeting_the_group_and_the_file_go(make: Make) -> None:
    node = make()
    before = node.kernel.picture()
    node.batch()
    protected = node.protected()
    await node.begin()
    assert (node.folder / FILE_NAME).exists()
    node.engine.remove(protected)
    await node.isolation.round()
    assert node.kernel.picture() == before and not (node.folder / FILE_NAME).exists()


async def test_where_nothing_has_changed_nothing_is_computed_nor_read(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    node.kernel.writes.clear()
    node.kernel.missing = "this would be noticed"
    before = node.isolation.enforced
    await node.isolation.round()
    assert node.isolation.enforced is before and node.kernel.writes == []


async def test_records_that_change_in_what_isolation_does_not_see_make_no_round(make: Make) -> None:
    node = make()
    node.batch()
    protected = node.protected()
    await node.begin()
    before = node.isolation.enforced
    node.engine.book_use(protected, 300) if hasattr(node.engine, "book_use") else None
    await node.isolation.round()
    assert node.isolation.enforced is before


async def test_other_programs_are_noticed_by_the_look_now_and_then(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    (number, mask), *_ = node.masks.items()
    for _ in range(3):
        node.kernel.write_other(BATCH, "L3", number, "ff")
        await node.look()
    assert node.masks[number] == mask
    assert node.services.health.warnings == [
        f"isolation: another program has changed resctrl:{BATCH}#L3:{number} 3 times, and it was written again: look for "
        "what else manages it (cri-resmgr doctor)"
    ]


async def test_off_puts_back_at_once_and_ends_the_rounds(make: Make) -> None:
    node = make()
    before = node.kernel.picture()
    node.batch(), node.protected()
    await node.begin()
    node.configure(caches="off", bandwidth="off")
    assert await node.isolation.round()
    assert node.kernel.picture() == before and not (node.folder / FILE_NAME).exists()
    assert node.isolation.enforced.groups == ()


async def test_one_subject_off_gives_back_what_it_had(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    node.configure(caches="off")
    await node.isolation.round()
    assert node.masks == {} and set(node.kernel.schemata[BATCH]["MB"].values()) != {"2048"}


@pytest.mark.parametrize("how", ["subjects", "mode"])
async def test_observe_tells_what_would_be_done_and_writes_nothing(make: Make, how: str) -> None:
    node = make(**{"caches": "observe", "bandwidth": "observe"} if how == "subjects" else {})
    if how == "mode":
        node.services.node_state.switch("observe")
    node.batch(), node.protected()
    await node.begin()
    assert node.kernel.writes == [] and not (node.folder / FILE_NAME).exists()
    assert [group.name for group in node.isolation.wanted.groups] == [BATCH]
    assert node.isolation.enforced.groups == ()
    assert [row["state"] for row in node.isolation.status()["groups"]] == ["observed"]


async def test_the_mode_off_puts_back(make: Make) -> None:
    node = make()
    before = node.kernel.picture()
    node.batch(), node.protected()
    await node.begin()
    node.services.node_state.switch("off")
    await node.isolation.round()
    assert node.kernel.picture() == before


async def test_a_release_puts_back_until_the_configuration_is_read_again(make: Make) -> None:
    node = make()
    before = node.kernel.picture()
    node.batch(), node.protected()
    await node.begin()
    running = asyncio.ensure_future(node.isolation.run())
    await asyncio.sleep(0)
    await node.isolation.release()
    assert node.kernel.picture() == before
    node.isolation.reconfigured()
    await node.isolation.settled("")
    assert node.masks
    await ended(running)


async def test_released_containers_are_left_alone(make: Make) -> None:
    node = make()
    batch, _ = node.batch(), node.protected()
    await node.begin()
    node.engine.release(batch)
    await node.isolation.round()
    assert node.masks == {} and BATCH not in node.kernel.schemata


async def test_steps_of_protection_change_one_l3(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    number = min(node.masks)
    node.isolation.steps = {number: Step(cache=0.1)}
    node.isolation.wake()
    await node.isolation.round()
    assert node.masks[number] == "3"


async def test_a_daemon_that_takes_over_puts_back_what_the_one_before_wrote(make: Make) -> None:
    node = make()
    before = node.kernel.picture()
    node.batch(), node.protected()
    await node.begin()
    node.configure(caches="off", bandwidth="off")
    await node.restart()
    assert node.kernel.picture() == before


async def test_until_what_runs_was_compared_the_kernel_stays_as_it_is(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    there = node.kernel.picture()
    node.services.node_state._known = None
    node.engine.remove("c1")
    await node.restart()
    assert node.kernel.picture() == there
    node.services.node_state.note_compared()
    await node.isolation.round()
    assert BATCH not in node.kernel.schemata


async def test_what_is_missing_is_no_warning_any_more_once_isolation_is_off(make: Make) -> None:
    node = make()
    node.kernel.missing = "resctrl is not mounted"
    await node.begin()
    assert node.services.health.warnings == ["isolation: resctrl is not mounted"]
    # A round comes before it is told that there is another configuration.
    node._configure({"caches": "off", "bandwidth": "off"})
    await node.isolation.round()
    assert node.services.health.warnings == []


async def test_without_resctrl_it_is_said_once_how_to_get_it(make: Make) -> None:
    node = make()
    node.kernel.missing = "resctrl is not mounted: mount -t resctrl resctrl /sys/fs/resctrl"
    node.batch(), node.protected()
    await node.begin()
    assert node.services.health.warnings == [f"isolation: {node.kernel.missing}"]
    assert node.isolation.info is None
    node.kernel.missing = ""
    await node.look()
    assert node.services.health.warnings == [] and node.masks


async def test_used_up_classes_of_service_are_a_weaker_treatment_that_is_said(make: Make) -> None:
    kernel = KernelModel(l3s(), closids=3)
    kernel.make_other("kepler"), kernel.make_other("people")
    node = make(kernel=kernel)
    batch, _ = node.batch(), node.protected()
    await node.begin()
    assert node.isolation.group_of(batch) == ""
    assert node.services.health.warnings == [
        f"isolation: resctrl:{BATCH}: No space left on device: Out of CLOSIDs; its containers are in the root group: a "
        "weaker treatment"
    ]
    status = node.isolation.status()
    assert status["groups"][0]["state"] == "refused" and status["other_groups"] == ["kepler", "people"]


async def test_a_start_waits_for_the_round_that_knows_its_container(make: Make) -> None:
    node = make()
    node.protected()
    await node.begin()
    running = asyncio.ensure_future(node.isolation.run())
    await asyncio.sleep(0)
    batch = node.batch()
    assert await node.isolation.settled(batch) == BATCH and node.masks
    await ended(running)


async def test_a_start_waits_for_nothing_where_no_round_comes(make: Make) -> None:
    node = make()
    assert await asyncio.wait_for(node.isolation.settled(node.batch()), 10) == ""


async def test_threads_are_looked_for_until_none_is_outside(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    node.threads.outside = [3, 1]
    await node.begin()
    for _ in range(4):
        node.now_s += 1.0
        await node.isolation.round()
    assert len(node.threads.rounds) == 3


async def test_enforcing_is_told_when_it_begins_and_ends(make: Make) -> None:
    node, told = make(), list[bool]()
    node.isolation.on_enforced = told.append
    await node.begin()
    node.configure(caches="observe", bandwidth="observe")
    await node.isolation.round()
    node.configure(caches="off", bandwidth="off")
    await node.isolation.round()
    assert told == [True, False]


async def test_writes_are_counted_by_subject_and_outcome(make: Make) -> None:
    node = make()
    node.batch(), node.protected()
    await node.begin()
    text = "".join(node.services.metrics.pieces())
    assert 'cri_resmgr_isolation_writes_total{outcome="written",subject="groups"} 1' in text.replace(
        'subject="groups",outcome="written"', 'outcome="written",subject="groups"'
    )
    assert "cri_resmgr_isolation_groups 1" in text


async def test_the_classes_of_an_rdt_section_are_groups_of_those_that_have_containers(make: Make) -> None:
    section = {
        "enable": True,
        "partitions": {
            "all": {
                "l3Allocation": "100%",
                "classes": {"Guaranteed": {"l3Allocation": "50%"}, "BestEffort": {"l3Allocation": "25%"}},
            }
        },
        "options": {"mb": {"optional": True}},
        "usePodQoSAsDefaultClass": True,
    }
    node = make(rdt=section)
    node.start(Qos.GUARANTEED)
    await node.begin()
    ours = {name for name in node.kernel.schemata if name}
    assert ours == {"cri-resmgr.Guaranteed"}
    assert set(node.kernel.schemata["cri-resmgr.Guaranteed"]["L3"].values()) == {"ff"}


def section_of(**partition: Any) -> dict[str, Any]:
    return {"enable": True, "partitions": {"all": partition}, "options": {"mb": {"optional": True}}}


async def test_a_container_that_asks_for_a_class_that_is_not_configured_is_treated_by_what_it_is(
    make: Make,
) -> None:
    node = make(rdt=section_of(l3Allocation="100%", classes={"gold": {"l3Allocation": "50%"}}))
    node.start(Qos.GUARANTEED, rdt="silver")
    batch = node.batch()
    await node.begin()
    assert node.isolation.group_of(batch) == BATCH
    assert any(
        'the rdt class "silver" is not configured' in note for note in node.isolation.status()["notes"]
    )


async def test_a_section_that_this_machine_cannot_have_is_a_class_for_no_container(make: Make) -> None:
    # More than the whole of the cache.
    section = section_of(l3Allocation="60%", classes={"gold": {"l3Allocation": "100%"}})
    section["partitions"]["other"] = {"l3Allocation": "60%", "classes": {"iron": {"l3Allocation": "100%"}}}
    node = make(rdt=section)
    node.start(Qos.GUARANTEED, rdt="gold")
    batch = node.batch()
    await node.begin()
    await node.isolation.round()
    assert node.isolation.status()["notes"]
    assert node.isolation.group_of(batch) == BATCH
    # Nothing is left to be done.
    assert not await node.isolation.round()


# ---------------------------------------------------------------------- subjects


class Files:
    """A subject that wants what it is told, of each container that runs."""

    def __init__(self, name: str, folder: Path, value: str = "1") -> None:
        self.name = name
        self.folder = folder
        self.value = value

    def settings(self, sight: Sight) -> Iterator[Setting]:
        for each in sight.containers:
            file = self.folder / each.key / "cpu.idle"
            if file.parent.exists():
                why = f"{each.path} is {each.cls}"
                yield Setting(self.name, f"file:{file}", self.value, why, (each.key,))

    def is_same(self, place: str, seen: str, value: str) -> bool:
        return False

    def notes(self) -> Sequence[str]:
        return ()


def cgroup(node: IsolatedNode, key: str) -> Path:
    folder = node.folder / "cgroups" / key
    folder.mkdir(parents=True)
    (folder / "cpu.idle").write_text("0\n")
    return folder / "cpu.idle"


async def test_a_container_is_told_what_files_are_refused_and_status_counts_values_without_listing_them(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(
        subjects=lambda services: [Files("cpu", tmp_path / "cgroups")],
        caches="off",
        bandwidth="off",
        cpu="enforce",
    )
    files = {key: cgroup(node, key) for key in (node.batch(), node.batch(), node.protected())}
    (refused, taken, _), told = files, []
    await node.begin()
    assert {file.read_text() for file in files.values()} == {"1\n"}

    def refuse(kind: str, about: str) -> None:
        if about == str(files[refused]):
            raise OSError(errno.EINVAL, "Invalid argument")

    happened = node.services.node_state.happened
    monkeypatch.setattr(
        node.services.node_state,
        "happened",
        lambda *of: told.append(of) if of[0] == "isolation" else happened(*of),
    )
    monkeypatch.setattr(effects, "before", refuse)
    for file in files.values():
        file.write_text("0\n")
    await node.look()
    [(_, why, keys, _, reason, hurt)] = told
    assert why == f"{files[refused]} is refused: Invalid argument"
    assert (keys, hurt, reason) == ((refused,), (refused,), "IsolationRefused")
    assert node.services.health.warnings == [f"isolation: {files[refused]}: Invalid argument"]
    assert node.isolation.status(files_of="")["files"] == []
    assert node.isolation.status(files_of="")["values"] == {"cpu": 3}
    path = node.engine.grants[taken].container.path
    [row] = node.isolation.status(files_of=taken)["files"]
    assert row["containers"] == [path]
    assert (row["value"], row["why"]) == ("1", f"{path} is batch")


async def test_a_place_that_two_subjects_want_has_the_value_of_the_first(make: Make, tmp_path: Path) -> None:
    def subjects(services: Services) -> list[Files]:
        return [Files("cpu", tmp_path / "cgroups"), Files("memory", tmp_path / "cgroups", "2")]

    node = make(subjects=subjects, cpu="enforce", memory="enforce")
    file = cgroup(node, node.batch())
    await node.begin()
    await node.look()
    assert file.read_text() == "1\n"
    [note] = node.isolation.status()["notes"]
    assert note == f"file:{file} is cpu's: memory leaves it alone"


async def test_what_is_only_observed_is_not_written(make: Make, tmp_path: Path) -> None:
    node = make(
        subjects=lambda services: [Files("cpu", tmp_path / "cgroups")],
        caches="off",
        bandwidth="off",
        cpu="observe",
    )
    file = cgroup(node, node.batch())
    await node.begin()
    assert file.read_text() == "0\n" and not (node.folder / FILE_NAME).exists()
    assert [row["state"] for row in node.isolation.status()["files"]] == ["observed"]


async def test_a_start_does_not_wait_for_subjects_and_they_are_asked_right_after_it(
    make: Make, tmp_path: Path
) -> None:
    node = make(subjects=lambda services: [Files("cpu", tmp_path / "cgroups")], cpu="enforce")
    first = cgroup(node, node.batch())
    await node.begin()
    running = asyncio.ensure_future(node.isolation.run())
    await asyncio.sleep(0)
    assert first.read_text() == "1\n"
    key = node.batch()
    node.protected()
    file = cgroup(node, key)
    assert await node.isolation.settled(key) == BATCH
    assert file.read_text() == "0\n"
    await node.isolation.round()
    assert file.read_text() == "1\n"
    for _ in range(2):  # starts that follow each other keep them waiting so long only
        node.now_s += FILES_LATE_S
        file = cgroup(node, node.batch())
        await node.isolation.settled("")
        assert file.read_text() == "1\n"
    await ended(running)
