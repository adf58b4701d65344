"""The image of pods that talk: this machine's nginx and wrk with their libraries, busybox, and talk (talk.c)."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.e2e.images import PAUSE_COMMAND, Image, add_file, add_folder, add_link, write_archive

TRAFFIC = "docker.io/local/traffic:1"
TALK_SOURCE = Path(__file__).with_name("talk.c")
PROGRAMS = ("nginx", "wrk", "busybox")
APPLETS = ("awk", "cat", "sh", "sleep", "touch", "wc")
#: The page, and what nginx itself has counted of each request: all bytes of both directions.
BODY = "x" * 1000
BYTES_LOG = "/tmp/bytes.log"
NGINX_CONFIG = f"""\
daemon off;
worker_processes 1;
user root root;
error_log stderr warn;
pid /tmp/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  log_format bytes '$request_length $bytes_sent';
  access_log {BYTES_LOG} bytes buffer=64k flush=100ms;
  client_body_temp_path /tmp/body;
  proxy_temp_path /tmp/proxy;
  fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi;
  scgi_temp_path /tmp/scgi;
  keepalive_requests 1000000;
  server {{
    listen 80;
    listen [::]:80;
    location / {{ return 200 '{BODY}'; }}
  }}
}}
"""


def missing_for_traffic() -> str:
    """What this machine lacks to build the image, as a sentence for a skip; "" if nothing."""
    lacking = [program for program in (*PROGRAMS, "gcc") if shutil.which(program) is None]
    if lacking:
        return f"Not installed: {', '.join(lacking)}."
    probe = ["gcc", "-static", "-x", "c", "-", "-o", os.devnull]
    if subprocess.run(probe, input=b"int main(){return 0;}", capture_output=True, check=False).returncode:
        return "gcc makes no static programs here (Debian: libc6-dev)."
    return ""


def make_traffic_image(cache: Path) -> Path:
    """A `docker save`-like archive of the image, made once in this folder."""
    archive = cache / "traffic.tar"
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    layer = _layer(build_talk(cache))
    write_archive(archive, {TRAFFIC: Image([layer], PAUSE_COMMAND, path="/usr/sbin:/usr/bin:/bin")})
    return archive


def build_talk(folder: Path, compiler: str = "gcc") -> Path:
    """The program of talk.c, static; for tests that need no container too."""
    program = folder / "talk"
    command = [
        compiler,
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-static",
        "-o",
        str(program),
        str(TALK_SOURCE),
    ]
    subprocess.run(command, check=True)
    return program


def _layer(talk: Path) -> bytes:
    programs = {f"usr/bin/{name}": Path(shutil.which(name) or name).resolve() for name in PROGRAMS}
    files = {"usr/bin/talk": talk, **programs}
    for program in programs.values():
        files.update({library.lstrip("/"): Path(library).resolve() for library in libraries(program)})
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var/log/nginx", 0o755)):
            add_folder(tar, name, mode)
        for name, path in files.items():
            add_file(tar, name, path.read_bytes(), 0o755)
        for applet in APPLETS:
            add_link(tar, f"bin/{applet}", "/usr/bin/busybox")
        add_file(tar, "etc/nginx/nginx.conf", NGINX_CONFIG.encode())
        add_file(tar, "etc/passwd", b"root:x:0:0::/root:/bin/sh\n")
        add_file(tar, "etc/group", b"root:x:0:\n")
    return layer.getvalue()


def libraries(program: Path) -> list[str]:
    """The paths of its shared libraries and of its loader; none of a static program."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    return re.findall(r"(/\S+) \(0x", done.stdout)
