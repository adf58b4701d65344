"""The options of NRI: hosting plugins for a runtime that does not, and being one. See ``options.py``."""

from __future__ import annotations

from cri_proxy.config.checks import (
    Option,
    duration,
    empty_or_path,
    endpoint,
    flag,
    matching,
    names,
    one_of,
    subset,
)
from cri_proxy.config.options.nri_capabilities import REACTIONS
from cri_proxy.config.options.nri_plugin import NRI_PLUGIN_OPTIONS

_HOST: tuple[Option, ...] = (
    Option(
        "nri.host",
        one_of("auto", "on", "off"),
        "auto",
        "Whether NRI plugins are hosted here. auto: where the runtime has no NRI of its own.",
        live=False,
    ),
    Option(
        "nri.socket",
        endpoint("no external plugins"),
        "/var/run/cri-resmgr/nri/nri.sock",
        "The socket external plugins connect to; /var/run/nri/nri.sock is where most look for it.",
        live=False,
    ),
    Option(
        "nri.plugin_path",
        empty_or_path(),
        "/opt/nri/plugins",
        "Plugins in this directory, named like 10-NAME, are launched.",
        live=False,
    ),
    Option(
        "nri.plugin_config_path",
        empty_or_path(),
        "/etc/nri/conf.d",
        "Their configurations: 10-NAME.conf, else NAME.conf.",
        live=False,
    ),
    Option(
        "nri.launcher",
        one_of("auto", "unit", "child"),
        "auto",
        "How they are launched: as a systemd unit cri-resmgr-nri@10-NAME.service each, or as children of the daemon. "
        "auto: as units where the daemon is one.",
        live=False,
    ),
    Option(
        "nri.registration_timeout",
        duration(),
        5.0,
        "How long a plugin may take to register once it is connected.",
        "seconds",
    ),
    Option("nri.request_timeout", duration(), 2.0, "How long a plugin may take for one answer.", "seconds"),
    Option(
        "nri.sync_timeout",
        duration(),
        20.0,
        "How long it may take to learn of all pods and containers; pods that start meanwhile wait for it.",
        "seconds",
    ),
)

_FAILURES: tuple[Option, ...] = (
    Option(
        "nri.required_plugins",
        names(),
        (),
        "Plugins (NAME or 10-NAME) without which no pod and no container is created.",
    ),
    Option(
        "nri.tolerate_missing_plugins_annotation",
        matching('the key of an annotation, or ""', r"[A-Za-z0-9_./-]*"),
        "",
        "Pods with this annotation, true, do without them: those in which the plugins themselves run.",
    ),
    Option(
        "nri.fail_closed_plugins",
        names(),
        (),
        "Plugins (names or globs) whose silence or end during a request fails it; it goes on without all others.",
    ),
)

_VALIDATORS: tuple[Option, ...] = (
    Option(
        "nri.pass_without_validators",
        flag(),
        False,
        "Whether a create goes on without a validator that does not answer, or ends, while it is asked; by default that "
        "fails it. Those of `nri.fail_closed_plugins` and `nri.required_plugins` fail it all the same.",
    ),
)

_INEXPRESSIBLE: tuple[Option, ...] = (
    Option(
        "nri.reject",
        subset(*REACTIONS),
        frozenset(),
        "What of plugins' adjustments, where CRI cannot express it, fails the create although a line in the log would "
        "do by default.",
    ),
    Option(
        "nri.warn",
        subset(*REACTIONS),
        frozenset(),
        "What is left out with a line in the log where CRI cannot express it, although that fails the create by default.",
    ),
)


def _validator(name: str, what: str) -> Option:
    return Option(f"nri.validator.{name}", flag(), False, f"Whether {what} fails the create.")


_VALIDATOR: tuple[Option, ...] = (
    Option(
        "nri.validator.enable", flag(), False, "Whether the built-in validator looks at what plugins ask for."
    ),
    _validator("reject_oci_hook_adjustment", "an OCI hook that a plugin adds"),
    _validator(
        "reject_runtime_default_seccomp_adjustment", "a changed seccomp policy of the runtime's default"
    ),
    _validator("reject_unconfined_seccomp_adjustment", "a seccomp policy for a container that has none"),
    _validator("reject_custom_seccomp_adjustment", "a changed seccomp policy of the pod's own"),
    _validator("reject_namespace_adjustment", "a changed Linux namespace"),
    _validator("reject_sysctl_adjustment", "a changed sysctl"),
)

NRI_OPTIONS: tuple[Option, ...] = (
    *_HOST,
    *_FAILURES,
    *_VALIDATORS,
    *_INEXPRESSIBLE,
    *_VALIDATOR,
    *NRI_PLUGIN_OPTIONS,
)
