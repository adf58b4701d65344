"""Lays out a package's files below a root, from what ``prepare.py`` made. Standard library only: the spec runs it.

stage.py PREPARED PYTHON ARCHITECTURE deb|rpm ROOT
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from architectures import Architecture, check_elf_files, named
from sources import REPOSITORY, files_below

FILES = REPOSITORY / "packaging" / "files"
PRIVATE = "usr/lib/cri-resmgr"
PROGRAMS = ("cri-resmgr", "kubectl-cri_resmgr")
#: What a container runtime launches, below it.
NRI_PLUGIN = "nri/10-cri-resmgr"
DOCS = "usr/share/doc/cri-resmgr"
#: For clients of the affinity service; its place is the one that docs/affinity.md names.
PROTO = "usr/share/cri-resmgr/affinity.proto"
#: The Helm chart; its place is the one that docs/cluster.md names.
CHART = "usr/share/cri-resmgr/chart"
UNITS = (
    "cri-resource-manager.service",
    "cri-resource-manager.socket",
    "cri-resmgr-observer.service",
    "cri-resmgr-agent.service",
    "cri-resmgr-nri@.service",
    "cri-resmgr-nri.service",
    "cri-resmgr-web.service",
)
#: The group that may look (control.view_group).
SYSUSERS = "usr/lib/sysusers.d/cri-resmgr.conf"
#: Where the distributions' shells and licences are.
FISH = "usr/share/fish/vendor_completions.d"
ZSH = {"deb": "usr/share/zsh/vendor-completions", "rpm": "usr/share/zsh/site-functions"}
LICENCES = {"deb": f"{DOCS}/licenses", "rpm": "usr/share/licenses/cri-resmgr"}
#: Python finds by it that it is the private one: its modules are those below, and no other package's.
_PYVENV = "home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"


@dataclass(frozen=True)
class Target:
    """What a package is built for; ``python`` as ``3.11``, ``is_quick``: packed loosely."""

    python: str
    architecture: Architecture
    version: str
    release: str
    is_quick: bool = False


def compiled_site(prepared: Path, architecture: Architecture) -> Path:
    """Where the modules are that are compiled for one architecture; those of all are in ``site``."""
    return prepared / f"site-{architecture.name}"


def stage(prepared: Path, python: str, architecture: Architecture, kind: str, root: Path) -> None:
    """Every file of the package, with its mode, below ``root``.

    :raises SystemExit: one of them is compiled for another architecture.
    """
    _program(prepared, python, architecture, root)
    check_elf_files(root, architecture)
    _configuration(prepared, root)
    for unit in UNITS:
        _put(root / "usr/lib/systemd/system" / unit, (REPOSITORY / "systemd" / unit).read_bytes())
    _put(root / SYSUSERS, (FILES / "sysusers.conf").read_bytes())
    _put(
        root / "usr/share/man/man8/cri-resmgr.8.gz", _packed((prepared / "man" / "cri-resmgr.8").read_bytes())
    )
    _put(
        root / "usr/share/bash-completion/completions/cri-resmgr", (prepared / "completion/bash").read_bytes()
    )
    _put(root / ZSH[kind] / "_cri-resmgr", (prepared / "completion/zsh").read_bytes())
    _put(root / FISH / "cri-resmgr.fish", (prepared / "completion/fish").read_bytes())
    _put(root / PROTO, (REPOSITORY / "cri_api/affinity.proto").read_bytes())
    shutil.copytree(prepared / "chart", root / CHART)
    _documents(prepared, kind, root)
    state = root / "var/lib/cri-resmgr"
    state.mkdir(parents=True)
    _modes(root)
    state.chmod(0o700)
    clamp_times(root)


def clamp_times(root: Path) -> None:
    """Every file is as old as the sources: the same input gives the same package."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in [root, *root.rglob("*")] if seconds else []:
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _program(prepared: Path, python: str, architecture: Architecture, root: Path) -> None:
    private = root / PRIVATE
    for site in (prepared / "site", compiled_site(prepared, architecture)):
        shutil.copytree(site, private / "lib" / f"python{python}" / "site-packages", dirs_exist_ok=True)
    _put(private / "pyvenv.cfg", _PYVENV.format(python=python).encode())
    (private / "bin").mkdir()
    (private / "bin" / "python").symlink_to(f"../../../bin/python{python}")
    for path in (private / "maintain", private / NRI_PLUGIN):
        _put(path, (FILES / path.name).read_bytes())
    for name in PROGRAMS:
        _put(root / "usr/bin" / name, (FILES / name).read_bytes())


def _configuration(prepared: Path, root: Path) -> None:
    etc = root / "etc/cri-resmgr"
    _put(etc / "config.yaml", (prepared / "config.yaml").read_bytes())
    _put(etc / "fallback.cfg.sample", (FILES / "fallback.cfg.sample").read_bytes())
    # The shipped file is to be edited; this one stays as a reference.
    _put(root / DOCS / "config.yaml.sample", (prepared / "config.yaml").read_bytes())


def _documents(prepared: Path, kind: str, root: Path) -> None:
    # As in the sources, so that the pages' links and the doctor's hints lead somewhere. A node has no use for pictures.
    for page in files_below("README.md", "docs"):
        if page.suffix == ".md":
            _put(root / DOCS / page, (REPOSITORY / page).read_bytes())
    for path in files_below("packaging/monitoring"):
        _put(root / DOCS / path.relative_to("packaging"), (REPOSITORY / path).read_bytes())
    licences = root / LICENCES[kind]
    shutil.copytree(prepared / "licences", licences)
    _put(licences / "LICENSE", (REPOSITORY / "LICENSE").read_bytes())
    if kind == "rpm":
        _put(root / DOCS / "CHANGELOG.md", (REPOSITORY / "CHANGELOG.md").read_bytes())


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _modes(root: Path) -> None:
    """The same everywhere, whatever the builder's umask."""
    private = root / PRIVATE
    programs = {*(root / "usr/bin" / name for name in PROGRAMS), private / "maintain", private / NRI_PLUGIN}
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if path in programs else 0o644)


if __name__ == "__main__":
    words = ("stage.py", "PREPARED", "PYTHON", "ARCHITECTURE", "KIND", "ROOT")
    if len(sys.argv) != len(words) or sys.argv[4] not in ZSH:
        sys.exit("usage: stage.py PREPARED PYTHON ARCHITECTURE deb|rpm ROOT")
    stage(Path(sys.argv[1]), sys.argv[2], named(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
