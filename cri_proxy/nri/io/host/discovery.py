"""Looks for plugins to be launched, and for their configurations."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Optional, Union

from cri_proxy.nri.discovery import (
    WASM,
    DirectoryEntry,
    PassedOver,
    Preregistered,
    config_names,
    insecurity,
    judge,
)

#: A configuration goes to the plugin in one message.
MOST_CONFIG_BYTES = 1 << 20


def discover(plugin_path: str, config_path: str) -> tuple[list[Preregistered], list[PassedOver]]:
    """The plugins of a directory in order, and what is none. Either path may be "", or of nothing."""
    if not plugin_path or not os.path.isdir(plugin_path):
        return [], []
    problem = _unsafe_way(Path(plugin_path))
    if problem:
        return [], [PassedOver(plugin_path, problem)]
    found: list[Preregistered] = []
    passed_over: list[PassedOver] = []
    for name in sorted(os.listdir(plugin_path)):
        judged = judge(_entry(Path(plugin_path, name)), os.geteuid())
        if isinstance(judged, Preregistered):
            judged = _with_config(judged, config_path)
        if isinstance(judged, Preregistered):
            found.append(judged)
        elif judged.reason:
            passed_over.append(judged)
    return found, passed_over


def _entry(path: Path) -> DirectoryEntry:
    try:
        status = path.stat()
        head = b""
        problem = ""
        if path.is_file():
            # Through a link: the file it leads to, and every directory on the way.
            problem = _unsafe_way(path.resolve().parent)
            with path.open("rb") as file:
                head = file.read(len(WASM))
    except OSError as error:
        return DirectoryEntry(path.name, str(path), 0, 0, problem=error.strerror or str(error))
    return DirectoryEntry(path.name, str(path), status.st_mode, status.st_uid, head, problem)


def _with_config(plugin: Preregistered, config_path: str) -> Union[Preregistered, PassedOver]:
    for name in config_names(plugin) if config_path else ():
        path = Path(config_path, name)
        try:
            status = path.stat()
            unsafe = insecurity(status.st_mode, status.st_uid, os.geteuid()) or _unsafe_way(
                path.resolve().parent
            )
            if unsafe:
                return PassedOver(plugin.path, f"its configuration {path} is not used: {unsafe}")
            if status.st_size > MOST_CONFIG_BYTES:
                return PassedOver(plugin.path, f"its configuration {path} has {status.st_size} bytes")
            return replace(plugin, config=path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            return PassedOver(plugin.path, f"its configuration {path} cannot be read: {error}")
    return plugin


def _unsafe_way(folder: Path) -> str:
    """Why a directory, or one above it, is not to be trusted."""
    inner: Optional[Path] = folder.resolve()
    is_innermost = True
    while inner is not None:
        status = inner.stat()
        unsafe = insecurity(status.st_mode, status.st_uid, os.geteuid(), may_be_sticky=not is_innermost)
        if unsafe:
            return f"its directory {inner}: {unsafe}"
        is_innermost = False
        inner = inner.parent if inner.parent != inner else None
    return ""
