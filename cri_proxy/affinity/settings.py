"""The settings that say which edges count, when containers are moved by plans, and at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cri_proxy.config.config import Config
from policies.affinity.planner.distances import CLUSTER_NS
from policies.affinity.planner.problem import PlanSettings
from policies.frozen import frozen

if TYPE_CHECKING:
    from policies.affinity.graph.graph import GraphSettings

GIB = 1 << 30


@frozen
class AffinitySettings:
    """The options of the ``affinity`` section that the daemon reads. ``is_automatic``: plans are made by themselves."""

    enabled: bool = True
    declared_weight: float = 10_000.0
    is_automatic: bool = True
    interval_s: float = 60.0
    hysteresis: float = 0.1
    least_gain: float = 0.001
    cooldown_s: float = 600.0
    exchange_overcommit: float = 1.0
    moves_per_minute: int = 10
    minimum_age_s: float = 60.0
    most_memory_bytes: int = 8 * GIB
    pressure_guard: bool = True
    measure_effect: bool = True
    measure_descriptors: int = 512
    l3_ns: float = 84.0
    cluster_ns: float = CLUSTER_NS
    slit_ns: float = 4.1

    @property
    def plan(self) -> PlanSettings:
        """The planner's settings."""
        return PlanSettings(
            hysteresis=self.hysteresis,
            max_migrated_bytes=self.most_memory_bytes,
            exchange_overcommit=self.exchange_overcommit,
            least_gain=self.least_gain,
        )


def affinity_settings(config: Config) -> AffinitySettings:
    """The settings of a configuration."""
    constants = config.constants
    return AffinitySettings(
        enabled=config["affinity.enabled"],
        declared_weight=constants.affinity_declared_weight,
        is_automatic=config["affinity.rebalance"] == "auto",
        interval_s=constants.affinity_rebalance_interval_s,
        hysteresis=config["affinity.hysteresis"],
        least_gain=constants.affinity_least_gain,
        cooldown_s=config["affinity.cooldown"],
        exchange_overcommit=constants.affinity_exchange_overcommit,
        moves_per_minute=config["affinity.moves_per_minute"],
        minimum_age_s=constants.affinity_minimum_age_s,
        most_memory_bytes=config["affinity.most_memory_moved"] * GIB,
        pressure_guard=config["affinity.pressure_guard"],
        measure_effect=config["affinity.measure_effect"],
        measure_descriptors=constants.affinity_measure_descriptors,
        l3_ns=constants.affinity_l3_distance_ns,
        cluster_ns=constants.affinity_cluster_distance_ns,
        slit_ns=constants.affinity_slit_distance_ns,
    )


def graph_settings(config: Config) -> GraphSettings:
    """The settings of the observer's graph."""
    from policies.affinity.graph.graph import GraphSettings  # the daemon has no graph of its own

    constants = config.constants
    return GraphSettings(
        half_life_s=constants.affinity_half_life_s,
        message_lines=constants.affinity_message_lines,
        least_weight=constants.affinity_least_weight,
        least_share=constants.affinity_least_share,
        most_weight=constants.affinity_most_weight,
        within=config["affinity.within"],
    )
