"""The rpm: the sources and what ``prepare.py`` made go into one tar, from which the spec builds without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Optional

from stage import REPOSITORY, Target

SPEC = REPOSITORY / "packaging" / "rpm" / "cri-resmgr.spec"
#: What ``stage.py`` reads.
SOURCES = ("packaging", "systemd", "docs", "README.md", "CHANGELOG.md", "LICENSE")


def build(work: Path, target: Target, dist: Path) -> Path:
    """The package's file in ``dist``, and beside it the one to rebuild it from; ``work`` has what was prepared.

    :raises SystemExit: rpmbuild failed; what it said is printed.
    """
    top = work / "rpm"
    (top / "SOURCES").mkdir(parents=True)
    folder = f"cri-resmgr-{target.version}"
    _source_tar(work / "prepared", folder, top / "SOURCES" / f"{folder}.tar.gz")
    defined = {
        "_topdir": str(top),
        "python": target.python,
        "package_version": target.version,
        "package_release": target.release,
        "packing": "w1.gzdio" if target.is_quick else "w6.xzdio",
    }
    defines = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    # Debian has what BuildRequires names, but no database of rpms that would say so.
    command = ["rpmbuild", "-ba", "--nodeps", "--target", "x86_64", *defines, str(SPEC)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"packaging: rpmbuild failed\n{done.stdout}{done.stderr}")
    (package,) = top.glob("RPMS/x86_64/*.rpm")
    for built in (package, *top.glob("SRPMS/*.rpm")):
        shutil.copyfile(built, dist / built.name)
    return dist / package.name


def _source_tar(prepared: Path, folder: str, target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        for name in SOURCES:
            tar.add(REPOSITORY / name, f"{folder}/{name}", filter=_plain)
        tar.add(prepared, f"{folder}/prepared", filter=_plain)


def _plain(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    """No trace of who built it, and when."""
    if "__pycache__" in member.name:
        return None
    member.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
