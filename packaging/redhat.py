"""The rpm: the sources and what ``prepare.py`` made go into one tar, from which the spec builds without a network."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from pathlib import Path

from architectures import X86_64, Architecture
from sources import REPOSITORY, files_below
from stage import Target, clamp_times
from told import run, say

SPEC = REPOSITORY / "packaging" / "rpm" / "cri-resmgr.spec"
#: What ``stage.py`` reads.
SOURCES = ("packaging", "systemd", "docs", "cri_api/affinity.proto", "README.md", "CHANGELOG.md", "LICENSE")


def build(work: Path, target: Target, dist: Path) -> Path:
    """The package's file in ``dist``, and beside it the one to rebuild it from; ``work`` has what was prepared.

    :raises SystemExit: rpmbuild failed; the log has what it said.
    """
    top = work / "rpm"
    (top / "SOURCES").mkdir(parents=True)
    folder = f"cri-resmgr-{target.version}"
    _source_tar(work / "prepared", folder, top / "SOURCES" / f"{folder}.tar.gz")
    spec = top / "SPECS" / SPEC.name
    spec.parent.mkdir()
    shutil.copyfile(SPEC, spec)
    # Both are in the package it can be rebuilt from, with their modes and times.
    for path in (spec, *(top / "SOURCES").iterdir()):
        path.chmod(0o644)
    clamp_times(top)
    # The package to rebuild from keeps the spec with its macros expanded, paths too, and a number of it is in the
    # other one where both are built at once. It has the modules of every architecture, so one is enough for all:
    # rpm writes the architecture it was made on into it, which is the same one wherever it is made.
    say("packing the rpm and the one to rebuild it from: some 30 s")
    _rpmbuild("-bb", top, str(top), target, target.architecture)
    _rpmbuild("-bs", top, ".", target, X86_64)
    (package,) = top.glob(f"RPMS/{target.architecture.name}/*.rpm")
    for built in (package, *top.glob("SRPMS/*.rpm")):
        shutil.copyfile(built, dist / built.name)
    return dist / package.name


def _rpmbuild(what: str, folder: Path, top: str, target: Target, architecture: Architecture) -> None:
    defined = {
        "_topdir": top,
        "python": target.python,
        "package_version": target.version,
        "package_release": target.release,
        "packing": "w1.gzdio" if target.is_quick else "w6.xzdio",
    }
    defines = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    # Debian has what BuildRequires names, but no database of rpms that would say so.
    command = ["rpmbuild", what, "--nodeps", "--target", architecture.name, *defines, f"SPECS/{SPEC.name}"]
    run(command, f"rpmbuild-{target.architecture.name}", "rpmbuild failed", folder)


def _source_tar(prepared: Path, folder: str, target: Path) -> None:
    with gzip.GzipFile(target, "wb", 1, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in files_below(*SOURCES):
            tar.add(REPOSITORY / name, f"{folder}/{name}", filter=_plain)
        tar.add(prepared, f"{folder}/prepared", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """No trace of where it was built, when, and with which umask."""
    member.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
