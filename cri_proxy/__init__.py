"""cri-resmgr: a CRI proxy that places containers on L3 slices and NUMA nodes. ``daemon.py`` is the only wiring."""
