"""The image, built as ``make image`` builds it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_proxy.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = f"docker.io/library/cri-resmgr:{VERSION}"
#: The file of ``build``'s folder that a runtime imports.
ARCHIVE = f"cri-resmgr-{VERSION}-amd64.oci.tar"


def build(dist: Path) -> dict[str, str]:
    """The digest of the image by its name."""
    command = [
        sys.executable,
        str(REPOSITORY / "packaging/cluster/image.py"),
        f"--dist={dist}",
    ]
    # The date of the sources, which another commit would change while this runs.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    if "mmdebstrap failed" in done.stderr and done.returncode != 0:
        pytest.skip(f"Debian's packages cannot be had: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def files_of(archive: Path, name: str) -> Iterator[str]:
    """The names of all files in an image's layers."""
    with tarfile.open(archive) as layout:

        def read(member: str) -> bytes:
            found = layout.extractfile(member)
            assert found is not None, member
            return found.read()

        def blob(descriptor: Mapping[str, Any]) -> bytes:
            return read(f"blobs/{descriptor['digest'].replace(':', '/')}")

        (image,) = [
            one
            for one in json.loads(read("index.json"))["manifests"]
            if one["annotations"]["io.containerd.image.name"] == name
        ]
        for layer in json.loads(blob(image))["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(layer))) as content:
                yield from (member.name for member in content if member.isfile())
