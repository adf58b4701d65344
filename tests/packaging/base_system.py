"""An rpm that stands for the base system: this machine's files, said to be what our rpm asks of a distribution."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.packaging.kinds import ask

_SPEC = """Name: base-system
Version: 1
Release: 1
Summary: stands for a distribution's
License: Apache-2.0
BuildArch: x86_64
{provides}
%description
None.
%files
"""


def base_system(packages: Sequence[Path], folder: Path) -> Path:
    """The file, in ``folder``. What is asked for: test_architectures.py has it that no more than a base system is."""
    asked = "".join(ask("rpm", "-qp", "--requires", str(package)) for package in packages).splitlines()
    wanted = {
        re.sub(r" (>=|>) ", " = ", line) for line in asked if not line.startswith(("rpmlib(", "config("))
    }
    lines = (f"Provides: {line}" for line in sorted(wanted) if "/usr/lib/cri-resmgr" not in line)
    (folder / "base.spec").write_text(_SPEC.format(provides="\n".join(lines)))
    command = [
        "rpmbuild",
        "-bb",
        "--target=x86_64",
        f"--define=_topdir {folder}/top",
        str(folder / "base.spec"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("top/RPMS/*/*.rpm")
    return built
