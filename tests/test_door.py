"""What clients beside the relay may cost: connections, memory, and time of the event loop, by a clock of the test's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cri_proxy.door import MOST_LARGE, MOST_READING, SAVED_S, SMALL, Door, Share, Visitor

#: Nothing that must come takes longer.
HANG_S = 30.0
PART = 0.01


class Time:
    """Seconds that pass when something waits for them, and seconds of work."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.worked_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def share(self, is_busy: bool = True) -> Share:
        return Share(PART, lambda: is_busy, lambda: self.now_s, lambda: self.worked_s, self.sleep)

    async def work(self, seconds: float) -> None:
        self.worked_s += seconds


@pytest.mark.parametrize("askers", [1, 50])
async def test_while_calls_pass_answers_take_no_more_than_their_part(askers: int) -> None:
    time = Time()
    share, began_s = time.share(), time.now_s
    for _ in range(20):
        await asyncio.gather(*(share.run(time.work(0.003)) for _ in range(askers)))
    passed_s = time.now_s - began_s
    # What was saved up, and the last answer, which is paid for afterwards.
    assert time.worked_s == pytest.approx(0.003 * 20 * askers)
    assert time.worked_s <= PART * passed_s + SAVED_S + 0.003


async def test_where_no_call_passes_nothing_waits() -> None:
    time = Time()
    share, began_s = time.share(is_busy=False), time.now_s
    for _ in range(1000):
        await share.run(time.work(0.003))
    assert time.now_s == began_s


async def test_of_time_in_which_nothing_was_asked_no_more_is_saved_than_a_little() -> None:
    time = Time()
    share = time.share()
    time.now_s += 1_000_000
    began_s = time.now_s
    while time.now_s == began_s:
        await share.run(time.work(0.001))
    assert time.worked_s < SAVED_S + 0.003


async def test_answers_are_made_one_after_the_other_with_other_work_in_between() -> None:
    order: list[str] = []

    async def answer(name: str) -> str:
        for step in range(3):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)
        return name

    share = Time().share(is_busy=False)
    assert await asyncio.gather(*(share.run(answer(name)) for name in "abc")) == ["a", "b", "c"]
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]


async def test_an_answer_that_waits_for_something_else_lets_others_go_first() -> None:
    share, arrived = Time().share(is_busy=False), asyncio.Event()
    waiting = asyncio.ensure_future(share.run(arrived.wait()))
    await asyncio.wait_for(share.run(Time().work(0.001)), HANG_S)
    arrived.set()
    assert await asyncio.wait_for(waiting, HANG_S)


async def test_an_answer_that_fails_or_is_cancelled_gives_its_turn_back() -> None:
    share = Time().share(is_busy=False)

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await share.run(fail())
    for_ever = asyncio.ensure_future(share.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    for_ever.cancel()
    await asyncio.wait({for_ever})
    assert for_ever.cancelled()
    await asyncio.wait_for(share.run(Time().work(0.001)), HANG_S)


# ---------------------------------------------------------------------- connections


class Site:
    """A door whose visitors say lines; an answer is the line, or what ``answer`` makes of it."""

    def __init__(self, folder: Path, most: int) -> None:
        self.path = str(folder / "d.sock")
        self.notes: list[str] = []
        self.sizes: list[int] = []
        self.is_open = asyncio.Event()
        self.reply = b""
        self.door = Door(
            "test",
            self._serve,
            lambda why: why.encode() + b"\n",
            self.notes.append,
            None,
            lambda: False,
            most,
        )
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(64)
        self.door.open([listener])

    async def _serve(self, visitor: Visitor) -> None:
        while (line := await visitor.request(b"\n", 1 << 20, HANG_S)) is not None:
            self.sizes.append(len(line))
            await self.is_open.wait()
            await visitor.answer([self.reply or line])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.path)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    made = Site(folder, most=3)
    yield made
    await made.door.close()


async def test_a_connection_too_many_is_refused_with_a_sentence_and_there_is_room_again(site: Site) -> None:
    site.is_open.set()
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(3):
            reader, writer = await site.connect()
            stack.callback(writer.close)
            writer.write(b"%d\n" % number)
            assert await asyncio.wait_for(reader.readline(), HANG_S) == b"%d\n" % number
            clients.append(writer)
        for _ in range(20):
            reader, writer = await site.connect()
            said = await asyncio.wait_for(reader.read(), HANG_S)
            assert said == b"3 connections are open, which is the limit\n"
            writer.close()
        assert (site.door.connections, site.door.refused) == (3, 20)
        clients[0].close()
        while site.door.connections == 3:
            await asyncio.sleep(0)
        reader, writer = await site.connect()
        stack.callback(writer.close)
        writer.write(b"again\n")
        assert await asyncio.wait_for(reader.readline(), HANG_S) == b"again\n"


async def test_of_large_requests_only_so_many_are_in_memory(folder: Path) -> None:
    site = Site(folder, most=10)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(site.door.close)
        writers = []
        for _ in range(8):
            _, writer = await site.connect()
            stack.callback(writer.close)
            writer.write(b"x" * (10 * SMALL))
            writers.append(writer)
        while not site.door.large.locked():
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        # What the others have sent waits in the kernel: each has read one piece more than a small request has.
        begun = sorted(len(visitor._begun) for visitor in visitors_of(site.door))
        assert [size > 2 * SMALL for size in begun].count(True) <= MOST_LARGE
        for writer in writers:
            writer.write(b"\n")
        while len(site.sizes) < MOST_LARGE:
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        # Nor is another read while these wait for their answers.
        assert len(site.sizes) == MOST_LARGE
        site.is_open.set()
        while len(site.sizes) < 8:
            await asyncio.sleep(0)
        assert site.sizes == [10 * SMALL + 1] * 8


def visitors_of(door: Door) -> list[Visitor]:
    import gc

    return [each for each in gc.get_objects() if isinstance(each, Visitor) and each._door is door]


async def test_of_clients_that_do_not_read_only_so_many_are_waited_for(folder: Path) -> None:
    site = Site(folder, most=50)
    site.reply = b"y" * (4 << 20)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(site.door.close)
        for _ in range(20):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, site.path)
            client.send(b"much\n")
        while len(site.sizes) < 20:
            await asyncio.sleep(0)
        site.is_open.set()
        while site.door.connections > MOST_READING:
            await asyncio.sleep(0)
        assert site.door.connections == MOST_READING


async def test_a_process_without_descriptors_says_so_and_accepts_again(site: Site) -> None:
    site.is_open.set()
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.setblocking(False)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            await asyncio.get_running_loop().sock_connect(client, site.path)
            while not site.notes:
                await asyncio.sleep(0)
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert site.notes == ["nothing can connect: Too many open files"]
        client.send(b"hello\n")
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 10), HANG_S) == b"hello\n"
        assert site.notes[-1] == ""
