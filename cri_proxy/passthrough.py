"""Serves kubelet's sockets by splicing connections to the runtime's: what is left when all else is broken.

Run by the launcher as ``python -I passthrough.py PROBLEM [ARGUMENTS OF run]``. Standard library only. Behind systemd's
sockets it ends when the daemon can be loaded again: connections are told to go (GOAWAY, RFC 9113 section 6.8), calls
under way have a while to end, and systemd starts the daemon, for which new callers wait meanwhile.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time

#: As machine_root.py, which cannot be imported here.
ROOT = os.environ.get("CRI_RESMGR_ROOT", "").rstrip("/")
STATE, SOCKET = f"{ROOT}/var/lib/cri-resmgr", f"{ROOT}/var/run/cri-resmgr.sock"
RUNTIMES = ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
            "/run/crio/crio.sock", "/var/run/isulad.sock")  # fmt: skip
#: How long bytes are passed before the daemon is tried; how long calls under way have when it is let in (relay_drain_s).
SHORTEST_S, LONGEST_S, DRAIN_S, DAY_S = 120, 3600, 5, 86400
#: In a GOAWAY: all streams so far are gone on with; a client begins its next ones on another connection.
LARGEST = 0x7FFFFFFF
DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4


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
    links = set()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is nothing to reload
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.cancel)

    async def connected(reader, writer, is_greeted=False):
        link = _Link(writer)
        # Cancelled at the end. Before Python 3.12, streams show a traceback for a connection that ends so.
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError), contextlib.closing(writer):
            upstream, downstream = await asyncio.open_unix_connection(runtime)
            if is_greeted:
                await _leave_answer_out(reader, downstream, link)
            links.add(link)
            pumps = _pump(reader, downstream, link.asked), _pump(upstream, writer, link.answered)
            await asyncio.gather(*pumps, return_exceptions=True)
        links.discard(link)

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
        handing_over = asyncio.ensure_future(_hand_over(servers, links))
        handing_over.add_done_callback(lambda _: stopping.cancel())
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while not stopping.done():
        _notify("WATCHDOG=1")
        await asyncio.wait([stopping], timeout=period_s or None)


async def _hand_over(servers, links):
    """Return once the daemon can be imported and the calls under way have ended, or have had their time."""
    await _until_loadable()
    for server in servers:
        server.close() if isinstance(server, asyncio.AbstractServer) else None
    for link in links:
        link.say_goodbye()
    until_s = time.monotonic() + DRAIN_S
    while any(link.streams for link in links) and time.monotonic() < until_s:
        await asyncio.sleep(0.02)
    for link in links:
        link.end()


def _goaway(stream):
    return b"\0\0\x08\7\0\0\0\0\0" + stream.to_bytes(4, "big") + bytes(4)


async def _until_loadable():
    """Return once the daemon can be imported; the trial is another process's."""
    code = "import os, sys; os.nice(10); sys.path.insert(0, sys.argv[1]); import cri_proxy.daemon.daemon"
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    trial = [sys.executable, "-I", "-c", code, folder]
    pause_s, failed = _first_pause_s(), True
    while failed:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)
        with contextlib.suppress(OSError):  # no memory, no processes: later
            process = await asyncio.create_subprocess_exec(*trial, stderr=asyncio.subprocess.DEVNULL)
            failed = await process.wait()


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
    os.umask(0o022)  # no client would get into a folder with the mode of a socket
    os.makedirs(os.path.dirname(path), exist_ok=True)
    stale = contextlib.suppress(FileNotFoundError, ConnectionRefusedError)  # is replaced
    with socket.socket(socket.AF_UNIX) as probe, stale:
        probe.connect(path)
        raise OSError("it is served by another process; stop that first")


class _Frames:
    """Reads along where the frames of one direction begin, and what they are; keeps nothing but half a head."""

    def __init__(self, skip=0):
        self._left, self._head, self._in_headers, self._has_begun = skip, b"", False, False

    def read(self, data):
        """Heads complete by now, as (type, flags, stream), and where in the data a frame may be put in; -1: nowhere."""
        heads, at, place = [], 0, -1
        while True:
            # Not before the first frame, which are the settings; and a block of headers is one piece.
            if self._has_begun and not self._left and not self._head and not self._in_headers:
                place = at
            if at == len(data):
                return heads, place
            if self._left:
                at, self._left = min(len(data), at + self._left), max(0, self._left - (len(data) - at))
                continue
            more = data[at : at + 9 - len(self._head)]
            self._head, at = self._head + more, at + len(more)
            if len(self._head) == 9:
                self._has_begun = True
                kind, flags = self._head[3], self._head[4]
                heads.append((kind, flags, int.from_bytes(self._head[5:], "big") & 0x7FFFFFFF))
                if kind in (HEADERS, CONTINUATION):
                    self._in_headers = not flags & END_HEADERS
                self._left, self._head = int.from_bytes(self._head[:3], "big"), b""


class _Link:
    """One connection: its open streams, and the word that it ends."""

    def __init__(self, writer):
        self.streams, self._writer, self._newest = set(), writer, 0
        self._asked, self._answered, self._owes_goodbye = _Frames(skip=24), _Frames(), False
        self._is_between = False

    def asked(self, data):
        """What the client has sent, to be passed on."""
        for kind, _, stream in self._asked.read(data)[0]:
            if kind == HEADERS:
                self.streams.add(stream)
                self._newest = max(self._newest, stream)
            elif kind == RST_STREAM:
                self.streams.discard(stream)
        return data

    def answered(self, data):
        """What the runtime has sent, to be passed on; with the goodbye, where that is due and a frame ends."""
        heads, place = self._answered.read(data)
        for kind, flags, stream in heads:
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                self.streams.discard(stream)
        self._is_between = place == len(data)
        if self._owes_goodbye and place >= 0:
            self._owes_goodbye = False
            return data[:place] + _goaway(LARGEST) + data[place:]
        return data

    def say_goodbye(self):
        """Have the client make no further call here."""
        if self._is_between:
            self._writer.write(_goaway(LARGEST))
        else:
            self._owes_goodbye = True

    def end(self):
        """Close it. Nothing more is read: what the client has begun meanwhile it may begin again elsewhere."""
        with contextlib.suppress(OSError):
            if self._is_between:
                self._writer.write(_goaway(self._newest))
            self._writer.close()


async def _leave_answer_out(reader, writer, link):
    """Pass on what a client sends up to its answer to our greeting (greeting.py), but not that."""
    writer.write(link.asked(await reader.readexactly(24)))
    while True:
        head = await reader.readexactly(9)
        if head[3] == SETTINGS and head[4] & ACK:
            return
        writer.write(link.asked(head + await reader.readexactly(int.from_bytes(head[:3], "big"))))


async def _pump(reader, writer, passed):
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(65536):
            writer.write(passed(data))
            await writer.drain()


def _notify(message):
    address = os.environ.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(0.1)  # not for ever, if nothing reads
        out.sendto(message.encode(), address)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
