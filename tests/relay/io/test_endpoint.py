"""One end of a relayed connection, on a pair of real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cri_proxy.relay.io.endpoint import FULL_BYTES, LEAST_READ_BYTES, MOST_WORK, READ_BYTES, Endpoint

WAIT_S = 10
#: More than both sockets' buffers take.
MUCH = bytes(range(256)) * 16_384


class Owner:
    """Remembers what an end has told."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.losses = 0
        self.fullness: list[bool] = []
        self.end = Endpoint(self.received.extend, self._lost, self._regulate)
        self._told = asyncio.Event()

    def _lost(self) -> None:
        self.losses += 1
        self._told.set()

    def _regulate(self) -> None:
        self.fullness.append(self.end.is_full)

    async def is_lost(self) -> None:
        await asyncio.wait_for(self._told.wait(), WAIT_S)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


async def all_of(readable: socket.socket, size: int) -> bytes:
    """What comes, until it is so much or the other side has closed."""
    loop, found = asyncio.get_running_loop(), bytearray()
    while len(found) < size:
        data = await asyncio.wait_for(loop.sock_recv(readable, 1 << 16), WAIT_S)
        if not data:
            break
        found += data
    return bytes(found)


async def test_what_the_other_side_does_not_take_waits_and_arrives_in_its_order(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    pieces: list[Any] = [MUCH[:100], memoryview(MUCH)[100:-1]]
    owner.end.write(pieces)
    assert pieces == [], "the list is emptied by who has written it"
    assert owner.end.is_full and owner.end.unwritten > FULL_BYTES
    owner.end.write([MUCH[-1:]])
    assert await all_of(theirs, len(MUCH)) == MUCH
    assert owner.fullness == [True, False] and owner.end.unwritten == 0
    owner.end.abort()


async def test_many_small_pieces_are_more_than_one_call_of_the_kernel_takes(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    owner.end.write([MUCH[at : at + 1] for at in range(3_000)])
    assert await all_of(theirs, 3_000) == MUCH[:3_000]
    owner.end.abort()


async def test_closing_waits_for_what_is_unwritten_and_is_told_once(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    owner.end.write([MUCH])
    owner.end.close()
    assert owner.end.is_open and owner.losses == 0
    assert await all_of(theirs, len(MUCH) + 1) == MUCH
    await owner.is_lost()
    owner.end.abort()
    assert owner.losses == 1 and not owner.end.is_open


async def test_the_other_sides_end_is_told_after_what_it_has_said(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    theirs.sendall(b"last words")
    theirs.close()
    await owner.is_lost()
    assert owner.received == b"last words" and owner.losses == 1


async def test_writing_to_who_is_gone_ends_it(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    owner.end.read(False)  # so that it is not seen otherwise
    theirs.close()
    owner.end.write([b"too late"])
    await owner.is_lost()
    assert owner.end.unwritten == 0 and owner.losses == 1


async def test_nothing_is_read_while_that_is_not_wanted(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.begin(ours)
    owner.end.read(False)
    theirs.sendall(b"later")
    other = Owner()
    one, two = socket.socketpair()
    with one, two:
        one.setblocking(False)
        other.end.begin(one)
        two.close()
        await other.is_lost()  # a turn of the loop in which ours could have been read
    assert owner.received == b""
    owner.end.read(True)
    theirs.close()
    await owner.is_lost()
    assert owner.received == b"later"


async def test_an_end_that_was_not_waited_for_closes_the_socket_it_gets(sockets: Any) -> None:
    owner = Owner()
    ours, theirs = sockets
    owner.end.abort()
    owner.end.begin(ours)
    assert await all_of(theirs, 1) == b""


async def test_what_comes_in_a_pause_is_not_read_and_does_not_keep_the_loop_busy(sockets: Any) -> None:
    ours, theirs = sockets
    owner = Owner()
    owner.end.begin(ours)
    owner.end.read(False)
    owner.end.read(True)
    owner.end.read(False)
    theirs.send(b"later")
    while owner.end._is_watched:  # until the loop has told of it, once
        await asyncio.sleep(0)
    assert owner.received == b""
    owner.end.read(True)
    while not owner.received:
        await asyncio.sleep(0)
    assert owner.received == b"later"
    owner.end.abort()
    await owner.is_lost()


async def test_of_what_is_much_work_less_is_read_at_once_and_more_again_where_it_is_little(
    sockets: Any,
) -> None:
    ours, theirs = sockets
    owner, reads, bytes_a_frame = Owner(), list[int](), 16

    def data(received: bytes) -> None:
        owner.received.extend(received)
        reads.append(len(received))
        owner.end.work = len(received) // bytes_a_frame

    owner.end = Endpoint(data, owner._lost, owner._regulate)
    owner.end.begin(ours)
    loop = asyncio.get_running_loop()

    async def send(size: int) -> None:
        await loop.sock_sendall(theirs, bytes(size))
        while len(owner.received) < size:
            await asyncio.sleep(0)
        owner.received.clear()

    await send(8 * READ_BYTES)
    # Frames of 16 bytes: from the second read on each brings as many as are wanted at most.
    assert reads[0] == READ_BYTES
    assert max(reads[1:]) <= bytes_a_frame * MOST_WORK
    reads.clear()
    # Now of one byte: never below the least.
    bytes_a_frame = 1
    await send(16 * LEAST_READ_BYTES)
    assert set(reads[1:]) == {LEAST_READ_BYTES}
    reads.clear()
    # Now there is little work in them: twice as much each time.
    bytes_a_frame = 1 << 20
    await send(64 * LEAST_READ_BYTES)
    assert reads[:4] == [LEAST_READ_BYTES * times for times in (1, 2, 4, 8)]
    owner.end.abort()
