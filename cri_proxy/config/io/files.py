"""Configuration files on disk: which there are, the last that loaded, and what is kept of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from cri_api.printable import printable
from cri_proxy import effects
from cri_proxy.bounded_files import SMALL_FILE_S, read_bytes, within
from cri_proxy.config.cluster_policy import ClusterPolicy
from cri_proxy.config.config import BadConfig, Config, LoadedConfig, read_config
from cri_proxy.config.constants import VARIABLE, BadConstants, Constants, read_constants
from cri_proxy.config.io.cluster_policy_file import NOTHING, StoredPolicy, read_kept
from cri_proxy.config.options.table import OPTIONS, SECTIONS
from cri_proxy.machine_root import below, machine_root
from cri_proxy.text.sources import MAX_CHARACTERS, BadText, SettingsSource, read_entries
from policies.frozen import frozen

Result = TypeVar("Result")

FALLBACK = Path("/etc/cri-resmgr/fallback.cfg")
CONFIG = Path("/etc/cri-resmgr/config.yaml")
LAST = "last-config.json"
#: The origin of a mode that no file, no policy and no command has set, but what was installed.
INSTALLED = "default of the install"
#: What ``passthrough.py`` reads where nothing else can be imported: our sockets and the runtime's, as JSON.
ENDPOINTS = "endpoints.json"
#: The most of a file that is read: characters of UTF-8 have up to four bytes.
MAX_BYTES = 4 * MAX_CHARACTERS
#: How long reading the files may take, seconds: callers wait at a start.
ANSWER_S = 3.0
#: What is believed of a configuration that is otherwise invalid: without its sockets neither side finds the other,
#: and what needs a restart would be wrong until there is one.
ESSENTIAL = frozenset(
    [
        "relay.socket",
        "relay.extra_sockets",
        "relay.runtime_endpoint",
        "relay.image_endpoint",
        "control.socket",
        "control.view_socket",
        "control.view_group",
        "state.directory",
        "topology.cgroup_root",
        "affinity.socket",
        "nri.host",
        "nri.socket",
        "nri.plugin_path",
        "nri.plugin_config_path",
    ]
)


def told_constants() -> Constants:
    """The constants of this program, with what the environment changes of them; it ends where that cannot be read."""
    try:
        return read_constants(os.environ.get(VARIABLE, ""))
    except BadConstants as error:
        raise SystemExit(printable(f"cri-resmgr: {error}")) from None


@frozen
class Layers:
    """The sources of a configuration in their order; the cluster's policy comes between the two parts."""

    below: tuple[SettingsSource, ...]
    above: tuple[SettingsSource, ...] = ()
    constants: Constants = field(default_factory=Constants)

    def with_policy(self, policy: Optional[ClusterPolicy]) -> list[SettingsSource]:
        """All of them, with the policy at its place."""
        return [*self.below, *([] if policy is None else [policy.source]), *self.above]

    def read(self, policy: Optional[ClusterPolicy] = None, strict: bool = False) -> LoadedConfig:
        """The configuration they make.

        :raises BadConfig: as ``read_config``.
        """
        return read_config(self.with_policy(policy), strict=strict, constants=self.constants)


