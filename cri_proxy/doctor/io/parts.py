"""Reads what the doctor must know of configuration, daemon and sockets, and of runtime and kubelet. Changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from cri_api.control import ControlError
from cri_api.waiting import wait_within
from cri_proxy.config.config import BadConfig, Config
from cri_proxy.config.io import files as settings
from cri_proxy.control import DaemonAbsent, NoPermission, ask
from cri_proxy.doctor.facts import ConfigFacts, DaemonFacts, KubeletFacts, RuntimeFacts
from cri_proxy.doctor.io.host import read_file_facts
from cri_proxy.kubelet.io.files import KubeletFiles
from cri_proxy.kubelet.io.service import is_connected, look, our_sockets
from cri_proxy.kubelet.settings import socket_of
from cri_proxy.relay.status import Code, RpcError
from cri_proxy.runtime import WELL_KNOWN, NoRuntime, RuntimeClient, discover

#: How long the daemon and the runtime may take for an answer; a longer examination gives them this part of it.
ANSWER_S, ANSWER_PART = 1.0, 0.2
#: Of /proc/net/unix: the socket is listened on (include/uapi/linux/net.h, __SO_ACCEPTCON).
_LISTENS = 0x10000
_NRI_SOCKET = "run/nri/nri.sock"
#: Keys of kubelet's configuration that matter here, with their flags.
_KUBELET_KEYS: Mapping[str, str] = {
    "cgroupDriver": "cgroup-driver",
    "cpuManagerPolicy": "cpu-manager-policy",
    "topologyManagerPolicy": "topology-manager-policy",
    "memoryManagerPolicy": "memory-manager-policy",
    "cpuCFSQuota": "cpu-cfs-quota",
    "reservedSystemCPUs": "reserved-cpus",
}


@dataclass(frozen=True)
class Places:
    """``root`` is for tests, ``proc`` is where processes are. What the configuration names is taken as it says.

    ``answer_s``: how long the daemon and the runtime may take for an answer.
    """

    root: Path
    proc: Path
    config: Config
    control: Path
    answer_s: float = ANSWER_S

    def at(self, key: str) -> Path:
        """Where a path of the configuration is: below the root, unless it is set."""
        path = str(self.config[key])
        return self.root / path.lstrip("/") if self.config.origins[key] == "default" else Path(path)


# ---------------------------------------------------------------------- configuration


def find_files(root: Path, config_file: Optional[Path]) -> settings.Files:
    """The files the daemon reads, below a root."""
    return settings.Files(config=config_file, root=root)


def read_config_facts(files: settings.Files) -> tuple[ConfigFacts, Config]:
    """What the files say, and the configuration in force without them being right."""
    try:
        loaded = settings.load(files)
    except BadConfig as error:
        config = settings.last_or_default(files, error).config
        return ConfigFacts((), error.errors, error.warnings), config
    files_read = tuple(source.name for source in loaded.sources if source.values is None)
    return ConfigFacts(files_read, (), loaded.warnings), loaded.config


def compared_with_daemon(facts: ConfigFacts, places: Places) -> ConfigFacts:
    """Which keys the running daemon has other values of; only where it reads the same files."""
    try:
        rows = ask(places.control, "config", timeout_s=places.answer_s)
    except (DaemonAbsent, ControlError):
        return facts
    names = {row["origin"].rsplit(":", 1)[0] for row in rows if row["origin"].startswith("/")}
    others = tuple(sorted(names - set(facts.files)))
    if others or facts.errors:
        return replace(facts, others=others)
    ours = {key: value for key, value, _ in places.config.show()}
    changed = tuple(
        row["key"]
        for row in rows
        if row["value"] != ours.get(row["key"])
        and row["origin"] not in ("command line", "last one that loaded", settings.INSTALLED)
    )
    return replace(facts, changed=changed)


# ---------------------------------------------------------------------- daemon


def read_daemon_facts(places: Places) -> DaemonFacts:
    """Asks the daemon. Nothing connects to kubelet's sockets: that would start a daemon that is down."""
    listening = _listening(places.root / "proc/net/unix")
    status: Optional[Mapping[str, Any]] = None
    problem, hint, is_hidden = "", "", False
    try:
        status = ask(places.control, "status", timeout_s=places.answer_s)
    except DaemonAbsent as error:
        problem, hint = str(error), error.hint
    except NoPermission as error:
        problem, hint, is_hidden = str(error), "sudo cri-resmgr doctor", True
    except ControlError as error:
        problem, hint = str(error), "journalctl -u cri-resource-manager -n 50"
    if status is not None:
        paths = [Path(path) for path in status["sockets"]]
    else:
        paths = [places.at("relay.socket")]
    sockets = tuple(
        (read_file_facts(path), listening is None or socket_of(str(path)) in listening) for path in paths
    )
    return DaemonFacts(read_file_facts(places.control), status, problem, hint, is_hidden, sockets)


def read_rows(places: Places) -> tuple[Mapping[str, Any], ...]:
    """The placements; none where the daemon has none to tell."""
    try:
        return tuple(ask(places.control, "placements", timeout_s=places.answer_s))
    except (DaemonAbsent, ControlError):
        return ()


