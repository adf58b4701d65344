"""Which adjustments are allowed: the rules of NRI's default validator, and required plugins.

And the options that the host of plugins reads, these rules among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.config.config import Config
from cri_proxy.cri.messages import scoped_annotation
from cri_proxy.nri.merge import owner_of, plain

#: A pod's annotation with a YAML list of required plugins, for one container (``/container.NAME``), ``/pod``,
#: or all; plugins are named ``name`` or ``NN-name``.
REQUIRED_PLUGINS = "required-plugins.noderesource.dev"
DEFAULT_VALIDATOR = "00-default-validator"

# As Go's strconv.ParseBool.
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
#: A container's seccomp profile, in a refusal's words, and the rule against replacing it.
_SECCOMP = {
    nri.SecurityProfile.RUNTIME_DEFAULT: ("runtime default", "reject_runtime_default_seccomp_adjustment"),
    nri.SecurityProfile.UNCONFINED: ("unconfined", "reject_unconfined_seccomp_adjustment"),
    nri.SecurityProfile.LOCALHOST: ("custom", "reject_custom_seccomp_adjustment"),
}


class Rejected(Exception):
    """The adjustment is refused; why, in the default validator's words."""


@dataclass(frozen=True)
class DefaultRules:
    """The settings of the default validator, named as containerd names them; all off is no validator."""

    reject_oci_hook_adjustment: bool = False
    reject_runtime_default_seccomp_adjustment: bool = False
    reject_unconfined_seccomp_adjustment: bool = False
    reject_custom_seccomp_adjustment: bool = False
    reject_namespace_adjustment: bool = False
    reject_sysctl_adjustment: bool = False
    #: Plugins that every container needs.
    required_plugins: tuple[str, ...] = ()
    #: A pod annotation, "true" for containers that do without them; "" = none.
    tolerate_missing_plugins_annotation: str = ""


@dataclass(frozen=True)
class ValidationInput:
    """What the rules judge. ``container``: before all adjustments; ``owners``: the plugin that set each field."""

    pod: nri.PodSandbox
    container: nri.Container
    owners: nri.OwningPlugins
    plugins: Sequence[nri.PluginInstance]


def validate(rules: DefaultRules, question: ValidationInput) -> None:
    """Check a merged adjustment by the rules.

    :raises Rejected: it breaks one of them.
    """
    _check_hooks(rules, question)
    _check_seccomp(rules, question)
    _check_namespaces(rules, question)
    check_required(rules, question.pod, question.container.name, question.plugins)
    _check_sysctl(rules, question)


def refused_by(validator: str, reason: str) -> str:
    """The error of a create that a validator, ``NN-name``, refuses."""
    return f'validator "{validator}" rejected container adjustment, reason: {reason}'


def failed_in(validator: str, error: str) -> str:
    """The error of a create that a validator gives no answer to."""
    return f"validator plugin {validator} failed: {error}"


def check_required(
    rules: DefaultRules, pod: nri.PodSandbox, container_name: str, present: Iterable[nri.PluginInstance]
) -> None:
    """Plugins that all containers need, or the pod's annotation names for this one, must be present.

    :raises Rejected: one is missing, or an annotation cannot be read.
    """
    if _tolerates_missing(rules.tolerate_missing_plugins_annotation, pod, container_name):
        return
    required = [*rules.required_plugins, *annotated_plugins(pod, container_name)]
    names = {name for plugin in present for name in (plugin.name, f"{plugin.index}-{plugin.name}")}
    missing = [name for name in required if name not in names]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise Rejected(f'validation error: required plugin{plural} "{",".join(missing)}" not present')


def annotated_plugins(pod: nri.PodSandbox, container_name: str) -> Sequence[str]:
    """The plugins in a pod's annotation, for one of its containers ("" = for the pod).

    :raises Rejected: the annotation is no YAML list of names.
    """
    value = scoped_annotation(pod.annotations, REQUIRED_PLUGINS, container_name)
    if value is None:
        return ()
    try:
        names = yaml.safe_load(value)
    except yaml.YAMLError:
        names = value
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Rejected(
            f'invalid {REQUIRED_PLUGINS} annotation "{value}": a YAML list of plugins was expected'
        )
    return names


