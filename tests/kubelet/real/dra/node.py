"""A node with claims of CPUs: kubelet's plugin is our node agent's, and pods are bound by the real scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from policies.machine.cpus import parse_cpus
from tests.cluster.real.node import PODS, found
from tests.cluster.real.parts import delete
from tests.e2e.node import until
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import RUNNING, TIMEOUT_S
from tests.kubelet.real.shared.node import SharedNode, container, pod
from tests.machines import machine

DRIVER = "cpu.cri-resmgr.io"
RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
CLASSES = f"{RESOURCES}/deviceclasses"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCES}/namespaces/default/resourceclaimtemplates"
#: What kubelet has prepared, below its own folder.
DRA_STATE = "dra_manager_state"
#: How the files begin in which our devices are described.
FILE = "cri-resmgr.io-cpu-"
#: The CPUs of each L3 of the described machine, by the number that its device has.
L3_CPUS = [
    frozenset(cpu.cpu for cpu in machine(MACHINE).cpus if cpu.l3 == l3)
    for l3 in sorted({cpu.l3 for cpu in machine(MACHINE).cpus})
]


def share(cpus: int, *, name: str = "cpus", l3: Optional[int] = None) -> dict[str, Any]:
    """A request of so many CPUs of one L3; ``l3``: of this one."""
    exactly = {"deviceClassName": f"l3.{DRIVER}", "capacity": {"requests": {"cpu": str(cpus)}}}
    return {"name": name, "exactly": {**exactly, **_only(l3)}}


def whole_l3(*, name: str = "cpus", l3: Optional[int] = None) -> dict[str, Any]:
    """A request of a whole L3; ``l3``: of this one."""
    return {"name": name, "exactly": {"deviceClassName": f"whole-l3.{DRIVER}", **_only(l3)}}


def _only(l3: Optional[int]) -> dict[str, Any]:
    said = f'device.attributes["{DRIVER}"].l3 == {l3}'
    return {} if l3 is None else {"selectors": [{"cel": {"expression": said}}]}


def spec(*requests: Mapping[str, Any], **devices: Any) -> dict[str, Any]:
    """A claim's spec. ``devices``: constraints and configuration."""
    return {"devices": {"requests": list(requests), **devices}}


def user(name: str, *claims: str, **of_container: Any) -> dict[str, Any]:
    """A container that has these of its pod's claims."""
    made = container(name, **of_container)
    made["resources"]["claims"] = [{"name": each} for each in claims]
    return made


def pod_of(
    name: str, *containers: dict[str, Any], claims: Sequence[str] = (), **templates: str
) -> dict[str, Any]:
    """A pod of these containers with claims by their names, and with claims made from templates."""
    named = [{"name": each, "resourceClaimName": each} for each in claims]
    made = [{"name": each, "resourceClaimTemplateName": template} for each, template in templates.items()]
    return pod(name, *containers, resourceClaims=[*named, *made])


@dataclass(frozen=True)
class Held:
    """The UIDs of claims that each of those that keep account of them has."""

    api: frozenset[str]
    kubelet: frozenset[str]
    books: frozenset[str]
    devices: frozenset[str]

    @property
    def is_one(self) -> bool:
        return self.api == self.kubelet == self.books == self.devices


