"""Which files are plugins, and why others are not."""

from __future__ import annotations

import stat

import pytest

from cri_proxy.nri.discovery import DirectoryEntry, PassedOver, Preregistered, config_names, insecurity, judge

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
