"""The numbers that no option sets: each has one value, which tests and benchmarks change.

A test that builds things in its own process passes ``Constants(...)``. For a program that a test starts the environment
names those that differ (``VARIABLE``), as YAML; it is read once, at the program's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Union

import yaml

from policies.frozen import frozen

VARIABLE = "CRI_RESMGR_CONSTANTS"

Number = Union[int, float, str]


class BadConstants(ValueError):
    """The environment names a constant that is none, or a value of another type. The message is a sentence."""


@frozen
class Constants:
    """Defaults are what every node runs with. A field's comment says its unit, and against what the value was chosen."""

    #: How long the CPUs of a container that ended wait for its next attempt. Kubelet's longest back-off is 5 minutes.
    placement_restart_hold_s: float = 300.0
    #: How long a create waits for other containers to leave the CPUs it gets. Kubelet gives a create two minutes.
    placement_shrink_wait_s: float = 2.0

    #: How long calls under way may take when the service stops. systemd's own limit of a stop is 90 s.
    relay_drain_s: float = 5.0
    #: How long a stop of the service waits for StopContainer calls: a pod's usual grace period is 30 s.
    relay_drain_stops_s: float = 60.0
    #: Connections without a call that may stay open. Kubelet has two, a busy crictl a few more; a flood has thousands.
    relay_idle_connections: int = 1_024

    #: How long a call waits for its record to reach the disk. Longer than a slow disk takes, shorter than a timeout.
    state_wait_s: float = 1.0
    #: Days for which decisions and moves are kept; 64 MiB limit them on a busy node before that.
    history_days: int = 7
    #: How often CPUs and NUMA nodes are looked at for changes. One look reads a few files.
    topology_interval_s: float = 10.0
    #: How often cpusets and the runtime's list are compared with the records. A comparison reads a file a container.
    reconcile_interval_s: float = 30.0
    #: How often the runtime is asked for containers that ended, while no stream of events can be read.
    reconcile_poll_s: float = 5.0

    #: How often the observer takes a sample.
    affinity_interval_s: float = 10.0
    #: After this time traffic that has stopped counts half: several samples, and less than a deployment's rollout.
    affinity_half_life_s: float = 66.0
    #: Cache lines that one message costs besides its bytes: what the kernel itself touches for it.
    affinity_message_lines: float = 30.0
    #: Cache lines a second; lighter edges do not count, as those of health checks.
    affinity_least_weight: float = 1_000.0
    #: The part of all traffic of either end that an edge must have: name servers and collectors talk to every container.
    affinity_least_share: float = 0.01
    #: Cache lines a second that an edge counts as at most, whatever a container does to attract another.
    affinity_most_weight: float = 10_000_000.0
    #: TCP connections whose openers the observer knows; 0: one for each 64 KiB of memory, 32,768 to 524,288.
    affinity_openers: int = 0
    #: Cache lines a second that a weight of 1 in an affinity annotation counts beside traffic that was seen.
    affinity_declared_weight: float = 10_000.0
    #: How often a plan is made: a plan takes milliseconds, and what it may move in a minute is limited.
    affinity_rebalance_interval_s: float = 60.0
    #: CPUs that each moved container must save, beside ``affinity.hysteresis``.
    affinity_least_gain: float = 0.001
    #: How far an L3 may be overcommitted while two containers change places (0.5: by half); 0 disables exchanges.
    affinity_exchange_overcommit: float = 1.0
    #: Younger containers are not moved: what a start reads and sends is not what comes after it.
    affinity_minimum_age_s: float = 60.0
    #: Counters that are open at a time to measure a plan: three for each container and CPU. A process may have 1,024.
    affinity_measure_descriptors: int = 512
    #: Nanoseconds that a cache line costs more between two L3s of a NUMA node than inside an L3 (EPYC 7003, by
    #: nviennot/core-to-core-latency).
    affinity_l3_distance_ns: float = 84.0
    #: Nanoseconds more between two clusters of cores of one L3, where clusters are places (placement.ladder fine).
    affinity_cluster_distance_ns: float = 28.0
    #: Nanoseconds more for each point of the SLIT distance above 10.
    affinity_slit_distance_ns: float = 4.1

    #: How often the CPU time of containers sized by demand is looked at.
    demand_interval_s: float = 5.0
    #: Demand is taken from the peaks of so long; a cpuset becomes smaller after as long without a change.
    demand_window_s: float = 600.0
    #: The part of the peaks, of five seconds each, that demand is not below.
    demand_percentile: float = 0.95
    #: After this time a peak counts half.
    demand_half_life_s: float = 600.0
    #: A cpuset is too small where tasks wait for a CPU, and are not throttled, for this part of the time.
    demand_waiting: float = 0.5
    #: Where the kernel does not count waiting: a cpuset is too small of which this part is used.
    demand_usage: float = 0.9
    #: Cpusets that become smaller in a minute at most; 0: none does.
    demand_shrinks_per_minute: int = 6
    #: A container whose cpuset was too small more often within an hour has that of its limit until the hour is over.
    demand_growths_per_hour: int = 6

    #: How plugins are launched: "unit", "child", or "auto": as units where the daemon is a unit itself.
    nri_launcher: str = "auto"
    #: How long a plugin may take to register once it is connected; containerd's own default.
    nri_registration_timeout_s: float = 5.0
    #: What the plugin of ``cri-resmgr nri run`` is called.
    nri_plugin_name: str = "cri-resmgr"


def read_constants(text: str) -> Constants:
    """The constants with what a mapping of YAML changes of them; "" changes nothing.

    :raises BadConstants: the text is no mapping, a name is no constant's, or a value is not of its type.
    """
    try:
        given: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        raise BadConstants(f"{VARIABLE} is not YAML") from None
    if given is None:
        return Constants()
    if not isinstance(given, Mapping):
        raise BadConstants(f"{VARIABLE} is no mapping of constants to values")
    defaults = {field.name: field.default for field in fields(Constants)}
    for name, value in given.items():
        if name not in defaults:
            raise BadConstants(f"{VARIABLE}: there is no constant {name}")
        if not _is_like(value, defaults[name]):
            raise BadConstants(f"{VARIABLE}: {name} is {value!r}, expected a {_type_name(defaults[name])}")
    return replace(Constants(), **given)


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if isinstance(default, float) else type(default))


def _type_name(default: Any) -> str:
    return {float: "number", int: "whole number", str: "text"}[type(default)]
