"""kubelet and its server's programs, 1.20.2, built from Debian 11's source package with its Go 1.15; no package has them.

Nothing is installed, and the machine's apt stays as it is. What is built is kept in a folder named by the hash of
the source and of this file; the source itself is deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.packages import Apt, run, unpack

CACHE = Path(__file__).parents[3] / ".cache" / "kubernetes"
SUITE = "bullseye"
VERSION = "v1.20.2"
#: Of kubernetes_1.20.5+really1.20.2.orig.tar.gz: the release as it was published, its dependencies in it.
SOURCE_SHA256 = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc"
COMPILER = ("golang-1.15-go", "golang-1.15-src")
#: What make needs besides, for the source that is not in the archive; only kubelet has none of it.
NEEDED = ("make", "rsync", "jq")
KUBELET = "kubelet"
#: In GOPATH mode a vendored package's name begins with that of the program's.
_VERSION_VARIABLE = "k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion"
BUILD_TIMEOUT_S = 1800  # against 130 s for kubelet alone, 330 s for everything, on two idle CPUs


def kubelet(cache: Path = CACHE) -> Path:
    """The program kubelet; as :func:`programs`."""
    return programs(KUBELET, cache=cache)[0]


def programs(*names: str, cache: Path = CACHE) -> tuple[Path, ...]:
    """The programs of these names, in this order, those built that are not in the cache.

    Another process that builds is waited for. Several take much less time at once than one after the other.

    :raises RuntimeError: source or compiler cannot be had, or it does not build; with what was said.
    """
    made_from = SOURCE_SHA256.encode() + Path(__file__).read_bytes()
    folder = cache / hashlib.sha256(made_from).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [name for name in names if not (folder / name).exists()]
        if wanted:
            for left in cache.glob("*/"):
                if left != folder:
                    shutil.rmtree(left)  # another version's, or of a build that was ended
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                try:
                    built = _build(Path(scratch), wanted)
                except (OSError, subprocess.SubprocessError) as error:
                    said = getattr(error, "stderr", None) or error
                    raise RuntimeError(f"{', '.join(wanted)} {VERSION} cannot be built: {said}") from error
                folder.mkdir(exist_ok=True)
                for name in wanted:
                    (built / name).rename(folder / name)
    return tuple(folder / name for name in names)


def version_of(program: Path) -> tuple[int, int]:
    """(1, 20), of any kubelet or kube-apiserver."""
    said = run(program.parent, str(program), "--version")
    found = re.search(r" v(\d+)\.(\d+)", said)
    if found is None:
        raise RuntimeError(f"{program} does not tell its version: {said}")
    return int(found[1]), int(found[2])


def _build(scratch: Path, names: list[str]) -> Path:
    """The folder with these programs, after minutes."""
    # 1. The signed index vouches for the archive; Debian's own patches are for its packaging.
    apt = Apt(SUITE, scratch)
    apt.get("source", "--download-only", "--tar-only", "kubernetes")
    apt.get("download", *COMPILER)
    archive = next(scratch.glob("kubernetes_*.orig.tar.*"))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SOURCE_SHA256:
        raise OSError(f"{archive.name} is another than it was: its SHA-256 is {found}")
    # 2. Unpacked, where Go looks for it in the manner of that time.
    tree = scratch / "path" / "src" / "k8s.io" / "kubernetes"
    tree.mkdir(parents=True)
    run(scratch, "tar", "-xf", str(archive), "--strip-components=1", "-C", str(tree))
    for package in scratch.glob("golang-*.deb"):
        unpack(package, scratch / "compiler")
    # 3. The build, with nothing of this machine's own Go.
    root = scratch / "compiler" / "usr" / "lib" / "go-1.15"
    environment = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(("GO", "MAKE", "MFLAGS"))
        },
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "GOROOT": str(root),
        "GOPATH": str(scratch / "path"),
        "GOCACHE": str(scratch / "objects"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
    }

    def command(*words: str) -> None:
        subprocess.run(
            words,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=BUILD_TIMEOUT_S,
        )

    if names != [KUBELET]:
        missing = [program for program in NEEDED if shutil.which(program) is None]
        if missing:
            raise OSError(f"not installed: {', '.join(missing)}")
        command("make", "generated_files")
    flags = f"-s -w -X {_VERSION_VARIABLE}={VERSION}"
    (scratch / "built").mkdir()
    folders = (f"./cmd/{name}" for name in names)
    command("go", "build", f"-ldflags={flags}", "-o", f"{scratch}/built/", *folders)
    return scratch / "built"
