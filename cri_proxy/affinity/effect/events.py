"""The events, by CPU model, that count lines that come from another L3 or another NUMA node. Pure: a table.

PMCx043 of AMD's cores counts the data-cache fills that a load or store has waited for (demand fills), by where the line
came from. The generic cache-miss event is of no use here: on these cores it counts misses of the L2.

Up to Zen 2, and so on Hygon's first generation (family 18h, whose PMU Linux drives as that of 17h), a fill from another L3
of the same node has the unit mask of a fill from the own L3: only what comes from another node is told apart there.

Sources: Linux, tools/perf/pmu-events/arch/x86/: amdzen2/memory.json, amdzen3/memory.json, amdzen4/cache.json,
amdzen5/load-store.json for the cores, amdzen1/cache.json to amdzen5/l3-cache.json for the L3s, mapfile.csv for the
models. Linux has no PMCx043 for Zen 1: there likwid's src/includes/perfmon_zen_events.txt (DATA_CACHE_REFILLS).
"""

from __future__ import annotations

from typing import Optional

from policies.frozen import frozen

#: ``type`` of ``perf_event_attr`` (include/uapi/linux/perf_event.h).
TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_RAW = 0, 1, 4


@frozen
class Event:
    """The event of one counter. ``words``: the name of its figure; ``type`` and ``config``: of perf_event_attr."""

    name: str
    words: str
    config: int
    source: str
    type: int = TYPE_RAW


@frozen
class EventSet:
    """The events of one kind of core, counted together.

    ``base``: what all others are counted per, so that load is no effect; ``per``: so many of it (the figures are
    ``events`` per ``per``), ``per_words`` names that. ``unseen``: what these events do not tell apart, a sentence.
    ``l3_misses``, ``l3_lookups``: configs of the L3's own PMU (amd_l3); 0 = not known.
    """

    cpu: str
    base: Event
    per: float
    per_words: str
    events: tuple[Event, ...]
    unseen: str = ""
    l3_misses: int = 0
    l3_lookups: int = 0

    @property
    def all(self) -> tuple[Event, ...]:
        """In the order in which they are opened and read: the base first."""
        return (self.base, *self.events)


def _config(event: int, unit_mask: int) -> int:
    return event | unit_mask << 8


_PERF = "tools/perf/pmu-events/arch/x86"
_LIKWID = "likwid perfmon_zen_events.txt: DATA_CACHE_REFILLS"
_FILLS = 0x43
_INSTRUCTIONS = Event("instructions", "instructions", _config(0xC0, 0), f"{_PERF}: ex_ret_instr")
_OTHER_L3, _OTHER_NODES_CACHE, _OTHER_NODES_MEMORY = (
    "fills from another L3",
    "fills from a cache of another NUMA node",
    "fills from memory of another NUMA node",
)
_NOT_APART = (
    "fills from another L3 of the same NUMA node are counted with those from the same L3, so they do not show"
)
_THOUSAND = "thousand instructions"


def _old(cpu: str, source: str) -> EventSet:
    """Zen 1 and 2: "remote" is by the address's home node."""
    return EventSet(
        cpu,
        _INSTRUCTIONS,
        1000,
        _THOUSAND,
        (
            Event("other_nodes_cache", _OTHER_NODES_CACHE, _config(_FILLS, 0x10), source),
            Event("other_nodes_memory", _OTHER_NODES_MEMORY, _config(_FILLS, 0x40), source),
        ),
        _NOT_APART,
        l3_misses=_config(0x06, 0x01),
        l3_lookups=_config(0x01, 0x80),
    )


def _new(cpu: str, source: str, near: str, far: str, memory: str) -> EventSet:
    """Zen 3 and later: 0x04 is another L3 of the same node, 0x10 one of another node."""
    return EventSet(
        cpu,
        _INSTRUCTIONS,
        1000,
        _THOUSAND,
        (
            Event("other_l3", _OTHER_L3, _config(_FILLS, 0x14), f"{_PERF}/{source}: {near}, {far}"),
            Event("other_nodes_memory", _OTHER_NODES_MEMORY, _config(_FILLS, 0x40), f"{_PERF}/{source}: {memory}"),
        ),
        l3_misses=_config(0x04, 0x01),
        l3_lookups=_config(0x04, 0xFF),
    )  # fmt: skip


