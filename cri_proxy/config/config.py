"""The configuration: sources, of which later ones win key by key, into typed values with their origins.

Reading is all or nothing: any error in any source, also in a value that a later source replaces, and there is
no configuration but ``BadConfig``. What the daemon does then is rule 7 of the design and not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Optional

import voluptuous as vol

from cri_proxy.config import compatibility as config_intel
from cri_proxy.config.balloons import BalloonSpec, read_types
from cri_proxy.config.checks import CpuConstraint
from cri_proxy.config.constants import Constants
from cri_proxy.config.gone import GONE, OLD_VALIDATORS, VALIDATORS_KEY, OldValidators, ignored
from cri_proxy.config.load_classes import read_load_classes
from cri_proxy.config.options.table import BY_KEY, OPTIONS, SECTIONS
from cri_proxy.config.sections.reading import PART, READERS, read_parts, section_of
from cri_proxy.text.sources import (
    BadText,
    Remark,
    SettingsSource,
    SourceEntry,
    Table,
    Tree,
    describe,
    read_entries,
    show_key,
)
from policies.balloons.types import BalloonSettings, BalloonType
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.reserved import Reservation
from policies.settings import ClassSelectors, EngineOptions, PlacementSettings

__all__ = [
    "BadConfig",
    "Config",
    "CpuConstraint",
    "LoadedConfig",
    "SettingsSource",
    "engine_options",
    "placement_settings",
    "read_config",
    "reservation",
]

_SCHEMA = vol.Schema({vol.Optional(option.key): option.check for option in OPTIONS})
_ALL_SECTIONS = config_intel.KnownSections()
#: The options that are more than texts: read here, where each part of them knows its line.
_TYPES = "policy.balloons.BalloonTypes"
#: Sections of classes, and the subjects that write what they say. A section says whether it ``has_classes``.
_SUBJECTS = {
    "control.rdt": ("isolation.caches", "isolation.bandwidth"),
    "control.blockio": ("isolation.disks",),
    "control.cpu": ("isolation.clocks",),
    "control.scheduling": ("isolation.scheduling",),
    "control.memory": ("isolation.memory",),
}
_LOADS = "policy.balloons.LoadClasses"
_TABLES = {_TYPES: read_types, _LOADS: read_load_classes}
#: Policies that give Guaranteed containers CPUs of their own unless told otherwise.
_EXCLUSIVE_PRESETS = ("topology-aware",)
#: A foreign file may consist of unknown keys: beyond these many a source's warnings are counted, not written.
MAX_WARNINGS = 50
_KEY_CHARACTERS = 60


class BadConfig(Exception):
    """The sources make no configuration. ``errors``: sentences with file, line, key, value, expectation."""

    def __init__(self, errors: Sequence[str], warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)
        self.warnings = tuple(warnings)


@frozen
class Config:
    """Immutable: the value and the origin ("default", "FILE:LINE", "command line") of every option; and the constants."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    constants: Constants = field(default_factory=Constants)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def show(self) -> list[tuple[str, str, str]]:
        """(key, value as a file would say it, origin) of every option, in the order of the documentation."""
        return [(o.key, o.check.write(self.values[o.key]), self.origins[o.key]) for o in OPTIONS]

    def differences(self, other: Config) -> tuple[str, ...]:
        """The keys whose values differ."""
        return tuple(o.key for o in OPTIONS if self.values[o.key] != other.values[o.key])

    def restart_needed(self, other: Config) -> tuple[str, ...]:
        """Those of the differences that a running daemon cannot take over."""
        return tuple(key for key in self.differences(other) if not BY_KEY[key].live)

    def taking_over(self, other: Config) -> Config:
        """What a running daemon has after a reload: all of ``other`` but what needs a restart."""
        kept = self.restart_needed(other)
        return Config(
            {**other.values, **{key: self.values[key] for key in kept}},
            {**other.origins, **{key: self.origins[key] for key in kept}},
            self.constants,
        )


