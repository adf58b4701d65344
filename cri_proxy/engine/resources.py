"""What cgroups and the runtime say of CPU shares, quota and memory limit now, against what is known of them.

A kernel rounds what it is told, systemd rounds quotas, and cgroup v2 has weights instead of shares: what differs by
that only is no news. Neither is a quota that we have taken away ourselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, log2
from typing import Optional

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.cri.messages import MAX_SHARES, MIN_SHARES, SHARES_PER_CPU, update_resources
from cri_proxy.engine.model import ContainerRecord, Life, Management
from policies.frozen import frozen
from policies.model import POD_CGROUP, Container, PodSize, Resources
from policies.settings import PlacementSettings

#: What a cgroup has until it is told.
DEFAULT_SHARES, DEFAULT_WEIGHT = 1024, 100
#: The largest page of the machines there are (arm64): memory limits are whole pages.
LARGEST_PAGE_BYTES = 65536
#: systemd takes quotas in steps of a hundredth of a CPU, rounded up (runc's systemd driver).
SYSTEMD_STEP_MILLI = 10


@frozen
class CgroupReading:
    """What the files of one cgroup say; 0 = not read. ``shares``: cgroup v1; ``weight``: v2.

    ``quota_us``, ``memory_limit_bytes``: -1 = there is no limit.
    """

    shares: int = 0
    weight: int = 0
    quota_us: int = 0
    period_us: int = 0
    memory_limit_bytes: int = 0

    @property
    def milli_limit(self) -> Optional[int]:
        """The quota in milli-CPUs; None = there is none, or it was not read."""
        if self.quota_us <= 0 or self.period_us <= 0:
            return None
        return -(-self.quota_us * 1000 // self.period_us)

    def completed_by(self, child: CgroupReading) -> CgroupReading:
        """With what is limited in a child instead: a runtime has written there what it has not written here."""
        weight = child.weight if self.weight in (0, DEFAULT_WEIGHT) else self.weight
        quota = self if self.quota_us > 0 else child
        limit = self.memory_limit_bytes if self.memory_limit_bytes > 0 else child.memory_limit_bytes
        return CgroupReading(self.shares or child.shares, weight, quota.quota_us, quota.period_us, limit)


def has_news(grant: ContainerRecord, reading: CgroupReading) -> bool:
    """Whether a container's cgroup says anything else than its record, beyond rounding."""
    known = grant.container.told
    return not (
        _same_request(known.milli_request, reading)
        and (_is_ours(grant, reading.quota_us, reading.period_us) or _same_quota(known, reading))
        and _same_memory(known, reading)
    )


def resources_read(
    grant: ContainerRecord, reading: CgroupReading, told: cri.LinuxContainerResources
) -> Resources:
    """A container's resources by its cgroup; what is rounded there is as it is known, or as the runtime ``told``.

    A quota that differs from the one that the runtime was asked for is another program's, which lends CPU time for a
    while (koordlet's CPU burst): the container was not resized.
    """
    known = grant.container.told
    no_quota = reading.quota_us < 0 and (known.milli_limit is None or not known.quota_period_us)
    is_ours = _is_ours(grant, reading.quota_us, reading.period_us)
    linux = cri.LinuxContainerResources(
        cpu_shares=_shares(known, reading, told),
        cpu_quota=0 if no_quota or is_ours else reading.quota_us,
        cpu_period=reading.period_us,
        memory_limit_in_bytes=reading.memory_limit_bytes,
    )
    found = update_resources(known, linux, grant.container.qos)
    if _same_request(known.milli_request, reading):
        found = replace(found, milli_request=known.milli_request)
    if _is_told(known, told) or (reading.quota_us > 0 and _same_quota(known, reading)):
        found = replace(found, milli_limit=known.milli_limit, quota_period_us=known.quota_period_us)
    if _same_memory(known, reading):
        memory = known.memory_request_bytes, known.memory_limit_bytes
        found = replace(found, memory_request_bytes=memory[0], memory_limit_bytes=memory[1])
    return found


def resources_told(grant: ContainerRecord, told: cri.LinuxContainerResources) -> Resources:
    """A container's resources as the runtime has them, where there is no cgroup to be read."""
    if _is_ours(grant, told.cpu_quota, told.cpu_period):
        ours, told = told, cri.LinuxContainerResources()
        told.CopyFrom(ours)
        told.cpu_quota = 0
    return update_resources(grant.container.told, told, grant.container.qos)


