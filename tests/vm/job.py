"""The folder that a guest is given: packages, the checks, images for its pods. It sees it as /job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Optional

from tests.e2e.images import make_images
from tests.e2e.traffic_images import build_talk
from tests.vm.packages import newer

TESTS = Path(__file__).parents[1]
COMPILERS = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc"}
RUNTIME_PROGRAMS = ("containerd", "containerd-shim-runc-v2")


def make_job(
    folder: Path,
    deb: Path,
    run: str,
    checks: Collection[str],
    busybox: Path,
    architecture: str,
    client: Path,
    runtime: Optional[Path] = None,
    *,
    is_installed: bool = False,
) -> Path:
    """Fill an empty folder, for these checks of a run. Returns the folder.

    ``client``: a folder with grpcio for the guest's Python; ``runtime``: a containerd for later; ``busybox``: the guest's,
    for images; ``architecture``: the guest's, as Debian calls it; ``is_installed``: the package is on the disk already.
    """
    shutil.copytree(
        TESTS / "vm", folder / "tests" / "vm", ignore=shutil.ignore_patterns("__pycache__", "test_*")
    )
    for name in ("__init__.py", "cri_client.py"):
        shutil.copy(TESTS / name, folder / "tests" / name)
    shutil.copytree(client, folder / "grpc")
    shutil.copy(deb, folder / deb.name)
    (folder / "upgrade").mkdir()
    newer(deb, folder / "upgrade")
    if runtime is not None:
        (folder / "containerd").mkdir()
        for name in RUNTIME_PROGRAMS:
            shutil.copy(runtime.with_name(name), folder / "containerd")
    make_images(folder, busybox, architecture)
    build_talk(folder, COMPILERS[architecture])
    described = {"run": run, "checks": sorted(checks), **({} if is_installed else {"deb": deb.name})}
    (folder / "job.json").write_text(json.dumps(described))
    return folder
