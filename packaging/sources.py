"""Which files of the sources a package takes: those that git has. Standard library only: the spec's stage runs it.

No suffix decides, so that a new kind of file (a page's, a proto) is in every package without a word here. Sources
without git, a release's tar or those of an rpm or a deb, have what git had, and what was made there since; that is
left out by name. A test holds both against each other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Optional

REPOSITORY = Path(__file__).resolve().parent.parent
OUR_PACKAGES = ("policies", "cri_api", "cri_proxy", "bpf", "cluster")
#: What is made in folders of sources: by Python, by protoc, by mypyc, by editors. As in .gitignore.
MADE = (
    "__pycache__",
    "allowed_options.py",
    "*_pb2.py",
    "*_pb2.pyi",
    "*_pb2_grpc.py",
    "*.so",
    ".*.sw?",
    "*~",
    "*.orig",
    "*.rej",
)


def files_below(*names: str, repository: Path = REPOSITORY) -> list[Path]:
    """Every file that git has at or below these names in ``repository``, as paths from there, sorted."""
    tracked = _tracked(names, repository)
    found = _not_made(names, repository) if tracked is None else tracked
    return sorted(path for path in found if (repository / path).is_file())


def _tracked(names: tuple[str, ...], repository: Path) -> Optional[list[Path]]:
    # Where sources lie unpacked in a repository of another project, that one's git knows nothing of them.
    if not (repository / ".git").exists():
        return None
    command = ["git", "-C", str(repository), "ls-files", "-z", "--", *names]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    # It refuses a folder of another user's (safe.directory).
    return [Path(name) for name in asked.stdout.split("\0") if name] if asked.returncode == 0 else None


def _not_made(names: tuple[str, ...], repository: Path) -> Iterator[Path]:
    for name in names:
        for path in (repository / name, *(repository / name).rglob("*")):
            inside = path.relative_to(repository)
            if not any(fnmatch(part, pattern) for part in inside.parts for pattern in MADE):
                yield inside
