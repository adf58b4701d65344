"""Our CRI is the newest release's, name by name and number by number: what it lacks passes as bytes, and is not read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest
from google.protobuf import descriptor_pb2

from cri_api import runtime_v1_pb2 as cri
from tests.agent import ROOT
from tests.peers.programs import Unavailable, find

#: The descriptor of one thing by its kind and its path: ("field", "Mount.readonly").
Facts = Mapping[tuple[str, str], Any]

OURS = ROOT / "cri_api"
#: What is ours only, or other than in the CRI, and why.
ON_PURPOSE: Mapping[str, Mapping[tuple[str, str], str]] = {
    "runtime_v1.proto": {},
    "runtime_listing.proto": {
        ("field", "Container.state"): "an enum is a number on the wire, and its names take memory",
        ("field", "PodSandbox.state"): "as that of a container",
    },
}


@pytest.fixture(scope="module")
def theirs() -> Path:
    try:
        return find("api.proto")["api.proto"]
    except Unavailable as reason:
        pytest.skip(f"The CRI is that of k8s.io/cri-api: {reason}.")


def test_the_cri_is_ours_whole(theirs: Path, tmp_path: Path) -> None:
    ours, newest = facts_of(OURS / "runtime_v1.proto", tmp_path), facts_of(theirs, tmp_path)
    purposes = ON_PURPOSE["runtime_v1.proto"]
    # What a look finds is more than a look that finds nothing.
    assert {kind for kind, _ in newest} == {"message", "field", "enum", "value", "method"}
    assert {key: newest[key] for key in newest if key not in ours and key not in purposes} == {}
    assert {key: ours[key] for key in ours if key not in newest and key not in purposes} == {}
    differ = {key for key in ours.keys() & newest.keys() if ours[key] != newest[key]}
    assert {key: (ours[key], newest[key]) for key in sorted(differ - purposes.keys())} == {}
    assert sorted(purposes.keys() - differ - (ours.keys() ^ newest.keys())) == []


def test_the_short_lists_are_a_part_of_it(theirs: Path, tmp_path: Path) -> None:
    ours, newest = facts_of(OURS / "runtime_listing.proto", tmp_path), facts_of(theirs, tmp_path)
    differ = {key for key in ours if ours[key] != newest.get(key, "none")}
    assert differ == ON_PURPOSE["runtime_listing.proto"].keys()
    # They name a number of the same size on the wire.
    assert all(ours[key][0] == newest[key][0] for key in differ)


@pytest.mark.parametrize(
    "message",
    [cri.Mount(container_path="/data", mount_options=["noexec"]), cri.RuntimeFeatures(mount_options=True)],
)
def test_the_newest_fields_are_read_and_are_the_bytes_that_passed_before(message: Any) -> None:
    raw = message.SerializeToString()
    before = type(message).FromString(raw)
    assert before.mount_options
    assert before.SerializeToString() == raw


def test_a_field_that_no_release_has_passes() -> None:
    raw = cri.Mount(container_path="/data").SerializeToString() + b"\xfa\x7f\x03new"  # field 2047
    assert cri.Mount.FromString(raw).SerializeToString() == raw


# ---------------------------------------------------------------------- helpers


def facts_of(proto: Path, folder: Path) -> Facts:
    """Messages, fields, enums, values and methods of a file."""
    out = folder / "descriptors"
    command = (sys.executable, "-m", "grpc_tools.protoc", f"-I{proto.parent}", f"--descriptor_set_out={out}")
    subprocess.run((*command, str(proto)), check=True, timeout=60)
    [file] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    found = dict(_messages(file.message_type, ""))
    found.update(_enums(file.enum_type, ""))
    for service in file.service:
        for method in service.method:
            ends = (_name(method.input_type), _name(method.output_type))
            streams = (method.client_streaming, method.server_streaming)
            found["method", f"{service.name}.{method.name}"] = (*ends, *streams)
    return found


def _messages(messages: Any, inside: str) -> Iterator[tuple[tuple[str, str], Optional[tuple[Any, ...]]]]:
    for message in messages:
        path = f"{inside}{message.name}"
        yield ("message", path), None
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            kind = (field.number, field.type, field.label, _name(field.type_name), oneof)
            yield ("field", f"{path}.{field.name}"), kind
        yield from _enums(message.enum_type, f"{path}.")
        yield from _messages(message.nested_type, f"{path}.")


def _enums(enums: Any, inside: str) -> Iterator[tuple[tuple[str, str], Optional[int]]]:
    for enum in enums:
        yield ("enum", f"{inside}{enum.name}"), None
        for value in enum.value:
            yield ("value", f"{inside}{enum.name}.{value.name}"), value.number


def _name(type_name: str) -> str:
    """Without the package, which is of our own here."""
    return type_name.rpartition(".")[2]
