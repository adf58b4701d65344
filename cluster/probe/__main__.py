"""``python -m cluster.probe [--healthy|--connect] SOCKET``: kubelet's probe of a daemon in a pod; exit code 0 or 1.

Without a flag the daemon must answer; ``--healthy``: and not be degraded; ``--connect``: the socket must be served,
whatever is spoken there. Kubelet runs it every half minute, so it imports next to nothing.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence

from cri_api.control import ControlError, read_reply, write_request
from cri_api.printable import printable

#: Seconds for the connection and for each part of the answer; kubelet's own limit is longer.
TIMEOUT_S = 8.0


def main(arguments: Sequence[str]) -> int:
    """Ask, and print the fault as a sentence: kubelet puts it into the pod's events."""
    parser = argparse.ArgumentParser(prog="cluster.probe", description=__doc__)
    probe = parser.add_mutually_exclusive_group()
    probe.add_argument("--healthy", action="store_true")
    probe.add_argument("--connect", action="store_true")
    parser.add_argument("socket")
    options = parser.parse_args(arguments)
    problem = ask(options.socket, options.healthy, options.connect)
    if problem:
        print(printable(problem), file=sys.stderr)
    return 1 if problem else 0


def ask(path: str, must_be_healthy: bool = False, only_connect: bool = False) -> str:
    """The fault in a sentence; "" if there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(path)
            if only_connect:
                return ""
            connection.sendall(write_request("status", {}))
            with connection.makefile("rb") as lines:
                status = read_reply(lines.readline())
    except OSError as error:
        return f"{path}: {error.strerror or 'no answer'}; expected a daemon that serves it"
    except ControlError as error:
        return f"{path}: {error}"
    reasons = status.get("degraded") if isinstance(status, dict) else None
    if must_be_healthy and reasons:
        return f"degraded: {json.dumps(reasons)}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
