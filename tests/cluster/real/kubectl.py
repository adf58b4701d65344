"""A real kubectl with our plugin, as the administrator of the tests' control plane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.agent import ROOT
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane

PACKAGING = ROOT / "packaging" / "cluster"
TIMEOUT_S = 120
_PLUGIN = f"#!{sys.executable}\nimport sys\nfrom cluster.kubectl import main\nsys.exit(main())\n"


def crds_of(api: ControlPlane) -> str:
    """The folder of the CRDs for this server."""
    return "crds" if api.version() >= (1, 25) else "crds-before-1.25"


class Kubectl:
    """``program`` with a kubeconfig and a cache of its own, and ``kubectl cri_resmgr`` of this tree."""

    def __init__(self, program: Path, api: ControlPlane) -> None:
        self._program = str(program)
        self._api = api
        plugin = api.folder / "bin" / "kubectl-cri_resmgr"
        plugin.parent.mkdir(exist_ok=True)
        plugin.write_text(_PLUGIN)
        plugin.chmod(0o755)
        self._environment = {
            "PATH": f"{plugin.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(api.kubeconfig(api.folder / "kubectl.kubeconfig", token=ADMIN_TOKEN)),
            "HOME": str(api.folder),
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that runs; its two streams are pipes."""
        command, pipe = (self._program, *words), subprocess.PIPE
        return subprocess.Popen(command, env=self._environment, stdout=pipe, stderr=pipe, text=True)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What came of a command, which may have failed."""
        with self.start(*words) as process:
            try:
                out, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def run(self, *words: str) -> str:
        """What it prints, both streams.

        :raises AssertionError: it fails; with what it printed.
        """
        done = self.ask(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def apply_crds(self) -> None:
        """Our kinds of objects, as docs/cluster.md has them applied."""
        self.run("apply", "-k", str(PACKAGING / crds_of(self._api)))
        self.run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")

    def apply_rights(self) -> None:
        """The accounts and rights of our manifests, for a server without admission policies."""
        self.run("apply", "-k", str(PACKAGING / "base" / "namespace"))
        self.run("apply", "-k", str(PACKAGING / "rbac-per-node"))
