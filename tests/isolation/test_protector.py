"""The loop of measured protection: real files and real counters in, steps out; the time passes when the test says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
import pytest_asyncio

from cri_proxy.affinity.effect.io.counting import Countable
from cri_proxy.isolation.baselines import LEAST_WINDOWS
from cri_proxy.isolation.io.protector import FILE, SAVE_S, Protector, protection_settings
from cri_proxy.isolation.model import (
    BATCH,
    PROTECTED,
    BandwidthInfo,
    CacheDomain,
    CacheInfo,
    IsolatedContainer,
    ResctrlInfo,
    Step,
)
from cri_proxy.isolation.protection import WINDOW_S, ProtectionSettings
from cri_proxy.isolation.windows import LEAST_WORK, WARM_S
from tests.affinity.effect.io.counted_cgroup import SOFTWARE, busy_in, cgroup_in, counted_root, worked_in
from tests.affinity.io.affinity_node import Node, config_of
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime

ROOT = counted_root() if os.getuid() == 0 else None
CPU = min(os.sched_getaffinity(0))
HERE, AWAY = frozenset({CPU}), frozenset({CPU + 1})
DOMAINS = (CacheDomain(3, HERE), CacheDomain(7, AWAY))
HYGON = ResctrlInfo(
    {"L3": CacheInfo(0xFFFF, is_sparse=True)},
    BandwidthInfo(1, 1, 2048, "eighth GB/s"),
    {"L3": DOMAINS, "MB": DOMAINS},
)
ON = {"caches": "enforce", "bandwidth": "enforce", "protection": "enforce"}
NO_COUNTERS = Countable(why="the kernel counts nothing of its cores here (a virtual machine without a PMU?)")


class Steering:
    """In the place of what carries steps out."""

    def __init__(self, info: Optional[ResctrlInfo] = HYGON) -> None:
        self.steps: dict[int, Step] = {}
        self.step_whys: dict[int, str] = {}
        self.info = info
        self.found: list[IsolatedContainer] = []
        self.woken = 0

    def containers(self) -> list[IsolatedContainer]:
        return self.found

    def wake(self) -> None:
        self.woken += 1


class Protected:
    """A node with a protected container "web" and a batch container "job", which meet in L3 3 when ``meet`` says so."""

    def __init__(self, node: Node, client: CriClient, folder: Path) -> None:
        self.node, self.client, self.folder = node, client, folder
        self.steering = Steering()
        self.asked: list[frozenset[int]] = []
        self.waits = 0.0
        self.used_ns = 0
        self.batch_runs = True
        self.on_window: Callable[[], None] = lambda: None
        self.protector: Protector = None  # type: ignore[assignment]

    async def start(
        self, countable: Countable = NO_COUNTERS, root: Optional[Path] = None, **isolation: Any
    ) -> None:
        state = {"directory": str(self.folder / "kept")}
        self.node.services.config = config_of(
            isolation={**ON, **isolation}, constants=self.constants, state=state
        )
        (self.folder / "kept").mkdir()
        self.countable, self.root = countable, root or self.folder / "cgroup"
        self.restart()
        for name in ("web", "job"):
            await self.node.create(self.client, name)
        self.node.now_s += WARM_S
        self.meet(False)

    constants: dict[str, Any] = {}

    def restart(self) -> None:
        """Another daemon begins; nothing that the one before had set is there."""
        self.steering.steps = {}
        self.protector = Protector(
            self.node.services, self.root, self.steering, self._ask, countable=self.countable
        )

    def _ask(self, cpus: frozenset[int]) -> bool:
        self.asked.append(cpus)
        return True

    def meet(self, do: bool) -> None:
        self.steering.found = [
            self._seen("web", PROTECTED, HERE),
            self._seen("job", BATCH, HERE if do else AWAY),
        ]

    def _seen(self, name: str, cls: str, cpus: frozenset[int]) -> IsolatedContainer:
        return IsolatedContainer(self.node.ids[name], f"default/{name}/main", cls, "", cpus)

    async def windows(self, count: int, waiting: float = 0.0) -> None:
        """So many windows, in each of which "web" waits such a part of the time."""
        for _ in range(count):
            self.node.now_s += WINDOW_S
            self.waits += waiting * WINDOW_S
            self.used_ns += 10**9 if self.batch_runs else 0
            self.node.waited("web", self.waits)
            job = self.folder / "cgroup" / "kubepods" / self.node.ids["job"]
            job.mkdir(parents=True, exist_ok=True)
            (job / "cpu.stat").write_text(f"usage_usec {self.used_ns // 1000}\nthrottled_usec 0\n")
            self.on_window()
            await self.protector.round()

    async def learn(self) -> None:
        await self.windows(LEAST_WINDOWS + 1, 0.02)
        self.meet(True)

    def domain(self) -> dict[str, Any]:
        [row] = self.protector.status()["domains"]
        return dict(row)


@pytest_asyncio.fixture
async def protected(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Protected]:
    async with Node(runtime, tmp_path) as node, CriClient(runtime.socket) as client:
        it = Protected(node, client, tmp_path)
        yield it
        await it.protector.close()
    assert not any("perf" in link or "kubepods" in link for link in _links())


def _links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


# ---------------------------------------------------------------------- pressure


async def test_a_container_that_waits_longer_beside_batch_than_without_gets_more(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(5, 0.5)
    assert protected.steering.steps == {3: Step(pytest.approx(0.2), pytest.approx(0.2))}
    assert protected.steering.woken == 1
    metrics = protected.node.services.metrics.text()
    assert 'cri_resmgr_isolation_steps_total{direction="less"} 1.0' in metrics
    assert 'cri_resmgr_isolation_batch_share{l3="3",of="cache"} 0.2' in metrics
    row = protected.domain()
    assert (row["domain"], row["level"], row["cache_share"]) == (3, 1, 0.2)
    assert row["why"].startswith(
        "default/web/main: share of time that tasks waited for CPUs 0.5, without batch 0.02"
    )


async def test_where_nothing_counts_the_status_says_that_it_is_pressure_alone(protected) -> None:
    await protected.start()
    await protected.windows(1)
    assert protected.protector.status()["how"] == f"by pressure (PSI) alone: {NO_COUNTERS.why}"


async def test_what_helped_stays_and_comes_back_when_it_is_quiet(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(5, 0.5)
    await protected.windows(8, 0.02)
    assert protected.domain()["helped"]["helped"] is True
    await protected.windows(20, 0.02)
    assert protected.steering.steps == {}
    assert 'direction="back"} 1.0' in protected.node.services.metrics.text()
    assert "isolation_batch_share{" not in protected.node.services.metrics.text()


async def test_harm_that_stays_has_a_batch_container_moved_away(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(40, 0.5)
    assert protected.asked == [HERE]
    assert protected.steering.steps == {}, "what brought nothing is taken back"
    told = protected.node.engine.notable.since(None)["events"]
    [event] = [row for row in told if row["reason"] == "ProtectionAtFloor"]
    assert (event["type"], event["container"]) == ("Warning", "web") and "not enough" in event["message"]


async def test_where_batch_sleeps_its_windows_are_learnt_from(protected) -> None:
    await protected.start()
    protected.meet(True)
    protected.batch_runs = False
    await protected.windows(LEAST_WINDOWS + 2, 0.02)
    protected.batch_runs = True
    await protected.windows(5, 0.5)
    assert protected.steering.steps.keys() == {3}


async def test_a_container_that_was_never_without_batch_has_no_baseline(protected) -> None:
    await protected.start()
    protected.meet(True)
    await protected.windows(30, 0.5)
    assert protected.steering.steps == {}
    assert "not known yet" in protected.domain()["protected"][0]["baseline"]


async def test_a_container_is_not_looked_at_while_it_starts(protected) -> None:
    await protected.start()
    protected.node.now_s -= WARM_S
    protected.meet(True)
    await protected.windows(5, 0.5)
    assert protected.protector._readings == {}


async def test_without_protected_containers_nothing_is_open(protected) -> None:
    await protected.start()
    protected.steering.found = []
    await protected.windows(3)
    assert not any("kubepods" in link for link in _links())


# ---------------------------------------------------------------------- over restarts


async def test_a_daemon_that_starts_anew_knows_what_workloads_measured(protected) -> None:
    await protected.start()
    await protected.learn()
    protected.node.now_s += SAVE_S
    await protected.windows(1, 0.02)
    await protected.protector.close()
    protected.restart()
    await protected.windows(5, 0.5)
    assert protected.steering.steps.keys() == {3}
    assert "its workload's" in protected.domain()["protected"][0]["baseline"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"workloads": 5}', '{"workloads": [["w", 1]]}'])
async def test_a_file_that_cannot_be_read_is_as_none(protected, text) -> None:
    await protected.start()
    file = Path(protected.node.services.config["state.directory"]) / FILE
    file.write_text(text)
    await protected.learn()
    await protected.windows(5, 0.5)
    assert protected.steering.steps.keys() == {3}


async def test_a_directory_that_cannot_be_written_leaves_protection_as_it_is(protected) -> None:
    await protected.start()
    (Path(protected.node.services.config["state.directory"]) / f"{FILE}.new").mkdir()
    await protected.learn()
    protected.node.now_s += SAVE_S
    await protected.windows(6, 0.5)
    assert protected.steering.steps.keys() == {3}


# ---------------------------------------------------------------------- modes


async def test_its_run_ends_when_it_is_off_and_has_given_everything_back(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(5, 0.5)
    protected.node.services.config = config_of(isolation={**ON, "protection": "off"})
    await protected.protector.run()
    assert protected.steering.steps == {} and protected.protector._readings == {}


async def test_off_looks_at_nothing_and_gives_everything_back(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(5, 0.5)
    protected.node.services.config = config_of(isolation={**ON, "protection": "off"})
    protected.protector.reconfigured()
    assert protected.protector._wake.is_set()
    await protected.windows(1, 0.5)
    assert protected.steering.steps == {} and protected.steering.woken == 2
    assert protected.protector.status() == {
        "mode": "off",
        "how": "isolation.protection is off",
        "counted": 0,
        "left_out": 0,
        "domains": [],
    }


async def test_while_the_containers_are_not_known_batch_keeps_what_it_has(protected) -> None:
    await protected.start()
    await protected.learn()
    await protected.windows(5, 0.5)
    engine, protected.node.services.node_state.engine = protected.node.engine, None
    await protected.windows(3, 0.5)
    assert protected.steering.steps.keys() == {3}
    protected.node.services.node_state.engine = engine


async def test_observing_says_what_would_be_and_steers_nothing(protected) -> None:
    await protected.start(protection="observe")
    await protected.learn()
    await protected.windows(30, 0.5)
    assert protected.steering.steps == {} and protected.steering.woken == 0 and protected.asked == []
    assert protected.domain()["why"].startswith("batch would get less: default/web/main")


async def test_steps_that_no_subject_carries_out_are_only_said(protected) -> None:
    await protected.start(caches="observe", bandwidth="off")
    await protected.learn()
    await protected.windows(30, 0.5)
    assert protected.steering.steps == {} and protected.asked == []
    assert (
        "neither isolation.caches nor isolation.bandwidth is enforced" in protected.protector.status()["how"]
    )


async def test_without_resctrl_the_planner_alone_is_asked(protected) -> None:
    await protected.start()
    protected.steering.info = None
    l3, other = (domain.cpus for domain in protected.node.engine.host.topology.at("l3")[:2])
    web, job = protected._seen("web", PROTECTED, l3), protected._seen("job", BATCH, other)
    protected.steering.found = [web, job]
    await protected.windows(LEAST_WINDOWS + 1, 0.02)
    protected.steering.found = [web, replace(job, cpus=l3)]
    await protected.windows(6, 0.5)
    assert protected.asked == [l3] and protected.steering.steps == {}
    assert "only the planner can be asked" in protected.protector.status()["how"]


async def test_the_planner_that_is_asked_moves_one_batch_container_away(runtime, tmp_path) -> None:
    of_batch = {**ON, "batch": ["namespace/default"], "protected": []}
    async with (
        Node(runtime, tmp_path, {"isolation": of_batch}) as node,
        CriClient(runtime.socket) as client,
    ):
        it = Protected(node, client, tmp_path)
        await it.start(batch=of_batch["batch"], protected=[])
        it.steering.info = None
        it.protector._ask = node.affinity.ask_apart
        home = node.leaf("job")
        assert node.leaf("web") == home, "batch comes together by itself"
        elsewhere = next(l3.cpus for l3 in node.engine.host.topology.at("l3") if l3.cpus != home)
        web, job = it._seen("web", PROTECTED, home), it._seen("job", BATCH, elsewhere)
        it.steering.found = [web, job]
        await it.windows(LEAST_WINDOWS + 1, 0.02)
        it.steering.found = [web, replace(job, cpus=home)]
        await it.windows(6, 0.5)
        node.now_s += 1000
        for _ in range(2):  # the first looks how long containers wait
            node.now_s += 30
            await node.round()
        assert [node.leaf(name) == home for name in ("web", "job")].count(False) == 1
        await it.protector.close()


@pytest.mark.parametrize(
    ("isolation", "info", "expected"),
    [
        ({}, HYGON, ProtectionSettings(0.3, 0.3)),
        ({"batch_cache": "4 bits"}, HYGON, ProtectionSettings(0.25, 0.3)),
        ({"batch_cache": "0xff"}, HYGON, ProtectionSettings(0.5, 0.3)),
        ({"batch_bandwidth": "11000MBps"}, HYGON, ProtectionSettings(0.3, 0.2)),
        ({"caches": "off"}, HYGON, ProtectionSettings(None, 0.3)),
        ({"caches": "observe"}, HYGON, ProtectionSettings(0.3, 0.3)),
        ({"caches": "observe", "bandwidth": "observe"}, HYGON, ProtectionSettings(0.3, 0.3, False)),
        ({"protection": "observe"}, HYGON, ProtectionSettings(0.3, 0.3, False)),
        ({}, None, ProtectionSettings(None, None)),
        ({}, ResctrlInfo(), ProtectionSettings(None, None)),
    ],
)
def test_what_is_configured_is_a_share_on_this_machine(isolation, info, expected) -> None:
    assert protection_settings(config_of(isolation={**ON, **isolation}), info, True) == expected


def test_a_daemon_that_does_not_enforce_only_says() -> None:
    assert not protection_settings(config_of(isolation=ON), HYGON, False).enforces


# ---------------------------------------------------------------------- counted


@pytest.mark.skipif(ROOT is None, reason="needs root, and a kernel that counts by cgroup")
async def test_a_counted_container_is_protected_by_its_counter(protected) -> None:
    """With page faults for a millisecond of CPU time, in the place of fills for a thousand instructions."""
    assert ROOT is not None
    with contextlib.ExitStack() as stack:
        processes = await _counted(protected, stack)
        await protected.windows(LEAST_WINDOWS + 1)
        assert protected.protector.status()["counted"] == 1
        protected.meet(True)
        await protected.windows(1)
        processes[0].send_signal(signal.SIGUSR1)
        await protected.windows(6)
        assert protected.steering.steps.keys() == {3}
        assert "page faults per millisecond of CPU time" in protected.domain()["why"]
        assert protected.protector.status()["how"].startswith("by page faults per millisecond")


@pytest.mark.skipif(ROOT is None, reason="needs root, and a kernel that counts by cgroup")
async def test_too_few_descriptors_leave_a_container_to_pressure(protected) -> None:
    protected.constants = {"affinity_measure_descriptors": 1}
    with contextlib.ExitStack() as stack:
        await _counted(protected, stack)
        protected.meet(True)
        await protected.windows(1)
        status = protected.protector.status()
        assert (status["counted"], status["left_out"]) == (0, 1)
        assert "1 of the containers by pressure: the descriptors for counters are too few" in status["how"]


async def _counted(protected: Protected, stack: contextlib.ExitStack) -> list[subprocess.Popen[bytes]]:
    assert ROOT is not None
    await protected.start(Countable(SOFTWARE), ROOT)
    cgroup = stack.enter_context(cgroup_in(ROOT, f"cri-resmgr-protect-{os.getpid()}"))
    made = stack.enter_context(cgroup_in(cgroup, "web"))
    protected.node.services.reconciler.cgroup_of = (  # type: ignore[method-assign]
        lambda key: f"/{cgroup.name}/web" if key == protected.node.ids["web"] else None
    )
    worked = stack.enter_context(worked_in(made, HERE))
    process = stack.enter_context(busy_in(made, CPU))

    def enough() -> None:
        until = worked() + 1.2 * LEAST_WORK
        while worked() < until:
            os.sched_yield()

    protected.on_window = enough
    return [process]
