"""What stands for the host's programs. Their state is FOLDER/host.json.

It does what dpkg, rpm, systemctl and cri-resmgr do to each other's state, and writes each change to FOLDER/log. A change
whose words begin with a line of FOLDER/fail does not happen and ends with 1; with a line of FOLDER/half it happens, and
ends with 1 all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from cluster.installer.io.host import CommandResult

LEFT = ("etc/cri-resmgr", "var/lib/cri-resmgr")


def run(folder: Path, words: list[str]) -> CommandResult:
    """What a command does and prints."""
    file = folder / "host.json"
    host: dict[str, Any] = json.loads(file.read_text())
    if (answer := question(host, words)) is not None:
        file.write_text(json.dumps(host))
        return CommandResult(*answer, said="")
    said = " ".join(words)
    with (folder / "log").open("a") as log:
        log.write(f"{said}\n")
    if begins(folder / "fail", said):
        return CommandResult(1, "", f"{words[0]} says no")
    change(host, words, folder / "root")
    file.write_text(json.dumps(host))
    return CommandResult(1 if begins(folder / "half", said) else 0, "", "")


def begins(file: Path, said: str) -> bool:
    return file.exists() and any(said.startswith(line) for line in file.read_text().splitlines())


def question(host: dict[str, Any], words: list[str]) -> Optional[tuple[int, str]]:
    """The exit code and what is printed; None: it is no question."""
    if words[0] in ("dpkg-query", "rpm") and words[1] in ("--show", "--query"):
        version = host["packages"].get(words[-1])
        return (0, f"installed {version}") if version else (1, "")
    if words[:2] == ["systemctl", "is-enabled"]:
        return 0, lines("enabled" if unit in host["enabled"] else "disabled" for unit in words[2:])
    if words[:2] == ["systemctl", "is-active"]:
        return 0, lines("active" if unit in host["running"] else "inactive" for unit in words[2:])
    if words[1:3] == ["kubelet", "status"]:
        return (
            (0, json.dumps({"points_at_us": host["kubelet"]}))
            if host["packages"].get("cri-resmgr")
            else (127, "")
        )
    if words[1:2] == ["doctor"]:
        problem = host["doctor"].pop(0) if len(host["doctor"]) > 1 else host["doctor"][0]
        return 0, json.dumps({"verdict": "problem" if problem else "ok", "summary": problem})
    return None


def lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def change(host: dict[str, Any], words: list[str], root: Path) -> None:
    if words[0] == "systemctl":
        key = {"start": "running", "stop": "running", "enable": "enabled", "disable": "enabled"}[words[1]]
        units = set(words[2:])
        host[key] = sorted(
            set(host[key]) | units if words[1] in ("start", "enable") else set(host[key]) - units
        )
    elif words[0] in ("dpkg", "rpm"):
        package(host, words, root)
    elif words[1] == "kubelet":
        assert host["running"], "kubelet is switched while nothing serves it"
        host["kubelet"] = words[2] == "enable"


def package(host: dict[str, Any], words: list[str], root: Path) -> None:
    if words[-1] == "cri-resmgr":
        assert not host["kubelet"], "the package goes while kubelet needs it"
        del host["packages"]["cri-resmgr"]
        host["running"], host["enabled"] = [], []
        return
    file = root / words[-1].lstrip("/")
    assert file.exists(), words
    found = re.search(r"cri-resmgr_(.+)_amd64\.deb|cri-resmgr-(.+)\.x86_64\.rpm", file.name)
    assert found, file
    host["packages"]["cri-resmgr"] = found[1] or found[2]
    host["bytes"] = file.read_text()
    for name in LEFT:
        (root / name).mkdir(parents=True, exist_ok=True)
