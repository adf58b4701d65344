"""The options of running as a plugin of the runtime's own NRI (``cri-resmgr nri run``). See ``options.py``."""

from __future__ import annotations

from cri_proxy.config.checks import Option, matching, socket_path

NRI_PLUGIN_OPTIONS: tuple[Option, ...] = (
    Option(
        "nri.plugin.socket",
        socket_path(),
        "/var/run/nri/nri.sock",
        "The socket of the runtime's NRI that `cri-resmgr nri run` connects to.",
        live=False,
    ),
    Option(
        "nri.plugin.name",
        matching("letters, digits and _.+-", r"[A-Za-z0-9_.+-]+"),
        "cri-resmgr",
        "What the plugin is called there.",
        live=False,
    ),
    Option(
        "nri.plugin.index",
        matching("two digits", r"[0-9]{2}"),
        "10",
        "Its place among other plugins, which are asked in this order.",
        live=False,
    ),
)
