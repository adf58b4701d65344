"""What a round of isolation has changed for containers, as sentences for the history and for Events. Pure.

Two states of the kernel are compared, not the writes between them: a sentence is a group's treatment of an L3, and of L3s
that change alike there is one. What is only observed is no change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from cri_proxy.engine.model import NO_CLASS_OF_SERVICE, TREATMENT_REFUSED
from cri_proxy.isolation.listing import alike, several
from cri_proxy.isolation.model import CACHES, RESCTRL, Group, IsolatedContainer, place_parts, resctrl_place
from cri_proxy.isolation.plan import Plan
from cri_proxy.isolation.report import value_text, values_in
from cri_proxy.isolation.treatment import BATCH_GROUP, Meeting
from policies.frozen import frozen
from policies.machine.cpus import format_cpus

#: Of so many containers an Event is told at most: one on each of hundreds would only repeat it.
MOST_TOLD = 8
_ALL = "all of it"


@frozen
class Happening:
    """One entry of the history. ``keys``: the containers it is about; ``own`` says that it is about one alone.

    ``reason``: of an Event that ``hurt`` are told of; "" = none.
    """

    why: str
    keys: tuple[str, ...] = ()
    own: bool = False
    reason: str = ""
    hurt: tuple[str, ...] = ()


@frozen
class InForce:
    """What is in force. ``groups``: those that are there; ``refusals``: place -> what the kernel says; ``keys``: of files'
    places among them, the containers they are there for;
    ``without``: of groups for which no class of service is left, the sentence; ``step_whys``: domain -> why protection has
    set what batch has there. ``containers``: their classes."""

    groups: tuple[Group, ...] = ()
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    meetings: tuple[Meeting, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    step_whys: Mapping[int, str] = field(default_factory=dict)
    containers: Sequence[IsolatedContainer] = ()


def happenings(before: InForce, now: InForce) -> list[Happening]:
    """What has changed, the most important first."""
    return [
        *_refused(before, now),
        *_without(before, now),
        *_made_and_removed(before, now),
        *_treated(before, now),
        *_of_other_class(before, now),
    ]


def _refused(before: InForce, now: InForce) -> Iterator[Happening]:
    new = {place: sentence for place, sentence in now.refusals.items() if place not in before.refusals}
    for (_, sentence), places in alike(new).items():
        is_value = places[0].startswith(RESCTRL) and "#" in places[0]
        group, _, number = place_parts(places[0]) if is_value else ("", "", -1)
        concerned = sorted({key for place in places for key in now.keys.get(place, ())})
        hurt = _hurt(now, group, number) if group else tuple(concerned[:MOST_TOLD])
        yield Happening(
            f"{several(places)} is refused: {sentence}", hurt, reason=TREATMENT_REFUSED, hurt=hurt
        )


def _without(before: InForce, now: InForce) -> Iterator[Happening]:
    for group, sentence in now.without.items():
        if group not in before.without:
            hurt = _hurt(now, group)
            yield Happening(
                f"{group} is treated as the root group: {sentence}",
                hurt,
                reason=NO_CLASS_OF_SERVICE,
                hurt=hurt,
            )


def _hurt(now: InForce, group: str, number: int = -1) -> tuple[str, ...]:
    """The containers that lack something: those that batch should give way to, or those of the group."""
    if group != BATCH_GROUP:
        return tuple(sorted(now.members.get(group, ()))[:MOST_TOLD])
    found = {key for each in now.meetings if number in (-1, each.domain.id) for key in each.protected}
    return tuple(sorted(found)[:MOST_TOLD])


def _made_and_removed(before: InForce, now: InForce) -> Iterator[Happening]:
    had, has = _named(before.groups), _named(now.groups)
    for name in has.keys() - had.keys():
        if not has[name].why:
            yield Happening(f"the group {name} is made: {_all_values(has[name])}", _members(now, name))
    for name in had.keys() - has.keys():
        yield Happening(f"the group {name} is removed: its containers have all of it", _members(before, name))


def _members(state: InForce, name: str) -> tuple[str, ...]:
    return tuple(sorted(state.members.get(name, ())))


def _treated(before: InForce, now: InForce) -> Iterator[Happening]:
    """Of each group that is there: the L3s in which it has something else."""
    had, has = _named(before.groups), _named(now.groups)
    for name, group in has.items():
        earlier = had.get(name)
        if not group.why and (earlier is None or not earlier.why):
            if earlier is not None and earlier.schemata != group.schemata:
                yield Happening(f"{name or 'the root group'}: {_all_values(group)}", _members(now, name))
            continue
        parts, parts_before = _parts(group), _parts(earlier) if earlier is not None else {}
        alike: dict[tuple[str, str, str], list[int]] = {}
        for number in sorted(parts.keys() | parts_before.keys()):
            is_, was = parts.get(number, _ALL), parts_before.get(number, _ALL)
            if is_ != was:
                why = _why(before, now, number, group)
                alike.setdefault((is_, was, why), []).append(number)
        for (is_, was, why), numbers in alike.items():
            met = {
                key
                for each in (*now.meetings, *before.meetings)
                if each.domain.id in numbers
                for key in (*each.protected, *each.batch)
            }
            where = f"L3 {format_cpus(frozenset(numbers))}"
            yield Happening(
                f"{where}: {name} has {is_}, was {was}" + (f"; {why}" if why else ""), tuple(sorted(met))
            )


def _why(before: InForce, now: InForce, number: int, group: Group) -> str:
    step = now.step_whys.get(number, "")
    if step != before.step_whys.get(number, ""):
        return step or "protection has ended"
    return group.why.get(number, "no protected container meets it there any more")


def _of_other_class(before: InForce, now: InForce) -> Iterator[Happening]:
    if before.containers is now.containers:
        return
    known = {each.key: each for each in before.containers}
    for each in now.containers:
        earlier = known.get(each.key, each)
        names = [(it.rdt_class or it.cls) for it in (earlier, each)]
        if earlier is not each and all(names) and names[0] != names[1]:
            yield Happening(f"its class is {names[1]} ({each.why}), was {names[0]}", (each.key,), own=True)


def _named(groups: Iterable[Group]) -> dict[str, Group]:
    return {group.name: group for group in groups}


def _parts(group: Group) -> dict[int, str]:
    """What a group has in each L3 where it has not all."""
    return {number: ", ".join(values_in(group.schemata, number)) or _ALL for number in group.why}


def _all_values(group: Group) -> str:
    """What a group has that is the same in many domains, those together."""
    found = []
    for resource, values in group.schemata.items():
        same: dict[str, list[int]] = {}
        for number, value in values.items():
            same.setdefault(value, []).append(number)
        for value, numbers in same.items():
            what = value_text(resource, value)
            kind = resource if resource in CACHES else ""
            found.append(f"{f'{kind} ' if kind else ''}{what} in {format_cpus(frozenset(numbers))}")
    return "; ".join(found) or _ALL


def _as_taken(group: Group, refusals: Mapping[str, str]) -> Group:
    """A group with the values that the kernel has not refused."""
    schemata = {
        resource: {
            number: value
            for number, value in values.items()
            if resctrl_place(group.name, resource, number) not in refusals
        }
        for resource, values in group.schemata.items()
    }
    return group if not refusals else replace(group, schemata=schemata)


def in_force(
    plan: Plan,
    there: Sequence[Group],
    refusals: Mapping[str, str],
    containers: Sequence[IsolatedContainer],
    step_whys: Mapping[int, str],
) -> InForce:
    """What a round has brought. ``there``: those of the plan's groups that the kernel has; ``refusals``: by their places."""
    planned = (*plan.enforced.groups, *plan.enforced.without)
    without = {group.name: "no class of service is left for it" for group in plan.enforced.without}
    values = dict(refusals)
    for group in plan.enforced.groups:
        sentence = values.pop(f"{RESCTRL}{group.name}", "")
        if sentence:
            without[group.name] = sentence
    return InForce(
        tuple(_as_taken(group, values) for group in there),
        {group.name: group.members for group in planned},
        plan.meetings,
        values,
        {each.place: each.keys for each in plan.files if each.place in values},
        without,
        step_whys,
        containers,
    )
