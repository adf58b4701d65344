"""Requests that are none are refused with one sentence; they cost no traceback, and no other call."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamReset, TrailersReceived

from cri_api import affinity_pb2 as pb
from tests.bpf.observer import RECONNECT, SERVICE, WAIT_S, ObserverProcess, serving_observer

GRAPH, GROUPS = f"{SERVICE}/GetGraph", f"{SERVICE}/GetGroups"
WATCH, TOPOLOGY = f"{SERVICE}/WatchGraph", f"{SERVICE}/GetNodeTopology"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
NAN, INFINITY = float("nan"), float("inf")
#: A field's start, and nothing of its eight bytes.
CUT_FIELD = b"\x09"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObserverProcess]:
    with serving_observer(tmp_path_factory.mktemp("requests")) as observer:
        yield observer


@pytest.fixture
def observer(serving: ObserverProcess) -> Iterator[ObserverProcess]:
    """It answers after each test as before, and has logged no traceback."""
    logged = serving.errors.stat().st_size
    yield serving
    assert serving.graph().status.provider == "replay"
    assert "Traceback" not in serving.errors.read_text()[logged:]


def refusal(
    observer: ObserverProcess, method: str, *requests: bytes, compression: Any = None
) -> tuple[str, str]:
    """The status and the sentence of a call with these requests."""
    with grpc.insecure_channel(f"unix:{observer.socket}", options=RECONNECT) as channel:
        ask = channel.stream_stream(method)
        with pytest.raises(grpc.RpcError) as refused:
            list(ask(iter(requests), timeout=WAIT_S, wait_for_ready=True, compression=compression))
    error: Any = refused.value
    return error.code().name, error.details()


MESSAGES = {
    GRAPH: "cri_resmgr.affinity.v1.GetGraphRequest",
    GROUPS: "cri_resmgr.affinity.v1.GetGroupsRequest",
    WATCH: "cri_resmgr.affinity.v1.WatchGraphRequest",
    TOPOLOGY: "cri_resmgr.affinity.v1.GetNodeTopologyRequest",
    HEALTH: "grpc.health.v1.HealthCheckRequest",
    REFLECTION: "grpc.reflection.v1.ServerReflectionRequest",
}


@pytest.mark.parametrize(("method", "message"), MESSAGES.items(), ids=MESSAGES.values())
def test_bytes_that_are_no_message(observer: ObserverProcess, method: str, message: str) -> None:
    told = refusal(observer, method, CUT_FIELD)
    assert told == ("INVALID_ARGUMENT", f"the request's bytes are no {message}")


WEIGHTS = {"negative": -1.0, "no number": NAN, "infinite": INFINITY, "negative infinite": -INFINITY}


@pytest.mark.parametrize("method", [GRAPH, GROUPS])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weights_out_of_range(observer: ObserverProcess, method: str, weight: float) -> None:
    message = pb.GetGraphRequest if method == GRAPH else pb.GetGroupsRequest
    request = message(least_weight=weight).SerializeToString()
    sentence = f"least_weight: {weight:g} is not a finite number of 0 or more"
    assert refusal(observer, method, request) == ("INVALID_ARGUMENT", sentence)


@pytest.mark.parametrize("method", [GRAPH, GROUPS, WATCH, TOPOLOGY, HEALTH])
def test_a_call_without_a_request(observer: ObserverProcess, method: str) -> None:
    sentence = "the call has ended before its request"
    assert refusal(observer, method) == ("INVALID_ARGUMENT", sentence)


@pytest.mark.parametrize("method", [GRAPH, WATCH, REFLECTION])
def test_a_request_that_is_too_long(observer: ObserverProcess, method: str) -> None:
    sentence = "the request has 65537 bytes; 65536 are the most"
    assert refusal(observer, method, bytes(65_537)) == ("RESOURCE_EXHAUSTED", sentence)


def test_a_request_that_is_compressed(observer: ObserverProcess) -> None:
    long_enough = b"\x12\x7f" + bytes(127)  # an unknown field, which alone would be ignored
    code, sentence = refusal(observer, GRAPH, long_enough, compression=grpc.Compression.Gzip)
    assert (code, sentence) == (
        "UNIMPLEMENTED",
        "the request is compressed, which this service does not read",
    )


def test_fields_of_later_versions_are_ignored(observer: ObserverProcess) -> None:
    with observer.channel() as channel:
        graph = channel.unary_unary(GRAPH)(b"\x12\x02ab", timeout=WAIT_S, wait_for_ready=True)
    assert pb.Graph.FromString(graph).status.provider == "replay"


# ---------------------------------------------------------------- below gRPC's clients


def exchange(observer: ObserverProcess, data: bytes, calls: int = 1) -> list[dict[str, str]]:
    """What the service answers to calls of GetGraph with these bytes, on one connection: all of their headers."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    told: list[dict[str, str]] = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(observer.socket))
        client.initiate_connection()
        for _ in range(calls):
            stream = client.get_next_available_stream_id()
            client.send_headers(
                stream,
                {
                    ":method": "POST",
                    ":scheme": "http",
                    ":authority": "localhost",
                    ":path": GRAPH,
                    "te": "trailers",
                    "content-type": "application/grpc",
                }.items(),
            )
            client.send_data(stream, data, end_stream=True)
            connection.sendall(client.data_to_send())
            told.append(_reply(client, connection))
    return told


def _reply(client: H2Connection, connection: socket.socket) -> dict[str, str]:
    headers: dict[str, str] = {}
    while "grpc-status" not in headers:
        for event in client.receive_data(connection.recv(65536)):
            assert not isinstance(event, (ConnectionTerminated, StreamReset)), event
            if isinstance(event, (ResponseReceived, TrailersReceived)):
                headers.update(event.headers)
        connection.sendall(client.data_to_send())
    return headers


CUT = {"in its length": b"\0\0\0", "in its bytes": struct.pack(">BI", 0, 9) + CUT_FIELD}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT.keys())
def test_a_request_that_is_cut(observer: ObserverProcess, data: bytes) -> None:
    (told,) = exchange(observer, data)
    invalid = str(grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert (told["grpc-status"], told["grpc-message"]) == (invalid, "the call has ended before its request")


def test_many_refusals_leave_the_connection_its_window(observer: ObserverProcess) -> None:
    rubbish = struct.pack(">BI", 0, 2**32 - 1) + bytes(16_000)
    # More than the 4 MiB that a connection may have on their way.
    told = exchange(observer, rubbish, calls=300)
    exhausted = str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert [headers["grpc-status"] for headers in told] == [exhausted] * 300


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(99)]
)
def test_what_is_no_http_2_is_hung_up_on(observer: ObserverProcess, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(observer.socket))
        connection.sendall(data)
        while connection.recv(65536):
            pass
