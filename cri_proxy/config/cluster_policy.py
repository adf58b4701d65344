"""The cluster's policy: a layer of configuration that is not a file of the node's. Pure.

It reaches every node at once and comes from the network, so it may set what the table of options marks for it and
nothing else; and what it sets must fit this node. It is refused as a whole otherwise, with one sentence that names
the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import voluptuous as vol

from cri_proxy.config.checks import Check
from cri_proxy.config.config import BadConfig, Config, CpuConstraint, read_config
from cri_proxy.config.gone import FORMER_SECTIONS, GONE
from cri_proxy.config.options.table import BY_KEY, OPTIONS, SECTIONS
from cri_proxy.text.sources import BadText, SettingsSource, describe, read_entries, show_key
from policies.frozen import frozen
from policies.machine.cpus import format_cpus
from policies.machine.topology import Topology

#: How its name and its hash may look: as names of Kubernetes objects do, at most.
NAME_CHARS = 253
#: As much of it is taken, as JSON: a configuration file may have as much.
MAX_CHARACTERS = 256 * 1024
_CPU_KEYS = ("policy.ReservedResources.CPU", "policy.AvailableResources.CPU")


class BadPolicy(ValueError):
    """A policy that is not taken. The message is one sentence that names the key."""


@frozen
class ClusterPolicy:
    """``values``: as in a configuration file, nested. ``hash``: what tells two contents apart."""

    name: str
    generation: int
    values: Mapping[str, Any]
    hash: str

    @property
    def title(self) -> str:
        """What it is called in sentences, and as the origin of a value."""
        return f"cluster policy {self.name} (generation {self.generation})"

    @property
    def source(self) -> SettingsSource:
        """It as one source of the configuration."""
        return SettingsSource(self.title, values=self.values)

    @property
    def document(self) -> dict[str, Any]:
        """For ``report`` and ``status``."""
        return {"name": self.name, "generation": self.generation, "hash": self.hash}


def read_policy(given: Mapping[str, Any]) -> ClusterPolicy:
    """A policy as the command has it: ``name``, ``generation``, ``config``, and ``hash`` if its writer has one.

    :raises BadPolicy: it is none, or sets what a policy may not set.
    """
    name, generation, values = given.get("name"), given.get("generation"), given.get("config")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or not name.isprintable():
        raise BadPolicy(f"the policy's name is {_shown(name)}, expected 1 to {NAME_CHARS} characters")
    if isinstance(generation, bool) or not isinstance(generation, int) or generation < 0:
        raise BadPolicy(f"{name}: generation is {_shown(generation)}, expected a whole number of 0 or more")
    if not isinstance(values, Mapping):
        raise BadPolicy(f"{name}: config is {_shown(values)}, expected sections of options")
    text = json.dumps(values, sort_keys=True)
    if len(text) > MAX_CHARACTERS:
        raise BadPolicy(f"{name}: config has {len(text)} characters, expected at most {MAX_CHARACTERS}")
    told = given.get("hash") or hashlib.sha256(text.encode()).hexdigest()[:16]
    if not isinstance(told, str) or len(told) > NAME_CHARS or not told.isprintable():
        raise BadPolicy(f"{name}: hash is {_shown(told)}, expected at most {NAME_CHARS} characters")
    policy = ClusterPolicy(name, generation, values, told)
    check_alone(policy)
    return policy


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def check_alone(policy: ClusterPolicy) -> None:
    """Hold a policy against the table of options, whatever the node is.

    :raises BadPolicy: it sets what a policy may not set, or to no value of that option.
    """
    try:
        entries, doubts = read_entries(policy.source, SECTIONS | FORMER_SECTIONS)
    except (BadText, RecursionError) as error:
        raise BadPolicy(f"{policy.title}: it cannot be read: {error}") from None
    for entry in entries:
        if entry.key in GONE:
            continue
        option = BY_KEY.get(entry.key)
        if option is None and entry.key not in SECTIONS:
            raise BadPolicy(f"{policy.title}: unknown key {show_key(entry.key)}")
        if option is not None and not option.cluster:
            raise BadPolicy(
                f"{policy.title}: {entry.key} is not for a policy of the cluster: it is set on each node by itself"
            )
        if entry.raw is None:
            raise BadPolicy(f"{policy.title}: {entry.key} has no value")
        if option is not None and isinstance(option.cluster, Check):
            try:
                option.cluster(entry.raw)
            except vol.Invalid:
                found, expected = describe(entry.raw), option.cluster.expected
                raise BadPolicy(f"{policy.title}: {entry.key} is {found}, expected {expected}") from None
    if doubts:
        raise BadPolicy(doubts[0])
    try:
        loaded = read_config([policy.source], strict=True)
    except BadConfig as error:
        raise BadPolicy(error.errors[0]) from None
    for key in _CPU_KEYS:
        if loaded.config[key].cgroup:
            cgroup = loaded.config[key].cgroup
            raise BadPolicy(
                f"{policy.title}: {key} names the cgroup {show_key(cgroup)}, expected a quantity or a cpuset: paths"
                " are each node's own"
            )


def set_keys(config: Config, policy: ClusterPolicy) -> tuple[str, ...]:
    """The options whose values in a configuration are the policy's."""
    return tuple(o.key for o in OPTIONS if config.origins[o.key].partition(" (via ")[0] == policy.title)


def misfit(
    config: Config,
    policy: ClusterPolicy,
    topology: Topology,
    usable: frozenset[int],
    reserved: frozenset[int],
) -> str:
    """Why what a policy sets does not fit this node; "" if it does.

    ``usable``, ``reserved``: the node's CPUs by that configuration.
    """
    keys = set_keys(config, policy)
    online = topology.online
    for key in _CPU_KEYS:
        if key in keys:
            wrong = _misfit_of_cpus(config[key], online)
            if wrong:
                return f"{policy.title}: {key} is {BY_KEY[key].check.write(config[key])}, {wrong}"
    key = "policy.ReservedResources.CPU"
    if any(key in keys for key in _CPU_KEYS) and usable and not usable - reserved:
        return (
            f"{policy.title}: {key} is {BY_KEY[key].check.write(config[key])}, which leaves none of the usable CPUs"
            f" ({format_cpus(usable)}) to containers"
        )
    key = "placement.memory_only_nodes"
    missing = config[key] - frozenset(topology.node_ids) if key in keys else None
    if missing:
        there = format_cpus(topology.node_ids)
        return f"{policy.title}: {key} names NUMA node {format_cpus(missing)}, and this node has {there}"
    return ""


def _misfit_of_cpus(wanted: CpuConstraint, online: frozenset[int]) -> str:
    if wanted.milli > 1000 * len(online):
        return f"and this node has {len(online)} CPUs"
    if wanted.cpus is not None and not wanted.all_but and not wanted.cpus <= online:
        return f"and this node's CPUs are {format_cpus(online)}"
    if wanted.all_but and not wanted.of(online):
        return f"which leaves none of this node's CPUs ({format_cpus(online)})"
    return ""


def waits_for(keys: Iterable[str], restart: Iterable[str]) -> list[str]:
    """Those of the keys that a restart of the daemon or of the observer applies, in their order.

    What the observer applies by a reload it has with its next sample: it watches the policy's file.
    """
    waiting = {*restart, *(option.key for option in OPTIONS if option.observer == "restart")}
    return [key for key in keys if key in waiting]
