"""A record is read back as it was written; anything else is refused with the record's kind in the sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cri_proxy.engine.model import (
    ContainerRecord,
    DecisionRecord,
    Life,
    Management,
    MoveEffect,
    Ticket,
    TicketKind,
)
from cri_proxy.engine.snapshot import (
    CONTAINERS_KEPT,
    NAMED,
    RecordWriter,
    UnreadableRecord,
    everything,
    read_placement,
    read_record,
    read_records,
    write_placement,
    write_record,
)
from cri_proxy.engine.state import JournalValue
from policies.machine.cpus import parse_cpus
from policies.model import Constraint, Container, Placement, Pod, PodSize, Qos, Resources
from tests.machines import VM_NO_CACHE_INFO
from tests.scenes import constraint, engine_on, make_container, run

SET = parse_cpus
TWO_MIB = 2 << 20
PLACEMENT = Placement(SET("0-3,8"), SET("0-1"), SET("8"), "ccx", SET("0-3"), ((0, 5), (1, 7)))
POD = Pod("s", "u", "web", "ns", "/kubepods", "kata", {"l": "1"}, {"a": "ü\n"}, PodSize(1500, None, "update"))
CONTAINER = Container(
    replace(POD, memory_limit_bytes=7),
    "app",
    3,
    Qos.GUARANTEED,
    Resources(1, None, 2, 3, hugepage_sizes=frozenset([TWO_MIB])),
    {"x": "y"},
    {"z": ""},
)
GRANT = ContainerRecord(
    key="c1",
    container=CONTAINER,
    placement=PLACEMENT,
    stance=Management.KUBELET,
    constraint=Constraint(SET("1-2"), None),
    life=Life.HELD,
    runs_on=SET("4"),
    since_s=1.5,
    hold_until_s=2.5,
    exit_code=137,
    displaced=Placement(level="numa"),
    repairs=(1.25, 2.0),
    why="because",
    runs_in="/kubepods/pod1/sandbox",
    runs_on_mems=SET("0-1"),
    memory_charge=((0, 5), (1, 7)),
)
BARE = ContainerRecord("c2", Container(Pod("s", "u"), "app"), Placement(), Management.PLACED)
RECORD = DecisionRecord(7, 1.5, "create", "a/b/c", "u", "id", "placed", PLACEMENT, "why", "failed")
MOVED = replace(
    RECORD, operation="rebalance", move=MoveEffect(0.0032, ("near", "nearer"), ("far",), ("partner",))
)
INNER = Ticket("ticket-1", TicketKind.CREATE, "ticket-1", 1.0, replaces=(BARE,))

VALUES: dict[str, tuple[str, JournalValue]] = {
    "a full pod": ("pod", POD),
    "a bare pod": ("pod", Pod("s", "u")),
    "a full grant": ("grant", GRANT),
    "a bare grant": ("grant", BARE),
    "a fence that is empty": (
        "grant",
        ContainerRecord("c", CONTAINER, PLACEMENT, Management.ADOPTED, constraint("", "")),
    ),
    "a full ticket": (
        "ticket",
        Ticket("t2", TicketKind.RESIZE, "t2", 9.5, "c1", PLACEMENT, True, (GRANT, BARE), (INNER,)),
    ),
    "a ticket with others who wait for it": (
        "ticket",
        Ticket(
            "t3",
            TicketKind.CREATE,
            "t3",
            1.0,
            moved=(("c1", PLACEMENT, Placement()),),
            found=Management.ADOPTED,
            waiting=("c1", "c2"),
        ),
    ),
    "a bare ticket": ("ticket", Ticket("t", TicketKind.CREATE, "t", 0.0)),
    "a record": ("record", RECORD),
    "a record of a move": ("record", MOVED),
    "distrust": ("distrust", 12.5),
    **{f"stance {s.value}": ("grant", ContainerRecord("c", CONTAINER, PLACEMENT, s)) for s in Management},
    **{
        f"life {x.value}": ("grant", ContainerRecord("c", CONTAINER, PLACEMENT, Management.PLACED, life=x))
        for x in Life
    },
}


@pytest.mark.parametrize("case", VALUES)
def test_what_is_written_is_read_back(case: str) -> None:
    kind, value = VALUES[case]
    text = write_record(value)
    assert read_record(kind, text) == value
    assert "\n" not in text


def test_a_set_and_no_set_are_not_the_same() -> None:
    for given in (constraint("", None), constraint(None, "")):
        grant = read_record(
            "grant", write_record(ContainerRecord("c", CONTAINER, PLACEMENT, Management.PLACED, given))
        )
        assert grant.constraint == given


def test_sets_are_written_for_people() -> None:
    assert write_placement(PLACEMENT)["cpus"] == "0-3,8"
    assert read_placement(write_placement(PLACEMENT)) == PLACEMENT


def test_everything_is_named_as_the_journal_names_it() -> None:
    engine = engine_on(VM_NO_CACHE_INFO)
    engine.add_pod(POD)
    run(engine, make_container("a", limit=2, pod=POD), "id-a")
    engine.admit(make_container("b", limit=1), constraint("1"), 3.0)
    engine.start_failed("id-a", "no such device: cpuset", 4.0)
    journal = {key: value for key, value in engine.drain().items() if value is not None}
    assert everything(engine) == journal


def test_a_writer_of_many_records_writes_each_as_if_it_were_the_only_one() -> None:
    writer = RecordWriter()
    grants = [replace(GRANT, container=replace(CONTAINER, attempt=n)) for n in range(CONTAINERS_KEPT + 10)]
    for grant in [*grants, *(replace(grant, life=Life.RUNNING) for grant in grants)]:
        assert writer.text(grant) == write_record(grant)
    assert writer.text(INNER) == write_record(INNER)


@pytest.mark.parametrize("entry", [["c1", "0-3"], ["c1", "0-3", "1"]])
def test_a_ticket_of_an_older_daemon_says_where_each_that_waits_runs(entry: list[str]) -> None:
    text = json.dumps({**json.loads(write_record(INNER)), "waiting": [entry], "owed_quota": ["c1"]})
    assert read_record("ticket", text).waiting == ("c1",)


def test_a_grant_of_an_older_daemon_says_nothing_of_memory_and_one_for_it_says_no_more_than_it_takes() -> (
    None
):
    document = json.loads(write_record(GRANT))
    # The version before this one builds a pod of its fields by name, and resources of their places in the list.
    assert len(document["container"]["pod"]) == 9 and len(document["container"]["resources"]) == 5
    for key in ("runs_on_mems", "memory"):
        del document[key]
    for key in ("hugepage_sizes", "pod_memory_limit"):
        del document["container"][key]
    container = replace(CONTAINER, pod=POD, resources=Resources(1, None, 2, 3))
    expected = replace(GRANT, container=container, runs_on_mems=frozenset(), memory_charge=())
    assert read_record("grant", json.dumps(document)) == expected


def without(kind: str, value: JournalValue, key: str) -> tuple[str, str]:
    document = json.loads(write_record(value))
    del document[key]
    return kind, json.dumps(document)


def changed(table: str, value: JournalValue, /, **changes: object) -> tuple[str, str]:
    return table, json.dumps({**json.loads(write_record(value)), **changes})


GARBAGE: dict[str, tuple[str, str]] = {
    "empty": ("pod", ""),
    "half": ("grant", write_record(GRANT)[:50]),
    "null": ("grant", "null"),
    "a list": ("ticket", "[]"),
    "a number": ("record", "7"),
    "a text of no number": ("distrust", '"soon"'),
    "null for a number": ("distrust", "null"),
    "an unknown kind": ("song", "{}"),
    "another kind's": ("grant", write_record(POD)),
    "a pod whose name is a number": changed("pod", POD, name=7),
    "a pod with a label that is a list": changed("pod", POD, labels={"a": []}),
    "a history whose number is a text": changed("record", RECORD, number="7"),
    "a pod without size": without("pod", POD, "size"),
    "a grant without fence": without("grant", GRANT, "fence"),
    "an unknown stance": changed("grant", GRANT, stance="sitting"),
    "an unknown life": changed("grant", GRANT, life="half"),
    "a bad set": changed("grant", GRANT, runs_on="3-1"),
    "a fence of one": changed("grant", GRANT, fence=["0"]),
    "a time that is a text": changed("ticket", INNER, since_s="soon"),
    "an unknown kind of ticket": changed("ticket", INNER, kind="wish"),
    "a garbled grant in a ticket": changed("ticket", INNER, replaces=[{}]),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_refused_by_its_kind(case: str) -> None:
    kind, text = GARBAGE[case]
    with pytest.raises(UnreadableRecord, match=f"^{kind} record "):
        read_record(kind, text)


def test_a_long_garbled_record_is_quoted_in_part() -> None:
    with pytest.raises(UnreadableRecord) as caught:
        read_record("pod", "x" * 10_000)
    assert len(str(caught.value)) < 300


LATER: dict[str, tuple[JournalValue, tuple[str, str]]] = {
    "a pod's field": (POD, changed("pod", POD, colour="red")),
    "an item of a pod's size": (POD, changed("pod", POD, size=[1500, None, "update", {}])),
    "a grant's field": (GRANT, changed("grant", GRANT, colour=["red"])),
    "an item of a fence": (GRANT, changed("grant", GRANT, fence=["1-2", None, "0"])),
    "a ticket's field": (INNER, changed("ticket", INNER, colour=None)),
    "a decision's field": (RECORD, changed("record", RECORD, colour="red")),
}


@pytest.mark.parametrize("case", LATER)
def test_what_a_later_version_has_added_to_a_record_is_left_out(case: str) -> None:
    value, (kind, text) = LATER[case]
    assert read_record(kind, text) == value


def test_a_text_that_cannot_be_read_costs_no_other() -> None:
    texts = [
        ("pod", "s", write_record(POD)),
        ("grant", "c1", "{"),
        ("song", "la", "{}"),
        ("distrust", "u\na", "no"),
    ]
    read = read_records([*texts, ("grant", "c2", write_record(BARE))])
    assert read.records == {"pod": {"s": POD}, "grant": {"c2": BARE}}
    assert read.unknown == (("song", "la"),)
    assert list(read.dropped) == [("grant", "c1"), ("distrust", "u\na")]
    sentence = read.sentence("FILE")
    assert sentence.startswith(
        "2 of 4 records in FILE could not be read: grant c1, distrust u/a (grant record '{': "
    )
    assert read_records(texts[:1]).sentence("FILE") == ""


def test_of_many_records_that_cannot_be_read_some_are_named() -> None:
    sentence = read_records(("pod", str(number), "") for number in range(100)).sentence("FILE")
    assert "100 of 100 records" in sentence and f"pod 4 and {100 - NAMED} more (" in sentence
