"""A private, real containerd for the tests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from tests.e2e.images import PAUSE
from tests.e2e.runtime import CNI_PLUGIN_FOLDERS, RealRuntime, cni_plugins

# Cannot be configured.
SHIM_SOCKETS = Path("/run/containerd/s")

# restrict_oom_score_adj: without CAP_SYS_RESOURCE, as in most CI runners, no pod starts otherwise.
# netns below the state folder and runc's state (Root) in ours: unmounted and removed with the folder.
COMMON = """\
version = {version}
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = {no_nri}
  socket_path = "{nri_socket}"
  plugin_path = "{nri_plugins}"
  plugin_config_path = "{nri_config}"
  plugin_request_timeout = "{nri_timeout_s}s"
"""

#: What follows for containerd 1.
CONFIG = """\
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
{cdi}[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_plugins}"
  conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "{folder}/runc"
"""

#: Among it since containerd 1.7, which has it off.
CDI = """\
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
"""

#: The same for containerd 2, whose sections have other names, and which has NRI on in the machine's own folders.
CONFIG_OF_2 = """\
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{folder}/cdi"]
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{cni_plugins}"]
  conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  Root = "{folder}/runc"
"""

#: Follows either.
REGISTRY = """\
[plugins."io.containerd.{plugin}".registry]
  config_path = "{folder}/hosts"
"""


class Containerd(RealRuntime):
    """One containerd; `binary`: another than the system's, with its shim and `ctr` beside it."""

    def __init__(self, folder: Path, binary: Union[str, Path] = "containerd", **options: Any) -> None:
        super().__init__(folder, **options)
        self.binary = str(binary)
        #: How long its NRI waits for a plugin's answer; as shipped.
        self.nri_timeout_s = 2

    def ctr(self, *arguments: str) -> str:
        """What containerd's own client of the same version prints, in CRI's containerd namespace."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment(), check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def import_images(self, archive: Path) -> None:
        self.ctr("images", "import", str(archive))

    def pid_of(self, container_id: str) -> int:
        return int((self.bundle_of(container_id) / "init.pid").read_text())

    def bundle_of(self, container_id: str) -> Path:
        """The folder with the config.json that runc was given for a container that was started."""
        return self._tasks / container_id

    def shim_sockets(self) -> set[Path]:
        """Sockets of the shims, named as containerd's SocketAddress does (runtime/v2/shim/util_unix.go)."""
        names = [f"{self.socket}/k8s.io/{task}" for task in self._ids()]
        paths = {SHIM_SOCKETS / hashlib.sha256(name.encode()).hexdigest() for name in names}
        return {path for path in paths if path.exists()}

    def _write_config(self) -> None:
        is_old = self._version() < (2, 0)
        config = (COMMON + (CONFIG if is_old else CONFIG_OF_2)).format(
            version=2 if is_old else 3,
            folder=self.folder,
            pause=PAUSE,
            cni_plugins=cni_plugins(),
            nri_socket=self.nri_socket,
            nri_plugins=self.nri_plugins,
            nri_config=self.nri_config,
            nri_timeout_s=self.nri_timeout_s,
            no_nri="false" if self.has_nri else "true",
            cdi=CDI.format(folder=self.folder) if self.knows_cdi() else "",
        )
        if self.runc is not None:
            config += f'  BinaryName = "{self.runc}"\n'
        config += self.more_config
        if self.registry:
            hosts = self.folder / "hosts" / "_default" / "hosts.toml"
            hosts.parent.mkdir(parents=True)
            hosts.write_text(f'[host."http://{self.registry}"]\n  capabilities = ["pull", "resolve"]\n')
            config += REGISTRY.format(folder=self.folder, plugin="grpc.v1.cri" if is_old else "cri.v1.images")
        (self.folder / "config.toml").write_text(config)

    def _command(self) -> Sequence[str]:
        return (self.binary, "--config", str(self.folder / "config.toml"))

    def _environment(self) -> Mapping[str, str]:
        # The shim and ctr beside the binary go before the system's, which are of another version.
        environment = super()._environment()
        if "/" not in self.binary:
            return environment
        return {**environment, "PATH": f"{Path(self.binary).parent}:{environment['PATH']}"}

    def _ids(self) -> Sequence[str]:
        return [task.name for task in self._tasks.glob("*")]

    def _outside(self) -> Sequence[Path]:
        return list(self.shim_sockets())

    def knows_cdi(self) -> bool:
        return self._version() >= (1, 7)

    def _version(self) -> tuple[int, int]:
        said = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r" v?(\d+)\.(\d+)", said)
        assert found is not None, f"{self.binary} does not tell its version: {said}"
        return int(found[1]), int(found[2])

    @property
    def _tasks(self) -> Path:
        return self.folder / "state" / "io.containerd.runtime.v2.task" / "k8s.io"


def missing() -> str:
    """What this machine lacks to run a containerd, as a sentence for a skip; "" if nothing."""
    if os.geteuid() != 0:
        return "A real containerd needs root."
    programs = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox", "ip", "umount")
    lacking = [program for program in programs if shutil.which(program) is None]
    if not any((folder / "bridge").exists() for folder in CNI_PLUGIN_FOLDERS):
        lacking.append("the CNI plugin bridge")
    if lacking:
        return f"Not installed: {', '.join(lacking)}."
    busybox = shutil.which("busybox") or ""
    if subprocess.run(["ldd", busybox], capture_output=True, check=False).returncode == 0:
        return "The busybox installed here is not static, so it cannot be an image (Debian: busybox-static)."
    return ""
