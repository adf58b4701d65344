"""What is in an image, as CycloneDX 1.5 JSON: Debian packages, Python packages and the project itself, with versions."""

from __future__ import annotations

import email
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class DebianPackage:
    """As ``dpkg-query`` names them; ``source``: the source package, by which advisories are looked up."""

    name: str
    version: str
    architecture: str
    source: str


def read_packages(text: str) -> list[DebianPackage]:
    """Lines of name, version, architecture and source, apart by tabs; sorted by name."""
    rows = sorted(line.split("\t") for line in text.splitlines() if line)
    return [DebianPackage(name, version, machine, source) for name, version, machine, source in rows]


def python_packages(site: Path) -> list[tuple[str, str]]:
    """Name and version of what is vendored below ``site``."""
    found = []
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        fields = email.message_from_string(metadata.read_text(encoding="utf-8"))
        found.append((str(fields["Name"]), str(fields["Version"])))
    return found


def cyclonedx(
    name: str,
    version: str,
    created: str,
    suite: str,
    debian: Sequence[DebianPackage],
    python: Sequence[tuple[str, str]],
) -> str:
    """The document."""
    components: list[dict[str, Any]] = []
    for package in debian:
        qualifiers = f"arch={package.architecture}&distro={suite}&upstream={quote(package.source)}"
        purl = f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?{qualifiers}"
        components.append(_component("library", package.name, package.version, purl))
    for wheel, wheel_version in python:
        purl = f"pkg:pypi/{wheel.lower().replace('_', '-')}@{wheel_version}"
        components.append(_component("library", wheel, wheel_version, purl))
    subject = _component("container", name, version, f"pkg:oci/{name}@{version}")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": created, "component": subject},
        "components": components,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _component(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
