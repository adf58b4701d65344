"""In which form what can be compiled is tested: whether this tree has extension modules (``make compiled``)."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "packaging"
sys.path.insert(0, str(FOLDER))
try:
    import compiled
finally:
    sys.path.remove(str(FOLDER))

PYTHON = "{}.{}".format(*sys.version_info)
#: Every module that is compiled, by its name.
MODULES = sorted(
    name[: -len(".py")].replace("/", ".") for names in compiled.modules(REPOSITORY).values() for name in names
)


def has_extension_modules() -> bool:
    """Whether there are any for this Python."""
    suffix = f"__mypyc.cpython-{PYTHON.replace('.', '')}-*.so"
    return any(next(REPOSITORY.glob(compiled.library_of(part) + suffix), None) for part in compiled.PARTS)


def stale() -> str:
    """Why what would be tested are not these sources, in a sentence; "" = they are."""
    if not has_extension_modules():
        return ""
    stamp = REPOSITORY / compiled.STAMP
    if stamp.exists() and stamp.read_text().strip() == compiled.digest(REPOSITORY, PYTHON):
        return ""
    return "extension modules in this tree are of other sources: make compiled, or make source"


#: As `cri-resmgr status` says it.
FORM = "compiled" if has_extension_modules() else "source"
