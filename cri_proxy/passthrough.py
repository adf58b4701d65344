"""Serves kubelet's sockets by splicing connections to the runtime's: what is left when all else is broken.

Run by the launcher as ``python -I passthrough.py PROBLEM [ARGUMENTS OF run]``. Standard library only. Behind systemd's
sockets it ends when the daemon can be loaded again: systemd starts that then, and callers wait meanwhile.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time

STATE, SOCKET = "/var/lib/cri-resmgr", "/var/run/cri-resmgr.sock"
RUNTIMES = ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
            "/run/crio/crio.sock", "/var/run/isulad.sock")  # fmt: skip
#: How long bytes are passed before the daemon is tried; how long none must have come when it is let in.
SHORTEST_S, LONGEST_S, QUIET_S, DAY_S = 120, 3600, 0.3, 86400


def endpoints(argv, state=STATE):
    """(kubelet's socket, further ones, the runtime's): flags, else the last configuration, else the usual."""
    known = {}
    note = (_flag(argv, "state-dir") or state) + "/endpoints.json"
    with contextlib.suppress(OSError, ValueError), open(note) as file:
        known = dict(json.load(file))
    found = next((path for path in RUNTIMES if os.path.exists(path)), RUNTIMES[0])
    runtime = _flag(argv, "runtime-socket") or known.get("runtime") or found
    main = _flag(argv, "relay-socket") or known.get("socket") or SOCKET
    return main, known.get("extra_sockets", []), "/" + runtime.replace("unix:", "", 1).lstrip("/")


def _flag(argv, name):
    for word, following in reversed([*zip(argv, [*argv[1:], ""])]):
        if word.startswith("-") and word.lstrip("-").partition("=")[0] == name:
            return word.partition("=")[2] or following
    return ""


async def serve(problem, argv):
    """Serve until SIGTERM."""
    main, more, runtime = endpoints(argv)
    stopping = asyncio.get_running_loop().create_future()
    last = [0.0]  # when bytes came
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is nothing to reload
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.cancel)

    async def connected(reader, writer, is_greeted=False):
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            upstream, downstream = await asyncio.open_unix_connection(runtime)
            if is_greeted:
                await _leave_answer_out(reader, downstream)
            pumps = _pump(reader, downstream, last), _pump(upstream, writer, last)
            await asyncio.gather(*pumps, return_exceptions=True)

    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())  # sd_listen_fds(3)
    given = [socket.socket(fileno=3 + i) for i in range(is_ours and int(os.environ.get("LISTEN_FDS", "0")))]
    servers = [await asyncio.start_unix_server(connected, sock=one, backlog=4096) for one in given]
    greeted = [socket.socket(fileno=int(n)) for n in os.environ.get("CRI_RESMGR_GREETED", "").split()]
    streams = [await asyncio.open_connection(sock=connection) for connection in greeted]
    servers += [asyncio.ensure_future(connected(*pair, is_greeted=True)) for pair in streams]
    taken_over = {os.path.realpath(listener.getsockname()) for listener in given}
    for path in [path for path in (main, *more) if os.path.realpath(path) not in taken_over]:
        try:
            _claim(path)
            os.umask(0o177)
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
    if given:
        servers.append(asyncio.ensure_future(_until_loadable(last)))
        servers[-1].add_done_callback(lambda _: stopping.cancel())
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while not stopping.done():
        _notify("WATCHDOG=1")
        await asyncio.wait([stopping], timeout=period_s or None)


async def _until_loadable(last):
    """Return in a moment without bytes once the daemon can be imported; the trial is another process's."""
    code = "import os, sys; os.nice(10); sys.path.insert(0, sys.argv[1]); import cri_proxy.daemon"
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    trial = [sys.executable, "-I", "-c", code, folder]
    pause_s, failed = _first_pause_s(), True
    while failed:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)
        with contextlib.suppress(OSError):  # no memory, no processes: later
            process = await asyncio.create_subprocess_exec(*trial, stderr=asyncio.subprocess.DEVNULL)
            failed = await process.wait()
    while time.monotonic() - last[0] < QUIET_S:
        await asyncio.sleep(QUIET_S / 10)


def _first_pause_s():
    """As long as we have been needed today: a daemon that loads and then fails must not cut calls all the time."""
    since_s = 0
    with contextlib.suppress(OSError, KeyError):
        note = os.environ["RUNTIME_DIRECTORY"] + "/passing-bytes-since"
        if os.path.exists(note) and 0 <= time.time() - os.stat(note).st_mtime < DAY_S:
            since_s = time.time() - os.stat(note).st_mtime
        else:
            open(note, "w").close()
    return min(max(since_s, SHORTEST_S), LONGEST_S)


def _claim(path):
    os.umask(0o022)  # nobody would get into a folder with the mode of a socket
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


async def _pump(reader, writer, last):
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65536):
            last[0] = time.monotonic()
            writer.write(data)
            await writer.drain()


def _notify(message):
    address = os.environ.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(0.1)  # not for ever, if nobody reads
        out.sendto(message.encode(), address)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
