"""The load generator: as many requests as were wanted, whole answers, and an error for everything else."""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.cache.plugin import build_program

TIMEOUT_S = 60
#: More than what is received at once.
BODY = b"x" * 40_000
OK = b"HTTP/1.1 200 OK\r\nServer: test\r\nContent-Length: 40000\r\n\r\n" + BODY
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
VALUE = b"$5\r\nhello\r\n"


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("Not installed for the load generator: gcc.")
    return build_program("load", tmp_path_factory.mktemp("load"))


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers each of these requests with the same bytes."""

    daemon_threads = True

    def __init__(self, path: Path, request: bytes, answer: bytes) -> None:
        self.request_bytes, self.answer = request, answer
        self.requests, self.connections = 0, 0
        self.lock = threading.Lock()
        super().__init__(str(path), _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        with self.server.lock:
            self.server.connections += 1
        while self.request.recv(len(self.server.request_bytes)) == self.server.request_bytes:
            with self.server.lock:
                self.server.requests += 1
            self.request.sendall(self.server.answer)


@contextmanager
def serving(path: Path, request: bytes, answer: bytes) -> Iterator[Server]:
    with Server(path, request, answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(load: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(load), *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_http_answers_are_read_to_their_end(load: Path, tmp_path: Path) -> None:
    request = b"GET /page HTTP/1.1\r\nHost: server\r\n\r\n"
    with serving(tmp_path / "s", request, OK) as server:
        done = ask(load, tmp_path / "s", "/page", 4, 2, 10, 100)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["requests"], told["answer_bytes"]) == (100, len(OK))
    assert told["guest_s"] > 0
    # One by which the length is learnt.
    assert (server.requests, server.connections) == (111, 5)


def test_a_value_of_redis_is_asked_for_by_its_key(load: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "s", b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", VALUE) as server:
        done = ask(load, tmp_path / "s", "key", 1, 1, 0, 7)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer_bytes"] == len(VALUE)
    assert server.requests == 8


@pytest.mark.parametrize("answer", [NOT_FOUND, b"$-1\r\n", b"-ERR no such key\r\n"])
def test_an_answer_that_is_none_ends_it(load: Path, tmp_path: Path, answer: bytes) -> None:
    request = b"GET /page HTTP/1.1\r\nHost: server\r\n\r\n"
    with serving(tmp_path / "s", request, answer):
        done = ask(load, tmp_path / "s", "/page", 1, 1, 0, 1)
    assert done.returncode == 1
    assert "not what was expected" in done.stderr


def test_a_server_that_is_not_there_is_said(load: Path, tmp_path: Path) -> None:
    done = ask(load, tmp_path / "s", "/page", 1, 1, 0, 1)
    assert (done.returncode, done.stderr) == (1, "load: connect: No such file or directory\n")


def test_an_idle_machine_is_measured_for_as_long_as_was_said(load: Path) -> None:
    done = ask(load, "idle", 20)
    assert json.loads(done.stdout)["requests"] == 0
    assert json.loads(done.stdout)["guest_s"] >= 0.02
