"""The registry of a slow pull, asked as a runtime asks it."""

from __future__ import annotations

import hashlib
import http.client
import json

from tests.vm.guest.registry import slow_registry


def test_every_blob_of_the_manifest_is_there_and_is_what_its_digest_says() -> None:
    with slow_registry() as registry:
        registry.go.set()
        address, _, name = registry.image.partition("/")
        name, _, tag = name.rpartition(":")
        connection = http.client.HTTPConnection(address)

        def get(path: str) -> bytes:
            connection.request("GET", f"/v2/{path}")
            reply = connection.getresponse()
            assert reply.status == 200
            return reply.read()

        manifest = json.loads(get(f"{name}/manifests/{tag}"))
        for blob in (manifest["config"], *manifest["layers"]):
            body = get(f"{name}/blobs/{blob['digest']}")
            assert (len(body), f"sha256:{hashlib.sha256(body).hexdigest()}") == (blob["size"], blob["digest"])
        connection.close()


def test_the_layer_is_not_whole_before_the_word() -> None:
    with slow_registry() as registry:
        address, _, name = registry.image.partition("/")
        name, _, tag = name.rpartition(":")
        connection = http.client.HTTPConnection(address)
        connection.request("GET", f"/v2/{name}/manifests/{tag}")
        layer = json.loads(connection.getresponse().read())["layers"][0]
        connection.request("GET", f"/v2/{name}/blobs/{layer['digest']}")
        reply = connection.getresponse()
        assert reply.read(64) != b""
        assert (registry.begun, registry.go.is_set()) == (1, False)
        registry.go.set()
        assert len(reply.read()) == layer["size"] - 64
        connection.close()


def test_what_is_not_there_is_said() -> None:
    with slow_registry() as registry:
        connection = http.client.HTTPConnection(registry.image.partition("/")[0])
        connection.request("GET", "/v2/local/slow/blobs/sha256:0")
        assert connection.getresponse().status == 404
        connection.close()
