"""Pointing kubelet at us and back: which characters change, and how exactly that is undone.

Only the place that wins is written, with the least that does it; beside it what kubeadm keeps for its next upgrade.
Every plan is tried on the texts before they are written: what would not take effect is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from cri_proxy.kubelet.edits import Value, find_pieces, line_end, read_config_file, replaced
from cri_proxy.kubelet.record import FileChange, SwitchRecord, digest
from cri_proxy.kubelet.settings import (
    EXTRA_VARIABLES,
    INSTANCE_CONFIG,
    K3S_ENDPOINT,
    Files,
    Setup,
    socket_of,
    survey,
)

FLAG = "--container-runtime-endpoint"
KEY = "containerRuntimeEndpoint"
IMAGES_FLAG = "--image-service-endpoint"
IMAGES_KEY = "imageServiceEndpoint"
ANNOTATION = "kubeadm.alpha.kubernetes.io/cri-socket"
#: What can stand unquoted in YAML, in a shell's file and in a unit.
_PLAIN = re.compile(r"[\w./:@+-]+")


class CannotSwitch(Exception):
    """Kubelet's configuration cannot be changed by us: a sentence, and what to type instead."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


@dataclass(frozen=True)
class Edit:
    """One file before and after; ``before`` None: it is made, ``after`` None: it is removed.

    ``old`` and ``new`` are the words that change places; inserted ones have no ``old``.
    """

    path: str
    before: Optional[str]
    after: Optional[str]
    old: str = ""
    new: str = ""
    #: A kubelet configuration; else flags, in a unit or an environment file.
    is_config: bool = False

    @property
    def change(self) -> FileChange:
        before = None if self.before is None else digest(self.before)
        return FileChange(self.path, self.old, self.new, before, digest(self.after or ""), self.is_config)


def diff_of(edits: Iterable[Edit]) -> str:
    """The changes as a unified diff; "" if there are none."""
    lines: list[str] = []
    for edit in edits:
        old = edit.path if edit.before is not None else "/dev/null"
        new = edit.path if edit.after is not None else "/dev/null"
        before, after = (edit.before or "").splitlines(True), (edit.after or "").splitlines(True)
        for line in difflib.unified_diff(before, after, old, new):
            whole = line.endswith("\n")
            lines.append(line.rstrip("\r\n") if whole else f"{line}\n\\ No newline at end of file")
    return "\n".join(lines)


def points_at(endpoint: str, sockets: Iterable[str]) -> bool:
    """Whether an endpoint is one of these sockets, however they are spelled."""
    return socket_of(endpoint) in {socket_of(path) for path in sockets}


# ---------------------------------------------------------------------- there


def plan_enable(setup: Setup, files: Files, endpoint: str, sockets: Sequence[str]) -> list[Edit]:
    """The edits after which kubelet's files name ``endpoint``; none if they name one of our ``sockets`` already.

    :raises CannotSwitch: it is set where we do not write, or what we would write has no effect.
    """
    if not _PLAIN.fullmatch(endpoint):
        raise CannotSwitch(f"{endpoint!r} cannot be written into kubelet's files without quotes", "")
    if points_at(setup.endpoint, sockets):
        edits = []
    else:
        _refuse_foreign(setup, endpoint)
        winner = setup.winner
        edits = [_replacing(setup, winner, files, endpoint) if winner else _inserting(setup, files, endpoint)]
    edited = {edit.path for edit in edits}
    if (
        setup.instance is not None
        and not points_at(setup.instance.text, sockets)
        and not edited & {INSTANCE_CONFIG}
    ):
        edits.append(_replacing(setup, setup.instance, files, endpoint))
    after = survey(after_edits(files, edits))
    if edits and not setup.is_wrapped and not points_at(after.endpoint, [endpoint]):
        place = after.winner.place if after.winner else "nothing"
        raise CannotSwitch(
            f"{edits[0].path} can be changed, but kubelet would still use {after.endpoint} ({place})",
            by_hand(after, endpoint),
        )
    return edits


