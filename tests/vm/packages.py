"""The package that is tested: built now, or the file named by CRI_RESMGR_DEB_311 (or _39); its upgrade; and what the checks
call with, which no package has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 600
#: As wheels call a guest's architecture.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def package(python: str, folder: Path, architecture: str = "amd64") -> Path:
    """The .deb for guests with this Python ("3.11") and architecture ("arm64"), of the sources as they are, in that folder.

    As ``make deb`` does but packed loosely: unpacking takes longer under emulation than packing here.

    :raises RuntimeError: it cannot be built; with what was said.
    """
    given = os.environ.get(f"CRI_RESMGR_DEB_{python.replace('.', '')}", "") if architecture == "amd64" else ""
    if given:
        return Path(given)
    command = [
        sys.executable,
        "packaging/build.py",
        "deb",
        f"--python={python}",
        f"--architecture={architecture}",
        "--quick",
        f"--dist={folder}",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} made no package: {(done.stdout + done.stderr)[-3000:]}")
    return Path(done.stdout.split()[-1])


def newer(deb: Path, folder: Path) -> Path:
    """The same package with a later version, written into a folder: what an upgrade needs of a second build."""
    made = folder / f"newer-{deb.name}"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tree)], check=True)
        control = tree / "DEBIAN" / "control"
        control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1.upgrade", control.read_text()))
        command = ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", str(tree), str(made)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made


def grpc_client(python: str, architecture: str, cache: Path) -> Path:
    """A folder with grpcio for a guest's Python, from PyPI: what the checks call runtime and daemon with. Kept in ``cache``.

    :raises subprocess.CalledProcessError: there is none to be had; pip has said why.
    """
    folder = cache / f"grpcio-{python}-{architecture}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
        for system in ("manylinux2014", "manylinux_2_17"):
            command.append(f"--platform={system}_{MACHINES[architecture]}")
        subprocess.run([*command, f"--target={made}", "grpcio", "typing-extensions"], check=True)
        made.rename(folder)
    return folder
