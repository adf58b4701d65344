"""The Helm chart is what Kustomize applies: rendered by an evaluator of our own, since Helm is no Debian package."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cri_proxy.version import VERSION
from tests.cluster.manifests.rendered import PACKAGING, identity, kustomized
from tests.cluster.manifests.templates import NotPlain, render

VALUES = yaml.safe_load((PACKAGING / "chart/values.yaml").read_text())


@lru_cache(maxsize=1)
def made() -> dict[str, str]:
    """The files of the chart, as ``make chart`` and packages make it."""
    with tempfile.TemporaryDirectory(prefix="crt-") as folder:
        subprocess.run([sys.executable, str(PACKAGING / "chart.py"), folder], check=True)
        return {
            str(path.relative_to(folder)): path.read_text()
            for path in Path(folder).rglob("*.*")
            if path.is_file()
        }


def helm(**changed: Any) -> Iterator[dict[str, Any]]:
    """The objects of the chart, its CRDs among them."""
    for name, text in sorted(made().items()):
        if name.startswith("templates/"):
            yield from filter(None, yaml.safe_load_all(render(text, {**VALUES, **changed})))
        elif name.startswith("crds/"):
            yield from filter(None, yaml.safe_load_all(text))


def by_identity(objects: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = {identity(one): one for one in objects}
    # `helm install --create-namespace` makes it.
    return {key: one for key, one in found.items() if key[0] != "Namespace"}


@pytest.mark.parametrize("front_end", ["nri", "standalone", "proxy"])
def test_the_chart_has_the_objects_of_the_front_ends_folder(front_end: str) -> None:
    ours = by_identity(kustomized(front_end))
    assert by_identity(helm(frontEnd=front_end)) == ours


@pytest.mark.parametrize("front_end", ["nri", "standalone", "proxy"])
def test_with_dra_the_chart_has_the_objects_of_dras_folder(front_end: str) -> None:
    ours = by_identity(kustomized(f"dra/{front_end}"))
    assert by_identity(helm(frontEnd=front_end, dra={**VALUES["dra"], "enabled": True})) == ours
    assert (
        ours.keys() - by_identity(kustomized(front_end)).keys()
        == by_identity(kustomized("dra/objects")).keys()
    )


def test_requests_of_claims_are_checked_where_that_is_asked_for() -> None:
    more = by_identity(helm(dra={**VALUES["dra"], "checkRequests": True})).keys() - by_identity(helm()).keys()
    assert more == by_identity(kustomized("dra/check-requests")).keys()


@pytest.mark.parametrize(("value", "folder"), [("observer", "observer"), ("followAdvice", "follow-advice")])
def test_what_is_off_by_default_is_an_option_of_its_own(value: str, folder: str) -> None:
    more = by_identity(helm(**{value: True})).keys() - by_identity(helm()).keys()
    assert more == by_identity(kustomized(folder)).keys()


def test_values_reach_every_place_that_they_are_for() -> None:
    changed = {"image": "registry/x:7", "imagePullPolicy": "Always", "runtimeFolder": "/run/crio"}
    text = yaml.safe_dump_all([*helm(**changed), *helm(frontEnd="standalone", **changed)])
    assert "/run/containerd" not in text and "cri-resmgr:0.1.0" not in text and "IfNotPresent" not in text


def test_versions_are_the_projects() -> None:
    chart = yaml.safe_load(made()["Chart.yaml"])
    assert chart["version"] == chart["appVersion"] == VERSION
    assert VALUES["image"] == f"cri-resmgr:{VERSION}"


@pytest.mark.parametrize(
    "text", ['{{ include "x" . }}', "{{ .Values.none }}", "{{- if .Values.image }}", "{{ range .Values }}"]
)
def test_the_evaluator_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(NotPlain):
        render(text, VALUES)


def test_a_condition_in_a_condition_needs_both() -> None:
    text = "a: 1\n{{- if .Values.x }}\nb: 2\n{{- if .Values.y }}\nc: 3\n{{- end }}\nd: 4\n{{- end }}\n"
    assert render(text, {"x": True, "y": False}) == "a: 1\nb: 2\nd: 4\n"
    assert render(text, {"x": False, "y": True}) == "a: 1\n"


def test_a_condition_takes_its_lines_with_it() -> None:
    text = 'a: 1\n{{- if eq .Values.frontEnd "nri" }}\nb: 2\n{{- end }}\nc: 3\n'
    assert render(text, {"frontEnd": "nri"}) == "a: 1\nb: 2\nc: 3\n"
    assert render(text, {"frontEnd": "proxy"}) == "a: 1\nc: 3\n"
