"""The options there were: what holds now in the place of each. Their keys are read, and change nothing.

A file of an earlier version loads as before, in every place that options are read from. Each such key is a remark that
names the value in force; never an error, also where files are checked strictly. Those of NRI's default validator alone
are read into an option that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Optional

import voluptuous as vol

from cri_proxy.config.checks import flag, write_duration
from cri_proxy.config.constants import Constants
from cri_proxy.config.options.table import VALIDATORS
from cri_proxy.text.sources import Remark, SourceEntry, describe
from policies.frozen import frozen

VALIDATORS_KEY = "nri.validators"
_ENABLE = "nri.validator.enable"
#: The keys before ``nri.validators``, as containerd's own validator has them, and the word that each is now.
_VALIDATOR_WORDS = {f"nri.validator.reject_{word}_adjustment": word for word in VALIDATORS}
OLD_VALIDATORS = frozenset((_ENABLE, *_VALIDATOR_WORDS))


@frozen
class FormerOption:
    """``constant``: the field of ``Constants`` that holds now; else ``holds``: a clause that says what does.

    ``cluster``: policies of the cluster may set it still.
    """

    constant: str = ""
    holds: str = ""
    cluster: bool = False

    def says(self, constants: Constants) -> str:
        """What holds now, as a clause."""
        if not self.constant:
            return self.holds
        value = getattr(constants, self.constant)
        unit = self.constant.rpartition("_")[2]
        if unit == "s":
            value = write_duration(value)
        return f"{value:,} ns holds" if unit == "ns" else f"{value} holds"


def _constant(name: str, cluster: bool = False) -> FormerOption:
    return FormerOption(name, cluster=cluster)


GONE: Mapping[str, FormerOption] = MappingProxyType(
    {
        "placement.restart_hold": _constant("placement_restart_hold_s", cluster=True),
        "placement.shrink_wait": _constant("placement_shrink_wait_s"),
        "placement.cpuset_file": FormerOption(
            holds="a container's own cgroup says its CPUs (/sys/fs/cgroup/cpuset.cpus.effective)"
        ),
        "relay.transport": FormerOption(
            holds="HTTP/2 frames are relayed; docs/incident.md says what helps where client and runtime do not get along"
        ),
        "relay.memory": FormerOption(holds="all connections together have at most 128 MiB in memory"),
        "relay.drain": _constant("relay_drain_s"),
        "relay.drain_stops": _constant("relay_drain_stops_s"),
        "relay.idle_connections": _constant("relay_idle_connections"),
        "state.wait": _constant("state_wait_s"),
        "history.days": _constant("history_days"),
        "topology.interval": _constant("topology_interval_s"),
        "affinity.interval": _constant("affinity_interval_s"),
        "affinity.half_life": _constant("affinity_half_life_s", cluster=True),
        "affinity.message_lines": _constant("affinity_message_lines", cluster=True),
        "affinity.least_weight": _constant("affinity_least_weight", cluster=True),
        "affinity.least_share": _constant("affinity_least_share", cluster=True),
        "affinity.most_weight": _constant("affinity_most_weight", cluster=True),
        "affinity.openers": _constant("affinity_openers"),
        "affinity.declared_weight": _constant("affinity_declared_weight", cluster=True),
        "affinity.rebalance_interval": _constant("affinity_rebalance_interval_s", cluster=True),
        "affinity.least_gain": _constant("affinity_least_gain", cluster=True),
        "affinity.exchange_overcommit": _constant("affinity_exchange_overcommit", cluster=True),
        "affinity.minimum_age": _constant("affinity_minimum_age_s", cluster=True),
        "affinity.move_exclusive": FormerOption(
            holds="plans move no container with exclusive CPUs", cluster=True
        ),
        "affinity.measure_descriptors": _constant("affinity_measure_descriptors", cluster=True),
        "affinity.take_back_measured": FormerOption(
            holds="what affinity.measure_effect finds is told, and takes no plan back", cluster=True
        ),
        "affinity.repel": FormerOption(
            holds="cri-resmgr.io/anti-affinity keeps named containers apart, none for what it fetches",
            cluster=True,
        ),
        "affinity.l3_saturation": FormerOption(holds="it was read for affinity.repel only", cluster=True),
        "affinity.replay": FormerOption(holds="the observer sees this machine's traffic only"),
        "affinity.l3_distance": _constant("affinity_l3_distance_ns", cluster=True),
        "affinity.cluster_distance": _constant("affinity_cluster_distance_ns", cluster=True),
        "affinity.slit_distance": _constant("affinity_slit_distance_ns", cluster=True),
        "demand.interval": _constant("demand_interval_s", cluster=True),
        "demand.window": _constant("demand_window_s", cluster=True),
        "demand.percentile": _constant("demand_percentile", cluster=True),
        "demand.half_life": _constant("demand_half_life_s", cluster=True),
        "demand.waiting": _constant("demand_waiting", cluster=True),
        "demand.usage": _constant("demand_usage", cluster=True),
        "demand.shrinks_per_minute": _constant("demand_shrinks_per_minute", cluster=True),
        "demand.growths_per_hour": _constant("demand_growths_per_hour", cluster=True),
        "nri.launcher": _constant("nri_launcher"),
        "nri.registration_timeout": _constant("nri_registration_timeout_s"),
        "nri.pass_without_validators": FormerOption(
            holds="a create fails when a validator gives no answer to it"
        ),
        "nri.reject": FormerOption(holds="what CRI cannot express fails a create as it does by default"),
        "nri.plugin.name": _constant("nri_plugin_name"),
        "reconcile.interval": _constant("reconcile_interval_s"),
        "reconcile.poll": _constant("reconcile_poll_s"),
    }
)

#: The dotted keys that held these, also those that hold nothing now.
FORMER_SECTIONS = frozenset(
    key.rsplit(".", depth)[0] for key in (*GONE, *OLD_VALIDATORS) for depth in range(1, key.count(".") + 1)
)


def ignored(entry: SourceEntry, constants: Constants) -> Remark:
    """The warning for a key of ``GONE`` that a source sets."""
    return Remark(
        f"{entry.origin}: {entry.key} is no option any more and is ignored; {GONE[entry.key].says(constants)}",
        is_doubt=False,
    )


class OldValidators:
    """Reads ``nri.validator.*`` of one source after the other into ``nri.validators``.

    As ever a later source wins key by key, and a word counts only while ``enable`` is on.
    """

    def __init__(self) -> None:
        self._is_enabled = False
        self._words: frozenset[str] = frozenset()

    def read(
        self,
        old: Sequence[SourceEntry],
        given: Optional[frozenset[str]],
        errors: list[str],
        remarks: list[Remark],
    ) -> Optional[frozenset[str]]:
        """The value of ``nri.validators`` by the old keys of one source; None: it has none, or sets the option itself.

        ``given``: what the same source sets the option to; None = it does not.
        """
        for entry in old:
            self._take(entry, errors)
        if given is not None:
            self._is_enabled, self._words = True, given
        words = self._words if self._is_enabled else frozenset()
        written = ", ".join(word for word in VALIDATORS if word in words)
        for entry in old:
            text = f"{entry.origin}: {entry.key} is read into nri.validators, which is [{written}] by it and the others"
            remarks.append(Remark(text, is_doubt=False))
        return words if old and given is None else None

    def _take(self, entry: SourceEntry, errors: list[str]) -> None:
        if entry.raw is None:
            return
        try:
            is_on: bool = flag()(entry.raw)
        except vol.Invalid:
            errors.append(f"{entry.origin}: {entry.key} is {describe(entry.raw)}, expected true or false")
            return
        if entry.key == _ENABLE:
            self._is_enabled = is_on
        elif is_on:
            self._words |= {_VALIDATOR_WORDS[entry.key]}
        else:
            self._words -= {_VALIDATOR_WORDS[entry.key]}
