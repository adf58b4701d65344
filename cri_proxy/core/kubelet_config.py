"""How kubelet is configured: every place that can name the runtime's socket, and which of them wins.

Flags win over the files of --config-dir, these over the file of --config, that over the default. Among flags the
last wins, in the order in which the unit's ExecStart puts them together. The running kubelet's command line tells
which files it was given; units and environment files tell where its flags are written.

``survey`` works on what has been read so far; ``paths_wanted`` says what else it would like to see.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

import yaml

from cri_proxy.core.kubelet_text import (
    BadKubeletFile,
    ConfigFile,
    Setting,
    Value,
    find_pieces,
    read_config_file,
    read_environment,
    read_environment_file,
    read_unit,
    value_at,
    whole_variable,
)

#: What is read: the text of each path, None where there is none. A pattern ("DIR/**/*.conf") is there once read.
Files = Mapping[str, Optional[str]]

DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
K3S_ENDPOINT = "unix:///run/k3s/containerd/containerd.sock"
#: Where units are looked for; earlier ones win (systemd.unit(5)).
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
#: kubeadm keeps the node's own settings here, and merges them into --config's file at each upgrade.
INSTANCE_CONFIG = "/var/lib/kubelet/instance-config.yaml"
#: Variables that the environment files of packages leave to the operator.
EXTRA_VARIABLES = ("KUBELET_EXTRA_ARGS", "KUBELET_ARGS")
RANCHER = {
    "k3s": ("k3s.service", "k3s-agent.service"),
    "rke2": ("rke2-server.service", "rke2-agent.service"),
}
_ENDPOINT, _IMAGES = "container-runtime-endpoint", "image-service-endpoint"


@dataclass(frozen=True)
class Setup:
    """What there is. Values that are nowhere written are None."""

    endpoint: str
    winner: Optional[Value] = None
    #: Where kubeadm would take the endpoint from at the next upgrade.
    instance: Optional[Value] = None
    images: str = ""
    flags: Mapping[str, Value] = field(default_factory=dict)
    #: The variables ExecStart uses, each with the place of its value (None: it has none yet).
    variables: Mapping[str, Optional[Value]] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    config_file: Optional[str] = None
    #: "k3s" or "rke2": these start kubelet themselves.
    manager: str = ""
    #: Settings of the configuration files by key, the winning ones.
    config: Mapping[str, Value] = field(default_factory=dict)
    #: The endpoint on the command line of the running kubelet; None: it has no such flag, or does not run.
    running: Optional[str] = None
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


def paths_wanted(files: Files, argv: Sequence[str], unit: str = "kubelet.service") -> frozenset[str]:
    """What ``survey`` would look at, as far as what was read tells; call again with these until no more come."""
    wanted = {INSTANCE_CONFIG}
    for folder in UNIT_FOLDERS:
        wanted |= {f"{folder}/{unit}", f"{folder}/{unit}.d/*.conf"}
        wanted |= {f"{folder}/{name}" for names in RANCHER.values() for name in names}
    wanted |= {f"/etc/rancher/{manager}/config.yaml" for manager in RANCHER}
    service = _read_service(files, unit)
    wanted |= set(service.environment_files)
    flags = {**read_argv(argv), **{name: value.text for name, value in _flags(files, service).items()}}
    if flags.get("config"):
        wanted.add(flags["config"])
    if flags.get("config-dir"):
        wanted.add(f"{flags['config-dir'].rstrip('/')}/**/*.conf")
    return frozenset(wanted)


def survey(files: Files, argv: Sequence[str] = (), unit: str = "kubelet.service") -> Setup:
    """Which place wins. ``argv``: the running kubelet's command line, empty if none runs.

    :raises BadKubeletFile: a file of kubelet's cannot be understood.
    """
    running = read_argv(argv)
    service = _read_service(files, unit)
    manager = _manager(files, service)
    if manager:
        return _survey_rancher(files, manager, running)
    flags = _flags(files, service)
    config_file = flags["config"].text if "config" in flags else running.get("config")
    folder = flags["config-dir"].text if "config-dir" in flags else running.get("config-dir")
    config = _read_configs(files, config_file, folder)
    winner = flags.get(_ENDPOINT) or config.get("containerRuntimeEndpoint")
    images = flags.get(_IMAGES) or config.get("imageServiceEndpoint")
    instance = _read_config(files, INSTANCE_CONFIG).values.get("containerRuntimeEndpoint")
    return Setup(
        endpoint=(winner.text if winner else "") or DEFAULT_ENDPOINT,
        winner=winner,
        instance=instance,
        images=images.text if images else running.get(_IMAGES, ""),
        flags=flags,
        variables=service.used(files),
        environment_files=service.environment_files,
        config_file=config_file or None,
        config=config,
        running=running.get(_ENDPOINT),
        is_wrapped=bool(argv) and not service.starts_kubelet(files),
    )


# ---------------------------------------------------------------------- units


@dataclass
class _Service:
    """What a unit and its drop-ins come to."""

    exec_start: Optional[tuple[str, Setting]] = None
    environment: dict[str, Value] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()

    def assignments(self, files: Files) -> dict[str, Value]:
        """Every variable with the place that gives it its value: files win over Environment=."""
        found = dict(self.environment)
        for path in self.environment_files:
            text = files.get(path)
            if text is not None:
                spans = read_environment_file(text).items()
                found.update({name: value_at(path, text, start, end) for name, (start, end) in spans})
        return found

    def used(self, files: Files) -> dict[str, Optional[Value]]:
        """The variables on ExecStart's line, in their order."""
        if self.exec_start is None:
            return {}
        path, line = self.exec_start
        assignments = self.assignments(files)
        pieces = find_pieces(files[path] or "", line.start, line.end)
        return {name: assignments.get(name) for kind, name, _, _ in pieces if kind == "variable"}

    def starts_kubelet(self, files: Files) -> bool:
        """Whether ExecStart runs kubelet itself, so that its flags are those that are written there."""
        words = self.exec_start[1].value.split() if self.exec_start else []
        return any(word.lstrip("-@:+!").strip("\"'").rsplit("/", 1)[-1] == "kubelet" for word in words)


