"""Claims of CPUs on a real runtime: what tells of them, and whether cgroups have their CPUs, by every front end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Optional, Union

import pytest
from google.protobuf import json_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.claims import CDI_KIND, cdi_device, claim_key, part_name, variable
from cri_proxy.cri.messages import read_create
from cri_proxy.nri.containers import read_container
from cri_proxy.nri.subscription import MASK_CLASSIC
from cri_proxy.services.reconciler import claims_of
from policies import model
from policies.machine.topology import Cpu, TopologyData
from tests.agent import FRONT_ENDS, Agent
from tests.cri_client import CPU_PERIOD_US, CriClient, Pod, container_config, create_request
from tests.e2e.node import CPUS, GIB, ONE_NODE, REAL_CGROUPS, Node, Running, until
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.nri.io.host.plugins import external

#: CPU 0 and CPU 1 in one L3.
ONE_L3 = TopologyData(
    cpus=(Cpu(0, 0, 0, 0, 0, 0), Cpu(1, 1, 0, 0, 0, 0)), memory={0: GIB}, has_memory=frozenset([0])
)

pytestmark = pytest.mark.containerd

UID = "0f0e0d0c-1111-4222-8333-444455556666"
ONE, TWO = part_name(UID, "cpus"), part_name(UID, "more")
#: Another vendor's, which says nothing of CPUs.
OTHER = "vendor.example/disk=a"


@pytest.fixture(scope="module")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path_factory.mktemp("claims") / "c", cpus=CPUS, has_nri=True) as running:
        if not running.knows_cdi():
            pytest.skip("This runtime knows no CDI devices: containerd has them since 1.7.")
        yield running


@pytest.fixture(autouse=True)
def no_cdi_files(runtime: RealRuntime) -> Iterator[None]:
    """A device that two files have is found in neither."""
    yield
    for file in runtime.cdi.glob("*.json"):
        file.unlink()


def write_cdi(runtime: RealRuntime, kind: str, devices: dict[str, str]) -> None:
    """A CDI file by hand: devices that bring a variable each."""
    written = [{"name": name, "containerEdits": {"env": [env]}} for name, env in devices.items()]
    runtime.cdi.mkdir(exist_ok=True)
    spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": written}
    (runtime.cdi / f"{kind.replace('/', '-')}.json").write_text(json.dumps(spec))


# ---------------------------------------------------------------------- the names

BY = {
    "CRI's field": {"cdi": (cdi_device(ONE), OTHER, cdi_device(TWO))},
    "an annotation": {
        "annotations": {
            "cdi.k8s.io/claims": f"{cdi_device(ONE)},{OTHER}",
            "cdi.k8s.io/more": cdi_device(TWO),
        }
    },
}


@pytest.mark.parametrize("asked", BY.values(), ids=BY)
async def test_the_names_of_claims_are_the_same_wherever_they_are_read(
    runtime: RealRuntime, direct: CriClient, asked: dict[str, Any]
) -> None:
    write_cdi(runtime, CDI_KIND, {part: variable(part) for part in (ONE, TWO)})
    write_cdi(runtime, "vendor.example/disk", {"a": "DISK=a"})
    keys = (claim_key(ONE), claim_key(TWO))
    pod = await direct.run_pod("p", uid="u", cgroup_parent=f"{runtime.cgroup_parent}/kubepods/burstable/podu")
    known = model.Pod(pod.id, pod.uid, pod.name, pod.namespace)

    def told(message: dict[str, Any]) -> tuple[str, ...]:
        container = json_format.ParseDict(message, nri.Container(), ignore_unknown_fields=True)
        return read_container(container, known).container.claims

    script = {"mask": MASK_CLASSIC}  # an older host takes no plugin that subscribes to more than it knows
    # 1. The request, and the message of NRI that asks about it.
    request = create_request(pod, container_config("main", **asked)).SerializeToString()
    assert read_create(request, {}).container.claims == keys
    async with external(runtime.folder, runtime.nri_socket, "10-first", script) as first:
        container = await direct.create(pod, "main", **asked)
        asked_about = (await first.log.line("CreateContainer"))["message"]["container"]
    assert told(asked_about) == keys
    # 2. What is found later.
    await direct.start(container)
    async with external(runtime.folder, runtime.nri_socket, "10-second", script) as second:
        found = (await second.log.line("Synchronize"))["message"]["containers"]
    assert [told(each) for each in found if each["id"] == container] == [keys]
    status = await direct.status(container, verbose=True)
    info = json.loads(status.info["info"])
    assert claims_of(status.status, info) == keys
    # 3. The environment alone, as of runtimes that tell no names.
    without = nri.Container(id=container, name="main", env=info["runtimeSpec"]["process"]["env"])
    assert read_container(without, known).container.claims == keys


# ---------------------------------------------------------------------- the CPUs

#: A container that requests what its claim has, as people write it; and one that requests half a CPU more.
WHOLE: dict[str, Any] = {"cpu_request": 1000, "cpu_limit": 1000}
MIXED: dict[str, Any] = {"cpu_request": 1500, "cpu_limit": 1500}


class Site:
    """A node whose daemon prepares claims, with one front end; ``kubelet`` is the client that it has."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.front_end = node.agent.front_end

    async def start(self) -> None:
        """Start the daemon; returns once it knows what runs."""
        await self.node.agent.start()
        if self.front_end == "nri":
            await until(lambda: self.node.ask("status"), lambda status: status["nri"]["connected"])
        await self.node.until_runtime_is_known()

    async def prepare(self, device: str, uid: str = UID, cpus: Optional[int] = 1) -> str:
        """Have a claim of one request prepared, as kubelet's plugin does; the CPUs that it is given."""
        results = [{"request": "cpus", "device": device, "cpus": cpus}]
        about = {"uid": uid, "namespace": "default", "name": f"claim-{uid[:4]}", "results": results}
        [part] = (await self.node.ask("claim-prepare", **about))["parts"]
        assert part["cdi"] == cdi_device(part_name(uid, "cpus"))
        return str(part["cpus"])

    async def run(self, pod: Union[str, Pod], name: str = "main", **config: Any) -> Running:
        return await self.node.run(pod, name, by=self.node.kubelet, **config)

    async def runs_on(self, container: Running, cpus: str) -> None:
        """Its cgroup says so: from its start on, but where containers are placed after it."""
        if self.front_end != "standalone":
            assert await self.node.cpus(container) == cpus
        await self.node.until_known(container, stance="placed")
        await until(lambda: self.node.cpus(container), lambda found: found == cpus)


