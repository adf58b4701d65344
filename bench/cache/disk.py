"""The guest's disk with the package on it: installed here, in a chroot, as installing takes minutes under emulation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.vm.image import Image

INSTALL_TIMEOUT_S = 300


def with_package(image: Image, deb: Path, folder: Path) -> Image:
    """A copy of the image in an empty folder, the package installed by dpkg. Needs root and loop devices.

    :raises RuntimeError: a program failed; with what it said.
    """
    made = Image(folder)
    _run("cp", "--sparse=always", str(image.disk), str(made.disk))
    made.kernel.symlink_to(image.kernel)
    made.initramfs.symlink_to(image.initramfs)
    tree = folder / "tree"
    tree.mkdir()
    _run("mount", "-o", "loop", str(made.disk), str(tree))
    try:
        shutil.copy(deb, tree / deb.name)
        _run("chroot", str(tree), "dpkg", "--install", f"/{deb.name}")
        (tree / deb.name).unlink()
    finally:
        _run("umount", str(tree))
    return made


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} failed ({done.returncode}): {(done.stdout + done.stderr)[-3000:]}"
        )
