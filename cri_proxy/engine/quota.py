"""Which pods' cgroups should have no CPU quota, and where those cgroups are.

Kubelet writes the sum of its containers' limits to a pod's cgroup. A container whose own quota is lifted is
throttled by that one all the same, so it has to go, too; as long as no container is left that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

from cri_proxy.engine.records import Grant, Life
from policies.model import Container
from policies.settings import PlacementSettings


def unlimited_pods(grants: Iterable[Grant]) -> frozenset[str]:
    """The ``cgroup_parent`` of every pod whose quota should be lifted.

    That is: one of its containers is placed without quota, and so is every other that has a limit. One whose
    place is held for its next attempt counts only as lifted: the pod's quota does not come and go with it.
    """
    grants = tuple(grants)
    lifted = {g.container.pod.cgroup_parent for g in grants if g.lifted and g.life is not Life.CREATING}
    lifted.discard("")
    if not lifted:
        return frozenset()
    limited = {g.container.pod.cgroup_parent for g in grants if _needs_a_limit(g)}
    return frozenset(lifted - limited)


def _needs_a_limit(grant: Grant) -> bool:
    has_limit = grant.container.resources.milli_limit is not None
    return has_limit and not grant.lifted and grant.life is not Life.HELD


def wants_lift(container: Container, settings: PlacementSettings) -> bool:
    """Whether a policy may lift the quota of a container that is about to be created."""
    return (container.preferences.cfs_quota or settings.cfs_quota) == "lift"


def lifts_to_end(
    grants: Iterable[Grant], before: Optional[PlacementSettings], now: Optional[PlacementSettings]
) -> dict[str, Grant]:
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


def pod_cgroup(cgroup_parent: str) -> str:
    """The path of a pod's cgroup below the mount of a hierarchy, without a slash at its start.

    ``kubepods-burstable-podU.slice`` (systemd driver) is a unit name: systemd puts it below one slice for
    every dash (systemd.slice(5)). Paths (cgroupfs driver, and kind's) are what they are.
    """
    path = cgroup_parent.strip("/")
    if "/" in path or not path.endswith(".slice"):
        return path
    parts = path[: -len(".slice")].split("-")
    return "/".join("-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))


def is_unlimited(limit: str) -> bool:
    """Whether ``QUOTA PERIOD`` (cgroup v2's cpu.max, or v1's two files side by side) says no limit."""
    return limit.split()[:1] in (["max"], ["-1"], [])
