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

from cri_proxy.kubelet.edits import BadKubeletFile, ConfigFile, Value, read_config_file
from cri_proxy.kubelet.rancher import K3S_ENDPOINT, Rancher, find_rancher, rancher_paths
from cri_proxy.kubelet.units import Files, read_service, unit_paths, with_variables

DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
#: kubeadm keeps the node's own settings here, and merges them into --config's file at each upgrade.
INSTANCE_CONFIG = "/var/lib/kubelet/instance-config.yaml"
#: Variables that the environment files of packages leave to the operator.
EXTRA_VARIABLES = ("KUBELET_EXTRA_ARGS", "KUBELET_ARGS")
_UNIT = "kubelet.service"
_ENDPOINT, _IMAGES = "container-runtime-endpoint", "image-service-endpoint"


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
