"""What adjustments make of a request, given to a real containerd: the container is what plugins were shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import NodeCapabilities
from cri_proxy.node.mounts import Mounts
from cri_proxy.nri.apply import apply
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.merge import Merge
from cri_proxy.nri.view import view_container
from tests.cri_client import CriClient, Pod, container_config, create_request
from tests.e2e.containerd import missing
from tests.e2e.runtime import RealRuntime

pytestmark = [pytest.mark.containerd, pytest.mark.skipif(missing() != "", reason=missing())]

ADJUSTMENT = """
    env { key: "ADDED" value: "1" } env { key: "CHANGED" value: "2" } env { key: "-REMOVED" }
    args: "sh" args: "-c" args: "exec sleep 1000"
    annotations { key: "example.com/note" value: "new" }
    mounts { destination: "/added" type: "bind" source: "FOLDER" options: "rbind" options: "ro" }
    mounts { destination: "-/removed" }
    linux {
      devices { path: "/dev/added" type: "c" major: 1 minor: 5 }
      oom_score_adj { value: 950 }
      resources { cpu { shares { value: 300 } } memory { limit { value: 50331648 } } }
      seccomp_policy {
        default_action: "SCMP_ACT_ALLOW"
        syscalls { names: "sethostname" action: "SCMP_ACT_ERRNO" errno_ret { value: 5 } }
      }
    }
"""


async def make(client: CriClient, request: bytes) -> tuple[str, cri.ContainerStatusResponse]:
    reply = await client.call("CreateContainer", cri.CreateContainerRequest.FromString(request))
    return reply.container_id, await client.status(reply.container_id, verbose=True)


async def test_a_container_becomes_what_plugins_made_of_it(
    runtime: RealRuntime, direct: CriClient, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("seen")
    pod = await direct.run_pod("web", uid="b1", cgroup_parent=f"{runtime.cgroup_parent}/burstable/podb1")
    request = original(pod, tmp_path)
    # 1. As it is without plugins, and what they ask for.
    first, status = await make(direct, request)
    pristine = view_container(pod.id, status, cri.CreateContainerRequest.FromString(request).config)
    merge = Merge(pristine)
    merge.add(
        "10-foo", text_format.Parse(ADJUSTMENT.replace("FOLDER", str(tmp_path)), nri.ContainerAdjustment())
    )
    mounts = Mounts(Path("/proc/self/mountinfo"))
    site = NodeCapabilities(
        cgroup_v2=False,
        host_node=lambda _device: "/dev/zero",
        is_followed=lambda path: mounts.of(path).is_followed,
        seccomp_folder=str(tmp_path),
    )
    applied = apply(request, MergedAdjustment(pristine, merge.adjust, merge.owners), site)
    assert (applied.recreate, applied.rejected, applied.warned) == (True, (), ())
    assert applied.seccomp is not None
    Path(applied.seccomp.path).write_text(applied.seccomp.content)
    # 2. Made anew, it is what a later plugin was shown.
    await direct.remove(first)
    second, status = await make(direct, applied.request)
    changed, shown = view_container(pod.id, status), merge.container
    assert list(changed.args) == list(shown.args)
    assert sorted(changed.env) == sorted(shown.env)
    assert {mount.destination for mount in changed.mounts} == {mount.destination for mount in shown.mounts}
    assert [(d.path, d.major, d.minor) for d in changed.linux.devices] == [
        (d.path, d.major, d.minor) for d in shown.linux.devices
    ]
    assert changed.linux.seccomp_policy == shown.linux.seccomp_policy
    assert changed.linux.resources.cpu == shown.linux.resources.cpu
    assert changed.linux.resources.memory.limit == shown.linux.resources.memory.limit
    assert changed.annotations["example.com/note"] == "new"
    # 3. And it runs so.
    await direct.start(second)
    script = "echo $ADDED $CHANGED [$REMOVED] $(cat /added/file) $(head -c 1 /dev/added | wc -c) $(ls /removed 2>&1 | wc -l)"
    seen, problem, code = await direct.exec(second, "sh", "-c", f"{script}; cat /proc/1/oom_score_adj")
    assert (seen.splitlines(), problem, code) == (["1 2 [] seen 1 1", "950"], "", 0)


def original(pod: Pod, folder: Path) -> bytes:
    mounts = (cri.Mount(container_path="/removed", host_path=str(folder)),)
    envs = (("CHANGED", "0"), ("REMOVED", "0"))
    config = container_config("main", envs=envs, mounts=mounts, cpu_request=200, memory_limit=64 << 20)
    return bytes(create_request(pod, config).SerializeToString())
