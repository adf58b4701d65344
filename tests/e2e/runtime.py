"""A private, real runtime for the tests: an ordinary process with its own folder, bridge and cgroups.

Nothing of it is left after `close`, whatever state it was in: everything it makes is below its folder, on its
bridge or below its cgroup, so cleaning up needs no help from it.
All calls block; in a test whose event loop must go on, use `asyncio.to_thread(runtime.start)`.
"""

from __future__ import annotations

import abc
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import grpc

from cri_api import runtime_v1_pb2 as cri
from tests.e2e.cgroups import cgroup_mounts, limit_cpus, remove_cgroup
from tests.e2e.images import BUSYBOX, PAUSE, make_images

START_TIMEOUT_S = 60.0  # against 0.4 s on two idle CPUs: a start may be emulated, Go is slow then
END_TIMEOUT_S = 30.0  # against 0.2 s
CNI_PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
# Cannot be configured.
CNI_RESULTS = Path("/var/lib/cni/results")

Self = TypeVar("Self", bound="RealRuntime")


class RealRuntime(abc.ABC):
    """One runtime with a bridge, a subnet and a cgroup of its own; several run side by side.

    `images` is the folder in which the images' archive is kept between instances; `more_config` is TOML for
    the end of the configuration. After the first `start`, `number` tells this instance from the others on the
    machine, and `cgroup_parent` is "/cri-e2e-NUMBER" if none was given. Give every pod a cgroup parent below
    it: elsewhere only the containers' own cgroups are removed, not the pods'. `cpus`: all that this cgroup may
    use, with memory of NUMA node 0; "" is the whole machine. `routes`: networks that pods reach over the bridge.
    `path`: folders whose programs (runc) go before the system's. `has_nri`: at `nri_socket`, with plugins launched from
    `nri_plugins`, and their configuration in `nri_config`, and `nri_timeout_s` for an answer; as shipped if False, which may
    be with NRI. `has_host_ports`: ports of the host lead to pods that ask for it, by chains of iptables that stay: in a
    network namespace of its own.
    `registry`: host and port of one that speaks plain HTTP, in the place of every registry that an image is pulled from.
    `runc`: what it calls in the place of runc.

    A kind of runtime says what is abstract here. A container's processes, and with them its cgroup, are asked of the
    kernel by `pid_of` alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        images: Path,
        cgroup_parent: str = "",
        cpus: str = "",
        more_config: str = "",
        routes: Sequence[str] = (),
        path: Sequence[Path] = (),
        has_nri: bool = False,
        nri_timeout_s: int = 2,
        has_host_ports: bool = False,
        registry: str = "",
        runc: Optional[Path] = None,
    ) -> None:
        self.folder = folder.resolve()
        self.socket = self.folder / "c.sock"
        self.log = self.folder / "log"
        self.nri_socket = self.folder / "nri.sock"
        self.nri_plugins = self.folder / "nri-plugins"
        self.nri_config = self.folder / "nri-conf"
        self.cdi = self.folder / "cdi"
        if len(str(self.socket)) >= 100:
            raise ValueError(f"{self.socket} is too long for a unix socket; use a shorter folder")
        if cgroup_parent and not cgroup_parent.strip("/"):
            raise ValueError("the cgroup parent cannot be the root: close() kills all that is below it")
        self.images = images
        self.cgroup_parent = cgroup_parent
        self.cpus = cpus
        self.more_config = more_config
        self.routes = routes
        self.path = path
        self.has_nri = has_nri
        self.nri_timeout_s = nri_timeout_s
        self.has_host_ports = has_host_ports
        self.registry = registry
        self.runc = runc
        self.number = -1
        self.bridge = ""
        self._daemon: Optional[subprocess.Popen[bytes]] = None

    # --- what differs by kind

    @abc.abstractmethod
    def _write_config(self) -> None:
        """Write the runtime's configuration, once, before its first start."""

    @abc.abstractmethod
    def _command(self) -> Sequence[str]:
        """The command that starts it."""

    @abc.abstractmethod
    def import_images(self, archive: Path) -> None:
        """Give it the images of an archive as `docker save` writes them."""

    @abc.abstractmethod
    def pid_of(self, container_id: str) -> int:
        """The first process of a container or sandbox; asked without the daemon, so also while it is dead."""

    def knows_cdi(self) -> bool:
        """Whether containers can have CDI devices, which it looks up in `cdi`."""
        return True

    @abc.abstractmethod
    def _ids(self) -> Sequence[str]:
        """The ids of all containers and sandboxes that were started; asked without the daemon."""

    @abc.abstractmethod
    def _outside(self) -> Sequence[Path]:
        """Files that it has left outside its folder."""

    def __enter__(self: Self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- life

    def start(self) -> None:
        """Start the daemon, the first time or after `kill`; returns when CRI, network, images are ready."""
        assert self._daemon is None, "it was started already"
        first = self.number < 0
        if first:
            self._claim_number()
            self._write_network()
            self._write_config()
            if self.cpus:
                limit_cpus(self.cgroup_parent, self.cpus)
        # In a cgroup of ours, where the shims and all it runs stay too: a search by command line would miss
        # those between fork and exec. In v2 if there is one; an own v1 cpuset would have to be filled first.
        root, _ = min(cgroup_mounts(), key=lambda mount: (mount[1] != [], "cpuset" in mount[1]))
        cgroup = root / self.cgroup_parent.strip("/") / "daemon"
        cgroup.mkdir(parents=True, exist_ok=True)
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs")]
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*enter, *self._command()], stdout=log, stderr=log, env=self._environment()
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        self._wait_for(self._is_ready, deadline_s)
        if first:
            self.import_images(make_images(self.images))
            self._wait_for(self._has_images, deadline_s)  # CRI hears of them by an event

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the daemon only, by a signal; shims and containers live on."""
        if self._daemon is not None:
            self._daemon.send_signal(number)
            self._daemon.wait()
            self._daemon = None

    def close(self) -> None:
        """Kill and remove everything that was started and made; nothing happens the second time."""
        if self.number < 0:
            return
        # 1. Processes, so that none makes new things or holds the old ones.
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while pids := self._pids():
            for pid in pids:
                _kill(pid)
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"SIGKILL does not end these processes of {self.folder}: {sorted(pids)}")
            time.sleep(0.01)
        self.kill()
        # 2. What lies outside the folder and off the bridge.
        for outside in (*self._outside(), *_cni_results(self.folder)):
            outside.unlink(missing_ok=True)
        for cgroup in self._cgroups():
            remove_cgroup(cgroup, deadline_s)
        # 3. Mounts, innermost first. The network namespaces end with them, and with these the bridge's ports,
        #    but later: not waited for.
        if mounts := mounts_below(self.folder):
            subprocess.run(["umount", "--lazy", *reversed(mounts)], check=True)
        listed = subprocess.run(
            ["ip", "-json", "link", "show", "master", self.bridge], capture_output=True, check=True
        )
        for port in json.loads(listed.stdout or "[]"):
            subprocess.run(["ip", "link", "delete", port["ifname"]], capture_output=True, check=False)
        # 4. The folder, and last the bridge: it is the claim on the number.
        shutil.rmtree(self.folder)
        subprocess.run(["ip", "link", "delete", self.bridge], check=True)
        self.number = -1

    def add_image(self, archive: Path, name: str) -> None:
        """Import an archive if the image of this name is not there; returns when CRI has it."""
        if name not in self._image_names():
            self.import_images(archive)
            self._wait_for(lambda: name in self._image_names(), time.monotonic() + START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """The daemon's process, which runs."""
        assert self._daemon is not None
        return self._daemon.pid

    # --- what the kernel says of a container; asked without the daemon, so also while it is dead

    def cpuset_of(self, container_id: str) -> tuple[str, str]:
        """CPUs and memory nodes in the container's cgroup ("" in cgroup v2: not set)."""
        folder, _ = self._cgroup_of(container_id, "cpuset")
        return (folder / "cpuset.cpus").read_text().strip(), (folder / "cpuset.mems").read_text().strip()

    def write_cpuset(self, container_id: str, cpus: str) -> None:
        """Change the CPUs in the container's cgroup, past everybody."""
        folder, _ = self._cgroup_of(container_id, "cpuset")
        (folder / "cpuset.cpus").write_text(cpus)

    def nest(self, container_id: str) -> Path:
        """Have a container move its processes into a child of its cgroup; returns its own one's folder."""
        folder, is_v1 = self._cgroup_of(container_id, "cpuset")
        child = folder / "init"
        child.mkdir()
        if is_v1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (child / name).write_text((folder / name).read_text())
        for pid in (folder / "cgroup.procs").read_text().split():
            (child / "cgroup.procs").write_text(pid)
        if not is_v1:
            (folder / "cgroup.subtree_control").write_text("+cpuset")
        return folder

    def sandbox(self, container_id: str) -> str:
        """Put a container's processes where a sandboxed runtime has them: beside its cgroup. Returns the path of that."""
        folder, is_v1 = self._cgroup_of(container_id, "cpuset")
        beside = folder.with_name("sandbox")
        beside.mkdir()
        if is_v1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (beside / name).write_text((folder.parent / name).read_text())
        for pid in (folder / "cgroup.procs").read_text().split():
            (beside / "cgroup.procs").write_text(pid)
        return self._place_of(container_id, "cpuset")[1]

    def quota_of(self, container_id: str) -> int:
        """Microseconds of CPU time a period in the container's cgroup; -1: no limit."""
        folder, is_v1 = self._cgroup_of(container_id, "cpu")
        text = (folder / ("cpu.cfs_quota_us" if is_v1 else "cpu.max")).read_text().split()[0]
        return -1 if text == "max" else int(text)

    def memory_limit_of(self, container_id: str) -> int:
        """Bytes of memory that the container's cgroup may use; -1: no limit."""
        folder, is_v1 = self._cgroup_of(container_id, "memory")
        text = (folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")).read_text().strip()
        return -1 if text == "max" else int(text)

    def cgroup_file_of(self, container_id: str, controller: str, name: str) -> str:
        """What a file of the container's cgroup says."""
        return (self._cgroup_of(container_id, controller)[0] / name).read_text().strip()

    def _cgroup_of(self, container_id: str, controller: str) -> tuple[Path, bool]:
        """The container's cgroup in the hierarchy that has a controller, and whether that is v1."""
        root, path, is_v1 = self._place_of(container_id, controller)
        return root / path.lstrip("/"), is_v1

    def _place_of(self, container_id: str, controller: str) -> tuple[Path, str, bool]:
        """The same with the mount and the path in it apart."""
        lines = Path(f"/proc/{self.pid_of(container_id)}/cgroup").read_text().splitlines()
        paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
        in_v1 = next((controllers for controllers in paths if controller in controllers.split(",")), "")
        mounts = cgroup_mounts()
        root = next(root for root, names in mounts if (controller in names if in_v1 else not names))
        return root, paths[in_v1], in_v1 != ""

    def allowed_of(self, container_id: str) -> tuple[str, str]:
        """CPUs and memory nodes the container's first process may use."""
        status = Path(f"/proc/{self.pid_of(container_id)}/status").read_text()
        cpus, mems = re.findall(r"^(?:Cpus|Mems)_allowed_list:\s*(\S*)$", status, re.MULTILINE)
        return cpus, mems

    # --- starting

    def _claim_number(self) -> None:
        # A bridge can be made only once on a machine, so making one claims its number, even against
        # other processes. As it has an address already, CNI need not switch on the machine's IP forwarding.
        for number in range(256):
            bridge = f"cri-e2e-{number}"
            command = ["ip", "link", "add", bridge, "type", "bridge"]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode == 0:
                break
        else:
            raise RuntimeError(f"cannot add a network bridge: {made.stderr}")
        self.number, self.bridge = number, bridge
        self.cgroup_parent = self.cgroup_parent or f"/{bridge}"
        subprocess.run(["ip", "address", "add", f"10.213.{number}.1/24", "dev", bridge], check=True)
        subprocess.run(["ip", "link", "set", bridge, "up"], check=True)

    def _write_network(self) -> None:
        (self.folder / "cni").mkdir(parents=True)
        ranges = [[{"subnet": f"10.213.{self.number}.0/24"}]]
        addresses = {"type": "host-local", "dataDir": f"{self.folder}/addresses", "ranges": ranges}
        addresses["routes"] = [{"dst": network} for network in self.routes]
        plugins: list[dict[str, Any]] = [{"type": "bridge", "bridge": self.bridge, "ipam": addresses}]
        if self.has_host_ports:
            plugins.append({"type": "portmap", "capabilities": {"portMappings": True}, "snat": True})
        network = {"cniVersion": "0.4.0", "name": self.bridge, "plugins": plugins}
        (self.folder / "cni" / "net.conflist").write_text(json.dumps(network))

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "PATH": ":".join([*map(str, self.path), os.environ["PATH"]])}

    def _wait_for(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        assert self._daemon is not None
        while not is_done():
            code = self._daemon.poll()
            if code is not None or time.monotonic() > deadline_s:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(
                    f"{self._command()[0]} is not ready (exit code {code}); its log ends:\n{tail}"
                )
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        status = self._ask("RuntimeService/Status", cri.StatusRequest(), cri.StatusResponse)
        # There may be others, as that nothing which is deprecated is used: cgroup v1 is.
        found = {} if status is None else {each.type: each.status for each in status.status.conditions}
        return bool(found.get("RuntimeReady") and found.get("NetworkReady"))

    def _has_images(self) -> bool:
        return {PAUSE, BUSYBOX} <= self._image_names()

    def _image_names(self) -> set[str]:
        listed = self._ask("ImageService/ListImages", cri.ListImagesRequest(), cri.ListImagesResponse)
        return {name for image in listed.images for name in image.repo_tags} if listed is not None else set()

    def _ask(self, method: str, request: Any, response: Any) -> Any:
        """The answer, or None if nothing answers or it says so."""
        # A pool of its own: in the shared one a refused connection is retried only after a second.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self.socket}", options) as channel:
            encode, decode = type(request).SerializeToString, response.FromString
            try:
                return channel.unary_unary(f"/runtime.v1.{method}", encode, decode)(request, timeout=5)
            except grpc.RpcError:
                return None

    # --- ending

    def _pids(self) -> set[int]:
        """What runs in our cgroups, and the descendants of that."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            state, parent = stat.rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                parents[int(folder.name)] = int(parent)
        pids: set[int] = set()
        for cgroup in self._cgroups():
            for path, _, _ in os.walk(cgroup):
                try:
                    pids |= {int(pid) for pid in Path(path, "cgroup.procs").read_text().split()}
                except OSError:
                    pass  # it was removed meanwhile
        pids.discard(
            0
        )  # someone in a process namespace that cannot be seen from here; to kill(), our own group
        while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
            pids |= more
        return pids

    def _cgroups(self) -> list[Path]:
        """In every hierarchy: ours, and those of our containers elsewhere."""
        names = self._ids()
        found = []
        for root, _ in cgroup_mounts():
            found.append(root / self.cgroup_parent.strip("/"))
            for path, _, _ in os.walk(root):
                if any(name in os.path.basename(path) for name in names):
                    found.append(Path(path))
        return [path for path in found if path.is_dir()]


#: Makes one in a folder, with options, that is not started yet.
MakeRuntime = Callable[..., RealRuntime]


def cni_plugins() -> Path:
    """The folder of the machine's CNI plugins."""
    return next(folder for folder in CNI_PLUGIN_FOLDERS if folder.exists())


def mounts_below(folder: Path) -> list[str]:
    """What is mounted below a folder, in the order in which it was mounted."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _cni_results(folder: Path) -> list[Path]:
    """What libcni remembers of network namespaces below a folder, also of half-made pods."""
    found = []
    for path in CNI_RESULTS.glob("*"):
        try:
            if f'"{folder}/' in path.read_text():
                found.append(path)
        except FileNotFoundError:
            pass  # another containerd's, which it removed meanwhile
    return found
