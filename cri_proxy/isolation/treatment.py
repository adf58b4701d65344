"""Who meets whom in which cache, and the groups that follow. Pure.

Nothing is divided where nothing meets. Steps:

1. A domain is *shared* where a protected and a batch container may both run in it.
2. Where a domain is shared, batch has the configured part of its cache and bandwidth, or what measured protection has set
   for that domain; everywhere else it has all.
3. All batch containers are one group, as a mask is a domain's: one class of service is enough for any number of CCXs. Where
   no domain is shared there is no group.
4. Classes of a configured ``rdt`` section that have containers are groups of their own; a container in one of those is
   treated by that, whatever it is to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Optional

from cri_proxy.isolation import bandwidth, caches
from cri_proxy.isolation.model import (
    BATCH,
    MB,
    PREFIX,
    PROTECTED,
    CacheDomain,
    Group,
    IsolatedContainer,
    ResctrlInfo,
    Schemata,
    Setting,
    Step,
    Wanted,
    resctrl_place,
)
from policies.frozen import frozen

#: The group of batch containers.
BATCH_GROUP = f"{PREFIX}batch"
_AS_CONFIGURED = Step()
#: The resources that are an L3, whole or as code and data.
L3_CACHES = ("L3", "L3CODE", "L3DATA")


@frozen
class TreatmentSettings:
    """What batch has in a shared domain, and which of the two subjects are not off."""

    cache: caches.CachePart = caches.CachePart(share=0.3)
    bandwidth: bandwidth.BandwidthPart = bandwidth.BandwidthPart(share=0.3)
    divides_caches: bool = True
    divides_bandwidth: bool = True


@frozen
class RdtClass:
    """A class of a configured ``rdt`` section on this machine. ``group``: the name of its group, "" = the root's."""

    name: str
    group: str
    schemata: Schemata


@frozen
class Meeting:
    """A domain that protected and batch containers share, by their keys."""

    domain: CacheDomain
    protected: tuple[str, ...]
    batch: tuple[str, ...]


def meetings(containers: Iterable[IsolatedContainer], domains: Iterable[CacheDomain]) -> dict[int, Meeting]:
    """The shared domains by id. A container of a configured ``rdt`` class meets none: the class says what it has."""
    # Many containers have the same CPUs: each set is compared with each domain once, and lists that are the same are one.
    free: dict[str, dict[frozenset[int], list[str]]] = {PROTECTED: {}, BATCH: {}}
    for each in containers:
        if not each.rdt_class and each.cls in free:
            free[each.cls].setdefault(each.cpus, []).append(each.key)
    known: dict[tuple[str, tuple[int, ...]], tuple[str, ...]] = {}

    def here(cls: str, cpus: frozenset[int]) -> tuple[str, ...]:
        lists = [keys for where, keys in free[cls].items() if not where.isdisjoint(cpus)]
        name = cls, tuple(map(id, lists))
        if name not in known:
            known[name] = tuple(sorted(chain.from_iterable(lists)))
        return known[name]

    found = {}
    for domain in domains:
        protected = here(PROTECTED, domain.cpus)
        batch = here(BATCH, domain.cpus) if protected else ()
        if batch:
            found[domain.id] = Meeting(domain, protected, batch)
    return found


def wanted(
    containers: Sequence[IsolatedContainer],
    info: ResctrlInfo,
    settings: TreatmentSettings,
    steps: Mapping[int, Step] = {},
    rdt: Mapping[str, RdtClass] = {},
    met: Optional[Mapping[int, Meeting]] = None,
) -> Wanted:
    """The groups that should be there. ``steps``: by id of L3 domains; ``rdt``: the classes of the machine by name.

    ``met``: ``meetings`` of these containers, where they are known.
    """
    groups = list(_rdt_groups(containers, rdt))
    notes = []
    met = meetings(containers, l3_domains(info)) if met is None else met
    if met:
        schemata = _batch_schemata(met, info, settings, steps)
        if schemata:
            members = frozenset(each.key for each in containers if each.cls == BATCH and not each.rdt_class)
            paths = {each.key: each.path for each in containers if each.cls == PROTECTED}
            why = {number: _why(meeting, paths) for number, meeting in met.items()}
            groups.append(Group(BATCH_GROUP, schemata, members, why))
        else:
            notes.append(
                "protected and batch containers share an L3, and this kernel divides neither caches nor bandwidth"
            )
    kept = _with_room(groups, info, notes)
    return Wanted(kept, tuple(notes), tuple(group for group in groups if group not in kept))


def settings_of(group: Group) -> tuple[Setting, ...]:
    """Each value of a group's schemata, for the reconciler."""
    keys = tuple(sorted(group.members))
    return tuple(
        Setting(
            bandwidth.SUBJECT if resource == MB else caches.SUBJECT,
            resctrl_place(group.name, resource, number),
            value,
            group.why.get(number, ""),
            keys,
        )
        for resource, values in group.schemata.items()
        for number, value in values.items()
    )


def l3_domains(info: ResctrlInfo) -> tuple[CacheDomain, ...]:
    """The L3s as the kernel numbers them."""
    # Bandwidth alone may be there (rdt=!l3cat); its domains are those of the L3s.
    return next((info.domains[name] for name in (*L3_CACHES, MB) if name in info.domains), ())


def _batch_schemata(
    met: Mapping[int, Meeting], info: ResctrlInfo, settings: TreatmentSettings, steps: Mapping[int, Step]
) -> Schemata:
    found: dict[str, dict[int, str]] = {}
    for name in L3_CACHES if settings.divides_caches else ():
        cache = info.caches.get(name)
        if cache is not None:
            masks = {
                number: caches.mask_of(settings.cache, cache, _step(steps, number).cache) for number in met
            }
            found[name] = {
                domain.id: f"{masks.get(domain.id, cache.full_mask):x}" for domain in info.domains[name]
            }
    limits = info.bandwidth
    if settings.divides_bandwidth and limits is not None:
        values = {
            number: bandwidth.value_of(settings.bandwidth, limits, _step(steps, number).bandwidth)
            for number in met
        }
        found[MB] = {domain.id: str(values.get(domain.id, limits.no_limit)) for domain in info.domains[MB]}
    return found


def _step(steps: Mapping[int, Step], number: int) -> Step:
    return steps.get(number, _AS_CONFIGURED)


def _rdt_groups(containers: Iterable[IsolatedContainer], rdt: Mapping[str, RdtClass]) -> Iterable[Group]:
    members: dict[str, set[str]] = {}
    for each in containers:
        if each.rdt_class in rdt:
            members.setdefault(each.rdt_class, set()).add(each.key)
    for name, one in rdt.items():
        # The root's is there whether it has containers of its own or not: tasks of the host are in it.
        if name in members or not one.group:
            yield Group(one.group, one.schemata, frozenset(members.get(name, ())))


def _with_room(groups: Sequence[Group], info: ResctrlInfo, notes: list[str]) -> tuple[Group, ...]:
    """As many groups as there are classes of service; the root's needs none of its own."""
    room = info.closids - 1
    kept: list[Group] = []
    for group in groups:
        if group.name and sum(1 for each in kept if each.name) >= room:
            notes.append(
                f"{info.closids} classes of service are all there are: {group.name} is treated as the root group"
            )
            continue
        kept.append(group)
    return tuple(kept)


def _why(meeting: Meeting, paths: Mapping[str, str]) -> str:
    first, others = paths[meeting.protected[0]], len(meeting.protected) - 1
    return f"{first} is protected{f' (and {others} more)' if others else ''} and may run in L3 {meeting.domain.id}, too"
