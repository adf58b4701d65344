"""The mode that is wanted and by whom, what outlives a daemon, and how an engine is put to work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.daemon.engine_host import (
    ASKED_BY_KEY,
    BOOT_KEY,
    COMMAND,
    CONFIGURED_KEY,
    HASH_KEY,
    LOST_KEY,
    MODE_KEY,
    NODE_PLACEMENT,
    QUOTAS_KEY,
    RESET,
    STARTED,
    UNSAVED_FILE,
    Assembly,
    UnsavedMark,
    carry_over,
    restore,
)
from cri_proxy.engine.build import Machine
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Management, Orders
from cri_proxy.front_ends.placer import Placer
from cri_proxy.kubelet.io.cpu_manager import NotUnderstood
from cri_proxy.node.machine import NoMachine
from cri_proxy.state.file import LoadedState, StateLocked
from cri_proxy.state.writer import StateWriter
from cri_proxy.text.sources import SettingsSource
from policies.model import NO_CONSTRAINT
from tests.daemon.parts import parts
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on, make_container, make_pod, run, topology


class Scene:
    """An assembly with a disk that only remembers what it was given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Mapping[str, Any]) -> None:
        self.services = parts(folder, monkeypatch, **config)
        self.kept: dict[str, str] = {}
        self.written: list[dict[Any, Any]] = []
        self.problem, self.waits = "", 0
        monkeypatch.setattr(StateWriter, "problem", property(lambda _: self.problem))
        monkeypatch.setattr(StateWriter, "waiting", property(lambda _: self.waits))
        self.services.store.write = self._write  # type: ignore[assignment,method-assign]
        self.assembly = Assembly(self.services, "this boot")
        self.told = 0
        self.assembly.on_mode = self._tell
        self.mark = folder / UNSAVED_FILE

    def _write(self, journal: Mapping[Any, Any], meta: Optional[Mapping[str, str]] = None) -> None:
        self.written.append(dict(journal))
        self.kept.update(meta or {})

    def _tell(self) -> None:
        self.told += 1

    def configure(self, mode: str) -> None:
        """A reload has found another mode."""
        config = read_config([SettingsSource("test", values={"relay": {"mode": mode}})]).config
        self.services.config = config
        self.assembly.configured_mode()

    @property
    def mode(self) -> tuple[str, str]:
        """The mode, and what has set it."""
        return self.services.node_state.mode, self.assembly.mode_from

    @property
    def engine(self) -> Engine:
        assert self.services.node_state.engine is not None
        return self.services.node_state.engine


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


# ---------------------------------------------------------------------- the mode