ZEN_1 = _old("Zen 1", _LIKWID)
HYGON_1 = _old("Hygon family 18h", _LIKWID)
ZEN_2 = _old("Zen 2", f"{_PERF}/amdzen2/memory.json: ls_refills_from_sys")
_DRAM = ("near_cache", "far_cache", "dram_io_far")
ZEN_3 = _new("Zen 3", "amdzen3/memory.json", "ext_cache_local", "ext_cache_remote", "mem_io_remote")
ZEN_4 = _new("Zen 4", "amdzen4/cache.json", *_DRAM)
ZEN_5 = _new("Zen 5", "amdzen5/load-store.json", *_DRAM)


@frozen
class CpuModel:
    """As /proc/cpuinfo has it."""

    vendor: str = ""
    family: int = 0
    model: int = 0

    @property
    def text(self) -> str:
        """For a sentence."""
        if not self.vendor:
            return "this CPU"
        return f"{self.vendor} family {self.family:#x} model {self.model:#x}"


#: By vendor and family, first match: models (``model >> 4``; None = all others) and the events. From mapfile.csv; Zen 6
#: (family 26) has no entry. Of Hygon the models below 4, which are Zen 1 (Dhyana); later ones have cores of their own.
_MODELS: dict[tuple[str, int], tuple[tuple[Optional[frozenset[int]], EventSet], ...]] = {
    ("AuthenticAMD", 23): ((frozenset({0, 1, 2}), ZEN_1), (None, ZEN_2)),
    ("AuthenticAMD", 25): ((frozenset({0, 2, 4, 5}), ZEN_3), (None, ZEN_4)),
    ("AuthenticAMD", 26): ((frozenset({0, 1, 2, 4, 6, 7}), ZEN_5),),
    ("HygonGenuine", 24): ((frozenset({0}), HYGON_1),),
}
_HYGON_MODELS = 4


def events_of(cpu: CpuModel) -> Optional[EventSet]:
    """The events of a CPU; None = it is not in the table."""
    if cpu.vendor == "HygonGenuine" and cpu.model >= _HYGON_MODELS:
        return None
    for models, events in _MODELS.get((cpu.vendor, cpu.family), ()):
        if models is None or cpu.model >> 4 in models:
            return events
    return None


# ---------------------------------------------------------------------- lines that the L3 has not had

# What measured protection counts: a neighbour that fills the L3 shows in it, and not in the events above, where
# lines from near memory are left out. 0x08 and 0x40 of PMCx043 are fills from memory, near and far: on all these models
# what was neither in the own L3 nor in another cache.

_MEMORY_FILLS = Event("memory", "fills from memory", _config(_FILLS, 0x48), "as for the fills above")
_GENERIC = "include/uapi/linux/perf_event.h"
_CYCLES = Event("cycles", "cycles", 0, f"{_GENERIC}: PERF_COUNT_HW_CPU_CYCLES", TYPE_HARDWARE)
_ANY_INSTRUCTIONS = Event(
    "instructions", "instructions", 1, f"{_GENERIC}: PERF_COUNT_HW_INSTRUCTIONS", TYPE_HARDWARE
)
#: On Intel's cores (LONGEST_LAT_CACHE.MISS) and on most others misses of the last level; on AMD's of the L2.
_CACHE_MISSES = Event(
    "cache_misses",
    "misses of the last cache",
    3,
    f"{_GENERIC}: PERF_COUNT_HW_CACHE_MISSES",
    TYPE_HARDWARE,
)
_L2_ONLY = frozenset({"AuthenticAMD", "HygonGenuine"})


def misses_of(cpu: CpuModel) -> EventSet:
    """What tells that a neighbour fills the L3, by CPU: fills from memory; else misses of the last cache; on cores whose
    generic event is of the L2, cycles: an instruction whose line is not there takes longer."""
    if (known := events_of(cpu)) is not None:
        return EventSet(known.cpu, known.base, 1000, _THOUSAND, (_MEMORY_FILLS,))
    event = _CYCLES if cpu.vendor in _L2_ONLY else _CACHE_MISSES
    return EventSet(cpu.text, _ANY_INSTRUCTIONS, 1000, _THOUSAND, (event,))
