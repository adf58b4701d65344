"""The container of a cgroup, told by its path alone. Pure: all drivers, nestings and spellings.

The id of a container is the last part of its cgroup's path, as it is (cgroupfs driver) or inside a scope's name
(systemd driver); above it is the pod's cgroup, whose UID systemd writes with underscores.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

#: Runtimes give 64 hex digits. Shorter ids are taken only below a pod: elsewhere they may be anything.
_CONTAINER = re.compile(r"^(?:(?P<prefix>[a-z][a-z-]*)-)?(?P<id>[0-9a-f]{32,})(?:\.scope)?$")
_SURE_ID_LENGTH = 64
_POD = re.compile(r"^(?:[\w.-]*?-)??pod(?P<uid>[0-9A-Za-z][\w.-]*?)(?P<slice>\.slice)?$")
_NO_PODS = (".service", ".scope", "podruntime.slice")
#: The hierarchies whose paths are looked at, best first; "" is cgroup v2.
_HIERARCHIES = ("", "cpuset", "cpu", "pids", "name=systemd")


class CgroupPlace(NamedTuple):
    """Where a cgroup is: below which container and pod. "" = none."""

    container: str = ""
    pod: str = ""


def place_of(path: str) -> CgroupPlace:
    """The container and the pod that the cgroup with this path belongs to.

    A container inside a container (docker in a pod) belongs to the outer one; a pod inside a container that is no
    pod's (a node that is a container itself) counts.
    """
    place = CgroupPlace()
    for component in path.split("/"):
        place = enter(place, component)
    return place


@lru_cache(maxsize=4096)  # every scan asks the same again, and this is most of its time
def enter(place: CgroupPlace, component: str) -> CgroupPlace:
    """The place of the child cgroup ``component`` of a cgroup at ``place``."""
    if place.container and place.pod:
        return place
    # A runtime with the cgroupfs driver below a kubelet with systemd's makes one folder "POD.slice:PREFIX:ID".
    parent, _, rest = component.partition(":")
    pod = _pod_uid(parent)
    if pod:
        place = CgroupPlace("", pod)
    elif place.container:
        return place
    return place._replace(container=_container_id(rest.rpartition(":")[2] or component, place.pod))


def _pod_uid(component: str) -> str:
    found = _POD.match(component)
    if found is None or component.endswith(_NO_PODS):
        return ""
    uid = found["uid"]
    return uid.replace("_", "-") if found["slice"] else uid


def _container_id(component: str, pod: str) -> str:
    found = _CONTAINER.match(component)
    if found is None or (found["prefix"] or "").endswith("conmon"):
        return ""
    return found["id"] if pod or len(found["id"]) >= _SURE_ID_LENGTH else ""


def place_in_proc_cgroup(text: str) -> CgroupPlace:
    """The place of a process, from its /proc/PID/cgroup.

    On hosts with several hierarchies a container may be in some of them only: the first that names one counts.
    """
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    for hierarchy in _HIERARCHIES:
        place = place_of(paths.get(hierarchy, ""))
        if place.container:
            return place
    return CgroupPlace()
