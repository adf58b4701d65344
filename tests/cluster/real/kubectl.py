"""A real kubectl with our plugin, as the administrator of the tests' control plane."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.agent import ROOT
from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane

PACKAGING = ROOT / "packaging" / "cluster"
TIMEOUT_S = 120
_PLUGIN = f"#!{sys.executable}\nimport sys\nfrom cluster.kubectl import main\nsys.exit(main())\n"


class Kubectl:
    """``program`` with a kubeconfig and a cache of its own, and ``kubectl cri_resmgr`` of this tree."""

    def __init__(self, program: Path, api: ControlPlane) -> None:
        self._program = str(program)
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

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What came of a command, which may have failed."""
        return subprocess.run(
            [self._program, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def run(self, *words: str) -> str:
        """What it prints, both streams.

        :raises AssertionError: it fails; with what it printed.
        """
        done = self.ask(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def apply_crds(self) -> None:
        """Our kinds of objects, as docs/cluster.md has them applied; others that are there are waited for as well."""
        self.run("apply", "-k", str(PACKAGING / "crds"))
        deadline = time.monotonic() + TIMEOUT_S
        while (
            done := self.ask("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        ).returncode:
            # One that the server has given no conditions yet, kubectl does not wait for.
            assert "accessor error" in done.stderr and time.monotonic() < deadline, done.stdout + done.stderr

    def apply_rights(self) -> None:
        """The accounts, rights and admission policies of our manifests; policies are in force a moment later."""
        for folder in ("base/namespace", "rbac", "admission"):
            self.run("apply", "-k", str(PACKAGING / folder))
