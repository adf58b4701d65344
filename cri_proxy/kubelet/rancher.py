"""k3s and rke2, which start kubelet themselves: what they are told to give it.

They give kubelet an endpoint of their own, and after it what ``kubelet-arg`` says: in config.yaml, in the files of
config.yaml.d in their order, on the command line in their unit; later ones win.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

import yaml

from cri_proxy.kubelet.edits import ConfigFile, Value, read_config_file, value_at
from cri_proxy.kubelet.units import Files, Service, read_service, unit_paths

K3S_ENDPOINT = "unix:///run/k3s/containerd/containerd.sock"
#: Their units, a server's and an agent's.
_UNITS = {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}
#: rke2 comes with both units; the one that is started at boot has a link here.
_WANTED = "/etc/systemd/system/multi-user.target.wants"
#: Of ExecStart: an argument of kubelet's as the installer writes it, or the endpoint they give it themselves.
_ARGUMENT = re.compile(
    r"--kubelet-arg(?:=|[\s\"'\\]+)[\"']?(?:--)?(?P<name>[\w-]+)=(?P<value>[^\s\"'\\]*)"
    r"|--container-runtime-endpoint(?:=|[\s\"'\\]+)(?P<own>[^\s\"'\\]+)"
)


@dataclass
class Rancher:
    """``name``: k3s or rke2. ``unit``: what is restarted. ``arguments``: kubelet's flags with their places."""

    name: str
    unit: str
    config_file: str
    #: The endpoint they give kubelet, where ``arguments`` have none.
    own: Optional[Value] = None
    arguments: dict[str, Value] = field(default_factory=dict)


def rancher_paths() -> set[str]:
    """What ``find_rancher`` looks at."""
    found = set()
    for name, units in _UNITS.items():
        found |= {f"/etc/rancher/{name}/config.yaml", f"/etc/rancher/{name}/config.yaml.d/*.yaml"}
        for unit in units:
            found |= {*unit_paths(f"{unit}.service"), f"{_WANTED}/{unit}.service"}
    return found


def find_rancher(files: Files) -> Optional[Rancher]:
    """The one that is installed here, if one is.

    :raises BadKubeletFile: a file of its configuration cannot be understood.
    """
    for name, units in _UNITS.items():
        services = {unit: read_service(files, f"{unit}.service") for unit in units}
        installed = [unit for unit in units if services[unit].exec_start]
        main = f"/etc/rancher/{name}/config.yaml"
        folder = f"{main}.d/"
        configs = [path for path in files if path == main or (path.startswith(folder) and "*" not in path)]
        configs = [path for path in sorted(configs) if files[path] is not None]
        if not installed and not configs:
            continue
        wanted = [unit for unit in installed if files.get(f"{_WANTED}/{unit}.service") is not None]
        rancher = Rancher(name, [*wanted, *installed, *units][0], main)
        for path in configs:
            _read_configuration(rancher, path, files[path] or "")
        _read_command_line(rancher, services[rancher.unit])
        return rancher
    return None


def _read_configuration(rancher: Rancher, path: str, text: str) -> None:
    config = read_config_file(path, text)
    rancher.own = config.values.get("container-runtime-endpoint", rancher.own)
    for key in ("kubelet-arg", "kubelet-arg+"):
        if key in config.values or key in config.others:
            if key == "kubelet-arg":
                rancher.arguments.clear()  # without its + a list takes the place of those before
            rancher.arguments.update(_arguments(path, text, config, key))


def _arguments(path: str, text: str, config: ConfigFile, key: str) -> Iterator[tuple[str, Value]]:
    """``kubelet-arg``: a list of "name=value", or one of them."""
    if key in config.values:
        items = [(config.values[key].text, config.values[key].start, config.values[key].line)]
    else:
        node = config.others[key]
        nodes = node.value if isinstance(node, yaml.SequenceNode) else []
        scalars = [item for item in nodes if isinstance(item, yaml.ScalarNode)]
        items = [(item.value, item.start_mark.index, item.start_mark.line + 1) for item in scalars]
    for item, position, line in items:
        name, equals, value = item.partition("=")
        start = text.find(f"{name}={value}", max(position, 0))
        start += len(f"{name}=") if start >= 0 else 0
        name = name.lstrip("-")
        if equals:
            yield name, Value(path, start, start + len(value), value, line, key=name)


def _read_command_line(rancher: Rancher, service: Service) -> None:
    if service.exec_start is None:
        return
    path, line = service.exec_start
    text = service.texts[path]
    for match in _ARGUMENT.finditer(text, line.start, line.end):
        if match["name"]:
            rancher.arguments[match["name"]] = value_at(path, text, *match.span("value"))
        else:
            rancher.own = value_at(path, text, *match.span("own"))
