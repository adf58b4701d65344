"""Writes what follows from the daemon's table of options and from cluster/api: the CRDs, and the rule that
refuses other options.

python tools/write_crds.py [ROOT]     into ROOT, by default this project
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[1]
CRDS = "packaging/cluster/crds"
ADMISSION = "packaging/cluster/admission/config.yaml"

_HEADER = "# Written by `make docs` from cluster/api and the daemon's table of options; a test compares.\n"


def allowed_options() -> dict[str, dict[str, Any]]:
    """What a policy of the cluster may set, by key, with the schema of each; and the options there were, set to anything."""
    from cri_proxy.config.checks import Check
    from cri_proxy.config.constants import Constants
    from cri_proxy.config.gone import GONE
    from cri_proxy.config.options.table import OPTIONS

    found: dict[str, dict[str, Any]] = {}
    for option in OPTIONS:
        if option.cluster:
            check = option.cluster if isinstance(option.cluster, Check) else option.check
            said = {"description": _described(option, check), "expected": check.expected}
            found[option.key] = {**check.schema, **said}
    for key, former in GONE.items():
        if former.cluster:
            said = f"Deprecated: it is ignored; {former.says(Constants())}."
            found[key] = {"x-kubernetes-preserve-unknown-fields": True, "description": said}
    return found


def _described(option: Any, check: Any) -> str:
    unit = f" Unit: {option.check.unit}." if option.check.unit else ""
    default = f" Default: {option.check.write(option.default)}."
    quoted = ' "off" is written in quotes.' if "off" in check.schema.get("enum", ()) else ""
    return option.help + unit + default + quoted


def crds() -> dict[str, str]:
    """The definitions as YAML, by the names of their files."""
    from cluster.api.crds import definitions

    found = {}
    for definition in definitions(allowed_options()):
        text = yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)
        found[f"{definition['spec']['names']['plural']}.yaml"] = _HEADER + text
    names = "".join(f"- {name}\n" for name in found)
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    return {**found, "kustomization.yaml": head + names}


_POLICY = "cri-resmgr-config"
_ABOUT = """\
# A policy's configuration has allowed options only. Schemas cannot say that: there a server drops what they do not name,
# and nothing would tell the writer. Operator, agent and daemon refuse the same.
"""


def admission() -> str:
    """The policy that refuses PlacementPolicies with options that are not in the allow-list, and its binding."""
    from cluster.api.allowed import schema

    labels = {"app.kubernetes.io/part-of": "cri-resmgr"}
    rule = {"apiGroups": ["cri-resmgr.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": _POLICY, "labels": labels}}
    policy = {
        **head,
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["placementpolicies"]}]},
            "validations": list(_validations(schema(allowed_options()), ("spec", "config"))),
        },
    }
    binding = {
        **head,
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {"policyName": _POLICY, "validationActions": ["Deny"]},
    }
    documents = yaml.dump_all((policy, binding), Dumper=_Plain, sort_keys=False, width=110)
    return _HEADER + _ABOUT + documents


def _validations(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One for each section: the keys it may have."""
    value = ".".join(("object", *path))
    known = "[" + ", ".join(f"'{name}'" for name in schema["properties"]) + "]"
    given = " && ".join(f"has(object.{'.'.join(path[:depth])})" for depth in range(1, len(path) + 1))
    yield {
        "expression": f"!({given}) || {value}.all(key, key in {known})",
        "messageExpression": f"'{'.'.join(path)}.' + {value}.filter(key, !(key in {known}))[0]"
        " + ' is not among the options that a policy of the cluster may set'",
        "reason": "Invalid",
    }
    for name, inner in schema["properties"].items():
        if inner.get("properties"):
            yield from _validations(inner, (*path, name))


class _Plain(yaml.SafeDumper):
    """Without anchors: lists that are the same are written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(root: Path) -> None:
    (root / CRDS).mkdir(parents=True, exist_ok=True)
    for name, text in crds().items():
        (root / CRDS / name).write_text(text)
    (root / ADMISSION).parent.mkdir(parents=True, exist_ok=True)
    (root / ADMISSION).write_text(admission())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PROJECT)
