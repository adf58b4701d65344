"""Options there were: in each place that options are read from they are ignored, with a warning that says what holds."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cluster.api.allowed import NotAllowed, check, refused
from cri_proxy.cli.main import cli
from cri_proxy.config.cluster_policy import read_policy
from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.config.constants import Constants
from cri_proxy.config.gone import GONE
from cri_proxy.config.io.cluster_policy_file import FILE
from cri_proxy.config.io.files import Files, load, load_or_last
from cri_proxy.config.options.table import BY_KEY, OPTIONS
from cri_proxy.nri.io.plugin.plugin import ToldConfig
from tests.config.configs import errors_of, read

#: No option took it: nothing of it is looked at.
VALUE = "[no, such, value]"
CLUSTERS = [key for key, former in GONE.items() if former.cluster]
every_key = pytest.mark.parametrize("key", GONE)


def nested(key: str, value: Any = ("no", "such")) -> dict[str, Any]:
    name, _, rest = key.partition(".")
    return {name: nested(rest, value) if rest else value}


def sentence(place: str, key: str) -> str:
    return f"{place}: {key} is no option any more and is ignored; {GONE[key].says(Constants())}"


def test_no_option_is_both_there_and_gone_and_there_are_no_more_than_people_read() -> None:
    assert not BY_KEY.keys() & GONE.keys()
    # 99, and two of a new subject: whether claims of CPUs are prepared, and by which name.
    assert len(OPTIONS) <= 101


def test_each_constant_is_a_former_option_and_each_former_option_says_what_holds() -> None:
    named = [former.constant for former in GONE.values() if former.constant]
    assert sorted(named) == sorted(field.name for field in fields(Constants))
    assert all(bool(former.constant) != bool(former.holds) for former in GONE.values())


@pytest.mark.parametrize(
    ("key", "holds"),
    [
        ("demand.window", "10m holds"),
        ("affinity.l3_distance", "84.0 ns holds"),
        ("nri.launcher", "auto holds"),
        ("affinity.move_exclusive", "plans move no container with exclusive CPUs"),
    ],
)
def test_what_holds_now_is_said_with_its_unit(key: str, holds: str) -> None:
    assert GONE[key].says(Constants()) == holds


@every_key
def test_in_a_file_it_is_named_with_its_line_and_changes_nothing_also_where_it_is_checked(key: str) -> None:
    text = f"# old\n{yaml.safe_dump(nested(key, 'soon'))}"
    line = len(text.splitlines())
    for strict in (False, True):
        loaded = read(text, strict=strict)
        assert loaded.warnings == (sentence(f"c.yaml:{line}", key),)
        assert loaded.config.differences(read("").config) == ()


@every_key
def test_in_a_file_it_may_be_dotted_empty_or_a_mapping(key: str) -> None:
    for written in (f"{key}: {VALUE}", f"{key}:", f"{key}: {{a: b}}"):
        assert read(written, strict=True).warnings == (sentence("c.yaml:1", key),)


@every_key
def test_config_check_and_its_daemon_take_the_file(folder: Path, key: str) -> None:
    file = folder / "config.yaml"
    file.write_text(f"{key}: {VALUE}\n")
    shown = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert (shown.exit_code, shown.output) == (0, f"warning: {sentence(f'{file}:1', key)}\n{file}: good\n")
    files = Files(folder / "fallback.cfg", file, root=folder)
    file.with_name("fallback.cfg").write_text("")
    for settings in (load(files, strict=True), load_or_last(files)):
        assert (settings.problem, settings.warnings) == ("", (sentence(f"{file}:1", key),))


@every_key
def test_on_the_command_line_it_is_named(key: str) -> None:
    loaded = read_config([SettingsSource("command line", values={key: "soon"})], strict=True)
    assert loaded.warnings == (sentence("command line", key),)


@every_key
def test_in_what_the_runtime_tells_its_plugin_it_is_named(key: str) -> None:
    told = ToldConfig("the runtime's configuration", f"{key}: {VALUE}")
    assert read_config(told.sources(), strict=True).warnings == (
        sentence("the runtime's configuration:1", key),
    )


@every_key
def test_in_a_policy_that_a_daemon_is_given_it_is_ignored(key: str) -> None:
    policy = read_policy({"name": "gold", "generation": 3, "config": nested(key)})
    loaded = read_config([policy.source])
    assert loaded.warnings == (sentence("cluster policy gold (generation 3)", key),)
    assert loaded.config.differences(read("").config) == ()


@every_key
def test_in_a_policy_that_a_node_has_kept_it_is_ignored_and_the_rest_counts(folder: Path, key: str) -> None:
    kept = {"name": "gold", "generation": 3, "hash": "h", "held_off": False}
    document = {**kept, "config": {**nested(key), "placement.max_moves": 1}}
    (folder / FILE).write_text(json.dumps(document))
    empty = folder / "empty"
    empty.write_text("")
    files = Files(empty, empty, overrides={"state.directory": str(folder)}, root=folder)
    loaded = load(files)
    assert (loaded.problem, loaded.cluster.problem) == ("", "")
    assert loaded.config["placement.max_moves"] == 1
    assert loaded.warnings == (sentence("cluster policy gold (generation 3)", key),)


@pytest.mark.parametrize("key", CLUSTERS)
def test_a_placement_policy_may_have_what_it_might_have(key: str) -> None:
    for value in (7, "7", 0.5, True, {}, [{"a": 1}]):
        check(nested(key, value))
        assert refused(nested(key, value)) == []


@pytest.mark.parametrize("key", [key for key in GONE if key not in CLUSTERS])
def test_a_placement_policy_may_not_have_what_it_never_might(key: str) -> None:
    with pytest.raises(NotAllowed, match="is not among the options that a policy of the cluster may set"):
        check(nested(key))


# ---------------------------------------------------------------------- nri.validator.*

HOOK, SYSCTL = "reject_oci_hook_adjustment", "reject_sysctl_adjustment"


def validators(*texts: str) -> list[str]:
    sources = [SettingsSource(f"{number}.yaml", text) for number, text in enumerate(texts)]
    return sorted(read_config(sources, strict=True).config["nri.validators"])


@pytest.mark.parametrize(
    ("texts", "refused_adjustments"),
    [
        (("nri: {validator: {enable: true}}",), []),
        ((f"nri: {{validator: {{{HOOK}: true}}}}",), []),
        ((f"nri: {{validator: {{enable: true, {HOOK}: true, {SYSCTL}: false}}}}",), ["oci_hook"]),
        ((f"nri: {{validator: {{enable: false, {HOOK}: true}}}}",), []),
        # A later source wins key by key.
        ((f"nri: {{validator: {{enable: true, {HOOK}: true}}}}", "nri: {validator: {enable: false}}"), []),
        ((f"nri: {{validator: {{{HOOK}: true}}}}", "nri: {validator: {enable: true}}"), ["oci_hook"]),
        (
            (
                f"nri: {{validator: {{enable: true, {HOOK}: true}}}}",
                f"nri: {{validator: {{{SYSCTL}: true}}}}",
            ),
            ["oci_hook", "sysctl"],
        ),
        # The option goes before old keys of the same source and of those before it.
        ((f"nri: {{validators: [sysctl], validator: {{enable: true, {HOOK}: true}}}}",), ["sysctl"]),
        ((f"nri: {{validator: {{enable: true, {HOOK}: true}}}}", "nri: {validators: []}"), []),
        (("nri: {validators: [sysctl]}", f"nri: {{validator: {{{HOOK}: true}}}}"), ["oci_hook", "sysctl"]),
        (("nri: {validators: [sysctl]}", "nri: {validator: {enable: false}}"), []),
    ],
)
def test_old_keys_are_read_into_the_list(texts: tuple[str, ...], refused_adjustments: list[str]) -> None:
    assert validators(*texts) == refused_adjustments


def test_each_old_key_is_named_with_what_has_become_of_it() -> None:
    text = f"nri:\n  validator:\n    enable: true\n    {HOOK}: true\n    {SYSCTL}:\n"
    loaded = read(text, strict=True)
    assert loaded.config.origins["nri.validators"] == f"c.yaml:5 (nri.validator.{SYSCTL})"
    assert loaded.warnings == tuple(
        f"c.yaml:{line}: nri.validator.{name} is read into nri.validators, which is [oci_hook] by it and the others"
        for line, name in ((3, "enable"), (4, HOOK), (5, SYSCTL))
    )


def test_a_wrong_value_of_an_old_key_is_an_error_as_it_was() -> None:
    assert errors_of("nri: {validator: {enable: maybe}}") == (
        'c.yaml:1: nri.validator.enable is "maybe", expected true or false',
    )
