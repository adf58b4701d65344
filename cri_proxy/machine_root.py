"""Which folder stands for / in the paths of ours that nothing sets: another one for the daemon of a test.

What is installed and runs on the machine keeps its sockets, its state and its configuration then.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

VARIABLE = "CRI_RESMGR_ROOT"


def machine_root() -> Path:
    return Path(os.environ.get(VARIABLE, "/"))


def below(root: Path, path: Union[str, Path]) -> Path:
    return root / str(path).lstrip("/")