@frozen
class LoadedConfig:
    """A configuration, and sentences about what in its sources an operator should look at."""

    config: Config
    warnings: tuple[str, ...] = ()


def read_config(
    sources: Iterable[SettingsSource],
    *,
    topology_cpus: Optional[frozenset[int]] = None,
    strict: bool = False,
    constants: Optional[Constants] = None,
) -> LoadedConfig:
    """Merge the sources over the defaults; the last one wins.

    ``topology_cpus``: the online CPUs, if they are known; sets of CPUs are then held against them.
    ``strict``: what is likely a mistake, such as an unknown key, is an error; notes stay warnings, and so do keys of
    options that are gone. ``constants``: of the running program; by default as on every node.

    :raises BadConfig: any error in any source.
    """
    values = {option.key: option.default for option in OPTIONS}
    origins = dict.fromkeys(values, "default")
    constants = constants or Constants()
    errors: list[str] = []
    remarks: list[Remark] = []
    old_validators = OldValidators()
    # 1. Each source by itself, so that its errors are found even where a later source replaces the value.
    for source in sources:
        try:
            entries, doubts = read_entries(source, _ALL_SECTIONS)
        except BadText as error:
            errors.append(str(error))
            continue
        found = [Remark(doubt) for doubt in doubts]
        found += [ignored(entry, constants) for entry in entries if entry.key in GONE]
        old = [entry for entry in entries if entry.key in OLD_VALIDATORS]
        settings = _settle(
            [e for e in entries if e.key not in GONE and e.key not in OLD_VALIDATORS], errors, found
        )
        typed = _validate(settings, errors, found)
        words = old_validators.read(old, typed.get(VALIDATORS_KEY), errors, found)
        remarks += _capped(found, source.name)
        values.update(typed)
        origins.update({key: _origin(_first(settings, key)) for key in typed})
        if words is not None:
            values[VALIDATORS_KEY], origins[VALIDATORS_KEY] = words, f"{old[-1].origin} ({old[-1].key})"
    _place_beside(values, origins)
    config = Config(MappingProxyType(values), MappingProxyType(origins), constants)
    # 2. The result as a whole.
    errors += _shared_sockets(config)
    remarks += _unused_classes(config)
    remarks += _unknown_loads(config)
    remarks += _unknown_scheduling(config)
    if topology_cpus is not None:
        _compare_cpus(config, topology_cpus, errors, remarks)
    if strict:
        errors += [remark.text for remark in remarks if remark.is_doubt]
    warnings = tuple(remark.text for remark in remarks if not (strict and remark.is_doubt))
    if errors:
        raise BadConfig(errors, warnings)
    return LoadedConfig(config, warnings)


