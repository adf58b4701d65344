"""The registry of the tests: what a runtime asks for is there by tag and by digest, and nothing else is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest

from tests.e2e.images import Image, digest
from tests.e2e.registry import MANIFEST, Registry

IMAGE = Image([b"lower", b"upper"], ["run"], user="1000")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry({"tools/one:1": IMAGE, "tools/one:same": IMAGE}) as running:
        yield running


def ask(registry: Registry, path: str, method: str = "GET") -> HTTPResponse:
    request = urllib.request.Request(f"http://{registry.address}/v2/{path}", method=method)
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=10)
    return answer


def test_a_manifest_leads_to_every_blob(registry: Registry) -> None:
    with ask(registry, "tools/one/manifests/1?ns=registry.example") as answer:
        assert answer.headers["Content-Type"] == MANIFEST
        manifest = json.load(answer)
    blobs = []
    for told in (manifest["config"], *manifest["layers"]):
        with ask(registry, f"tools/one/blobs/{told['digest']}") as answer:
            blobs.append(answer.read())
        assert (digest(blobs[-1]), len(blobs[-1])) == (told["digest"], told["size"])
    config, *layers = blobs
    assert layers == IMAGE.layers
    told = json.loads(config)
    assert (told["config"]["User"], told["config"]["Cmd"]) == ("1000", ["run"])
    assert told["rootfs"]["diff_ids"] == [digest(layer) for layer in layers]


def test_a_tag_leads_to_the_digest_that_two_tags_of_an_image_share(registry: Registry) -> None:
    digests = set()
    for tag in ("1", "same"):
        with ask(registry, f"tools/one/manifests/{tag}", "HEAD") as answer:
            assert answer.read() == b""
            digests.add(answer.headers["Docker-Content-Digest"])
    with ask(registry, f"tools/one/manifests/{digests.pop()}") as answer:
        assert json.load(answer)["layers"] != []
    assert not digests


@pytest.mark.parametrize(
    "path", ["tools/one/manifests/2", "tools/two/manifests/1", "tools/one/blobs/sha256:0"]
)
def test_what_it_does_not_have_is_not_found(registry: Registry, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(registry, path)
    assert caught.value.code == 404
    caught.value.close()
