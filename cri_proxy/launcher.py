"""The command's first lines: hands over to the real program, or, if that cannot even be imported, passes bytes.

A node whose agent is broken must still start pods. So this module imports the standard library only; when the
imports of ``cri-resmgr run`` fail, it serves the socket by splicing connections to the runtime's (mode off).
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

DAEMON_WORDS = ("run",)
STATE = "/var/lib/cri-resmgr/endpoints.json"
RUNTIMES = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/var/run/isulad.sock")


def main():
    """Entry point of ``cri-resmgr``."""
    try:
        from cri_proxy.cli import cli
    except Exception as error:
        words = [word for word in sys.argv[1:] if not word.startswith("-")]
        is_daemon = not words or words[0] in DAEMON_WORDS or "/" in words[0]
        if not is_daemon or {"--help", "-h", "--version", "--strict"} & set(sys.argv):
            sys.exit(f"cri-resmgr cannot start: {type(error).__name__}: {error}; reinstall the package")
        print(f"cri-resmgr: degraded, passing bytes only: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(asyncio.run(_serve(f"{type(error).__name__}: {error}")))
    cli()


def endpoints(argv, state=STATE):
    """(sockets to serve, runtime socket): the last configuration that loaded, else the usual places; flags win."""
    known = {}
    folder = _flag(argv, "--state-dir")
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, "endpoints.json") if folder else state) as f:
        known = json.load(f)
    main_socket = _flag(argv, "--relay-socket") or known.get("socket") or "/var/run/cri-resmgr.sock"
    found = next((path for path in RUNTIMES if os.path.exists(path)), RUNTIMES[0])
    runtime = _flag(argv, "--runtime-socket") or known.get("runtime") or found
    return [main_socket, *known.get("extra_sockets", [])], runtime[7:] if runtime.startswith("unix://") else runtime


def _flag(argv, name):
    for index, word in enumerate(argv):
        if word.lstrip("-").startswith(name[2:] + "=") and word.startswith("-"):
            return word.split("=", 1)[1]
        if word in (name, name[1:]) and index + 1 < len(argv):
            return argv[index + 1]
    return ""


async def _serve(problem):
    paths, runtime = endpoints(sys.argv[1:])
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def connected(reader, writer):
        with contextlib.suppress(OSError):
            their_reader, their_writer = await asyncio.open_unix_connection(runtime)
            await asyncio.gather(_pump(reader, their_writer), _pump(their_reader, writer), return_exceptions=True)
        writer.close()

    os.umask(0o177)
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        for fd in range(3, 3 + int(os.environ.get("LISTEN_FDS", "0"))):
            listener = socket.socket(fileno=fd)
            paths = [path for path in paths if path != listener.getsockname()]
            await asyncio.start_unix_server(connected, sock=listener)
    for path in paths:
        with contextlib.suppress(FileNotFoundError), contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            try:
                probe.connect(path)
                sys.exit(f"cri-resmgr: {path} is served by another process")
            except ConnectionRefusedError:
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            await asyncio.start_unix_server(connected, path)
    _notify(f"READY=1\nSTATUS=degraded: {problem}")
    await stopping.wait()
    return 0


async def _pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _notify(message):
    address = os.environ.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
    if address:
        with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as out:
            out.sendto(message.encode(), address)


if __name__ == "__main__":
    main()
