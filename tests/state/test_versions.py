"""A state file of the version before, or of a later one, is read record by record; what is placed stays placed."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from cri_proxy.daemon.engine_host import BOOT_KEY, restore
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import Management
from cri_proxy.engine.snapshot import FORMAT, UnreadableRecord, read_record, write_record
from cri_proxy.state.file import FILE, LoadedState
from cri_proxy.state.store import Store
from policies.machine.cpus import format_cpus
from tests.data.state.record import BOOT_ID, FOLDER, busy_engine
from tests.machines import HYGON_7285_2S
from tests.scenes import engine_on

RECORDED = sorted(path.name.split(".")[0] for path in FOLDER.glob("*.db.gz"))
#: What each file holds, as it was written down with it.
PLACES: dict[str, Any] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in RECORDED}


def recorded(folder: Path, name: str = "10505e6") -> Path:
    """A copy of a recorded file where a store looks for it."""
    path = folder / FILE
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
    return path


def load(folder: Path) -> tuple[Engine, LoadedState, Store]:
    """What a daemon of today makes of the file in a folder, on the machine and in the boot that it is of."""
    store = Store(folder)
    loaded = store.load()
    engine = engine_on(HYGON_7285_2S, policy=busy_engine().policy)
    restore(engine, loaded, store, BOOT_ID)
    assert engine.lacking() == []
    return engine, loaded, store


def places(engine: Engine) -> dict[str, list[str]]:
    return {
        key: [g.stance.value, g.life.value, format_cpus(g.cpus), format_cpus(g.exclusive), g.placement.level]
        for key, g in sorted(engine.grants.items())
    }


def change(path: Path, edit: Callable[[str, str, Any], Any]) -> None:
    """Give every record another document: what ``edit`` returns for its kind, key and document."""
    db = sqlite3.connect(path)
    for kind, key, text in db.execute("SELECT kind, key, value FROM records").fetchall():
        changed = json.dumps(edit(kind, key, json.loads(text)))
        db.execute("UPDATE records SET value = ? WHERE kind = ? AND key = ?", (changed, kind, key))
    db.commit()
    db.close()


def sql(path: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(path)
    db.execute(statement, values)
    db.commit()
    db.close()


@pytest.mark.parametrize("name", RECORDED)
def test_a_file_of_an_earlier_version_is_read_whole(name: str, tmp_path: Path) -> None:
    recorded(tmp_path, name)
    engine, loaded, _ = load(tmp_path)
    assert (loaded.notes, loaded.lost, loaded.dropped) == ((), "", {})
    assert places(engine) == PLACES[name]["placements"]
    assert sorted(engine.tickets) == PLACES[name]["tickets"]
    assert len(engine.history) == PLACES[name]["history"]
    assert loaded.meta["mode"] == "observe"


#: What a pod's own words are the keys of, no fields.
WORDS = ("labels", "annotations")
#: Where a record lists values by their position, or such lists.
BY_POSITION = {"size": 0, "resources": 0, "fence": 0, "moved": 1, "waiting": 1, "memory": 1, "hints": 1}


def grown(value: Any, depth: Optional[int] = None) -> Any:
    """A document as a later version might write it: every object has a field more, every list by position an item."""
    if isinstance(value, dict):
        inner = {k: v if k in WORDS else grown(v, BY_POSITION.get(k)) for k, v in value.items()}
        return {"later": {"a": [1, None]}, **inner}
    if not isinstance(value, list):
        return value
    if depth == 0:
        return [*value, "later"]
    return [grown(item, None if depth is None else depth - 1) for item in value]


def test_a_downgrade_keeps_what_is_placed(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    change(path, lambda kind, key, document: grown(document))
    sql(path, "UPDATE meta SET value = ? WHERE key = 'format'", str(FORMAT + 1))
    sql(path, "INSERT INTO meta VALUES ('later', 'x')")
    sql(path, "INSERT INTO records VALUES ('song', 'la', '{\"la\": 1}')")
    engine, loaded, store = load(tmp_path)
    assert loaded.dropped == {}
    assert places(engine) == PLACES["10505e6"]["placements"]
    assert sorted(engine.tickets) == PLACES["10505e6"]["tickets"]
    [note] = loaded.notes
    assert f"format {FORMAT + 1}" in note and "1 record of a kind that is not known (song)" in note
    # It was said, and nothing is lost by it.
    assert loaded.lost == ""
    # The later version finds its own again.
    assert store.write(engine.drain(), {"mode": "off"})
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT value FROM records WHERE kind = 'song'").fetchall() == [('{"la": 1}',)]
    assert db.execute("SELECT value FROM meta WHERE key = 'later'").fetchall() == [("x",)]
    db.close()
    assert places(load(tmp_path)[0]) == PLACES["10505e6"]["placements"]


def test_what_a_group_owned_before_a_downgrade_is_not_believed_after_it(tmp_path: Path) -> None:
    path = recorded(tmp_path)  # of the version before, which leaves records of kinds that it does not know
    groups = {grant.placement.group for grant in load(tmp_path)[0].grants.values()} - {""}
    for group in [*groups, "gone[0]"]:
        sql(path, 'INSERT INTO records VALUES (\'group\', ?, \'{"exclusive": "0-3", "apart": {}}\')', group)
    sql(path, "UPDATE meta SET value = '1' WHERE key = 'format'")
    engine, loaded, store = load(tmp_path)
    assert (loaded.notes, loaded.lost, loaded.dropped) == ((), "", {})
    assert places(engine) == PLACES["10505e6"]["placements"]
    assert store.write(engine.drain())
    store.close()
    assert load(tmp_path)[1].of("group") == {}


def test_what_a_group_owns_by_a_record_of_its_own_is_what_its_containers_own(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    placed = [k for k, grant in load(tmp_path)[0].grants.items() if grant.stance is Management.PLACED][:2]

    def of_pool(kind: str, key: str, document: Any) -> Any:
        if kind == "grant" and key in placed:
            document["placement"]["group"] = "pool[0]"
        return document

    change(path, of_pool)
    record = json.dumps({"exclusive": "0-3", "apart": {placed[0]: "0-1"}})
    sql(path, "INSERT INTO records VALUES ('group', 'pool[0]', ?)", record)
    sql(path, "UPDATE meta SET value = '2' WHERE key = 'format'")
    found = Store(tmp_path).load()
    assert [format_cpus(found.of("grant")[key].exclusive) for key in placed] == ["0-1", "0-3"]
    assert found.leftover == (("group", "pool[0]"),) and found.notes == ()


def test_a_record_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    sql(path, "UPDATE records SET value = '{' WHERE kind = 'grant' AND key = 'id-010'")
    sql(path, "UPDATE records SET value = x'ff00' WHERE kind = 'grant' AND key = 'id-011'")
    sql(path, "UPDATE records SET value = replace(value, '\"placed\"', '\"later\"') WHERE key = 'id-012'")
    sql(path, "UPDATE records SET value = '[]' WHERE kind = 'ticket' AND key = 'ticket-103'")
    sql(path, "UPDATE records SET value = '\"soon\"' WHERE kind = 'distrust'")
    engine, loaded, store = load(tmp_path)
    kept = dict(PLACES["10505e6"]["placements"])
    for key in ("id-010", "id-011", "id-012", "ticket-103"):  # half of a pair is of no use
        del kept[key]
    assert places(engine) == kept
    grants = [("grant", f"id-0{number}") for number in (10, 11, 12)]
    assert list(loaded.dropped) == [("distrust", "uid-web-4\napp"), *grants, ("ticket", "ticket-103")]
    [note] = loaded.notes
    assert note.startswith(
        f"5 of {len(loaded.dropped) + sum(map(len, loaded.records.values()))} records in {path} "
    )
    assert "grant id-010" in note and loaded.lost == note
    # They are not there for the next daemon to stumble over.
    assert store.write(engine.drain())
    store.close()
    assert load(tmp_path)[1].dropped == {}


def test_another_boot_ends_records_of_kinds_that_are_not_known(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    sql(path, "INSERT INTO records VALUES ('song', 'la', '1')")
    sql(path, "UPDATE meta SET value = 'another' WHERE key = ?", BOOT_KEY)
    engine, _, store = load(tmp_path)
    assert not engine.grants
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM records").fetchone() == (0,)
    db.close()


def test_what_is_written_into_a_later_file_counts_as_this_versions(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    sql(path, "UPDATE meta SET value = '999' WHERE key = 'format'")
    sql(path, "ALTER TABLE records ADD COLUMN later TEXT")
    engine, _, store = load(tmp_path)
    assert store.write({("grant", "id-003"): None}, {})
    store.close()
    again, loaded, _ = load(tmp_path)
    assert (loaded.notes, set(engine.grants) - set(again.grants)) == ((), {"id-003"})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, item in inner for way in leaves(item, (*path, key)))]


def with_garbage(document: Any, way: tuple[Any, ...], garbage: Any) -> Any:
    changed = json.loads(json.dumps(document))
    at = changed
    for key in way[:-1]:
        at = at[key]
    if garbage is leaves:
        del at[way[-1]]
    else:
        at[way[-1]] = garbage
    return changed


def garbled_records() -> list[tuple[str, str, str]]:
    """One record of each kind, garbled in one place in every way."""
    engine = busy_engine()
    samples = {
        ("grant", "id-003"): engine.grants["id-003"],
        ("grant", "id-000"): engine.grants["id-000"],
        ("ticket", "ticket-101"): engine.tickets["ticket-101"],
        ("ticket", "ticket-102"): engine.tickets["ticket-102"],
        ("pod", "sandbox-web-10"): engine.pods["sandbox-web-10"],
        ("record", "7"): next(record for record in engine.history if record.number == 7),
    }
    found = []
    for (kind, key), value in samples.items():
        document = json.loads(write_record(value))
        for way in leaves(document)[1:]:
            for garbage in (leaves, None, True, -1, 1e999, "x", "0-99999", [], ["x", 1], {}, {"x": {}}):
                found.append((kind, key, json.dumps(with_garbage(document, way, garbage))))
    return found


def test_whatever_one_record_has_become_all_others_are_restored(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    store = Store(tmp_path)
    loaded = store.load()
    store.close()
    policy = busy_engine().policy
    read = refused = 0
    for kind, key, text in garbled_records():
        try:
            value = read_record(kind, text)
        except UnreadableRecord:
            refused += 1
            continue
        read += 1
        records = {**loaded.records, kind: {**loaded.records[kind], key: value}}
        engine = engine_on(HYGON_7285_2S, policy=policy)
        restore(engine, LoadedState(records, loaded.meta), store, BOOT_ID)
    assert read > 100 and refused > 100 and path.exists()
