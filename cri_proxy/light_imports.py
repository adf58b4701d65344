"""Imports for a process that stays: nothing that is not used, and no search for garbage among what stays.

Standard library only: the launcher calls it before anything else is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator

#: Modules with which hashlib does without OpenSSL.
OWN_HASHES = (
    "_md5",
    "_sha1",
    "_sha3",
    "_blake2",
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
)


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
    try:
        yield
    finally:
        gc.freeze()  # the daemon looks through it once, when it serves
        if was_enabled:
            gc.enable()
        for name in left_out:
            if sys.modules.get(name, 0) is None:
                del sys.modules[name]
