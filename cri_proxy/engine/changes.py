"""What a transition has done to the places of containers it was not about, as an entry in the history.

One entry a cause, with all containers that it has changed: a create that takes CPUs from ninety others is one entry
of a thousand, and costs one record on disk. ``explain`` finds a container's changes by its id.
"""

from __future__ import annotations

from typing import Optional

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.records import DecisionRecord, Grant, Life, PlacementChange
from policies.model import UNTOUCHED, altered

#: What transitions are called in the history, where that is not their own name.
CAUSES = {
    "admit": "create",
    "bind": "create",
    "cancel": "refused request",
    "commit": "resize",
    "follow_resources": "resize",
    "end_pod": "end of the pod",
    "exited": "exit",
    "remove": "removal",
    "tick": "end of a hold",
    "manage": "adopt",
    "apply": "rebalance",
    "take_back": "move taken back",
    "adopt": "comparison",
    "take_over": "comparison",
    "amend": "comparison",
    "restore": "restart",
    "rehost": "machine or configuration",
}
#: A ``PlacementChange`` without its keys.
_What = tuple[str, str, frozenset[int], frozenset[int], str, str]
#: These are about no container.
ABOUT_NONE = ("restore", "rehost")


def note_changes(ledger: Ledger, transition: str, newest: int) -> None:
    """Enter what a transition that has come to its end has changed; ``newest``: the last entry before it."""
    made = [] if transition in ABOUT_NONE else _made_since(ledger, newest)
    # An entry of their own says where these are.
    told = {record.id for record in made}
    for key, record in ledger.amended.items():
        if key in ledger.grants and ledger.grants[key].cpus == record.placement.cpus:
            told.add(key)
    about: Optional[Grant] = None
    #: Many share one set and lose the same of it: those are compared once.
    alike: dict[tuple[object, ...], tuple[Grant, Grant, list[str]]] = {}
    together = ledger.together
    for (kind, key), (_, _, before) in (ledger.undo or {}).items():
        if kind != "grant":
            continue
        if (
            (moved := together.get(key)) is not None
            and moved[0] is before
            and moved[1] is ledger.grants.get(key)
        ):
            if key not in told:
                place, is_held = before.placement, before.life is Life.HELD
                signs = id(moved[2]), before.cpus, place.level, place.mems, before.stance, is_held
                alike.setdefault(signs, (before, moved[1], []))[2].append(key)
            about = about or moved[1]
            continue
        now = ledger.grants.get(key)
        before = before or ledger.found.get(key)
        # It begins with the container it is about.
        about = about or now or before
        if now is None:
            ledger.changed.pop(key, None)
        elif before is not None and before is not now and key not in told:
            alike[(key,)] = before, now, [key]
    found: dict[_What, list[str]] = {}
    for before, now, keys in alike.values():
        operation = _operation(before, now)
        if operation:
            why = "" if now.why == before.why else now.why
            place = now.placement
            what = operation, now.stance.value, now.cpus, place.mems, place.level, why
            found.setdefault(what, []).extend(keys)
    if not found or about is None:
        return
    changes = tuple(PlacementChange(*what, tuple(keys)) for what, keys in found.items())
    if made:
        cause = altered(made[0], changes=changes)
        ledger.history[len(ledger.history) - len(made)] = cause
    else:
        cause = _cause(ledger, transition, None if transition in ABOUT_NONE else about, changes)
        ledger.history.append(cause)
    ledger.note_record(cause)
    for change in changes:
        ledger.changed.update(dict.fromkeys(change.keys, (cause, change)))


def _made_since(ledger: Ledger, newest: int) -> list[DecisionRecord]:
    made: list[DecisionRecord] = []
    for record in reversed(ledger.history):
        if record.number <= newest:
            break
        made.append(record)
    return made[::-1]


def _operation(before: Grant, now: Grant) -> str:
    """What has become of a container's place, as in ``PlacementChange``; "" = nothing."""
    if now.life is Life.HELD:
        return ""
    if now.stance is not before.stance:
        return now.stance.value
    cpus_before, cpus = before.cpus, now.cpus
    if cpus != cpus_before:
        return "shrunk" if cpus < cpus_before else "grown" if cpus > cpus_before else "moved"
    was, place = before.placement, now.placement
    # What its group owns is told of the group: it is no change of the container's own.
    owns_other = place.exclusive != was.exclusive and not (place.group and place.group == was.group)
    if owns_other or (place.mems, place.level) != (was.mems, was.level):
        return "changed"
    return "repaired" if now.repairs and now.repairs != before.repairs else ""


def _cause(
    ledger: Ledger, transition: str, about: Optional[Grant], changes: tuple[PlacementChange, ...]
) -> DecisionRecord:
    """An entry for a cause that has none of its own."""
    number = ledger.newest_record + 1
    operation = CAUSES.get(transition, transition.replace("_", " "))
    if about is None:
        return DecisionRecord(number, ledger.now_s, operation, "", "", "", "", UNTOUCHED, "", "", changes)
    container = about.container
    return DecisionRecord(number, ledger.now_s, operation, container.path, container.pod.uid, about.key, about.stance.value,
                  about.placement, about.why, "", changes)  # fmt: skip
