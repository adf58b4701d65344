"""A host with a real kubelet, on the described machine: alone, with static pods, or with an API server."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket as sockets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tests.e2e.runtime import mounts_below
from tests.kubelet_host import KubeletHost
from tests.kubelet_trees import CONFIG, KUBEADM

#: kubelet sets these on a machine of its own. This one is not: they are files where kubelet runs.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
END_TIMEOUT_S = 60.0  # against a second
#: So often a kubelet may end by itself while a test waits for it.
MOST_ENDINGS = 3
#: The mounts are this kubelet's own. In the end it is the same process, named kubelet, as the service manager started.
_START = """#!/bin/sh
{variables}
exec unshare --mount --propagation {propagation} sh -ec '
{mounts}
exec "$@"
' sh {program} {flags} "$@"
"""


class RealKubeletHost(KubeletHost):
    """``folder`` is short; ``cgroup`` has all pods. Before it is started it is pointed at a runtime.

    With a ``kubeconfig``, which may be written until kubelet is started, it registers a node of this name. With
    ``shares_volumes`` the runtime sees what kubelet mounts for pods (secrets, tokens, folders in memory). ``mounts``:
    what else is another's where kubelet runs, by its place there; ``environment``: variables that kubelet has besides;
    ``settings``: more of its configuration.
    """

    def __init__(
        self,
        folder: Path,
        program: Path,
        cgroup: str,
        *,
        name: str,
        sys: Path,
        kubeconfig: Optional[Path] = None,
        shares_volumes: bool = False,
        mounts: Optional[Mapping[str, Path]] = None,
        environment: Optional[Mapping[str, str]] = None,
        settings: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.name = name
        self._mounts = mounts or {}
        self._environment = environment or {}
        self._settings = settings or {}
        self._shares_volumes = shares_volumes
        self._kubeconfig = kubeconfig
        self._endings = 0
        self.port, self.health_port, self._main_port = (_free_port() for _ in range(3))
        self.manifests, self.logs = folder / "manifests", folder / "log" / "pods"
        self.manifests.mkdir()
        self.logs.mkdir(parents=True)
        self._cgroup = cgroup
        super().__init__(folder, KUBEADM)
        if shares_volumes:
            (folder / "k").mkdir()
            subprocess.run(["mount", "--bind", f"{folder}/k", f"{folder}/k"], check=True)
            subprocess.run(["mount", "--make-shared", f"{folder}/k"], check=True)
        (folder / "bin").mkdir()
        # The process is named after the link.
        (folder / "bin" / "kubelet").symlink_to(program)
        self._script("kubelet", self._start(sys))

    def point_at(self, socket: str, **more: Any) -> None:
        """Write kubelet's configuration, with the runtime's socket; ``more``: settings besides these, or in their place."""
        settings: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{socket}",
            # The machine of these tests has v1, or both.
            "failCgroupV1": False,
            "staticPodPath": str(self.manifests),
            # Of what is there it removes the logs of pods that it does not know.
            "podLogsDir": str(self.logs),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": "127.0.0.1",
            "port": self._main_port,
            "readOnlyPort": self.port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.health_port,
            "oomScoreAdj": 0,
            "evictionHard": {
                "memory.available": "1Mi",
                **{
                    f"{place}.{what}": "0%"
                    for place in ("nodefs", "imagefs")
                    for what in ("available", "inodesFree")
                },
            },
            "serializeImagePulls": False,
            "maxPods": 250,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "syncFrequency": "1s",
            "fileCheckFrequency": "1s",
            **self._settings,
            **more,
        }
        self.write(CONFIG, "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))

    def _start(self, sys: Path) -> str:
        mounts = {f"{sys}/devices/system/{part}": f"/sys/devices/system/{part}" for part in ("cpu", "node")}
        for sysctl, value in SYSCTLS.items():
            file = self.folder / "sysctl" / sysctl
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
            mounts[str(file)] = f"/proc/sys/{sysctl}"
        # Its configuration is found by the name that the unit says.
        mounts[f"{self.root}/var/lib"] = "/var/lib"
        # Of links to the logs of pods it removes those that it does not know.
        mounts[str(self.logs.parent)] = "/var/log"
        mounts.update({str(here): there for there, here in self._mounts.items()})
        flags = [
            f"--root-dir={self.folder}/k",
            f"--cert-dir={self.folder}/k/pki",
            f"--hostname-override={self.name}",
            "--v=2",
        ]
        if self._kubeconfig is not None:
            flags.append(f"--kubeconfig={self._kubeconfig}")
        lines = [f'mount --bind "{here}" {there}' for here, there in mounts.items()]
        if self._shares_volumes:
            # The mounts above are still its own; those below its folder are shared.
            lines = [*(f"mount --make-slave {place}" for place in ("/", "/sys", "/proc")), *lines]
        variables = [f"export {name}={shlex.quote(value)}" for name, value in self._environment.items()]
        return _START.format(
            variables="\n".join(variables),
            propagation="unchanged" if self._shares_volumes else "slave",
            mounts="\n".join(lines),
            program=shlex.quote(str(self.folder / "bin" / "kubelet")),
            flags=shlex.join(flags),
        )

    @property
    def log(self) -> str:
        path = self.folder / "kubelet.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self) -> list[str]:
        """Kubelet's log without stacks: klog begins a line with a letter (F: fatal, E: error) and the day."""
        return [line for line in self.log.splitlines() if line[1:5].isdigit()]

    def keep_running(self) -> None:
        """Start kubelet again if it has ended by itself, as the service manager does; AssertionError at the third time.

        On a slow machine a kubelet may end as it starts, since its cAdvisor has not read yet what its container manager
        wants to know (kubernetes/kubernetes#71704).
        """
        try:
            if Path(f"/proc/{self.pid}/cmdline").read_bytes():
                return
        except OSError:
            pass
        said = [line for line in self.said() if line[0] in "FE"][-3:]
        self._endings += 1
        print("kubelet has ended by itself:", *said, sep="\n")
        assert self._endings < MOST_ENDINGS, said
        self.start()

    def stop(self) -> None:
        """End kubelet by SIGTERM, as the service manager does, and wait until it is gone."""
        pid = self.pid
        assert pid is not None
        ended = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGTERM)
            ready, _, _ = select.select([ended], [], [], END_TIMEOUT_S)
            assert ready, f"kubelet {pid} does not end by SIGTERM"
        finally:
            os.close(ended)

    def close(self) -> None:
        """End what runs, and unmount what is left of pods."""
        super().close()
        if self._shares_volumes and (mounts := mounts_below(self.folder)):
            subprocess.run(["umount", "--lazy", *reversed(mounts)], check=True)

    def put(self, pod: Mapping[str, Any]) -> None:
        """Give kubelet a static pod."""
        beside = self.manifests / f".{pod['metadata']['name']}"
        beside.write_text(json.dumps(pod))
        os.replace(beside, self.manifests / f"{pod['metadata']['name']}.json")

    def take(self, name: str) -> None:
        """Take it away: kubelet ends the pod."""
        (self.manifests / f"{name}.json").unlink()


def _free_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
