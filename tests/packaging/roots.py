"""Debian systems in a folder, each made once; each test has a layer of its own above it.

A command in one runs in namespaces of its own: its mounts and whatever it starts end with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Optional

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CACHE = REPOSITORY / ".cache" / "roots"
MIRROR = "http://deb.debian.org/debian"
#: What each has besides the base system; no systemd: the scripts must do without.
PACKAGES = {"bookworm": "python3,rpm,libstdc++6", "bullseye": "python3,libstdc++6"}
#: Of those that nodes have.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
#: What a node has (tests/packaging/node.py): systemd, what the packages recommend, and what the documents type.
NODE_PACKAGES = "python3,libstdc++6,python3-bpfcc,systemd,rpm,dnf,tmux,man-db,bash-completion"
TOOLS = ("debootstrap", "mmdebstrap", "dpkg-deb", "rpmbuild", "rpm", "unshare")
MOUNTS = 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"'
#: What the scripts ask of systemd is written down, and answered with yes.
FAKE_SYSTEMCTL = """#!/bin/sh
echo "$*" >> /tmp/systemctl.log
"""


def missing() -> str:
    """Why no root can be made here, in a sentence; "" if one can."""
    if os.geteuid() != 0:
        return "not root: packages are not built and installed"
    absent = [tool for tool in TOOLS if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return f"no {', '.join(absent)}: packages are not built and installed" if absent else ""


def base_root(suite: str, architecture: str = "amd64", packages: str = "") -> Optional[Path]:
    """The cached root of a suite; made if it is not there. ``None``: the mirror does not give it.

    ``architecture``: as Debian calls it; the kernel must start its programs (tools/emulate).
    ``packages``: others than the suite's ``PACKAGES``.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    include = packages or PACKAGES[suite]
    name = suite if architecture == "amd64" else f"{suite}-{architecture}"
    # Worktrees of other commits, which want other packages, share the cache.
    name += f"-{hashlib.sha256(include.encode()).hexdigest()[:12]}"
    root = CACHE / name
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            scratch = CACHE / f"{name}.new"
            shutil.rmtree(scratch, ignore_errors=True)
            # With apt, which downloads many packages at once, where there are many.
            maker = (
                ["mmdebstrap", "--quiet", "--mode=root", "--format=directory"]
                if packages
                else ["debootstrap"]
            )
            options = ["--variant=minbase", f"--include={include}", f"--arch={architecture}"]
            command = [*maker, *options, suite, str(scratch), MIRROR]
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                shutil.rmtree(scratch, ignore_errors=True)
                return None
            scratch.rename(root)
    return root


#: Of every program that runs in a root: what this machine's tests are told by theirs means nothing there.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


class Root:
    """A root of one's own: what is written goes to a layer above the cached one, which ``close`` takes away."""

    def __init__(self, suite: str, folder: Path, packages: str = "") -> None:
        base = base_root(suite, packages=packages)
        if base is None:
            raise LookupError(
                f"{suite} cannot be made from Debian's mirror: packages are not installed there"
            )
        self.path = folder / "root"
        for name in ("root", "upper", "work"):
            (folder / name).mkdir()
        layers = f"lowerdir={base},upperdir={folder}/upper,workdir={folder}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(self.path)], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def command(self, *words: str) -> list[str]:
        """What runs ``words`` in it: they see their own processes only, and the machine's /sys."""
        return [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            MOUNTS,
            str(self.path),
            *words,
        ]

    def run(self, *words: str, fails: bool = False) -> str:
        """What ``words`` print, on both channels."""
        done = subprocess.run(
            self.command(*words),
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{' '.join(words)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def give(self, file: Path) -> str:
        """A file's name inside, after it was copied there."""
        shutil.copyfile(file, self.path / "var/tmp" / file.name)
        return f"/var/tmp/{file.name}"

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def read(self, name: str) -> str:
        return (self.path / name.lstrip("/")).read_text()

    def pretend_systemd(self) -> None:
        """From now on the scripts believe that systemd runs."""
        self.write("/usr/bin/systemctl", FAKE_SYSTEMCTL, 0o755)
        (self.path / "run/systemd/system").mkdir(parents=True)

    def asked_of_systemd(self) -> list[str]:
        """What was asked since this was called last."""
        log = self.path / "tmp/systemctl.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def files(self) -> set[str]:
        """Every file there is, without the packagers' own records and caches."""
        own = ("var/lib/dpkg/", "var/lib/rpm/", "var/log/", "var/tmp/", "var/cache/", "tmp/", "root/.rpmdb/")
        found = set()
        for folder, folders, names in os.walk(self.path):
            inside = os.path.relpath(folder, self.path)
            found |= {os.path.normpath(os.path.join(inside, name)) for name in [*folders, *names]}
        # The system's own Python keeps its bytecode, too.
        found = {name for name in found if "__pycache__" not in name or "cri-resmgr" in name}
        return {name for name in found if not name.startswith(own)}