def plan_images(setup: Setup, files: Files, edits: Sequence[Edit], images: str) -> list[Edit]:
    """The ``edits``, and with them the one after which kubelet's files name ``images`` as its image service.

    :raises CannotSwitch: it is set where we do not write, or there is no place for it.
    """
    by_hand = f"give kubelet {IMAGES_KEY}: {images} or {IMAGES_FLAG}={images}; then {restart_line(setup)}"
    if setup.manager:
        argument = f"{IMAGES_FLAG[2:]}={images}"
        by_hand = f'add to kubelet-arg in {setup.config_file}: "{argument}"; then {restart_line(setup)}'
    now = after_edits(files, edits)
    after = survey(now)
    value, path = after.images_at, setup.config_file
    text = now.get(path) if path else None
    variable = None if setup.is_wrapped else _variable_for_flags(after)
    if setup.manager or (value is not None and value.start < 0) or (text is None and variable is None):
        raise CannotSwitch("there is no place of kubelet's where its image service could be written", by_hand)
    if value is not None:
        whole = now[value.path] or ""
        is_config = value is not after.flags.get(IMAGES_FLAG[2:])
        edit = Edit(value.path, whole, replaced(whole, value, images), value.text, images, is_config)
    elif path is not None and text is not None:
        edit = _into_config(path, text, IMAGES_KEY, images)
    else:
        assert variable is not None
        edit = _into_variable(variable, now, f"{IMAGES_FLAG}={images}")
    # A file has one edit: what undoes it by its words is the endpoint's, and a copy of the file undoes both.
    return [
        *(replace(one, after=edit.after) if one.path == edit.path else one for one in edits),
        *([] if edit.path in {one.path for one in edits} else [edit]),
    ]


def after_edits(files: Files, edits: Iterable[Edit]) -> dict[str, Optional[str]]:
    """The files as they are once edits are made."""
    return {**files, **{edit.path: edit.after for edit in edits}}


def restart_line(setup: Setup) -> str:
    """What has kubelet read its files again, units among them."""
    return f"systemctl daemon-reload && systemctl restart {setup.unit}"


def by_hand(setup: Setup, endpoint: str, value: Optional[Value] = None) -> str:
    """What a person does to point kubelet at ``endpoint``; where that is one line to type, that line.

    ``value``: what is to become ``endpoint``; None: what names the runtime now.
    """
    value = value or setup.winner
    if value is None or not value.text:
        if setup.manager:
            argument = f"container-runtime-endpoint={endpoint}"
            return f'in {setup.config_file} write: kubelet-arg: ["{argument}"]; then {restart_line(setup)}'
        return f"add {FLAG}={endpoint} to kubelet's flags, and restart it"
    if value.start < 0 or not (_PLAIN.fullmatch(value.text) and _PLAIN.fullmatch(value.path)):
        return f"set {value.text} to {endpoint} in {value.place}; then {restart_line(setup)}"
    # The same value may stand on the line twice: the one after its name is meant.
    named, kept = (rf"\(.*{value.key}[^[:alnum:]/]*\)", r"\1") if value.key else ("", "")
    sed = f"sed -i '{value.line}s#{named}{value.text}#{kept}{endpoint}#' {value.path}"
    return f"{sed} && {restart_line(setup)}"


def is_unit(path: str) -> bool:
    """Whether a file is a unit or one of its drop-ins."""
    return "/systemd/system/" in path


def _refuse_foreign(setup: Setup, endpoint: str) -> None:
    runtime = setup.flags.get("container-runtime")
    if runtime is not None and runtime.text != "remote":
        raise CannotSwitch(
            f"{runtime.place}: kubelet uses us only with --container-runtime=remote, not {runtime.text}",
            "first move it to a runtime that has a socket: containerd, CRI-O or iSulad",
        )
    if setup.manager:
        raise CannotSwitch(
            f"{setup.manager} starts kubelet itself; its files are not changed by this command",
            by_hand(setup, endpoint)
            + (f" (and here relay.runtime_endpoint: {K3S_ENDPOINT})" if setup.winner is None else ""),
        )
    if setup.running is not None and setup.is_wrapped and "container-runtime-endpoint" not in setup.flags:
        raise CannotSwitch(
            f"kubelet runs with {FLAG}={setup.running}, and no unit or environment file of kubelet.service says so",
            f"set it to {endpoint} where kubelet's command line is written, and restart it",
        )


