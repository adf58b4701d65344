"""Quota turbo in the daemon: what the runtime is told, what cgroups say, over resizes, modes, kills and on real cgroups."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
import pytest_asyncio

from cri_proxy.config.config import engine_options, read_config
from cri_proxy.cri.messages import linux_delta
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ContainerRecord, CpusetUpdate
from cri_proxy.engine.resources import has_news, resources_read
from cri_proxy.engine.snapshot import RecordWriter, read_record
from cri_proxy.isolation.io.turbo import SETTLED_ROUNDS, QuotaTurbo
from cri_proxy.isolation.turbo import ROUND_S
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.node.quotas import Quotas
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.services.services import Services
from cri_proxy.text.sources import SettingsSource
from policies.hygon import Hygon
from policies.model import PlacementPreferences, Qos, Resources
from tests.daemon.parts import parts
from tests.e2e.cgroups import remove_cgroup
from tests.isolation.node import ANYWHERE
from tests.machines import HYGON_7285_2S
from tests.scenes import host_of, make_container, make_pod, run

PERIOD_US = 100_000


def _engine(services: Services) -> Engine:
    host = host_of(HYGON_7285_2S)
    return Engine(host, Hygon(host.topology, ANYWHERE), engine_options(services.config))


class TurboNode:
    """A daemon's turbo, a runtime that writes quotas into cgroups, and a machine whose CPUs are idle at first."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, is_v1: bool = False) -> None:
        self.folder, self.is_v1 = folder, is_v1
        self.cgroups, self.proc = folder / "cgroup", folder / "proc"
        for each in ("cpuset", "cpu", "cpuacct") if is_v1 else ("",):
            (self.cgroups / each).mkdir(parents=True)
        self.proc.mkdir()
        self.now_s, self.idle, self.ticks = 100.0, 1.0, [0, 0]
        self.sent: list[tuple[str, int]] = []
        self.refusal: Optional[RpcError] = None
        self.used: dict[str, tuple[float, float]] = {}
        self.services: Services = parts(folder, monkeypatch)
        self.services.node_state.clock = lambda: self.now_s
        self.configure("200%")
        self.begin(_engine(self.services))
        self._write_stat()

    def begin(self, engine: Engine) -> None:
        """A daemon begins with these records."""
        node_state = self.services.node_state
        node_state.engine = node_state.updates.engine = self.engine = engine
        node_state.mode = "enforce"
        node_state.updates.deliver = self._deliver
        node_state.note_compared()
        node_state.quotas = Quotas(self.cgroups, self.services.log, self._keep)
        self.services.cgroups = Cgroups(self.cgroups)
        self.services.reconciler.cgroup_of = self.path_of  # type: ignore[method-assign]
        self.turbo = QuotaTurbo(self.services, self.cgroups, self.proc)

    def _keep(self, text: str) -> None:
        self.kept = text
        asyncio.get_running_loop().call_soon(lambda: self.services.node_state.quotas.kept(text))  # type: ignore[union-attr]

    def configure(self, most: str) -> None:
        values = {"state": {"directory": str(self.folder)}, "isolation": {"turbo_most": most}}
        self.services.config = read_config([SettingsSource("test", values=values)]).config

    def path_of(self, key: str) -> str:
        return f"/pod-{key}/{key}"

    def start(self, key: str, limit: float = 2, cls: str = "protected", turbo: Optional[bool] = None) -> str:
        preferences = PlacementPreferences(isolation_class=cls, quota_turbo=turbo)
        pod = replace(make_pod(key), cgroup_parent=f"/pod-{key}")
        container = make_container(key, limit, qos=Qos.BURSTABLE, pod=pod, preferences=preferences)
        run(self.engine, container, key)
        for path in (f"/pod-{key}", self.path_of(key)):
            self._set_quota(path, int(limit * PERIOD_US))
        self.used[key] = 0.0, 0.0
        self._write_usage(key)
        return key

    def record(self, key: str) -> ContainerRecord:
        return self.engine.grants[key]

    def quota(self, path: str) -> int:
        """What a cgroup says; -1 = no quota."""
        if self.is_v1:
            return int((self.cgroups / "cpu" / path.lstrip("/") / "cpu.cfs_quota_us").read_text())
        word = (self.cgroups / path.lstrip("/") / "cpu.max").read_text().split()[0]
        return -1 if word == "max" else int(word)

    def _set_quota(self, path: str, quota_us: int) -> None:
        folder = self.cgroups / ("cpu" if self.is_v1 else "") / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if self.is_v1:
            (folder / "cpu.cfs_period_us").write_text(f"{PERIOD_US}\n")
            (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        else:
            (folder / "cpu.max").write_text(f"{'max' if quota_us < 0 else quota_us} {PERIOD_US}\n")

    def _write_usage(self, key: str) -> None:
        used_s, throttled_s = self.used[key]
        path = self.path_of(key).lstrip("/")
        if self.is_v1:
            (self.cgroups / "cpuacct" / path).mkdir(parents=True, exist_ok=True)
            (self.cgroups / "cpuacct" / path / "cpuacct.usage").write_text(f"{int(used_s * 1e9)}\n")
            text = f"nr_periods 1\nnr_throttled 1\nthrottled_time {int(throttled_s * 1e9)}\n"
            (self.cgroups / "cpu" / path / "cpu.stat").write_text(text)
        else:
            text = (
                f"usage_usec {int(used_s * 1e6)}\nnr_throttled 1\nthrottled_usec {int(throttled_s * 1e6)}\n"
            )
            (self.cgroups / path / "cpu.stat").write_text(text)

    def _write_stat(self) -> None:
        busy, idle = self.ticks
        rows = [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0" for cpu in sorted(self.engine.host.topology.online)]
        (self.proc / "stat").write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *rows]) + "\n")

    async def _deliver(self, update: CpusetUpdate) -> None:
        linux = linux_delta(update.placement, update.give_back)
        if self.refusal is not None:
            raise self.refusal
        if linux.cpu_quota:
            self.sent.append((update.id, linux.cpu_quota))
            pod = self.quota(f"/pod-{update.id}")
            if self.is_v1 and 0 < pod < linux.cpu_quota:  # as the kernel's v1
                raise RpcError(Code.UNKNOWN, "cpu.cfs_quota_us: invalid argument")
            self._set_quota(self.path_of(update.id), linux.cpu_quota)

    async def rounds(self, count: int, load: float = 8.0) -> list[tuple[str, int]]:
        """So many rounds; each container wants ``load`` CPUs. What the runtime was told meanwhile."""
        self.sent.clear()
        for _ in range(count):
            self.now_s += ROUND_S
            for key in self.used:
                quota_us = self.quota(self.path_of(key))
                has = quota_us / PERIOD_US if quota_us > 0 else load
                used_s, throttled_s = self.used[key]
                self.used[key] = (
                    used_s + ROUND_S * min(load, has),
                    throttled_s + ROUND_S * max(load - has, 0) / 8,
                )
                self._write_usage(key)
            self.ticks = [
                self.ticks[0] + round(500 * (1 - self.idle)),
                self.ticks[1] + round(500 * self.idle),
            ]
            self._write_stat()
            await self.turbo.round()
            await self.settled()
        return list(self.sent)

    async def settled(self) -> None:
        """The sender has told all that it can now."""
        updates = self.services.node_state.updates
        if updates._is_closed:
            return
        await updates.tried(tuple(self.engine.grants), 10.0)


