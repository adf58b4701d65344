"""A policy of the cluster sets what the table lets it, to values that fit the node, or nothing at all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cri_proxy.config.cluster_policy import BadPolicy, ClusterPolicy, misfit, read_policy, set_keys, waits_for
from cri_proxy.config.config import SettingsSource, read_config
from cri_proxy.config.options.table import OPTIONS
from cri_proxy.config.sections.reading import READERS
from cri_proxy.engine.build import Machine, make_host
from tests.machines import HYGON_7285_2S, ONE_CPU, VM_NO_CACHE_INFO
from tests.scenes import topology


def policy_of(config: Any, **more: Any) -> ClusterPolicy:
    return read_policy({"name": "gold", "generation": 3, "config": config, **more})


def refusal(config: Any) -> str:
    with pytest.raises(BadPolicy) as error:
        policy_of(config)
    return str(error.value)


def nested(key: str, value: Any) -> Any:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


# ---------------------------------------------------------------------- the allow-list


def test_what_names_a_path_a_socket_or_an_address_of_the_node_is_not_for_a_policy() -> None:
    for option in OPTIONS:
        if re.search(r"absolute path|HOST:PORT|unix:///", option.check.expected):
            assert not option.cluster, option.key


@pytest.mark.parametrize("section", ["relay", "state", "topology", "kubelet", "nri", "log", "metrics"])
def test_no_option_of_the_daemons_own_but_the_mode_is_for_a_policy(section: str) -> None:
    options = [option for option in OPTIONS if option.key.partition(".")[0] == section]
    assert options and [o.key for o in options if o.cluster] == ["relay.mode"] * (section == "relay")


def test_of_the_section_control_only_the_classes_and_rules_of_isolation_are_for_a_policy() -> None:
    options = [option for option in OPTIONS if option.key.startswith("control.")]
    assert {option.key for option in options if option.cluster} == {*READERS}


def test_classes_of_caches_and_bandwidth_are_taken_as_a_file_has_them() -> None:
    partitions = {"p": {"l3Allocation": "60%", "classes": {"gold": None}}}
    policy = policy_of({"control": {"rdt": {"enable": True, "partitions": partitions}}})
    loaded = read_config([policy.source]).config
    assert [*loaded["control.rdt"].partitions["p"].classes] == ["gold"]
    assert set_keys(loaded, policy) == ("control.rdt",)
    partitions["p"]["l3Allocation"] = "160%"
    assert refusal({"control": {"rdt": {"enable": True, "partitions": partitions}}}) == (
        'cluster policy gold (generation 3): control.rdt.partitions.p.l3Allocation is "160%", '
        "expected percentages up to 100, the lower one first"
    )


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_policy_brings_nodes_over_to_enforce_and_back(mode: str) -> None:
    assert read_config([policy_of({"relay": {"mode": mode}}).source]).config["relay.mode"] == mode


@pytest.mark.parametrize(
    ("mode", "shown"), [("off", '"off"'), (False, '"false"'), ("on", '"on"')], ids=["off", "unquoted", "on"]
)
def test_a_policy_switches_no_node_off(mode: Any, shown: str) -> None:
    said = refusal({"relay": {"mode": mode}})
    assert said == f"cluster policy gold (generation 3): relay.mode is {shown}, expected enforce or observe"


@pytest.mark.parametrize(
    "key",
    [
        "placement.fail_closed_namespaces",
        "placement.unmanaged_handlers",
        "affinity.provider",
        "affinity.enabled",
    ],
)
def test_what_can_keep_pods_from_starting_or_is_the_nodes_own_is_not_for_a_policy(key: str) -> None:
    assert not next(option for option in OPTIONS if option.key == key).cluster


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.cluster], ids=lambda o: o.key)
def test_whatever_else_there_is_is_refused_by_its_key(option: Any) -> None:
    said = refusal(nested(option.key, option.check.write(option.default)))
    wanted = f"cluster policy gold (generation 3): {option.key} is not for a policy of the cluster"
    assert said == f"{wanted}: it is set on each node by itself"


@pytest.mark.parametrize(
    "option",
    [o for o in OPTIONS if o.cluster and o.key not in ("policy.balloons.BalloonTypes", *READERS)],
    ids=lambda o: o.key,
)
def test_every_other_option_is_taken_as_a_file_would_have_it(option: Any) -> None:
    text = option.check.write(option.default)
    value = [word for word in text[1:-1].split(", ") if word] if text.startswith("[") else text.strip('"')
    policy = policy_of(nested(option.key, value))
    loaded = read_config([policy.source]).config
    assert set_keys(loaded, policy) == (option.key,)


# ---------------------------------------------------------------------- what is no policy


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"placement": {"laddr": 1}}, "unknown key placement.laddr"),
        ({"spec": {"placement": {}}}, "unknown key spec"),
        ({"reservedResources": {"cpu": "1"}}, "unknown key reservedResources"),
        ({"policy": {"topology-aware": {"PinCPU": False}}}, "unknown key policy.topology-aware"),
        ({"placement": "fine"}, 'placement is "fine", expected a mapping of options'),
        ({"placement": {"max_moves": -1}}, 'placement.max_moves is "-1", expected a whole number from 0 to 1000'),
        ({"placement": {"max_moves": {"x": 1}}}, "placement.max_moves is a mapping, expected a whole number"),
        ({"placement": {"ladder": None}}, "placement.ladder has no value"),
        ({"affinity": {"hysteresis": 7}}, 'affinity.hysteresis is "7", expected a number from 0 to 1'),
        ({"policy": {"Active": "best"}}, 'policy.Active is "best", expected hygon, topology-aware, balloons or none'),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_key_or_value_is_one_sentence_that_names_it(config: Any, sentence: str) -> None:
    said = refusal(config)
    assert said.startswith(f"cluster policy gold (generation 3): {sentence}")
    assert "\n" not in said


def test_a_configuration_that_is_too_large_or_too_deep_is_refused() -> None:
    assert "expected at most" in refusal({"placement": {"ladder": "x" * 300_000}})
    deep: Any = "x"
    for _ in range(400):
        deep = {"placement": deep}
    assert refusal(deep)


def test_types_of_balloons_are_taken() -> None:
    types = [{"Name": "database", "Namespaces": ["prod-db"], "MinCPUs": 8}]
    policy = policy_of({"policy": {"Active": "balloons", "balloons": {"BalloonTypes": types}}})
    [spec] = read_config([policy.source]).config["policy.balloons.BalloonTypes"]
    assert spec.type.name == "database"


def test_the_hash_is_its_writers_and_else_tells_two_contents_apart() -> None:
    assert policy_of({}, hash="abc").hash == "abc"
    assert policy_of({}).hash != policy_of({"placement": {"ladder": "fine"}}).hash
    assert policy_of({}).hash == policy_of({}).hash


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("where", "key", "value", "sentence"),
    [
        (HYGON_7285_2S, "policy.ReservedResources.CPU", "129", "is 129, and this node has 128 CPUs"),
        (HYGON_7285_2S, "policy.ReservedResources.CPU", "4", ""),
        (HYGON_7285_2S, "policy.ReservedResources.CPU", "cpuset:0-200", "is cpuset:0-200, and this node's CPUs are 0-127"),
        (HYGON_7285_2S, "policy.ReservedResources.CPU", "exclude-cpuset:4-7", ""),
        (HYGON_7285_2S, "policy.AvailableResources.CPU", "exclude-cpuset:0-127", "leaves none of this node's CPUs (0-127)"),
        (HYGON_7285_2S, "policy.AvailableResources.CPU", "cpuset:0-63", ""),
        (ONE_CPU, "policy.ReservedResources.CPU", "1", "leaves none of the usable CPUs (0) to containers"),
        (ONE_CPU, "policy.ReservedResources.CPU", "2", "is 2, and this node has 1 CPUs"),
        (VM_NO_CACHE_INFO, "placement.memory_only_nodes", "7", "names NUMA node 7, and this node has"),
    ],
)  # fmt: skip
def test_what_a_node_has_not_got_is_said_with_the_key(
    where: str, key: str, value: str, sentence: str
) -> None:
    policy = policy_of(nested(key, value))
    config = read_config([policy.source]).config
    host, _ = make_host(config, Machine(topology(where)))
    said = misfit(config, policy, host.topology, host.usable, host.reserved)
    if sentence:
        assert said.startswith(f"cluster policy gold (generation 3): {key} ") and sentence in said
    else:
        assert said == ""


def test_what_the_nodes_own_file_has_is_not_held_against_a_policy() -> None:
    own = SettingsSource("c.yaml", "policy: {ReservedResources: {CPU: 500}}")
    policy = policy_of({"placement": {"ladder": "fine"}})
    config = read_config([own, policy.source]).config
    host, _ = make_host(config, Machine(topology(HYGON_7285_2S)))
    assert misfit(config, policy, host.topology, host.usable, host.reserved) == ""


def test_what_a_restart_applies_is_waited_for_and_what_the_observer_watches_is_not() -> None:
    keys = ("placement.ladder", "affinity.within", "affinity.listen", "relay.socket")
    assert waits_for(keys, ("relay.socket",)) == ["affinity.listen", "relay.socket"]
    assert [o.key for o in OPTIONS if o.observer and o.cluster] == ["affinity.within"]


def test_nothing_that_a_policy_may_set_waits_for_a_restart() -> None:
    allowed = [option.key for option in OPTIONS if option.cluster]
    assert len(allowed) > 20
    assert waits_for(allowed, [option.key for option in OPTIONS if not option.live]) == []
