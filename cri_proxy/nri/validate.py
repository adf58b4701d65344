"""What may be adjusted: the rules of NRI's default validator, and the plugins that must have been there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.cri.messages import scoped_annotation
from cri_proxy.nri.merge import owner_of, plain

#: A pod's annotation with a YAML list of plugins that it needs, for one container (``/container.NAME``), ``/pod``,
#: or all; plugins are named ``name`` or ``NN-name``.
REQUIRED_PLUGINS = "required-plugins.noderesource.dev"
DEFAULT_VALIDATOR = "00-default-validator"

# What Go's strconv.ParseBool takes.
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
#: The seccomp profile a container has, in the words of a refusal, and the rule that forbids to replace it.
_SECCOMP = {
    nri.SecurityProfile.RUNTIME_DEFAULT: ("runtime default", "reject_runtime_default_seccomp_adjustment"),
    nri.SecurityProfile.UNCONFINED: ("unconfined", "reject_unconfined_seccomp_adjustment"),
    nri.SecurityProfile.LOCALHOST: ("custom", "reject_custom_seccomp_adjustment"),
}


class Rejected(Exception):
    """The adjustment must not be; why, in the words of the default validator."""


@dataclass(frozen=True)
class DefaultRules:
    """The settings of the default validator, named as containerd names them; all off is no validator."""

    reject_oci_hook_adjustment: bool = False
    reject_runtime_default_seccomp_adjustment: bool = False
    reject_unconfined_seccomp_adjustment: bool = False
    reject_custom_seccomp_adjustment: bool = False
    reject_namespace_adjustment: bool = False
    reject_sysctl_adjustment: bool = False
    #: Every container needs these, ``name`` or ``NN-name``.
    required_plugins: tuple[str, ...] = ()
    #: A pod annotation that says "true" for containers that do without them; "" = there is none.
    tolerate_missing_plugins_annotation: str = ""


@dataclass(frozen=True)
class ValidationInput:
    """What the rules look at. ``container``: the one before all adjustments; ``owners``: which plugin has set what of it."""

    pod: nri.PodSandbox
    container: nri.Container
    owners: nri.OwningPlugins
    plugins: Sequence[nri.PluginInstance]


def validate(rules: DefaultRules, question: ValidationInput) -> None:
    """Hold a merged adjustment against the rules.

    :raises Rejected: it breaks one of them.
    """
    _check_hooks(rules, question)
    _check_seccomp(rules, question)
    _check_namespaces(rules, question)
    check_required(rules, question.pod, question.container.name, question.plugins)
    _check_sysctl(rules, question)


def refused_by(validator: str, reason: str) -> str:
    """What a create fails with when a validator, ``NN-name``, says no."""
    return f'validator "{validator}" rejected container adjustment, reason: {reason}'


def failed_in(validator: str, error: str) -> str:
    """What a create fails with when a validator gives no answer: that it may be is not known then."""
    return f"validator plugin {validator} failed: {error}"


def check_required(
    rules: DefaultRules, pod: nri.PodSandbox, container_name: str, present: Iterable[nri.PluginInstance]
) -> None:
    """The plugins that all containers need, and those the pod's annotation names for this one, must be present.

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
    """The plugins that a pod's annotation asks for, for one of its containers ("" = for the pod).

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
        who = f'plugins "{owners}"' if "," in owners else f'plugin "{owners}"'
        raise Rejected(f"validation error: {who} attempted restricted OCI hook injection")


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
