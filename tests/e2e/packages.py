"""Programs of another Debian release, unpacked in a folder: nothing is installed."""

from __future__ import annotations

import fcntl
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Optional


def containerd_17(cache: Path) -> Optional[Path]:
    """The path of Debian 13's containerd, 1.7.24, for a Debian 12 machine; None if it cannot be had.

    Unpacked once in this folder, with an apt state of its own: the system's apt stays as it is.
    """
    package = cache / "containerd-1.7"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "containerd-1.7.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed; another test run may be at it
        if not package.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                try:
                    _fetch_package("containerd", "trixie", Path(folder)).rename(package)
                except (OSError, subprocess.SubprocessError):
                    return None
    return package / "usr" / "bin" / "containerd"


def _fetch_package(name: str, suite: str, folder: Path) -> Path:
    """Download and unpack a package of another release; OSError or SubprocessError if that fails."""

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    # 1. The mirror is where this system's apt looks for Debian 12.
    mirror = re.search(r"'(\S+)/dists/bookworm/main/binary-", run("apt-get", "--print-uris", "update"))
    if mirror is None:
        raise OSError("apt knows no mirror of Debian 12")
    # 2. An apt that knows only the other release, and of no installed packages.
    for needed in ("lists/partial", "cache/archives/partial", "no-parts"):
        (folder / needed).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb {mirror[1]} {suite} main\n")
    settings = (
        f"Dir::State={folder}",
        f"Dir::State::Lists={folder}/lists",
        f"Dir::State::status={folder}/status",
        f"Dir::Cache={folder}/cache",
        f"Dir::Etc::sourcelist={folder}/sources.list",
        f"Dir::Etc::sourceparts={folder}/no-parts",
        f"Dir::Etc::preferencesparts={folder}/no-parts",
        "Acquire::Languages=none",
        "Acquire::http::Timeout=20",
        "APT::Sandbox::User=root",  # its own user may not write here
    )
    apt = ["apt-get", *(f"-o{setting}" for setting in settings)]
    # 3. Its package, unpacked and not installed.
    run(*apt, "update")
    run(*apt, "download", name)
    package = next(folder.glob("*.deb"))
    run("dpkg", "-x", str(package), "unpacked")
    return folder / "unpacked"
