"""What of the configuration the host of NRI plugins reads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from cri_proxy.config.config import Config
from cri_proxy.nri.validate import DefaultRules


@dataclass(frozen=True)
class NriSettings:
    """The options of the ``nri`` section for the host. ``socket`` and the paths may be "": none."""

    host: str = "auto"
    socket: str = ""
    plugin_path: str = ""
    config_path: str = ""
    launcher: str = "child"
    registration_timeout_s: float = 5.0
    request_timeout_s: float = 2.0
    sync_timeout_s: float = 20.0
    fail_closed: tuple[str, ...] = ()
    #: A create goes on without a validator that does not answer.
    passes_without_validators: bool = False
    #: The built-in validator, and the plugins that must be there; ``is_validating``: more than those is looked at.
    rules: DefaultRules = field(default_factory=DefaultRules)
    is_validating: bool = False


def nri_settings(config: Config) -> NriSettings:
    """The settings of a configuration."""
    return NriSettings(
        host=config["nri.host"],
        socket=config["nri.socket"],
        plugin_path=config["nri.plugin_path"],
        config_path=config["nri.plugin_config_path"],
        launcher=config["nri.launcher"],
        registration_timeout_s=config["nri.registration_timeout"],
        request_timeout_s=config["nri.request_timeout"],
        sync_timeout_s=config["nri.sync_timeout"],
        fail_closed=config["nri.fail_closed_plugins"],
        passes_without_validators=config["nri.pass_without_validators"],
        rules=_rules(config),
        is_validating=config["nri.validator.enable"],
    )


def _rules(config: Config) -> DefaultRules:
    rules = DefaultRules(
        required_plugins=config["nri.required_plugins"],
        tolerate_missing_plugins_annotation=config["nri.tolerate_missing_plugins_annotation"],
    )
    if not config["nri.validator.enable"]:
        return rules
    named = [one.name for one in fields(rules) if one.name.startswith("reject_")]
    return replace(rules, **{name: config[f"nri.validator.{name}"] for name in named})
