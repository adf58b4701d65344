"""Server reflection, as grpcurl and other clients without the .proto use it."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpclib.reflection.v1 import reflection_pb2 as reflection

from tests.bpf.observer import SERVICE, WAIT_S, ObserverProcess, call, serving_observer

NAME = SERVICE.strip("/")
REFLECTION = ("grpc.reflection.v1", "grpc.reflection.v1alpha")


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObserverProcess]:
    """One that serves; no test changes it."""
    with serving_observer(tmp_path_factory.mktemp("reflection")) as observer:
        yield observer


def ask(
    observer: ObserverProcess, version: str, *requests: reflection.ServerReflectionRequest
) -> list[reflection.ServerReflectionResponse]:
    """The replies to these requests, in one call; both versions of the protocol have the same messages."""
    with observer.channel() as channel:
        info = channel.stream_stream(
            f"/{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection.ServerReflectionResponse.FromString,
        )
        return list(info(iter(requests), timeout=WAIT_S, wait_for_ready=True))


@pytest.mark.parametrize("version", REFLECTION)
def test_the_services_are_listed(observer: ObserverProcess, version: str) -> None:
    (reply,) = ask(observer, version, reflection.ServerReflectionRequest(list_services=""))
    assert {found.name for found in reply.list_services_response.service} == {NAME, "grpc.health.v1.Health"}


@pytest.mark.parametrize("version", REFLECTION)
def test_a_client_without_the_proto_calls_by_what_reflection_tells(
    observer: ObserverProcess, version: str
) -> None:
    (reply,) = ask(observer, version, reflection.ServerReflectionRequest(file_containing_symbol=NAME))
    pool = DescriptorPool()
    for described in reply.file_descriptor_response.file_descriptor_proto:
        pool.Add(FileDescriptorProto.FromString(described))
    methods = pool.FindServiceByName(NAME).methods_by_name
    assert set(methods) == {"GetGraph", "WatchGraph", "GetGroups", "GetNodeTopology"}
    get_graph = methods["GetGraph"]
    request = GetMessageClass(get_graph.input_type)()
    with observer.channel() as channel:
        graph = call(channel, "GetGraph", request, GetMessageClass(get_graph.output_type))
    assert graph.status.provider == "replay"


@pytest.mark.parametrize("version", REFLECTION)
def test_what_is_unknown_costs_its_own_reply_only(observer: ObserverProcess, version: str) -> None:
    unknown, listed = ask(
        observer,
        version,
        reflection.ServerReflectionRequest(file_containing_symbol="no.such.Service"),
        reflection.ServerReflectionRequest(list_services=""),
    )
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert listed.list_services_response.service
