"""The package that is tested: built now, or the file named by CRI_RESMGR_DEB_311 (or _39)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 600


def package(python: str) -> Path:
    """The .deb for guests with this Python ("3.11"), built from the sources as they are.

    :raises RuntimeError: it cannot be built; with what make said.
    """
    given = os.environ.get(f"CRI_RESMGR_DEB_{python.replace('.', '')}", "")
    if given:
        return Path(given)
    command = ["make", "--no-print-directory", "deb", f"PYTHON={python}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    found = sorted(
        (ROOT / "dist").glob(f"cri-resmgr_*py{python}_*.deb"), key=lambda path: path.stat().st_mtime
    )
    if done.returncode != 0 or not found:
        raise RuntimeError(f"{' '.join(command)} made no package: {(done.stdout + done.stderr)[-3000:]}")
    return found[-1]