@pytest.fixture(params=FRONT_ENDS)
async def site(
    request: pytest.FixtureRequest, runtime: RealRuntime, direct: CriClient
) -> AsyncIterator[Site]:
    """A site of each front end, whose daemon has started. CDI files that it writes are where the runtime looks them up."""
    agent = Agent(runtime.socket, ONE_NODE, REAL_CGROUPS, front_end=request.param)
    agent.write_config({"dra": {"enabled": True}, "nri": {"plugin": {"socket": str(runtime.nri_socket)}}})
    agent.write_config({"constants": {"reconcile_poll_s": 0.1, "reconcile_interval_s": 0.5}})
    folder = agent.folder / "root" / "var" / "run"
    folder.mkdir(parents=True)
    runtime.cdi.mkdir(exist_ok=True)
    (folder / "cdi").symlink_to(runtime.cdi)
    try:
        async with CriClient(agent.for_kubelet) as kubelet:
            made = Site(Node(runtime, agent, direct, kubelet))
            await made.start()
            yield made
    finally:
        await agent.close()


HAS = {"cdi": (cdi_device(ONE),)}


async def test_containers_of_a_claim_share_its_cpus_and_others_leave_them(site: Site) -> None:
    node = site.node
    other = await site.run("other", cpu_limit=2000)
    await site.runs_on(other, "0-1")
    assert await site.prepare("l3-1") == "1"
    # 1. Others have left when it is answered; members run there, and one that asks for more beside it, too.
    assert await node.cpus(other) == "0"
    pod = await node.pod("members", by=node.kubelet)
    members = [await site.run(pod, name, **HAS, **WHOLE) for name in ("first", "second")]
    mixed = await site.run("mixed", **HAS, **MIXED)
    late = await site.run("late", cpu_limit=2000)
    places = [(other, "0"), (members[0], "1"), (members[1], "1"), (mixed, "0-1"), (late, "0")]
    for container, cpus in places:
        await site.runs_on(container, cpus)
    # 2. Nothing else of their requests has changed, and what kubelet changes later leaves their CPUs.
    assert [node.runtime.quota_of(member.id) for member in members] == [CPU_PERIOD_US] * 2
    half = CPU_PERIOD_US // 2
    await node.kubelet.update(members[0].id, cpu_shares=1024, cpu_quota=half, cpu_period=CPU_PERIOD_US)
    await node.kubelet.update(mixed.id, cpu_shares=1024 + 128)
    assert node.runtime.quota_of(members[0].id) == half
    # One that requests more than its claim from now on has a part of what is shared; until it does no more.
    await node.kubelet.update(members[1].id, cpu_shares=1024 + 512)
    await until(lambda: node.cpus(members[1]), lambda found: found == "0-1")
    await node.kubelet.update(members[1].id, cpu_shares=1024)
    await until(lambda: node.cpus(members[1]), lambda found: found == "1")
    for container, cpus in places:
        await site.runs_on(container, cpus)
    # 3. Nor does the daemon's end.
    await node.agent.kill()
    await site.start()
    for container, cpus in places:
        assert await node.cpus(container) == cpus
    late_member = await site.run(pod, "third", **HAS, **WHOLE)
    await site.runs_on(late_member, "1")
    # 4. With the claim its CPUs are everyone's again.
    for container in (*members, late_member, mixed):
        await node.kubelet.stop(container.id)
        await node.kubelet.remove(container.id)
    await node.ask("claim-unprepare", uid=UID)
    for container in (other, late):
        await until(lambda one=container: node.cpus(one), lambda found: found == "0-1")
    assert (await node.ask("status"))["invariants"] == []


