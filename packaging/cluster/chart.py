"""Writes the Helm chart's templates and CRDs from what Kustomize applies: ``chart.py [--check]``. One source for both.

The templates are the very files of base/, rbac/ and admission/, with five words replaced by values, each inside one
condition. The namespace is not a value: accounts, rights and admission rules name it (cluster/api/names.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE / "chart"
HEAD = "# Written by packaging/cluster/chart.py from {}; change that file.\n"
#: What stands in the manifests, and the value in its place.
VALUES = (
    ("image: cri-resmgr:0.1.0", "image: {{ .Values.image }}"),
    ("imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.imagePullPolicy }}"),
    ("path: /run/containerd,", "path: {{ .Values.runtimeFolder }},"),
    ("mountPath: /run/containerd}", "mountPath: {{ .Values.runtimeFolder }}}"),
    ("--installer-image=cri-resmgr-installer:0.1.0", "--installer-image={{ .Values.installerImage }}"),
)
#: When a folder's files are applied; what is not named here always is.
CONDITIONS = {
    "base/nri": 'eq .Values.frontEnd "nri"',
    "base/standalone": 'eq .Values.frontEnd "standalone"',
    "base/node": 'ne .Values.frontEnd "proxy"',
    "base/observer": ".Values.observer",
    "rbac-installs": 'eq .Values.frontEnd "proxy"',
    "admission": '.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"',
}
FOLDERS = (
    *("base/node", "base/nri", "base/standalone", "base/observer", "base/agent", "base/operator"),
    *("rbac-common", "rbac", "rbac-installs", "admission"),
)
#: The operator's command, to which base/proxy adds its argument by a patch.
OPERATOR_COMMAND = (
    "        command: [/usr/lib/cri-resmgr/bin/python, -I, -m, cluster.operator, --health-file=/tmp/health]\n"
)
OPERATOR_ARGUMENT = (
    '{{- if eq .Values.frontEnd "proxy" }}\n'
    "        args: [--installer-image=cri-resmgr-installer:0.1.0]\n"
    "{{- end }}\n"
)


def main(arguments: list[str]) -> int:
    """Write, or say which files are not as they would be written."""
    wanted = files()
    found = {
        str(path.relative_to(CHART))
        for name in ("templates", "crds")
        for path in (CHART / name).glob("*.yaml")
    }
    wrong = sorted(found ^ wanted.keys()) + sorted(
        name for name in found & wanted.keys() if (CHART / name).read_text() != wanted[name]
    )
    if arguments == ["--check"]:
        if wrong:
            print(
                f"packaging/cluster/chart is not as chart.py writes it: {', '.join(wrong)}; type: make chart"
            )
        return 1 if wrong else 0
    if arguments:
        sys.exit("usage: chart.py [--check]")
    write(wanted, found)
    return 0


def write(wanted: Mapping[str, str], found: set[str]) -> None:
    for name in found - wanted.keys():
        (CHART / name).unlink()
    for name, text in wanted.items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)


def files() -> dict[str, str]:
    """Every template and CRD, by its path in the chart."""
    found = {}
    for folder in FOLDERS:
        for source in _sources(folder):
            found[f"templates/{folder.replace('/', '-')}-{source.name}"] = template(folder, source)
    for source in _sources("crds"):
        found[f"crds/{source.name}"] = source.read_text()
    return found


def _sources(folder: str) -> list[Path]:
    return [path for path in sorted((HERE / folder).glob("*.yaml")) if path.name != "kustomization.yaml"]


def template(folder: str, source: Path) -> str:
    """One file of the manifests as a template."""
    text = source.read_text()
    if "{{" in text:
        sys.exit(f"chart.py: {source}: it has '{{{{', which Helm would take for its own")
    text = text.replace(OPERATOR_COMMAND, OPERATOR_COMMAND + OPERATOR_ARGUMENT)
    for plain, value in VALUES:
        text = text.replace(plain, value)
    head = HEAD.format(source.relative_to(HERE.parent.parent))
    condition = CONDITIONS.get(folder)
    if condition is None:
        return head + text
    return f"{head}{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
