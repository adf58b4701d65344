"""Builds the image as an OCI layout, without docker: ``image.py [--dist dist]``.

Every program, Python, and no shell. Layers: Debian's packages (mmdebstrap extracts them, none of their scripts runs), and
the same tree that the deb has. Beside the layout: an archive of it, and a CycloneDX SBOM.
The same commit and the same Debian packages give the same digests; ``--mirror`` may be a snapshot of Debian's archive.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import build  # noqa: E402
import oci  # noqa: E402
import sbom  # noqa: E402
from architectures import X86_64  # noqa: E402
from prepare import prepare  # noqa: E402
from stage import stage  # noqa: E402
from told import run, say  # noqa: E402

from cri_proxy.version import VERSION  # noqa: E402

NAME = "cri-resmgr"
#: As a container runtime spells a name without a registry.
LIBRARY = "docker.io/library"
MIRROR = "http://deb.debian.org/debian"
SUITE, PYTHON = "bookworm", "3.11"
#: base-files: /etc/os-release, for scanners.
DEBIAN = ("base-files", f"python{PYTHON}", "libstdc++6")
#: Its bytecode is made by the image's own Python, which runs on this one.
ARCHITECTURE = X86_64.debian
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: Of what Debian's packages bring; the first that fits a path decides, and what none fits is left out.
KEEP = (
    ("usr/bin/python3.11", True),
    (f"usr/lib/python{PYTHON}/test/*", False),
    (f"usr/lib/python{PYTHON}/unittest/*", False),
    (f"usr/lib/python{PYTHON}/pydoc_data/*", False),
    (f"usr/lib/python{PYTHON}/lib2to3/*", False),
    (f"usr/lib/python{PYTHON}/lib-dynload/_dbm.*", False),
    (f"usr/lib/python{PYTHON}/lib-dynload/nis.*", False),
    (f"usr/lib/python{PYTHON}/lib-dynload/readline.*", False),
    (f"usr/lib/python{PYTHON}/lib-dynload/_curses*", False),
    (f"usr/lib/python{PYTHON}/lib-dynload/_codecs_*", False),
    (f"usr/lib/python{PYTHON}/*", True),
    # Of packages that come with python3.11, and that nothing of what is kept links with.
    *((f"{_LIBRARIES}/{name}*", False) for name in (
        "gconv/", "libdb-", "libmvec", "krb5/", "libkrb5", "libgssapi", "libk5", "libkeyutils", "libcom_err", "libtirpc",
        "libnsl", "libreadline", "libhistory", "libncurses", "libpanel", "libform", "libmenu", "libtinfo", "libtic",
        "libzstd", "libacl", "libmd.", "libselinux", "libpcre2", "libBrokenLocale", "libc_malloc_debug", "libmemusage",
        "libpcprofile", "libthread_db",
    )),
    (f"{_LIBRARIES}/*", True),
    ("usr/lib64/*", True),
    ("usr/lib/os-release", True),
    ("usr/share/doc/*/copyright", True),
    ("usr/share/common-licenses/*", True),
    ("etc/os-release", True),
    ("etc/debian_version", True),
    ("etc/ssl/openssl.cnf", True),
    ("usr/lib/ssl/*", True),
)  # fmt: skip
FILES = {
    "etc/passwd": "".join(
        f"{name}:x:{number}:{number}::/:/nonexistent\n"
        for name, number in (("root", 0), ("nonroot", 65532), ("nobody", 65534))
    ),
    "etc/group": "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
#: Mount points, so that the root may be read-only.
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "var/lib/cri-resmgr", "etc/cri-resmgr")
CONFIG = {
    "User": "65532:65532",
    "Env": ["PATH=/usr/bin", "LANG=C.UTF-8"],
    "WorkingDir": "/",
    "Cmd": ["/usr/bin/cri-resmgr", "--help"],
    "Labels": {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
    },
}
_QUERY = r"${Package}\t${Version}\t${Architecture}\t${source:Package}\n"


def main(arguments: Sequence[str]) -> int:
    """Build, print the image's name and digest."""
    parser = argparse.ArgumentParser(prog="image.py", description=__doc__)
    parser.add_argument("--architecture", default=ARCHITECTURE)
    parser.add_argument("--mirror", default=MIRROR, help="Debian's archive, or a snapshot of it")
    parser.add_argument("--dist", type=Path, default=build.REPOSITORY / "dist")
    options = parser.parse_args(arguments)
    if options.architecture != ARCHITECTURE:
        sys.exit(
            f"image.py: --architecture={options.architecture}: images are built for {ARCHITECTURE} only; "
            "packages are for others, too (make deb rpm ARCH=aarch64)"
        )
    if os.geteuid() != 0:
        sys.exit("image.py: not root: files of the image are to be root's")
    epoch_s = build.source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="cri-resmgr-image-") as scratch:
        for name, digest in _image(Path(scratch), options.mirror, epoch_s, options.dist).items():
            print(name, digest)
    return 0


