"""The fingerprint of a set of pods, by which a scheduler knows which pods a NodeResourceTopology has counted. Pure.

The format is that of k8stopologyawareschedwg/podfingerprint: ``pfp0`` (the algorithm's family), ``v001`` (its version),
16 hexadecimal digits. A pod's hash is the XXH64 of its name with the XXH64 of its namespace as seed; the fingerprint is
the XXH64 (seed 0) of all pods' hashes, ascending, each as 8 bytes little-endian. XXH64 is written down here since the
agent has the standard library only: 500 pods take some ten milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

PREFIX = "pfp0v001"

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def pods_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods, each as (namespace, name); their order does not matter, and a pod counts once."""
    hashes = sorted(xxh64(name.encode(), xxh64(namespace.encode())) for namespace, name in set(pods))
    return f"{PREFIX}{xxh64(struct.pack(f'<{len(hashes)}Q', *hashes)):016x}"


def xxh64(data: bytes, seed: int = 0) -> int:
    """The XXH64 of bytes: an unsigned number of 64 bits (doc/xxhash_spec.md of Cyan4973/xxHash)."""
    at = len(data) & ~31
    # 1. Whole stripes of 32 bytes go through four accumulators, 8 bytes each.
    if at:
        lanes = [seed + _P1 + _P2 & _MASK, seed + _P2 & _MASK, seed, seed - _P1 & _MASK]
        for words in struct.iter_unpack("<4Q", data[:at]):
            lanes = [_round(lane, word) for lane, word in zip(lanes, words)]
        found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & _MASK
        for lane in lanes:
            found = (found ^ _round(0, lane)) * _P1 + _P4 & _MASK
    else:
        found = seed + _P5 & _MASK
    found = found + len(data) & _MASK
    # 2. The rest by 8, 4 and 1 bytes.
    while len(data) - at >= 8:
        (word,) = struct.unpack_from("<Q", data, at)
        found = _rotate(found ^ _round(0, word), 27) * _P1 + _P4 & _MASK
        at += 8
    if len(data) - at >= 4:
        (half,) = struct.unpack_from("<I", data, at)
        found = _rotate(found ^ half * _P1 & _MASK, 23) * _P2 + _P3 & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotate(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    # 3. Every bit of the input reaches every bit of the result.
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _P2 & _MASK, 31) * _P1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
