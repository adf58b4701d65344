"""A way to the API server that counts how often one program asks for it, whether the server is there or not."""

from __future__ import annotations

import asyncio
import contextlib


class Gate:
    """A relay on loopback. ``opened``: connections asked for so far; where nothing answers behind it they are closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened = 0
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            theirs, upstream = await asyncio.open_connection("127.0.0.1", self._port)
            writers.append(upstream)
            ways = [asyncio.ensure_future(_pass_on(*way)) for way in ((reader, upstream), (theirs, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for each in writers:
                each.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
