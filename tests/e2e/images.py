"""Images without a registry: one archive of a busybox and a pause image, made of what is installed here."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Optional

PAUSE = "docker.io/local/pause:1"
BUSYBOX = "docker.io/local/busybox:1"


def make_images(cache: Path, busybox: Optional[Path] = None, architecture: str = "") -> Path:
    """A `docker save`-like archive of both images, made once in this folder.

    ``busybox``: a static one, by default that of this machine; ``architecture``: its own, as images call it.
    """
    archive = cache / "images.tar"
    if archive.exists():
        return archive
    layer = _layer(busybox or Path(shutil.which("busybox") or "busybox"))
    machine = platform.machine()
    architecture = architecture or {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    files, manifest = {"layer.tar": layer}, []
    # A sleep is pause enough: it reaps no zombies, but no pod here shares its process namespace.
    for name, command in ((BUSYBOX, ["sh"]), (PAUSE, ["sleep", "2147483647"])):
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        content = json.dumps(config).encode()
        config_name = f"{hashlib.sha256(content).hexdigest()}.json"
        files[config_name] = content
        manifest.append({"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = cache / f"images.tar.{os.getpid()}"
    with tarfile.open(unfinished, "w") as tar:
        for name, content in files.items():
            _add_file(tar, name, content)
    unfinished.rename(archive)
    return archive


def _layer(busybox: Path) -> bytes:
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        _add_file(tar, "bin/busybox", busybox.read_bytes())
        for applet in sorted(set(applets) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _add_file(tar, "etc/passwd", b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        _add_file(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return layer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    file = tarfile.TarInfo(name)
    file.size, file.mode = len(content), 0o755 if name.startswith("bin/") else 0o644
    tar.addfile(file, io.BytesIO(content))
