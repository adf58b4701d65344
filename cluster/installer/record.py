"""What the installer has written down on a host: how it was before, what is installed, what is being installed.

``uninstall`` goes by it, so it is written before the first change, and removed after the last one is taken back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

from cluster.installer.plan import FOLDER, HostState, Package, Target, back_target, installed_target

PATH = f"{FOLDER}/record.json"
FORMAT = 1


class BadRecord(Exception):
    """It cannot be read. The message names the file; nothing is done on a host whose record is not understood."""


@dataclass(frozen=True)
class InstallationRecord:
    """``before``: the host before the first installation. ``installed``: the last that succeeded. ``underway``: one
    that has begun and not ended, for it is at work, or was killed.
    """

    before: HostState
    installed: Optional[Package] = None
    underway: Optional[Package] = None

    @property
    def known(self) -> tuple[Package, ...]:
        """Packages that may be on the host by our doing; the newest last."""
        return tuple(package for package in (self.installed, self.underway) if package is not None)

    def way_back(self) -> Target:
        """What a failure goes back to: what was installed before it, or else the host as it was."""
        return (
            back_target(self.before)
            if self.installed is None
            else installed_target(self.installed, self.before)
        )


def write_record(record: InstallationRecord) -> str:
    """As JSON, for a person as well."""
    state = asdict(record.before)
    state = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in state.items()}
    packages = {name: asdict(found) if found else None for name, found in _packages(record).items()}
    return json.dumps({"format": FORMAT, "before": state, **packages}, indent=1, sort_keys=True) + "\n"


def _packages(record: InstallationRecord) -> dict[str, Optional[Package]]:
    return {"installed": record.installed, "underway": record.underway}


def read_record(text: str) -> InstallationRecord:
    """The inverse.

    :raises BadRecord: it is another format, or none.
    """
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise BadRecord(f"{PATH}: format {document['format']!r}; this installer knows {FORMAT}")
        before = document["before"]
        sets = {name: frozenset(before[name]) for name in ("enabled", "running", "left")}
        state = HostState(str(before["version"]), str(before["sha256"]), kubelet=before["kubelet"], **sets)
        return InstallationRecord(state, _package(document["installed"]), _package(document["underway"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecord(f"{PATH}: it is not what the installer writes ({error!r})") from None


def _package(found: Optional[Mapping[str, Any]]) -> Optional[Package]:
    return None if found is None else Package(**found)
