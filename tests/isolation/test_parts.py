"""Parts of a cache and of bandwidth, as people write them and as a kernel takes them."""

from __future__ import annotations

import pytest

from cri_proxy.isolation import bandwidth, caches
from cri_proxy.isolation.model import EIGHTHS, MBPS, BandwidthInfo, CacheInfo

AMD, INTEL = CacheInfo(0xFFFF, is_sparse=True), CacheInfo(0xFFFFF, min_bits=2)


@pytest.mark.parametrize(
    ("text", "cache", "mask"),
    [
        ("30%", AMD, 0x1F),
        ("25%", AMD, 0xF),
        ("1%", AMD, 0x1),
        ("1%", INTEL, 0x3),
        ("30%", INTEL, 0x3F),
        ("100%", INTEL, 0xFFFFF),
        ("4 bits", AMD, 0xF),
        ("1 bit", INTEL, 0x3),
        ("99 bits", AMD, 0xFFFF),
        ("0xf0", AMD, 0xF0),
        ("0x5", AMD, 0x5),
        ("0x5", INTEL, 0x3),  # a mask must be in one piece there
        ("0xf0000000", AMD, 0x1),  # no bit of it is there
    ],
)
def test_a_part_is_rounded_up_to_what_the_kernel_takes(text: str, cache: CacheInfo, mask: int) -> None:
    assert caches.mask_of(caches.read_part(text), cache) == mask


def test_a_share_that_protection_has_set_counts_before_the_configured_part() -> None:
    assert caches.mask_of(caches.read_part("0xf0"), AMD, share=0.5) == 0xFF


@pytest.mark.parametrize(
    ("text", "info", "value"),
    [
        ("30%", BandwidthInfo(10, 10, 100), 30),
        ("31%", BandwidthInfo(10, 10, 100), 40),
        ("1%", BandwidthInfo(10, 10, 100), 10),
        ("100%", BandwidthInfo(10, 10, 100), 100),
        ("5500MBps", BandwidthInfo(10, 10, 100), 10),
        ("4000MBps", BandwidthInfo(1, 1, 2048, EIGHTHS), 32),
        ("10%", BandwidthInfo(1, 1, 2048, EIGHTHS), 44),
        ("100%", BandwidthInfo(1, 1, 2048, EIGHTHS), 2048),
        ("4000MBps", BandwidthInfo(10, 10, 4294967295, MBPS), 4000),
    ],
)
def test_a_bandwidth_is_a_multiple_of_the_step(text: str, info: BandwidthInfo, value: int) -> None:
    assert bandwidth.value_of(bandwidth.read_part(text), info) == value


@pytest.mark.parametrize("text", ["", "0%", "101%", "-1%", "0 bits", "0x", "0x0", "a third", "30", "1e3%"])
def test_other_words_for_a_part_of_a_cache_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a percentage from 1 to 100"):
        caches.read_part(text)


@pytest.mark.parametrize("text", ["", "0%", "101%", "0MBps", "30", "2 GB/s"])
def test_other_words_for_a_part_of_bandwidth_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a percentage from 1 to 100"):
        bandwidth.read_part(text)
