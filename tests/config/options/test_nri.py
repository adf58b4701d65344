"""The options of the host, as its settings."""

from __future__ import annotations

import pytest

from cri_proxy.config.config import BadConfig, SettingsSource, read_config
from cri_proxy.nri.validate import DefaultRules, NriSettings, nri_settings


def settings(text: str) -> NriSettings:
    return nri_settings(read_config([SettingsSource("config.yaml", text)]).config)


def test_by_default_plugins_are_hosted_where_nri_has_them_and_none_is_required() -> None:
    found = settings("{}")
    assert (found.host, found.plugin_path, found.config_path) == (
        "auto",
        "/opt/nri/plugins",
        "/etc/nri/conf.d",
    )
    assert found.socket == "/var/run/cri-resmgr/nri/nri.sock"
    timeouts = (found.registration_timeout_s, found.request_timeout_s, found.sync_timeout_s)
    assert timeouts == (5.0, 2.0, 20.0)
    assert (found.rules, found.is_validating, found.fail_closed) == (DefaultRules(), False, ())


def test_rules_count_once_the_validator_is_enabled_and_required_plugins_always() -> None:
    text = "nri: {required_plugins: [foo], validator: {reject_oci_hook_adjustment: true%s}}"
    assert settings(text % "").rules == DefaultRules(required_plugins=("foo",))
    enabled = settings(text % ", enable: true")
    assert enabled.rules == DefaultRules(required_plugins=("foo",), reject_oci_hook_adjustment=True)
    assert enabled.is_validating


def test_no_socket_and_no_directory_are_empty_texts() -> None:
    found = settings('nri: {socket: "", plugin_path: "", plugin_config_path: ""}')
    assert (found.socket, found.plugin_path, found.config_path) == ("", "", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nri: {host: maybe}", "nri.host is maybe, expected auto, on or off"),
        ("nri: {socket: nri.sock}", "nri.socket is nri.sock, expected unix:///PATH or an absolute path"),
        ("nri: {request_timeout: -1}", "nri.request_timeout is -1, expected a duration above 0"),
        (
            'nri: {tolerate_missing_plugins_annotation: "a b"}',
            "nri.tolerate_missing_plugins_annotation is a b, expected the key of an annotation",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BadConfig, match="config.yaml:1") as caught:
        settings(text)
    assert words in str(caught.value).replace('"', "")