class ClaimNode(SharedNode):
    """Pods are bound by the scheduler, to this node also where there are others."""

    async def create(self, pod: dict[str, Any]) -> None:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": self.name}
        await asyncio.to_thread(self.api.ask, "POST", PODS, pod)

    @contextlib.asynccontextmanager
    async def without_agent(self) -> AsyncIterator[None]:
        """The node agent is killed, and started again at the end of the block."""
        await self.reports.end()
        try:
            yield
        finally:
            await self.reports.start()

    async def claim(self, name: str, *requests: Mapping[str, Any], **devices: Any) -> str:
        """The UID of a new claim."""
        wanted = {"metadata": {"name": name}, "spec": spec(*requests, **devices)}
        made = await asyncio.to_thread(self.api.ask, "POST", CLAIMS, wanted)
        return str(made["metadata"]["uid"])

    async def template(self, name: str, *requests: Mapping[str, Any], **devices: Any) -> None:
        wanted = {"metadata": {"name": name}, "spec": {"spec": spec(*requests, **devices)}}
        await asyncio.to_thread(self.api.ask, "POST", TEMPLATES, wanted)

    async def allocation(self, name: str) -> list[Mapping[str, Any]]:
        """The devices that a claim has been given by the scheduler."""
        status = (await found(self.api, f"{CLAIMS}/{name}")).get("status", {})
        return list(status.get("allocation", {}).get("devices", {}).get("results", ()))

    async def slices(self) -> list[Mapping[str, Any]]:
        """What the driver has published, the object with the counters first."""
        listed = (await asyncio.to_thread(self.api.ask, "GET", SLICES))["items"]
        ours = [each["spec"] for each in listed if each["spec"]["driver"] == DRIVER]
        return sorted(ours, key=lambda each: len(each.get("devices") or ()))

    async def devices(self) -> dict[str, Mapping[str, Any]]:
        """The published devices by name."""
        return {each["name"]: each for one in await self.slices() for each in one.get("devices") or ()}

    async def until_published(self) -> dict[str, Mapping[str, Any]]:
        """The devices, once they are there."""
        return await until(self.devices, bool, TIMEOUT_S)

    async def parts(self) -> dict[str, Mapping[str, Any]]:
        """The daemon's rows by the names of claim and request."""
        rows = (await self.daemon.ask("claims"))["claims"]
        return {f"{row['name']}/{row['request']}": row for row in rows}

    async def claimed(self, name: str, request: str = "cpus") -> frozenset[int]:
        """The CPUs that a request of a claim has been given."""
        row = (await self.parts()).get(f"{name}/{request}", {})
        return parse_cpus(row.get("cpus", ""))

    def described(self) -> frozenset[str]:
        """The UIDs of the claims whose devices are described to the runtime."""
        files = (self.runtime.folder / "cdi").glob(f"{FILE}*.json")
        return frozenset(file.name[len(FILE) : -len(".json")] for file in files)

    def prepared(self) -> frozenset[str]:
        """The UIDs of the claims that kubelet has prepared."""
        file = self.kubelet_folder / DRA_STATE
        if not file.exists():
            return frozenset()
        return frozenset(_uids(json.loads(file.read_text())))

    async def held(self) -> Held:
        """The claims that a pod of this node uses, as each has them."""
        listed = (await asyncio.to_thread(self.api.ask, "GET", CLAIMS))["items"]
        used = [each for each in listed if each.get("status", {}).get("reservedFor")]
        rows = (await self.daemon.ask("claims"))["claims"]
        return Held(
            api=frozenset(each["metadata"]["uid"] for each in used),
            kubelet=self.prepared(),
            books=frozenset(row["uid"] for row in rows),
            devices=self.described(),
        )

    async def claims_agree(self) -> None:
        """Server, kubelet, books and CDI folder have the same claims; cgroups and books the same CPUs, each one owner's."""
        await until(self.held, lambda held: held.is_one, TIMEOUT_S)
        await self.all_agree()
        rows = list((await self.parts()).values())
        listed = [each for each in await self.direct.list_containers() if each.state == RUNNING]
        told = {_full_name(each): parse_cpus(self.told(each.id)) for each in listed}
        for row in rows:
            own = parse_cpus(row["cpus"])
            assert own, row
            # 1. No other claim has one of these CPUs.
            assert not [each for each in rows if each is not row and parse_cpus(each["cpus"]) & own], row
            # 2. Of the containers those with the claim have all of them, and others none.
            assert {name for name, cpus in told.items() if cpus & own} == set(row["containers"]), row
            assert all(told[name] >= own for name in row["containers"]), row

    async def events(self, name: str) -> list[str]:
        """What was said of a pod, by reason."""
        path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
        listed = (await asyncio.to_thread(self.api.ask, "GET", path))["items"]
        return [f"{each['reason']}: {each['message']}" for each in listed]

    async def until_said(self, name: str, text: str) -> str:
        """The first event of a pod that has this text."""

        async def said() -> list[str]:
            return [each for each in await self.events(name) if text in each]

        return (await until(said, bool, TIMEOUT_S))[0]

    async def until_nothing_is_left(self) -> None:
        """No pod, no claim, and nothing of either anywhere."""
        await super().until_nothing_is_left()
        for kind in (CLAIMS, TEMPLATES):
            for each in (await asyncio.to_thread(self.api.ask, "GET", kind))["items"]:
                await delete(self.api, f"{kind}/{each['metadata']['name']}")
        await until(self.held, lambda held: held == _NONE, TIMEOUT_S)


_NONE = Held(*(frozenset[str](),) * 4)


def _uids(said: Any) -> list[str]:
    """Every UID of a claim in a checkpoint of kubelet's, wherever it stands there."""
    if isinstance(said, str) and said[:1] in "{[":
        return _uids(json.loads(said))
    if isinstance(said, Mapping):
        own = [str(said["ClaimUID"])] if "ClaimUID" in said else []
        return own + [uid for each in said.values() for uid in _uids(each)]
    return [uid for each in said for uid in _uids(each)] if isinstance(said, list) else []


def _full_name(container: Any) -> str:
    labels = container.labels
    place = labels["io.kubernetes.pod.namespace"], labels["io.kubernetes.pod.name"]
    return "/".join((*place, container.metadata.name))
