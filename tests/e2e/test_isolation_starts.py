"""When the first process of a container is in its group, on a real runtime: the image itself says so, as the first it does.

In the place of resctrl is a hierarchy of cgroups with the same rules (tests/isolation/io/hierarchy.py), and each process
reads in ``/proc/self/cgroup`` where it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.engine.model import pod_cgroup
from cri_proxy.isolation.io.originals import put_back_values
from cri_proxy.isolation.io.scheduling import ThreadScheduling
from cri_proxy.isolation.io.starts import Starts
from cri_proxy.isolation.io.tasks import Tasks
from cri_proxy.isolation.model import Group, Wanted
from cri_proxy.isolation.scheduling import threads_place, write_attributes
from cri_proxy.node.cgroups import Cgroups
from cri_proxy.nri.dispatch import mask_of
from cri_proxy.nri.io.connection import NriConnection
from policies.model import NO_CONSTRAINT
from tests.cri_client import CriClient, Pod, cgroup_parent
from tests.daemon.parts import parts
from tests.e2e import runtimes
from tests.e2e.node import CPUS, until
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.isolation.io.hierarchy import NAME, Hierarchy, mounted
from tests.isolation.kernel import KernelModel
from tests.scenes import make_container, make_pod

pytestmark = pytest.mark.containerd

BATCH = "cri-resmgr.batch"
#: The first that runs of the image says how it is scheduled, and where it is.
COMMAND = (
    "sh",
    "-c",
    'read -r line < /proc/self/stat; echo "$line" > /stat; cat /proc/self/cgroup > /first; exec sleep 1000000',
)
#: A class, and what proc_pid_stat(5) says by it: nice value and policy.
WORDS, SCHEDULED = "batch nice=7 io=be:6", (7, os.SCHED_BATCH)


@pytest.fixture(scope="module")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RealRuntime]:
    # With NRI where it has one: containerd since 1.7.
    has_nri = request.config.getoption("--runtime") != runtimes.DEFAULT
    with make_runtime(tmp_path_factory.mktemp("s") / "c", cpus=CPUS, has_nri=has_nri) as running:
        yield running


class World:
    """A runtime, and the starts of its containers as the daemon prepares them."""

    def __init__(
        self,
        runtime: RealRuntime,
        client: CriClient,
        hierarchy: Hierarchy,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.runtime = runtime
        self.client = client
        self.hierarchy = hierarchy
        self.cgroups = Cgroups(Path("/sys/fs/cgroup"))
        self.services = parts(folder, monkeypatch)
        self.threads = ThreadScheduling(self.cgroups)
        self.tasks = Tasks(hierarchy, self.cgroups, scheduling=self.threads)
        self.groups: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.starts = Starts(self.services, self.tasks, self._settled, lambda key: self.groups.get(key, ""))

    async def _settled(self, key: str) -> str:
        return self.groups.get(key, "")

    async def create(self, pod: str, name: str, group: str, words: str = "") -> str:
        """A container that the engine knows, not started yet. ``words``: how its threads are to be scheduled."""
        if pod not in self.pods:
            parent = self.runtime.cgroup_parent + cgroup_parent("burstable", pod)
            self.pods[pod] = await self.client.run_pod(pod, uid=pod, cgroup_parent=parent)
        made = self.pods[pod]
        key = await self.client.create(made, name, command=COMMAND)
        known = replace(make_pod(pod), id=made.id, cgroup_parent=made.config.linux.cgroup_parent)
        engine = self.services.node_state.engine
        assert engine is not None
        engine.bind(engine.admit(make_container(name, pod=known), NO_CONSTRAINT, 0.0).ticket, key, 0.0)
        self.groups[key] = group
        if words:
            place = threads_place(f"/{pod_cgroup(known.cgroup_parent)}", key, words)
            self.threads.keep({place: self.threads.befores([place], {})[place]})
        return key

    def follow(self) -> int:
        """A round."""
        members = frozenset(key for key, group in self.groups.items() if group)
        containers = {}
        for key in self.groups:
            pid = self.runtime.pid_of(key)
            containers[key] = self.cgroups.of_container(pid, key) or ""
        return self.tasks.follow(Wanted((Group(BATCH, {}, members),)), containers)

    async def said(self, key: str, path: str = "/first") -> str:
        """The group in a file of a container that has a process's cgroups."""

        async def read() -> str:
            out, _, _ = await self.client.exec(key, "cat", path)
            return out

        text = await until(read, lambda text: f"name={NAME}:/" in text)
        return text.partition(f"name={NAME}:/")[2].partition("\n")[0]

    async def scheduled(self, key: str) -> tuple[int, int]:
        """Nice value and policy that the first process of the image had, as it says itself."""
        await self.said(key)
        out, _, _ = await self.client.exec(key, "cat", "/stat")
        return _scheduled(out)

    def places(self) -> dict[str, str]:
        """Those of all threads that are set, and what each had before."""
        return {
            threads_place(row.pod, key, row.words): write_attributes(row.known[0])
            for key, row in self.threads._rows.items()
        }

    def scheduled_in_rounds(self, key: str) -> tuple[int, int]:
        """As the kernel tells of it after a round."""
        self.threads.keep(self.places())
        return self.scheduled_now(key)

    def scheduled_now(self, key: str) -> tuple[int, int]:
        """As the kernel tells of it now."""
        return _scheduled(Path(f"/proc/{self.runtime.pid_of(key)}/stat").read_text())


def _scheduled(stat: str) -> tuple[int, int]:
    fields = stat.rpartition(")")[2].split()
    return int(fields[16]), int(fields[38])


