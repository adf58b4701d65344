"""Spans of a real daemon's calls at a small collector: their parents, and what a collector that is away costs."""

from __future__ import annotations

import asyncio
import http.server
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.cri_client import CriClient, container_config, create_request
from tests.functional.conftest import HANG_S, StartAgent, cpus_of
from tests.functional.nri.support import hosting, plugin
from tests.functional.support import reloaded

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


class Collector:
    """Takes OTLP/HTTP; ``next`` is the next span."""

    def __init__(self) -> None:
        self.spans: queue.Queue[dict[str, Any]] = queue.Queue()
        spans = self.spans

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
                for resource in body["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        for span in scope["spans"]:
                            spans.put(span)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_arguments: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    async def next(self) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(None, self.spans.get, True, HANG_S)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest_asyncio.fixture
async def traced(start_agent: StartAgent, collector: Collector) -> Agent:
    return await start_agent(tracing={"endpoint": collector.endpoint})


async def create(client: CriClient, traceparent: str, name: str) -> str:
    pod = await client.run_pod(name)
    request = create_request(pod, container_config("app", cpu_limit=1000))
    reply = await client.call(
        "CreateContainer", request, metadata=(("traceparent", traceparent), ("tracestate", "a=b"))
    )
    return str(reply.container_id)


async def test_a_call_that_is_traced_has_a_span_under_its_callers(runtime, traced, collector) -> None:
    async with CriClient(traced.socket) as client:
        await create(client, UNSAMPLED, "quiet")
        made = await create(client, SAMPLED, "web")
    span = await collector.next()
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, PARENT)
    assert span["name"] == "runtime.v1.RuntimeService/CreateContainer"
    attributes = {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
    assert attributes["cri_resmgr.container"] == "default/web/app"
    assert attributes["cri_resmgr.cpus"] == runtime.cpuset(made)
    assert attributes["rpc.grpc.status_code"] == "0"
    times = [
        int(span["startTimeUnixNano"]),
        *(int(e["timeUnixNano"]) for e in span["events"]),
        int(span["endTimeUnixNano"]),
    ]
    assert times == sorted(times) and len(times) == 4
    # The header is the runtime's to read as it came; the call that is not recorded has no span.
    seen = [dict(call.metadata)["traceparent"] for call in runtime.calls_of("CreateContainer")]
    assert seen == [UNSAMPLED, SAMPLED]
    assert collector.spans.empty()


async def test_the_header_goes_on_where_plugins_are_asked(runtime, start_agent, collector) -> None:
    agent = await start_agent(tracing={"endpoint": collector.endpoint}, nri=hosting())
    async with plugin(agent), CriClient(agent.socket) as client:
        await create(client, SAMPLED, "web")
    span = await collector.next()
    assert span["parentSpanId"] == PARENT
    assert span["events"][0]["name"] == "decided: plugins are asked"
    metadata = dict(runtime.calls_of("CreateContainer")[0].metadata)
    assert (metadata["traceparent"], metadata["tracestate"]) == (SAMPLED, "a=b")


async def test_a_collector_that_is_away_is_told_of_and_costs_no_call(runtime, start_agent, collector) -> None:
    away = Collector()
    away.close()
    agent = await start_agent(tracing={"endpoint": away.endpoint})
    async with CriClient(agent.socket) as client:
        made = await create(client, SAMPLED, "web")
        assert cpus_of(runtime, made)
        await agent.logged("spans cannot be sent to " + away.endpoint)
        # A reload sends them elsewhere.
        agent.write_config({"tracing": {"endpoint": collector.endpoint}})
        await reloaded(agent)
        await create(client, SAMPLED, "again")
    span = await collector.next()
    assert span["parentSpanId"] == PARENT
