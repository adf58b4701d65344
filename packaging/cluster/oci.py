"""OCI image layouts: layers, configurations, manifests and the index, written so that the same input has the same digest.

Source: the OCI image specification 1.1 (image-layout, manifest, config, layer). Standard library only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """``data`` is packed; ``diff_id`` is the digest of what was packed; ``what`` says it in the image's history."""

    data: bytes
    diff_id: str
    what: str


@dataclass(frozen=True)
class Image:
    """``name`` as container runtimes know it; ``config``: User, Env, Cmd and the like, as the specification has them."""

    name: str
    architecture: str
    config: Mapping[str, Any]
    layers: Sequence[Layer]


def pack(root: Path, what: str, epoch_s: int) -> Layer:
    """All that is below ``root``: root's, sorted by name, of the date ``epoch_s``; modes as they are."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*"), key=lambda found: found.relative_to(root).parts):
            _add(tar, path, path.relative_to(root).as_posix(), epoch_s)
    content = raw.getvalue()
    return Layer(gzip.compress(content, 9, mtime=0), digest(content), what)


def _add(tar: tarfile.TarFile, path: Path, name: str, epoch_s: int) -> None:
    info = tarfile.TarInfo(name)
    status = path.lstat()
    info.mtime, info.mode = epoch_s, stat.S_IMODE(status.st_mode)
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = status.st_size
        with path.open("rb") as file:
            tar.addfile(info, file)


def digest(data: bytes) -> str:
    """``sha256:...``"""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_layout(folder: Path, images: Sequence[Image], created: str) -> dict[str, str]:
    """Write the layout into ``folder``, which is empty or absent; the digest of each image's manifest, by name.

    :param created: as RFC 3339, for the images' configuration and history.
    """
    (folder / "blobs" / "sha256").mkdir(parents=True)
    manifests = []
    for image in images:
        described = _manifest(folder, image, created)
        annotations = {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition("/")[2].replace(":", "-"),
        }
        platform = {"architecture": image.architecture, "os": "linux"}
        manifests.append({**described, "platform": platform, "annotations": annotations})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return {image.name: found["digest"] for image, found in zip(images, manifests)}


def _manifest(folder: Path, image: Image, created: str) -> dict[str, Any]:
    config = {
        "architecture": image.architecture,
        "os": "linux",
        "created": created,
        "config": dict(image.config),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
        "history": [{"created": created, "created_by": layer.what} for layer in image.layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(folder, CONFIG, _json(config)),
        "layers": [_blob(folder, LAYER, layer.data) for layer in image.layers],
    }
    return _blob(folder, MANIFEST, _json(manifest))


def _blob(folder: Path, media_type: str, data: bytes) -> dict[str, Any]:
    """Its descriptor, once it is among the blobs."""
    name = digest(data)
    (folder / "blobs" / name.replace(":", "/")).write_bytes(data)
    return {"mediaType": media_type, "digest": name, "size": len(data)}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def archive(folder: Path, target: Path, epoch_s: int) -> None:
    """The layout as one uncompressed tar, as ``ctr images import`` and ``podman load`` read it."""
    with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*"), key=lambda found: found.relative_to(folder).parts):
            _add(tar, path, path.relative_to(folder).as_posix(), epoch_s)