def _place_beside(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Paths that nothing sets, and that follow another option's."""
    for option in OPTIONS:
        if option.beside and origins[option.key] == "default":
            default = PurePath(BY_KEY[option.beside].default).parent
            way = PurePath(option.default).relative_to(default)
            values[option.key] = str(PurePath(values[option.beside]).parent / way)


def placement_settings(config: Config) -> PlacementSettings:
    """What policies read."""
    cpus = config["placement.cpus"]
    preset = "exclusive" if config["policy.Active"] in _EXCLUSIVE_PRESETS else "shared"
    return PlacementSettings(
        ladder=config["placement.ladder"],
        unlimited=config["placement.unlimited"],
        besteffort=config["placement.besteffort"],
        memory=config["placement.memory"],
        memory_only_nodes=config["placement.memory_only_nodes"],
        reserved_namespaces=config["placement.reserved_namespaces"],
        size=config["placement.size"],
        ownership=preset if cpus == "preset" else cpus,
        l3=config["placement.l3"],
        smt="" if config["placement.smt"] == "any" else config["placement.smt"],
        cfs_quota=config["placement.cfs_quota"],
        hints=config["placement.hints"],
        prefer_isolated=config["placement.prefer_isolated"],
        prefer_shared=config["placement.prefer_shared"],
        colocate_pods=config["placement.colocate_pods"],
        colocate_namespaces=config["placement.colocate_namespaces"],
        balloons=balloon_settings(config),
    )


def balloon_settings(config: Config) -> BalloonSettings:
    """The balloon types, each with what it inherits from its section."""
    inherited = {
        "allocator_topology_balancing": config["policy.balloons.AllocatorTopologyBalancing"],
        "prefer_spread_on_physical_cores": config["policy.balloons.PreferSpreadOnPhysicalCores"],
        "show_containers_in_nrt": config["policy.balloons.ShowContainersInNrt"],
    }
    specs: tuple[BalloonSpec, ...] = config[_TYPES]
    types: list[BalloonType] = []
    for spec in specs:
        types.append(replace(spec.type, **{k: v for k, v in inherited.items() if k not in spec.given}))
    return BalloonSettings(tuple(types), inherited["show_containers_in_nrt"], config[_LOADS])


#: The subjects of isolation that write to the kernel what a plan says; and all of them: containers have classes where one
#: of them is not off.
RECONCILED = (
    "isolation.caches",
    "isolation.bandwidth",
    "isolation.cpu",
    "isolation.scheduling",
    "isolation.clocks",
    "isolation.interrupts",
    "isolation.disks",
    "isolation.memory",
)
SUBJECTS = (*RECONCILED, "isolation.monitoring", "isolation.protection", "isolation.turbo_most")


def subjects_on(config: Config) -> dict[str, str]:
    """The subjects of isolation that are not off, each with its mode; what is a flag is "on"."""
    values = {key: config[key] for key in SUBJECTS}
    return {
        key: "on" if value is True else str(value)
        for key, value in values.items()
        if value not in ("off", False)
    }


def class_selectors(config: Config) -> Optional[ClassSelectors]:
    """What says the classes of containers; None: no subject of isolation is on."""
    if not subjects_on(config):
        return None
    return ClassSelectors(config["isolation.protected"], config["isolation.batch"])


def engine_options(config: Config) -> EngineOptions:
    """What the engine reads."""
    return EngineOptions(
        restart_hold_s=config.constants.placement_restart_hold_s,
        unmanaged_namespaces=config["placement.unmanaged_namespaces"],
        unmanaged_handlers=config["placement.unmanaged_handlers"],
        preserve=config["placement.preserve"],
        max_moves=config["placement.max_moves"],
        move_exclusive=config["placement.move_exclusive"],
        cooldown_s=config["affinity.cooldown"],
        use_traffic=config["affinity.enabled"],
        declared_weight=config.constants.affinity_declared_weight,
        classes=class_selectors(config),
        keeps_apart=any(config[key] != "off" for key in ("isolation.caches", "isolation.bandwidth")),
    )


def reservation(
    config: Config, cgroup_cpus: Optional[frozenset[int]] = None, online: frozenset[int] = NO_CPUS
) -> Reservation:
    """The reserved CPUs wanted. ``cgroup_cpus``: those of the cgroup that the option names; None = none.

    ``online``: the machine's CPUs, for a set that is given by the CPUs that are not in it.
    """
    wanted: CpuConstraint = config["policy.ReservedResources.CPU"]
    return Reservation(wanted.milli, cgroup_cpus if wanted.cgroup else wanted.of(online))


def _settle(entries: list[SourceEntry], errors: list[str], remarks: list[Remark]) -> dict[str, SourceEntry]:
    """One entry for each option the source sets; what is left over goes to the errors and remarks."""
    active = config_intel.active_policy(entries)
    own = {entry.key for entry in entries}
    settings: dict[str, SourceEntry] = {}
    for given in entries:
        entry, remark = config_intel.translate(given, active)
        if remark is not None:
            remarks.append(remark)
        if entry is None or (entry.via and entry.key in own):
            continue
        if section_of(entry.key) is not None and entry.raw is not None:
            settings[entry.key] = entry
        elif entry.key in SECTIONS:
            found = describe(entry.raw)
            errors.append(f"{entry.origin}: {entry.key} is {found}, expected a mapping of options")
        elif entry.key not in BY_KEY:
            remarks.append(Remark(_unknown(entry, suggest=len(remarks) < MAX_WARNINGS)))
        elif entry.raw is None:
            remarks.append(Remark(f"{entry.origin}: {entry.written} has no value; it counts as not given"))
        else:
            settings[entry.key] = entry
    nothing, remark = config_intel.unpinned(entries, active)
    if nothing is not None and remark is not None:
        settings[nothing.key] = nothing
        remarks.append(remark)
    return settings


def _validate(
    settings: Mapping[str, SourceEntry], errors: list[str], remarks: list[Remark]
) -> dict[str, Any]:
    raw = {key: entry.raw for key, entry in settings.items()}
    typed: dict[str, Any] = {}
    for key, read in _TABLES.items():
        table = raw.get(key)
        if isinstance(table, Table):
            del raw[key]
            rows = read(table, errors, remarks.append)
            typed.update({} if rows is None else {key: rows})
    for option in READERS:
        parts = {key.partition(PART)[2]: settings[key] for key in settings if section_of(key) == option}
        is_refused = "" in parts and not isinstance(raw[option], Tree)  # as any option of another type
        for part in parts:
            if part or not is_refused:
                del raw[f"{option}{PART}{part}" if part else option]
        if parts and not is_refused:
            is_right, found = read_parts(option, parts, errors, remarks.append)
            typed.update({option: found} if is_right else {})
    try:
        return {**_SCHEMA(raw), **typed}
    except vol.MultipleInvalid as invalid:
        for error in invalid.errors:
            key = str(error.path[0])
            del raw[key]
            if len(error.path) > 1:  # it knows its own place
                errors.append(f"{error.path[1]}: {settings[key].written}: {error.msg}")
                continue
            entry, detail = settings[key], f" ({error.msg})" if error.msg else ""
            expected = f"expected {BY_KEY[key].check.expected}{detail}"
            errors.append(f"{entry.origin}: {entry.written} is {describe(entry.raw)}, {expected}")
    return {**_SCHEMA(raw), **typed}


def _first(settings: Mapping[str, SourceEntry], key: str) -> SourceEntry:
    """The entry that sets an option; of a section that is made of parts the first."""
    return settings.get(key) or next(settings[part] for part in settings if section_of(part) == key)


def _origin(entry: SourceEntry) -> str:
    return f"{entry.origin} ({entry.via})" if entry.via else entry.origin


def _unknown(entry: SourceEntry, suggest: bool) -> str:
    sentence = f"{entry.origin}: unknown key {show_key(entry.key)}"
    if entry.key.endswith("<<"):
        return f"{sentence}; merge keys are not followed"
    if not suggest or len(entry.key) > _KEY_CHARACTERS:
        return sentence
    nearest = _nearest(entry.key)
    return f"{sentence}; did you mean {nearest}?" if nearest else sentence


def _nearest(unknown: str) -> str:
    """The known key that looks most like it, or that has the same last part; "" for none."""
    known = [*BY_KEY] if "." in unknown else [*BY_KEY, *sorted(SECTIONS)]
    folded = {key.lower(): key for key in known}
    same_end = [key for key in folded if key.endswith("." + unknown.lower().rpartition(".")[2])]
    import difflib  # names are misspelt seldom: half a millisecond of a start

    nearest = difflib.get_close_matches(unknown.lower(), folded, n=1) or same_end[:1]
    return folded[nearest[0]] if nearest else ""


def _capped(remarks: list[Remark], name: str) -> list[Remark]:
    rest = remarks[MAX_WARNINGS:]
    if not rest:
        return remarks
    more = Remark(f"{name}: {len(rest)} more warnings like these", any(remark.is_doubt for remark in rest))
    return [*remarks[:MAX_WARNINGS], more]


def _unused_classes(config: Config) -> list[Remark]:
    """Classes that no subject writes: files of other programs have them, and isolation is off by default."""
    remarks = []
    for key, subjects in _SUBJECTS.items():
        section = config[key]
        if section is None or not section.has_classes or any(config[each] != "off" for each in subjects):
            continue
        off = f"{' and '.join(subjects)} {'are' if len(subjects) > 1 else 'is'} off"
        sentence = f"{config.origins[key]}: {key} has classes, and {off}: nothing is written for them"
        remarks.append(Remark(sentence, is_doubt=False))
    return remarks


def _unknown_loads(config: Config) -> list[Remark]:
    """Loads of balloon types that there is no class of."""
    classes = {load.name for load in config[_LOADS]}
    return [
        Remark(
            f"{config.origins[_TYPES]}: type {spec.type.name} has the load {show_key(load)}, expected one of {_LOADS}; "
            "it counts for nothing"
        )
        for spec in config[_TYPES]
        for load in spec.type.loads
        if load not in classes
    ]


def _unknown_scheduling(config: Config) -> list[Remark]:
    """Scheduling classes of balloon types that there are none of; where there is no section at all nothing is looked for."""
    section, place = config["control.scheduling"], config.origins[_TYPES]
    asked = {spec.type.name: spec.type.scheduling_class for spec in config[_TYPES]}
    return [
        Remark(
            f"{place}: type {name} has the scheduling class {show_key(cls)}, expected one of control.scheduling; it counts "
            "for nothing"
        )
        for name, cls in asked.items()
        if section is not None and cls and cls not in section.classes
    ]


def _shared_sockets(config: Config) -> list[str]:
    """Two roles of one socket: a relay that is its own runtime calls itself for ever."""
    errors = []
    ours = {_real(config["relay.socket"]): "relay.socket"}
    for extra in config["relay.extra_sockets"]:
        ours.setdefault(_real(extra), "relay.extra_sockets")
    view = {**ours, _real(config["control.socket"]): "control.socket"}
    for key in ("control.socket", "control.view_socket", "nri.socket", "relay.runtime_endpoint",
                "relay.image_endpoint"):  # fmt: skip
        taken = (view if key == "control.view_socket" else ours).get(_real(config[key]))
        if taken:
            sentence = f"{config.origins[key]}: {key} is {config[key]}"
            errors.append(f"{sentence}, expected another socket than {taken}")
    return errors


def _real(path: str) -> str:
    # /var/run is a symbolic link to /run on every distribution we run on.
    return path[len("/var") :] if path.startswith("/var/run/") else path


def _compare_cpus(config: Config, online: frozenset[int], errors: list[str], remarks: list[Remark]) -> None:
    for key in ("policy.ReservedResources.CPU", "policy.AvailableResources.CPU"):
        constraint: CpuConstraint = config[key]
        cpus, written = constraint.cpus, BY_KEY[key].check.write(constraint)
        sentence = f"{config.origins[key]}: {key} is {written}"
        machine = f"online CPUs are {format_cpus(online)}"
        if constraint.all_but:
            if key.startswith("policy.Available") and not constraint.of(online):
                errors.append(f"{sentence}, expected CPUs to be left: {machine}")
        elif cpus is not None and not cpus <= online:
            if cpus & online:
                text = f"{sentence}, of which {format_cpus(cpus - online)} is not online; {machine}"
                remarks.append(Remark(text))
            else:
                errors.append(f"{sentence}, expected CPUs of this machine: {machine}")


def view_socket(config: Config) -> Optional[Path]:
    """Where the view socket is, as ``control.view_socket`` says; None = there is none."""
    path = config["control.view_socket"]
    return Path(path) if path else None
