"""What the relay and the deciding code say to each other; independent of the transport.

A transport asks ``Interceptor.open`` for every call. None means: bytes through. Else it hands over the
request message, does what the ``Outcome`` says, and reports the reply and the end.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from enum import Enum
from typing import Callable, Optional, Protocol, Union

from cri_proxy.relay.status import Code, Metadata
from policies.frozen import frozen

#: CRI versions have the same messages under two service names.
RUNTIME_SERVICES = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")

#: Methods whose request or reply is read. Every other method, of any service, passes as bytes.
INTERCEPTED = frozenset(
    [
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "UpdatePodSandboxResources",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "UpdateContainerResources",
        "RestorePod",
        "GetContainerEvents",
    ]
)


#: Methods that show containers and sandboxes: intercepted as well while plugins of other projects are connected,
#: for what is not finished must not be seen.
SHOWING = frozenset(
    [
        "ListContainers",
        "StreamContainers",
        "ContainerStatus",
        "ListPodSandbox",
        "StreamPodSandboxes",
        "PodSandboxStatus",
        "ListContainerStats",
        "StreamContainerStats",
        "ContainerStats",
        "ListPodSandboxStats",
        "StreamPodSandboxStats",
        "PodSandboxStats",
        "ListPodSandboxMetrics",
        "StreamPodSandboxMetrics",
    ]
)


#: The headers by which programs hand a trace on (W3C Trace Context and Baggage).
TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
#: Those of the call that an ``Answer`` is being made for: they go with the client's request to the runtime.
TRACE: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("trace", default=())


_INTERCEPTED = {f"{service}/{method}": method for service in RUNTIME_SERVICES for method in INTERCEPTED}


def runtime_method(full_method: str) -> str:
    """The short name of a method of the runtime service, ``/runtime.v1.RuntimeService/CreateContainer``; else ""."""
    service, _, method = full_method.lstrip("/").partition("/")
    return method if service in RUNTIME_SERVICES else ""


def intercepted(full_method: str) -> str:
    """The short name of a method that is always intercepted; else ""."""
    return _INTERCEPTED.get(full_method.lstrip("/"), "")


@frozen
class Forward:
    """Send the request on, with these bytes appended (none: the same bytes)."""

    delta: bytes = b""


@frozen
class Refuse:
    """Answer with a gRPC status; nothing is sent to the runtime."""

    code: int
    message: str


@frozen
class Answer:
    """Make the reply ourselves: a coroutine that may call the runtime. Used while an NRI plugin is connected.

    What was begun is finished: when the client goes away or its deadline passes, the coroutine runs on (a half
    made container would have no record), and ``ended`` is called once it is over, with how it ended. Only a stop of
    the daemon cancels it, after the drain. It fails by raising ``AnswerFailed``.
    """

    reply: Callable[[], Awaitable[bytes]]


class AnswerFailed(Exception):
    """The status an answer ends with: one of our own, or the runtime's as it came, with its trailers.

    ``in_doubt``: the runtime has got a call, and how that ended is not known, though the code is one of an error.
    """

    def __init__(self, code: int, message: str, trailers: Metadata = (), in_doubt: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trailers = tuple(trailers)
        self._in_doubt = in_doubt

    @property
    def end(self) -> CallEnd:
        """How the call ended. An answer is several calls: also after one that was not sent others may have been."""
        return CallEnd.UNKNOWN if self._in_doubt else end_of(self.code, True)


Outcome = Union[Forward, Refuse, Answer]


class CallEnd(Enum):
    """How a call ended that was sent to the runtime."""

    OK = "ok"
    REFUSED = "refused"  # the runtime answered with an error of its own: nothing has happened
    UNKNOWN = "unknown"  # client gone, deadline passed, connection lost: not known


#: Those that do not tell whether the runtime has done it. UNKNOWN does: it is its own word for most errors.
_DOUBTFUL = frozenset([Code.CANCELLED, Code.DEADLINE_EXCEEDED])


def end_of(code: int, sent: bool) -> CallEnd:
    """Classify a gRPC status (design rule 3). ``sent``: the request may have reached the runtime.

    UNAVAILABLE from a connection that never was means nothing was sent; from one that broke, it is not known.
    """
    if code == 0:
        return CallEnd.OK
    if code in _DOUBTFUL or (code == Code.UNAVAILABLE and sent):
        return CallEnd.UNKNOWN
    return CallEnd.REFUSED


class Interception(Protocol):
    """One intercepted call."""

    #: Applied to each reply message, after ``replied``, when set: whole list entries cut out. None as its result:
    #: the message is left out (of a server stream). Asked for anew with every message: it may be set while a call
    #: lasts. Used while an NRI plugin is connected.
    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]: ...

    async def request(self, message: bytes) -> Outcome:
        """Decide about the request message. Never raises: what cannot be decided goes through."""
        ...

    async def replied(self, message: bytes) -> None:
        """A reply message has come; called before it is passed on."""
        ...

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        """The call is over. Called exactly once after ``request`` began, also when the client is gone.

        ``end`` is REFUSED also if nothing was sent to the runtime. Of an answer: when the coroutine is over.
        """
        ...


#: May put something around the interception of a call: its full method, its ``traceparent`` ("" = none).
Around = Callable[[str, str, Interception], Interception]


def as_it_is(full_method: str, traceparent: str, interception: Interception) -> Interception:
    """Nothing is put around."""
    return interception


class Interceptor(Protocol):
    """Makes an ``Interception`` for the calls that need one."""

    def open(self, full_method: str) -> Optional[Interception]:
        """None: the call passes as bytes."""
        ...
