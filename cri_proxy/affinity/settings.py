"""What of the configuration says which edges count, when containers are moved by plans, and what that may cost."""

from __future__ import annotations

from dataclasses import dataclass

from cri_proxy.config.config import Config
from policies.affinity.graph.graph import GraphSettings
from policies.affinity.planner.distances import CLUSTER_NS
from policies.affinity.planner.problem import PlanSettings

GIB = 1 << 30
#: A container counts for an L3 that fetches this part of what saturates it: a hundred such would have to come together.
LEAST_PART = 100


@dataclass(frozen=True)
class AffinitySettings:
    """The options of the ``affinity`` section that the daemon reads. ``is_automatic``: plans are made by themselves."""

    enabled: bool = True
    declared_weight: float = 10_000.0
    is_automatic: bool = True
    interval_s: float = 60.0
    hysteresis: float = 0.1
    least_gain: float = 0.001
    cooldown_s: float = 600.0
    exchange_overcommit: float = 0.5
    moves_per_minute: int = 10
    minimum_age_s: float = 60.0
    move_exclusive: bool = False
    most_memory_bytes: int = 8 * GIB
    pressure_guard: bool = True
    measure_effect: bool = True
    measure_descriptors: int = 512
    take_back_measured: bool = False
    repel: float = 0.0
    l3_saturation: int = 100
    l3_ns: float = 84.0
    cluster_ns: float = CLUSTER_NS
    slit_ns: float = 4.1

    @property
    def plan(self) -> PlanSettings:
        """What the planner reads of it."""
        return PlanSettings(
            hysteresis=self.hysteresis,
            max_migrated_bytes=self.most_memory_bytes,
            exchange_overcommit=self.exchange_overcommit,
            least_gain=self.least_gain,
            repel_ns=self.repel * self.l3_ns,
            saturated_fills=self.saturated_fills,
        )

    @property
    def saturated_fills(self) -> int:
        """Lines a second that the containers of an L3 fetch from memory when it is saturated."""
        return self.l3_saturation * 1_000_000

    @property
    def least_fills(self) -> int:
        """What fetches less pushes none, and is pushed by none."""
        return self.saturated_fills // LEAST_PART


def affinity_settings(config: Config) -> AffinitySettings:
    """The settings of a configuration."""
    return AffinitySettings(
        enabled=config["affinity.enabled"],
        declared_weight=config["affinity.declared_weight"],
        is_automatic=config["affinity.rebalance"] == "auto",
        interval_s=config["affinity.rebalance_interval"],
        hysteresis=config["affinity.hysteresis"],
        least_gain=config["affinity.least_gain"],
        cooldown_s=config["affinity.cooldown"],
        exchange_overcommit=config["affinity.exchange_overcommit"],
        moves_per_minute=config["affinity.moves_per_minute"],
        minimum_age_s=config["affinity.minimum_age"],
        move_exclusive=config["affinity.move_exclusive"],
        most_memory_bytes=config["affinity.most_memory_moved"] * GIB,
        pressure_guard=config["affinity.pressure_guard"],
        measure_effect=config["affinity.measure_effect"],
        measure_descriptors=config["affinity.measure_descriptors"],
        take_back_measured=config["affinity.take_back_measured"],
        repel=config["affinity.repel"],
        l3_saturation=config["affinity.l3_saturation"],
        l3_ns=config["affinity.l3_distance"],
        cluster_ns=config["affinity.cluster_distance"],
        slit_ns=config["affinity.slit_distance"],
    )


def graph_settings(config: Config) -> GraphSettings:
    """What the observer's graph is made with."""
    return GraphSettings(
        half_life_s=config["affinity.half_life"],
        message_lines=config["affinity.message_lines"],
        least_weight=config["affinity.least_weight"],
        least_share=config["affinity.least_share"],
        most_weight=config["affinity.most_weight"],
        within=config["affinity.within"],
    )
