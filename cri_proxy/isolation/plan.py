"""What isolation does with the containers of now: which groups, which values, and which of that is only told. Pure.

A subject is off, observed (it is told what would be done) or enforced. In the daemon's mode observe nothing is enforced, in
its mode off all is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from cri_proxy.config.config import Config
from cri_proxy.engine.model import LEFT_ALONE, ContainerRecord, Life
from cri_proxy.isolation import bandwidth, caches
from cri_proxy.isolation.model import (
    CACHES,
    ENFORCE,
    MB,
    OBSERVE,
    OFF,
    ROOT,
    IsolatedContainer,
    ResctrlInfo,
    Setting,
    Step,
    Wanted,
)
from cri_proxy.isolation.scheduling import SUBJECT as SCHEDULING
from cri_proxy.isolation.treatment import Meeting, RdtClass, TreatmentSettings, l3_domains, meetings, wanted
from policies.frozen import frozen
from policies.model import Container, Placement

#: The subjects whose values are in groups of resctrl.
OF_GROUPS = (caches.SUBJECT, bandwidth.SUBJECT)


@frozen
class IsolationSettings:
    """How the node is configured. ``modes``: of each subject that is not off, as it is in force."""

    modes: Mapping[str, str]
    cache: caches.CachePart
    bandwidth: bandwidth.BandwidthPart

    @property
    def divides(self) -> bool:
        """Whether a subject of groups is not off."""
        return any(name in self.modes for name in OF_GROUPS)

    @property
    def has_files(self) -> bool:
        """Whether a subject whose values are in files is not off."""
        return any(name not in OF_GROUPS for name in self.modes)

    @property
    def writes(self) -> bool:
        """Whether anything is enforced."""
        return ENFORCE in self.modes.values()


def read_settings(config: Config, mode: str, subjects: Iterable[str] = OF_GROUPS) -> IsolationSettings:
    """The settings in force. ``mode``: the daemon's, off, observe or enforce."""
    modes = {name: config[f"isolation.{name}"] for name in subjects}
    if mode != ENFORCE:
        modes = {
            name: OFF if mode == OFF else min(each, OBSERVE, key=_STRENGTH) for name, each in modes.items()
        }
    return IsolationSettings(
        {name: each for name, each in modes.items() if each != OFF},
        caches.read_part(config["isolation.batch_cache"]),
        bandwidth.read_part(config["isolation.batch_bandwidth"]),
    )


#: Of what plugins ask for, the classes of configured sections.
CLASSES_ASKED = ("rdt_class", "blockio_class")

_STRENGTH = (OFF, OBSERVE, ENFORCE).index


@frozen
class Plan:
    """``wanted``: all groups, those that are only told too. ``enforced``: the groups to be written, every resource of the
    kernel's in each but the root's. ``files``: the values of files to be written; ``told``: those that would be.
    """

    wanted: Wanted = Wanted()
    enforced: Wanted = Wanted()
    files: tuple[Setting, ...] = ()
    told: tuple[Setting, ...] = ()
    meetings: tuple[Meeting, ...] = ()

    @property
    def values(self) -> object:
        """What of it is written, to be compared: members are not."""
        return [(group.name, group.schemata) for group in self.enforced.groups], self.files


#: Nothing is there that would not be without us.
NOTHING = Plan()


def make_plan(
    containers: Sequence[IsolatedContainer],
    info: Optional[ResctrlInfo],
    settings: IsolationSettings,
    steps: Mapping[int, Step] = {},
    rdt: Mapping[str, RdtClass] = {},
    files: Sequence[Setting] = (),
) -> Plan:
    """What should be there. ``info`` None: this kernel divides nothing. ``files``: what subjects that are not off want."""
    enforced_files = tuple(each for each in files if settings.modes[each.subject] == ENFORCE)
    told = tuple(each for each in files if settings.modes[each.subject] != ENFORCE)
    if info is None or not settings.divides:
        return Plan(files=enforced_files, told=told)
    treatment = TreatmentSettings(
        settings.cache,
        settings.bandwidth,
        caches.SUBJECT in settings.modes,
        bandwidth.SUBJECT in settings.modes,
    )
    met = meetings(containers, l3_domains(info))
    found = _limited(wanted(containers, info, treatment, steps, rdt, met), info, settings.modes.__contains__)
    return Plan(found, _enforced(found, info, settings), enforced_files, told, tuple(met.values()))


