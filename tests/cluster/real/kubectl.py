"""A real kubectl, as the administrator of the tests' control plane."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.real.control_plane import ADMIN_TOKEN, ControlPlane

TIMEOUT_S = 120


class Kubectl:
    """``program`` with a kubeconfig of its own."""

    def __init__(self, program: Path, api: ControlPlane) -> None:
        self._program = program
        self._api = api
        self._kubeconfig = api.kubeconfig(api.folder / "kubectl.kubeconfig", token=ADMIN_TOKEN)

    def run(self, *words: str) -> str:
        """What it prints, both streams.

        :raises AssertionError: it fails; with what it printed.
        """
        done = subprocess.run(
            (str(self._program), f"--kubeconfig={self._kubeconfig}", f"--cache-dir={self._api.folder}/cache", *words),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout
