"""The default validator: which adjustments it refuses and in which words, and the plugins that must be there."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.merge import Merge
from cri_proxy.nri.validate import DefaultRules, Rejected, ValidationInput, failed_in, refused_by, validate

HOOKS = nri.ContainerAdjustment(hooks=nri.Hooks(prestart=[nri.Hook(path="/h")]))
SECCOMP = nri.ContainerAdjustment(
    linux=nri.LinuxContainerAdjustment(seccomp_policy=nri.LinuxSeccomp(default_action="SCMP_ACT_ALLOW"))
)
NAMESPACE = nri.ContainerAdjustment(
    linux=nri.LinuxContainerAdjustment(namespaces=[nri.LinuxNamespace(type="cgroup", path="/n")])
)
SYSCTL = nri.ContainerAdjustment(linux=nri.LinuxContainerAdjustment(sysctl={"a.b": "1"}))
ANNOTATION = nri.ContainerAdjustment(annotations={"k": "v"})

DEFAULT, UNCONFINED, LOCALHOST = (
    nri.SecurityProfile.RUNTIME_DEFAULT,
    nri.SecurityProfile.UNCONFINED,
    nri.SecurityProfile.LOCALHOST,
)
REQUIRED = "required-plugins.noderesource.dev"


def verdict(
    rules: DefaultRules,
    *adjustments: nri.ContainerAdjustment,
    profile: Optional[nri.SecurityProfile.ProfileType.ValueType] = None,
    annotations: Optional[dict[str, str]] = None,
    plugins: tuple[str, ...] = ("00-foo", "10-bar"),
) -> str:
    """Why the adjustments of 00-foo, 10-bar are refused; "" if they are not."""
    container = nri.Container(id="c1", name="app")
    if profile is not None:
        container.linux.seccomp_profile.profile_type = profile
    merge = Merge(container)
    for plugin, adjustment in zip(("00-foo", "10-bar"), adjustments):
        merge.add(plugin, adjustment)
    question = ValidationInput(
        pod=nri.PodSandbox(annotations=annotations or {}),
        container=merge.pristine,
        owners=merge.owners,
        plugins=[nri.PluginInstance(index=p[:2], name=p[3:]) for p in plugins],
    )
    try:
        validate(rules, question)
    except Rejected as rejected:
        return str(rejected)
    return ""


# ---------------------------------------------------------------------- what may be adjusted

#: The rule, what plugins adjust, and the refusal.
RESTRICTED: dict[str, tuple[str, tuple[nri.ContainerAdjustment, ...], str]] = {
    "OCI hooks": (
        "reject_oci_hook_adjustment",
        (HOOKS,),
        'validation error: plugin "00-foo" attempted restricted OCI hook injection',
    ),
    "OCI hooks of two": (
        "reject_oci_hook_adjustment",
        (HOOKS, HOOKS),
        'validation error: plugins "00-foo,10-bar" attempted restricted OCI hook injection',
    ),
    "namespaces": (
        "reject_namespace_adjustment",
        (NAMESPACE,),
        'validation error: attempted restricted namespace adjustment by plugin(s) "00-foo" (namespace "cgroup")',
    ),
    "a namespace removed": (
        "reject_namespace_adjustment",
        (
            ANNOTATION,
            nri.ContainerAdjustment(
                linux=nri.LinuxContainerAdjustment(namespaces=[nri.LinuxNamespace(type="-network")])
            ),
        ),
        'validation error: attempted restricted namespace adjustment by plugin(s) "10-bar" (namespace "network")',
    ),
    "sysctls": (
        "reject_sysctl_adjustment",
        (SYSCTL,),
        "validation error: attempted restricted sysctl adjustment by plugin(s) 00-foo",
    ),
}


@pytest.mark.parametrize(("rule", "adjustments", "reason"), RESTRICTED.values(), ids=RESTRICTED)
def test_an_adjustment_that_a_rule_forbids_is_rejected(
    rule: str, adjustments: tuple[nri.ContainerAdjustment, ...], reason: str
) -> None:
    assert verdict(DefaultRules(**only(rule)), *adjustments) == reason
    assert verdict(DefaultRules(), *adjustments) == ""
    assert verdict(DefaultRules(**only(rule)), ANNOTATION) == ""


@pytest.mark.parametrize(
    ("profile", "rule", "word"),
    [
        (DEFAULT, "reject_runtime_default_seccomp_adjustment", "runtime default"),
        (LOCALHOST, "reject_custom_seccomp_adjustment", "custom"),
        (UNCONFINED, "reject_unconfined_seccomp_adjustment", "unconfined"),
        (None, "reject_unconfined_seccomp_adjustment", "unconfined"),
    ],
)
def test_a_seccomp_adjustment_is_judged_by_the_profile_it_replaces(
    profile: Any, rule: str, word: str
) -> None:
    every = [rules for rules in DefaultRules.__dataclass_fields__ if "seccomp" in rules]
    reason = f"validation error: plugin 00-foo attempted restricted {word} seccomp policy adjustment"
    for other in every:
        wanted = reason if other == rule else ""
        assert verdict(DefaultRules(**only(other)), SECCOMP, profile=profile) == wanted


def only(rule: str) -> dict[str, Any]:
    return {rule: True}


# ---------------------------------------------------------------------- required plugins

#: Names required by the rules, the pod's annotations, and the refusal.
REQUIREMENTS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "present": (("foo",), {}, ""),
    "present, by its index too": (("00-foo", "10-bar"), {}, ""),
    "missing": (("x",), {}, 'validation error: required plugin "x" not present'),
    "two missing": (("x", "foo", "y"), {}, 'validation error: required plugins "x,y" not present'),
    "another index": (("11-foo",), {}, 'validation error: required plugin "11-foo" not present'),
    "annotated and present": ((), {REQUIRED: "[foo, 10-bar]"}, ""),
    "annotated and missing": ((), {REQUIRED: "- x"}, 'validation error: required plugin "x" not present'),
    "annotated for the pod": (
        (),
        {f"{REQUIRED}/pod": "[x]", REQUIRED: "[foo]"},
        'validation error: required plugin "x" not present',
    ),
    "annotated for the container": (
        (),
        {f"{REQUIRED}/container.app": "[foo]", f"{REQUIRED}/pod": "[x]", REQUIRED: "[y]"},
        "",
    ),
    "annotated for another container": ((), {f"{REQUIRED}/container.other": "[x]"}, ""),
    "annotated with nothing": ((), {REQUIRED: ""}, ""),
    "no list": (
        (),
        {REQUIRED: "x"},
        f'invalid {REQUIRED} annotation "x": a YAML list of plugins was expected',
    ),
    "no YAML": (
        (),
        {REQUIRED: "[x"},
        f'invalid {REQUIRED} annotation "[x": a YAML list of plugins was expected',
    ),
    "tolerated": (("x",), {"tolerate": "true"}, ""),
    "tolerated for the container": (("x",), {"tolerate/container.app": "1", "tolerate": "false"}, ""),
    "not tolerated": (("x",), {"tolerate": "false"}, 'validation error: required plugin "x" not present'),
    "no bool": (("x",), {"tolerate": "yes"}, 'invalid tolerate annotation "yes": true or false was expected'),
}


@pytest.mark.parametrize(("names", "annotations", "reason"), REQUIREMENTS.values(), ids=REQUIREMENTS)
def test_required_plugins_must_be_there_unless_the_pod_tolerates_it(
    names: tuple[str, ...], annotations: dict[str, str], reason: str
) -> None:
    rules = DefaultRules(required_plugins=names, tolerate_missing_plugins_annotation="tolerate")
    assert verdict(rules, annotations=annotations) == reason


def test_a_refusal_names_the_validator() -> None:
    assert refused_by("50-x", "no") == 'validator "50-x" rejected container adjustment, reason: no'
    assert failed_in("50-x", "ttrpc: closed") == "validator plugin 50-x failed: ttrpc: closed"
