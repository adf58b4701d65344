"""How kubelet is configured: every place that can name the runtime's socket, and which of them wins.

Flags win over the files of --config-dir, these over the file of --config, that over the default. Among flags the
last wins, in the order in which the unit's ExecStart puts them together. The running kubelet's command line tells
which files it was given; units and environment files tell where its flags are written.

``survey`` works on what has been read so far; ``paths_wanted`` says what else it would like to see.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

import yaml

from cri_proxy.kubelet.edits import BadKubeletFile, ConfigFile, Value, read_config_file, value_at
from cri_proxy.kubelet.units import Files, Service, read_service, unit_paths, with_variables

DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
#: kubeadm keeps the node's own settings here, and merges them into --config's file at each upgrade.
INSTANCE_CONFIG = "/var/lib/kubelet/instance-config.yaml"
#: Variables that the environment files of packages leave to the operator.
EXTRA_VARIABLES = ("KUBELET_EXTRA_ARGS", "KUBELET_ARGS")
_UNIT = "kubelet.service"
_ENDPOINT, _IMAGES = "container-runtime-endpoint", "image-service-endpoint"
#: Units of k3s and rke2, a server's and an agent's.
_RANCHER_UNITS = {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}
#: rke2 comes with both units; the one that is started at boot has a link here.
_WANTED = "/etc/systemd/system/multi-user.target.wants"
#: Of ExecStart: an argument of kubelet's as the installer writes it, or the endpoint they give it themselves.
_RANCHER_ARGUMENT = re.compile(
    r"--kubelet-arg(?:=|[\s\"'\\]+)[\"']?(?:--)?(?P<name>[\w-]+)=(?P<value>[^\s\"'\\]*)"
    r"|--container-runtime-endpoint(?:=|[\s\"'\\]+)(?P<own>[^\s\"'\\]+)"
)
K3S_ENDPOINT = "unix:///run/k3s/containerd/containerd.sock"


@dataclass(frozen=True)
class Setup:
    """What there is. Values that are nowhere written are None."""

    endpoint: str
    winner: Optional[Value] = None
    #: Where kubeadm would take the endpoint from at the next upgrade.
    instance: Optional[Value] = None
    images: str = ""
    #: Where ``images`` is written; None also if only the command line of the running kubelet has it.
    images_at: Optional[Value] = None
    flags: Mapping[str, Value] = field(default_factory=dict)
    #: The variables of ExecStart's that can take flags, each with the place of its value (None: it has none yet).
    variables: Mapping[str, Optional[Value]] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    config_file: Optional[str] = None
    #: "k3s" or "rke2": these start kubelet themselves.
    manager: str = ""
    #: What is restarted for kubelet to be.
    unit: str = "kubelet"
    #: Settings of the configuration files by key, the winning ones.
    config: Mapping[str, Value] = field(default_factory=dict)
    #: The endpoint on the command line of the running kubelet; None: it has no such flag, or does not run.
    running: Optional[str] = None
    #: The --config of the running kubelet, where its files name another one; else "".
    other_config: str = ""
    #: kubelet's flags are put together by something that is no unit: a flag of ours may not get there.
    is_wrapped: bool = False

    @property
    def cpu_manager(self) -> str:
        return self._setting("cpu-manager-policy", "cpuManagerPolicy")

    @property
    def topology_manager(self) -> str:
        return self._setting("topology-manager-policy", "topologyManagerPolicy")

    def _setting(self, flag: str, key: str) -> str:
        found = self.flags.get(flag) or self.config.get(key)
        return found.text if found else ""


def socket_of(endpoint: str) -> str:
    """The socket an endpoint means, in one spelling: no unix://, no doubled slashes, /run for /var/run."""
    path = endpoint.strip()
    for scheme in ("unix://", "unix:"):
        if path.startswith(scheme):
            path = path[len(scheme) :]
            break
    path = posixpath.normpath("/" + path.lstrip("/")) if path else ""
    return path[len("/var") :] if path.startswith("/var/run/") else path


def read_argv(argv: Sequence[str]) -> dict[str, str]:
    """The flags of a kubelet's command line that matter here."""
    found = {}
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            continue
        if not equals:
            value = argv[position + 1] if position + 1 < len(argv) else ""
        found[name[2:]] = value
    return found


def paths_wanted(files: Files, argv: Sequence[str]) -> frozenset[str]:
    """What ``survey`` would look at, as far as what was read tells; call again with these until no more come."""
    wanted = {INSTANCE_CONFIG, *unit_paths(_UNIT), *rancher_paths()}
    service = read_service(files, _UNIT)
    wanted |= set(service.environment_files)
    config_file, folder = _configuration(service.flags(files), service.assignments(files), read_argv(argv))
    if config_file:
        wanted.add(config_file)
    if folder:
        wanted.add(f"{folder.rstrip('/')}/**/*.conf")
    return frozenset(wanted)


