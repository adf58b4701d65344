"""Builds packages: ``build.py deb|rpm [--python 3.11] [--architecture aarch64] [--release 1]``; they are put in dist/.

Without ``--python``: debs for the releases of Debian and Ubuntu, an rpm for this machine's Python.

The same commit gives the same package: its date is that of the commit (or SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import debian
import redhat
from architectures import ARCHITECTURES, X86_64, named
from prepare import prepare
from sources import REPOSITORY
from stage import Target
from told import say

from cri_proxy.version import VERSION

SYSTEM_PYTHON = "/usr/bin/python3"


def main(arguments: list[str]) -> int:
    """Build, print the files' names."""
    parser = argparse.ArgumentParser(prog="build.py", description=__doc__)
    parser.add_argument("kind", choices=["deb", "rpm"])
    parser.add_argument("--python", help="Python of the machines it is for")
    parser.add_argument("--architecture", default=X86_64.name, help="that of the machines it is for")
    parser.add_argument("--release", default="1", help="the package's release of this version")
    parser.add_argument("--dist", type=Path, default=REPOSITORY / "dist", help="the folder it is put in")
    parser.add_argument("--quick", action="store_true", help="packed loosely, in a third of the time")
    options = parser.parse_args(arguments)
    pythons = [options.python] if options.python else default_pythons(options.kind, system_python())
    architecture = named(options.architecture)
    os.environ["SOURCE_DATE_EPOCH"] = str(source_date())
    os.umask(0o022)
    options.dist.mkdir(parents=True, exist_ok=True)
    build = debian.build if options.kind == "deb" else redhat.build
    # An rpm comes with the package to rebuild it from, on whichever architecture.
    architectures = [architecture] if options.kind == "deb" else ARCHITECTURES
    for python in pythons:
        say(
            f"{options.kind} for Python {python} on {architecture.name}: half a minute, and what is made once"
        )
        # Side by side with others that build.
        with tempfile.TemporaryDirectory(prefix="cri-resmgr-package-") as work:
            prepare(python, architectures, Path(work) / "prepared")
            target = Target(python, architecture, VERSION, options.release, options.quick)
            print(build(Path(work), target, options.dist.resolve()), flush=True)
    return 0


def default_pythons(kind: str, here: str) -> list[str]:
    """The Pythons (``3.11``) that packages are built for where none is asked for; ``here``: this machine's."""
    wanted = {here, *debian.PYTHONS} if kind == "deb" else {here}
    return sorted(wanted, key=lambda python: int(python.partition(".")[2]))


def system_python() -> str:
    """``3.11``: the version of the distribution's own Python."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [SYSTEM_PYTHON, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def source_date() -> int:
    """Seconds since 1970: SOURCE_DATE_EPOCH, else the date of the commit, else that of the changelog."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return int(asked.stdout)
    return int((REPOSITORY / "CHANGELOG.md").stat().st_mtime)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
