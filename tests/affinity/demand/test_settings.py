"""The options of demand, and what the estimate goes by without them."""

from __future__ import annotations

from cri_proxy.affinity.demand.estimate import DemandSettings
from cri_proxy.affinity.demand.settings import demand_settings
from tests.affinity.io.affinity_node import config_of


def test_the_options_defaults_are_those_of_the_estimate() -> None:
    assert demand_settings(config_of()) == DemandSettings()


def test_each_option_is_read() -> None:
    values = {
        "interval": "1s",
        "window": "2s",
        "percentile": "0.3",
        "half_life": "4s",
        "headroom": "0.5",
        "waiting": "0.6",
        "usage": "0.7",
        "shrinks_per_minute": "8",
        "growths_per_hour": "9",
    }
    assert demand_settings(config_of(demand=values)) == DemandSettings(
        1.0, 2.0, 0.3, 4.0, 0.5, 0.6, 0.7, 8, 9
    )
