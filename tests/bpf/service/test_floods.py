"""A client that makes much work of nothing is ended, and costs the observer a bounded amount."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.floods import FLOODS
from bpf.service.server import MOST_CONNECTIONS
from cri_proxy.relay.http2.frames import PREFACE, Error, write_settings
from tests.bpf.observer import ObserverProcess
from tests.relay.http2.hand import goaways

HANG_S = 60.0


@pytest.fixture
def observer(folder: Path) -> Iterator[ObserverProcess]:
    observer = ObserverProcess(folder)
    observer.start()
    observer.graph()  # once it serves
    yield observer
    observer.close()


def connect(observer: ObserverProcess) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(HANG_S)
    client.connect(str(observer.socket))
    return client


@pytest.mark.parametrize("name", ["rapid reset", "PING", "SETTINGS"])
def test_a_flood_is_ended_and_leaves_nothing(observer: ObserverProcess, name: str) -> None:
    before = observer.graph().status.resident_bytes
    for _ in range(5):
        said, sent = b"", 0
        with connect(observer) as client:
            try:
                client.sendall(FLOODS[name].first)
                for number in range(100):
                    client.sendall(FLOODS[name].more(number))
                    sent += 1
            except ConnectionError:
                pass
            try:
                while received := client.recv(1 << 16):
                    said += received
            except ConnectionError:
                pass
        assert sent < 100
        if found := goaways(said):  # a reset may overtake it
            assert found[-1][1] == Error.ENHANCE_YOUR_CALM
    assert observer.graph().status.resident_bytes - before < 10 << 20


def test_of_connections_without_a_call_the_oldest_makes_room(observer: ObserverProcess) -> None:
    clients: list[socket.socket] = []
    try:
        while len(clients) < MOST_CONNECTIONS:
            clients.append(connect(observer))
            clients[-1].sendall(PREFACE + write_settings())
            assert clients[-1].recv(1 << 16)
        assert observer.graph().status.provider == "replay"
        said = b""
        while received := clients[0].recv(1 << 16):
            said += received
        assert goaways(said)[-1][1] == Error.ENHANCE_YOUR_CALM
    finally:
        for client in clients:
            client.close()
