"""The versions before and after this one: copies of this tree with declared differences, run as programs of their own.

Each difference stands for a kind of change that versions make: an option more, a field of the report and of the status
more, a command less. A text that is no longer there is a failure here, so that no test runs without its difference.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.agent import ROOT

#: What agent, operator and daemon are imported from.
PACKAGES = ("bpf", "cluster", "cri_api", "cri_proxy", "policies")
#: The option that only the version after has.
NEW_OPTION = "placement.telepathy"

#: Where the options that a policy may set stand.
CRD = "packaging/cluster/crds/placementpolicies.yaml"

#: By file: a text, and what the other version has in its place.
Changes = Mapping[str, tuple[tuple[str, str], ...]]

AFTER: Changes = {
    "cri_proxy/version.py": (('VERSION = "', 'VERSION = "9.'),),
    "cri_proxy/config/options/table.py": (
        (
            '    Option("placement.max_moves",',
            f'    Option("{NEW_OPTION}", flag(), False, "Whether thoughts place.", cluster=True),\n'
            '    Option("placement.max_moves",',
        ),
    ),
    CRD: (
        (
            "                      max_moves:\n",
            f"                      {NEW_OPTION.partition('.')[2]}: {{type: boolean, description: '-'}}\n"
            "                      max_moves:\n",
        ),
    ),
    # A field of the report, which the agent writes into the status; a field of each order; a word for a state.
    "cri_proxy/daemon/commands_view.py": (
        (
            '            "version": VERSION,\n',
            '            "version": VERSION,\n            "mood": "fine",\n',
        ),
    ),
    "cluster/agent/status.py": (('_HEAD = ("version",', '_HEAD = ("mood", "version",'),),
    "cri_proxy/engine/model.py": (
        (
            'return json.dumps({"freeze": orders.freeze, "overrides": [asdict(o) for o in orders.overrides]})',
            'return json.dumps({"freeze": orders.freeze, "until": "noon",'
            ' "overrides": [{**asdict(o), "until": "noon"} for o in orders.overrides]})',
        ),
    ),
    "cluster/agent/commands.py": (
        ("    document: dict[str, Any] = {\n", '    document: dict[str, Any] = {\n        "mood": "fine",\n'),
    ),
    "cluster/operator/plan.py": (("kept = {key: value for", 'kept = {"wave": 3} | {key: value for'),),
}
#: A daemon that tells less and obeys fewer commands.
BEFORE: Changes = {
    "cri_proxy/version.py": (('VERSION = "', 'VERSION = "0.0.'),),
    "cri_proxy/daemon/commands.py": (
        (', "overrides": self.overrides, "freeze": self.freeze}', "}"),
    ),
    "cri_proxy/daemon/commands_view.py": (
        ('            "doctor": self.doctor,\n', ""),
        ('            "warnings": services.health.warnings,\n', ""),
        ('            "front_end": FRONT_ENDS.get(daemon.front.name, daemon.front.name),\n', ""),
        ('"affinity_groups": groups}', "}"),
    ),
}  # fmt: skip
#: A daemon from before there was a cluster half: neither reports nor policies.
LONG_BEFORE: Changes = {
    "cri_proxy/daemon/commands.py": (('"cluster-policy": self.policy,', ""),),
    "cri_proxy/daemon/commands_view.py": (('"report": self.report,', ""),),
}


def tree(folder: Path, changes: Changes) -> Path:
    """Make a copy of this tree's programs with these changes; what PYTHONPATH is to say.

    :raises AssertionError: a text to be changed is not there exactly once.
    """
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / CRD).parent.mkdir(parents=True)
    shutil.copyfile(ROOT / CRD, folder / CRD)
    for file, changed in changes.items():
        path = folder / file
        text = path.read_text()
        for there, instead in changed:
            assert text.count(there) == 1, f"{file} has not once: {there}"
            text = text.replace(there, instead)
        path.write_text(text)
    return folder
