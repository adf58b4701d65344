"""Serves kubelet's sockets by splicing connections to the runtime's: what is left when all else is broken.

Run by the launcher as ``python -I passthrough.py PROBLEM [ARGUMENTS OF run]``. Standard library only.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

STATE, SOCKET = "/var/lib/cri-resmgr", "/var/run/cri-resmgr.sock"
RUNTIMES = ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
            "/run/crio/crio.sock", "/var/run/isulad.sock")  # fmt: skip


def endpoints(argv, state=STATE):
    """(kubelet's socket, further ones, the runtime's): flags, else the last configuration, else the usual."""
    known = {}
    note = (_flag(argv, "state-dir") or state) + "/endpoints.json"
    with contextlib.suppress(OSError, ValueError), open(note) as file:
        known = dict(json.load(file))
    found = next((path for path in RUNTIMES if os.path.exists(path)), RUNTIMES[0])
    runtime = _flag(argv, "runtime-socket") or known.get("runtime") or found
    main = _flag(argv, "relay-socket") or known.get("socket") or SOCKET
    return main, known.get("extra_sockets", []), runtime.replace("unix://", "", 1)


def _flag(argv, name):
    for word, following in reversed([*zip(argv, [*argv[1:], ""])]):
        if word.startswith("-") and word.lstrip("-").partition("=")[0] == name:
            return word.partition("=")[2] or following
    return ""


async def serve(problem, argv):
    """Serve until SIGTERM."""
    main, more, runtime = endpoints(argv)
    stopping = asyncio.get_running_loop().create_future()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is nothing to reload
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.cancel)

    async def connected(reader, writer, is_greeted=False):
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            upstream, downstream = await asyncio.open_unix_connection(runtime)
            if is_greeted:
                await _leave_answer_out(reader, downstream)
            await asyncio.gather(_pump(reader, downstream), _pump(upstream, writer), return_exceptions=True)

    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())  # sd_listen_fds(3)
    given = [socket.socket(fileno=3 + i) for i in range(is_ours and int(os.environ.get("LISTEN_FDS", "0")))]
    servers = [await asyncio.start_unix_server(connected, sock=one, backlog=4096) for one in given]
    greeted = [socket.socket(fileno=int(n)) for n in os.environ.get("CRI_RESMGR_GREETED", "").split()]
    streams = [await asyncio.open_connection(sock=connection) for connection in greeted]
    servers += [asyncio.ensure_future(connected(*pair, is_greeted=True)) for pair in streams]
    taken_over = {os.path.realpath(listener.getsockname()) for listener in given}
    os.umask(0o177)
    for path in [path for path in (main, *more) if os.path.realpath(path) not in taken_over]:
        try:
            _claim(path)
            servers.append(await asyncio.start_unix_server(connected, path))
        except OSError as error:
            print(f"cri-resmgr: {path} cannot be served: {error}", file=sys.stderr, flush=True)
            if path == main:
                sys.exit(1)
            continue
        with contextlib.suppress(OSError):
            status = os.stat(runtime)
            os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, status.st_mode & 0o777)
    _notify(f"READY=1\nSTATUS=degraded: passing bytes only: {problem}")
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while not stopping.done():
        _notify("WATCHDOG=1")
        await asyncio.wait([stopping], timeout=period_s or None)


def _claim(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    stale = contextlib.suppress(FileNotFoundError, ConnectionRefusedError)  # is replaced
    with socket.socket(socket.AF_UNIX) as probe, stale:
        probe.connect(path)
        raise OSError("it is served by another process; stop that first")


async def _leave_answer_out(reader, writer):
    """Pass on what a client sends up to its answer to our greeting (greeting.py), but not that."""
    writer.write(await reader.readexactly(24))
    while (head := await reader.readexactly(9))[3:5] != b"\4\1":
        writer.write(head + await reader.readexactly(int.from_bytes(head[:3], "big")))


async def _pump(reader, writer):
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _notify(message):
    address = os.environ.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(0.1)  # not for ever, if nobody reads
        out.sendto(message.encode(), address)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
