"""What is subscribed to, by what the host is: never a bit it does not know, never "everything"."""

from __future__ import annotations

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import event_name, mask_of
from cri_proxy.nri.subscription import (
    MASK_ALL,
    MASK_CLASSIC,
    STARTS,
    WANTED,
    may_update_unasked,
    subscription,
)

CLASSIC, ALL = WANTED & MASK_CLASSIC, WANTED
NOT_WANTED = [nri.START_CONTAINER, nri.VALIDATE_CONTAINER_ADJUSTMENT]

#: Runtime, its version, the NRI version it tells, what we subscribe to.
HOSTS = [
    ("containerd", "1.7.24~ds1", "", CLASSIC),
    ("containerd", "v2.1.4", "", CLASSIC),
    ("containerd", "v2.2.0", "", ALL),
    ("containerd", "2.3.1", "v0.12.0", ALL),
    ("cri-o", "1.33.2", "", CLASSIC),
    ("cri-o", "1.34.0", "", ALL),
    # iSulad does not tell its name.
    ("v2", "2.0.0-beta.2+unknown", "", CLASSIC),
    ("", "", "", CLASSIC),
    ("mine", "(devel)", "unknown", CLASSIC),
    ("mine", "(devel)", "v0.12.2", ALL),
]


@pytest.mark.parametrize(("runtime", "version", "nri_version", "mask"), HOSTS)
def test_the_subscription_is_what_the_host_knows(
    runtime: str, version: str, nri_version: str, mask: int
) -> None:
    assert subscription(runtime, version, nri_version) == mask
    assert subscription(runtime, version, nri_version, refused=True) == CLASSIC


def test_the_event_before_each_start_is_asked_for_only_where_it_is_wanted() -> None:
    """Every host knows it."""
    for runtime, version, nri_version, mask in HOSTS:
        assert not mask & STARTS
        assert subscription(runtime, version, nri_version, has_starts=True) == mask | STARTS
        assert subscription(runtime, version, nri_version, True, has_starts=True) == CLASSIC | STARTS
    assert mask_of([nri.START_CONTAINER]) == STARTS


def test_we_are_no_validator_and_never_ask_for_everything() -> None:
    assert mask_of(event for event in range(1, nri.LAST) if event not in NOT_WANTED) == ALL
    assert 0 < CLASSIC < ALL < MASK_ALL


@pytest.mark.parametrize(
    ("version", "is_safe"),
    [
        ("", False),
        ("(devel)", False),
        ("v0.11.9", False),
        ("v0.12.0", False),
        ("v0.12.1", True),
        ("0.13", True),
        ("v1.0.0-rc.1", True),
    ],
)
def test_updates_nobody_asked_for_wait_for_the_release_that_does_not_lock_up(
    version: str, is_safe: bool
) -> None:
    assert may_update_unasked(version) is is_safe


def test_events_are_named_as_their_calls() -> None:
    assert [event_name(event) for event in (1, 5, 12, 99)] == [
        "RunPodSandbox",
        "PostCreateContainer",
        "UpdatePodSandbox",
        "99",
    ]
