"""What can become of a request: an answer that refuses it, or none."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Optional


class Cause(NamedTuple):
    """One of several causes of a refusal: the API's word, the field it is about, a sentence."""

    reason: str
    field: str
    message: str


class ApiError(Exception):
    """The server's refusal. ``status``: HTTP's number; ``reason``: the API's word, such as NotFound or Conflict."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after_s: Optional[float] = None,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.causes = causes


class Unreachable(Exception):
    """No answer. A request that changes something may have been carried out."""


def refusal(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Out of an answer: a Status object, or whatever a proxy in between has said."""
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = None
    wait = float(retry_after) if retry_after.isdecimal() else None
    if isinstance(said, dict) and said.get("kind") == "Status":
        return of_status(said, status, wait)
    return ApiError(status, "", body[:200].decode(errors="replace").strip(), wait)


def of_status(said: dict[str, Any], status: int = 0, retry_after_s: Optional[float] = None) -> ApiError:
    """Out of a Status object, which is also what a watch ends with."""
    details = said.get("details") or {}
    if retry_after_s is None and details.get("retryAfterSeconds"):
        retry_after_s = float(details["retryAfterSeconds"])
    number = int(said.get("code") or status)
    causes = tuple(
        Cause(*(str(each.get(key) or "") for key in Cause._fields)) for each in details.get("causes") or ()
    )
    reason, message = str(said.get("reason") or ""), str(said.get("message") or "")
    return ApiError(number, reason, message, retry_after_s, causes)
