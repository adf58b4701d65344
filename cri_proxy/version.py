"""The version, in one place besides setup.cfg (a test compares them), and where a package puts its documents.

In which form the program runs: ``compiled`` where a package has extension modules for this Python, else ``source``.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

VERSION = "0.1.0"
#: The pages that hints name.
DOCUMENTS = "/usr/share/doc/cri-resmgr/docs"


def form_of(*modules: ModuleType) -> str:
    """``compiled`` if each of these was imported from an extension module, else ``source``."""
    files = [module.__file__ or "" for module in modules]
    return "compiled" if all(name.endswith(tuple(EXTENSION_SUFFIXES)) for name in files) else "source"
