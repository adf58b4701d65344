"""Kubelet's probe against a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.probe.__main__ import ask, main
from cri_api.control import write_error, write_result


@contextlib.contextmanager
def served(path: Path, answer: bytes) -> Iterator[None]:
    """A daemon that gives one caller this answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                if lines.readline():
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("answer", "healthy", "problem"),
    [
        (write_result({"degraded": {}}), True, ""),
        (write_result({"degraded": {"state": "the disk is full"}}), False, ""),
        (write_result({"degraded": {"state": "the disk is full"}}), True, "the disk is full"),
        (write_error("it is starting"), False, "it is starting"),
        (b"", False, "without an answer"),
    ],
)
def test_the_daemons_answer_decides(folder: Path, answer: bytes, healthy: bool, problem: str) -> None:
    with served(folder / "s", answer):
        said = ask(str(folder / "s"), healthy)
    assert (problem in said) if problem else said == ""


def test_a_socket_that_is_only_served_is_enough_to_connect(folder: Path) -> None:
    with served(folder / "s", b""):
        assert main(["--connect", str(folder / "s")]) == 0


def test_a_socket_that_is_not_served_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "none")]) == 1
    assert f"{folder}/none: No such file" in capsys.readouterr().err