def _tolerates_missing(key: str, pod: nri.PodSandbox, container_name: str) -> bool:
    value = scoped_annotation(pod.annotations, key, container_name) if key else None
    if value is None:
        return False
    if value not in _BOOLS:
        raise Rejected(f'invalid {key} annotation "{value}": true or false was expected')
    return _BOOLS[value]


def _check_hooks(rules: DefaultRules, question: ValidationInput) -> None:
    owners = owner_of(question.owners, question.container.id, nri.OciHooks)
    if rules.reject_oci_hook_adjustment and owners:
        plugins = f'plugins "{owners}"' if "," in owners else f'plugin "{owners}"'
        raise Rejected(f"validation error: {plugins} attempted restricted OCI hook injection")


def _check_seccomp(rules: DefaultRules, question: ValidationInput) -> None:
    owner = owner_of(question.owners, question.container.id, nri.SeccompPolicy)
    if not owner:
        return
    linux = question.container.linux
    has_profile = linux.HasField("seccomp_profile")
    profile = linux.seccomp_profile.profile_type if has_profile else nri.SecurityProfile.UNCONFINED
    word, rule = _SECCOMP.get(profile, _SECCOMP[nri.SecurityProfile.LOCALHOST])
    if getattr(rules, rule):
        raise Rejected(
            f"validation error: plugin {owner} attempted restricted {word} seccomp policy adjustment"
        )


def _check_namespaces(rules: DefaultRules, question: ValidationInput) -> None:
    owned = _owned(question, nri.Namespace)
    if rules.reject_namespace_adjustment and owned:
        offenders = ", ".join(f'"{plain(owner)}" (namespace "{kind}")' for kind, owner in owned)
        raise Rejected(
            f"validation error: attempted restricted namespace adjustment by plugin(s) {offenders}"
        )


def _check_sysctl(rules: DefaultRules, question: ValidationInput) -> None:
    owned = _owned(question, nri.Sysctl)
    if rules.reject_sysctl_adjustment and owned:
        offenders = ", ".join(dict.fromkeys(plain(owner) for _, owner in owned))
        raise Rejected(f"validation error: attempted restricted sysctl adjustment by plugin(s) {offenders}")


def _owned(question: ValidationInput, field: nri.Field.ValueType) -> list[tuple[str, str]]:
    """Keys and owners of a field, by key."""
    owners = question.owners.owners
    of = owners[question.container.id] if question.container.id in owners else nri.FieldOwners()
    return sorted(of.compound[field].owners.items()) if field in of.compound else []


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
    #: The built-in validator's rules, and required plugins; ``is_validating``: there are such rules.
    rules: DefaultRules = field(default_factory=DefaultRules)
    is_validating: bool = False


def nri_settings(config: Config) -> NriSettings:
    """The settings of a configuration."""
    return NriSettings(
        host=config["nri.host"],
        socket=config["nri.socket"],
        plugin_path=config["nri.plugin_path"],
        config_path=config["nri.plugin_config_path"],
        launcher=config.constants.nri_launcher,
        registration_timeout_s=config.constants.nri_registration_timeout_s,
        request_timeout_s=config["nri.request_timeout"],
        sync_timeout_s=config["nri.sync_timeout"],
        fail_closed=config["nri.fail_closed_plugins"],
        rules=_rules(config),
        is_validating=bool(config["nri.validators"]),
    )


def _rules(config: Config) -> DefaultRules:
    rules = DefaultRules(
        required_plugins=config["nri.required_plugins"],
        tolerate_missing_plugins_annotation=config["nri.tolerate_missing_plugins_annotation"],
    )
    refused: dict[str, Any] = {f"reject_{word}_adjustment": True for word in config["nri.validators"]}
    return replace(rules, **refused)