def with_quota(reading: CgroupReading, limit: str) -> CgroupReading:
    """With another quota: ``QUOTA PERIOD``, as cpu.max of cgroup v2 has it."""
    words = [int(word) for word in limit.split() if word.isdecimal()]
    return replace(reading, quota_us=words[0], period_us=words[1]) if len(words) == 2 else reading


def size_read(known: Optional[PodSize], reading: CgroupReading) -> Optional[PodSize]:
    """A pod's size by the cgroup that kubelet keeps for it; ``known`` where that says nothing else.

    A pod without a quota says nothing of one with a limit: not all of its containers have limits, or kubelet sets none.
    Without a quota, shares that are the kernel's default are no request: a runtime has made the cgroup, and told it nothing.
    """
    limit = reading.milli_limit
    has_limit = known is not None and known.milli_limit is not None
    is_told = reading.shares not in (0, DEFAULT_SHARES) or reading.weight not in (0, DEFAULT_WEIGHT)
    if limit is None and (has_limit or not is_told):
        return known
    request = 0 if known is None else known.milli_request
    if not _same_request(request, reading):
        # Kubelet's weights of pods are on the line, whatever runtimes do.
        request = _milli(
            reading.shares or MIN_SHARES + (reading.weight - 1) * (MAX_SHARES - MIN_SHARES) // 9999
        )
    if (
        known is not None
        and known.milli_limit is not None
        and limit is not None
        and _is_rounded(known.milli_limit, limit)
    ):
        limit = known.milli_limit
    if known is not None and (request, limit) == (known.milli_request, known.milli_limit):
        return known
    if not request and limit is None:
        return known
    return PodSize(request, limit, POD_CGROUP, 0 if known is None else known.milli_overhead)


def memory_limit_read(known: int, reading: CgroupReading, limits: Iterable[int]) -> int:
    """A pod's memory limit by its cgroup, where one of its containers has the same; else ``known``.

    Kubelet gives a pod's limit to each of its containers that has none. To the pod's cgroup it adds the overhead, which
    is then no container's limit.
    """
    told = reading.memory_limit_bytes
    same = [limit for limit in limits if 0 < told <= limit < told + LARGEST_PAGE_BYTES]
    return known if known in same else min(same, default=known)


# ---------------------------------------------------------------------- what is the same


def _is_ours(grant: ContainerRecord, quota_us: int, period_us: int) -> bool:
    """Whether a quota is away since we have taken it, or another one since we have raised it."""
    if grant.is_turbo(quota_us, period_us):
        return True
    is_taken = grant.quota_taken or (grant.placement.lift_quota and grant.stance is not Management.OBSERVED)
    return quota_us < 0 and is_taken


