"""Resource policies of nri-plugins as the processes that they are, under our host of NRI plugins, on a described machine.

Each process gets a folder of its own for all that it writes, the machine's files as its root, and its configuration as a
file. So it needs no cluster, and listens nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.placement.judge import Given
from bench.placement.sequences import Create, request_of
from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.io.host.host import PluginRefused
from cri_proxy.nri.messages import Shown
from cri_proxy.nri.view import view_container, view_pod
from policies.machine.cpus import NO_CPUS, format_cpus, parse_cpus
from policies.machine.topology import Topology, TopologyData
from tests.machines import write_sysfs
from tests.nri.io.host.hosting import FakeWorld, Hosting, hosting

#: By policy: what its program is called among the peers.
PROGRAMS = {"topology-aware": "nri-topology-aware", "balloons": "nri-balloons"}
#: How long a call may take: what is measured is no time, and the machine may be busy.
CALL_S = 120.0
#: Of what a process has said: the end, which tells why it has ended.
SAID_BYTES = 2000
#: What ``topology-aware`` writes about a container.
EXCLUSIVE_CPUS, ISOLATED_CPUS = "EXCLUSIVE_CPUS", "ISOLATED_CPUS"


class RivalEnded(Exception):
    """The process has ended, or its host has dropped it; says what it said last."""


def write_root(data: TopologyData, folder: Path) -> None:
    """A described machine as the files that these programs read."""
    write_sysfs(data, folder)
    (folder / "proc" / "interrupts").write_text("CPU0\n")


def configuration(policy: str, reserved: frozenset[int], **options: bool) -> str:
    """A configuration of theirs, which ours reads as well. ``options``: more of their ``spec``.

    Balloons are made as our documents make them: one for each container.
    """
    lines = [f"{key}: {str(value).lower()}" for key, value in options.items()]
    if policy == "balloons":
        lines += ["balloonTypes: [{name: one, namespaces: [default], preferNewBalloons: true}]"]
    kind = {"balloons": "BalloonsPolicy", "topology-aware": "TopologyAwarePolicy"}[policy]
    head = f"apiVersion: config.nri/v1alpha1\nkind: {kind}\nmetadata: {{name: default}}\nspec:\n"
    lines = [
        f'reservedResources: {{cpu: "cpuset:{format_cpus(reserved)}"}}',
        "pinCPU: true",
        "pinMemory: true",
        *lines,
    ]
    return head + "".join(f"  {line}\n" for line in lines)


class Rival:
    """A placer whose decisions a process makes. Make it with ``running``."""

    def __init__(self, host: Hosting, tree: Topology, folder: Path, owns_all: bool) -> None:
        """``owns_all``: whatever a container may run on is its own; else the process writes what is."""
        self._host = host
        self._online = tree.online
        self._folder = folder
        self._owns_all = owns_all
        self._shown: dict[int, tuple[Shown[nri.PodSandbox], Shown[nri.Container]]] = {}
        self._given: dict[int, Given] = {}

    async def create(self, create: Create) -> None:
        number, request = create.number, request_of(create)
        pod = Shown(view_pod(request.pod_sandbox_id, request.sandbox_config))
        status = cri.ContainerStatusResponse(status=cri.ContainerStatus(id=f"c{number}"))
        config, parent = request.config, request.sandbox_config.linux.cgroup_parent
        container = Shown(view_container(request.pod_sandbox_id, status, config, parent))
        await self._host.host.run_pod(pod)
        try:
            merged = await self._host.host.create(pod, container)
        except PluginRefused:
            self._is_there()
            await self._end(pod)
            return
        self._shown[number] = pod, container
        self._note(number, merged.adjust.linux.resources.cpu)
        self._apply(merged.updates)
        await self._host.host.start_container(pod, container)
        self._is_there()
        self._read_owned()

    async def remove(self, number: int) -> None:
        pod, container = self._shown.pop(number)
        self._given.pop(number)
        self._apply(await self._host.host.stop(pod, container))
        await self._host.host.notify(nri.REMOVE_CONTAINER, pod, container)
        await self._end(pod)
        self._read_owned()

    def given(self) -> Mapping[int, Given]:
        return MappingProxyType(dict(self._given))

    async def _end(self, pod: Shown[nri.PodSandbox]) -> None:
        for event in (nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX):
            await self._host.host.notify(event, pod)
        self._is_there()

    def _apply(self, updates: list[nri.ContainerUpdate]) -> None:
        for update in updates:
            self._note(int(update.container_id[1:]), update.linux.resources.cpu)

    def _note(self, number: int, told: nri.LinuxCPU) -> None:
        """What a container is told; what is not told stays, and is everything at first."""
        had = self._given.get(number, Given(self._online))
        cpus = parse_cpus(told.cpus) if told.cpus else had.cpus
        mems = parse_cpus(told.mems) if told.mems else had.mems
        self._given[number] = Given(cpus, had.owned, mems)

    def _read_owned(self) -> None:
        for number, given in self._given.items():
            owned = given.cpus if self._owns_all else self._written(number)
            self._given[number] = Given(given.cpus, owned, given.mems)

    def _written(self, number: int) -> frozenset[int]:
        file = self._folder / "state" / "containers" / f"c{number}" / "resources.sh"
        lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
        owned = (parse_cpus(lines.get(key, "").strip('"')) for key in (EXCLUSIVE_CPUS, ISOLATED_CPUS))
        return NO_CPUS.union(*owned)

    def _is_there(self) -> None:
        if not self._host.titles():
            raise RivalEnded(said(self._folder))


def said(folder: Path) -> str:
    """The last that a process has said."""
    return (folder / "log").read_bytes()[-SAID_BYTES:].decode(errors="replace")


@contextlib.asynccontextmanager
async def running(
    policy: str, program: Path, text: str, tree: Topology, root: Path, folder: Path
) -> AsyncIterator[Rival]:
    """A process with nothing to place yet. ``root``: of the machine's files; ``folder``: for all else.

    :raises RivalEnded: it does not become a plugin.
    """
    world = FakeWorld()
    world.pods, world.containers = [], []
    (folder / "configuration.yaml").write_text(text)
    (folder / "cgroup").mkdir()
    words = {
        "host-root": root,
        "config-file": folder / "configuration.yaml",
        "state-dir": folder / "state",
        "pid-file": folder / "pid",
        "cgroup-mount": folder / "cgroup",
        "nri-plugin-name": policy,
        "nri-socket": folder / "nri" / "nri.sock",
    }
    async with hosting(folder, world, request_timeout_s=CALL_S, registration_timeout_s=CALL_S) as host:
        changed = asyncio.Event()
        host.host.on_change = changed.set
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                program, *(f"--{key}={value}" for key, value in words.items()), stdout=log, stderr=log
            )
        ending = asyncio.ensure_future(process.wait())
        try:
            while not host.titles():
                changed.clear()
                coming = asyncio.ensure_future(changed.wait())
                done, _ = await asyncio.wait(
                    (ending, coming), timeout=CALL_S, return_when=asyncio.FIRST_COMPLETED
                )
                coming.cancel()
                if coming not in done:
                    raise RivalEnded(said(folder))
            yield Rival(host, tree, folder, owns_all=policy == "balloons")
        finally:
            if process.returncode is None:
                process.kill()
            await ending
