"""The CPUs of balloons.

A balloon begins inside one L3 if it fits there, by best fit, so that whole CCXs stay whole; it grows inside the
L3s it has, then inside its NUMA node, then its socket. CPUs that others have a better claim to are taken last:
those set aside for balloons that are to be there from the start, isolated ones, those near other types' devices, those
whose core or cache has the same load. Nothing here remembers anything: the CPUs set aside follow from the machine and the
configuration, and so do the parts of a composite balloon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Callable, Optional

from policies.balloons.composites import Composites
from policies.balloons.loads import NOTHING_LOADED, Loaded, Loads
from policies.balloons.types import POD_RESOURCE, BalloonType, LoadClass, name_of
from policies.exclusive.pick import Claim, Picker
from policies.machine.cpus import NO_CPUS
from policies.machine.topology import Domain, Topology
from policies.model import RESOURCES, Container
from policies.node import Node

#: ``share_idle_cpus_in_same`` and ``one_per`` in the words of the topology.
_LEVELS = {"l3cache": "l3", "numa": "numa", "die": "die", "package": "socket"}

#: As many divisions of a composite balloon's CPUs are remembered.
PARTED_KEPT = 1024

#: What makes one place better than another that is equally large, lowest first.
Cost = Callable[[frozenset[int]], tuple[float, ...]]


class BalloonCpus:
    """Chooses CPUs for balloons on one machine."""

    def __init__(
        self, topology: Topology, types: tuple[BalloonType, ...], loads: tuple[LoadClass, ...] = ()
    ) -> None:
        self.topology = topology
        self.types = types
        self.composites = Composites(types)
        self.loads = Loads(topology, loads)
        self._parted: dict[object, tuple[tuple[BalloonType, frozenset[int]], ...]] = {}
        self._picker = Picker(topology)
        self.isolated = topology.data.isolated
        self._near = {
            device: frozenset().union(*regions[:1])
            for kind in types
            for device in kind.prefer_close_to_devices
            for regions in [tuple(self._around_device(device))]
        }
        of_type = topology.data.core_types
        self._core_type = {kind.name: of_type.get(kind.prefer_core_type, NO_CPUS) for kind in types}
        # What other types prefer.
        wanted = NO_CPUS.union(*self._near.values(), *self._core_type.values())
        self._far = {
            kind.name: wanted
            - self._core_type[kind.name].union(*[self._near[d] for d in kind.prefer_close_to_devices])
            for kind in types
        }
        self._domains = {
            kind.name: tuple([box.cpus for box in self._boxes(kind.one_per)])
            for kind in types
            if kind.one_per
        }
        self._set_aside: tuple[tuple[frozenset[int], ...], Mapping[str, frozenset[int]]] = ((), {})
        self._core: tuple[frozenset[int], int] = (NO_CPUS, 1)
        self._threads = max([len(core) for core in topology.cores])

    # ------------------------------------------------------------------ what there is

    def set_aside(self, node: Node) -> Mapping[str, frozenset[int]]:
        """The CPUs of balloons that are there from the start (``first``), by their names; used or not."""
        key = (node.usable, node.reserved)
        if self._set_aside[0] != key:
            self._set_aside = (key, self._lay_out(node.usable - node.reserved))
        return self._set_aside[1]

    def first(self, kind: BalloonType) -> int:
        """How many balloons of a type there are from the start."""
        return len(self._domains[kind.name]) if kind.one_per else kind.min_balloons

    def region(self, kind: BalloonType, number: int) -> Optional[frozenset[int]]:
        """The CPUs that a balloon may get; None = all, none of one that there is no domain for."""
        if not kind.one_per:
            return None
        regions = self._domains[kind.name]
        return regions[number] if number < len(regions) else NO_CPUS

    def domains(self, kind: BalloonType) -> tuple[frozenset[int], ...]:
        """The domains that have one balloon of a type each; none where it is not laid out so."""
        return self._domains.get(kind.name, ())

    def _lay_out(self, free: frozenset[int]) -> Mapping[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        loaded = NOTHING_LOADED
        for plain in sorted(
            self.types, key=lambda kind: kind.allocator_priority
        ):  # else in the order of the list
            for number in range(self.first(plain) if not self.composites.banned(plain) else 0):
                kind = self.composites.kind(plain, number)
                region = self.region(kind, number)
                cpus = self.grown(
                    kind, NO_CPUS, self.least(kind), free if region is None else free & region, loaded=loaded
                )
                if cpus:
                    found[name_of(kind, number)] = cpus
                    free -= cpus
                    if kind.all_loads:
                        loaded = self.loads.added(loaded, self.parts(kind, cpus))
        return found

    # ------------------------------------------------------------------ how many

    def core(self, node: Node, kind: BalloonType) -> int:
        """The CPUs of a core that a balloon grows by: all that may be used now, one where it is to be spread over cores."""
        if kind.parts:
            return max([self.core(node, part.kind) for part in kind.parts])
        if (kind.prefer_spread_on_physical_cores or kind.loads) and not self._grows_by_cores(kind):
            return 1
        # Sets are compared element by element, also with themselves; the node's stays the same object.
        if self._core[0] is not node.usable:
            counts = [len(core & node.usable) for core in self.topology.cores]
            self._core = node.usable, max(counts, default=1) or 1
        return self._core[1]

    def _grows_by_cores(self, kind: BalloonType) -> bool:
        if kind.prefer_spread_on_physical_cores and not kind.hide_hyperthreads:
            return False
        return not kind.loads or not self.loads.overloads(kind)

    def needed(self, node: Node, kind: BalloonType, milli: int) -> int:
        """The fewest CPUs of a balloon whose containers request ``milli`` milli-CPUs, ``size_for``. Where threads are hidden
        and the limit ends inside a core, it has none of that core."""
        if kind.parts:
            most = max(milli, kind.min_cpus * 1000)
            each = [self.needed(node, part.kind, most // part.divisor) for part in kind.parts]
            return kind.within_limit(sum(each))
        count, core = kind.size_for(milli), self.core(node, kind)
        if kind.hide_hyperthreads and count == kind.max_cpus and count > core:
            count -= count % core
        return count

    def whole(self, node: Node, kind: BalloonType, count: int) -> int:
        """As many and the rest of the last core, within the limit."""
        if kind.parts:
            shares = zip(kind.parts, self.shares(kind, count))
            return kind.within_limit(sum([self.whole(node, part.kind, share) for part, share in shares]))
        core = self.core(node, kind)
        return kind.within_limit(-(-count // core) * core)

    # ------------------------------------------------------------------ growing and shrinking

    def grown(
        self,
        kind: BalloonType,
        have: frozenset[int],
        count: int,
        free: frozenset[int],
        kept_for_others: frozenset[int] = NO_CPUS,
        cost: Optional[Cost] = None,
        loaded: Loaded = NOTHING_LOADED,
        container: Optional[Container] = None,
    ) -> frozenset[int]:
        """The CPUs of a balloon that had ``have`` and is to have ``count``; fewer where fewer are free.

        ``kept_for_others``: those of ``free`` that are taken only when no others are left. ``loaded``: by other balloons.
        ``container``: the one that the balloon is made for, whose devices it is to be near.
        """
        if kind.parts:
            return self._grown_by_parts(kind, have, count, free, kept_for_others, cost, loaded, container)
        count = min(count, len(have | free))
        if count <= len(have):
            return have
        isolated = free & self.isolated
        if kind.prefer_isolated_cpus and isolated:  # all from those, or all of those and others
            if len(have | isolated) >= count:
                free = isolated
            else:
                have |= isolated
        # 1. Whole cores where threads are to be hidden; then any.
        for smt in ("hide", "") if kind.hide_hyperthreads else (_smt(kind),):
            # 2. CPUs that no other has a better claim to, in the smallest region that has enough of them.
            for pool, more in self._pools(kind, have, count, free, kept_for_others):
                keep = have | more if more else have
                choices = (
                    self._apart(kind, keep, pool, count, loaded, container) if kind.loads else ((keep, pool),)
                )
                for held, left in choices:
                    for region in self._regions(kind, held, left, count, container):
                        found = self._pick((left & region) | held, count, smt, held, cost)
                        if found and len(found) == kind.within_limit(len(found)):
                            return found
        return have

    def _apart(
        self,
        kind: BalloonType,
        have: frozenset[int],
        pool: frozenset[int],
        count: int,
        loaded: Loaded,
        container: Optional[Container],
    ) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """The CPUs it must take and those it chooses from, apart from what others load; near its devices first."""
        regions = self._around_devices(kind, container)
        near = next((pool & each for each in regions if len(have | (pool & each)) >= count), pool)
        yield self.loads.preferred(kind, have, near, count, loaded)
        if near != pool:
            yield self.loads.preferred(kind, have, pool, count, loaded)

    def _grown_by_parts(
        self,
        kind: BalloonType,
        have: frozenset[int],
        count: int,
        free: frozenset[int],
        kept_for_others: frozenset[int],
        cost: Optional[Cost],
        loaded: Loaded,
        container: Optional[Container],
    ) -> frozenset[int]:
        """As ``grown``, of a composite balloon: each part in turn."""
        parts = list(self.parts(kind, have))
        free -= have
        for at, share in enumerate(self.shares(kind, min(count, len(have | free)))):
            part, own = parts[at]
            if share > len(own):
                of_others = parts[:at] + parts[at + 1 :]
                theirs = self.loads.added(loaded, of_others) if part.loads else loaded
                own = self.grown(part, own, share, free, kept_for_others, cost, theirs, container)
                parts[at], free = (part, own), free - own
        return frozenset().union(*[own for _, own in parts])

    def shrunk(
        self,
        kind: BalloonType,
        have: frozenset[int],
        count: int,
        keep: frozenset[int] = NO_CPUS,
        loaded: Loaded = NOTHING_LOADED,
    ) -> frozenset[int]:
        """The ``count`` CPUs of a balloon that it keeps: in as few L3s as can be. More where ``keep`` has more."""
        if kind.parts:
            shares = zip(self.parts(kind, have), self.shares(kind, count))
            return frozenset().union(
                *[
                    self.shrunk(part, own, share, keep & own, loaded) if share or keep & own else NO_CPUS
                    for (part, own), share in shares
                ]
            )
        smt = "hide" if kind.hide_hyperthreads else _smt(kind)
        if kind.hide_hyperthreads:
            keep = keep.union(*[self.topology.core_mates(cpu) & have for cpu in keep])
        count = max(count, len(keep))
        if preferred := have & self._core_type[kind.name]:
            if len(keep | preferred) >= count:
                have = keep | preferred
            else:
                keep |= preferred
        if kind.loads:
            least, pool = self.loads.preferred(kind, keep, have, count, loaded)
            if found := self._pick(pool, count, smt, least):
                return found
        return self._pick(have, count, smt, keep) or self._pick(have, count, "", keep) or have

    def _pick(
        self,
        free: frozenset[int],
        count: int,
        smt: str,
        keep: frozenset[int] = NO_CPUS,
        cost: Optional[Cost] = None,
    ) -> frozenset[int]:
        if len(free) < count:
            return NO_CPUS
        found = self._picker.pick(free, Claim(count, smt=smt, keep=keep, cost=cost))
        if found is None and smt == "spread":
            found = self._picker.pick(free, Claim(count, keep=keep, cost=cost))
        return NO_CPUS if found is None else found.cpus

    def _pools(
        self,
        kind: BalloonType,
        have: frozenset[int],
        count: int,
        free: frozenset[int],
        kept_for_others: frozenset[int],
    ) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """What to choose from, the best first, and the CPUs of it that are taken in any case."""
        mine, far = self._core_type[kind.name], self._far[kind.name]
        isolated = NO_CPUS if kind.prefer_isolated_cpus else self.isolated
        # 1. All of the type of cores; else all that there are of them, and others.
        if mine:
            pools = [free - kept_for_others - isolated - far, free - kept_for_others - isolated]
            yield from ((pool & mine, NO_CPUS) for pool in pools)
            yield from ((pool, pool & mine) for pool in pools if 0 < len(pool & mine) < count - len(have))
        # 2. Whatever their cores are.
        last = NO_CPUS
        for left_out in (
            kept_for_others | isolated | far,
            kept_for_others | isolated,
            kept_for_others,
            NO_CPUS,
        ):
            pool = free - left_out
            if pool != last:
                yield pool, NO_CPUS
            last = pool

    def _regions(
        self,
        kind: BalloonType,
        have: frozenset[int],
        pool: frozenset[int],
        count: int,
        container: Optional[Container],
    ) -> Iterator[frozenset[int]]:
        """Where to look, the best first; the last one is the machine."""
        if have:
            touched = [leaf.cpus for leaf in self.topology.leaves if not leaf.cpus.isdisjoint(have)]
            yield frozenset().union(*touched)
            yield from (domain.cpus for domain in reversed(self.topology.domains) if have <= domain.cpus)
            return
        yield from self._around_devices(kind, container)
        if kind.allocator_topology_balancing:
            yield self._emptiest(kind, pool, count).cpus
        yield self.topology.root.cpus

    def _emptiest(self, kind: BalloonType, pool: frozenset[int], count: int) -> Domain:
        """From the machine down to the smallest domain that is as good, always by the branch with most free CPUs.

        As good: ``count`` CPUs of it are of no more NUMA nodes, and of these of no more L3s, than those of the machine.
        """
        here = self.topology.root
        least = self._spread(kind, pool, count)
        while True:
            inside = [(len(pool & d.cpus), -rank, d) for rank, d in enumerate(here.children)]
            found = (
                domain
                for free, _, domain in sorted(inside, key=lambda branch: branch[:2], reverse=True)
                if free >= count and self._spread(kind, pool & domain.cpus, count) <= least
            )
            branch = next(found, None)
            if branch is None:
                return here
            here = branch

    def _spread(self, kind: BalloonType, pool: frozenset[int], count: int) -> tuple[int, int]:
        """Of how many NUMA nodes and L3s ``count`` CPUs of these are; of none where there are not as many."""
        cpus = self._pick(pool, count, "hide" if kind.hide_hyperthreads else _smt(kind))
        touched = sum(not cpus.isdisjoint(leaf.cpus) for leaf in self.topology.leaves)
        return (len(self.topology.nodes_of(cpus)), touched) if cpus else (len(self.topology.cpus), 0)

    # ------------------------------------------------------------------ parts

    def least(self, kind: BalloonType) -> int:
        """The CPUs without which a balloon does not begin."""
        return kind.size_for(0) if any(part.kind.min_cpus for part in kind.parts) else kind.min_cpus

    def shares(self, kind: BalloonType, count: int) -> tuple[int, ...]:
        """How many of a composite balloon's CPUs are of each part: evenly, but for the limits of the parts. No part of more
        CPUs has fewer."""
        found = [0] * len(kind.parts)
        open_ = [at for at, part in enumerate(kind.parts) if part.kind.max_cpus >= 0]

        def rank(at: int) -> tuple[bool, int, bool, int]:
            part, has = kind.parts[at], found[at]
            is_whole = not has % self._threads or not self._grows_by_cores(part.kind)
            return has >= max(1, part.kind.min_cpus), has * part.divisor, is_whole, at

        for _ in range(count):
            open_ = [at for at in open_ if kind.parts[at].kind.within_limit(found[at] + 1) > found[at]]
            if not open_:
                break
            found[min(open_, key=rank)] += 1
        return tuple(found)

    def parts(self, kind: BalloonType, own: frozenset[int]) -> tuple[tuple[BalloonType, frozenset[int]], ...]:
        """The CPUs of each part of a balloon that has these; of one that is not composite they are all of its type."""
        if not kind.parts:
            return ((kind, own),)
        key = (kind.name, tuple([(part.kind.name, part.divisor) for part in kind.parts]), own)
        known = self._parted.get(key)
        if known is None:
            if len(self._parted) >= PARTED_KEPT:
                self._parted.clear()
            known = self._parted[key] = tuple(self._divided(kind, own))
        return known

    def _divided(
        self, kind: BalloonType, own: frozenset[int]
    ) -> Iterator[tuple[BalloonType, frozenset[int]]]:
        left, last = own, len(kind.parts) - 1
        for at, share in enumerate(self.shares(kind, len(own))):
            part = kind.parts[at].kind
            theirs = self.grown(part, NO_CPUS, share, left) if at < last else left
            left -= theirs
            yield part, theirs

    # ------------------------------------------------------------------ devices

    def _around_devices(self, kind: BalloonType, container: Optional[Container]) -> Iterator[frozenset[int]]:
        """The CPUs near its devices, the first device first."""
        for device in kind.prefer_close_to_devices:
            if device.startswith(POD_RESOURCE):
                yield from self._around_nodes(_given(container, device[len(POD_RESOURCE) :]))
            else:
                yield from self._around_device(device)

    def _around_device(self, device: str) -> Iterator[frozenset[int]]:
        """The CPUs near a device, then those of ever more NUMA nodes around it; nothing where it is not known."""
        near, nodes = self._place_of(device)
        if near:
            yield from self._around(near, nodes)

    def _around_nodes(self, nodes: frozenset[int]) -> Iterator[frozenset[int]]:
        """As around a device that is near these nodes."""
        known = nodes.intersection(self.topology.node_ids)
        near = frozenset().union(*[self._cpus_near(node) for node in known])
        if near:
            yield from self._around(near, known)

    def _around(self, near: frozenset[int], nodes: frozenset[int]) -> Iterator[frozenset[int]]:
        yield near
        tree = self.topology
        by_distance = sorted(
            tree.root.nodes, key=lambda n: (min((tree.distance(o, n) for o in nodes), default=0), n)
        )
        for count in range(1, len(by_distance) + 1):
            chosen = set(by_distance[:count])
            yield near | frozenset(cpu for cpu, place in tree.cpus.items() if place.numa in chosen)

    def _place_of(self, device: str) -> tuple[frozenset[int], frozenset[int]]:
        """The CPUs and NUMA nodes of a PCI device, or of what a path in sysfs is about."""
        tree = self.topology
        node = tree.data.devices.get(device.rstrip("/").rsplit("/", 1)[-1])
        cache = re.search(r"/cpu(\d+)/cache/index(\d+)", device)
        if cache is not None and int(cache[1]) in tree.cpus:
            cpu = int(cache[1])
            leaf = next(leaf for leaf in tree.leaves if cpu in leaf.cpus)
            cpus = leaf.cpus if int(cache[2]) >= 3 else tree.core_mates(cpu)
            return cpus, tree.nodes_of(cpus)
        named = re.search(r"/node(\d+)(/|$)", device)
        if node is None and named is not None:
            node = int(named[1])
        if node is None or node not in tree.node_ids:
            return NO_CPUS, NO_CPUS
        return self._cpus_near(node), frozenset((node,))

    def _cpus_near(self, node: int) -> frozenset[int]:
        """The CPUs of a NUMA node, or of the nearest that has some."""
        tree = self.topology
        nearest = min(tree.root.nodes, key=lambda n: (n != node, tree.distance(node, n), n))
        return frozenset(cpu for cpu, place in tree.cpus.items() if place.numa == nearest)

    # ------------------------------------------------------------------ what containers see

    def home(self, node: Node, kind: BalloonType, own: frozenset[int]) -> frozenset[int]:
        """The CPUs of a balloon, and those around them that its containers may use while they are in no balloon."""
        level = kind.share_idle_cpus_in_same
        if not level or not own:
            return own
        kept = node.reserved.union(*self.set_aside(node).values())
        return own | (frozenset().union(*self._same(level, own)) - kept - self.isolated)

    def _same(self, level: str, own: frozenset[int]) -> Iterable[frozenset[int]]:
        if level == "core":
            return [self.topology.core_mates(cpu) for cpu in own]
        if level == "system":
            return [self.topology.root.cpus]
        return [box.cpus for box in self._boxes(level) if not box.cpus.isdisjoint(own)]

    def _boxes(self, level: str) -> tuple[Domain, ...]:
        return self.topology.at(_LEVELS[level]) or self.topology.leaves

    def hidden(self, own: frozenset[int]) -> frozenset[int]:
        """Of each core all CPUs but one."""
        return own - self.topology.one_thread_per_core(own)


def _smt(kind: BalloonType) -> str:
    return "spread" if kind.prefer_spread_on_physical_cores else ""


def _given(container: Optional[Container], resource: str) -> frozenset[int]:
    """The NUMA nodes of the devices of a resource that kubelet has given to a container; ``resource`` may be a glob."""
    hints = () if container is None else container.hints
    return NO_CPUS.union(
        *[hint.nodes for hint in hints if hint.kind == RESOURCES and fnmatchcase(hint.path, resource)]
    )
