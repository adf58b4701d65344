"""The files by which a runtime knows the CDI devices of claims: one a claim, a device for each of its parts.

A device brings nothing but an environment variable with the part's name: what a claim is needs not be in the file, which
therefore never changes while the claim is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Optional

from cri_api.claims import CDI_KIND, variable

#: Where runtimes look for files that do not outlive a boot (container-device-interface, SPEC.md), below the machine's root.
FOLDER = "/var/run/cdi"
#: The oldest version of the format that has all that is written here: containerd 1.7 and CRI-O 1.23 on read it.
CDI_VERSION = "0.5.0"
_BEGINNING = CDI_KIND.replace("/", "-") + "-"
_NAME = re.compile(re.escape(_BEGINNING) + r"([0-9A-Za-z-]{1,63})\.json")


def file_name(uid: str) -> str:
    """The file of a claim."""
    return f"{_BEGINNING}{uid}.json"


def read_file_name(name: str) -> Optional[str]:
    """The UID of the claim whose file has this name; None: it is no file of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]


def write_cdi(parts: Iterable[str]) -> str:
    """The text of the file of a claim with these parts (``cri_api.claims.part_name``)."""
    devices = [{"name": part, "containerEdits": {"env": [variable(part)]}} for part in sorted(parts)]
    document = {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices}
    return json.dumps(document, indent=1) + "\n"
