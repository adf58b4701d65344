"""Imports for a process that stays: nothing that is not used, and no search for garbage among what stays.

Standard library only: the launcher calls it before anything else is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Optional

#: Modules with which hashlib does without OpenSSL.
OWN_HASHES = (
    "_md5",
    "_sha1",
    "_sha3",
    "_blake2",
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
)
#: Modules of protobuf that a start has no use for: each is loaded when something is first asked of it. Messages in Python,
#: and with them the text format, are for machines without its C library. Not for a module that is imported by its name
#: twice: before Python 3.12 the second time loads it.
LATER = ("google.protobuf.internal.python_message", "google.protobuf.json_format")


class _Later:
    """Finds those as the import system does, and has them loaded when they are first used."""

    @staticmethod
    def find_spec(
        name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        found = PathFinder.find_spec(name, path, target) if name in LATER else None
        if found is not None and found.loader is not None:
            found.loader = importlib.util.LazyLoader(found.loader)
        return found


@contextlib.contextmanager
def lightly() -> Iterator[None]:
    """A block of imports. Afterwards what was left out can be imported as ever, and garbage is looked for among what is new.

    A module that is None cannot be imported (the import system's own rule). asyncio, hashlib and structlog go without these
    where they are not there: 1.2 MB for TLS, which no socket of asyncio's has here, 3.4 for OpenSSL's hashes beside Python's
    own, 3 for tracebacks in colours. Where Python has no hashes of its own (Red Hat's) OpenSSL's stay.
    """
    left_out = ["ssl", "rich"]
    if all(importlib.util.find_spec(name) for name in OWN_HASHES):
        left_out.append("_hashlib")
    left_out = [name for name in left_out if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    was_enabled = gc.isenabled()
    gc.disable()
    sys.meta_path.insert(0, _Later)
    try:
        yield
    finally:
        sys.meta_path.remove(_Later)
        gc.freeze()
        if was_enabled:
            gc.enable()
        for name in left_out:
            if sys.modules.get(name, 0) is None:
                del sys.modules[name]


class _NoTls(ModuleType):
    """In the place of ssl: a number for what is one there, else a class that nothing is of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else type(name, (Exception,), {})


@contextlib.contextmanager
def without_tls() -> Iterator[None]:
    """A block that imports uvloop, which takes some names of ssl's then and uses them for TLS alone, which no socket of the
    loop's has here: 5 MB less. What imports ssl afterwards gets it.
    """
    is_wanted = "ssl" not in sys.modules
    if is_wanted:
        sys.modules["ssl"] = _NoTls("ssl")
    try:
        yield
    finally:
        if is_wanted:
            del sys.modules["ssl"]
