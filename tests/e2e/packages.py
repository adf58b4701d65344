"""Programs of another Debian release, unpacked in a folder: nothing is installed."""

from __future__ import annotations

import fcntl
import re
import subprocess
import tempfile
from pathlib import Path


def prometheus(cache: Path) -> Path:
    """The folder with Debian 12's prometheus and promtool, unpacked there once: installed, they would run as a service.

    :raises OSError, subprocess.SubprocessError: it cannot be had.
    """
    return _unpacked("prometheus", "bookworm", cache / "prometheus") / "usr" / "bin"


def _unpacked(name: str, suite: str, package: Path) -> Path:
    """The folder ``package``, with the files of another release's package in it; OSError or SubprocessError."""
    cache = package.parent
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{package.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed; another test run may be at it
        if not package.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _fetch_package(name, suite, Path(folder)).rename(package)
    return package


def _fetch_package(name: str, suite: str, folder: Path) -> Path:
    """Download and unpack a package of another release; OSError or SubprocessError if that fails."""
    apt = Apt(suite, folder)
    apt.get("download", name)
    return unpack(next(folder.glob("*.deb")), folder / "unpacked")


class Apt:
    """An apt that knows one Debian release only, and of no installed packages; all it has is in a folder.

    :raises OSError, subprocess.SubprocessError: it cannot be had: the mirror is where this system's apt looks.
    """

    def __init__(self, suite: str, folder: Path) -> None:
        self._folder = folder
        uris = run(folder, "apt-get", "--print-uris", "update")
        mirror = re.search(r"'(\S+)/dists/bookworm/main/binary-", uris)
        if mirror is None:
            raise OSError("apt knows no mirror of Debian 12")
        for needed in ("lists/partial", "cache/archives/partial", "no-parts"):
            (folder / needed).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(f"deb {mirror[1]} {suite} main\n")
        self.get("update")

    def get(self, *words: str) -> None:
        """apt-get with these words; what it downloads is in the folder afterwards, its signature checked."""
        folder = self._folder
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
            "Acquire::Retries=3",
            "APT::Sandbox::User=root",  # its own user may not write here
        )
        run(folder, "apt-get", *(f"-o{setting}" for setting in settings), *words)


def unpack(package: Path, folder: Path) -> Path:
    """The folder, with a package's files in it; nothing is installed."""
    run(package.parent, "dpkg", "-x", str(package), str(folder))
    return folder


def run(folder: Path, *command: str) -> str:
    """What a command in a folder prints; subprocess.SubprocessError if it fails."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300).stdout
