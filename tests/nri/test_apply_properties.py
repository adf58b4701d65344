"""Whatever plugins ask for, of whatever request: nothing raises, and what no plugin names stays to the byte."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import unknown_fields
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import CLASSES, Cdi, NodeCapabilities
from cri_proxy.nri.apply import apply
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.merge import AdjustmentConflict, Merge
from cri_proxy.nri.view import view_container

#: Few words, so that adjustments meet what is there: names, paths, removals of them.
WORDS = st.sampled_from(
    [
        "",
        "A",
        "-A",
        "/a",
        "-/a",
        "/a/",
        "b",
        "-b",
        "bind",
        "ro",
        "rbind",
        "é",
        "-",
        "io.kubernetes.container.x",
    ]
)
#: What no version of CRI has: field 1015 of any message, as text.
UNKNOWN_NUMBER = 1015


def messages(kind: Any, depth: int = 6) -> st.SearchStrategy[Any]:
    """Any message of a class, with few values of each kind."""
    descriptor = kind.DESCRIPTOR
    names = [field.name for field in descriptor.fields]

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        message = kind()
        for name in draw(st.lists(st.sampled_from(names), max_size=5, unique=True)) if names else ():
            field = descriptor.fields_by_name[name]
            for _ in range(draw(st.integers(1, 2)) if _is_list(message, name) else 1):
                _set(draw, message, field, depth)
        return message

    return build()


def _set(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is None:
        value = draw(_scalars(field))
        target.append(value) if _is_list(message, field.name) else setattr(message, field.name, value)
    elif field.message_type.GetOptions().map_entry:
        key, value_field = draw(WORDS), field.message_type.fields_by_name["value"]
        if value_field.message_type is None:
            target[key] = draw(WORDS)
        else:
            target[key].SetInParent()
    elif depth:
        part = draw(messages(field.message_type._concrete_class, depth - 1))
        target.append(part) if _is_list(message, field.name) else target.CopyFrom(part)


def _is_list(message: Any, name: str) -> bool:
    return hasattr(getattr(message, name), "extend")


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return WORDS if field.type == FieldDescriptor.TYPE_STRING else st.sampled_from([b"", b"x", b"\xff"])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    most = {"UINT64": 64, "INT64": 63, "UINT32": 32, "INT32": 31}[_kind(field)]
    return st.sampled_from([0, 1, 5, (1 << most) - 1])


def _kind(field: FieldDescriptor) -> str:
    names = ("UINT64", "INT64", "UINT32", "INT32")
    return next(name for name in names if field.cpp_type == getattr(FieldDescriptor, f"CPPTYPE_{name}"))


def with_unknown_fields(message: Any) -> bytes:
    """The message's bytes, with an unknown field in it and in each message on the way to what is changed."""
    copied = type(message)()
    copied.CopyFrom(message)
    unknown = b"\xba\x3f\x03" + copied.DESCRIPTOR.name[:3].encode()
    copied.MergeFromString(unknown)
    for name in ("config", "linux", "resources", "security_context"):
        if name in copied.DESCRIPTOR.fields_by_name:
            part = getattr(copied, name)
            part.CopyFrom(type(part).FromString(with_unknown_fields(part)))
    return bytes(copied.SerializeToString())


def unknowns(request: cri.CreateContainerRequest) -> list[bytes]:
    """The unknown fields on the way to what is changed."""
    config = request.config
    places = (request, config, config.linux, config.linux.resources, config.linux.security_context)
    return [
        field.data
        for place in places
        for field in unknown_fields.UnknownFieldSet(place)
        if field.field_number == UNKNOWN_NUMBER
    ]


#: What adjustments may change of a config; all else must stay.
CHANGED = ("command", "args", "envs", "mounts", "devices", "annotations", "CDI_devices", "linux")
SITES = st.builds(
    NodeCapabilities,
    cgroup_v2=st.booleans(),
    hugetlb=st.booleans(),
    cdi=st.sampled_from(Cdi),
    classes=st.sets(st.sampled_from(CLASSES)),
    host_node=st.sampled_from([lambda _device: "", lambda _device: "/dev/zero"]),
)


@settings(max_examples=40)
@given(
    request=messages(cri.CreateContainerRequest),
    answers=st.lists(messages(nri.ContainerAdjustment), max_size=3),
    site=SITES,
)
def test_applying_never_raises_and_keeps_all_that_nobody_speaks_of(
    request: Any, answers: list[Any], site: NodeCapabilities
) -> None:
    status = cri.ContainerStatusResponse(status=cri.ContainerStatus(id="c1"))
    merge = Merge(view_container("p1", status, request.config))
    for number, answer in enumerate(answers):
        try:
            merge.add(f"0{number}-x", answer)
        except AdjustmentConflict as conflict:
            assert re.fullmatch(r'plugins "0\d-x" and "0\d-x" both tried to set \w+ .*', str(conflict))
    before = with_unknown_fields(request)
    result = apply(before, MergedAdjustment(merge.pristine, merge.adjust, merge.owners), site)
    was, now = (cri.CreateContainerRequest.FromString(message) for message in (before, result.request))
    # 1. Unknown fields, wherever they are.
    assert unknowns(now) == unknowns(was)
    assert len(unknowns(was)) == 5
    # 2. Entries that no adjustment names.
    assert _others(now.config, merge.adjust) == _others(was.config, merge.adjust)
    # 3. Known fields that adjustments do not speak of.
    for each in (was, now):
        for name in CHANGED:
            each.config.ClearField(name)
    assert now == was
    # 4. Nothing asked for, nothing changed.
    if not merge.adjust.ByteSize():
        assert result.request == before


def _others(config: cri.ContainerConfig, adjust: nri.ContainerAdjustment) -> list[Any]:
    """The entries of a config whose names adjustments do not speak of."""
    named = {entry.key for entry in adjust.env} | set(adjust.annotations)
    named |= {mount.destination for mount in adjust.mounts} | {device.path for device in adjust.linux.devices}

    def is_other(name: str) -> bool:
        return not named.intersection(
            (name, f"-{name}", name.rstrip("/"), f"-{name.rstrip('/')}", f"{name}/", f"-{name}/")
        )

    return [
        [env for env in config.envs if is_other(env.key)],
        [mount for mount in config.mounts if is_other(mount.container_path)],
        [device for device in config.devices if is_other(device.container_path)],
        {
            key: value
            for key, value in config.annotations.items()
            if not key.startswith(("io.", "cdi.")) and is_other(key)
        },
        None if adjust.args else [*config.command, *config.args],
    ]
