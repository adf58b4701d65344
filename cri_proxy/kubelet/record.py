"""What we changed in kubelet's files, as kept in the state directory: enough to undo it, and to see it gone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Optional

from cri_proxy.kubelet.edits import BadKubeletFile

VERSION = 1


@dataclass(frozen=True)
class FileChange:
    """One file: the words that changed places, and the digests of the file before (None: not there) and after."""

    path: str
    old: str
    new: str
    before: Optional[str]
    after: str
    is_config: bool = False

    @property
    def backup(self) -> str:
        """The name of the copy of the file as it was."""
        return self.path.strip("/").replace("/", "_") + f".{(self.before or '')[:12]}"


@dataclass(frozen=True)
class SwitchRecord:
    """Everything one switch changed: what kubelet was pointed at, before and since, and when (Unix seconds)."""

    endpoint: str
    previous: str
    changes: tuple[FileChange, ...]
    written_at: float
    #: When the files were given back; kubelet may use us until it is restarted. None: they were not.
    undone_at: Optional[float] = None

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(change.path for change in self.changes)


def digest(text: str) -> str:
    """The SHA-256 of a file's bytes."""
    return hashlib.sha256(encode(text)).hexdigest()


def decode(data: bytes) -> str:
    """A file's bytes as a text that gives the same bytes again, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def write_record(record: SwitchRecord) -> str:
    """A person can read it."""
    return json.dumps({"version": VERSION, **asdict(record)}, indent=2) + "\n"


def read_record(name: str, text: str) -> SwitchRecord:
    """:raises BadKubeletFile: it is not a record of ours."""
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError
        changes = tuple(FileChange(**change) for change in document["changes"])
        undone_at = document.get("undone_at")
        return SwitchRecord(
            str(document["endpoint"]),
            str(document["previous"]),
            changes,
            float(document["written_at"]),
            None if undone_at is None else float(undone_at),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadKubeletFile(
            f"{name}: expected the record of `cri-resmgr kubelet enable`, version {VERSION}"
        ) from None


def merged(record: SwitchRecord, older: Optional[SwitchRecord], still_ours: frozenset[str]) -> SwitchRecord:
    """A record that also undoes what an earlier one did: to other files, and to values that both have written."""
    if older is None:
        return record
    kept = [
        change for change in older.changes if change.path not in record.paths and change.path in still_ours
    ]
    earlier = {change.path: change for change in older.changes}
    changes = [
        _of_both(change, earlier[change.path], older, record, change.path in still_ours)
        if change.path in earlier
        else change
        for change in record.changes
    ]
    return replace(record, changes=(*kept, *changes))


def _of_both(
    change: FileChange, first: FileChange, older: SwitchRecord, record: SwitchRecord, is_still_ours: bool
) -> FileChange:
    """The change of a file that both switches have written to."""
    if change.old == older.endpoint:
        return _continued(change, first, older, record)
    if is_still_ours and record.endpoint not in change.new:
        # The second has written something else there than the endpoint.
        before = first.before if change.before == first.after else ""
        return replace(first, before=before, after=change.after)
    return change


def _continued(
    change: FileChange, first: FileChange, older: SwitchRecord, record: SwitchRecord
) -> FileChange:
    """The change from what was there before the first of two switches to what is there after the second."""
    # Where others have changed the file in between, no copy of it is without us: only our value can be taken out.
    before = first.before if change.before == first.after else ""
    new = first.new.replace(older.endpoint, record.endpoint)
    return replace(change, old=first.old, new=new, before=before)
