"""Classes of CPUs: which CPU has which, and what cpufreq and cpuidle should have for it. Pure.

Which CPU has which class, the first that says something:

1. A CPU that containers own has theirs, where they are all of one.
2. A reserved CPU has ``CpuSection.reserved``.
3. A CPU that containers share has the class that all of them are of; else, and where they are of none, ``shared``. One that
   the node leaves alone is of none.
4. A CPU of ours that nothing uses has ``idle``, else ``shared``.
5. Others have none, and are left as they are.

A *clock domain* is CPUs that cannot have frequencies of their own: those of one cpufreq policy, and the threads of a core.
It has the highest of what its CPUs want. What raises it is had as soon as one CPU wants it: the highest minimum, the
governor performance, the preference performance, boost. What lowers it is had where all want it: of maxima the highest, of
governors the fastest, of preferences the one nearest to performance, no boost. A CPU that runs something and has no class
wants what is there; one that nothing uses wants nothing. Idle states are those of a core: one that a class of one of its
threads disables is disabled for both, as the core would not sleep deeper anyway.

Frequencies are kHz, as in sysfs (Documentation/admin-guide/pm/cpufreq.rst, cpuidle.rst).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Callable, Optional, TypeVar, Union

from cri_proxy.isolation.model import FILE, IsolatedContainer, Setting
from cri_proxy.isolation.named import named_class
from cri_proxy.isolation.notes import not_configured
from policies.frozen import frozen
from policies.machine.cpus import NO_CPUS, format_cpus
from policies.machine.topology import Topology

SUBJECT = "clocks"

_Value = TypeVar("_Value")

# ---------------------------------------------------------------------- what is written

#: Frequencies by name: the lowest, the highest without boost, the highest.
MIN, BASE, TURBO = SYMBOLS = ("min", "base", "turbo")
#: kHz, or one of ``SYMBOLS``.
Frequency = Union[int, str]
FREQUENCY_EXPECTED = "a frequency such as 3.2GHz, 800MHz or 2400000 (kHz), or min, base or turbo"
_FREQUENCY = re.compile(r"([0-9]{0,9}\.?[0-9]{1,9})\s*(ghz|g|mhz|m|khz|k)?", re.IGNORECASE)
_KHZ = {"g": 1_000_000, "m": 1000, "k": 1, "": 1}
#: Beyond any CPU's.
_MOST_KHZ = 100_000_000

#: Files of a cpufreq policy.
_MINIMUM, _MAXIMUM, _GOVERNOR = "scaling_min_freq", "scaling_max_freq", "scaling_governor"
_PREFERENCE = "energy_performance_preference"

#: The names of energy performance preferences, and the numbers that stand for them (msr-index.h, amd-pstate.c).
PREFERENCES = {"performance": 0, "balance_performance": 128, "balance_power": 192, "power": 255}
PREFERENCE_EXPECTED = f"{', '.join(PREFERENCES)}, or a number from 0 to 255"
PERFORMANCE = "performance"
#: Governors, the slowest first; others are between the last two.
_GOVERNORS = ("powersave", "userspace", "conservative", "ondemand", "schedutil")
PACKAGE, SYSTEM = TURBO_DOMAINS = ("package", "system")


@frozen
class CpuClass:
    """What CPUs of a class have; None and "" = as it is. ``disabled``: idle states by name, such as "C6".

    ``preference``: a name of ``PREFERENCES``, or a number as text. ``turbo_priority``: of the classes that have CPUs in a
    turbo domain those with the highest have "turbo" there, and it is "base" for the others; all 0: every class has it.
    """

    min_freq: Optional[Frequency] = None
    max_freq: Optional[Frequency] = None
    governor: str = ""
    preference: str = ""
    disabled: tuple[str, ...] = ()
    boost: Optional[bool] = None
    turbo_priority: int = 0


@frozen
class CpuSection:
    """The option ``control.cpu``. ``idle``, ``shared``, ``reserved``, ``exclusive``: names of classes, "" = none.

    ``exclusive``: of containers that own CPUs and have no class otherwise. ``written``: the section as our key has it.
    """

    classes: Mapping[str, CpuClass] = field(default_factory=dict)
    idle: str = ""
    shared: str = ""
    reserved: str = ""
    exclusive: str = ""
    turbo_domain: str = PACKAGE
    written: str = "{}"

    @property
    def has_classes(self) -> bool:
        return bool(self.classes)


def read_frequency(text: str) -> Optional[Frequency]:
    """A frequency as people write it; None = none: "" and 0, as in the peers.

    :raises ValueError: it is none; the message is what was expected.
    """
    word = text.strip().lower()
    if word in SYMBOLS:
        return word
    if not word:
        return None
    found = _FREQUENCY.fullmatch(word)
    if not found:
        raise ValueError(FREQUENCY_EXPECTED)
    khz = round(float(found[1]) * _KHZ[(found[2] or "")[:1]])
    if khz > _MOST_KHZ or (khz == 0 and float(found[1]) > 0):
        raise ValueError(FREQUENCY_EXPECTED)
    return khz or None


def read_preference(text: str) -> str:
    """An energy performance preference by its name, where its number has one; "" = none.

    :raises ValueError: it is none; the message is what was expected.
    """
    word = text.strip().lower()
    if word in PREFERENCES or word in ("", "default"):
        return "" if word == "default" else word
    if not word.isdecimal() or len(word) > 3 or int(word) > 255:
        raise ValueError(PREFERENCE_EXPECTED)
    return next((name for name, number in PREFERENCES.items() if number == int(word)), str(int(word)))


def preference_number(text: str) -> int:
    """0 = performance, 255 = power; of an unknown name that of none."""
    return PREFERENCES.get(text, int(text) if text.isdecimal() else 256)


def is_upside_down(each: CpuClass) -> bool:
    """Whether the minimum of a class is above its maximum on any machine."""
    low, high = each.min_freq, each.max_freq
    if isinstance(low, int) and isinstance(high, int):
        return low > high
    if isinstance(low, str) and isinstance(high, str):
        return SYMBOLS.index(low) > SYMBOLS.index(high)
    return False


# ---------------------------------------------------------------------- what the kernel offers


@frozen
class ClockPolicy:
    """One folder of cpufreq, ``path``. ``cpus``: those of it that are online; ``related``: those that share its clock.

    ``least``, ``most``: what the hardware can; ``base``: without boost, 0 = not known. ``limits``: the minimum and maximum
    that are there now. ``table``: the frequencies there are, where it is not any between. ``boost``: its own switch,
    "" = none. ``preferences`` empty: the driver has none.
    """

    path: str
    cpus: frozenset[int]
    related: frozenset[int]
    least: int
    most: int
    base: int = 0
    limits: tuple[int, int] = (0, 0)
    table: tuple[int, ...] = ()
    governor: str = ""
    governors: tuple[str, ...] = ()
    preferences: tuple[str, ...] = ()
    boost: str = ""


@frozen
class IdleState:
    """An idle state of one CPU; ``path``: the file that disables it."""

    name: str
    path: str


@frozen
class ClockInfo:
    """What there is. ``states``: by CPU, the least sleepy first. ``boost``: the whole machine's switch, "" = none;
    ``is_inverse``: it says "no turbo"."""

    policies: tuple[ClockPolicy, ...] = ()
    states: Mapping[int, tuple[IdleState, ...]] = field(default_factory=dict)
    boost: str = ""
    is_inverse: bool = False


# ---------------------------------------------------------------------- which CPU has which class


@frozen
class Usage:
    """What containers are on which CPUs. ``reserved``: the node's reserved CPUs; ``ours``: those that containers may have.

    ``others``: where containers run that the node leaves alone. ``balloon_class``: by type of balloons; ``default``: the
    class of balloons and idle CPUs that nothing else names.
    """

    containers: Sequence[IsolatedContainer]
    ours: frozenset[int]
    reserved: frozenset[int] = NO_CPUS
    others: frozenset[int] = NO_CPUS
    balloon_class: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


@frozen
class Assigned:
    """The class of one CPU, what says so, and the containers that it is there for."""

    name: str
    why: str
    keys: tuple[str, ...] = ()


def class_of(section: CpuSection, usage: Usage, each: IsolatedContainer) -> str:
    """The class of a container, "" = none."""
    asked = each.container.preferences.cpu_class if each.container is not None else ""
    given = [usage.balloon_class.get(each.balloon, "") or usage.default] if each.balloon else []
    given += [section.exclusive] if each.owned else []
    return named_class(section.classes, each, asked, given) or ""


def unknown_classes(section: CpuSection, usage: Usage) -> frozenset[str]:
    """Names that annotations and balloon types ask for, and the section has not."""
    asked = {each.container.preferences.cpu_class for each in usage.containers if each.container is not None}
    types = {kind for each in usage.containers for kind in (each.balloon, *[name for name, _ in each.parts])}
    named = {usage.balloon_class.get(kind, "") for kind in types}
    return frozenset((asked | named) - {""} - section.classes.keys())


def assign(section: CpuSection, usage: Usage) -> tuple[dict[int, Assigned], frozenset[int]]:
    """The class of each CPU that has one, and the CPUs that something runs on without one."""
    owners: dict[int, list[IsolatedContainer]] = {}
    sharers: dict[frozenset[int], list[IsolatedContainer]] = {}
    containers = _by_part(usage.containers)
    for each in containers:
        for cpu in each.owned:
            owners.setdefault(cpu, []).append(each)
        sharers.setdefault(each.cpus - each.owned, []).append(each)
    known = {(each.key, each.balloon): class_of(section, usage, each) for each in containers}
    # Many containers have one set of CPUs: what a CPU has is worked out once for each combination of these.
    on: dict[int, list[int]] = {}
    groups = list(sharers.values())
    for number, cpus in enumerate(sharers):
        for cpu in cpus:
            on.setdefault(cpu, []).append(number)
    seen: dict[tuple[int, ...], Optional[Assigned]] = {}

    def shared(cpu: int) -> Optional[Assigned]:
        numbers = tuple(on[cpu])
        if numbers not in seen:
            seen[numbers] = _of_sharers([each for n in numbers for each in groups[n]], known, section)
        return seen[numbers]

    found: dict[int, Assigned] = {}
    unnamed: set[int] = set()
    idle = next(
        (name for name in (section.idle, section.shared, usage.default) if name in section.classes), ""
    )
    for cpu in usage.ours | usage.reserved | owners.keys() | on.keys():
        if cpu in owners:
            got = _of_owners(owners[cpu], known)
        elif cpu in usage.reserved and section.reserved in section.classes:
            got = Assigned(section.reserved, "it is reserved")
        elif cpu in usage.others:
            got = _of_sharers((), known, section)
        elif cpu in on:
            got = shared(cpu)
        else:
            got = Assigned(idle, "no container may run there") if idle else None
        if got is not None:
            found[cpu] = got
        elif cpu in owners or cpu in on:
            unnamed.add(cpu)
    return found, frozenset(unnamed | (usage.others - found.keys()))


def _by_part(containers: Iterable[IsolatedContainer]) -> list[IsolatedContainer]:
    """Containers of composite balloons as one in each part, which has the CPU class of its own type; others as they are."""
    found: list[IsolatedContainer] = []
    for each in containers:
        own = [(kind, cpus & each.owned) for kind, cpus in each.parts]
        found += [replace(each, balloon=kind, cpus=cpus, owned=cpus) for kind, cpus in own]
        left = each.owned.difference(*[cpus for _, cpus in own])
        if not each.parts or each.cpus - each.owned or left:
            found.append(replace(each, cpus=each.cpus - (each.owned - left), owned=left) if own else each)
    return found


def _of_owners(
    owners: Sequence[IsolatedContainer], known: Mapping[tuple[str, str], str]
) -> Optional[Assigned]:
    names = {known[each.key, each.balloon] for each in owners}
    if len(names) > 1 or "" in names:
        return None
    return Assigned(names.pop(), f"{owners[0].path} owns it", tuple(sorted(each.key for each in owners)))


def _of_sharers(
    sharers: Sequence[IsolatedContainer], known: Mapping[tuple[str, str], str], section: CpuSection
) -> Optional[Assigned]:
    keys = tuple(sorted(each.key for each in sharers))
    names = {known[each.key, each.balloon] for each in sharers}
    if len(names) == 1 and "" not in names:
        more = f" and {len(sharers) - 1} more" if len(sharers) > 1 else ""
        return Assigned(names.pop(), f"{sharers[0].path}{more} may run there, all of that class", keys)
    if section.shared in section.classes:
        return Assigned(section.shared, "containers share it", keys)
    return None


# ---------------------------------------------------------------------- what is wanted


@frozen
class _Want:
    """What one class wants of one policy, in the numbers of its hardware; None and "" = as it is."""

    low: Optional[int] = None
    high: Optional[int] = None
    governor: str = ""
    preference: str = ""
    boost: Optional[bool] = None


_AS_IT_IS = _Want()


class Planning:
    """One look: the settings of all CPUs that have a class; ``notes``: what of them cannot be had here."""

    def __init__(
        self,
        info: ClockInfo,
        section: CpuSection,
        usage: Usage,
        topology: Topology,
        before: Mapping[str, str] = {},
    ) -> None:
        """``before``: what was at a place before us, which it has again once nothing wants it."""
        self._before = before
        self._info = info
        self._section = section
        self._topology = topology
        self._class_of, self._unnamed = assign(section, usage)
        self._unnamed |= topology.online - usage.ours - usage.reserved - self._class_of.keys()
        self._siblings = {cpu: core for core in topology.cores for cpu in core}
        self._winners = self._priorities()
        #: What cannot be had, and on which CPUs.
        self._noted: dict[str, set[int]] = {
            sentence: set() for sentence in not_configured("CPU", unknown_classes(section, usage))
        }

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            sentence + (f" (CPUs {format_cpus(frozenset(cpus))})" if cpus else "")
            for sentence, cpus in self._noted.items()
        )

    def settings(self) -> list[Setting]:
        """In the order in which the kernel takes them: boost, then of each policy governor, limits, preference."""
        found = list(self._machine_boost())
        for policy, domain in self._domains():
            found += self._policy_settings(policy, domain)
        for cpu in sorted(self._info.states):
            found += self._idle_settings(cpu)
        return found

    # ------------------------------------------------------------------ frequencies

    def _domains(self) -> Iterator[tuple[ClockPolicy, frozenset[int]]]:
        """Each policy with a CPU that has a class, and its clock domain."""
        joined = _joined([policy.related | policy.cpus for policy in self._info.policies], self._siblings)
        for policy in self._info.policies:
            if not policy.cpus.isdisjoint(self._class_of):
                yield policy, joined[min(policy.cpus)]

    def _policy_settings(self, policy: ClockPolicy, domain: frozenset[int]) -> Iterator[Setting]:
        classed = {cpu: self._class_of[cpu] for cpu in sorted(domain & self._class_of.keys())}
        wants = [self._want(policy, name, cpus) for name, cpus in self._by_turbo(classed)]
        # A CPU that runs something, and of which nothing is said, wants what is there.
        want = highest(wants, not domain.isdisjoint(self._unnamed))
        why, keys = _why(classed), tuple(sorted({key for each in classed.values() for key in each.keys}))

        def setting(name: str, value: str) -> Setting:
            return Setting(SUBJECT, f"{FILE}{policy.path}/{name}", value, why, keys)

        if policy.boost and want.boost is not None:
            yield setting(policy.boost, str(int(want.boost)))
        governor = want.governor if self._has_governor(policy, want.governor, domain) else ""
        preference = self._preference(policy, want.preference, governor, domain)
        if governor == PERFORMANCE and preference:
            # Before the governor, which changes it: what is remembered is what was there before both.
            yield setting(_PREFERENCE, preference)
        if governor:
            yield setting(_GOVERNOR, governor)
        yield from (setting(name, str(khz)) for name, khz in self._limits(policy, want, domain))
        if governor != PERFORMANCE and preference:
            yield setting(_PREFERENCE, preference)

    def _by_turbo(self, classed: Mapping[int, Assigned]) -> Iterable[tuple[tuple[str, bool], frozenset[int]]]:
        """The classes of a domain, each with whether it has turbo, and the CPUs of it."""
        found: dict[tuple[str, bool], set[int]] = {}
        for cpu, each in classed.items():
            found.setdefault((each.name, self._has_turbo(cpu, each.name)), set()).add(cpu)
        return [(name, frozenset(cpus)) for name, cpus in found.items()]

    def _priorities(self) -> dict[int, int]:
        """By turbo domain the highest priority of the classes that have CPUs in it."""
        found: dict[int, int] = {}
        for cpu, each in self._class_of.items():
            domain, priority = self._turbo_domain(cpu), self._section.classes[each.name].turbo_priority
            found[domain] = max(found.get(domain, 0), priority)
        return found

    def _turbo_domain(self, cpu: int) -> int:
        is_one = self._section.turbo_domain == SYSTEM or cpu not in self._topology.cpus
        return 0 if is_one else self._topology.cpus[cpu].socket

    def _has_turbo(self, cpu: int, name: str) -> bool:
        return self._section.classes[name].turbo_priority >= self._winners[self._turbo_domain(cpu)]

    def _want(self, policy: ClockPolicy, named: tuple[str, bool], cpus: frozenset[int]) -> _Want:
        name, has_turbo = named
        one = self._section.classes[name]
        low = self._khz(policy, one.min_freq, has_turbo, f"minFreq of the CPU class {name}", cpus)
        high = self._khz(policy, one.max_freq, has_turbo, f"maxFreq of the CPU class {name}", cpus)
        if low is not None and high is not None and low > high:
            self._note(f"minFreq of the CPU class {name} is above its maxFreq, {high} kHz, and is that", cpus)
            low = high
        return _Want(low, high, one.governor, one.preference, one.boost)

    def _khz(
        self,
        policy: ClockPolicy,
        asked: Optional[Frequency],
        has_turbo: bool,
        what: str,
        cpus: frozenset[int],
    ) -> Optional[int]:
        """A frequency as the hardware of a policy has it."""
        if asked is None:
            return None
        if asked == TURBO and has_turbo:
            return policy.most
        if isinstance(asked, str) and asked != MIN:
            if not policy.base:
                self._note("the frequency without boost is not known here: base is the highest one", cpus)
            return max(policy.least, min(policy.base, policy.most)) if policy.base else policy.most
        if asked == MIN:
            return policy.least
        assert isinstance(asked, int)
        taken = min(max(asked, policy.least), policy.most)
        if taken != asked:
            self._note(
                f"{what} is {asked} kHz, the hardware has {policy.least} to {policy.most}: it is {taken}",
                cpus,
            )
        return taken

    def _limits(self, policy: ClockPolicy, want: _Want, domain: frozenset[int]) -> list[tuple[str, int]]:
        """The two limits in an order in which the minimum is never above the maximum: kernels before 5.4 refuse that."""
        low, high = rounded(policy.table, want.low, want.high)
        is_low, is_high = policy.limits
        there_low, there_high = (
            int(text) if (text := self._without_us(policy, name, "")).isdecimal() else khz
            for name, khz in zip((_MINIMUM, _MAXIMUM), policy.limits)
        )
        if low is None and high is not None and there_low >= high:
            low = high  # the minimum that is there would be above it
        elif high is None and low is not None and there_high and low > there_high:
            self._note(
                f"the minimum is {there_high} kHz, not {low}: the maximum that is there is that", domain
            )
            low = there_high
        # One that we have set, and that nothing wants any more, is put back here: it may be in the way of the other one.
        low = there_low if low is None and high is not None and is_low != there_low else low
        high = there_high if high is None and low is not None and is_high != there_high else high
        found = [(name, khz) for name, khz in ((_MAXIMUM, high), (_MINIMUM, low)) if khz]
        return found if high is None or high >= is_low else found[::-1]

    def _without_us(self, policy: ClockPolicy, name: str, now: str) -> str:
        """What a file of a policy says where nothing is wanted of it."""
        return self._before.get(f"{FILE}{policy.path}/{name}", now)

    def _has_governor(self, policy: ClockPolicy, governor: str, domain: frozenset[int]) -> bool:
        if not governor or governor in policy.governors:
            return True
        there = ", ".join(policy.governors) or "none"
        self._note(f"there is no cpufreq governor {governor} here, but {there}", domain)
        return False

    def _preference(self, policy: ClockPolicy, asked: str, governor: str, domain: frozenset[int]) -> str:
        """What can be had of a preference; what cannot is noted.

        Where the governor is performance, active drivers have that preference, too, and answer EBUSY to others
        (intel_pstate.c, amd-pstate.c).
        """
        if not policy.preferences:
            if asked:
                self._note("the cpufreq driver has no energy performance preference here", domain)
            return ""
        is_performance = (governor or self._without_us(policy, _GOVERNOR, policy.governor)) == PERFORMANCE
        if is_performance and asked and preference_number(asked) > 0:
            self._note(
                f"the energy performance preference {asked} does not go with the governor performance", domain
            )
        return (PERFORMANCE if governor else "") if is_performance else asked

    # ------------------------------------------------------------------ boost of the machine

    def _machine_boost(self) -> Iterator[Setting]:
        """Where policies have no switch of their own the machine is one domain: all of it, or what raises it."""
        wanted = {self._section.classes[each.name].boost for each in self._class_of.values()}
        if wanted <= {None} or any(policy.boost for policy in self._info.policies):
            return
        if not self._info.boost:
            self._note("boost cannot be switched here", ())
            return
        want = highest(
            [_Want(boost=each) for each in wanted], bool(self._topology.online - self._class_of.keys())
        ).boost
        if want is None:
            self._note(
                "boost is one switch for the machine here, and stays: not all CPUs are to be without", ()
            )
            return
        names = sorted(n for n, each in self._section.classes.items() if each.boost is want)
        why = f"the CPU class {', '.join(names)} has boost {'on' if want else 'off'}"
        yield Setting(SUBJECT, f"{FILE}{self._info.boost}", str(int(want != self._info.is_inverse)), why)

    # ------------------------------------------------------------------ idle states

    def _idle_settings(self, cpu: int) -> Iterator[Setting]:
        classed = {
            each: self._class_of[each]
            for each in sorted(self._siblings.get(cpu, frozenset((cpu,))))
            if each in self._class_of
        }
        disabled = {state for each in classed.values() for state in self._section.classes[each.name].disabled}
        if cpu not in self._class_of or not disabled:
            return
        states, why = self._info.states[cpu], _why(classed)
        keys = tuple(sorted({key for each in classed.values() for key in each.keys}))
        for name in sorted(disabled):
            found = [state for state in states if _is_called(state.name, name)]
            if not found:
                there = ", ".join(state.name for state in states)
                self._note(f"there is no idle state {name} here, but {there}", (cpu,))
            for state in found:
                yield Setting(SUBJECT, f"{FILE}{state.path}", "1", why, keys)

    def _note(self, sentence: str, cpus: Collection[int]) -> None:
        self._noted.setdefault(sentence, set()).update(cpus)


def highest(wants: Sequence[_Want], has_others: bool) -> _Want:
    """What a clock domain has of what its CPUs want. ``has_others``: one of them wants what is there."""
    asked = [*wants, _AS_IT_IS] if has_others or not wants else list(wants)
    preference = _of_all([each.preference for each in asked], lambda text: -preference_number(text), "")
    boosts = {each.boost for each in asked}
    return _Want(
        max((each.low for each in asked if each.low is not None), default=None),
        _of_all([each.high for each in asked], lambda khz: khz or 0, None),
        _raised([each.governor for each in asked])
        or _of_all([each.governor for each in asked], governor_rank, ""),
        _raised([each.preference for each in asked]) or preference,
        True if True in boosts else False if boosts == {False} else None,
    )


def _raised(words: Collection[str]) -> str:
    return PERFORMANCE if PERFORMANCE in words else ""


def _of_all(values: Sequence[_Value], rank: Callable[[_Value], int], nothing: _Value) -> _Value:
    """The highest, where there is one of each."""
    return nothing if nothing in values else max(values, key=rank)


def governor_rank(governor: str) -> int:
    """How fast a governor is among others."""
    if governor in _GOVERNORS:
        return _GOVERNORS.index(governor)
    return len(_GOVERNORS) + (governor == PERFORMANCE)


def rounded(
    table: Sequence[int], low: Optional[int], high: Optional[int]
) -> tuple[Optional[int], Optional[int]]:
    """Limits as the kernel has them where there are only the frequencies of a table: the minimum goes up, the maximum down,
    and where none is between them both are the next higher one (cpufreq_frequency_table_verify)."""
    if not table:
        return low, high
    if high is not None:
        high = max((khz for khz in table if khz <= high), default=min(table))
    if low is not None:
        low = min((khz for khz in table if khz >= low), default=max(table))
    if low is not None and high is not None and low > high:
        high = low
    return low, high


def _joined(
    groups: Iterable[frozenset[int]], siblings: Mapping[int, frozenset[int]]
) -> dict[int, frozenset[int]]:
    """Each CPU's clock domain: groups that have a CPU, or a core, in common are one."""
    of: dict[int, frozenset[int]] = {}
    for group in groups:
        whole = group.union(*(siblings.get(cpu, NO_CPUS) for cpu in group))
        whole = whole.union(*(of[cpu] for cpu in whole if cpu in of))
        of.update(dict.fromkeys(whole, whole))
    return of


def _why(classed: Mapping[int, Assigned]) -> str:
    """Of the first CPU of each class what says so."""
    first: dict[str, str] = {}
    for cpu, each in classed.items():
        first.setdefault(each.name, f"CPU {cpu} is of the class {each.name}: {each.why}")
    return "; ".join(first.values())


def _is_called(name: str, asked: str) -> bool:
    """Whether an idle state is the one that a class names: drivers say C1_ACPI for the firmware's C1."""
    return asked.lower() in (name.lower(), name.lower().partition("_")[0])


def is_same(place: str, seen: str, value: str) -> bool:
    """Whether two texts of a file of cpufreq or cpuidle are one value."""
    if place.endswith(f"/{_PREFERENCE}"):
        return preference_number(seen) == preference_number(value) < 256
    return seen.isdecimal() and value.isdecimal() and int(seen) == int(value)
