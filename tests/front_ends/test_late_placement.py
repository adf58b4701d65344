"""Containers that come unannounced: which of them ran before, and what becomes of those that are placed after all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Management
from cri_proxy.engine.resync import UnannouncedContainer
from cri_proxy.front_ends import late_placement
from cri_proxy.front_ends.late_placement import LONGEST_PAUSE_S, LOOKED, Arrivals, LatePlacement, Restores
from cri_proxy.front_ends.placer import Placer
from cri_proxy.relay.status import Code, RpcError
from policies.model import BudgetSpent, Hint, PlacementPreferences, PlacementRefused, Pod
from tests.front_ends.test_placer_properties import FrontEnd
from tests.machines import HYGON_7285_2S
from tests.scenes import constraint, engine_on, make_container, make_pod

#: How long the machine has run, seconds.
BOOT_S = 5000.0
SECOND_NS = 1_000_000_000


class Node(FrontEnd):
    """The parts of a daemon that late placement works with; a runtime that says when containers have started."""

    def __init__(self, folder: Path, policy: str = "topology-aware") -> None:
        super().__init__(policy)
        self.folder = folder
        self.started_ns: dict[str, int] = {}
        self.asked: list[str] = []
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.tried: list[tuple[list[str], float]] = []
        self.state.log = SimpleNamespace(info=self._log, warning=self._log, error=self._log)
        self.updates.tried = self._tried  # type: ignore[method-assign]
        self.store = SimpleNamespace(later=lambda work: work())
        self.reconciler = SimpleNamespace()

    @property
    def services(self) -> Any:
        return SimpleNamespace(
            config={"state.directory": str(self.folder)},
            node_state=self.state,
            store=self.store,
            reconciler=self.reconciler,
            runtime=SimpleNamespace(container_status=self._status),
            log=self.state.log,
        )

    async def _status(self, container_id: str) -> tuple[Any, dict[str, Any]]:
        self.asked.append(container_id)
        if container_id not in self.started_ns:
            raise RpcError(Code.NOT_FOUND, "gone")
        return SimpleNamespace(started_at=self.started_ns[container_id]), {}

    async def _tried(self, ids: Any, seconds: float) -> None:
        self.tried.append((list(ids), seconds))

    def _log(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def line(self, event: str) -> dict[str, Any]:
        return next(fields for name, fields in reversed(self.lines) if name == event)

    def counted(self, name: str, **labels: str) -> float:
        return self.state.metrics.registry.get_sample_value(f"cri_resmgr_{name}_total", labels) or 0


def found(*each: UnannouncedContainer) -> Mapping[str, UnannouncedContainer]:
    return {one.id: one for one in each}


def seen(
    key: str, started_ns: int = 0, running: bool = True, limit: float = 2, **more: Any
) -> UnannouncedContainer:
    container = make_container(key, limit, **more)
    return UnannouncedContainer(key, container, started_at_ns=started_ns, is_running=running)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(late_placement, "boot_time_s", lambda: BOOT_S)
    return Node(tmp_path)


# ---------------------------------------------------------------------- what ran before


def looked(node: Node, ago_s: float) -> int:
    """A daemon before has looked so long ago; when that was."""
    path = node.folder / LOOKED
    path.touch()
    at_ns = time.time_ns() - round(ago_s * SECOND_NS)
    os.utime(path, ns=(at_ns, at_ns))
    return at_ns


async def adopted(arrivals: Arrivals, node: Node, *each: UnannouncedContainer) -> list[str]:
    return sorted(await arrivals.welcome(node.engine, found(*each)))


async def test_where_none_has_looked_before_all_that_runs_keeps_what_it_has(node) -> None:
    arrivals = Arrivals(node.services)
    now_ns = time.time_ns()
    each = [seen("old", 1), seen("new", now_ns), seen("untold"), seen("made", running=False)]
    assert await adopted(arrivals, node, *each) == ["new", "old", "untold"]
    # One that starts now did not run then, and one that did goes on to have.
    later = [*each[:3], seen("made"), seen("next", now_ns)]
    assert await adopted(arrivals, node, *later) == ["new", "old", "untold"]
    assert node.line("what ran before keeps what it has") == {"containers": 3}


@pytest.mark.parametrize(
    ("ago_s", "boot_s", "is_known"),
    [
        (10, BOOT_S, True),
        (LONGEST_PAUSE_S - 10, BOOT_S, True),
        (LONGEST_PAUSE_S + 10, BOOT_S, False),
        # Of the boot before, and of a clock that was set back.
        (100, 90, False),
        (-10, BOOT_S, False),
    ],
)
async def test_what_has_started_since_the_daemon_before_has_looked_is_placed(
    node, monkeypatch, ago_s, boot_s, is_known
) -> None:
    monkeypatch.setattr(late_placement, "boot_time_s", lambda: boot_s)
    at_ns = looked(node, ago_s)
    arrivals = Arrivals(node.services)
    each = [seen("old", at_ns - 1), seen("since", at_ns)]
    assert await adopted(arrivals, node, *each) == (["old"] if is_known else ["old", "since"])


async def test_the_runtime_is_asked_when_a_container_has_started_where_that_is_not_known(node) -> None:
    at_ns = looked(node, 10)
    node.started_ns = {"since": at_ns + 1, "old": at_ns - 1, "never": 0}
    arrivals = Arrivals(node.services)
    each = [*map(seen, ("since", "old", "never", "gone")), seen("told", at_ns)]
    assert await adopted(arrivals, node, *each) == ["gone", "never", "old"]
    assert sorted(node.asked) == ["gone", "never", "old", "since"]


async def test_a_runtime_that_does_not_answer_is_not_waited_for(node, monkeypatch) -> None:
    async def hang(container_id: str) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(late_placement, "START_S", 0.01)
    monkeypatch.setattr(node, "_status", hang)
    looked(node, 10)
    assert await adopted(Arrivals(node.services), node, seen("untold")) == ["untold"]


async def test_what_the_daemon_before_has_not_saved_is_not_told_from_what_came_after(node) -> None:
    at_ns = looked(node, 10)
    arrivals = Arrivals(node.services)
    node.state.books.are_behind = True
    assert await adopted(arrivals, node, seen("old", at_ns - 1), seen("since", at_ns)) == ["old", "since"]


@pytest.mark.parametrize("how", ["another", "unasked"])
async def test_for_an_engine_that_comes_later_all_that_runs_then_ran_before(node, how) -> None:
    at_ns = looked(node, 10)
    arrivals = Arrivals(node.services)
    since = seen("since", at_ns)
    assert await adopted(arrivals, node, since) == []
    if how == "another":
        node.state.engine = engine_on(HYGON_7285_2S)
    else:
        arrivals.unasked()
    assert await adopted(arrivals, node, since) == ["since"]


async def test_that_it_has_looked_is_noted_at_the_end_if_there_was_anything_to_be_known(node) -> None:
    path = node.folder / LOOKED
    arrivals = Arrivals(node.services)
    arrivals.end()
    assert not path.exists()
    await arrivals.welcome(node.engine, {})
    arrivals.end()
    assert path.exists()
    os.utime(path, (0, 0))
    arrivals.note_look()
    assert path.stat().st_mtime > 0
    # Where it cannot be noted all is adopted after a restart.
    node.folder = node.folder / "gone"
    Arrivals(node.services).note_look()


async def test_comparisons_ask_it_and_what_was_only_made_is_waited_for(node) -> None:
    arrivals = Arrivals(node.services)
    each = found(seen("one"), seen("two", running=False))
    assert await node.reconciler.welcome(node.engine, each) == found(each["one"])
    await node.reconciler.place_late(node.engine, each)
    assert list(node.engine.grants) == ["one"] and arrivals.count == 1


# ---------------------------------------------------------------------- placing


async def test_they_are_decided_in_the_order_of_their_starts_and_one_that_is_known_is_left(node) -> None:
    late = LatePlacement(node.services)
    await late.place(node.engine, [seen("b", 20), seen("a", 30), seen("c", 10)])
    assert [record.path.rpartition("/")[2] for record in node.engine.history] == ["c", "b", "a"]
    before = dict(node.engine.grants)
    await late.place(node.engine, [seen("a", 30, limit=4), seen("d", 40)])
    assert {key: node.engine.grants[key] for key in before} == before
    assert (late.count, sorted(node.engine.grants)) == (4, ["a", "b", "c", "d"])
    line = node.line("arrival")
    assert (line["outcome"], line["id"], line["container"]) == ("placed", "d", "default/pod-of-d/d")
    assert line["late_ms"] > 0 and line["cpus"] and line["rung"] == "ccx"
    assert node.counted("requests", method="arrival", outcome="placed") == 4
    assert not node.tried


async def test_how_late_it_is_is_not_known_of_one_that_does_not_say_when_it_has_started(node) -> None:
    await LatePlacement(node.services).place(node.engine, [seen("a")])
    assert node.line("arrival")["late_ms"] is None


async def test_a_pod_is_told_on_once_and_before_its_containers_are_decided(node) -> None:
    told: list[tuple[str, bool, int]] = []

    async def on_pod(pod: Pod) -> None:
        told.append((pod.id, pod.id in node.engine.pods, len(node.engine.grants)))

    node.state.on_pod = on_pod
    pod = make_pod("p")
    each = [seen("a", 1, pod=pod), seen("b", 2, pod=pod), seen("c", 3)]
    await LatePlacement(node.services).place(node.engine, each)
    assert told == [("sandbox-p", True, 0), ("sandbox-pod-of-c", True, 2)]


async def test_once_another_engine_is_there_no_more_is_decided(node) -> None:
    engine = node.engine

    async def on_pod(pod: Pod) -> None:
        if pod.id == "sandbox-pod-of-b":
            node.state.engine = engine_on(HYGON_7285_2S)

    node.state.on_pod = on_pod
    await LatePlacement(node.services).place(engine, [seen("a", 1), seen("b", 2), seen("c", 3)])
    assert list(engine.grants) == ["a"] and not node.engine.grants


@pytest.mark.parametrize(
    ("error", "outcome", "reason", "has_traceback"),
    [
        (PlacementRefused("no room"), "untouched: refused", "", None),
        (BudgetSpent("much"), "failed open: budget", "budget", False),
        (ValueError("a bug"), "failed open: bug", "bug", True),
    ],
)
async def test_what_cannot_be_placed_stays_as_it_is_and_the_next_one_is_decided(
    node, monkeypatch, error, outcome, reason, has_traceback
) -> None:
    real = Placer.create_late

    def create_late(placer: Placer, unannounced: UnannouncedContainer, *of: Any) -> None:
        if unannounced.id == "a":
            raise error
        real(placer, unannounced, *of)

    monkeypatch.setattr(Placer, "create_late", create_late)
    late = LatePlacement(node.services)
    await late.place(node.engine, [seen("a", 1)])
    line, grant = node.line("arrival"), node.engine.grants["a"]
    assert (line["outcome"], line["why"], line.get("exc_info")) == (
        outcome,
        f"not placed: {error}",
        has_traceback,
    )
    assert (grant.stance, grant.placement.cpus, late.count) == (Management.UNTOUCHED, frozenset(), 0)
    counted = {name: node.counted("failed_open", reason=name) for name in ("budget", "bug")}
    assert counted == {name: int(name == reason) for name in counted}
    assert node.counted("requests", method="arrival", outcome=outcome) == 1
    await late.place(node.engine, [seen("b", 2)])
    assert node.engine.grants["b"].stance is Management.PLACED and late.count == 1


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_those_that_have_not_started_are_told_before_they_do(node, mode) -> None:
    node.state.mode, node.state.shrink_wait_s = mode, 1.5
    await LatePlacement(node.services).place(node.engine, [seen("a"), seen("b", running=False)])
    assert node.tried == ([(["b"], 1.5)] if mode == "enforce" else [])
    stance = Management.PLACED if mode == "enforce" else Management.OBSERVED
    assert {grant.stance for grant in node.engine.grants.values()} == {stance}


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_one_that_could_not_be_told_before_its_start_says_so(node, monkeypatch, is_replaced) -> None:
    engine = node.engine

    async def tried(ids: Any, seconds: float) -> None:
        if is_replaced:
            node.state.engine = engine_on(HYGON_7285_2S)

    node.updates.tried = tried
    monkeypatch.setattr(type(node.updates), "pending", frozenset({"b", "gone"}))
    told_before = dict(engine.told)
    await LatePlacement(node.services).place(engine, [seen(key, running=False) for key in "ab"])
    why = "; the runtime could not be told before its start"
    assert [key for key, grant in engine.grants.items() if grant.why.endswith(why)] == (
        [] if is_replaced else ["b"]
    )
    assert set(engine.told) == {"a", "b"} | told_before.keys()
    assert is_replaced or node.line("not told before its start")["id"] == "b"
    assert not engine.drain(at_once=True)  # it is written down


# ---------------------------------------------------------------------- what it uses


async def test_hints_are_looked_up_of_what_counts(node) -> None:
    asked: list[Any] = []
    hint = Hint("devices", "/dev/gpu", frozenset({1}))

    async def hints(uses: Any, topology: Any) -> tuple[Hint, ...]:
        asked.append((uses, topology is node.engine.host.topology))
        return (hint,)

    node.state.devices = SimpleNamespace(hints=hints)
    uses = (("devices", "/dev/gpu"), ("mounts", "/mnt"))
    counts = PlacementPreferences(hints=frozenset({"devices"}))
    await LatePlacement(node.services).place(
        node.engine,
        [
            replace(seen("a", preferences=counts), uses=uses),
            replace(seen("b", preferences=counts), uses=uses[1:]),
        ],
    )
    assert asked == [(uses[:1], True)]
    assert node.engine.grants["a"].container.hints == (hint,)
    assert node.engine.grants["b"].container.hints == ()


@pytest.mark.parametrize(
    ("wish", "refusal", "kept"),
    [
        ("lift", "nobody may write there", True),
        ("lift", "", False),
        ("keep", "nobody may write there", False),
    ],
)
async def test_a_quota_that_cannot_be_lifted_is_kept_with_the_reason(node, wish, refusal, kept) -> None:
    node.state.quotas = SimpleNamespace(
        refusal=lambda parent: refusal, follow=lambda *_, **__: None, taken={}, is_waiting=False
    )
    await LatePlacement(node.services).place(
        node.engine, [seen("a", preferences=PlacementPreferences(cfs_quota=wish))]
    )
    preferences = node.engine.grants["a"].container.preferences
    assert preferences.cfs_quota == ("keep" if kept else wish)
    assert any(refusal in note for note in preferences.notes) is kept
    assert any(event == "a CPU quota is not lifted" for event, _ in node.lines) is kept


async def test_annotations_that_are_ignored_are_told_and_whose_its_cpuset_is_is_asked(node) -> None:
    fences: list[str] = []

    async def on_fence() -> None:
        fences.append("asked")

    node.state.on_fence = on_fence
    plain, odd = seen("a"), seen("b", preferences=PlacementPreferences(notes=("what is that",)))
    await LatePlacement(node.services).place(node.engine, [plain])
    assert not node.lines[:-1] and not fences
    within = constraint("0-3")
    await LatePlacement(node.services).place(node.engine, [replace(odd, constraint=within)])
    assert node.line("annotations")["ignored"] == ["what is that"]
    assert len(fences) == bool(within.asked.cpus)


# ---------------------------------------------------------------------- restores


class Placed:
    """Stands in for late placement: which containers it was given."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def place(self, engine: Optional[Engine], each: Any) -> None:
        self.keys += [one.id for one in each]


