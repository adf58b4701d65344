"""What of the configuration says how demand is estimated, and when sets become larger or smaller."""

from __future__ import annotations

from cri_proxy.affinity.demand.estimate import DemandSettings
from cri_proxy.config.config import Config


def demand_settings(config: Config) -> DemandSettings:
    """The settings of a configuration."""
    return DemandSettings(
        interval_s=config["demand.interval"],
        window_s=config["demand.window"],
        percentile=config["demand.percentile"],
        half_life_s=config["demand.half_life"],
        headroom=config["demand.headroom"],
        waiting=config["demand.waiting"],
        usage=config["demand.usage"],
        shrinks_per_minute=config["demand.shrinks_per_minute"],
        growths_per_hour=config["demand.growths_per_hour"],
    )
