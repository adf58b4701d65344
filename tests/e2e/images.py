"""Images without a network: what they are made of, and an archive of busybox and pause, of what is installed here."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

PAUSE = "docker.io/local/pause:1"
BUSYBOX = "docker.io/local/busybox:1"
#: A sleep is pause enough: it reaps no zombies, but no pod here shares its process namespace.
PAUSE_COMMAND = ("sleep", "2147483647")


@dataclass(frozen=True)
class Image:
    """What an image is made of, and what its containers run by default.

    ``layers``: tar archives, the lowest first; ``user`` and ``stop_signal``: as a Dockerfile has them; ``path``: of
    programs; ``architecture``: as images call it, "" for this machine's.
    """

    layers: Sequence[bytes]
    command: Sequence[str] = ("sh",)
    user: str = ""
    stop_signal: str = ""
    path: str = "/bin"
    architecture: str = ""

    def config(self) -> bytes:
        """The image's configuration, as JSON."""
        machine = platform.machine()
        told: dict[str, Any] = {"Env": [f"PATH={self.path}"], "Cmd": list(self.command)}
        told.update(
            {key: value for key, value in (("User", self.user), ("StopSignal", self.stop_signal)) if value}
        )
        config = {
            "architecture": self.architecture
            or {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            "os": "linux",
            "config": told,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]},
        }
        return json.dumps(config).encode()


def digest(content: bytes) -> str:
    """What content is called by: "sha256:...\""""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def make_images(cache: Path, busybox: Optional[Path] = None, architecture: str = "") -> Path:
    """A `docker save`-like archive of both images, made once in this folder.

    ``busybox``: a static one, by default that of this machine; ``architecture``: its own, as images call it.
    """
    archive = cache / "images.tar"
    if not archive.exists():
        layers = [busybox_layer(busybox)]
        images = {
            BUSYBOX: Image(layers, architecture=architecture),
            # A first process that is a sleep does not hear SIGTERM; CRI-O waits a minute for what hears its signal.
            PAUSE: Image(layers, PAUSE_COMMAND, stop_signal="SIGKILL", architecture=architecture),
        }
        write_archive(archive, images)
    return archive


def write_archive(archive: Path, images: Mapping[str, Image]) -> None:
    """Write images, by their names, as `docker save` does; the file is whole once it is there."""
    files: dict[str, bytes] = {}
    manifest = []
    for name, image in images.items():
        config = image.config()
        config_name = f"{digest(config).partition(':')[2]}.json"
        layers = {f"{digest(layer).partition(':')[2]}.tar": layer for layer in image.layers}
        files.update({**layers, config_name: config})
        manifest.append({"Config": config_name, "RepoTags": [name], "Layers": list(layers)})
    files["manifest.json"] = json.dumps(manifest).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    with tarfile.open(unfinished, "w") as tar:
        for name, content in files.items():
            add_file(tar, name, content)
    unfinished.rename(archive)


def busybox_layer(busybox: Optional[Path] = None) -> bytes:
    """A file system of a static busybox, by default this machine's, with a link for each of its applets."""
    busybox = busybox or Path(shutil.which("busybox") or "busybox")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var", 0o755)):
            add_folder(tar, name, mode)
        add_file(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in sorted(set(applets) - {"busybox"}):
            add_link(tar, f"bin/{applet}", "busybox")
        add_file(tar, "etc/passwd", b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        add_file(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return layer.getvalue()


def add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    file = tarfile.TarInfo(name)
    file.size, file.mode = len(content), mode
    tar.addfile(file, io.BytesIO(content))


def add_folder(tar: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, mode
    tar.addfile(folder)


def add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    tar.addfile(link)
