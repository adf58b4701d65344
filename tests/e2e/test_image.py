"""The image, built as `make image` builds it, on a real containerd: in pods with what the manifests give them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.version import VERSION
from policies.machine.topology_json import write_topology
from tests.cluster.manifests.rendered import kustomized, pod_of, workloads
from tests.cri_client import CriClient, Pod, create_request, pod_config
from tests.e2e.image import ARCHIVE, NAME, build, files_of
from tests.e2e.node import ONE_NODE, Node, until
from tests.e2e.runtime import RealRuntime
from tests.packaging.expected import OUR_PACKAGES, in_git, ours

pytestmark = pytest.mark.containerd

PYTHON = ("/usr/lib/cri-resmgr/bin/python", "-I", "-m")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    (folder / "digests.json").write_text(json.dumps(build(folder)))
    return folder


@pytest.fixture
def image(runtime: RealRuntime, dist: Path) -> str:
    runtime.add_image(dist / ARCHIVE, NAME)
    return NAME


#: linux/capability.h
CAPABILITIES = {
    "DAC_READ_SEARCH": 2,
    "SETPCAP": 8,
    "NET_ADMIN": 12,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_RESOURCE": 24,
}


def here(capabilities: list[str]) -> list[str]:
    """Those that this machine has to give: CI runners lack some, and runc would refuse the container."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bounding = next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))
    return [name for name in capabilities if bounding >> CAPABILITIES[name] & 1]


