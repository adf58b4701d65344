"""Fingerprints are those of the reference implementation, and XXH64 is that of the xxhash library."""

from __future__ import annotations

import random

import pytest
import xxhash

from cluster.topology.resource_topology import pods_fingerprint, xxh64


@pytest.mark.parametrize(
    ("pods", "fingerprint"),
    [
        ([], "pfp0v001ef46db3751d8e999"),
        ([("default", "web-0"), ("kube-system", "coredns-abc")], "pfp0v001985a56c7583ae54a"),
        ([("kube-system", "coredns-abc"), ("default", "web-0")], "pfp0v001985a56c7583ae54a"),
        (
            [("default", "web-0"), ("default", "web-0"), ("kube-system", "coredns-abc")],
            "pfp0v001985a56c7583ae54a",
        ),
    ],
    ids=["no pods", "two pods", "in any order", "a pod with two containers"],
)
def test_a_fingerprint_is_that_of_the_reference(pods: list[tuple[str, str]], fingerprint: str) -> None:
    assert pods_fingerprint(pods) == fingerprint


@pytest.mark.parametrize("length", [*range(70), 95, 96, 97, 1000])
def test_xxh64_is_that_of_the_library_at_every_length(length: int) -> None:
    some = random.Random(length)
    data, seed = some.randbytes(length), some.getrandbits(64)
    assert xxh64(data) == xxhash.xxh64_intdigest(data)
    assert xxh64(data, seed) == xxhash.xxh64_intdigest(data, seed)
