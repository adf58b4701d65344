"""Reads the unit files of this repository."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
SERVICE, SOCKET, OBSERVER, AGENT, PLUGIN = (
    "cri-resource-manager.service",
    "cri-resource-manager.socket",
    "cri-resmgr-observer.service",
    "cri-resmgr-agent.service",
    "cri-resmgr-nri@.service",
)
WEB = "cri-resmgr-web.service"
#: Ourselves as a plugin; PLUGIN is one that we host.
NRI = "cri-resmgr-nri.service"


def settings_of(name: str) -> dict[str, list[str]]:
    """The settings of a unit, by "Section.Name": their values in order."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (FOLDER / name).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


def words_of(name: str, key: str) -> list[str]:
    """The words of a setting that is a list and may be given several times."""
    return [word for value in settings_of(name).get(key, []) for word in value.split()]
