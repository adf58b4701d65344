"""``python -m cluster.operator``: NodePlacements for nodes, policies to nodes, advice; one replica writes, by a Lease.

In a pod it finds the API server by itself; elsewhere ``--kubeconfig`` says where it is. It ends with SIGTERM, and gives
its Lease back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.api.allowed import refused
from cluster.api.names import NAMESPACE, OPERATOR
from cluster.kube.io.access import Access, NoAccess
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.health_file import is_healthy, touch
from cluster.operator.io.leader import LeaseLost
from cluster.operator.io.operator import QUIET_S, Operator, OperatorSettings
from cri_api.printable import printable


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.check_health is not None:
        return 0 if is_healthy(options.check_health) else 1
    settings = OperatorSettings(
        me=options.identity,
        namespace=options.namespace,
        quiet_s=options.quiet,
        alive=lambda: touch(options.health_file),
    )
    try:
        access = Access.kubeconfig(options.kubeconfig) if options.kubeconfig else Access.in_cluster()
    except NoAccess as error:
        print(printable(f"cluster.operator: {error}"), file=sys.stderr)
        return 2
    return asyncio.run(_until_asked(access, settings))


async def _until_asked(access: Access, settings: OperatorSettings) -> int:
    working = asyncio.ensure_future(_work(access, settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return 0
    return 1


async def _work(access: Access, settings: OperatorSettings) -> None:
    """An operator, and another one with nothing in memory where the Lease was lost."""
    client, lease_client = Client(access, user_agent=OPERATOR), Client(access, user_agent=OPERATOR)
    try:
        while True:
            try:
                await Operator(client, settings, Clock(), _log, refused, lease_client).run()
            except LeaseLost as lost:
                _log(f"{lost}; waiting for it")
    finally:
        await client.close()
        await lease_client.close()


def _log(line: str) -> None:
    print(printable(line), flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster.operator", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kubeconfig", type=Path, help="a file; without it, the service account of the pod")
    parser.add_argument("--namespace", default=NAMESPACE, help="where the Lease is (%(default)s)")
    parser.add_argument(
        "--identity", default=_identity(), help="the Lease's holder (the pod's name and a random part)"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=QUIET_S,
        metavar="SECONDS",
        help="news are collected for so long (%(default)s)",
    )
    parser.add_argument(
        "--health-file", type=Path, metavar="FILE", help="touched with every try for the Lease"
    )
    parser.add_argument(
        "--check-health", type=Path, metavar="FILE", help="exit code 0 if a running operator touches FILE"
    )
    return parser.parse_args(arguments)


def _identity() -> str:
    """Not the pod's name alone: a container that was restarted must not take its former self's Lease for its own."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