def _replacing(setup: Setup, value: Value, files: Files, endpoint: str) -> Edit:
    if value.start < 0:
        raise CannotSwitch(
            f"{value.place}: {KEY} is not a plain value there (an alias, an anchor or a block)",
            f"write {KEY}: {endpoint} there",
        )
    text = files[value.path] or ""
    is_config = value is not setup.flags.get(FLAG[2:])
    return Edit(value.path, text, replaced(text, value, endpoint), value.text, endpoint, is_config)


def _inserting(setup: Setup, files: Files, endpoint: str) -> Edit:
    """Nothing is set: the operator's own variable if the unit reads one, else kubelet's configuration file."""
    flag = f"{FLAG}={endpoint}"
    place = None if setup.is_wrapped else _variable_for_flags(setup)
    if place is not None:
        return _into_variable(place, files, flag)
    path = setup.config_file
    text = files.get(path) if path else None
    if path is None or text is None:
        missing = f"its --config {path} does not exist" if path else "kubelet.service reads no file for flags"
        raise CannotSwitch(
            f"there is no place to name the runtime's socket in: {missing}", by_hand(setup, endpoint)
        )
    return _into_config(path, text, KEY, endpoint)


def _into_config(path: str, text: str, key: str, value: str) -> Edit:
    config = read_config_file(path, text)
    after = config.inserted(text, key, value)
    position = config.insert_at
    return Edit(path, text, after, "", after[position : position + len(after) - len(text)], is_config=True)


#: A variable: its name, its value if it has one, and the file.
_Variable = tuple[str, Optional[Value], str]


def _variable_for_flags(setup: Setup) -> Optional[_Variable]:
    """The variable of ExecStart's that flags go into."""
    files = [path for path in setup.environment_files if path.startswith("/etc/")]
    usual = [path for path in files if path.startswith(("/etc/default/", "/etc/sysconfig/"))] or files
    for name in EXTRA_VARIABLES:
        if name not in setup.variables:
            continue
        value = setup.variables[name]
        if value is not None:
            return name, value, value.path
        if usual:
            return name, None, usual[0]
    return None


def _into_variable(variable: _Variable, files: Files, flag: str) -> Edit:
    name, value, path = variable
    text = files.get(path)
    if value is None or text is None:
        end = line_end(text or "")
        new = ("" if not text or text.endswith("\n") else end) + f"{name}={flag}{end}"
        return Edit(path, text, (text or "") + new, "", new)
    start = value.start - len(f"{name}=")
    is_bare = text[start : value.start] == f"{name}=" and text[start - 1 : start] not in ("'", '"')
    if is_unit(path) and is_bare and value.text and not set(value.text) & set("\"'\\"):
        # In a unit a blank would end the assignment.
        old = text[start : value.end]
        new = f'"{old} {flag}"'
        return Edit(path, text, text[:start] + new + text[value.end :], old, new)
    new = f" {flag}" if value.text.strip() else flag
    return Edit(path, text, text[: value.end] + new + text[value.end :], "", new)


# ---------------------------------------------------------------------- and back


@dataclass(frozen=True)
class WayBack:
    """What undoes a record: the edits, and a sentence for each file that is not simply as it was."""

    edits: tuple[Edit, ...]
    remarks: tuple[str, ...]


def plan_disable(record: SwitchRecord, files: Files, backups: Mapping[str, str]) -> WayBack:
    """How the files get their old values back. ``backups``: the texts as they were, by path.

    A file that has not changed since becomes what it was to the byte. From any other only our value is taken.
    """
    edits, remarks = [], []
    for change in record.changes:
        text = files.get(change.path)
        if text is None:
            if change.before is not None:
                remarks.append(f"{change.path} is gone; nothing to take back there")
        elif digest(text) == change.after:
            was = backups.get(change.path) if change.before is not None else None
            if change.before is not None and (was is None or digest(was) != change.before):
                remarks.append(f"the copy of {change.path} is lost; only our value is taken out of it")
                edits += _taking_back(record, change, text)
            else:
                edits.append(Edit(change.path, text, was, change.new, change.old))
        elif digest(text) != change.before:
            taken = _taking_back(record, change, text)
            edits += taken
            what = (
                "only our value is taken back" if taken else "it does not name us any more and stays as it is"
            )
            remarks.append(f"{change.path} has been changed by others since; {what}")
    return WayBack(tuple(edits), tuple(remarks))


