"""The mode of a node where nothing sets relay.mode, for a daemon that is told one (``--first-mode``): the install's default.

It is decided once, by the first daemon in a state directory, and kept there: what is installed later, or in another way,
changes no node's mode. A node on which a version without this has run goes on in the mode that it was configured to.
"""

from __future__ import annotations

from pathlib import Path

from cri_proxy.bounded_files import SMALL_FILE_S, read_bytes, within
from cri_proxy.config.config import BadConfig
from cri_proxy.config.io import files as settings
from cri_proxy.config.options.table import BY_KEY
from cri_proxy.services.node_state import MODES
from cri_proxy.state.file import FILE as STATE_FILE
from policies.frozen import frozen

FILE = "first-mode"
#: More than the longest mode.
_MAX_BYTES = 64


@frozen
class FirstMode:
    """``problem``: why it is not kept; with ``is_unread`` why it could not be read, and is to be read again."""

    mode: str
    problem: str = ""
    is_unread: bool = False


def decide(files: settings.Files, asked: str) -> FirstMode:
    """The mode that counts where nothing sets one: the kept one, that of a daemon before, or ``asked``. Never raises."""
    folder = Path(settings.load_or_last(files).config["state.directory"])
    try:
        return within(SMALL_FILE_S, lambda: _decided(files, folder, asked))
    except TimeoutError:
        problem = f"{folder / FILE} cannot be read: the disk has not answered in {SMALL_FILE_S:g} s"
        return FirstMode(asked, problem, is_unread=True)


def _decided(files: settings.Files, folder: Path, asked: str) -> FirstMode:
    path = folder / FILE
    try:
        kept = read_bytes(path, _MAX_BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        mode = _mode_before(files, folder) or asked
        return FirstMode(mode, keep(folder, mode))
    except OSError as error:
        return FirstMode(asked, f"{path} cannot be read: {error.strerror or error}", is_unread=True)
    if kept not in MODES:
        problem = f"{path} says {kept[:20]!r}, expected {', '.join(MODES)}: {asked} counts"
        return FirstMode(asked, problem, is_unread=True)
    return FirstMode(kept)


def _mode_before(files: settings.Files, folder: Path) -> str:
    """The mode that a daemon before was configured to; "" = there was none."""
    default = str(BY_KEY["relay.mode"].default)
    try:
        return str(settings.last_layers(files, folder).read().config["relay.mode"])
    except FileNotFoundError:
        return default if (folder / STATE_FILE).exists() else ""
    except (OSError, ValueError, TypeError, BadConfig):
        return default


def keep(folder: Path, mode: str) -> str:
    """Have later daemons go by it; a sentence if that is not possible."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.replace_text(folder / FILE, f"{mode}\n")
    except OSError as error:
        return f"{folder / FILE} cannot be written: {error.strerror or error}"
    return ""
