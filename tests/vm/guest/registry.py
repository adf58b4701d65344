"""A registry with one image whose layer comes as slowly as it is told to: for a pull that takes long.

Docker's registry protocol as far as a pull needs it, on 127.0.0.1, where containerd does without TLS.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
#: A piece of the layer, and the pause after it: containerd gives up a pull that makes no progress for a minute.
_PIECE_BYTES, _PAUSE_S = 64, 0.5


@dataclass
class SlowRegistry:
    """``image``: what to pull. The layer trickles until ``go``, the rest of it then comes at once."""

    image: str = ""
    go: threading.Event = field(default_factory=threading.Event)
    #: How often a pull has come to the layer.
    begun: int = 0


@contextmanager
def slow_registry() -> Iterator[SlowRegistry]:
    """One that serves until the end of the block."""
    registry = SlowRegistry()
    blobs, manifest = _image()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, *_arguments: object) -> None:
            """Nothing: what is printed is a verdict's text."""

        def _answer(self, with_body: bool) -> None:
            kind, body = _find(self.path, blobs, manifest)
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            if with_body and kind == _LAYER:
                registry.begun += 1
                self._trickle(body)
            elif with_body:
                self.wfile.write(body)

        def _trickle(self, body: bytes) -> None:
            sent = 0
            # The last piece waits for the word.
            while not registry.go.wait(_PAUSE_S) and sent + _PIECE_BYTES < len(body):
                self.wfile.write(body[sent : sent + _PIECE_BYTES])
                sent += _PIECE_BYTES
            registry.go.wait()
            self.wfile.write(body[sent:])

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_arguments: object) -> None:
            """A pull that was cut closes its connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        registry.image = f"127.0.0.1:{server.server_address[1]}/local/slow:1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield registry
        finally:
            registry.go.set()
            server.shutdown()


def _image() -> tuple[dict[str, tuple[str, bytes]], bytes]:
    """Blobs by digest, with what they are, and the manifest."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        # Bytes that do not shrink: the layer has to be long to trickle long.
        content = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(256)) * 16
        file = tarfile.TarInfo("content")
        file.size = len(content)
        archive.addfile(file, io.BytesIO(content))
    layer = gzip.compress(tar.getvalue(), compresslevel=0, mtime=0)
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [_digest(tar.getvalue())]},
    }
    config = json.dumps(described).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _described(_CONFIG, config),
        "layers": [_described(_LAYER, layer)],
    }
    blobs = {_digest(body): (kind, body) for kind, body in ((_CONFIG, config), (_LAYER, layer))}
    return blobs, json.dumps(manifest).encode()


def _described(kind: str, body: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(body), "digest": _digest(body)}


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _find(path: str, blobs: dict[str, tuple[str, bytes]], manifest: bytes) -> tuple[str, bytes]:
    """What is asked for and what it is; ("", b"") if there is no such thing."""
    if path == "/v2/":
        return "application/json", b"{}"
    if "/manifests/" in path:
        return _MANIFEST, manifest
    return blobs.get(path.rpartition("/")[2], ("", b""))
