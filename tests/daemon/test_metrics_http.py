"""The metrics over HTTP: however many ask, the text is made once a second at most, and calls are relayed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from cri_proxy.daemon.metrics_http import FRESH_S, MOST_CONNECTIONS, MetricsServer, MetricsText

HANG_S = 30.0


class Source:
    """A text of many pieces that is counted, and a clock of the test's."""

    def __init__(self) -> None:
        self.made = 0
        self.now_s = 100.0

    def pieces(self) -> Iterator[str]:
        self.made += 1
        yield f"a {self.made}\n"
        yield from ("b 1\n" for _ in range(50))

    def text(self) -> MetricsText:
        return MetricsText(self.pieces, lambda: self.now_s)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def server(source: Source) -> AsyncIterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", source.text(), is_busy=lambda: False)
    await made.start()
    yield made
    await made.stop()


async def get(server: MetricsServer, said: bytes = b"GET /metrics HTTP/1.1\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(said)
        return await asyncio.wait_for(reader.read(), HANG_S)
    finally:
        writer.close()


async def test_a_text_is_made_once_a_second_however_many_ask(source: Source, server: MetricsServer) -> None:
    for second in range(1, 4):
        for _ in range(3):
            answers = await asyncio.gather(*(get(server) for _ in range(MOST_CONNECTIONS)))
            assert {answer.partition(b"\r\n\r\n")[2][:4] for answer in answers} == {b"a %d\n" % second}
        assert source.made == second
        source.now_s += FRESH_S


async def test_while_a_text_is_made_other_work_goes_on(source: Source) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    text = await source.text().make()
    counting.cancel()
    assert turns >= text.count(b"\n") == 51


async def test_a_scraper_too_many_is_refused_with_a_sentence(source: Source, server: MetricsServer) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MOST_CONNECTIONS)]
    while server._door.connections < MOST_CONNECTIONS:
        await asyncio.sleep(0)
    for _ in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = await asyncio.wait_for(reader.read(), HANG_S)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\n\r\n16 connections are open, which is the limit\n")
        writer.close()
    assert source.made == 0
    for _, writer in silent:
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET /else HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"rubbish\r\n\r\n",
        b" \r\n\r\n",
        b"GET /metrics\r\n\r\n",
    ],
)
async def test_nothing_else_is_served(source: Source, server: MetricsServer, said: bytes) -> None:
    answer = await get(server, said)
    assert answer.startswith(b"HTTP/1.1 404 ") and answer.endswith(b"only GET /metrics is served\n")
    assert source.made == 0


async def test_a_head_without_an_end_is_ended(source: Source, server: MetricsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 10_000)
    try:
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
    except ConnectionError:
        pass  # what it had still said is a reset
    writer.close()
    assert b"a 1\n" in await get(server)


@pytest.mark.parametrize("path", [b"/", b"/metrics?name[]=a"])
async def test_a_query_is_no_other_page(source: Source, server: MetricsServer, path: bytes) -> None:
    assert b"a 1\n" in await get(server, b"GET " + path + b" HTTP/1.1\r\n\r\n")
