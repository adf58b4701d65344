"""Packages that are built once for all tests, and systems to install them on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.kinds import DEB, RPM, Kind
from tests.packaging.roots import REPOSITORY, Root, missing

#: Of the roots; the packages are built for them.
BOOKWORM_PYTHON, BULLSEYE_PYTHON = "3.11", "3.9"
X86_64, AARCH64 = "x86_64", "aarch64"


#: Builders that differ in what leaves traces: the host's name, the umask, the time zone, the temporary folder.
BUILDERS = {
    "one": "umask 022; export TZ=UTC",
    "another": 'umask 077; export TZ=Asia/Shanghai TMPDIR="$0"; hostname elsewhere',
}


def build_command(
    kind: str, python: str, release: str, folder: Path, architecture: str = X86_64
) -> list[str]:
    """What builds a package as `make` does, but packed loosely, in ``folder``."""
    command = [sys.executable, str(REPOSITORY / "packaging" / "build.py"), kind, f"--python={python}"]
    command += [f"--release={release}", f"--architecture={architecture}"]
    return [*command, "--quick", f"--dist={folder}"]


def build(kind: str, python: str, release: str, folder: Path, architecture: str = X86_64) -> Path:
    """The package's file."""
    command = build_command(kind, python, release, folder, architecture)
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.split()[-1])


def started(builder: str, command: list[str], folder: Path) -> subprocess.Popen[str]:
    """A build by one of the ``BUILDERS``, whose temporary folder is ``folder``."""
    folder.mkdir(parents=True)
    shell = ["unshare", "--uts", "sh", "-euc", f'{BUILDERS[builder]}; exec "$@"', str(folder)]
    return subprocess.Popen([*shell, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    if sentence := missing():
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``package("deb", release="2")``: the file; it is built once."""
    built: dict[tuple[str, str, str, str], Path] = {}

    def get(kind: str, python: str = BOOKWORM_PYTHON, release: str = "1", architecture: str = X86_64) -> Path:
        wanted = (kind, python, release, architecture)
        if wanted not in built:
            # A folder of its own: an rpm has one to rebuild from beside it.
            folder = tmp_path_factory.mktemp("dist")
            built[wanted] = build(kind, python, release, folder, architecture)
        return built[wanted]

    return get


@pytest.fixture
def new_root() -> Iterator[Callable[[str], Root]]:
    """``new_root("bookworm")``: a fresh system of its own. Its path is short: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="cri-root-") as folder, contextlib.ExitStack() as stack:

        def make(suite: str) -> Root:
            try:
                root = Root(suite, Path(folder))
            except LookupError as error:
                pytest.skip(str(error))
            stack.callback(root.close)
            return root

        yield make


@pytest.fixture
def root(new_root: Callable[[str], Root]) -> Root:
    return new_root("bookworm")


@pytest.fixture(params=[DEB, RPM], ids=lambda kind: str(kind.name))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of them; a module about one has its own."""
    found: Kind = request.param
    return found


@pytest.fixture
def install(root: Root, kind: Kind, package: Callable[..., Path]) -> Callable[..., str]:
    """``install(release="1")``: what the packager printed."""

    def run(release: str = "1") -> str:
        return root.run(*kind.install, root.give(package(kind.name, release=release)))

    return run