EACH = found(*(seen(key, pod=make_pod(key)) for key in ("done", "lost", "under", "other")))


@pytest.fixture
def placed() -> Placed:
    return Placed()


@pytest.fixture
def restores(placed: Placed) -> Restores:
    """Of one it is known what has become of it, of one it is not, and one is under way."""
    late: Any = placed
    restores = Restores(late)
    for uid in ("uid-done", "uid-lost", "uid-under"):
        restores.begun(uid)
    restores.ended("uid-done", True)
    restores.ended("uid-lost", False)
    return restores


async def test_what_restores_have_made_is_not_adopted(restores) -> None:
    assert sorted(await restores.welcome(None, EACH)) == ["done", "other"]


async def test_what_restores_have_left_is_placed_once_it_is_over(restores, placed) -> None:
    await restores.place_left(None, EACH)
    await restores.place_left(None, EACH)
    assert placed.keys == ["lost"]
    assert sorted(await restores.welcome(None, EACH)) == ["done", "lost", "other"]
    restores.ended("uid-under", False)
    await restores.place_left(None, EACH)
    assert placed.keys == ["lost", "under"]


async def test_a_pod_that_is_restored_again_is_left_until_that_is_over(restores, placed) -> None:
    restores.begun("uid-lost")
    await restores.place_left(None, EACH)
    assert placed.keys == []
    restores.ended("uid-lost", True)
    await restores.place_left(None, EACH)
    assert placed.keys == []


async def test_what_is_left_and_not_there_yet_is_placed_when_it_is(restores, placed) -> None:
    await restores.place_left(None, found(EACH["other"]))
    assert sorted(await restores.welcome(None, EACH)) == ["done", "other"]
    await restores.place_left(None, EACH)
    assert placed.keys == ["lost"]
