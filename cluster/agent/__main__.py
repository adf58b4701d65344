"""``python -m cluster.agent``: one node's agent in the foreground. Started by ``cri-resmgr agent run``, or in a pod.

Exit codes: 0 ended by a signal (or healthy, or usage asked for), 1 a sentence on stderr says why not, 2 wrong usage.
With a view socket it reports; with a control socket it carries out the spec, and where the daemon gives CPUs to claims it is
their driver; with both sockets it does all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import socket
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from cluster.agent.io.commander import Commander, MemoryFile
from cluster.agent.io.daemon import DaemonClient, FolderGone
from cluster.agent.io.log import TroubleLog, log
from cluster.agent.io.reporter import Reporter, Reporting
from cluster.api.names import AGENT
from cluster.dra.io.driver import KUBELET, Driver
from cluster.kube.io.access import Access, NoAccess
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.health_file import is_healthy, touch
from cri_api.printable import printable
from cri_api.supervisor import Supervisor, Worker

#: Where a node that joined a cluster has the credentials of its kubelet, which may be used for its own objects.
KUBECONFIGS = (
    Path("/etc/cri-resmgr/agent.kubeconfig"),
    Path("/etc/kubernetes/kubelet.conf"),
    Path("/var/lib/kubelet/kubeconfig"),
    Path("/var/lib/rancher/k3s/agent/kubelet.kubeconfig"),
    Path("/var/lib/rancher/rke2/agent/kubelet.kubeconfig"),
)
KUBELET_CONFIG = Path("/var/lib/kubelet/config.yaml")
STATE = Path("/var/lib/cri-resmgr/agent")
#: Seconds between two looks for a kubeconfig that is not there yet, or cannot be read.
LOOK_S = 60.0
#: Bytes and writes are logged so often: what this node costs the API server.
FIGURES_S = 3600.0
#: mallopt(3): without it each thread has an arena of its own, which is never given back.
_M_ARENA_MAX = -8
_TLS_BUFFER = 16 << 10


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send lines such as ``READY=1`` to the service manager, if there is one; a full queue is not waited for."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message.encode(), address)


def main(arguments: Sequence[str]) -> int:
    """Run the agent; the exit code."""
    options = _arguments(arguments)
    if options.check_health is not None:
        return 0 if is_healthy(options.check_health) else 1
    if options.view_socket is None and options.control_socket is None:
        return _fail(
            "give --view-socket to report, --control-socket to carry out what the spec asks, or both"
        )
    trim = _keep_small()
    try:
        asyncio.run(_run(options, trim))
    except asyncio.CancelledError:
        return 0
    except FolderGone as error:
        return _fail(str(error))
    return 0


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=AGENT, description="The agent of one node: reports, and carries out.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--node", default=os.environ.get("NODE_NAME") or socket.gethostname().lower(), help="the node's name")
    add("--view-socket", type=Path, help="the daemon's view socket: what is reported comes from there")
    add("--control-socket", type=Path, help="the daemon's control socket: without it spec is not carried out")
    add("--commands-elsewhere", action="store_true", help="another process carries out spec")
    add("--kubeconfig", type=Path, help="default: the pod's service account, or kubelet's own kubeconfig")
    add("--context", default="", help="of the kubeconfig; default: its current one")
    add("--state-dir", type=Path, default=STATE, help="where a policy that was taken back is remembered")
    add("--period", type=_seconds, default=10.0, help="seconds: at most one write of an object in so long")
    add("--poll", type=_seconds, default=5.0, help="seconds between two looks at the daemon")
    add("--no-node-resource-topology", action="store_true", help="write no NodeResourceTopology")
    add("--single-numa-node", action="store_true", help="publish that policy where containers keep it")
    add(
        "--kubelet-config",
        type=Path,
        default=KUBELET_CONFIG,
        help="kubelet's file: its topology manager is told of",
    )
    add(
        "--kubelet-dir",
        type=Path,
        default=KUBELET,
        help="kubelet's folder: of its plugins, and of its claims",
    )
    add("--health-file", type=Path, help="touched with every round")
    add("--check-health", type=Path, metavar="FILE", help="exit code 0 if a running agent touches FILE")
    return parser.parse_args(words)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.01 to 86400")
    return value


def _access(options: argparse.Namespace) -> Access:
    if options.kubeconfig is not None:
        return Access.kubeconfig(options.kubeconfig, options.context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return Access.in_cluster()
    for path in KUBECONFIGS:
        if path.exists():
            return Access.kubeconfig(path, options.context)
    raise NoAccess(f"there is no kubeconfig: none of {', '.join(map(str, KUBECONFIGS))}; give --kubeconfig")


def _keep_small() -> Callable[[], object]:
    """See to it that this process stays small; what to call when something large is no longer needed."""
    # Of each connection, from Python 3.11 on: 256 KB, of which a watch fills some hundred bytes.
    if hasattr(SSLProtocol, "max_size"):
        SSLProtocol.max_size = _TLS_BUFFER
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        return functools.partial(library.malloc_trim, 0)
    except AttributeError:  # musl has no arenas
        return lambda: None


async def find_access(
    options: argparse.Namespace, beat: Callable[[], None], sleep: Callable[[float], Any] = asyncio.sleep
) -> Access:
    """Where the API server is, once that can be read: a node may join its cluster after the agent has started."""
    log_of_access = TroubleLog("no way to the API server", "there is one now", "error")
    while True:
        try:
            access = _access(options)
        except NoAccess as error:
            log_of_access.trouble(str(error))
            beat()
            await sleep(LOOK_S)
        else:
            log_of_access.well()
            return access


async def _run(options: argparse.Namespace, trim: Callable[[], object]) -> None:
    supervisor = Supervisor(_tell)

    def beat() -> None:
        # Half an agent would look like a whole one: where a part fails again and again, the process is to be replaced.
        if not any(worker.is_troubled for worker in supervisor.workers):
            notify("WATCHDOG=1")
            touch(options.health_file)
        # A round has had a report and a status, each of them some hundred KB, as text and as objects.
        trim()

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    ended = asyncio.ensure_future(stopped.wait())
    notify("READY=1")
    looking = asyncio.ensure_future(find_access(options, beat))
    await asyncio.wait([looking, ended], return_when=asyncio.FIRST_COMPLETED)
    if not looking.done():
        looking.cancel()
        return
    try:
        await _work(options, looking.result(), beat, ended, supervisor)
    finally:
        await supervisor.end()


async def _work(
    options: argparse.Namespace,
    access: Access,
    beat: Callable[[], None],
    ended: asyncio.Future[Any],
    supervisor: Supervisor,
) -> None:
    clock, client = Clock(), Client(access, user_agent=AGENT)
    #: Done when the process is to end.
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def keep(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def until_gone() -> None:
            try:
                await run()
            except FolderGone as error:  # which no other try mends
                if not gone.done():
                    gone.set_exception(error)
                await asyncio.Event().wait()

        supervisor.keep(name, until_gone)

    if options.view_socket is not None:
        reporting = Reporting(
            options.node,
            options.poll,
            options.period,
            options.commands_elsewhere or options.control_socket is not None,
            not options.no_node_resource_topology,
            options.single_numa_node,
            options.kubelet_config,
        )
        daemon = DaemonClient(options.view_socket)
        keep("reporter", Reporter(daemon, client, reporting, clock, beat, supervisor).run)
    if options.control_socket is not None:
        file = MemoryFile(options.state_dir)
        daemon = DaemonClient(options.control_socket)
        commander = Commander(daemon, client, options.node, file, clock, options.period, beat, supervisor)
        keep("commander", commander.run)
        driver = Driver(daemon, client, options.node, options.kubelet_dir, clock, options.poll, supervisor)
        keep("dra", driver.run)
    keep("figures", lambda: _figures(client))
    log("info", "started", node=options.node, server=access.server)
    try:
        done, _ = await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        gone.cancel()
        await supervisor.end()
        await client.close()


def _tell(worker: Worker, error: Optional[BaseException]) -> None:
    """A part of the agent has failed and is begun again, or does well again."""
    if error is None:
        log("info", "background", part=worker.name, reason="it does well again")
        notify("STATUS=")
        return
    log("error", "background", part=worker.name, reason=worker.problem, in_a_row=worker.failures_in_a_row)
    if worker.is_troubled:
        notify(f"STATUS=degraded: {worker.name} fails: {' '.join(worker.problem.split())}")


async def _figures(client: Client) -> None:
    """Log this node's cost to the API server, once an hour."""
    sent, received = 0, 0
    while True:
        await asyncio.sleep(FIGURES_S)
        log(
            "info",
            "bytes of an hour",
            sent=client.bytes_sent - sent,
            received=client.bytes_received - received,
        )
        sent, received = client.bytes_sent, client.bytes_received


def _fail(sentence: str) -> int:
    print(printable(f"{AGENT}: {sentence}"), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
