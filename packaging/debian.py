"""The deb: laid out by ``stage.py``, packed by dpkg-deb. No debhelper: it builds wherever dpkg-deb is."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

from sources import REPOSITORY
from stage import DOCS, Target, clamp_times, stage
from told import say

SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
SOURCES = REPOSITORY / "packaging" / "deb"
#: Of Debian 12, Ubuntu 24.04 and Debian 13: a deb is built for each.
PYTHONS = ("3.11", "3.12", "3.13")


def build(work: Path, target: Target, dist: Path) -> Path:
    """The package's file in ``dist``; ``work`` has what was prepared."""
    version = f"{target.version}-{target.release}+py{target.python}"
    root = work / "root"
    stage(work / "prepared", target.python, target.architecture, "deb", root)
    _documents(root, version)
    _control(root, version, target)
    clamp_times(root)
    package = dist / f"cri-resmgr_{version}_{target.architecture.debian}.deb"
    say(f"packing {package.name}: some 10 s")
    packing = ["-Zgzip", "-z1"] if target.is_quick else ["-Zxz"]
    command = ["dpkg-deb", "--root-owner-group", *packing, "--build", str(root), str(package)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return package


def _documents(root: Path, version: str) -> None:
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    head = f"cri-resmgr ({version}) unstable; urgency=medium\n\n"
    tail = f"\n -- cri-resmgr maintainers <root@localhost>  {date}\n"
    changelog = head + "".join(_changes()) + tail
    target = root / DOCS / "changelog.Debian.gz"
    target.write_bytes(gzip.compress(changelog.encode(), 9, mtime=0))
    shutil.copyfile(SOURCES / "copyright", root / DOCS / "copyright")
    overrides = root / "usr/share/lintian/overrides/cri-resmgr"
    overrides.parent.mkdir(parents=True)
    shutil.copyfile(SOURCES / "lintian-overrides", overrides)
    for path in (target, root / DOCS / "copyright", overrides):
        path.chmod(0o644)


def _changes() -> Iterator[str]:
    """The points of CHANGELOG.md, as Debian writes them."""
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    for point in re.findall(r"^- (.*\n(?:  .*\n)*)", text, re.MULTILINE):
        words = " ".join(point.split())
        yield textwrap.fill(words, 76, initial_indent="  * ", subsequent_indent="    ") + "\n"


def _control(root: Path, version: str, target: Target) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    kib = sum((path.stat().st_size + 1023) // 1024 for path in files)
    control = root / "DEBIAN"
    control.mkdir()
    control.chmod(0o755)
    text = (SOURCES / "control").read_text()
    texts = {
        "control": text.format(
            version=version,
            architecture=target.architecture.debian,
            python=target.python,
            installed_kib=kib,
        ),
        "conffiles": "".join(f"/{p.relative_to(root)}\n" for p in files if p.is_relative_to(root / "etc")),
        "md5sums": "".join(
            f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
            for path in files
            if not path.is_relative_to(root / "etc")
        ),
    }
    for name, content in texts.items():
        (control / name).write_text(content)
        (control / name).chmod(0o644)
    for name in SCRIPTS:
        shutil.copyfile(SOURCES / name, control / name)
        (control / name).chmod(0o755)
