"""The options of demand, and what the estimate goes by without them."""

from __future__ import annotations

from cri_proxy.affinity.demand.estimate import DemandSettings
from cri_proxy.affinity.demand.io.sizer import demand_settings
from tests.affinity.io.affinity_node import config_of


def test_the_options_defaults_are_those_of_the_estimate() -> None:
    assert demand_settings(config_of()) == DemandSettings()


def test_the_option_and_each_constant_are_read() -> None:
    constants = {
        "demand_interval_s": 1.0,
        "demand_window_s": 2.0,
        "demand_percentile": 0.3,
        "demand_half_life_s": 4.0,
        "demand_waiting": 0.6,
        "demand_usage": 0.7,
        "demand_shrinks_per_minute": 8,
        "demand_growths_per_hour": 9,
    }
    assert demand_settings(config_of(demand={"headroom": "0.5"}, constants=constants)) == DemandSettings(
        1.0, 2.0, 0.3, 4.0, 0.5, 0.6, 0.7, 8, 9
    )
