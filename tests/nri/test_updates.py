"""Updates that plugins ask for: overlaid, owned field by field, the request's own container last."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.merge import AdjustmentConflict, Merge, MergedUpdates, owner_of

FIRST, SECOND = "00-bar", "10-foo"
LIMIT = "memory { limit { value: 5 } }"
#: What one plugin asks for, and the word that owns it.
FIELDS = {
    "cpu": ('cpu { shares { value: 2 } quota { value: 3 } cpus: "1" mems: "0" }', "CPUShares "),
    "memory": ("memory { limit { value: 5 } swap { value: 6 } }", "MemLimit "),
    "classes": ('blockio_class { value: "slow" } rdt_class { value: "gold" }', "BlockioClass "),
    "hugepages": ('hugepage_limits { page_size: "2MB" limit: 4 }', "HugepageLimits 2MB"),
    "unified": ('unified { key: "memory.high" value: "9" }', "CgroupsUnified memory.high"),
    "pids": ("pids { limit: 7 }", "PidsLimit "),
}


def update(container_id: str, resources: str, ignore_failure: bool = False) -> nri.ContainerUpdate:
    made = nri.ContainerUpdate(container_id=container_id, ignore_failure=ignore_failure)
    text_format.Parse(resources, made.linux.resources)
    return made


@pytest.mark.parametrize(("resources", "_field"), FIELDS.values(), ids=FIELDS)
def test_a_create_updates_another_container(resources: str, _field: str) -> None:
    updates = MergedUpdates(created="new")
    assert updates.add(FIRST, [update("old", resources)]) == []
    assert updates.result == [update("old", resources)]


@pytest.mark.parametrize(("resources", "field"), FIELDS.values(), ids=FIELDS)
def test_two_plugins_that_update_the_same_are_in_conflict(resources: str, field: str) -> None:
    updates = MergedUpdates(created="new")
    updates.add(FIRST, [update("old", resources)])
    with pytest.raises(AdjustmentConflict) as conflict:
        updates.add(SECOND, [update("old", resources)])
    assert str(conflict.value) == f'plugins "10-foo" and "00-bar" both tried to set {field}'


@pytest.mark.parametrize(("resources", "field"), FIELDS.values(), ids=FIELDS)
def test_one_plugin_that_updates_the_same_twice_is_in_conflict_with_itself(
    resources: str, field: str
) -> None:
    with pytest.raises(AdjustmentConflict) as conflict:
        MergedUpdates().add(FIRST, [update("old", resources), update("old", resources)])
    assert str(conflict.value) == f'plugins "00-bar" and "00-bar" both tried to set {field}'


@pytest.mark.parametrize(("resources", "_field"), FIELDS.values(), ids=FIELDS)
def test_an_update_of_the_requests_own_container_lies_over_what_was_asked_for(
    resources: str, _field: str
) -> None:
    asked = text_format.Parse(
        'cpu { shares { value: 512 } period { value: 100000 } } unified { key: "a" value: "b" }'
        'hugepage_limits { page_size: "2MB" limit: 1 }',
        nri.LinuxResources(),
    )
    updates = MergedUpdates(updated="own", resources=asked)
    updates.add(FIRST, [update("own", resources)])
    (only,) = updates.result
    wanted = nri.LinuxResources()
    wanted.CopyFrom(asked)
    if "hugepage" in resources:
        del wanted.hugepage_limits[:]
    wanted.MergeFrom(text_format.Parse(resources, nri.LinuxResources()))
    assert (only.container_id, only.linux.resources) == ("own", wanted)


def test_the_requests_own_container_is_the_last() -> None:
    updates = MergedUpdates(updated="own")
    updates.add(FIRST, [update("own", LIMIT), update("a", LIMIT)])
    updates.add(SECOND, [update("b", LIMIT), update("own", "pids { limit: 1 }")])
    assert [u.container_id for u in updates.result] == ["a", "b", "own"]
    assert updates.result[-1] == update("own", LIMIT + "pids { limit: 1 }")


def test_a_container_that_nobody_updates_is_not_there() -> None:
    updates = MergedUpdates(updated="own", resources=nri.LinuxResources(pids=nri.LinuxPids(limit=1)))
    assert updates.result == []
    updates.add(FIRST, [update("a", LIMIT)])
    assert [u.container_id for u in updates.result] == ["a"]


@pytest.mark.parametrize("may_fail", [False, True])
def test_the_container_being_created_cannot_be_updated(may_fail: bool) -> None:
    with pytest.raises(AdjustmentConflict) as conflict:
        MergedUpdates(created="new").add(SECOND, [update("new", LIMIT, may_fail)])
    assert str(conflict.value) == 'plugin "10-foo" asked update of "new" during creation'


def test_an_update_in_conflict_that_may_fail_is_left_out_whole() -> None:
    updates = MergedUpdates()
    updates.add(FIRST, [update("a", LIMIT)])
    left_out = updates.add(
        SECOND, [update("a", "cpu { shares { value: 2 } }" + LIMIT, True), update("b", LIMIT)]
    )
    assert left_out == ['update of a left out: plugins "10-foo" and "00-bar" both tried to set MemLimit ']
    assert updates.result == [update("a", LIMIT), update("b", LIMIT)]
    # What it had claimed is free again.
    updates.add(SECOND, [update("a", "cpu { shares { value: 2 } }")])
    assert owner_of(updates.owners, "a", nri.CPUShares) == SECOND


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, True)],
)
def test_an_update_may_fail_only_if_all_who_ask_for_it_say_so(first: bool, second: bool, both: bool) -> None:
    updates = MergedUpdates()
    updates.add(FIRST, [update("a", LIMIT, first)])
    updates.add(SECOND, [update("a", "pids { limit: 1 }", second)])
    assert [u.ignore_failure for u in updates.result] == [both]


def test_an_update_without_a_container_is_left_out_and_said() -> None:
    updates = MergedUpdates()
    left_out = updates.add(FIRST, [update("", LIMIT), update("a", LIMIT)])
    assert left_out == ['plugin "00-bar" asked for an update of no container: its container_id is empty']
    assert [u.container_id for u in updates.result] == ["a"]


def test_adjustments_and_updates_of_a_request_share_their_owners() -> None:
    merge = Merge(nri.Container(id="new"))
    updates = MergedUpdates(merge.owners, created="new")
    merge.add(
        FIRST,
        text_format.Parse("linux { resources { memory { limit { value: 1 } } } }", nri.ContainerAdjustment()),
    )
    updates.add(FIRST, [update("old", LIMIT)])
    assert {key: owner_of(merge.owners, key, nri.MemLimit) for key in ("new", "old")} == {
        "new": FIRST,
        "old": FIRST,
    }
