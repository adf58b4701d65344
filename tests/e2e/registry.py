"""A registry on loopback: what a runtime pulls of one, by the OCI distribution specification; nothing is pushed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.e2e.images import Image, digest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


class Registry:
    """Serves images by "repository:tag", at ``address`` between entering and leaving.

    It is every registry at once: a repository is the same whichever host a runtime asks for it.
    """

    def __init__(self, images: Mapping[str, Image]) -> None:
        #: What is answered to each path, and its type.
        content: dict[str, tuple[bytes, str]] = {"/v2/": (b"{}", "application/json")}
        for name, image in images.items():
            repository, tag = name.rsplit(":", 1)
            blobs = [(image.config(), CONFIG), *((layer, LAYER) for layer in image.layers)]
            content.update({f"/v2/{repository}/blobs/{digest(blob)}": (blob, kind) for blob, kind in blobs})
            described = [
                {"mediaType": kind, "digest": digest(blob), "size": len(blob)} for blob, kind in blobs
            ]
            manifest = json.dumps(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": described[0],
                    "layers": described[1:],
                }
            ).encode()
            for reference in (tag, digest(manifest)):
                content[f"/v2/{repository}/manifests/{reference}"] = (manifest, MANIFEST)
        self._server = _Server(("127.0.0.1", 0), content)
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry")

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], content: Mapping[str, tuple[bytes, str]]) -> None:
        self.content = content
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may break its connection off: CRI-O does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        missing = json.dumps({"errors": [{"code": "NOT_FOUND", "message": path}]}).encode()
        body, kind = self.server.content.get(path, (missing, "application/json"))
        self.send_response(200 if path in self.server.content else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if kind != "application/json":
            self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass
