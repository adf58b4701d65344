"""A cluster of one node in which our pods run as they are applied: server, controllers, kubelet, containerd, our image.

Folders of the host that manifests name are below one folder of the test, but for the cgroups, which are real: what
pods are given is in the kernel. Pods reach the API server where the service ``kubernetes`` says, since its address is
one of the bridge that pods are on. All calls block.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, TypeVar

import yaml

from cluster.api.names import NAMESPACE
from policies.machine.topology_json import write_topology
from tests.cluster.manifests.rendered import PACKAGING, WORKLOADS, pod_of
from tests.cluster.real.control_plane import SERVICE_ADDRESS, SERVICE_CIDR, ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import PLACEMENTS, condition
from tests.e2e.containerd import Containerd
from tests.e2e.image import NAME as IMAGE
from tests.e2e.node import ONE_NODE
from tests.kubelet.real.conftest import LINES, SAID_ALWAYS
from tests.kubelet.real.host import RealKubeletHost
from tests.kubelet.real.machine import make_cgroup
from tests.kubelet.real.node import static_pod

NODE = "whole-node"
PODS = "/api/v1/namespaces/{}/pods"
WAIT_S = 180.0  # against some ten seconds
#: What a pod of ours may write below; everything else of a host is not its own.
OWN = (
    "run/cri-resmgr",
    "var/lib/cri-resmgr",
    "var/lib/cri-resmgr-agent",
    "run/nri",
)

Found = TypeVar("Found")


def until(
    ask: Callable[[], Found], is_it: Callable[[Found], bool] = bool, timeout_s: float = WAIT_S
) -> Found:
    """What ``ask`` returns, once it is so.

    :raises AssertionError: it was not in time; with what it was last.
    """
    deadline = time.monotonic() + timeout_s
    while not is_it(found := ask()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s; last: {found}"
        time.sleep(0.1)
    return found


class WholeCluster:
    """``programs``: of a cluster, by name. ``archive``: of our image."""

    def __init__(self, programs: Mapping[str, Path], archive: Path) -> None:
        # Its sockets' paths are short.
        self.folder = Path(tempfile.mkdtemp(prefix="crw-"))
        self._programs = programs
        self._archive = archive
        self.containerd = Containerd(
            self.folder / "c",
            self.folder / "bin" / "containerd",
            images=self.folder,
            routes=[SERVICE_CIDR],
            path=[programs["containerd"].parent, programs["runc"].parent],
            has_nri=True,
        )
        self._stack = contextlib.ExitStack()
        self.api: ControlPlane
        self.host: RealKubeletHost
        self.kubectl: Kubectl

    # --- life

    def __enter__(self) -> WholeCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        # 1. The runtime, whose bridge has the server's address.
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._share_mounts()
        self._stack.callback(self.containerd.close)
        self.containerd.start()
        make_cgroup(self.containerd.cgroup_parent)
        address = ["ip", "address", "add", f"{SERVICE_ADDRESS}/32", "dev", self.containerd.bridge]
        subprocess.run(address, check=True)
        self.containerd.add_image(self._archive, IMAGE)
        # 2. The control plane.
        programs = self._programs
        self.api = ControlPlane(
            self.folder / "a", programs["etcd"], programs["kube-apiserver"], address=SERVICE_ADDRESS, port=443
        )
        self._stack.enter_context(self.api)
        self.api.start_controllers(programs["kube-controller-manager"], programs["kube-scheduler"])
        self.kubectl = Kubectl(programs["kubectl"], self.api)
        # 3. The node.
        self._start_kubelet()

    def _share_mounts(self) -> None:
        """What kubelet mounts for pods the runtime sees; and to the runtime all mounts are shared, as systemd has them."""
        for words in (["--bind", str(self.folder), str(self.folder)], ["--make-shared", str(self.folder)]):
            subprocess.run(["mount", *words], check=True)
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(self.folder)], check=True)
        script = self.folder / "bin" / "containerd"
        script.parent.mkdir()
        script.write_text(
            "#!/bin/sh\nexec unshare --mount --propagation unchanged "
            f'sh -c \'mount --make-rshared / && exec {self._programs["containerd"]} "$@"\' sh "$@"\n'
        )
        script.chmod(0o755)

    def _start_kubelet(self) -> None:
        pair = self.api.certificate(f"system:node:{NODE}", "system:nodes")
        folder = self.folder / "k"
        folder.mkdir()
        kubeconfig = self.api.kubeconfig(self.folder / "kubelet.kubeconfig", certificate=pair)
        self.host = RealKubeletHost(
            folder,
            self._programs["kubelet"],
            self.containerd.cgroup_parent,
            name=NODE,
            sys=Path("/sys"),
            kubeconfig=kubeconfig,
            shares_volumes=True,
        )
        self.host.point_at(str(self.containerd.socket))
        self._stack.callback(self.host.close)
        self.host.start()

        def ready() -> bool:
            self.host.keep_running()
            with contextlib.suppress(Refused):
                conditions = self.api.ask("GET", f"/api/v1/nodes/{NODE}")["status"].get("conditions") or ()
                return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
            return False

        until(ready)

    def close(self) -> None:
        """End everything, and leave nothing; what was said is shown if the test fails."""
        if hasattr(self, "host"):
            told = [
                line for line in self.host.log.splitlines() if not any(word in line for word in SAID_ALWAYS)
            ]
            print("--- kubelet", *told[-LINES:], sep="\n")
            print(self.logs("cri-resmgr"))
        if hasattr(self, "api"):
            self._remove_all_pods()
        self._stack.close()

    def _remove_all_pods(self) -> None:
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        with contextlib.suppress(Refused, OSError):
            for pod in self.api.ask("GET", "/api/v1/pods")["items"]:
                path = f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
                with contextlib.suppress(Refused):
                    self.api.ask("DELETE", path, now)

    # --- our objects

    def objects(self, folder: str, mode: str) -> list[dict[str, Any]]:
        """What the folder of packaging/cluster has, for this host: where its folders are, and its CPUs.

        ``mode``: what the ConfigMap sets; "": nothing, as it is.
        """
        rendered = self.kubectl.run("kustomize", str(PACKAGING / folder))
        found: list[dict[str, Any]] = [one for one in yaml.safe_load_all(rendered) if one]
        for one in found:
            if one["kind"] in WORKLOADS:
                for volume in pod_of(one).get("volumes", ()):
                    if "hostPath" in volume:
                        volume["hostPath"]["path"] = str(self.on_host(volume["hostPath"]["path"]))
            if one["kind"] == "ConfigMap":
                config = yaml.safe_load(one["data"]["config.yaml"])
                endpoint = f"/run/containerd/{self.containerd.socket.name}"
                config["relay"] = {"runtime_endpoint": endpoint, **({"mode": mode} if mode else {})}
                config["topology"] = {"source": "/etc/cri-resmgr/machine.json"}
                one["data"]["config.yaml"] = json.dumps(config)
                one["data"]["machine.json"] = json.dumps(write_topology(ONE_NODE))
        return found

    def on_host(self, path: str) -> Path:
        """Where a folder that a manifest names is on this machine."""
        if path == "/sys/fs/cgroup":
            return Path(path)
        if path in ("/run/containerd", "/run/nri"):
            return self.containerd.folder
        if path == "/var/run/cdi":
            return self.containerd.folder / "cdi"
        if path == "/var/lib/kubelet/plugins_registry":
            # Kubelet looks for plugins below its own root; where they are is a path that it sees as our pods do.
            return self.folder / "k" / "k" / "plugins_registry"
        return self.host.root / path.lstrip("/")

    def written(self, folder: str, *, mode: str = "enforce", without: str = "") -> Path:
        """A file of these objects, to apply and to delete. ``without``: a word of their pods' command lines."""
        path = self.folder / f"{folder.replace('/', '-')}.yaml"
        objects = self.objects(folder, mode)
        for one in objects:
            for container in pod_of(one)["containers"] if one["kind"] in WORKLOADS else ():
                container["command"] = [word for word in container["command"] if word != without]
        path.write_text(yaml.safe_dump_all(objects))
        return path

    def pods(self, app: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        """The pods of one of our workloads that are not going."""
        selector = f"app.kubernetes.io/name={app}"
        items = self.api.ask("GET", f"{PODS.format(namespace)}?labelSelector={selector}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def all_pods(self, app: str) -> list[dict[str, Any]]:
        """The same, and those that are going."""
        path = f"{PODS.format(NAMESPACE)}?labelSelector=app.kubernetes.io/name={app}"
        return list(self.api.ask("GET", path)["items"])

    def our_containers(self) -> list[str]:
        """What the runtime still runs of our namespace."""
        return [
            line for line in self.containerd.ctr("containers", "list").splitlines() if "cri-resmgr" in line
        ]

    def image_id(self) -> str:
        """The digest of our image's configuration, by which runtimes tell images apart."""
        with tarfile.open(self._archive) as archive:

            def blob(name: str) -> dict[str, Any]:
                member = archive.extractfile(name)
                assert member is not None
                return dict(json.load(member))

            named = {
                one["annotations"]["io.containerd.image.name"]: one for one in blob("index.json")["manifests"]
            }
            manifest = blob(f"blobs/{named[IMAGE]['digest'].replace(':', '/')}")
            return str(manifest["config"]["digest"])

    def condition(self, kind: str) -> str:
        """Of the NodePlacement."""
        return condition(self.node_placement(), kind)

    def all_cpus(self) -> str:
        """Of this machine, as a list."""
        return Path("/sys/devices/system/cpu/online").read_text().strip()

    def own_folders(self) -> list[Path]:
        """What there is on the host of the folders that pods of ours may make."""
        return [self.host.root / own for own in OWN if (self.host.root / own).exists()]

    def ready_pod(self, app: str, *, but: str = "") -> dict[str, Any]:
        """The one pod of a workload, once it is ready; ``but``: the uid of another."""

        def found() -> Optional[dict[str, Any]]:
            pods = [pod for pod in self.pods(app) if pod["metadata"]["uid"] != but]
            return pods[0] if len(pods) == 1 and is_ready(pods[0]) else None

        try:
            pod = until(found)
        except AssertionError:
            print(
                self.kubectl.run("-n", NAMESPACE, "describe", "pods", "-l", f"app.kubernetes.io/name={app}")
            )
            print(self.logs(app))
            raise
        assert pod is not None
        return pod

    def logs(self, app: str) -> str:
        """What containers of a workload have said; kubelet's files, since its port is loopback's."""
        files = sorted(self.host.logs.glob(f"{NAMESPACE}_{app}*/*/*.log"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-6000:]}" for file in files)

    def node_placement(self) -> dict[str, Any]:
        with contextlib.suppress(Refused):
            return self.api.ask("GET", f"{PLACEMENTS}/{NODE}")
        return {}

    def rows(self) -> dict[str, dict[str, Any]]:
        """The placements of the pods of people, by pod, as the NodePlacement has them."""
        rows = self.node_placement().get("status", {}).get("placements") or ()
        return {row["pod"]: row for row in rows if row["namespace"] == "default"}

    # --- pods of people

    def run(self, name: str, **pod: Any) -> str:
        """The id of the container of a new pod, once it runs; the scheduler finds its node."""
        self.api.ask("POST", PODS.format("default"), static_pod(name, **pod))
        return until(lambda: self.container(name))

    def container(self, pod: str) -> str:
        """The id of the one container of a pod, "" while it does not run."""
        status = self.api.ask("GET", f"{PODS.format('default')}/{pod}")["status"]
        (one,) = status.get("containerStatuses") or [{}]
        is_running = "running" in one.get("state", {})
        return str(one["containerID"]).rpartition("/")[2] if is_running else ""

    def remove_people(self) -> None:
        """Delete the pods that are not ours, and wait until they are gone."""

        def there() -> list[str]:
            return [pod["metadata"]["name"] for pod in self.api.ask("GET", PODS.format("default"))["items"]]

        for name in there():
            self.api.ask("DELETE", f"{PODS.format('default')}/{name}")
        until(lambda: not there())

    # --- the host

    def state_of_host(self, *containers: str) -> dict[str, Any]:
        """What no pod of ours may change: files but our own, by hash; kubelet, its runtime, and these containers' CPUs."""
        return {
            "files": dict(self._hashes()),
            "kubelet": (self.host.pid, self.host.argv()),
            "runtime": Path(f"/proc/{self.containerd.pid}/cmdline").read_text(),
            "containers": {
                each: (self.containerd.pid_of(each), *self.containerd.cpuset_of(each)) for each in containers
            },
        }

    def _hashes(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.host.root.rglob("*")):
            name = str(path.relative_to(self.host.root))
            if not any(name == own or name.startswith(f"{own}/") for own in OWN):
                yield name, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def is_kubelet_well(self) -> bool:
        url = f"http://127.0.0.1:{self.host.health_port}/healthz"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.read() == b"ok")
        return False

    def point_kubelet_at(self, socket: str) -> None:
        """Restart kubelet with another runtime; returns once it is well."""
        self.host.point_at(socket)
        self.host.start()

        def well() -> bool:
            self.host.keep_running()
            return self.is_kubelet_well()

        until(well)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet says so."""
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