@frozen
class Files:
    """The files to read, in order, and the command line's settings. Missing optional files are skipped."""

    fallback: Optional[Path] = None
    config: Optional[Path] = None
    force: Optional[Path] = None
    overrides: Mapping[str, Any] = ()  # type: ignore[assignment]
    #: What is told in other ways than by files; it counts after config.yaml, and before what is forced.
    told: Callable[[], list[SettingsSource]] = list
    #: The mode where nothing else sets one; "" = that of the table of options.
    first_mode: str = ""
    #: What the usual places of files, sockets and state are below.
    root: Path = field(default_factory=machine_root)
    constants: Constants = field(default_factory=told_constants)

    def layers(self) -> Layers:
        """:raises BadConfig: a file that was named explicitly cannot be read."""
        found = [read_source(path) for path in self._paths()]
        at = len(found) - (self.force is not None)
        below = (*self._defaults(), *found[:at], *self.told())
        return Layers(below, (*found[at:], *self._command_line()), self.constants)

    def layers_with(self, source: SettingsSource) -> Layers:
        """The same with one text in the place of the file it is named after; else in that of config.yaml.

        :raises BadConfig: one of the others cannot be read.
        """
        paths = self._paths()
        named = [path for path in paths if path.resolve() == Path(source.name)]
        replaced = named[0] if named else self.config or self._usual(CONFIG)
        found = [source if path == replaced else read_source(path) for path in paths]
        if replaced is None:  # it comes after the fallback, and before what is forced
            found.insert(len(found) - (self.force is not None), source)
        at = len(found) - (self.force is not None)
        below = (*self._defaults(), *found[:at])
        return Layers(below, (*found[at:], *self._command_line()), self.constants)

    def _paths(self) -> list[Path]:
        wanted = [self.fallback or self._usual(FALLBACK), self.config or self._usual(CONFIG), self.force]
        return [path for path in wanted if path is not None]

    def _usual(self, place: Path) -> Optional[Path]:
        """A usual place, unless nothing is there. Where that may not be told it is something, and reading it fails."""
        path = below(self.root, place)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            pass
        return path

    def _defaults(self) -> list[SettingsSource]:
        """Below another root than the machine's: our own paths, where nothing sets them."""
        if self.root == Path("/"):
            return self.installed()
        values: dict[str, Any] = {}
        for option in OPTIONS:
            if option.beside:
                continue  # it follows the other one
            if isinstance(option.default, str) and "/cri-resmgr" in option.default:
                values[option.key] = str(below(self.root, option.default))
            elif "/cri-resmgr" in str(option.default):
                values[option.key] = [str(below(self.root, path)) for path in option.default]
        return [*self.installed(), SettingsSource("root", values=values)]

    def installed(self) -> list[SettingsSource]:
        """What the install sets, before all that files say."""
        return [SettingsSource(INSTALLED, values={"relay.mode": self.first_mode})] if self.first_mode else []

    def _command_line(self) -> list[SettingsSource]:
        return [SettingsSource("command line", values=dict(self.overrides))] if self.overrides else []

    def essentials(self) -> list[SettingsSource]:
        """Settings of ``ESSENTIAL`` that are valid by themselves, whatever else is wrong with the files."""
        sources: list[SettingsSource] = self._defaults()
        for path in self._paths():
            with contextlib.suppress(BadConfig):
                sources.append(read_source(path))
        found: list[SettingsSource] = []
        for source in [*sources, *self._command_line()]:
            try:
                entries, _ = read_entries(source, SECTIONS)
            except BadText:
                continue
            for entry in entries:
                if entry.key in ESSENTIAL and isinstance(entry.raw, (str, tuple)):
                    setting = SettingsSource(entry.origin, values={entry.key: entry.raw})
                    found += [setting] if _is_valid([*found, setting]) else []
        return found


