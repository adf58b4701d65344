"""YAML as entries: what is no configuration, what is empty, and aliases."""

from __future__ import annotations

import pytest

from cri_proxy.config.config import read_config
from cri_proxy.text.sources import MAX_CHARACTERS
from tests.config.configs import NAMES, errors_of, read


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a", 'c.yaml:1: the file holds ["a"], expected sections of options'),
        ("# x\n\nhygon", 'c.yaml:3: the file holds "hygon", expected sections of options'),
        (
            "a: 1\n\tb: 2",
            "c.yaml:2: this is not YAML: while scanning for the next token, "
            "found character '\\t' that cannot start any token (indent with spaces, not tabs)",
        ),
        (
            "a: {b: 1",
            "c.yaml:1: this is not YAML: while parsing a flow mapping, "
            "expected ',' or '}', but got '<stream end>'",
        ),
        (
            "a: 1\n---\nb: 2",
            "c.yaml:2: this is not YAML: expected a single document in the stream, "
            "but found another document",
        ),
        (
            "placement:\n  unmanaged_handlers: [*kata]",
            "c.yaml:2: this is not YAML: found undefined alias 'kata' "
            '(a name that begins with * must be quoted: "*qemu*")',
        ),
        (
            "placement:\n  unmanaged_handlers: [*qemu*]",
            "c.yaml:2: this is not YAML: while scanning an alias, "
            "expected alphabetic or numeric character, but found '*' "
            '(a name that begins with * must be quoted: "*qemu*")',
        ),
        ("a: 1\nb: \x07", "c.yaml:2: this is not YAML: the character U+0007 is not allowed"),
        ('a: "\\UFFFFFFFF"', "c.yaml: this is not YAML: a number in it is out of range"),
        ("a: " + "[" * 3000, "c.yaml:1: this is not YAML: values are nested deeper than 50 levels"),
        (
            "#" * (MAX_CHARACTERS + 1),
            "c.yaml: the file is too large for a configuration: 262145 characters, expected at most 262144",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_an_error_that_names_the_line(text: str, sentence: str) -> None:
    assert errors_of(text) == (sentence,)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing\n", "---\n", "~", "{}", "placement:\n", "policy: {ReservedResources: }"]
)
def test_an_empty_file_is_an_empty_configuration(text: str) -> None:
    loaded = read(text, strict=True)
    assert not loaded.config.differences(read_config([]).config)
    assert not loaded.warnings


def test_aliases_are_followed_but_never_expanded() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert errors_of(bomb + "placement: {reserved_namespaces: *a59}") == (
        f"c.yaml:61: placement.reserved_namespaces is a list that holds more than texts, {NAMES}",
    )
    names = "placement: {reserved_namespaces: &n [a, b], unmanaged_namespaces: *n}"
    assert read(names).config["placement.unmanaged_namespaces"] == ("a", "b")


def test_an_alias_inside_itself_comes_to_an_end() -> None:
    assert read("policy: &p {ReservedResources: *p, Active: none}").config["policy.Active"] == "none"
