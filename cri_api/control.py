"""The control protocol between ``cri-resmgr`` on the command line and the daemon.

One JSON object a line over the control socket. Request: ``{"command": NAME, "arguments": {...}}``. Reply:
``{"result": ...}`` or ``{"error": SENTENCE}``. A connection carries any number of requests, one after another.
"""

from __future__ import annotations

import json
from typing import Any

#: Longest request line in bytes; replies have no limit.
MAX_REQUEST = 1 << 20


class ControlError(Exception):
    """The daemon could not do what was asked. The message is for the terminal of the asker."""


def write_request(command: str, arguments: dict[str, Any]) -> bytes:
    return _line({"command": command, "arguments": arguments})


def read_request(line: bytes) -> tuple[str, dict[str, Any]]:
    """:raises ControlError: not a request."""
    try:
        document = json.loads(line)
        command, arguments = document["command"], document.get("arguments", {})
    except (ValueError, KeyError, TypeError):
        raise ControlError("a request is one line of JSON with a command") from None
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise ControlError("a request is a command (text) and arguments (an object)")
    return command, arguments


def write_result(result: Any) -> bytes:
    return _line({"result": result})


def write_error(sentence: str) -> bytes:
    return _line({"error": sentence})


def read_reply(line: bytes) -> Any:
    """The result of a reply.

    :raises ControlError: the daemon's own sentence, or that the reply is none.
    """
    try:
        document = json.loads(line)
    except ValueError:
        raise ControlError("the daemon closed the connection without an answer") from None
    if not isinstance(document, dict) or not document.keys() & {"error", "result"}:
        raise ControlError("the daemon's answer is none that this version understands")
    if "error" in document:
        raise ControlError(document["error"])
    return document["result"]


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
