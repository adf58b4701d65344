"""The command's first lines: what holds before anything of ours is imported."""

from __future__ import annotations

import os
import subprocess
import sys

#: The launcher in a process where grpc has not been imported; then what grpc will have read.
PROGRAM = """
import os, sys
sys.argv[1:] = ["--version"]
from cri_proxy.launcher import main
try:
    main()
except SystemExit:
    print(os.environ["GRPC_ENABLE_FORK_SUPPORT"])
"""


def _said(**environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**known, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_programs_are_started_without_grpcs_fork_handlers_unless_one_wants_them() -> None:
    assert _said() == "false"
    assert _said(GRPC_ENABLE_FORK_SUPPORT="true") == "true"