async def test_what_runs_with_a_claim_that_was_forgotten_has_its_cpus_when_that_is_prepared_again(
    site: Site,
) -> None:
    node = site.node
    assert await site.prepare("l3-1") == "1"
    member, other = await site.run("member", **HAS, **WHOLE), await site.run("other", cpu_limit=2000)
    await site.runs_on(member, "1")
    await node.agent.kill()
    for file in node.agent.state.glob("state.db*"):
        file.unlink()
    await site.start()
    # The runtime shows whose it is.
    assert await site.prepare("l3-1") == "1"
    await until(lambda: node.cpus(member), lambda found: found == "1")
    await until(lambda: node.cpus(other), lambda found: found == "0")
    [claim] = (await node.ask("claims"))["claims"]
    assert claim["containers"] == ["default/member/main"]


async def test_members_follow_a_claim_that_moves_inside_of_its_l3(site: Site) -> None:
    node = site.node
    node.pretend(ONE_L3)
    await node.agent.kill()
    await site.start()
    mine = await site.prepare("l3-0")
    member, other = await site.run("member", **HAS, **WHOLE), await site.run("other", cpu_limit=2000)
    rest = {"0": "1", "1": "0"}[mine]
    await site.runs_on(member, mine)
    await site.runs_on(other, rest)
    # The CPU that it has is the system's from now on.
    node.agent.write_config({"policy": {"ReservedResources": {"CPU": f"cpuset:{mine}"}}})
    node.agent.reload()
    await until(lambda: node.cpus(member), lambda found: found == rest)
    assert (await node.ask("status"))["invariants"] == []
