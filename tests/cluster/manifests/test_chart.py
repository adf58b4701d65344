"""The Helm chart is what Kustomize applies: rendered by an evaluator of our own, since Helm is no Debian package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cri_proxy.version import VERSION
from tests.cluster.manifests.rendered import PACKAGING, identity, kustomized
from tests.cluster.manifests.templates import NotPlain, render

CHART = PACKAGING / "chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
ADMISSION = frozenset(["admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"])


def helm(apis: frozenset[str] = frozenset(), **changed: Any) -> Iterator[dict[str, Any]]:
    """The objects of the chart, its CRDs among them."""
    for path in sorted((CHART / "templates").glob("*.yaml")):
        yield from filter(None, yaml.safe_load_all(render(path.read_text(), {**VALUES, **changed}, apis)))
    for path in sorted((CHART / "crds").glob("*.yaml")):
        yield from filter(None, yaml.safe_load_all(path.read_text()))


def by_identity(objects: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = {identity(one): one for one in objects}
    # `helm install --create-namespace` makes it.
    return {key: one for key, one in found.items() if key[0] != "Namespace"}


def test_the_chart_is_written_from_what_kustomize_applies() -> None:
    command = [sys.executable, str(PACKAGING / "chart.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("front_end", ["nri", "standalone", "proxy"])
def test_the_chart_has_the_objects_of_the_front_ends_folder(front_end: str) -> None:
    ours = by_identity(kustomized(front_end))
    assert by_identity(helm(ADMISSION, frontEnd=front_end)) == ours


def test_the_observer_is_an_option_of_its_own() -> None:
    more = by_identity(helm(observer=True)).keys() - by_identity(helm()).keys()
    assert more == by_identity(kustomized("observer")).keys()


def test_the_admission_policy_is_applied_where_the_server_has_such() -> None:
    more = by_identity(helm(ADMISSION)).keys() - by_identity(helm()).keys()
    assert {kind for kind, _ in more} == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert more == by_identity(kustomized("admission")).keys()


def test_values_reach_every_place_that_they_are_for() -> None:
    changed = {"image": "registry/x:7", "imagePullPolicy": "Always", "runtimeFolder": "/run/crio"}
    text = yaml.safe_dump_all([*helm(**changed), *helm(frontEnd="standalone", **changed)])
    assert "/run/containerd" not in text and "cri-resmgr:0.1.0" not in text and "IfNotPresent" not in text
    text = yaml.safe_dump_all(helm(frontEnd="proxy", installerImage="registry/y:8"))
    assert "--installer-image=registry/y:8" in text


def test_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert VALUES["image"] == f"cri-resmgr:{VERSION}"
    assert VALUES["installerImage"] == f"cri-resmgr-installer:{VERSION}"


@pytest.mark.parametrize(
    "text", ['{{ include "x" . }}', "{{ .Values.none }}", "{{- if .Values.image }}", "{{ range .Values }}"]
)
def test_the_evaluator_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(NotPlain):
        render(text, VALUES)


def test_a_condition_takes_its_lines_with_it() -> None:
    text = 'a: 1\n{{- if eq .Values.frontEnd "nri" }}\nb: 2\n{{- end }}\nc: 3\n'
    assert render(text, {"frontEnd": "nri"}) == "a: 1\nb: 2\nc: 3\n"
    assert render(text, {"frontEnd": "proxy"}) == "a: 1\nc: 3\n"
