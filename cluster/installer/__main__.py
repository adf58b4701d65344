"""``python -m cluster.installer install|uninstall``: run by the Jobs of ``job.py``, privileged, on the node itself.

Exit code 0: done. 1: failed, and the node is as it was. 2: failed, and not everything could be taken back; the next try
goes on from there. The sentence goes to the pod's termination message.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.installer.io.host import InstallationHost, tell
from cluster.installer.io.installer import IMAGE_PACKAGES, Installer
from cluster.installer.job import HOST_ROOT, INSTALL, UNINSTALL

TERMINATION = Path("/dev/termination-log")


def main(arguments: Sequence[str]) -> int:
    """Do it; the exit code."""
    parser = argparse.ArgumentParser(prog="cluster.installer", description=__doc__)
    parser.add_argument("action", choices=(INSTALL, UNINSTALL))
    parser.add_argument("--root", type=Path, default=Path(HOST_ROOT), help="where the host's / is mounted")
    parser.add_argument("--packages", type=Path, default=IMAGE_PACKAGES, help="the folder of deb and rpm")
    options = parser.parse_args(arguments)
    told_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.append(number))
    installer = Installer(InstallationHost(options.root), tell, options.packages, lambda: bool(told_to_end))
    outcome, sentence = installer.install() if options.action == INSTALL else installer.uninstall()
    tell(sentence)
    with contextlib.suppress(OSError):  # not in a pod
        if TERMINATION.exists():
            TERMINATION.write_text(f"{sentence}\n")
    return int(outcome)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