def subject_of(resource: str) -> str:
    """The subject that a resource of resctrl is of."""
    return caches.SUBJECT if resource in CACHES else bandwidth.SUBJECT


def _enforced(found: Wanted, info: ResctrlInfo, settings: IsolationSettings) -> Wanted:
    enforced = _limited(found, info, lambda subject: settings.modes.get(subject) == ENFORCE)
    # What was enforced in a group before must not stay where it is not any more.
    everything = _everything(info)
    return Wanted(
        tuple(
            replace(group, schemata={**everything, **group.schemata}) if group.name != ROOT else group
            for group in enforced.groups
        ),
        found.notes,
        enforced.without,
    )


def _limited(found: Wanted, info: ResctrlInfo, has: Callable[[str], bool]) -> Wanted:
    """The groups with the resources of some subjects only. A group that is then limited in nothing is not wanted."""
    groups, everything = [], _everything(info)
    for group in found.groups:
        schemata = {name: values for name, values in group.schemata.items() if has(subject_of(name))}
        is_less = len(schemata) < len(group.schemata)
        if schemata and not (
            is_less and all(values == everything.get(name) for name, values in schemata.items())
        ):
            groups.append(replace(group, schemata=schemata))
    return Wanted(tuple(groups), found.notes, found.without)


def _everything(info: ResctrlInfo) -> dict[str, dict[int, str]]:
    """The schemata of a group that is limited in nothing."""
    all_of = {
        name: {domain.id: f"{cache.full_mask:x}" for domain in info.domains[name]}
        for name, cache in info.caches.items()
    }
    if info.bandwidth is not None:
        all_of[MB] = {domain.id: str(info.bandwidth.no_limit) for domain in info.domains[MB]}
    return all_of


class ContainerView:
    """What isolation sees of the containers of an engine. A record that is the same as before is not looked at again."""

    def __init__(
        self,
        rdt_class_of: Callable[[ContainerRecord], str] = lambda record: "",
        parts_of: Callable[[Placement], tuple[tuple[str, frozenset[int]], ...]] = lambda place: (),
    ) -> None:
        self._rdt_class_of = rdt_class_of
        self._parts_of = parts_of
        self._known: dict[str, tuple[ContainerRecord, Optional[IsolatedContainer]]] = {}

    def of(self, grants: Mapping[str, ContainerRecord]) -> tuple[IsolatedContainer, ...]:
        """The containers that isolation is about: those that are released or opted out are left alone."""
        known, self._known = self._known, {}
        for key, record in grants.items():
            before = known.get(key)
            self._known[key] = before if before and before[0] is record else (record, self._seen(key, record))
        return tuple(seen for _, seen in self._known.values() if seen is not None)

    def _seen(self, key: str, record: ContainerRecord) -> Optional[IsolatedContainer]:
        if record.stance in LEFT_ALONE or record.life in (Life.HELD, Life.CLAIM):
            return None
        return IsolatedContainer(
            key,
            record.container.path,
            record.isolation,
            record.isolation_why,
            record.cpus,
            record.own,
            self._rdt_class_of(record),
            record.life is Life.RUNNING,
            record.placement.group.rpartition("[")[0],
            # What it uses is nothing of what it is.
            replace(as_asked(record), milli_used=0, milli_size=None),
            dict(record.asked).get(SCHEDULING, ""),
            self._parts_of(record.placement),
        )


def as_asked(record: ContainerRecord) -> Container:
    """A container with the classes that NRI plugins have asked for, which count before its annotations."""
    classes: dict[str, Any] = {name: value for name, value in record.asked if name in CLASSES_ASKED}
    if not classes:
        return record.container
    return replace(record.container, preferences=replace(record.container.preferences, **classes))
