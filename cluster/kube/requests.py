"""Requests to an API server: paths and queries of kinds of objects, and the errors that a request ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional
from urllib.parse import quote, urlencode

from cluster.kube.document import read_json


class Resource(NamedTuple):
    """A kind of object as paths name it; the group "" is the core's."""

    group: str
    version: str
    plural: str
    namespaced: bool = False


LEASES = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)


def path(resource: Resource, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Of one object, or of all (of a namespace) if ``name`` is "".

    :raises ValueError: an object of a namespace is named without it.
    """
    if resource.namespaced and name and not namespace:
        raise ValueError(f"{resource.plural} {name!r} is named without its namespace")
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def target(where: str, query: Mapping[str, str]) -> str:
    """A path with those parameters that have a value."""
    given = {name: value for name, value in query.items() if value}
    return f"{where}?{urlencode(given)}" if given else where


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


#: The server will not take it, however often it is sent.
HOPELESS = (400, 403, 404, 405, 413, 422)


def asked_for(error: Exception) -> Optional[float]:
    """The seconds that the server wants to be left alone for; None: it has not said."""
    return getattr(error, "retry_after_s", None)


def refusal(status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Out of an answer: a Status object, or whatever a proxy in between has said."""
    try:
        said: Any = read_json(body)
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


def is_older(one: str, other: str) -> bool:
    """Of two resourceVersions. They are numbers for Kubernetes' own kinds and those of CRDs (KEP-5504)."""
    return one.isdigit() and other.isdigit() and int(one) < int(other)