@pytest_asyncio.fixture(params=[False, True], ids=["v2", "v1"])
async def node(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TurboNode]:
    made = TurboNode(tmp_path, monkeypatch, request.param)
    yield made
    await made.services.node_state.updates.close()
    await made.turbo.close()


async def test_a_quota_rises_to_the_most_step_by_step_and_falls_in_one_round(node: TurboNode) -> None:
    node.start("a")
    assert await node.rounds(7) == [("a", q) for q in (250_000, 300_000, 350_000, 400_000)]
    assert (node.quota("/pod-a/a"), node.quota("/pod-a")) == (400_000, -1)
    assert node.record("a").container.resources.milli_limit == 2000
    node.idle = 0.05
    assert await node.rounds(1) == [("a", 200_000)]
    assert await node.rounds(SETTLED_ROUNDS + 1) == []
    assert (node.quota("/pod-a/a"), node.quota("/pod-a")) == (200_000, 200_000)
    assert node.record("a").turbo_top_us == 0


async def test_what_is_not_needed_goes_back(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    assert await node.rounds(1, load=1.0) == [("a", 200_000)]


async def test_only_protected_containers_and_those_that_are_annotated_get_it(node: TurboNode) -> None:
    node.start("standard", cls="standard")
    node.start("asked", cls="batch", turbo=True)
    node.start("not", turbo=False)
    assert {key for key, _ in await node.rounds(4)} == {"asked"}


async def test_a_resize_is_the_new_base_at_once(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    resized = Resources(milli_request=1000, milli_limit=1000, quota_period_us=PERIOD_US)
    admission = node.engine.resize("a", resized, node.record("a").constraint, node.now_s)
    assert admission is not None and admission.give_back is not None
    assert admission.give_back.quota_us == 100_000
    node._set_quota("/pod-a/a", 100_000)
    node.engine.commit(admission.ticket, node.now_s)
    await node.settled()
    assert node.quota("/pod-a/a") == 100_000
    assert [q for _, q in await node.rounds(5)][-1] <= 200_000


async def test_a_resize_that_the_runtime_refuses_leaves_what_was_there(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    resized = Resources(milli_request=1000, milli_limit=1000, quota_period_us=PERIOD_US)
    admission = node.engine.resize("a", resized, node.record("a").constraint, node.now_s)
    assert admission is not None
    node._set_quota("/pod-a/a", 100_000)  # made in part
    node.engine.cancel(admission.ticket, node.now_s)
    node.engine.may_have("a", admission.placement)
    node.services.node_state.save()
    await node.settled()
    assert node.quota("/pod-a/a") == 400_000 and node.record("a").container.resources.milli_limit == 2000


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_no_other_mode_keeps_it_and_observe_tells_what_would_be(node: TurboNode, mode: str) -> None:
    node.start("a")
    await node.rounds(7)
    node.services.node_state.mode = mode
    node.services.node_state.updates.switch(gives_back=True)
    await node.settled()
    assert node.quota("/pod-a/a") == 200_000
    await node.rounds(SETTLED_ROUNDS + 1)
    assert node.sent == [] and node.quota("/pod-a") == 200_000
    told = node.turbo.status()
    assert told["mode"] == ("off" if mode == "off" else "observe") or mode == "off"
    if mode == "observe":
        assert [(row["quota_us"], row["own_us"]) for row in told["containers"]] == [(250_000, 200_000)]


async def test_off_ends_the_loop_once_all_have_their_own(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    node.configure("off")
    assert await node.rounds(1) == [("a", 200_000)]
    await node.rounds(SETTLED_ROUNDS)
    await asyncio.wait_for(node.turbo.run(), 10)
    assert node.quota("/pod-a") == 200_000


async def test_a_raised_quota_is_no_resize_past_us(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    reading = node.services.cgroups.limits("/pod-a/a", "a")
    assert reading.quota_us == 400_000
    linux = linux_delta(node.record("a").placement)
    linux.cpu_quota, linux.cpu_period = 400_000, PERIOD_US
    assert resources_read(node.record("a"), reading, linux).milli_limit == 2000
    assert not has_news(node.record("a"), reading) or reading.shares or reading.weight
    # More than was ever given is a resize.
    node._set_quota("/pod-a/a", 600_000)
    linux.cpu_quota = 600_000
    reading = node.services.cgroups.limits("/pod-a/a", "a")
    assert resources_read(node.record("a"), reading, linux).milli_limit == 6000


async def test_what_another_program_sets_is_set_again(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    node._set_quota("/pod-a/a", 200_000)
    sent = await node.rounds(2)
    assert sent == [("a", 400_000)]
    assert await node.rounds(2) == []


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "only written down"])
@pytest.mark.parametrize("goes_back", [True, False], ids=["going back", "raised"])
async def test_after_kill_minus_nine_all_have_their_own(
    node: TurboNode, is_sent: bool, goes_back: bool
) -> None:
    """The daemon is cut before, or after, the runtime is told: the next one has the record of that moment."""
    node.start("a")
    await node.rounds(4)
    before = node.quota("/pod-a/a")
    assert before == 300_000
    node.idle = 0.0 if goes_back else 1.0
    if not is_sent:
        node.services.node_state.updates.hold()
        node.services.node_state.updates._is_closed = True
    await node.rounds(1)
    if is_sent:
        assert node.quota("/pod-a/a") != before
    texts = [RecordWriter().text(record) for record in node.engine.grants.values()]
    await node.turbo.close()
    node.services.node_state.updates._is_closed = False
    node.services.node_state.updates.let_go()
    engine = _engine(node.services)
    grants = [read_record("grant", text) for text in texts]
    engine.restore(grants, (), (), (), {})
    taken = node.kept
    node.configure("off")
    node.begin(engine)
    assert node.services.node_state.quotas is not None
    node.services.node_state.quotas.recall(taken)
    node.services.node_state.save()
    await node.settled()
    assert node.quota("/pod-a/a") == 200_000
    await node.rounds(SETTLED_ROUNDS + 1)
    assert node.quota("/pod-a") == 200_000 and node.record("a").turbo_top_us == 0


async def test_released_and_given_up_containers_have_their_own(node: TurboNode) -> None:
    node.start("a")
    await node.rounds(7)
    node.engine.release("a")
    node.services.node_state.save()
    await node.settled()
    assert node.quota("/pod-a/a") == 200_000


async def test_a_runtime_that_refuses_is_asked_with_pauses_and_the_limit_stays(node: TurboNode) -> None:
    node.start("a")
    node.refusal = RpcError(Code.UNKNOWN, "no")
    await node.rounds(4)
    assert node.quota("/pod-a/a") == 200_000
    assert node.record("a").container.resources.milli_limit == 2000
    node.refusal = None


# ---------------------------------------------------------------------- real cgroups


@pytest.fixture
def throttled() -> Iterator[Path]:
    """A real cgroup, with a process that wants a CPU and may have a fiftieth."""
    root, name = Path("/sys/fs/cgroup"), f"cri-resmgr-test-turbo-{os.getpid()}"
    mounts = [root / each for each in ("cpu", "cpuacct") if (root / each).is_dir()] or [root]
    folder = mounts[0] / name
    try:
        for mount in mounts:
            (mount / name).mkdir(exist_ok=True)
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text("2000 100000")
        else:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text("2000")
    except OSError as error:
        pytest.skip(f"no cgroup with quotas can be made: {error}")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for mount in mounts:
            (mount / name / "cgroup.procs").write_text(str(busy.pid))
        yield folder
    finally:
        busy.kill()
        busy.wait()
        for mount in mounts:
            remove_cgroup(mount / name, time.monotonic() + 10)


async def test_a_busy_loop_in_a_real_cgroup_is_seen_as_throttled_until_its_quota_rises(
    throttled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By counts: it is looked until the kernel has counted."""
    node = TurboNode(tmp_path, monkeypatch)
    node.start("a", 0.02)
    node.used.clear()
    root = Path("/sys/fs/cgroup")
    name = f"/{throttled.name}"
    monkeypatch.setattr(node.services.reconciler, "cgroup_of", lambda key: name)
    node.services.cgroups = Cgroups(root)
    await node.turbo.close()
    node.services.node_state.clock = time.monotonic
    node.turbo = QuotaTurbo(node.services, root, node.proc)
    v1 = throttled / "cpu.cfs_quota_us"

    async def deliver(update: CpusetUpdate) -> None:
        quota = linux_delta(update.placement, update.give_back).cpu_quota
        if quota and v1.exists():
            v1.write_text(str(quota))
        elif quota:
            (throttled / "cpu.max").write_text(f"{quota} 100000")

    node.services.node_state.updates.deliver = deliver
    for _ in range(200):
        await node.rounds(1)
        if node.record("a").raised_us:
            break
        await asyncio.sleep(0.05)
    assert node.record("a").raised_us == 4000
    found = node.services.cgroups.limits(name, "a")
    assert (found.quota_us, found.period_us) == (4000, PERIOD_US)
    node.configure("off")
    await node.rounds(SETTLED_ROUNDS + 2)
    assert node.services.cgroups.limits(name, "a").quota_us == 2000
    await node.turbo.close()
    await node.services.node_state.updates.close()