def _unit_texts(files: Files, unit: str) -> list[tuple[str, str]]:
    """The unit and its drop-ins, in the order systemd reads them."""
    main = [f"{folder}/{unit}" for folder in UNIT_FOLDERS if files.get(f"{folder}/{unit}") is not None]
    drop_ins: dict[str, str] = {}
    for folder in UNIT_FOLDERS:
        for path in files:
            if path.startswith(f"{folder}/{unit}.d/") and files[path] is not None:
                drop_ins.setdefault(posixpath.basename(path), path)
    paths = [*main[:1], *(drop_ins[name] for name in sorted(drop_ins))]
    return [(path, files[path] or "") for path in paths]


def _read_service(files: Files, unit: str) -> _Service:
    service = _Service()
    for path, text in _unit_texts(files, unit):
        for setting in read_unit(text):
            if setting.key == "ExecStart":
                service.exec_start = (path, setting) if setting.value else None
            elif setting.key == "EnvironmentFile":
                more = (setting.value.strip("\"'").lstrip("-"),) if setting.value else ()
                service.environment_files = (*service.environment_files, *more) if more else ()
            elif not setting.value:
                service.environment.clear()
            else:
                spans = read_environment(text, setting).items()
                places = {name: value_at(path, text, start, end) for name, (start, end) in spans}
                service.environment.update(places)
    return service


def _flags(files: Files, service: _Service) -> dict[str, Value]:
    """kubelet's flags with the place of each value; the last of several."""
    found: dict[str, Value] = {}
    if service.exec_start is None:
        return found
    assignments = service.assignments(files)

    def collect(path: str, start: int, end: int, depth: int) -> None:
        text = files[path] or ""
        for kind, name, first, last in find_pieces(text, start, end):
            if kind == "variable":
                value = assignments.get(name)
                # Values of variables are not expanded again; ExecStart's line is the only one that is.
                if value is not None and depth == 0:
                    collect(value.path, value.start, value.end, depth + 1)
                continue
            value = value_at(path, text, first, last)
            variable = whole_variable(value.text) if depth == 0 else None
            found[name] = assignments.get(variable, value) if variable else value

    path, line = service.exec_start
    collect(path, line.start, line.end, 0)
    return found


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


# ---------------------------------------------------------------------- k3s, rke2


def _manager(files: Files, service: _Service) -> str:
    if service.exec_start is not None:
        return ""
    for manager, units in RANCHER.items():
        paths = [f"{folder}/{name}" for folder in UNIT_FOLDERS for name in units]
        paths.append(f"/etc/rancher/{manager}/config.yaml")
        if any(files.get(path) is not None for path in paths):
            return manager
    return ""


def _survey_rancher(files: Files, manager: str, running: Mapping[str, str]) -> Setup:
    """k3s and rke2 give kubelet their own endpoint, and after it what ``kubelet-arg`` says."""
    path = f"/etc/rancher/{manager}/config.yaml"
    config = _read_config(files, path)
    winner = config.values.get(_ENDPOINT)
    node = next((config.others[key] for key in ("kubelet-arg", "kubelet-arg+") if key in config.others), None)
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    for item in items:
        if isinstance(item, yaml.ScalarNode) and item.value.startswith(f"{_ENDPOINT}="):
            winner = Value(path, -1, -1, item.value.partition("=")[2], item.start_mark.line + 1)
    return Setup(
        endpoint=(winner.text if winner else "") or K3S_ENDPOINT,
        winner=winner,
        manager=manager,
        config_file=path,
        running=running.get(_ENDPOINT),
    )


__all__ = ["BadKubeletFile", "Files", "Setup", "paths_wanted", "read_argv", "socket_of", "survey"]