def read_source(path: Path, is_typed: bool = False) -> SettingsSource:
    """One file.

    ``is_typed``: a terminal waits for it; it may be a pipe, as ``<(command)`` is.

    :raises BadConfig: it cannot be read.
    """
    try:
        data = path.read_bytes() if is_typed else read_bytes(path, MAX_BYTES)
        return SettingsSource(str(path), data.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadConfig([f"{path}: cannot be read: {reason}"]) from None


def _is_valid(sources: Sequence[SettingsSource]) -> bool:
    try:
        read_config(sources)
    except BadConfig:
        return False
    return True


@frozen
class ConfigInForce:
    """The configuration in force and, if it is not what the files say now, why not.

    ``sources`` are what it was made of; ``is_default``: nothing could be read but perhaps the essentials.
    """

    config: Config
    warnings: tuple[str, ...] = ()
    problem: str = ""
    sources: tuple[SettingsSource, ...] = ()
    is_default: bool = False
    #: The cluster's policy as it is kept; one with a problem is not in the configuration.
    cluster: StoredPolicy = NOTHING


def load(files: Files, strict: bool = False, running: StoredPolicy = NOTHING) -> ConfigInForce:
    """Read the files. ``running``: the cluster's policy in force, which stays if the disk does not answer.

    :raises BadConfig: they make no configuration.
    """
    layers = _answered(files.layers)
    loaded = layers.read(strict=strict)
    loaded, kept = with_kept_policy(layers, loaded, running=running)
    return ConfigInForce(
        loaded.config, loaded.warnings, sources=tuple(layers.with_policy(None)), cluster=kept
    )


def with_kept_policy(
    layers: Layers, loaded: LoadedConfig, kept: Optional[StoredPolicy] = None, running: StoredPolicy = NOTHING
) -> tuple[LoadedConfig, StoredPolicy]:
    """A configuration with the cluster's policy among its sources, if that can be; the policy never costs the rest.

    ``loaded``: without it. ``kept``: the policy, in the place of the one on disk. ``running``: what is used where the
    disk does not answer.
    """
    if kept is None:
        folder = Path(loaded.config["state.directory"])
        try:
            kept = within(SMALL_FILE_S, lambda: read_kept(folder))
        except TimeoutError:
            problem = f"{folder}: the cluster's policy cannot be read: the disk has not answered in {SMALL_FILE_S:g} s"
            kept = replace(running, problem=problem, is_unread=True)
    if kept.policy is None:
        return loaded, kept
    try:
        return layers.read(kept.policy), kept
    except BadConfig as error:
        return loaded, StoredPolicy(problem=f"{kept.policy.title} is not used: {error.errors[0]}")


def load_or_last(files: Files) -> ConfigInForce:
    """Read the files; if they are invalid use the last configuration that loaded, else the defaults."""
    try:
        return load(files)
    except BadConfig as error:
        return last_or_default(files, error)


def last_or_default(files: Files, bad: BadConfig) -> ConfigInForce:
    """What is in force in the place of files that make no configuration: the last one that loaded, or the defaults."""
    essentials: list[SettingsSource] = []
    with contextlib.suppress(BadConfig):
        essentials = _answered(files.essentials)
    defaults = Layers((*files.installed(), *essentials), constants=files.constants).read().config
    try:
        layers = _answered(lambda: last_layers(files, Path(defaults["state.directory"])))
        loaded, policy = with_kept_policy(layers, layers.read())
        problem = f"the last configuration that loaded is in force: {_reason(bad)}"
        sources = tuple(layers.with_policy(None))
        return ConfigInForce(loaded.config, problem=problem, sources=sources, cluster=policy)
    except (OSError, ValueError, TypeError, BadConfig):
        return ConfigInForce(defaults, problem=default_problem(bad), is_default=True)


def last_layers(files: Files, folder: Path) -> Layers:
    """The sources of the last configuration that loaded, as a state directory has them.

    :raises OSError, ValueError, TypeError: there is none that can be read.
    """
    texts = json.loads(read_bytes(folder / LAST, MAX_BYTES * 4))
    kept = [SettingsSource(name, text, "last one that loaded") for name, text in texts]
    forced = [source for source in kept if source.name == str(files.force)]
    below = (*files.installed(), *(source for source in kept if source not in forced))
    return Layers(below, (*forced, *files._command_line()), files.constants)


def _answered(read: Callable[[], Result]) -> Result:
    """What was read, if the disk answers.

    :raises BadConfig: it does not; or as ``read``.
    """
    try:
        return within(ANSWER_S, read)
    except TimeoutError:
        sentence = f"the configuration could not be read: the disk has not answered in {ANSWER_S:g} s"
        raise BadConfig([sentence]) from None


def default_problem(error: BadConfig) -> str:
    """Why nothing is placed while there is no configuration, in one sentence."""
    return f"containers are not placed until there is a valid configuration: {_reason(error)}"


def reload_problem(error: BadConfig, is_default: bool) -> str:
    """Why a reload has changed nothing, in one sentence."""
    return default_problem(error) if is_default else f"the running configuration stays: {_reason(error)}"


def _reason(error: BadConfig) -> str:
    more = len(error.errors) - 1
    return error.errors[0] + (f" (and {more} more; see: cri-resmgr config check)" if more else "")


def keep(settings: ConfigInForce, folder: Path, runtime: str) -> Optional[str]:
    """Remember a configuration that loaded, for a start with a broken one and for the launcher.

    Returns a sentence if that was not possible.
    """
    config = settings.config
    endpoints = {
        "socket": config["relay.socket"],
        "extra_sockets": list(config["relay.extra_sockets"]),
        "runtime": config["relay.runtime_endpoint"] or runtime,
    }
    texts = [(source.name, source.text) for source in settings.sources if source.values is None]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(folder / LAST, json.dumps(texts))
        replace_text(folder / ENDPOINTS, json.dumps(endpoints))
    except OSError as error:
        reason = error.strerror or str(error)
        return f"{folder}: the configuration could not be kept for a start without one: {reason}"
    return None


def replace_text(path: Path, text: str) -> None:
    """A file's text from now on, or, if it cannot be written, the one it had."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    effects.before(effects.STATE, path.name)
    os.replace(beside, path)