async def test_a_mode_by_command_counts_until_another_is_configured_and_is_kept(scene) -> None:
    configured = scene.mode
    assert configured == ("enforce", "default")
    scene.services.look.clear()
    said = list[str]()
    scene.services.health.tell = lambda: said.append(scene.assembly.mode)
    scene.assembly.set_mode("observe")
    assert said == ["observe"]
    assert scene.mode == ("observe", COMMAND) and scene.told == 1 and scene.services.look.is_set()
    assert scene.kept == {MODE_KEY: "observe", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"}
    scene.configure("off")
    assert scene.mode[0] == "off" and scene.mode[1] != COMMAND
    assert scene.kept == {MODE_KEY: "", ASKED_BY_KEY: "", CONFIGURED_KEY: "off"}


async def test_a_command_for_what_is_configured_is_no_exception(scene) -> None:
    scene.assembly.set_mode("observe")
    scene.assembly.set_mode("enforce")
    assert scene.mode == ("enforce", "default") and scene.kept[MODE_KEY] == ""


async def test_what_a_nodeplacement_asks_for_holds_until_it_no_longer_asks(scene) -> None:
    scene.assembly.set_mode("enforce", NODE_PLACEMENT)
    scene.configure("observe")
    assert scene.mode == ("enforce", NODE_PLACEMENT)
    scene.assembly.set_mode("", NODE_PLACEMENT)
    assert scene.mode[0] == "observe" and scene.mode[1] != NODE_PLACEMENT
    assert scene.kept[ASKED_BY_KEY] == "" == scene.kept[MODE_KEY]


@pytest.mark.parametrize(("first", "second"), [(COMMAND, NODE_PLACEMENT), (NODE_PLACEMENT, COMMAND)])
async def test_none_takes_back_what_another_has_asked_for(scene, first, second) -> None:
    scene.assembly.set_mode("observe", first)
    scene.assembly.set_mode("", second)
    assert scene.mode == ("observe", first)
    scene.assembly.set_mode("", first)
    assert scene.mode == ("enforce", "default")


async def test_the_mode_in_force_is_off_while_there_is_no_engine(scene) -> None:
    assert scene.assembly.mode == "enforce"
    scene.services.node_state.engine = None
    assert scene.assembly.mode == "off"


async def test_before_the_state_is_read_a_configured_mode_takes_back_no_command_of_before(scene) -> None:
    scene.services.node_state.engine = None
    scene.configure("observe")
    assert scene.mode[0] == "observe" and not scene.kept
    scene.assembly._restore_mode({MODE_KEY: "off", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "observe"})
    assert scene.mode == ("off", COMMAND)


@pytest.mark.parametrize(
    ("kept", "mode", "by"),
    [
        ({}, "enforce", "default"),
        ({MODE_KEY: "observe", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"}, "observe", COMMAND),
        # As versions before have kept it.
        ({MODE_KEY: "observe"}, "observe", COMMAND),
        # Another mode is configured than then.
        ({MODE_KEY: "observe", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "off"}, "enforce", "default"),
        ({MODE_KEY: "off", ASKED_BY_KEY: NODE_PLACEMENT, CONFIGURED_KEY: "off"}, "off", NODE_PLACEMENT),
        ({MODE_KEY: "rubbish", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"}, "enforce", "default"),
    ],
)
async def test_a_mode_that_a_daemon_before_was_told(scene, kept, mode, by) -> None:
    scene.assembly._restore_mode(kept)
    assert scene.mode == (mode, by)
    # Over for good, also when the former one is configured again.
    if by == "default" and kept.get(MODE_KEY) == "observe":
        assert (scene.assembly._meta[MODE_KEY], scene.assembly._meta[CONFIGURED_KEY]) == ("", "enforce")


async def test_a_mode_that_was_told_since_the_start_counts_before_the_kept_one(scene) -> None:
    scene.assembly.set_mode("observe")
    scene.assembly._restore_mode({MODE_KEY: "off", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"})
    assert scene.mode == ("observe", COMMAND)


# ---------------------------------------------------------------------- what was not saved


def test_a_mark_is_of_this_boot_or_none(tmp_path) -> None:
    mark, other = (UnsavedMark(tmp_path / "run" / "c.sock", boot) for boot in ("this", "another"))
    assert not mark.is_set()
    mark.set()
    assert mark.is_set() and not other.is_set()
    mark.clear()
    mark.clear()
    assert not mark.is_set() and not mark.path.exists()


async def test_while_records_cannot_be_saved_the_next_daemon_is_told(scene) -> None:
    scene.problem = "the disk is full"
    scene.assembly.note_state()
    assert scene.mark.read_text() == "this boot" and scene.services.health.reasons == {"state": scene.problem}
    scene.problem = ""
    scene.services.node_state.books.are_behind = True
    scene.assembly.note_state()
    # What a daemon before has not saved is not known yet.
    assert scene.mark.exists() and not scene.services.health.reasons
    scene.services.node_state.books.are_behind = False
    scene.assembly.note_state()
    assert not scene.mark.exists()


async def test_of_a_daemon_that_never_had_an_engine_there_is_nothing_to_tell(scene) -> None:
    scene.services.node_state.engine = None
    scene.problem, scene.waits = "the disk is full", 3
    scene.assembly.note_state()
    scene.assembly.end()
    assert not scene.mark.exists()
    scene.mark.write_text("this boot")
    scene.problem = ""
    scene.assembly.note_state()
    assert scene.mark.exists()


@pytest.mark.parametrize("waits", [0, 1])
async def test_what_could_not_be_written_by_the_end_is_told(scene, waits) -> None:
    scene.waits = waits
    scene.assembly.end()
    assert scene.mark.exists() is bool(waits)


async def test_what_was_lost_is_a_reason_until_it_is_acknowledged(scene) -> None:
    scene.assembly._tell_lost(["the file was damaged", "", "the file was damaged"])
    scene.assembly._taken_over(0)
    assert scene.services.health.reasons["lost state"].startswith(
        "the file was damaged; what runs was adopted"
    )
    scene.assembly._taken_over(2)
    assert "damaged; there was no record, or an older one, of 2 containers: " in scene.kept[LOST_KEY]
    lost = scene.kept[LOST_KEY]
    assert scene.assembly.acknowledge() == lost and scene.kept[LOST_KEY] == ""
    assert not scene.services.health.reasons and scene.assembly.acknowledge() == ""
    scene.assembly._taken_over(1)
    assert "of 1 container: " in scene.kept[LOST_KEY]


# ---------------------------------------------------------------------- an engine


async def test_an_engine_gives_nothing_out_before_it_was_compared_and_what_it_has_is_written(scene) -> None:
    seen, collectors = [], []
    old = scene.engine
    scene.assembly.on_engage = lambda engine: seen.append((engine, scene.services.node_state.engine))
    for engine in (engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)):
        run(engine, make_container("app", 2), "c")
        scene.services.look.clear()
        scene.assembly.engage(engine, STARTED, frozenset({1}))
        assert seen[-1] == (engine, old) and scene.engine is engine
        old = engine
        books = scene.services.node_state.books
        assert (books.why, books.may_be_owned) == (STARTED, frozenset({1}))
        assert ("grant", "c") in scene.written[-1] and scene.services.look.is_set()
        assert scene.kept == {BOOT_KEY: "this boot", HASH_KEY: engine.host.topology.hash()}
        # The figures are of this engine alone.
        collectors.append(len(scene.services.metrics.registry._collectors))
    assert collectors[0] == collectors[1]


async def test_records_of_another_boot_are_written_away(scene) -> None:
    kept = engine_on(HYGON_7285_2S)
    run(kept, make_container("app", 2), "c")
    records = {"grant": dict(kept.grants), "pod": dict(kept.pods)}
    loaded = LoadedState(meta={BOOT_KEY: "another"}, records=records, unknown=(("odd", "key"),))
    restore(scene.engine, loaded, scene.services.store, "this boot")
    assert not scene.engine.grants
    gone = {("grant", "c"), *(("pod", key) for key in kept.pods), ("odd", "key")}
    assert scene.written == [dict.fromkeys(gone)]


@pytest.mark.parametrize("meta", [{BOOT_KEY: "this boot"}, {}])
async def test_records_of_this_boot_are_restored_in_the_order_of_their_starts(scene, meta) -> None:
    kept = engine_on(HYGON_7285_2S)
    for key in "ab":
        run(kept, make_container(key, 2), key)
    kept.put(replace(kept.grants["a"], since_s=9.0))
    records = {"grant": dict(kept.grants), "pod": dict(kept.pods), "distrust": {"uid\napp": 10.0**9}}
    restore(scene.engine, LoadedState(meta=meta, records=records), scene.services.store, "this boot")
    assert list(scene.engine.grants) == ["b", "a"] and scene.engine.distrusted == {("uid", "app"): 10.0**9}
    assert not scene.written


async def test_a_new_engine_knows_what_is_under_way_and_what_single_containers_own() -> None:
    old, new = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    run(old, make_container("app", 2), "c")
    own = frozenset({3, 4})
    grant = old.grants["c"]
    old.adopt(replace(grant, placement=replace(grant.placement, exclusive=own, cpus=own, home=own)))
    creation = Placer(old).create(make_container("next", 2), NO_CONSTRAINT, 0.0, True)
    old.set_orders(Orders(freeze=True))
    carry_over(old, new)
    assert new.orders == Orders(freeze=True)  # before a record of a claim comes, which would go back
    assert [ticket.id for ticket in new.tickets.values()] == [creation.admission.ticket]
    assert list(new.grants) == [creation.admission.ticket] and set(new.pods) == set(old.pods)
    assert new.claims == {"c": own}
    released, last = engine_on(HYGON_7285_2S), engine_on(HYGON_7285_2S)
    released.adopt(replace(old.grants["c"], stance=Management.RELEASED))
    carry_over(released, last)
    assert last.claims == {}


@pytest.mark.parametrize(
    ("meta", "kept", "recalled"),
    [
        ({BOOT_KEY: "this boot", QUOTAS_KEY: "of state"}, "", "of state"),
        ({BOOT_KEY: "this boot", QUOTAS_KEY: "of state"}, "of file", "of file"),
        ({BOOT_KEY: "another", QUOTAS_KEY: "of state"}, "of file", "of file"),
        ({BOOT_KEY: "another", QUOTAS_KEY: "of state"}, "", None),
        ({BOOT_KEY: "this boot"}, "", ""),
    ],
)
async def test_limits_that_were_lifted_in_this_boot_are_remembered(scene, meta, kept, recalled) -> None:
    said = []
    scene.services.node_state.quotas = SimpleNamespace(recall=said.append)
    scene.assembly._recall_quotas(meta, kept)
    assert said == ([] if recalled is None else [recalled])
    assert scene.assembly._meta.get(QUOTAS_KEY) == recalled


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_limit_is_lifted_once_that_is_on_disk_and_only_where_something_is_placed(
    scene, mode, is_done
) -> None:
    said: list[Any] = []
    scene.services.node_state.mode = mode
    scene.services.node_state.quotas = SimpleNamespace(
        kept=lambda text, lifts: said.append((text, lifts)), not_kept=lambda: said.append("not")
    )
    scene.services.store.later = lambda work, done: done(is_done)
    scene.assembly._keep_quotas("taken")
    assert said == [("taken", mode == "enforce") if is_done else "not"]
    assert scene.kept == {QUOTAS_KEY: "taken"}


class Reads:
    """Stands in for the machine and the state file: what is read of both."""

    def __init__(self, scene: Scene, machine: Any = None) -> None:
        self.loaded: Any = LoadedState()
        self.machine = machine or Machine(topology(HYGON_7285_2S))
        self.done: list[Any] = []
        services = scene.services
        services.machine.read = self._machine  # type: ignore[method-assign]
        services.store.load = self._load  # type: ignore[method-assign]
        services.store.run = self._run  # type: ignore[assignment,method-assign]
        services.node_state.updates.wake = lambda: self.done.append("wake")  # type: ignore[method-assign]
        services.machine.note_cgroup = self.done.append  # type: ignore[assignment,method-assign]

    def _machine(self, before: Any = None, pods: Any = ()) -> Any:
        if isinstance(self.machine, Exception):
            raise self.machine
        self.done.append(("machine", *pods))
        return self.machine

    async def _load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded

    async def _run(self, work: Any) -> Any:
        return work()


def records(*keys: str) -> dict[str, Any]:
    kept = engine_on(HYGON_7285_2S)
    for key in keys:
        run(kept, make_container(key, 2), key)
        kept.add_pod(replace(make_pod(f"pod-of-{key}"), cgroup_parent="/kubepods/burstable/podx"))
    return {"grant": dict(kept.grants), "pod": dict(kept.pods)}


@pytest.mark.parametrize(
    ("keys", "lost", "is_outdated", "is_marked", "is_whole"),
    [
        ("a", "", False, False, True),
        ("", "", False, False, False),
        ("a", "the file was damaged", False, False, False),
        ("a", "", True, False, False),
        ("a", "", False, True, False),
    ],
)
async def test_what_is_owned_is_known_by_records_that_are_whole(
    scene, keys, lost, is_outdated, is_marked, is_whole
) -> None:
    """Else the CPUs of any container may be owned until what runs was compared."""
    reads = Reads(scene)
    reads.loaded = LoadedState(records=records(*keys), lost=lost, is_outdated=is_outdated)
    scene.services.node_state.engine = None
    if is_marked:
        scene.mark.write_text("this boot")
    engaged = []
    scene.assembly.on_engage = lambda engine: engaged.append(len(engine.grants))
    assert await scene.assembly.activate() is True
    books = scene.services.node_state.books
    assert (books.why, books.may_be_owned) == (STARTED, frozenset() if is_whole else None)
    assert books.are_behind is (is_outdated or is_marked)
    assert list(scene.engine.grants) == list(keys) and (
        "lost state" in scene.services.health.reasons
    ) is bool(lost)
    parents = ["/kubepods/burstable/podx"] * len(keys)
    assert reads.done[: 2 * len(keys)] == [*parents, ("machine", *parents)][: 2 * len(keys)]
    assert reads.done[-1] == "wake"
    # Before it has records, and once more when it is at work.
    assert engaged == [0, len(keys)]
    assert await scene.assembly.activate() is True and len(engaged) == 2


@pytest.mark.parametrize(
    ("what", "error", "topic", "sentence"),
    [
        ("machine", NoMachine("no sysfs"), "topology", "no sysfs"),
        ("machine", ValueError("a bug"), "engine", "the engine could not be built: ValueError: a bug"),
        ("loaded", StateLocked("another has it"), "state", "locked"),
    ],
)
async def test_what_cannot_be_had_is_a_reason_until_it_is(scene, what, error, topic, sentence) -> None:
    reads = Reads(scene)
    scene.services.node_state.engine = None
    had = getattr(reads, what)
    setattr(reads, what, error)
    scene.problem = "locked" if topic == "state" else ""
    assert await scene.assembly.activate() is False
    assert scene.services.health.reasons == {topic: sentence} and scene.services.node_state.engine is None
    assert ("the engine could not be built" in scene.services.log.events) is (topic == "engine")
    setattr(reads, what, had)
    scene.problem = ""
    assert await scene.assembly.activate() is True and not scene.services.health.reasons


async def test_records_that_make_no_sense_are_set_aside(scene, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("they contradict each other")

    async def start_over() -> LoadedState:
        return LoadedState(notes=("it was set aside",), lost="all of it")

    reads = Reads(scene)
    reads.loaded = LoadedState(
        records=records("a"), meta={MODE_KEY: "observe", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"}
    )
    scene.services.store.start_over = start_over
    scene.services.node_state.engine = None
    monkeypatch.setattr(Engine, "restore", fail)
    engaged = []
    scene.assembly.on_engage = engaged.append
    assert await scene.assembly.activate() is True
    assert not scene.engine.grants and scene.services.health.reasons["lost state"].startswith("all of it; ")
    assert engaged[-1] is engaged[-2] is scene.engine is not engaged[0]
    assert scene.mode[0] == "enforce"  # what is kept with them is no better


async def test_a_mode_that_is_kept_is_in_force_with_the_first_engine(scene) -> None:
    reads = Reads(scene)
    reads.loaded = LoadedState(meta={MODE_KEY: "observe", ASKED_BY_KEY: COMMAND, CONFIGURED_KEY: "enforce"})
    scene.services.node_state.engine = None
    await scene.assembly.activate()
    assert scene.mode == ("observe", COMMAND)


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_an_engine_that_starts_over_knows_which_cpus_may_be_owned(scene, mode) -> None:
    node_state, old, done = scene.services.node_state, scene.engine, list[Any]()
    run(old, make_container("app", 2), "c")
    own = frozenset({3, 4})
    place = replace(old.grants["c"].placement, exclusive=own, cpus=own, home=own)
    old.adopt(replace(old.grants["c"], placement=place))
    creation = Placer(old).create(make_container("next", 2), NO_CONSTRAINT, 0.0, True)

    async def until(is_over: Any, seconds: float) -> None:
        done.append(("until", is_over(""), node_state.books.why))
        creation.unknown()
        done.append(is_over(""))

    async def tried(ids: Any, seconds: float) -> None:
        done.append("tried")

    async def moved() -> str:
        return "it was moved"

    node_state.mode = mode
    node_state.updates.until, node_state.updates.tried = until, tried
    scene.services.store.set_aside = moved
    assert await (await scene.assembly.start_over()) == "it was moved"
    # While that goes on nothing is given out.
    assert done == [("until", False, RESET if mode == "enforce" else ""), True, "tried"]
    assert scene.engine is not old and list(scene.engine.grants) == [creation.admission.ticket]
    owned = old.node.exclusive if mode == "enforce" else None
    assert node_state.books.may_be_owned == owned and scene.kept[HASH_KEY]


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("by_reload", [False, True])
async def test_an_engine_follows_a_machine_that_has_changed_and_any_configuration(
    scene, monkeypatch, changes, by_reload
) -> None:
    rehosted = []
    monkeypatch.setattr(Engine, "rehost", lambda engine, host, policy, options: rehosted.append(options))
    monkeypatch.setattr(type(scene.engine), "rehost", Engine.rehost)
    reads = Reads(scene)
    scene.engine.host = scene.assembly.host(reads.machine)
    if changes:
        reads.machine = Machine(topology(HYGON_7285_2S), parent_cpus=frozenset(range(8)))
    devices = scene.services.node_state.devices
    await (scene.assembly.follow_config() if by_reload else scene.assembly.follow_machine())
    assert [options is not None for options in rehosted] == [by_reload] * (changes or by_reload)
    assert ("the machine has changed" in scene.services.log.events) is changes
    assert (scene.services.node_state.devices is devices) is not by_reload
    assert (HASH_KEY in scene.kept) is (changes or by_reload)


async def test_a_machine_that_cannot_be_read_again_is_a_reason_and_the_engine_goes_on(scene) -> None:
    reads, before = Reads(scene), scene.engine
    had, reads.machine = reads.machine, NoMachine("no sysfs")
    await scene.assembly.follow_machine()
    assert scene.services.health.reasons == {"topology": "the machine could not be read again: no sysfs"}
    reads.machine = had
    await scene.assembly.follow_machine()
    assert not scene.services.health.reasons and scene.engine is before


# ---------------------------------------------------------------------- kubelet's own


class Assignments:
    """Kubelet's file, read when asked."""

    def __init__(self, given: Any) -> None:
        self.given, self.news, self.reads = given, True, 0

    def is_news(self, folder: Path) -> bool:
        return self.news

    def read(self, folder: Path) -> Any:
        self.reads += 1
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


GIVEN = {("uid", "app"): frozenset({7})}


@pytest.mark.parametrize("news", [True, False])
async def test_kubelets_file_is_read_where_it_is_news(scene, news) -> None:
    scene.services.machine.assignments = file = Assignments(GIVEN)
    file.news = news
    await scene.assembly.follow_kubelet()
    assert scene.engine.host.kubelet_exclusive == (GIVEN if news else {}) and file.reads == int(news)


async def test_a_file_of_kubelets_that_is_not_understood_is_the_next_rounds(scene) -> None:
    scene.services.machine.assignments = Assignments(NotUnderstood("what is that"))
    scene.services.look.clear()
    await scene.assembly.follow_kubelet()
    assert scene.services.look.is_set() and not scene.engine.host.kubelet_exclusive


async def test_while_the_machine_is_read_kubelets_file_is_waited_for_and_read_after_it(scene) -> None:
    scene.services.machine.assignments = file = Assignments(GIVEN)
    file.news = False
    async with scene.assembly._lock:
        following = asyncio.ensure_future(scene.assembly.follow_kubelet())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not following.done()
        file.news = True
    await following
    assert scene.engine.host.kubelet_exclusive == GIVEN


async def test_an_engine_that_has_come_meanwhile_is_not_told_what_was_read_for_another(scene) -> None:
    scene.services.machine.assignments = file = Assignments(GIVEN)
    real = file.read

    def read(folder: Path) -> Any:
        scene.services.node_state.engine = engine_on(HYGON_7285_2S)
        return real(folder)

    file.read = read  # type: ignore[method-assign]
    before = scene.engine
    await scene.assembly.follow_kubelet()
    assert not before.host.kubelet_exclusive and not scene.engine.host.kubelet_exclusive
