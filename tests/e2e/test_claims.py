"""Claims of CPUs on a real runtime: what tells of them, and whether cgroups have their CPUs, by every front end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api.claims import CDI_KIND, cdi_device, claim_key, part_name, variable
from cri_proxy.cri.messages import read_create
from cri_proxy.nri.containers import read_container
from cri_proxy.nri.subscription import MASK_CLASSIC
from cri_proxy.services.reconciler import claims_of
from policies.model import Pod
from tests.cri_client import CriClient, container_config, create_request
from tests.e2e.node import CPUS
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.nri.io.host.plugins import external

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
    known = Pod(pod.id, pod.uid, pod.name, pod.namespace)

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
