"""Spans: which calls have one, what it says, and how it is written."""

from __future__ import annotations

import json
from typing import Optional

import pytest

from cri_proxy.relay.interception import Answer, CallEnd, Forward, Outcome, Refuse
from cri_proxy.tracing.spans import Span, TracedInterception, TraceParent, sampled_caller, write_spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CREATE = "/runtime.v1.RuntimeService/CreateContainer"


class Call:
    """An interception that decides as it is told; ``fields`` as the log line has them."""

    filter = None

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.fields = {"container": "default/web/app", "us": 120, "code": 9}

    async def request(self, message: bytes) -> Outcome:
        return self.outcome

    async def replied(self, message: bytes) -> None: ...

    async def ended(self, end: CallEnd, code: int, details: str) -> None: ...


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", TraceParent(TRACE, PARENT)),
        (f"00-{TRACE}-{PARENT}-ff", TraceParent(TRACE, PARENT)),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-brings", TraceParent(TRACE, PARENT)),
        (f"00-{TRACE}-{PARENT}-00", None),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"cc-{TRACE}-{PARENT}-01.more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE[1:]}-{PARENT}-01", None),
        ("", None),
        ("rubbish", None),
    ],
)
def test_only_calls_that_are_recorded_have_a_span(text: str, expected: Optional[TraceParent]) -> None:
    assert sampled_caller(text) == expected


async def nothing() -> bytes:
    return b""


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Forward(), "decided: it passes as it is"),
        (Forward(b"abc"), "decided: 3 bytes are added"),
        (Refuse(9, "no"), "decided: refused"),
        (Answer(nothing), "decided: plugins are asked"),
    ],
)
async def test_the_span_of_a_call_says_what_was_decided(outcome: Outcome, said: str) -> None:
    clock = iter(range(101, 200))
    done: list[Span] = []
    span = Span(TraceParent(TRACE, PARENT), "1" * 16, CREATE, 100)
    call = TracedInterception(Call(outcome), span, lambda: next(clock), done.append)
    assert await call.request(b"asked") is outcome
    await call.replied(b"one")
    await call.replied(b"two")
    await call.ended(CallEnd.REFUSED, 9, "no room")
    assert done == [span]
    assert span.events == [(101, said), (102, "the runtime replied")]
    assert (span.end_ns, span.code, span.message) == (103, 9, "no room")


async def test_a_call_whose_end_fails_has_its_span_all_the_same() -> None:
    class Failing(Call):
        async def ended(self, end: CallEnd, code: int, details: str) -> None:
            raise RuntimeError("a bug")

    done: list[Span] = []
    span = Span(TraceParent(TRACE, PARENT), "1" * 16, CREATE, 100)
    call = TracedInterception(Failing(Forward()), span, lambda: 1, done.append)
    with pytest.raises(RuntimeError):
        await call.ended(CallEnd.OK, 0, "")
    assert done == [span]


def test_a_span_is_written_as_otlp_has_it_in_json() -> None:
    span = Span(
        TraceParent(TRACE, PARENT),
        "00f067aa0ba902b7",
        CREATE,
        10,
        30,
        [(20, "decided")],
        code=9,
        message="no",
    )
    span.attributes = {"container": "default/web/app", "us": 120, "share": 0.5, "told": True, "code": 9}
    document = json.loads(write_spans([span], {"service.name": "x"}))
    (resource,) = document["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "x"}}]
    ((written,),) = [scope["spans"] for scope in resource["scopeSpans"]]
    attributes = {item["key"]: item["value"] for item in written.pop("attributes")}
    assert written == {
        "traceId": TRACE,
        "spanId": "00f067aa0ba902b7",
        "parentSpanId": PARENT,
        "name": "runtime.v1.RuntimeService/CreateContainer",
        "kind": 2,
        "startTimeUnixNano": "10",
        "endTimeUnixNano": "30",
        "events": [{"timeUnixNano": "20", "name": "decided"}],
        "status": {"code": 2, "message": "no"},
    }
    assert attributes == {
        "rpc.system": {"stringValue": "grpc"},
        "rpc.service": {"stringValue": "runtime.v1.RuntimeService"},
        "rpc.method": {"stringValue": "CreateContainer"},
        "rpc.grpc.status_code": {"intValue": "9"},
        "cri_resmgr.container": {"stringValue": "default/web/app"},
        "cri_resmgr.us": {"intValue": "120"},
        "cri_resmgr.share": {"doubleValue": 0.5},
        "cri_resmgr.told": {"boolValue": True},
    }
