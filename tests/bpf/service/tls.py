"""An observer over TCP with mutual TLS, with the certificates and the settings of docs/affinity.md."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import grpc
import pytest
import yaml

from tests.bpf.observer import RECONNECT, ObserverProcess
from tests.bpf.service.page import examples

#: In the observer's certificate.
NAME = "localhost"


def make_certificates(folder: Path) -> None:
    """``ca``, ``server`` and ``client``, each a .pem and a .key, by the page's commands."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    commands, _ = examples("Over TCP")
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["sh", "-e"],
        input=commands,
        cwd=folder,
        env={**os.environ, "NODE": NAME},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr


def observer_over_tcp(folder: Path, certificates: Path) -> tuple[ObserverProcess, int]:
    """One that is configured as the page says, not started yet, and its port."""
    _, configuration = examples("Over TCP")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    files = yaml.safe_load(configuration)["affinity"]
    del files["listen"]
    options = {name: str(certificates / Path(path).name) for name, path in files.items()}
    return ObserverProcess(folder, listen=f"127.0.0.1:{port}", **options), port


def channel(port: int, certificates: Path, certificate: str = "", authority: str = "ca") -> grpc.Channel:
    """A channel with a client's certificate, or "" = without one."""
    root = (certificates / f"{authority}.pem").read_bytes()
    own = (
        [(certificates / f"{certificate}{end}").read_bytes() for end in (".key", ".pem")]
        if certificate
        else []
    )
    return grpc.secure_channel(f"{NAME}:{port}", grpc.ssl_channel_credentials(root, *own), RECONNECT)
