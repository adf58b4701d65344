"""The counters of hosted NRI plugins."""

from __future__ import annotations

from cri_proxy.instruments import Registry

#: Seconds. A plugin in Go answers in half a millisecond; after two seconds it is given up.
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.0, 5.0)
#: Plugins name themselves: beyond these many they share a label.
MOST_LABELS = 50
OTHERS = "others"


class NriMetrics:
    """Labels: plugins as ``NN-name``, events as their calls are named."""

    def __init__(self, registry: Registry) -> None:
        self._labels: set[str] = set()
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        # fmt: off
        self.calls = counter("cri_resmgr_nri_calls_total", "plugin event result",
            "Calls of NRI plugins by result: ok, error, timeout, closed, bad reply")
        self.seconds = histogram("cri_resmgr_nri_call_seconds", "plugin event",
            "Time until an NRI plugin answered", CALL_BUCKETS)
        self.adjustments = counter("cri_resmgr_nri_adjustments_total", "plugin kind",
            "What NRI plugins asked for: adjust, update, evict (not done)")
        self.plugins = gauge("cri_resmgr_nri_plugins", "", "NRI plugins that are connected")
        self.dropped = counter("cri_resmgr_nri_plugins_dropped_total", "plugin", "NRI plugins that went or were given up")
        # fmt: on

    def label(self, title: str) -> str:
        """A plugin's label."""
        if title not in self._labels and len(self._labels) >= MOST_LABELS:
            return OTHERS
        self._labels.add(title)
        return title