def _image(work: Path, mirror: str, epoch_s: int, dist: Path) -> dict[str, str]:
    created = datetime.datetime.fromtimestamp(epoch_s, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    # 1. The layers.
    debian = _debian(work, mirror)
    prepare(PYTHON, [X86_64], work / "prepared")
    _program(work)
    _compile(work)
    say("packing the layers: some 20 s")
    base = oci.pack(work / "debian", f"Debian {SUITE}: {', '.join(DEBIAN)}", epoch_s)
    program = oci.pack(work / "program", f"{NAME} {VERSION}", epoch_s)
    # 2. The image of them.
    image = oci.Image(f"{LIBRARY}/{NAME}:{VERSION}", ARCHITECTURE, CONFIG, (base, program))
    layout = dist / "image"
    shutil.rmtree(layout, ignore_errors=True)
    digests = oci.write_layout(layout, [image], created)
    oci.archive(layout, dist / f"{NAME}-{VERSION}-{ARCHITECTURE}.oci.tar", epoch_s)
    # 3. What is in it.
    python = sbom.python_packages(
        work / "program/usr/lib/cri-resmgr/lib" / f"python{PYTHON}" / "site-packages"
    )
    text = sbom.cyclonedx(NAME, VERSION, created, SUITE, debian, python)
    (dist / f"{NAME}-{VERSION}-{ARCHITECTURE}.cdx.json").write_text(text)
    return digests


def _debian(work: Path, mirror: str) -> list[sbom.DebianPackage]:
    """Debian's part below ``debian``; what it is made of."""
    extracted, listed = work / "extracted", work / "packages.txt"
    hook = (
        'for file in "$1"/var/cache/apt/archives/*.deb; '
        f"do dpkg-deb --show --showformat '{_QUERY}' \"$file\"; done > {listed}"
    )
    command = ["mmdebstrap", "--variant=extract", "--mode=root", f"--architectures={ARCHITECTURE}"]
    command += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--include={','.join(DEBIAN)}"]
    command += ["--format=directory", f"--extract-hook={hook}", SUITE, str(extracted), mirror]
    say(f"extracting {', '.join(DEBIAN)} of Debian {SUITE} (mmdebstrap): some 30 s")
    run(command, "mmdebstrap", "mmdebstrap failed")
    root = work / "debian"
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for path in _kept(extracted):
        _copy(extracted / path, root / path)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var" / "run").symlink_to("../run")
    return sbom.read_packages(listed.read_text())


def _kept(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if next((keep for pattern, keep in KEEP if fnmatch(path, pattern)), False):
                yield path


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        shutil.copyfile(source, target)
        target.chmod(source.stat().st_mode & 0o777)


def _program(work: Path) -> None:
    """The tree of the deb, without what only a host needs."""
    staged, root = work / "staged", work / "program"
    stage(work / "prepared", PYTHON, X86_64, "deb", staged)
    for part in ("usr/bin", "usr/lib/cri-resmgr", "usr/share/doc/cri-resmgr/licenses"):
        shutil.copytree(staged / part, root / part, symlinks=True)
    for host_only in ("maintain", "nri"):
        path = root / "usr/lib/cri-resmgr" / host_only
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _compile(work: Path) -> None:
    """Bytecode, since the root is read-only: by the image's own Python, in one process and one order, undated."""
    whole = work / "whole"
    for layer in ("debian", "program"):
        shutil.copytree(work / layer, whole, symlinks=True, dirs_exist_ok=True)
    libraries = [f"/usr/lib/python{PYTHON}", "/usr/lib/cri-resmgr/lib"]
    command = [
        "/usr/sbin/chroot",
        str(whole),
        f"/usr/bin/python{PYTHON}",
        "-I",
        "-B",
        "-m",
        "compileall",
        "-q",
    ]
    command += ["--invalidation-mode=unchecked-hash", "-x", "/networkx/|/lib2to3/", *libraries]
    environment = {"PATH": "/usr/bin", "PYTHONHASHSEED": "0"}
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    for layer, library in zip(("debian", "program"), libraries):
        for made in (whole / library.lstrip("/")).rglob("*.pyc"):
            _copy(made, work / layer / made.relative_to(whole))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
