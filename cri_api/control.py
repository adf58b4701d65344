"""The control protocol between ``cri-resmgr`` on the command line and the daemon.

One JSON object a line over the control socket. Request: ``{"command": NAME, "arguments": {...}}``. Reply:
``{"result": ...}`` or ``{"error": SENTENCE}``. A connection carries any number of requests, one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cri_api.printable import printable

#: Longest request line in bytes; replies have no limit.
MAX_REQUEST = 1 << 18
#: Rows of an answer that are written at once: half a millisecond.
ROWS = 100


class ControlError(Exception):
    """The daemon could not do what was asked. The message is for the terminal of the asker."""


def write_request(command: str, arguments: dict[str, Any]) -> bytes:
    return _line({"command": command, "arguments": arguments})


def read_request(line: bytes) -> tuple[str, dict[str, Any]]:
    """:raises ControlError: not a request."""
    try:
        document = json.loads(line)
        command, arguments = document["command"], document.get("arguments", {})
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ControlError("a request is one line of JSON with a command") from None
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise ControlError("a request is a command (text) and arguments (an object)")
    return command, arguments


def write_result(result: Any) -> bytes:
    return _line({"result": result})


def write_result_in_pieces(result: Any) -> Iterator[bytes]:
    """The same bytes, some at a time: of an object's lists no more than ``ROWS`` rows are written at once."""
    if not isinstance(result, dict) or not any(_is_long(value) for value in result.values()):
        yield write_result(result)
        return
    before = b'{"result":{'
    for key, value in result.items():
        yield before + _json(key if isinstance(key, str) else str(key)) + b":"
        before = b","
        if not _is_long(value):
            yield _json(value)
            continue
        for first in range(0, len(value), ROWS):
            yield (b"," if first else b"[") + _json(value[first : first + ROWS])[1:-1]
        yield b"]"
    yield b"}}\n"


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > ROWS


def write_error(sentence: str) -> bytes:
    return _line({"error": sentence})


def read_reply(line: bytes) -> Any:
    """The result of a reply.

    :raises ControlError: the daemon's own sentence, or that the reply is none.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ControlError("the daemon closed the connection without an answer") from None
    if not isinstance(document, dict) or not document.keys() & {"error", "result"}:
        raise ControlError("the daemon's answer is none that this version understands")
    if "error" in document:
        raise ControlError(printable(document["error"]))
    return document["result"]


def _line(document: dict[str, Any]) -> bytes:
    return _json(document) + b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
