"""The allow-list of a policy's configuration: what may be in it, and the sentence for what may not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cluster.api.allowed import MAX_SENTENCES, NotAllowed, check, refused
from cluster.api.allowed import OPTIONS as ALLOWED
from cri_proxy.config.documents import sample_config
from cri_proxy.config.options.table import OPTIONS
from tests.config.configs import read


def nested(key: str, value: Any) -> Any:
    name, _, rest = key.partition(".")
    return {name: nested(rest, value) if rest else value}


@pytest.mark.parametrize("key", [option.key for option in OPTIONS if not option.cluster])
def test_an_option_of_the_node_is_refused_by_its_name(key: str) -> None:
    values: tuple[Any, ...] = ("", "/x", 1, True, [], {}, None)
    for value in values:
        sentence = next(iter(refused(nested(key, value))))
        assert sentence.startswith((key, key.rpartition(".")[0]))
        assert "is not among the options that a policy of the cluster may set" in sentence


def test_the_defaults_of_all_allowed_options_are_allowed_as_the_sample_has_them() -> None:
    lines = "\n".join(line[1:] for line in sample_config().splitlines())
    # As kubectl reads it, but for `off`, which is false to it.
    sample = yaml.load(lines, yaml.BaseLoader)
    config: dict[str, Any] = {}
    for key in (option.key for option in OPTIONS if option.cluster):
        value: Any = sample
        where = config
        *sections, name = key.split(".")
        for section in sections:
            value, where = value[section], where.setdefault(section, {})
        where[name] = _typed(value[name], ALLOWED[key])
    assert refused(config) == []
    assert read(yaml.safe_dump(config), strict=True).config.differences(read("").config) == ()


def _typed(text: Any, schema: dict[str, Any]) -> Any:
    if schema.get("type") in ("integer", "number", "boolean"):
        return yaml.safe_load(text) if "e+" not in text else float(text)
    return text


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("placement", 'config is "placement", expected a mapping of sections such as placement'),
        (None, "config is null, expected a mapping of sections such as placement"),
        ({"placement": []}, "placement is a list of 0, expected a mapping of options"),
        ({"placement": {"cpus": "own"}}, 'placement.cpus is "own", expected preset, shared or exclusive'),
        ({"placement": {"max_moves": 1001}}, "placement.max_moves is 1001, expected a whole number from 0 to 1000"),
        ({"placement": {"max_moves": True}}, "placement.max_moves is true, expected a whole number from 0 to 1000"),
        ({"placement": {"max_moves": "4"}}, 'placement.max_moves is "4", expected a whole number from 0 to 1000'),
        ({"placement": {"memory": False}},
         'placement.memory is false, expected prefer, pin or off; write "off" in quotes'),
        ({"affinity": {"hysteresis": 1.5}}, "affinity.hysteresis is 1.5, expected a number from 0 to 1"),
        ({"affinity": {"hysteresis": float("nan")}}, "affinity.hysteresis is NaN, expected a number from 0 to 1"),
        ({"placement": {"hints": ["disks"]}},
         'placement.hints[0] is "disks", expected one of devices, mounts'),
        ({"affinity": {"cooldown": "soon"}}, 'affinity.cooldown is "soon", expected a duration above 0'),
        ({"affinity": {"cooldown": 0}}, "affinity.cooldown is 0, expected a duration above 0"),
        ({"placement": {"reserved_namespaces": ["a b"]}}, 'placement.reserved_namespaces[0] is "a b", expected'),
        ({"policy": {"ReservedResources": {"CPU": "cgroup:/system"}}},
         'policy.ReservedResources.CPU is "cgroup:/system", expected a quantity such as 750m or 4'),
        ({"policy": {"ReservedResources": {"CPU": "/system"}}}, 'policy.ReservedResources.CPU is "/system", expected'),
        ({"policy": {"balloons": {"BalloonTypes": [{"MinCPUs": 2}]}}},
         "policy.balloons.BalloonTypes[0] has no Name, expected one"),
        ({"policy": {"balloons": {"BalloonTypes": [{"Name": "a", "minCPUs": 2}]}}},
         "policy.balloons.BalloonTypes[0].minCPUs is not known; did you mean MinCPUs?"),
        ({"placement": {"cpu": "shared"}},
         "placement.cpu is not among the options that a policy of the cluster may set; did you mean placement.cpus?"),
        ({"placement.cpus": "shared"}, "placement.cpus is not among the options that a policy of the cluster may set"),
        ({"relay": {"socket": "/x"}}, "relay.socket is not among the options that a policy of the cluster may set"),
        ({1: 2}, "1 is not among the options that a policy of the cluster may set"),
        ({"a\nb": 2}, '"a\\nb" is not among the options that a policy of the cluster may set'),
    ],
)  # fmt: skip
def test_bad_input_has_one_sentence_that_names_the_key(config: Any, sentence: str) -> None:
    with pytest.raises(NotAllowed) as refusal:
        check(config)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


def test_what_the_schema_lets_through_is_what_the_daemon_reads() -> None:
    for config in (
        {"affinity": {"cooldown": 300}},
        {"affinity": {"cooldown": "1h30m"}},
        {"affinity": {"cooldown": "250ms"}},
        {"placement": {"memory": "off", "memory_only_nodes": "2-3,5"}},
        {"placement": {"memory_only_nodes": 2, "unmanaged_namespaces": ["a-*"]}},
        {"policy": {"ReservedResources": {"CPU": "750m"}, "AvailableResources": {"CPU": "exclude-cpuset:4-7"}}},
        {"policy": {"balloons": {"BalloonTypes": [
            {"Name": "a", "MatchExpressions": [{"key": "name", "operator": "In", "values": ["b"]}],
             "PreferCloseToDevices": ["/sys/devices/pci0000:00", "0000:3b:00.0"], "ShareIdleCPUsInSame": "off",
             "AllocatorPriority": "low", "PinMemory": "true", "GroupBy": "${pod/labels/app}"}
        ]}}},
    ):  # fmt: skip
        assert refused(config) == []
        read(yaml.safe_dump(config), strict=True)


def test_sentences_end_somewhere() -> None:
    assert len(refused({"placement": {f"x{number}": 1 for number in range(1000)}})) == MAX_SENTENCES