def _listening(net_unix: Path) -> Optional[frozenset[str]]:
    """The paths of unix sockets that are listened on, in the spelling of ``socket_of``; None: not known."""
    try:
        lines = net_unix.read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return None
    fields = (line.split(None, 7) for line in lines)
    return frozenset(socket_of(f[7]) for f in fields if len(f) == 8 and int(f[3], 16) & _LISTENS)


# ---------------------------------------------------------------------- runtime


def read_runtime_facts(places: Places, known: str) -> RuntimeFacts:
    """``known``: the socket the daemon uses; "" = look for it as the daemon would."""
    nri, nri_socket = places.root / _NRI_SOCKET, ""
    with contextlib.suppress(PermissionError):  # a note the less
        nri_socket = str(nri) if read_file_facts(nri).kind == "socket" else ""
    try:
        candidates = tuple(str(places.root / path.lstrip("/")) for path in WELL_KNOWN)
        path = known or discover(str(places.config["relay.runtime_endpoint"]), candidates)
    except NoRuntime as error:
        return RuntimeFacts("", read_file_facts(places.root / "nowhere"), str(error), nri_socket=nri_socket)
    facts = RuntimeFacts(path, read_file_facts(Path(path)), nri_socket=nri_socket)
    if facts.socket.kind != "socket":
        what = f"is a {facts.socket.kind}" if facts.socket.kind else "is not there"
        return replace(facts, problem=f"the runtime's socket {path} {what}")
    return asyncio.run(_asked(facts, places.answer_s, bool(places.config["dra.enabled"])))


async def _asked(facts: RuntimeFacts, answer_s: float, asks_for_cdi: bool) -> RuntimeFacts:
    runtime = RuntimeClient(facts.path)
    asked = f"the runtime at {facts.path}"
    try:
        await wait_within(answer_s, runtime.identify())
        facts = replace(facts, name=runtime.name, version=runtime.version, api=runtime.api)
        # One that is stuck may still say its name.
        asked = f"ListContainers of {asked}"
        await wait_within(answer_s, runtime.containers())
        asked = ""
        driver = await wait_within(answer_s, _cgroup_driver(runtime))
        facts = replace(facts, cgroup_driver=driver)
        gives_cdi = await wait_within(answer_s, _gives_cdi(runtime)) if asks_for_cdi else None
        return replace(facts, gives_cdi=gives_cdi)
    except asyncio.TimeoutError:
        reason = f"has not answered within {answer_s:g} s"
    except RpcError as error:
        reason = f"does not answer: {error.details}"
    finally:
        await runtime.close()
    return replace(facts, problem=f"{asked} {reason}") if asked else facts


async def _cgroup_driver(runtime: RuntimeClient) -> str:
    """By RuntimeConfig (CRI of Kubernetes 1.28), else from containerd's own words."""
    from cri_api import runtime_v1_pb2 as cri

    try:
        got = await runtime.call("RuntimeConfig", cri.RuntimeConfigRequest(), cri.RuntimeConfigResponse)
        if got.HasField("linux"):
            return str(cri.CgroupDriver.Name(got.linux.cgroup_driver)).lower()
    except RpcError as error:
        if error.code != Code.UNIMPLEMENTED:
            raise
    told = await runtime.call("Status", cri.StatusRequest(verbose=True), cri.StatusResponse)
    return _driver_of(told.info.get("config", ""))


async def _gives_cdi(runtime: RuntimeClient) -> Optional[bool]:
    """By containerd's own words: ``enable_cdi`` of its CRI plugin."""
    from cri_api import runtime_v1_pb2 as cri

    told = await runtime.call("Status", cri.StatusRequest(verbose=True), cri.StatusResponse)
    try:
        value = json.loads(told.info.get("config", ""))["enableCDI"]
    except (ValueError, LookupError, TypeError):
        return None
    return value if isinstance(value, bool) else None


def _driver_of(config: str) -> str:
    try:
        section = json.loads(config)["containerd"]
        options = section["runtimes"][section.get("defaultRuntimeName") or "runc"]["options"]
        return "systemd" if options.get("SystemdCgroup") else "cgroupfs"
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


# ---------------------------------------------------------------------- kubelet


def read_kubelet_facts(places: Places) -> KubeletFacts:
    """:raises BadKubeletFile: a file of kubelet's cannot be understood."""
    found = look(KubeletFiles(places.root, Path(places.config["state.directory"])), places.proc)
    status = found.status(our_sockets(places.config))
    connected = is_connected(status.pid, status.endpoint) if status.pid is not None else None
    kubelets = dict(_kubelet_settings(found.setup.flags, found.setup.config))
    return KubeletFacts(status, kubelets, connected, found.is_there)


def _kubelet_settings(flags: Mapping[str, Any], config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, flag in _KUBELET_KEYS.items():
        value = flags.get(flag) or config.get(key)
        if value is not None:
            yield key, value.text.strip("'\"")