@pytest.fixture
async def world(
    runtime: RealRuntime,
    direct: CriClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[World]:
    if not Cgroups(Path("/sys/fs/cgroup")).is_v1:
        pytest.skip(
            "On cgroup v2 containers have a cgroup namespace, and do not see their group by its name."
        )
    with mounted(request.config) as hierarchy:
        if hierarchy is None:
            pytest.skip("No hierarchy of its own can be mounted here.")
        hierarchy.make(BATCH)
        made = World(runtime, direct, hierarchy, tmp_path, monkeypatch)
        yield made
        await made.starts.close()


def is_containerd(runtime: RealRuntime) -> bool:
    return type(runtime).__name__ == "Containerd"


async def test_the_first_process_begins_in_its_group_and_what_is_executed_there_too(world: World) -> None:
    """containerd: forked by a shim that was moved. CRI-O: moved between create and start."""
    key = await world.create("p", "a", BATCH)
    await world.starts.before(key)
    await world.client.start(key)
    assert await world.said(key) == BATCH
    found = world.tasks.status()[key]
    assert (found["moment"], found["ran_before_s"]) == (
        "shim" if is_containerd(world.runtime) else "start",
        0,
    )
    if is_containerd(world.runtime):
        assert await world.said(key, "/proc/self/cgroup") == BATCH
        assert world.follow() == 0
        # The next container of the pod: the shim is there already, and nothing is written.
        moves = len(world.hierarchy.moves)
        other = await world.create("p", "b", BATCH)
        await world.starts.before(other)
        await world.client.start(other)
        assert await world.said(other) == BATCH
        assert (world.follow(), len(world.hierarchy.moves)) == (0, moves)


async def test_in_a_pod_of_several_classes_each_container_is_in_its_own_group(world: World) -> None:
    one, other = await world.create("p", "a", BATCH), await world.create("p", "b", "")
    for key in (one, other):
        await world.starts.before(key)
        await world.client.start(key)
    await until(lambda: asyncio.to_thread(world.tasks.status), lambda status: one in status)
    assert await world.said(other) == ""
    await asyncio.to_thread(world.follow)
    assert await world.said(one, "/proc/1/cgroup") == BATCH
    assert await world.said(other, "/proc/1/cgroup") == ""
    found = world.tasks.status()[one]
    assert found["moment"] == ("cgroup" if is_containerd(world.runtime) else "start")


async def test_a_container_of_a_class_is_scheduled_by_it_and_no_other_and_comes_back(world: World) -> None:
    """CRI-O: before anything of the image runs. containerd without NRI: as soon as its cgroup has threads."""
    one, other = await world.create("p", "a", "", WORDS), await world.create("p", "b", "")
    for key in (one, other):
        await world.starts.before(key)
        await world.client.start(key)
    # A thread that was being forked at each look is found by the round that follows a start.
    await until(lambda: asyncio.to_thread(world.scheduled_in_rounds, one), lambda found: found == SCHEDULED)
    if not is_containerd(world.runtime):
        assert await world.scheduled(one) == SCHEDULED
    assert await world.scheduled(other) == (0, os.SCHED_OTHER)
    done, refused = put_back_values(world.places(), KernelModel({}), world.cgroups)
    assert (done, refused) == ([], {})  # it is looked at again, as threads had to be set
    assert world.scheduled_now(one) == (0, os.SCHED_OTHER)


@asynccontextmanager
async def told_of_starts(world: World) -> AsyncIterator[list[str]]:
    """A plugin that does before each start what ours does; the containers it was told of."""
    told: list[str] = []
    synchronized = asyncio.Event()

    async def configure(message: bytes, timeout_s: float) -> bytes:
        return bytes(nri.ConfigureResponse(events=mask_of([nri.START_CONTAINER])).SerializeToString())

    async def synchronize(message: bytes, timeout_s: float) -> bytes:
        synchronized.set()
        return b""

    async def start(message: bytes, timeout_s: float) -> bytes:
        return await begins(nri.StartContainerRequest.FromString(message).container.id)

    async def state_change(message: bytes, timeout_s: float) -> bytes:
        return await begins(nri.StateChangeEvent.FromString(message).container.id)

    async def begins(key: str) -> bytes:
        told.append(key)
        await world.starts.before(key)
        return b""

    handlers = {
        "Configure": configure,
        "Synchronize": synchronize,
        "StartContainer": start,
        "StateChange": state_change,
    }
    streams = await asyncio.open_unix_connection(str(world.runtime.nri_socket))
    connection = NriConnection(*streams, "plugin", handlers)
    running = asyncio.ensure_future(connection.run())
    register = nri.RegisterPluginRequest(plugin_name="starts", plugin_idx="20")
    await connection.call("RegisterPlugin", register.SerializeToString(), 5)
    await asyncio.wait_for(synchronized.wait(), 5)
    try:
        yield told
    finally:
        connection.close("done")
        await running


async def test_where_nri_tells_of_the_start_the_first_process_is_there_and_is_moved_before_it_runs(
    world: World,
) -> None:
    if not world.runtime.has_nri:
        pytest.skip("This runtime has no NRI.")
    one, other = await world.create("p", "a", BATCH, WORDS), await world.create("p", "b", "")
    async with told_of_starts(world) as told:
        for key in (one, other):
            await world.client.start(key)
    assert told == [one, other]
    assert (await world.said(one), await world.said(other)) == (BATCH, "")
    found = world.tasks.status()[one]
    assert (found["moment"], found["ran_before_s"]) == ("start", 0.0)
    assert world.follow() == 0
    assert await world.scheduled(one) == SCHEDULED
    assert await world.scheduled(other) == (0, os.SCHED_OTHER)