def survey(files: Files, argv: Sequence[str] = ()) -> Setup:
    """Which place wins. ``argv``: the running kubelet's command line, empty if none runs.

    :raises BadKubeletFile: a file of kubelet's cannot be understood.
    """
    running = read_argv(argv)
    service = read_service(files, _UNIT)
    rancher = None if service.exec_start else find_rancher(files)
    if rancher is not None:
        return _setup_of(rancher, running)
    flags = service.flags(files)
    config_file, folder = _configuration(flags, service.assignments(files), running)
    config = _read_configs(files, config_file, folder)
    winner = flags.get(_ENDPOINT) or config.get("containerRuntimeEndpoint")
    images = flags.get(_IMAGES) or config.get("imageServiceEndpoint")
    instance = _read_config(files, INSTANCE_CONFIG).values.get("containerRuntimeEndpoint")
    return Setup(
        endpoint=(winner.text if winner else "") or DEFAULT_ENDPOINT,
        winner=winner,
        instance=instance,
        images=images.text if images else running.get(_IMAGES, ""),
        images_at=images,
        flags=flags,
        variables=service.used(files),
        environment_files=service.environment_paths(files),
        config_file=config_file or None,
        config=config,
        running=running.get(_ENDPOINT),
        other_config=running["config"] if running.get("config", config_file) != config_file else "",
        is_wrapped=bool(argv) and not service.starts_kubelet(),
    )


def _setup_of(rancher: Rancher, running: Mapping[str, str]) -> Setup:
    winner, images = rancher.arguments.get(_ENDPOINT, rancher.own), rancher.arguments.get(_IMAGES)
    return Setup(
        endpoint=(winner.text if winner else "") or K3S_ENDPOINT,
        winner=winner,
        images=images.text if images else "",
        images_at=images,
        flags=rancher.arguments,
        config_file=rancher.config_file,
        manager=rancher.name,
        unit=rancher.unit,
        running=running.get(_ENDPOINT),
    )


def _configuration(
    flags: Mapping[str, Value], assignments: Mapping[str, Value], running: Mapping[str, str]
) -> tuple[Optional[str], Optional[str]]:
    """The paths of --config and --config-dir: as the files say, else as the running kubelet was given them."""

    def named(flag: str) -> Optional[str]:
        value = flags.get(flag)
        return with_variables(value.text, assignments) if value else running.get(flag)

    return named("config"), named("config-dir")


# ---------------------------------------------------------------------- configuration files


def _read_config(files: Files, path: Optional[str]) -> ConfigFile:
    text = files.get(path) if path else None
    return read_config_file(path or "", text or "")


def _read_configs(files: Files, config_file: Optional[str], folder: Optional[str]) -> dict[str, Value]:
    """The values of --config's file and of the drop-ins beside it, the winning ones."""
    found = dict(_read_config(files, config_file).values)
    if folder:
        prefix = folder.rstrip("/") + "/"
        inside = [path for path in files if path.startswith(prefix) and "*" not in path]
        for path in sorted((p for p in inside if p.endswith(".conf")), key=lambda p: p.split("/")):
            found.update(_read_config(files, path).values)
    return found


# ---------------------------------------------------------------------- k3s and rke2


@dataclass
class Rancher:
    """k3s or rke2 (``name``), which start kubelet themselves. ``unit``: what is restarted.

    They give kubelet an endpoint of their own, and after it what ``kubelet-arg`` says: in config.yaml, in the files of
    config.yaml.d in their order, on the command line in their unit; later ones win. ``arguments``: these flags with their
    places.
    """

    name: str
    unit: str
    config_file: str
    #: The endpoint they give kubelet, where ``arguments`` have none.
    own: Optional[Value] = None
    arguments: dict[str, Value] = field(default_factory=dict)


def rancher_paths() -> set[str]:
    """What ``find_rancher`` looks at."""
    found = set()
    for name, units in _RANCHER_UNITS.items():
        found |= {f"/etc/rancher/{name}/config.yaml", f"/etc/rancher/{name}/config.yaml.d/*.yaml"}
        for unit in units:
            found |= {*unit_paths(f"{unit}.service"), f"{_WANTED}/{unit}.service"}
    return found


def find_rancher(files: Files) -> Optional[Rancher]:
    """The one that is installed here, if one is.

    :raises BadKubeletFile: a file of its configuration cannot be understood.
    """
    for name, units in _RANCHER_UNITS.items():
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
    for match in _RANCHER_ARGUMENT.finditer(text, line.start, line.end):
        if match["name"]:
            rancher.arguments[match["name"]] = value_at(path, text, *match.span("value"))
        else:
            rancher.own = value_at(path, text, *match.span("own"))


__all__ = [
    "K3S_ENDPOINT",
    "BadKubeletFile",
    "Files",
    "Setup",
    "paths_wanted",
    "read_argv",
    "socket_of",
    "survey",
]
