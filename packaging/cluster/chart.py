"""Makes the Helm chart in a folder, from what Kustomize applies and from ``chart/``: ``chart.py [FOLDER]``, by default
``dist/chart``. Standard library only.

The templates are the very files of base/, rbac/, admission/ and others, with four words replaced by values, each inside one
condition; what dra/component patches is in a condition of its own. The namespace is not a value: accounts, rights and
admission rules name it (cluster/api/names.py).
"""

from __future__ import annotations

import shutil
import sys
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
)
#: When a folder's files are applied; what is not named here always is.
CONDITIONS = {
    "base/nri": 'eq .Values.frontEnd "nri"',
    "base/standalone": 'eq .Values.frontEnd "standalone"',
    "base/node": 'ne .Values.frontEnd "proxy"',
    "base/observer": ".Values.observer",
    "follow-advice": ".Values.followAdvice",
    "dra/objects": ".Values.dra.enabled",
    "dra/check-requests": ".Values.dra.checkRequests",
}
FOLDERS = (
    *("base/node", "base/nri", "base/standalone", "base/observer", "base/agent", "base/operator"),
    *("rbac", "admission", "follow-advice", "dra/objects", "dra/check-requests"),
)
#: Files that a component of Kustomize patches, the patch, and when it is applied.
PATCHES = {
    "base/agent/daemonset.yaml": "dra/component/agent.yaml",
    "base/nri/daemonset.yaml": "dra/component/nri.yaml",
    "base/standalone/daemonset.yaml": "dra/component/standalone.yaml",
    "base/node/config.yaml": "dra/component/config.yaml",
}
PATCHED_IF = ".Values.dra.enabled"


def main(folder: Path) -> None:
    """Make it anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CHART, folder)
    for name, text in files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


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
    patch = PATCHES.get(str(source.relative_to(HERE)))
    patch_text = (HERE / patch).read_text() if patch else ""
    if "{{" in text + patch_text:
        sys.exit(f"chart.py: {source}: it has '{{{{', which Helm would take for its own")
    text = patched(text, patch_text)
    for plain, value in VALUES:
        text = text.replace(plain, value)
    head = HEAD.format(source.relative_to(HERE.parent.parent))
    condition = CONDITIONS.get(folder)
    if condition is None:
        return head + text
    return f"{head}{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"


def patched(text: str, patch: str) -> str:
    """A file with the lines of a strategic merge patch, each run of them inside one condition.

    Lines that the file has as well, from the last of them on, say where: what follows one in the patch comes after it, as
    Kustomize has it of lists. Comments of the patch are left out.
    """
    lines, at = text.splitlines(), 0
    added: dict[int, list[str]] = {}
    for line in patch.splitlines():
        if line.lstrip().startswith("#"):
            continue
        if line in lines[at:]:
            at = lines.index(line, at) + 1
        else:
            added.setdefault(at, []).append(line)
    for position, run in sorted(added.items(), reverse=True):
        lines[position:position] = [f"{{{{- if {PATCHED_IF} }}}}", *run, "{{- end }}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HERE.parent.parent / "dist/chart")
