"""What a virtual machine boots from: a Debian with systemd, containerd and Python, its kernel, and an initramfs.

Made of packages of the Debian mirror that this machine's apt uses, and kept in a folder named by a hash of what it
is made from. Needs root and the programs of ``NEEDED``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.vm.kernel import INIT, unpack_kernel
from tests.vm.rootfs import prepare_root

#: Programs by the Debian package that has them.
NEEDED = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "qemu-system-x86_64": "qemu-system-x86",
}
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "kmod", "iproute2", "procps", "util-linux"),
    *("containerd", "runc", "containernetworking-plugins", "python3"),
)
KERNEL = "linux-image-amd64"
IMAGE_MIB = 1500
BUILD_TIMEOUT_S = 900
_SOURCES = (
    Path(__file__),
    Path(__file__).with_name("kernel.py"),
    Path(__file__).with_name("rootfs.py"),
    INIT,
)
#: The kernel of the same suite, downloaded beside the tree and not installed: its scripts take longer than the rest.
_FETCH_KERNEL = """\
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
package=$(apt-cache depends {kernel} | sed -n 's/.*Depends: \\(linux-image-[0-9][^ ]*\\)/\\1/p' | head -n 1)
cd "{folder}" && apt-get -oAPT::Sandbox::User=root download "$package"
"""


@dataclass(frozen=True)
class System:
    """A Debian release; ``more`` packages besides those that every guest has."""

    suite: str
    more: tuple[str, ...] = ()


#: Kernel 6.1, Python 3.11, containerd 1.6 (CRI v1), bcc 0.26; crun beside runc.
BOOKWORM = System("bookworm", ("python3-bpfcc", "crun"))
#: Kernel 5.10, Python 3.9, containerd 1.4 (CRI v1alpha2 only), bcc 0.18: as old as openEuler 22.03.
BULLSEYE = System("bullseye", ("python3-bpfcc",))


@dataclass(frozen=True)
class Image:
    """The files of one."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"


def missing() -> str:
    """What this machine lacks to build and boot one, as a sentence for a skip; "" if nothing."""
    if os.geteuid() != 0:
        return "The image of a virtual machine is built as root."
    lacking = sorted(package for program, package in NEEDED.items() if shutil.which(program) is None)
    return f"Not installed for virtual machines: {', '.join(lacking)}." if lacking else ""


def image(system: System, cache: Path) -> Image:
    """The image, made if it is not there; another process that makes it is waited for.

    :raises RuntimeError: a program failed, e.g. as the mirror could not be reached.
    """
    folder = cache / f"{system.suite}-{_fingerprint(system)}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{system.suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in cache.glob(f"{system.suite}-*"):
                shutil.rmtree(old)
            unfinished = cache / f"{system.suite}-unfinished"
            unfinished.mkdir()
            _build(system, unfinished)
            unfinished.rename(folder)
    return Image(folder)


def _fingerprint(system: System) -> str:
    """Of all that an image is made from, but for the packages' versions: the mirror's newest are as good."""
    digest = hashlib.sha256(repr((system, PACKAGES, KERNEL, IMAGE_MIB)).encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _build(system: System, folder: Path) -> None:
    # 1. The packages in a folder, and the kernel's beside it.
    tree = folder / "tree"
    fetch = _FETCH_KERNEL.format(kernel=KERNEL, folder=folder)
    command = [
        *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES + system.more)}"),
        '--aptopt=APT::Install-Recommends "false"',
        # An old release is signed no more.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
        f"--customize-hook={fetch}",
        *(system.suite, str(tree), _mirror()),
    ]
    _run(*command)
    # 2. Settings of the guest, and the disk.
    prepare_root(tree)
    _run(
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-O",
        "^has_journal",
        "-d",
        str(tree),
        str(folder / "disk"),
        f"{IMAGE_MIB}M",
    )
    # 3. The kernel.
    package = next(folder.glob("linux-image-*.deb"))
    unpack_kernel(package, folder)
    package.unlink()
    shutil.rmtree(tree)


def _mirror() -> str:
    """Where this system's apt finds Debian; the official mirror where this is another system."""
    uris = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"'(\S+/debian)/dists/[a-z]+/", uris)
    return found[1] if found else "http://deb.debian.org/debian"


def _run(*command: str) -> None:
    """Its output is shown only if it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}): {done.stderr[-3000:]}")
