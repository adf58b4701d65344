"""The private dependencies of a package: pinned wheels for one Python, fetched, unpacked and stripped.

    vendor.py lock 3.11              writes requirements-3.11.txt: exact versions and hashes of what setup.cfg asks for
    vendor.py fetch 3.11 aarch64 DIR fetches exactly that architecture's wheels

Wheels are those of PyPI for manylinux2014 (glibc 2.17 and later), so any build machine makes any target's package.
A line of the lock file has the hash of each architecture's wheel, in the order of ``ARCHITECTURES``; or the one of a
wheel that they all share.
"""

from __future__ import annotations

import configparser
import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from architectures import ARCHITECTURES, Architecture, named
from told import run, say

HERE = Path(__file__).resolve().parent
#: What is never imported: tests, sources of what is compiled, type stubs. A folder's or a file's name, or its ending.
LEFT_OUT_FOLDERS = frozenset(["tests", "__pycache__"])
LEFT_OUT_ENDINGS = (".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h", ".pth")
LEFT_OUT_FILES = ("multidict/_testcapi.", "uvloop/_testbase.py")
#: All that stays of NAME.dist-info: scanners for vulnerable versions read it.
METADATA = "METADATA"
LICENCE_WORDS = ("license", "licence", "copying", "notice", "authors")


def lock_file(python: str) -> Path:
    """Where the pinned versions for one Python (``3.11``) stand."""
    return HERE / f"requirements-{python}.txt"


def requirements(python: str, setup_cfg: Path = HERE.parent / "setup.cfg") -> list[str]:
    """What the project asks for on one Python (``3.11``). Of markers, which pip takes for its own Python's, only
    ``python_version < "3.N"`` may be there.
    """
    parser = configparser.ConfigParser()
    parser.read(setup_cfg)
    lines = parser["options"]["install_requires"].splitlines()
    found = []
    for line in lines:
        name, _, marker = line.partition("#")[0].partition(";")
        if name.strip() and (not marker or _minor(python) < _minor(marker.partition("<")[2].strip(' "'))):
            found.append(name.strip())
    return found


def _minor(python: str) -> int:
    return int(python.partition(".")[2])


def fetch(python: str, architecture: Architecture, folder: Path) -> list[Path]:
    """The wheels of the lock file, in ``folder``; nothing is asked of the network if they are there.

    :raises SystemExit: there is no lock file for this Python, or pip cannot get just these wheels.
    """
    lock = lock_file(python)
    if not lock.exists():
        known = ", ".join(
            sorted(found.stem.rpartition("-")[2] for found in HERE.glob("requirements-3.*.txt"))
        )
        sys.exit(f"packaging: PYTHON={python}: there is no {lock.name}; there are those for {known}")
    wanted = locked_digests(lock.read_text(), architecture)
    if _digests(folder) != wanted:
        say(
            f"fetching the wheels of Python {python} on {architecture.name}, some 15 MB; kept for the next build"
        )
        shutil.rmtree(folder, ignore_errors=True)
        arguments = ["--require-hashes", "--no-deps", "--requirement", str(lock)]
        _download(python, architecture, folder, arguments)
        if _digests(folder) != wanted:
            sys.exit(f"packaging: {folder}: not the wheels that {lock.name} has for {architecture.name}")
    return sorted(folder.glob("*.whl"))


def locked_digests(lock: str, architecture: Architecture) -> set[str]:
    """SHA-256 (hex) of the wheels that a lock file has for this architecture."""
    place = ARCHITECTURES.index(architecture)
    lines = (re.findall("sha256:([0-9a-f]{64})", line) for line in lock.splitlines())
    return {digests[place if len(digests) > 1 else 0] for digests in lines if digests}


def is_shared(wheel: Path) -> bool:
    """Nothing in it is compiled: it is the same for all architectures."""
    return wheel.name.endswith("-any.whl")


def _digests(folder: Path) -> set[str]:
    return {_digest(wheel) for wheel in folder.glob("*.whl")}


def _digest(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def lock(python: str) -> None:
    """Write the lock file anew: the newest versions that setup.cfg allows, the same for all architectures."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels: list[list[Path]] = []
        for architecture in ARCHITECTURES:
            # The first one's versions decide.
            pins = ["==".join(_name_and_version(wheel)) for wheel in wheels[0]] if wheels else []
            folder = Path(scratch) / architecture.name
            _download(python, architecture, folder, ["--no-deps", *pins] if pins else requirements(python))
            wheels.append(sorted(folder.glob("*.whl"), key=lambda found: found.name.lower()))
        lock_file(python).write_text(lock_text(python, wheels))


def lock_text(python: str, wheels: Sequence[Sequence[Path]]) -> str:
    """The lock file; ``wheels``: those of each architecture, the same names in the same order."""
    lines = [f"# Python {python}; written by: packaging/vendor.py lock {python}"]
    for same in zip(*wheels):
        name, version = _name_and_version(same[0])
        # One of each, in order: dictionaries keep it.
        hashes = dict.fromkeys(f"--hash=sha256:{_digest(wheel)}" for wheel in same)
        lines.append(f"{name.lower().replace('_', '-')}=={version} {' '.join(hashes)}")
    return "\n".join(lines) + "\n"


def _name_and_version(wheel: Path) -> tuple[str, str]:
    name, version = wheel.name.split("-")[:2]
    return name, version


def _download(python: str, architecture: Architecture, folder: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--progress-bar=off", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    # Two names of the same glibc; pip takes neither for the other.
    for system in ("manylinux2014", "manylinux_2_17"):
        command += ["--platform", f"{system}_{architecture.name}"]
    command += ["--dest", str(folder), *arguments]
    place = f"{python} on {architecture.name}"
    run(command, f"pip-{folder.name}", f"the wheels for Python {place} cannot be fetched")


def unpack(wheel: Path, site: Path, licences: Path) -> None:
    """A wheel's modules into ``site``, without what is never imported; its licence files into ``licences/NAME``."""
    name, version = _name_and_version(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda found: found.filename):
            target = _target(entry.filename, site, licences / f"{name}-{version}")
            if target is None or entry.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            data = archive.read(entry)
            # No module is run as a program; the line stays, so that line numbers do.
            is_script = target.suffix == ".py" and data.startswith(b"#!")
            target.write_bytes(data[data.index(b"\n") :] if is_script else data)
            target.chmod(0o644)


def _target(name: str, site: Path, licences: Path) -> Optional[Path]:
    parts = Path(name).parts
    if parts[0].endswith(".dist-info"):
        if any(word in parts[-1].lower() for word in LICENCE_WORDS):
            return licences / parts[-1]
        return site / name if parts[1:] == (METADATA,) else None
    if (
        LEFT_OUT_FOLDERS & set(parts[:-1])
        or name.endswith(LEFT_OUT_ENDINGS)
        or name.startswith(LEFT_OUT_FILES)
    ):
        return None
    return site / name


if __name__ == "__main__":
    if sys.argv[1:2] == ["lock"] and len(sys.argv) == len(("vendor.py", "lock", "3.11")):
        lock(sys.argv[2])
    elif sys.argv[1:2] == ["fetch"] and len(sys.argv) == len(
        ("vendor.py", "fetch", "3.11", "aarch64", "DIR")
    ):
        fetch(sys.argv[2], named(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit("usage: vendor.py lock PYTHON | fetch PYTHON ARCHITECTURE DIR")
