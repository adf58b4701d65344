"""A span for each intercepted call whose caller traces it, and the text in which OTLP/HTTP takes spans. Pure.

The caller's header is that of W3C Trace Context, level 1 (www.w3.org/TR/trace-context); the text is the JSON encoding of
OTLP 1.x (opentelemetry.io/docs/specs/otlp); names of attributes come from OpenTelemetry's conventions for gRPC.
A call without the header, or whose caller does not record it, has no span: the caller decides how many there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional

from cri_proxy.relay.interception import Answer, CallEnd, Forward, Interception, Outcome, Refuse

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
#: SPAN_KIND_SERVER, STATUS_CODE_ERROR (opentelemetry-proto, trace.proto).
_SERVER, _ERROR = 2, 2


class TraceParent(NamedTuple):
    """The span that a call belongs under, in lower-case hexadecimal."""

    trace_id: str
    span_id: str


def sampled_caller(traceparent: str) -> Optional[TraceParent]:
    """The caller's span, if it is recorded; None: it is not, or the header is none of the standard's."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # Version ff is forbidden; later versions may have more behind, this one has not (2.3 and 3.2.2 of the standard).
    if version == "ff" or (version == "00" and more) or not int(flags, 16) & _SAMPLED:
        return None
    return TraceParent(trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None


@dataclass
class Span:
    """One call. Times in nanoseconds since 1970. ``events``: what happened when, in its order."""

    caller: TraceParent
    span_id: str
    full_method: str
    start_ns: int
    end_ns: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    message: str = ""


class TracedInterception:
    """An interception whose steps are noted; ``done`` gets the span once the call is over."""

    def __init__(
        self, inner: Interception, span: Span, now_ns: Callable[[], int], done: Callable[[Span], None]
    ) -> None:
        self._inner = inner
        self._span = span
        self._now_ns = now_ns
        self._done = done

    @property
    def filter(self) -> Optional[Callable[[bytes], Optional[bytes]]]:
        return self._inner.filter

    async def request(self, message: bytes) -> Outcome:
        outcome = await self._inner.request(message)
        self._span.events.append((self._now_ns(), _decision(outcome)))
        return outcome

    async def replied(self, message: bytes) -> None:
        if len(self._span.events) < 2:  # of a stream, the first
            self._span.events.append((self._now_ns(), "the runtime replied"))
        await self._inner.replied(message)

    async def ended(self, end: CallEnd, code: int, details: str) -> None:
        try:
            await self._inner.ended(end, code, details)
        finally:
            span = self._span
            span.end_ns, span.code, span.message = self._now_ns(), code, details
            fields = dict(getattr(self._inner, "fields", {}))
            describe = fields.pop("describe", dict)
            span.attributes.update({**describe(), **fields})
            self._done(span)


def _decision(outcome: Outcome) -> str:
    if isinstance(outcome, Forward):
        return (
            f"decided: {len(outcome.delta)} bytes are added"
            if outcome.delta
            else "decided: it passes as it is"
        )
    if isinstance(outcome, Refuse):
        return "decided: refused"
    assert isinstance(outcome, Answer)
    return "decided: plugins are asked"


def write_spans(spans: Iterable[Span], resource: Mapping[str, str]) -> bytes:
    """The body of a POST to /v1/traces, application/json."""
    scope = {"scope": {"name": "cri-resmgr"}, "spans": [_written(span) for span in spans]}
    document = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}
    return json.dumps(document, separators=(",", ":")).encode()


def _written(span: Span) -> dict[str, Any]:
    service, _, method = span.full_method.lstrip("/").partition("/")
    known = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": span.code,
    }
    own = {
        f"cri_resmgr.{key}": value for key, value in span.attributes.items() if key not in ("code", "details")
    }
    return {
        "traceId": span.caller.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.caller.span_id,
        "name": f"{service}/{method}",
        "kind": _SERVER,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes({**known, **own}),
        "events": [{"timeUnixNano": str(at_ns), "name": name} for at_ns, name in span.events],
        "status": {"code": _ERROR, "message": span.message} if span.code else {},
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits are text in the JSON of protobuf
    if isinstance(value, float):
        return {"doubleValue": value}
    # Half of a surrogate pair is no UTF-8, and a collector would refuse all spans that come with it.
    return {"stringValue": str(value).encode(errors="replace").decode()}
