"""Every package has the same files of ours: those that git has. Deb, rpm and wheel; the image: tests/e2e/test_image.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.expected import OUR_PACKAGES, in_git, ours
from tests.packaging.kinds import Kind, ask
from tests.packaging.roots import REPOSITORY

FOLDER = REPOSITORY / "packaging"
sys.path.insert(0, str(FOLDER))
try:
    import sources
finally:
    sys.path.remove(str(FOLDER))

#: What leaves traces in a developer's folders, and what a wrong rule would take along.
STRAY = (
    "cri_proxy/view/web/static/.app.js.swp",
    "cri_proxy/view/web/static/app.js~",
    "cri_proxy/view/web/static/app.js.orig",
    "cri_proxy/__pycache__/version.cpython-311.pyc",
    "bpf/kernel/stub/include/linux/__pycache__/x.pyc",
    "cri_api/affinity_pb2.py",
    "cri_api/affinity_pb2.pyi",
    "cluster/api/allowed_options.py",
    "policies/node.cpython-311-x86_64-linux-gnu.so",
)
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


@pytest.fixture
def unpacked_sources(tmp_path: Path) -> Path:
    """As a release's tar has them: without git; and what lies in a folder that was worked in."""
    folder = tmp_path / "cri-resmgr-0.1.0"
    for name in in_git():
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)
    for name in STRAY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("stray\n")
    return folder


def test_the_rule_for_sources_without_git_gives_what_git_has(unpacked_sources: Path) -> None:
    names = (*OUR_PACKAGES, "docs", "packaging", "README.md")
    found = sources.files_below(*names, repository=unpacked_sources)
    assert {str(path) for path in found} == in_git(*names)
    assert found == sources.files_below(*names)


def test_sources_in_a_folder_of_another_repository_are_not_asked_of_that_one(unpacked_sources: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(unpacked_sources.parent)], check=True)
    found = sources.files_below("cri_proxy", repository=unpacked_sources)
    assert {str(path) for path in found} == in_git("cri_proxy")


def test_in_a_checkout_what_git_does_not_have_is_not_taken(tmp_path: Path) -> None:
    for name in ("kept.js", "gone.js", "notes.txt"):
        (tmp_path / "web").mkdir(exist_ok=True)
        (tmp_path / "web" / name).touch()
    for words in (["init", "--quiet"], ["add", "web/kept.js", "web/gone.js"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "web/gone.js").unlink()
    assert sources.files_below("web", repository=tmp_path) == [Path("web/kept.js")]


@pytest.mark.packages
def test_a_package_has_every_file_that_git_has(kind: Kind, package: Callable[..., Path]) -> None:
    built = str(package(kind.name))
    if kind.name == "deb":
        listed = [line.split(maxsplit=5)[5] for line in ask("dpkg-deb", "--contents", built).splitlines()]
    else:
        # Folders are listed like files.
        lines = ask("rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", built).splitlines()
        listed = [name for perms, name in (line.split(maxsplit=1) for line in lines) if perms[0] != "d"]
    private = (name.partition("/site-packages/")[2] for name in listed if not name.endswith("/"))
    assert ours(private) == in_git(*OUR_PACKAGES)


def test_the_wheel_has_every_file_that_git_has_also_by_way_of_the_source_package(
    unpacked_sources: Path, tmp_path: Path
) -> None:
    def build(what: str, source: Path) -> Path:
        target = tmp_path / what
        command = [sys.executable, "-c", BUILD, what, str(target)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (built,) = target.iterdir()
        return built

    # As `python -m build` does it.
    with tarfile.open(build("build_sdist", unpacked_sources)) as tar:
        tar.extractall(tmp_path / "sdist")
    (source,) = (tmp_path / "sdist").iterdir()
    with zipfile.ZipFile(build("build_wheel", source)) as wheel:
        assert ours(wheel.namelist()) == in_git(*OUR_PACKAGES)
        assert {name for name in wheel.namelist() if name.endswith("_pb2.py")}
        assert "cluster/api/allowed_options.py" in wheel.namelist()
