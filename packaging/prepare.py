"""Everything a package is made of that must be fetched or made first, in one folder; ``stage.py`` then only copies.

Runs in the project's virtual environment: the manual and the completions are made of the program's own commands.
The protobuf modules are made by a pinned protoc, older than every pinned protobuf runtime (these refuse newer code).
"""

from __future__ import annotations

import email
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import compiled
import manuals
import vendor
from architectures import Architecture
from sources import OUR_PACKAGES, REPOSITORY, files_below
from stage import compiled_site
from told import lock, run, say

#: What was fetched, for the next build.
CACHE = REPOSITORY / ".cache"
#: Its protoc is that of protobuf 6.31.1; requirements-3.9.txt has 6.33.
PROTOC = "grpcio-tools==1.80.1"


def prepare(python: str, architectures: Sequence[Architecture], target: Path) -> None:
    """Fill ``target``: ``site/``, ``site-ARCHITECTURE/``, ``licences/``, ``man/``, ``completion/``, ``chart/``,
    ``config.yaml``."""
    shutil.rmtree(target, ignore_errors=True)
    site = target / "site"
    CACHE.mkdir(exist_ok=True)
    # Builds side by side share what is fetched.
    with (CACHE / "packages.lock").open("w") as file:
        lock(file)
        _vendored(python, architectures, target)
        _protobufs(site)
    for source in files_below(*OUR_PACKAGES):
        (site / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / source, site / source)
    _compiled(python, architectures, target)
    say("writing the manual, completions, the chart and the sample configuration: seconds")
    allowed = [
        sys.executable,
        "-m",
        "cluster.api.io.source_tree",
        str(site / "cluster/api/allowed_options.py"),
    ]
    subprocess.run(allowed, check=True, cwd=REPOSITORY)
    subprocess.run([sys.executable, REPOSITORY / "packaging/cluster/chart.py", target / "chart"], check=True)
    manuals.write_all(target)


def _vendored(python: str, architectures: Sequence[Architecture], target: Path) -> None:
    licences = target / "licences"
    for architecture in architectures:
        compiled = compiled_site(target, architecture)
        cache = CACHE / f"wheels-{python}-{architecture.name}"
        for wheel in vendor.fetch(python, architecture, cache):
            vendor.unpack(wheel, target / "site" if vendor.is_shared(wheel) else compiled, licences)
    sites = [target / "site", *(compiled_site(target, architecture) for architecture in architectures)]
    licences.joinpath("VENDORED.md").write_text(vendored_list(sites, licences))


def _compiled(python: str, architectures: Sequence[Architecture], target: Path) -> None:
    """Extension modules, for this machine's architecture; a package for another one has the sources alone."""
    for architecture in architectures:
        if architecture.name == platform.machine():
            said = compiled.compile_modules(target / "site", python, compiled_site(target, architecture))
        else:
            said = f"nothing is compiled here for {architecture.name}"
        if said:
            say(f"{said}: the package runs from source")


def vendored_list(sites: Sequence[Path], licences: Path) -> str:
    """A table of what is vendored: name, version, licence, the files with its text.

    :raises SystemExit: a wheel brings no licence text.
    """
    # Of each architecture's wheels one: versions and licences are the same.
    found = {
        metadata.parent.name: metadata for site in sites for metadata in site.glob("*.dist-info/METADATA")
    }
    rows = []
    for folder_name, metadata in sorted(found.items()):
        fields = email.message_from_string(metadata.read_text(encoding="utf-8"))
        name, version = folder_name[: -len(".dist-info")].split("-")
        folder = licences / f"{name}-{version}"
        texts = sorted(found.name for found in folder.glob("*"))
        if not texts:
            sys.exit(
                f"packaging: {name} {version}: its wheel has no licence text; expected LICENSE or the like"
            )
        classifiers = [c for c in fields.get_all("Classifier", []) if c.startswith("License ::")]
        named = fields["License-Expression"] or (fields["License"] or "").splitlines()[:1]
        licence = named if isinstance(named, str) else (named or [""])[0]
        licence = licence or ", ".join(c.rpartition(":: ")[2] for c in classifiers)
        rows.append(
            f"| {name} | {version} | {licence} | {', '.join(f'{folder.name}/{t}' for t in texts)} |\n"
        )
    return "# What is vendored\n\n| name | version | licence | text |\n|---|---|---|---|\n" + "".join(rows)


def _protobufs(site: Path) -> None:
    tools = CACHE / f"{PROTOC}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not (tools / "grpc_tools").exists():
        say("fetching protoc, some 3 MB; kept for the next build")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--progress-bar=off",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        run([*pip, "--target", str(tools), PROTOC], "pip-protoc", f"{PROTOC} cannot be fetched")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}", f"--python_out={site}"]
    protos = [str(found) for found in sorted((REPOSITORY / "cri_api").glob("*.proto"))]
    subprocess.run([*protoc, *protos], check=True, env={**os.environ, "PYTHONPATH": str(tools)})
