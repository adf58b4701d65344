"""Monitoring in a daemon: what is read for whom, what people and Prometheus are told, and that it ends without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import pytest
import pytest_asyncio

from cri_proxy.instruments import Registry
from cri_proxy.isolation.io.monitor import CacheMonitor
from cri_proxy.isolation.io.monitoring_groups import is_marked
from cri_proxy.isolation.io.monitoring_rounds import MonitoringRounds
from cri_proxy.isolation.io.watcher import Watcher
from cri_proxy.isolation.model import CacheDomain, CacheInfo, ResctrlInfo
from cri_proxy.isolation.monitoring import LOCAL, OCCUPANCY, TOTAL, VALUES, group_name
from policies.model import NO_CONSTRAINT, Qos
from tests.affinity.io.affinity_node import Node, config_of
from tests.fake_runtime import FakeRuntime
from tests.isolation.monitored import MonitoredKernel
from tests.scenes import make_container, make_pod

ON = {"isolation": {"monitoring": True}}
MIB = 1 << 20


class Watched:
    """A node whose kernel monitors caches, with as many RMIDs as the test says."""

    def __init__(self, node: Node, rmids: int = 64) -> None:
        self.node, self.mode = node, "enforce"
        l3s = [
            CacheDomain(number, domain.cpus)
            for number, domain in enumerate(node.engine.host.topology.at("l3"))
        ]
        self.missing = "resctrl is not mounted"
        self.offers: Optional[ResctrlInfo] = ResctrlInfo(
            {"L3": CacheInfo(0xFFFF, closids=2)}, None, {"L3_MON": tuple(l3s)}, VALUES, rmids
        )
        self.kernel = MonitoredKernel(rmids)
        self.used: dict[str, float] = {}
        self.groups: dict[str, str] = {}
        self.threads: dict[str, int] = {}
        sizes = node.folder / "sys" / "devices" / "system" / "cpu" / "cpu0" / "cache" / "index3"
        sizes.mkdir(parents=True)
        (sizes / "size").write_text("8192K\n")
        watcher = Watcher(
            self.kernel,
            lambda cgroup: {self.threads[cgroup.rpartition("/")[2]]},
            node.clock,
            lambda: 0.0,
        )
        self.rounds = MonitoringRounds(
            self.kernel, watcher, self, lambda paths: self.used, node.folder, node.folder / "sys"
        )
        self.monitor = CacheMonitor(
            node.services, self.rounds, lambda key: self.groups.get(key, ""), lambda: self.mode
        )

    def info(self) -> Optional[ResctrlInfo]:
        return self.offers

    def run(self, name: str, limit: float = 1, qos: Qos = Qos.BURSTABLE) -> str:
        """A container that runs; returns its id."""
        engine = self.node.engine
        request = limit if qos is Qos.GUARANTEED else 0.1
        container = make_container(name, limit=limit, request=request, pod=make_pod(name), qos=qos)
        admission = engine.admit(container, NO_CONSTRAINT, self.node.now_s)
        key = f"{len(self.threads):02d}".ljust(64, "a")
        engine.bind(admission.ticket, key, self.node.now_s)
        engine.started(key)
        self.threads[key] = len(self.threads) + 1
        self.kernel.threads[self.threads[key]] = ("", "")
        return key

    def tell(self, key: str, l3: int, occupancy: Any = 0, total: Any = 0, local: Any = 0) -> None:
        at = self.groups.get(key, ""), group_name(key), l3
        for value, number in ((OCCUPANCY, occupancy), (TOTAL, total), (LOCAL, local)):
            self.kernel.values[(*at, value)] = str(number)

    def tell_root(self, l3: int, occupancy: Any) -> None:
        self.kernel.values["", "", l3, OCCUPANCY] = str(occupancy)

    async def round(self) -> None:
        await self.monitor.round()
        self.node.now_s += 10.0

    def l3_of(self, key: str) -> int:
        assert self.offers is not None
        cpus = self.node.engine.grants[key].cpus
        return next(domain.id for domain in self.offers.domains["L3_MON"] if cpus <= domain.cpus)


@pytest_asyncio.fixture
async def watched(runtime: FakeRuntime, tmp_path: Path) -> AsyncIterator[Watched]:
    async with Node(runtime, tmp_path, ON) as node:
        yield Watched(node)


def series(watched: Watched) -> dict[str, float]:
    """What Prometheus reads."""
    registry = Registry()
    registry.register(watched.monitor)
    lines = [line for line in registry.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_containers_are_told_by_l3_in_metrics_screens_and_words(watched: Watched) -> None:
    key = watched.run("app")
    l3 = watched.l3_of(key)
    watched.tell(key, l3, 3 * MIB, 1000, 100)
    watched.tell_root(l3, 5 * MIB)
    await watched.round()
    watched.tell(key, l3, 4 * MIB, 1000 + 50_000_000, 100)
    await watched.round()
    name = f"l3-{l3}"
    row = watched.monitor.explained(watched.node.engine, key)
    assert row is not None and row["texts"] == [f"fills 4 of 8 MiB of {name}; 5 MB/s from and to memory"]
    rows = {row["l3"]: row for row in await watched.monitor.rows(watched.node.engine)}
    assert rows[name] == {
        "l3": name,
        "size_bytes": 8 * MIB,
        "others_bytes": 1 * MIB,
        "by_class": {"standard": 4 * MIB},
        "containers": [{"id": key, "bytes": 4 * MIB, "bytes_per_s": 5_000_000}],
    }
    labels = f'container="app",l3="{name}",namespace="default",pod="app"'
    told = series(watched)
    assert told[f"cri_resmgr_container_llc_occupancy_bytes{{{labels}}}"] == 4 * MIB
    at = f"cri_resmgr_container_memory_bandwidth_bytes_total{{{labels}"
    assert told[f'{at},scope="total"}}'] == 50_000_000 and told[f'{at},scope="local"}}'] == 0
    intels = f'cache_id="{l3}",container_name="app",pod_name="app",rdt_class="system/default",rdt_mon_group="{key[:13]}"'
    assert told[f"l3_llc_occupancy{{{intels}}}"] == 4 * MIB
    assert told[f"l3_mbm_total_bytes{{{intels}}}"] == 50_000_000
    root = f'cache_id="{l3}",container_name="",pod_name="",rdt_class="system/default",rdt_mon_group=""'
    assert told[f"l3_llc_occupancy{{{root}}}"] == 5 * MIB
    assert told["cri_resmgr_monitored_containers"] == 1


async def test_what_is_unavailable_has_no_series_and_its_word_is_told(watched: Watched) -> None:
    key = watched.run("app")
    l3 = watched.l3_of(key)
    watched.tell(key, l3, "Unavailable", "Unavailable", "Unavailable")
    await watched.round()
    assert [name for name in series(watched) if 'container="app"' in name] == []
    row = watched.monitor.explained(watched.node.engine, key)
    assert row is not None
    assert row["texts"] == [
        f"what it fills of l3-{l3} is not known: the kernel says llc_occupancy: Unavailable"
    ]


async def test_a_container_of_a_treatment_is_watched_in_its_group_and_named_by_it(watched: Watched) -> None:
    key = watched.run("app")
    watched.kernel.make_group("cri-resmgr.batch")
    watched.groups[key] = "cri-resmgr.batch"
    watched.kernel.move(watched.threads[key], "cri-resmgr.batch")
    watched.tell(key, watched.l3_of(key), MIB)
    await watched.round()
    assert watched.kernel.there == {"": set(), "cri-resmgr.batch": {group_name(key)}}
    assert [name for name in series(watched) if 'rdt_class="batch"' in name and key[:13] in name]


async def test_protected_containers_and_those_that_use_most_have_the_rmids(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with Node(runtime, tmp_path, ON) as node:
        watched = Watched(node, rmids=5)  # 2 control groups, so 3 containers
        shared = [watched.run(f"app-{number}") for number in range(4)]
        mine = watched.run("db", 2, Qos.GUARANTEED)
        watched.used = dict.fromkeys([*shared, mine], 0.0)
        await watched.round()
        for _ in range(6):
            for key, cpus in zip(shared, (0.0, 0.1, 2.0, 3.0)):
                watched.used[key] += 10.0 * cpus
            await watched.round()
        assert watched.monitor.answer.seen.watched == {mine, shared[2], shared[3]}
        assert watched.monitor.status()["why"] == "3 of 5 containers are watched: there are 5 RMIDs"
        row = watched.monitor.explained(node.engine, shared[0])
        assert row is not None and row["texts"] == [
            "what it fills of L3s is not known: it has no monitoring group yet "
            "(3 of 5 containers are watched: there are 5 RMIDs)"
        ]


@pytest.mark.parametrize(
    ("info", "why"),
    [
        pytest.param(None, "resctrl is not mounted", id="no resctrl"),
        pytest.param(ResctrlInfo(rmids=64), "this kernel or processor monitors no caches", id="no monitors"),
        pytest.param(
            ResctrlInfo({}, None, {"L3_MON": ()}, VALUES, 64),
            "the kernel tells no ids of L3s (cache/index3/id)",
            id="no ids",
        ),
    ],
)
async def test_where_nothing_can_be_read_it_says_why_and_leaves_no_mark(
    watched: Watched, info: Optional[ResctrlInfo], why: str
) -> None:
    watched.offers = info
    key = watched.run("app")
    await watched.round()
    assert watched.node.services.health.warnings == [f"isolation.monitoring: {why}"]
    assert watched.monitor.explained(watched.node.engine, key) is None
    assert not is_marked(watched.node.folder)


async def test_switched_off_it_leaves_nothing_behind(watched: Watched) -> None:
    watched.run("app")
    watched.kernel.make_foreign("", "kepler")
    registry = watched.node.services.metrics.registry
    running = asyncio.ensure_future(watched.monitor.run())
    while not watched.monitor.answer.seen.watched:
        await asyncio.sleep(0)
    assert is_marked(watched.node.folder) and "cri_resmgr_monitored_containers 1.0" in registry.text()
    watched.node.services.config = config_of()
    watched.monitor.wake()
    await running
    assert watched.kernel.there == {"": {"kepler"}}
    assert not is_marked(watched.node.folder) and "monitored" not in registry.text()


async def test_the_mode_off_puts_back_and_observe_watches(watched: Watched) -> None:
    key = watched.run("app")
    watched.mode = "observe"
    await watched.round()
    assert watched.kernel.there == {"": {group_name(key)}}
    watched.mode = "off"
    await watched.round()
    assert watched.kernel.there == {"": set()} and not is_marked(watched.node.folder)
    watched.mode = "enforce"
    await watched.round()
    assert watched.kernel.there == {"": {group_name(key)}}


async def test_what_is_released_stays_so_until_the_configuration_is_read_again(watched: Watched) -> None:
    key = watched.run("app")
    await watched.round()
    await watched.monitor.release()
    await watched.round()
    assert watched.kernel.there == {"": set()} and not is_marked(watched.node.folder)
    watched.monitor.reconfigured()
    await watched.round()
    assert watched.kernel.there == {"": {group_name(key)}}


async def test_a_container_of_many_l3s_has_one_series_with_the_sum(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cri_proxy.isolation.io.series.MOST_L3S", 3)
    key = watched.run("wide", limit=32)
    assert watched.offers is not None
    cpus = watched.node.engine.grants[key].cpus
    own = [domain.id for domain in watched.offers.domains["L3_MON"] if not domain.cpus.isdisjoint(cpus)]
    assert len(own) > 3
    for number in own:
        watched.tell(key, number, MIB, 100)
    await watched.round()
    told = {name: value for name, value in series(watched).items() if 'container="wide"' in name}
    assert {value for name, value in told.items() if "occupancy" in name} == {len(own) * MIB}
    assert len(told) == 3 and all('l3="several"' in name for name in told)