class InPods:
    """Runs the containers of manifests as kubelet would, with folders of the test as the host's."""

    def __init__(self, client: CriClient, runtime: RealRuntime, folder: Path) -> None:
        self._client, self._runtime, self._folder = client, runtime, folder
        self._number = 0

    def host(self, path: str) -> Path:
        """Where a folder of the host is."""
        if path == "/sys/fs/cgroup":
            return Path(path)
        if path == "/run/containerd":
            return self._runtime.folder
        place = self._folder / path.strip("/").replace("/", "-")
        place.mkdir(exist_ok=True)
        return place

    async def start(self, spec: dict[str, Any], name: str, *command: str) -> str:
        """A container of a pod's specification, with another command if one is given; its id."""
        self._number += 1
        (container,) = [one for one in spec["containers"] if one["name"] == name]
        pid = cri.NODE if spec.get("hostPID") else cri.POD
        uid = f"image-{self._number}"
        config = pod_config(f"p{self._number}", uid=uid, cgroup_parent=f"{self._runtime.cgroup_parent}/image")
        config.linux.security_context.namespace_options.pid = pid
        config.log_directory = str(self._folder)
        request = cri.RunPodSandboxRequest(config=config)
        reply = await self._client.call("RunPodSandbox", request)
        pod = Pod(reply.pod_sandbox_id, uid, config.metadata.name, config.metadata.namespace, config)
        words = list(command) or container["command"]
        made = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=NAME),
            command=words,
            mounts=self._mounts(spec, container),
            linux=cri.LinuxContainerConfig(security_context=self._security(spec, container, pid)),
            log_path=f"{name}.log",
        )
        created = await self._client.call("CreateContainer", create_request(pod, made))
        await self._client.start(created.container_id)
        return str(created.container_id)

    def _mounts(self, spec: dict[str, Any], container: dict[str, Any]) -> Iterator[cri.Mount]:
        volumes = {one["name"]: one for one in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            path = volume["hostPath"]["path"] if "hostPath" in volume else f"/{mount['name']}"
            yield cri.Mount(
                container_path=mount["mountPath"],
                host_path=str(self.host(path)),
                readonly=mount.get("readOnly", False),
            )

    def _security(
        self, spec: dict[str, Any], container: dict[str, Any], pid: Any
    ) -> cri.LinuxContainerSecurityContext:
        security = container["securityContext"]
        capabilities = security["capabilities"]
        return cri.LinuxContainerSecurityContext(
            capabilities=cri.Capability(
                drop_capabilities=capabilities["drop"], add_capabilities=here(capabilities.get("add", []))
            ),
            namespace_options=cri.NamespaceOption(pid=pid),
            run_as_user=cri.Int64Value(value=spec["securityContext"]["runAsUser"]),
            run_as_group=cri.Int64Value(value=spec["securityContext"]["runAsGroup"]),
            readonly_rootfs=security["readOnlyRootFilesystem"],
            no_new_privs=not security["allowPrivilegeEscalation"],
            seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
        )

    async def end(self, container: str) -> tuple[int, str]:
        """The exit code of what ends by itself, and what it printed."""
        status = (
            await until(
                lambda: self._client.status(container),
                lambda reply: reply.status.state == cri.CONTAINER_EXITED,
                timeout_s=120.0,
            )
        ).status
        return status.exit_code, Path(status.log_path).read_text()


@pytest.fixture
def in_pods(direct: CriClient, runtime: RealRuntime, folder: Path, image: str) -> Iterator[InPods]:
    yield InPods(direct, runtime, folder)
    for log in sorted(folder.glob("*.log")):
        print(f"{log.name}:\n{log.read_text()}")


@pytest.mark.long
def test_the_same_commit_gives_the_same_digests(dist: Path, tmp_path: Path) -> None:
    assert build(tmp_path) == json.loads((dist / "digests.json").read_text())


def test_the_sbom_names_debians_packages_and_the_vendored_ones(dist: Path) -> None:
    document = json.loads((dist / f"cri-resmgr-{VERSION}-amd64.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    named = {component["purl"].partition("@")[0] for component in document["components"]}
    assert {"pkg:deb/debian/libssl3", "pkg:deb/debian/python3.11", "pkg:pypi/protobuf"} <= named


@pytest.mark.parametrize(
    ("manifest", "workload", "container", "command"),
    [
        ("base/standalone", "cri-resmgr-standalone", "standalone", ("/usr/bin/cri-resmgr", "--version")),
        ("base/nri", "cri-resmgr-nri", "nri", ("/usr/bin/cri-resmgr", "nri", "run", "--help")),
        ("base/observer", "cri-resmgr-observer", "observer", ("/usr/bin/cri-resmgr", "observer", "run", "--help")),
        ("base/agent", "cri-resmgr-agent", "report", (*PYTHON, "cluster.agent", "--help")),
        ("base/operator", "cri-resmgr-operator", "operator", (*PYTHON, "cluster.operator", "--help")),
    ],
)  # fmt: skip
async def test_every_program_of_the_image_runs_in_its_pod(
    in_pods: InPods, manifest: str, workload: str, container: str, command: tuple[str, ...]
) -> None:
    started = await in_pods.start(pod_of(workloads(manifest)[workload]), container, *command)
    code, log = await in_pods.end(started)
    assert code == 0, log


def test_the_image_has_every_file_of_ours_that_git_has(dist: Path) -> None:
    private = (name.partition("/site-packages/")[2] for name in files_of(dist / ARCHIVE, NAME))
    assert ours(private) == in_git(*OUR_PACKAGES)


async def test_a_standalone_daemon_in_its_pod_places_containers_of_the_node(
    in_pods: InPods, stopped_node: Node, direct: CriClient
) -> None:
    (settings,) = [one for one in kustomized("base/node") if one["kind"] == "ConfigMap"]
    config = yaml.safe_load(settings["data"]["config.yaml"])
    socket = f"/run/containerd/{stopped_node.runtime.socket.name}"
    config["relay"] = {"mode": "enforce", "runtime_endpoint": socket}
    config["topology"] = {"source": "/etc/cri-resmgr/machine.json"}
    (in_pods.host("/config") / "config.yaml").write_text(json.dumps(config))
    (in_pods.host("/config") / "machine.json").write_text(json.dumps(write_topology(ONE_NODE)))
    spec = pod_of(workloads("base/standalone")["cri-resmgr-standalone"])
    daemon = await in_pods.start(spec, "standalone")

    async def probe() -> Any:
        return await direct.exec(
            daemon, *PYTHON, "cluster.probe", "--healthy", "/run/cri-resmgr/view/view.sock", timeout_s=60
        )

    await until(probe, lambda answer: answer[2] == 0, timeout_s=120.0)
    made = await stopped_node.run("p", by=direct, cpu_request=100, cpu_limit=1000)

    async def cpus() -> str:
        return await stopped_node.cpus(made)

    assert await until(cpus, lambda found: found in ("0", "1"), timeout_s=120.0)
