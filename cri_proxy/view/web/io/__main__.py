"""The page's server as a process: ``python -m cri_proxy.view.web.io``, which ``cri-resmgr web`` becomes."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from cri_api.printable import printable
from cri_proxy.view.io.daemon import ViewSocket
from cri_proxy.view.web.io.listener import listening
from cri_proxy.view.web.io.server import AWAY, Feed, PageServer
from cri_proxy.view.web.requests import Listen, read_listen


def main() -> int:
    options = _options()
    os.umask(0o077)
    try:
        with listening(options.listen, options.url_file) as (listener, token):
            return asyncio.run(_serve(options, listener, token))
    except OSError as error:
        print(printable(f"cri-resmgr web: {error}"), file=sys.stderr)
        return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cri-resmgr web", description=__doc__)
    parser.add_argument("--view-socket", type=Path, required=True, help="the daemon's view socket")
    parser.add_argument(
        "--listen", type=_listen, default="127.0.0.1:8895", help="loopback HOST:PORT, or unix:/PATH"
    )
    parser.add_argument("--url-file", type=Path, help="where the address with its token is kept")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--stat", type=Path, default=Path("/proc/stat"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _listen(text: str) -> Listen:
    try:
        return read_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def _serve(options: argparse.Namespace, listener: socket.socket, token: str) -> int:
    """Until SIGTERM or SIGINT."""
    # Before it is told where it serves: what has heard that may end it at once.
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    view = ViewSocket(options.view_socket, AWAY, options.stat)
    feed = Feed(view, options.interval)
    server = PageServer(listener, token, view, feed)
    await server.start()
    url = f"{server.address}#token={token}"
    if options.url_file is None:
        print(printable(url), flush=True)
    else:  # a log is read by more people than the file
        beside = options.url_file.with_name(f"{options.url_file.name}.new")
        beside.write_text(url + "\n")
        beside.replace(options.url_file)
        said = f"serving {server.address}; the address with its token is in {options.url_file}"
        print(printable(said), flush=True)
    looking = asyncio.ensure_future(feed.run())
    waiting = asyncio.ensure_future(ended.wait())
    await asyncio.wait({looking, waiting}, return_when=asyncio.FIRST_COMPLETED)
    looking.cancel()
    waiting.cancel()
    await server.stop()
    if not looking.cancelled() and looking.done():
        looking.result()  # a defect of ours: systemd starts another process
    return 0


if __name__ == "__main__":
    sys.exit(main())
