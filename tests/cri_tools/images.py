"""The images that critest's cases name, made of busybox and small programs of ours that do what a case asks of each."""

from __future__ import annotations

import io
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.images import PAUSE_COMMAND, Image, add_file, busybox_layer

SOURCE = Path(__file__).with_name("nonewprivs.c")
#: What a case expects of an image and Debian's static busybox lacks.
SCRIPTS = {
    # Without the sandbox's, whose pause is a sleep.
    "pgrep": 'for pid in $(pidof "$1"); do [ $pid = 1 ] || echo $pid; done',
    "ipcs": "exec cat /proc/sysvipc/shm",
    # A process that is called nginx, by its name and by its arguments.
    "nginx": "mkdir -p /var/run && echo $$ > /var/run/nginx.pid && httpd -f -p 80 -h /www",
}
USERS = """\
root:x:0:0::/root:/bin/sh
www-data:x:33:33::/:/bin/sh
default-user:x:1000:1000::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
"""
GROUPS = "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"


def make_images(folder: Path) -> Mapping[str, Image]:
    """Every image by its repository and tag, whatever the registry."""
    tools = [busybox_layer(), _layer()]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    ours, theirs = "k8s-staging-cri-tools", "e2e-test-images"
    server = ("sh", "-c", "echo httpd; exec httpd -f -p 80 -h /www")
    images = {
        "pause:3.9": Image(tools, PAUSE_COMMAND),
        f"{theirs}/busybox:1.29-2": Image(tools),
        f"{theirs}/httpd:2.4.39-4": Image(tools, server),
        f"{theirs}/nginx:1.14-2": Image(tools, ("nginx", "master process")),
        f"{theirs}/nonewprivs:1.3": Image([_nonewprivs(folder)], ("/nonewprivs",)),
        f"{ours}/hostnet-nginx-{machine}:latest": Image(tools, ("httpd", "-f", "-p", "12003", "-h", "/www")),
        f"{ours}/test-image-predefined-group:latest": Image(tools, user="1000"),
    }
    users = {
        "uid": "1002",
        "username": "www-data",
        "uid-group": "1003:users",
        "username-group": "www-data:100",
    }
    images.update(
        {f"{ours}/test-image-user-{name}:latest": Image(tools, user=user) for name, user in users.items()}
    )
    # Told apart by what they run, where a case wants different images.
    for different in ("1", "2", "3", "latest"):
        images[f"{ours}/test-image-{different}:latest"] = Image(tools, ("echo", different))
    for tag in ("test", "all"):
        images[f"{ours}/test-image-tag:{tag}"] = Image(tools, ("sh", "-c", f": {tag}; exec top"))
    for tag in ("1", "2", "3"):
        images[f"{ours}/test-image-tags:{tag}"] = Image(tools, ("echo", "the same"))
    return images


def _nonewprivs(folder: Path) -> bytes:
    program = folder / "nonewprivs"
    subprocess.run(["gcc", "-O2", "-Wall", "-static", "-o", str(program), str(SOURCE)], check=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        add_file(tar, "nonewprivs", program.read_bytes(), 0o4755)
    return layer.getvalue()


def _layer() -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, text in SCRIPTS.items():
            add_file(tar, f"bin/{name}", f"#!/bin/sh\n{text}\n".encode(), 0o755)
        for name, text in {"etc/passwd": USERS, "etc/group": GROUPS, "www/index.html": "here\n"}.items():
            add_file(tar, name, text.encode())
    return layer.getvalue()
