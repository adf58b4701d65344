"""What a host of plugins decides: calls of events, names, masks, order of the day."""

from __future__ import annotations

import stat

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.dispatch import (
    DirectoryEntry,
    PassedOver,
    Preregistered,
    config_names,
    effective_mask,
    insecurity,
    is_meant,
    judge,
    missing,
    pause_s,
    registration_problem,
    rpc_of,
    subscribes,
)

EVENTS = range(1, nri.LAST)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_a_call_of_its_name_with_request_and_response(event: int) -> None:
    rpc = rpc_of(event)
    assert rpc.method in nri.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
    assert hasattr(nri, f"{rpc.method}Request") and hasattr(nri, f"{rpc.method}Response")
    assert rpc.method.upper() == nri.Event.Name(event).replace("_", "")


def test_nine_events_were_state_changes_once() -> None:
    always_calls = {"CreateContainer", "UpdateContainer", "StopContainer", "UpdatePodSandbox"}
    always_calls |= {"ValidateContainerAdjustment"}
    assert {rpc_of(event).method for event in EVENTS if not rpc_of(event).has_fallback} == always_calls


def test_a_mask_has_a_bit_for_each_event() -> None:
    assert [event for event in EVENTS if subscribes(0x2009, event)] == [
        nri.RUN_POD_SANDBOX,
        nri.CREATE_CONTAINER,
        nri.VALIDATE_CONTAINER_ADJUSTMENT,
    ]


@pytest.mark.parametrize(
    ("asked", "given_mask", "unknown"),
    [(0, 0x3FFF, 0), (0x7FF, 0x7FF, 0), (0x3FFF, 0x3FFF, 0), (0x4001, 1, 0x4000), (0x8000, 0, 0x8000)],
)
def test_unknown_bits_are_left_out_and_nothing_is_everything(
    asked: int, given_mask: int, unknown: int
) -> None:
    assert effective_mask(asked) == (given_mask, unknown)


NAMES = {
    ("foo", "10"): "",
    ("Foo_1.b+c-d", "00"): "",
    ("", "10"): "invalid (empty) plugin name",
    ("foo,bar", "10"): "invalid plugin name: invalid plugin name \"foo,bar\": contains invalid character ','",
    ("föö", "10"): "invalid plugin name: invalid plugin name \"föö\": contains invalid character 'ö'",
    ("a\n", "10"): "invalid plugin name: invalid plugin name \"a\n\": contains invalid character '\n'",
    ("foo", "5"): 'invalid plugin index: invalid plugin index "5", must be 2 digits',
    ("foo", ""): 'invalid plugin index: invalid plugin index "", must be 2 digits',
    ("foo", "1x"): 'invalid plugin index: invalid plugin index "1x" (not [0-9][0-9])',
    ("foo", "١٢"): 'invalid plugin index: invalid plugin index "١٢" (not [0-9][0-9])',
}


@pytest.mark.parametrize(("name", "index"), NAMES)
def test_names_and_indices_are_what_nri_takes(name: str, index: str) -> None:
    assert registration_problem(name, index) == NAMES[name, index]


def test_a_plugin_is_meant_with_its_index_or_without_or_by_a_glob() -> None:
    assert (
        is_meant(["foo"], "10", "foo") and is_meant(["10-foo"], "10", "foo") and is_meant(["f*"], "10", "foo")
    )
    assert not is_meant(["20-foo", "bar"], "10", "foo")
    assert missing(["foo", "20-foo", "bar"], [("10", "foo")]) == ["20-foo", "bar"]


def test_pauses_grow_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (0, 1, 2, 3, 7, 100)] == [1, 1, 2, 4, 60, 60]


FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR
PLUGINS = {
    "a plain one": (
        DirectoryEntry("10-foo", "/p/10-foo", FILE | 0o755, 0),
        Preregistered("10", "foo", "/p/10-foo"),
    ),
    "of root alone": (
        DirectoryEntry("00-x", "/p/00-x", FILE | 0o700, 0),
        Preregistered("00", "x", "/p/00-x"),
    ),
    "executable for others only": (
        DirectoryEntry("10-foo", "/p/10-foo", FILE | 0o611, 0),
        Preregistered("10", "foo", "/p/10-foo"),
    ),
    "with dashes in its name": (
        DirectoryEntry("99-a-b", "/p/99-a-b", FILE | 0o755, 0),
        Preregistered("99", "a-b", "/p/99-a-b"),
    ),
    "of ourselves": (
        DirectoryEntry("10-foo", "/p/10-foo", FILE | 0o755, 7),
        Preregistered("10", "foo", "/p/10-foo"),
    ),
}
NAME = "its name is not like 10-NAME, two digits and a name"
PASSED_OVER = {
    "a directory": (DirectoryEntry("10-foo", "/p/x", FOLDER | 0o755, 0), ""),
    "a socket": (DirectoryEntry("10-foo", "/p/x", stat.S_IFSOCK | 0o755, 0), "it is not a file"),
    "not executable": (DirectoryEntry("10-foo", "/p/x", FILE | 0o644, 0), "it is not executable"),
    "without an index": (DirectoryEntry("foo", "/p/x", FILE | 0o755, 0), NAME),
    "of one digit": (DirectoryEntry("1-foo", "/p/x", FILE | 0o755, 0), NAME),
    "without a name": (DirectoryEntry("10-", "/p/x", FILE | 0o755, 0), NAME),
    "with a space": (DirectoryEntry("10-a b", "/p/x", FILE | 0o755, 0), NAME),
    "somebody's": (
        DirectoryEntry("10-foo", "/p/x", FILE | 0o755, 1000),
        "it belongs to user 1000, not to root",
    ),
    "writable by a group": (
        DirectoryEntry("10-foo", "/p/x", FILE | 0o775, 0),
        "others may write to it (mode 0775)",
    ),
    "WebAssembly": (
        DirectoryEntry("10-foo", "/p/x", FILE | 0o755, 0, b"\0asm\1\0\0\0"),
        "it is WebAssembly, which is not run here",
    ),
    "unreadable": (DirectoryEntry("10-foo", "/p/x", 0, 0, problem="Permission denied"), "Permission denied"),
}


@pytest.mark.parametrize("case", PLUGINS)
def test_a_plugin_is(case: str) -> None:
    entry, expected = PLUGINS[case]
    assert judge(entry, own_uid=7) == expected


@pytest.mark.parametrize("case", PASSED_OVER)
def test_no_plugin_is(case: str) -> None:
    entry, reason = PASSED_OVER[case]
    assert judge(entry) == PassedOver("/p/x", reason)


def test_a_directory_on_the_way_may_be_shared_if_what_is_in_it_cannot_be_replaced() -> None:
    assert insecurity(FOLDER | 0o1777, 0, 0, may_be_sticky=True) == ""
    assert insecurity(FOLDER | 0o1777, 0, 0) == "others may write to it (mode 1777)"
    assert insecurity(FOLDER | 0o777, 0, 0, may_be_sticky=True) == "others may write to it (mode 0777)"


def test_the_configuration_of_the_index_comes_before_that_of_the_name() -> None:
    assert config_names(Preregistered("10", "foo", "/p/10-foo")) == ("10-foo.conf", "foo.conf")
