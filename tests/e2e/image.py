"""The image, built as ``make image`` builds it, without packages for hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = f"docker.io/library/cri-resmgr:{VERSION}"
#: The file of ``build``'s folder that a runtime imports.
ARCHIVE = f"cri-resmgr-{VERSION}-amd64.oci.tar"


def build(dist: Path) -> dict[str, str]:
    """The digests of the images by name; no packages for hosts in them."""
    command = [
        sys.executable,
        str(REPOSITORY / "packaging/cluster/image.py"),
        "--packages=",
        f"--dist={dist}",
    ]
    # The date of the sources, which another commit would change while this runs.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    if "mmdebstrap" in done.stderr and done.returncode != 0:
        pytest.skip(f"Debian's packages cannot be had: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())
