"""Every field that a plugin can set, as NRI's own definition has them: docs/nri.md tells what becomes of it, and it does.

A field is set alone, in a container that has it otherwise, on a node that can do all that CRI can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from cri_api import nri_v1alpha1_pb2 as nri
from cri_api import runtime_v1_pb2 as cri
from cri_proxy.config.options.nri_capabilities import NodeCapabilities
from cri_proxy.nri.apply import apply, resources_of
from cri_proxy.nri.draft import MergedAdjustment
from cri_proxy.nri.merge import Merge, MergedUpdates

NODE = NodeCapabilities(cgroup_v2=True, host_node=lambda device: "/dev/zero")
#: Values that are not like any other of their type.
MOUNT = nri.Mount(destination="/m", source="/s", type="bind", options=["rbind"])
DEVICE = nri.LinuxDevice(path="/dev/z", type="c", major=1, minor=5)
SAMPLES = {"Mount": MOUNT, "LinuxDevice": DEVICE}
TEXT = (Path(__file__).parents[2] / "docs/nri.md").read_text()
#: Whose effect is not on the container.
OF_UPDATES = {"container_id": "carried", "ignore_failure": "carried"}


def paths(of: Descriptor, above: str = "") -> Iterator[str]:
    """Fields by their paths: those of messages, down to lists, maps and single values."""
    for field in of.fields:
        path = f"{above}{field.name}"
        if is_inner(field):
            yield from paths(field.message_type, f"{path}.")
        else:
            yield path


def is_inner(field: FieldDescriptor) -> bool:
    return bool(
        field.message_type is not None
        and not is_repeated(field)
        and not field.message_type.name.startswith("Optional")
    )


def is_repeated(field: FieldDescriptor) -> bool:
    found = getattr(field, "is_repeated", None)  # from protobuf 6.31 on; the other way warns there
    return field.label == FieldDescriptor.LABEL_REPEATED if found is None else bool(found)


def set_alone(message: Any, path: str) -> None:
    """Give the field at a path some value, in an empty message."""
    *above, name = path.split(".")
    for each in above:
        message = getattr(message, each)
        message.SetInParent()
    fill(message, message.DESCRIPTOR.fields_by_name[name])


def fill(message: Any, field: FieldDescriptor) -> None:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        if kind.message_type is None:
            value["x"] = scalar(kind)
        else:
            fill_all(value["x"])
    elif not is_repeated(field) and field.message_type is None:
        setattr(message, field.name, scalar(field))
    elif not is_repeated(field):
        fill_all(value)
    elif field.message_type is None:
        value.append(scalar(field))
    elif field.message_type.name in SAMPLES:
        value.append(SAMPLES[field.message_type.name])
    else:
        fill_all(value.add())


def fill_all(message: Any) -> None:
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        fill(message, field)


def scalar(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return "x"
    return {FieldDescriptor.TYPE_BOOL: True, FieldDescriptor.TYPE_ENUM: 1}.get(field.type, 7)


def becomes_of_adjustment(path: str) -> str:
    asked = nri.ContainerAdjustment()
    set_alone(asked, path)
    container = nri.Container(id="c", name="c")
    container.linux.rdt.clos_id.value = "had"  # else there is nothing to remove
    merge = Merge(container)
    merge.add("10-foo", asked)
    request = cri.CreateContainerRequest(pod_sandbox_id="p").SerializeToString()
    result = apply(request, MergedAdjustment(merge.pristine, merge.adjust, merge.owners), NODE)
    if result.rejected:
        return "refused"
    return "carried" if result.request != request else "dropped"


def becomes_of_update(path: str) -> str:
    asked = nri.ContainerUpdate(container_id="c")
    set_alone(asked, path)
    updates = MergedUpdates(created="new")
    updates.add("10-foo", [asked])
    reported: list[str] = []
    linux = resources_of(updates.result[0], NODE, lambda name, *rest: reported.append(name))
    if reported:
        return "refused"
    return "carried" if linux.ByteSize() else "dropped"


def documented(column: int) -> dict[str, str]:
    """The table's fields, and the word that it begins with: of a create (1), of an update (2)."""
    table = TEXT.partition("### What becomes of what plugins ask for")[2].partition("\n##")[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[column] not in ("", "---") and "`" in cells[0]:
            word = re.match(r"\w+", cells[column])
            assert word is not None, line
            found.update(dict.fromkeys(re.findall(r"`([\w.]+)`", cells[0]), word[0]))
    return found


def by_the_documents(path: str, told: dict[str, str]) -> str:
    """By the longest of the table's fields that a path is, or is below."""
    above = [key for key in told if path == key or path.startswith(f"{key}.")]
    return told[max(above, key=len)] if above else "not documented"


ADJUSTMENT, UPDATE = nri.ContainerAdjustment.DESCRIPTOR, nri.ContainerUpdate.DESCRIPTOR


@pytest.mark.parametrize("path", [*paths(ADJUSTMENT)])
def test_a_field_of_an_adjustment_does_as_documented(path: str) -> None:
    assert becomes_of_adjustment(path) == by_the_documents(path, documented(1))


@pytest.mark.parametrize("path", [*paths(UPDATE)])
def test_a_field_of_an_update_does_as_documented(path: str) -> None:
    found = OF_UPDATES.get(path) or becomes_of_update(path)
    assert found == by_the_documents(path, documented(2))


@pytest.mark.parametrize(("column", "of"), [(1, ADJUSTMENT), (2, UPDATE)], ids=["create", "update"])
def test_all_documented_fields_are_ones(column: int, of: Descriptor) -> None:
    there = list(paths(of))
    for key in documented(column):
        assert any(path == key or path.startswith(f"{key}.") for path in there), key
