"""A private, real CRI-O for the tests."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.images import PAUSE
from tests.e2e.runtime import RealRuntime, cni_plugins

#: What keeps the file systems of images and containers.
DRIVER = "overlay"

#: CRI-O cannot be told to leave a score as it is, as containerd's restrict_oom_score_adj has it: without CAP_SYS_RESOURCE,
#: as in most CI runners, no container with one below our own starts otherwise. Nor does one with limits of huge pages, as
#: kubelet's have, where the kernel counts them and no cgroup for it is mounted: CRI-O goes by /proc/cgroups.
RUNC = r"""#!/bin/sh
bundle=
for word; do
    [ "$bundle" = next ] && bundle=$word
    case $word in
        --bundle | -b) bundle=next ;;
    esac
done
[ -z "$bundle" ] || sed -i -z -E \
    -e 's/"oomScoreAdj": *-[0-9]+/"oomScoreAdj":0/' \
    -e 's/"hugepageLimits": *\[[^]]*\]/"hugepageLimits":[]/' "$bundle/config.json"
exec {runc} "$@"
"""

#: All that CRI-O has outside a folder of its own by default, and no signature is asked for.
CONFIG = """\
[crio]
root = "{folder}/root"
runroot = "{folder}/run/containers"
storage_driver = "{driver}"
log_dir = "{folder}/logs"
version_file = "{folder}/version-run"
version_file_persist = "{folder}/version"
clean_shutdown_file = "{folder}/clean.shutdown"
[crio.api]
listen = "{socket}"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
enable_pod_events = true
default_runtime = "runc"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{attach}"
namespaces_dir = "{folder}/namespaces"
pinns_path = "{pinns}"
hooks_dir = ["{folder}/hooks"]
cdi_spec_dirs = ["{folder}/cdi"]
apparmor_profile = "unconfined"
irqbalance_config_file = "{folder}/irqbalance"
irqbalance_config_restore_file = ""
decryption_keys_path = "{folder}/keys"
[crio.runtime.runtimes.runc]
runtime_path = "{folder}/runc.sh"
runtime_root = "{folder}/runc"
monitor_path = "{conmon}"
monitor_env = ["PATH={path}"]
[crio.image]
pause_image = "{pause}"
pause_command = ""
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"
[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["{cni_plugins}"]
[crio.nri]
enable_nri = {has_nri}
nri_listen = "{nri_socket}"
nri_plugin_dir = "{nri_plugins}"
nri_plugin_config_dir = "{nri_config}"
nri_plugin_request_timeout = "{nri_timeout_s}s"
"""

#: For each top level domain that tests have images of.
REGISTRY = """\
[[registry]]
prefix = "*.{domain}"
[[registry.mirror]]
location = "{address}"
insecure = true
"""
DOMAINS = ("io", "example")


class Crio(RealRuntime):
    """One CRI-O; `programs`: where crio, pinns and runc are. By default it calls crun, which refuses hybrid cgroups."""

    def __init__(self, folder: Path, programs: Mapping[str, Path], **options: Any) -> None:
        super().__init__(folder, **options)
        self.programs = programs
        # kubelet knows CRI-O by the end of this name.
        self.socket = self.folder / "run" / "crio" / "crio.sock"

    def import_images(self, archive: Path) -> None:
        with tarfile.open(archive) as images:
            manifest = images.extractfile("manifest.json")
            assert manifest is not None, archive
            names = [name for image in json.load(manifest) for name in image["RepoTags"]]
        store = f"[{DRIVER}@{self.folder}/root+{self.folder}/run/containers]"
        for name in names:
            copied = (f"docker-archive:{archive}:{name}", f"containers-storage:{store}{name}")
            subprocess.run(
                ("skopeo", "copy", "--insecure-policy", "--quiet", *copied), check=True, capture_output=True
            )

    def pid_of(self, container_id: str) -> int:
        return int((self._containers / container_id / "userdata" / "pidfile").read_text())

    def _write_config(self) -> None:
        config = CONFIG.format(
            folder=self.folder,
            socket=self.socket,
            path=self._environment()["PATH"],
            attach=self._attach,
            driver=DRIVER,
            conmon=shutil.which("conmon"),
            pinns=self.programs["pinns"],
            pause=PAUSE,
            cni_plugins=cni_plugins(),
            has_nri="true" if self.has_nri else "false",
            nri_socket=self.nri_socket,
            nri_plugins=self.nri_plugins,
            nri_config=self.nri_config,
            nri_timeout_s=self.nri_timeout_s,
        )
        (self.folder / "config.toml").write_text(config + self.more_config)
        (self.folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        registries = [
            REGISTRY.format(domain=domain, address=self.registry) for domain in DOMAINS if self.registry
        ]
        (self.folder / "registries.conf").write_text("".join(registries))
        (self.folder / "registries.conf.d").mkdir()
        (self.folder / "attach").mkdir()
        self._attach.unlink(missing_ok=True)
        self._attach.symlink_to(self.folder / "attach")
        runc = self.folder / "runc.sh"
        runc.write_text(RUNC.format(runc=self.runc or self.programs["runc"]))
        runc.chmod(0o755)
        (self.folder / "conf.d").mkdir()

    def _command(self) -> Sequence[str]:
        places = ("--config", f"{self.folder}/config.toml", "--config-dir", f"{self.folder}/conf.d")
        registries = ("--registries-conf", f"{self.folder}/registries.conf")
        registries += ("--registries-conf-dir", f"{self.folder}/registries.conf.d")
        return (str(self.programs["crio"]), *places, *registries)

    def _ids(self) -> Sequence[str]:
        return [path.parent.name for path in self._containers.glob("*/userdata")]

    def _outside(self) -> Sequence[Path]:
        return (self._attach,)

    @property
    def _attach(self) -> Path:
        """A container's socket is below, and with its whole id in the name that is the kernel's most elsewhere."""
        return Path(f"/tmp/cri-e2e-{self.number}")

    @property
    def _containers(self) -> Path:
        return self.folder / "run" / "containers" / f"{DRIVER}-containers"


def missing() -> str:
    """What this machine lacks to run CRI-O besides what the tests of containerd need, as a sentence; "" if nothing."""
    lacking = [program for program in ("conmon", "skopeo") if shutil.which(program) is None]
    return f"Not installed: {', '.join(lacking)}." if lacking else ""