@dataclass(frozen=True)
class LeftOver:
    """What would keep kubelet at us: ``value`` at ``place`` (None: it is in no file)."""

    what: str
    place: str
    value: Optional[Value]


def left_over(after: Setup, sockets: Sequence[str], is_at_us: bool) -> Optional[LeftOver]:
    """Why kubelet would still use us when its files are ``after``. ``is_at_us``: the one that runs does."""
    # Of a kubelet that others start, a restart by us changes nothing.
    is_others = bool(after.manager) or (after.is_wrapped and after.winner is None)
    if points_at(after.endpoint, sockets) or (is_at_us and is_others):
        winner = after.winner if points_at(after.endpoint, sockets) else None
        return LeftOver("points at", winner.place if winner else "its command line", winner)
    if points_at(after.images, sockets) and (after.images_at is not None or is_others):
        place = after.images_at.place if after.images_at else "its command line"
        return LeftOver("pulls images through", place, after.images_at)
    return None


def still_ours(record: SwitchRecord, files: Files) -> frozenset[str]:
    """The files of a record that name us still."""
    texts = ((change, files.get(change.path)) for change in record.changes)
    return frozenset(c.path for c, text in texts if text and _our_value(c, text, record.endpoint) is not None)


def _taking_back(record: SwitchRecord, change: FileChange, text: str) -> list[Edit]:
    """At most one edit: what we inserted goes, what we replaced comes back."""
    if change.new != record.endpoint and text.count(change.new) == 1:
        return [Edit(change.path, text, text.replace(change.new, change.old), change.new, change.old)]
    value = _our_value(change, text, record.endpoint)
    if value is None:
        return []
    # What was inserted and then rewritten by others is a setting of theirs by now: it gets the endpoint of before.
    old = change.old if change.new == record.endpoint else record.previous
    return [Edit(change.path, text, replaced(text, replace(value, before=""), old), value.text, old)]


def _our_value(change: FileChange, text: str, endpoint: str) -> Optional[Value]:
    """Where a file that we have changed once names us now."""
    path = change.path
    if change.is_config:
        value = read_config_file(path, text).values.get(KEY)
        return value if value and value.start >= 0 and points_at(value.text, [endpoint]) else None
    found = None
    position = 0
    for line in text.splitlines(True):
        pieces = [] if line.lstrip()[:1] in ("#", ";") else find_pieces(text, position, position + len(line))
        for kind, name, start, end in pieces:
            if (kind, name) == ("flag", FLAG[2:]) and points_at(text[start:end], [endpoint]):
                found = Value(path, start, end, text[start:end], 0)
        position += len(line)
    if found is None and text.count(endpoint) == 1:
        start = text.index(endpoint)
        found = Value(path, start, start + len(endpoint), endpoint, 0)
    return found


# ---------------------------------------------------------------------- what else to say


def remarks_on(setup: Setup, edits: Sequence[Edit], endpoint: str, images: str = "") -> list[str]:
    """What an operator should know before kubelet is switched. ``images``: the image service that is written, too."""
    found = []
    if setup.images and not images:
        found.append(f"the image endpoint stays {setup.images}")
    if setup.cpu_manager == "static":
        found.append(
            "warning: kubelet's CPU manager is static: its exclusive CPUs are taken out of our pools, and its "
            "shared CPUs are a constraint we stay inside; better is cpuManagerPolicy: none"
        )
    if setup.topology_manager not in ("", "none"):
        found.append(
            f"warning: kubelet's topology manager is {setup.topology_manager}: it may refuse pods we would place"
        )
    runtime = setup.flags.get("container-runtime")
    if runtime is not None and runtime.text != "remote":
        found.append(f"warning: {runtime.place}: --container-runtime={runtime.text} must be remote")
    paths = [edit.path for edit in edits]
    if any(path.startswith(("/usr/", "/lib/")) for path in paths):
        found.append(f"{paths[0]} belongs to a package, whose next version may drop this")
    if any(path.startswith("/var/lib/kubelet/") for path in paths) and INSTANCE_CONFIG not in paths:
        found.append(
            f"a kubeadm upgrade may drop this; to have it kept: kubectl annotate node NODE --overwrite "
            f"{ANNOTATION}={endpoint}"
        )
    return found