def _same_request(milli: int, reading: CgroupReading) -> bool:
    shares = min(MAX_SHARES, max(MIN_SHARES, milli * SHARES_PER_CPU // 1000))
    if reading.shares:
        return reading.shares == shares or _milli(reading.shares) == milli
    # Requests are rounded up from shares: there may be one less of them than follows from the request.
    return not reading.weight or any(_is_weight_of(reading.weight, s) for s in (shares, shares - 1))


def _same_quota(known: Resources, reading: CgroupReading) -> bool:
    if reading.quota_us == 0:
        return True
    has_quota = known.milli_limit is not None and known.quota_period_us > 0
    limit = reading.milli_limit
    if limit is None or not has_quota:
        return limit is None and not has_quota
    return _is_rounded(known.milli_limit or 0, limit)


def _is_told(known: Resources, told: cri.LinuxContainerResources) -> bool:
    """Whether the runtime was asked for the CPU limit that is known, and for no other one since."""
    if not told.ByteSize():
        return False
    return _same_quota(known, CgroupReading(quota_us=told.cpu_quota or -1, period_us=told.cpu_period))


def _same_memory(known: Resources, reading: CgroupReading) -> bool:
    limit = reading.memory_limit_bytes
    if limit <= 0:
        return limit == 0 or known.memory_limit_bytes == 0
    return limit <= known.memory_limit_bytes < limit + LARGEST_PAGE_BYTES


def _is_rounded(milli: int, read_milli: int) -> bool:
    return read_milli in (milli, -(-milli // SYSTEMD_STEP_MILLI) * SYSTEMD_STEP_MILLI)


def _shares(known: Resources, reading: CgroupReading, told: cri.LinuxContainerResources) -> int:
    """The shares of a container: those that were asked for if they explain what is read; 0 = they cannot be known."""
    if reading.shares == DEFAULT_SHARES and not told.cpu_shares and not known.milli_request:
        return 0  # it was never told any
    if reading.shares or not reading.weight:
        return reading.shares
    return int(told.cpu_shares) if _is_weight_of(reading.weight, told.cpu_shares) else 0


def _milli(shares: int) -> int:
    return 0 if shares <= MIN_SHARES else -(-shares * 1000 // SHARES_PER_CPU)


def _is_weight_of(weight: int, shares: int) -> bool:
    """Whether a runtime makes this weight of shares: runc and crun had a straight line, and have a curve since 2025."""
    if shares <= MIN_SHARES:
        return weight == 1
    line = 1 + (min(shares, MAX_SHARES) - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)
    log = log2(min(shares, MAX_SHARES))
    curve = 10 ** ((log * log + 125 * log) / 612 - 7 / 34)
    # A float may be a hair above or below a whole number, and is then rounded up to another one.
    return weight == line or ceil(curve - 1e-6) <= weight <= ceil(curve + 1e-6)


# ---------------------------------------------------------------------- pods' quotas

# Kubelet writes the sum of its containers' limits to a pod's cgroup. A container whose own quota is lifted is
# throttled by that one all the same, so it has to go, too; as long as no container is left that needs it.


def unlimited_pods(grants: Iterable[ContainerRecord]) -> frozenset[str]:
    """The ``cgroup_parent`` of every pod whose quota should be lifted.

    That is: one of its containers is placed without quota, and so is every other that has a limit. One whose
    place is held for its next attempt counts only as lifted: the pod's quota does not come and go with it. Or: the quota of
    one is raised for a while, and each has one of its own, which still binds it.
    """
    grants = tuple(grants)
    lifted = {g.container.pod.cgroup_parent for g in grants if g.lifted and g.life is not Life.CREATING}
    lifted.discard("")
    raised = {g.container.pod.cgroup_parent for g in grants if g.has_turbo} - {""}
    if not lifted and not raised:
        return frozenset()
    limited = {g.container.pod.cgroup_parent for g in grants if _needs_a_limit(g)}
    loose = {g.container.pod.cgroup_parent for g in grants if _has_no_quota(g)}
    return frozenset((lifted - limited) | (raised - loose))


def _has_no_quota(grant: ContainerRecord) -> bool:
    """Whether only its pod's quota binds a container."""
    return grant.quota is None and grant.life is not Life.HELD


def _needs_a_limit(grant: ContainerRecord) -> bool:
    has_limit = grant.container.resources.milli_limit is not None
    return has_limit and not grant.lifted and grant.life is not Life.HELD


def wants_lift(container: Container, settings: PlacementSettings) -> bool:
    """Whether a policy may lift the quota of a container that is about to be created."""
    return (container.preferences.cfs_quota or settings.cfs_quota) == "lift"


def lifts_to_end(
    grants: Iterable[ContainerRecord], before: Optional[PlacementSettings], now: Optional[PlacementSettings]
) -> dict[str, ContainerRecord]:
    """The grants, by key, whose quota was lifted by the configuration before, which now keeps quotas."""
    if before is None or now is None or (before.cfs_quota, now.cfs_quota) != ("lift", "keep"):
        return {}
    return {g.key: g for g in grants if g.lifted and not wants_lift(g.container, now)}


def with_quota_kept(container: Container, reason: str) -> Container:
    """The container as one whose quota is not to be lifted, with the reason among its notes."""
    preferences = container.preferences
    note = f"its CPU quota is not lifted: {reason}"
    return replace(
        container, preferences=replace(preferences, cfs_quota="keep", notes=(*preferences.notes, note))
    )


def is_unlimited(limit: str) -> bool:
    """Whether ``QUOTA PERIOD`` (cgroup v2's cpu.max, or v1's two files side by side) says no limit."""
    return limit.split()[:1] in (["max"], ["-1"], [])
