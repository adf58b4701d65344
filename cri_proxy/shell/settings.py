"""Configuration files on disk: which there are, the last one that loaded, and what the launcher must know of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from cri_proxy.core.config import BadConfig, Config, Loaded, read_config
from cri_proxy.core.config_text import Source

FALLBACK = Path("/etc/cri-resmgr/fallback.cfg")
CONFIG = Path("/etc/cri-resmgr/config.yaml")
LAST = "last-config.json"
#: What the launcher reads when nothing else can be imported: socket, extra sockets and runtime, as JSON.
ENDPOINTS = "endpoints.json"


@dataclass(frozen=True)
class Files:
    """The files to read, in order, and the settings of the command line. Missing optional files are skipped."""

    fallback: Optional[Path] = None
    config: Optional[Path] = None
    force: Optional[Path] = None
    overrides: Mapping[str, Any] = ()  # type: ignore[assignment]

    def sources(self) -> list[Source]:
        """:raises BadConfig: a file that was named explicitly cannot be read."""
        found = []
        for path, needed in (
            (self.fallback or FALLBACK, self.fallback is not None),
            (self.config or CONFIG, self.config is not None),
            (self.force, True),
        ):
            if path is None or (not needed and not path.exists()):
                continue
            try:
                found.append(Source(str(path), path.read_text()))
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise BadConfig([f"{path}: cannot be read: {reason}"]) from None
        if self.overrides:
            found.append(Source("command line", values=dict(self.overrides)))
        return found


@dataclass(frozen=True)
class Settings:
    """The configuration in force and, if it is not what the files say now, why not."""

    config: Config
    warnings: tuple[str, ...] = ()
    problem: str = ""


def load(files: Files, strict: bool = False) -> Settings:
    """Read the files.

    :raises BadConfig: they make no configuration.
    """
    loaded: Loaded = read_config(files.sources(), strict=strict)
    return Settings(loaded.config, loaded.warnings)


def load_or_last(files: Files) -> Settings:
    """Read the files; if they are invalid use the last configuration that loaded, else the defaults.

    ``problem`` says what is wrong; with the defaults in force it starts with "no configuration".
    """
    try:
        return load(files)
    except BadConfig as error:
        problem = "; ".join(error.errors)
    override = [Source("command line", values=dict(files.overrides))] if files.overrides else []
    defaults = read_config(_valid(override)).config
    try:
        texts = json.loads((Path(defaults["state.directory"]) / LAST).read_text())
        kept = [Source(name, text, "last one that loaded") for name, text in texts]
        return Settings(read_config([*kept, *override]).config, problem=f"the last valid configuration is in force: {problem}")
    except (OSError, ValueError, TypeError, BadConfig):
        return Settings(defaults, problem=f"no configuration: {problem}")


def _valid(sources: Sequence[Source]) -> Sequence[Source]:
    """Command-line settings, if they are valid by themselves."""
    try:
        read_config(sources)
    except BadConfig:
        return ()
    return sources


def keep(files: Files, config: Config, runtime: str) -> Optional[str]:
    """Remember a configuration that loaded, for a start with a broken one and for the launcher.

    Returns a sentence if that was not possible.
    """
    folder = Path(config["state.directory"])
    endpoints = {
        "socket": config["relay.socket"],
        "extra_sockets": list(config["relay.extra_sockets"]),
        "runtime": runtime,
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts = [(source.name, source.text) for source in files.sources() if source.values is None]
        _replace(folder / LAST, json.dumps(texts))
        _replace(folder / ENDPOINTS, json.dumps(endpoints))
    except (OSError, BadConfig) as error:
        return f"{folder}: the configuration in force could not be kept: {error}"
    return None


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)
