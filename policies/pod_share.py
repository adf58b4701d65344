"""The charges of a pod's containers where kubelet has written the pod's own resources into them.

With pod-level resources (``spec.resources``) kubelet 1.36 writes into a container that has none of its own

    created       the pod's limit as shares and as quota; without a limit of the pod 2 shares and no quota
    resized       2 shares, and the pod's limit as quota

(kuberuntime_container_linux.go: getCPULimit, calculateLinuxResources; kuberuntime_manager.go:
containerResourcesFromRequirements). So each of them looks as large as the pod, or as if it wanted nothing. The pod's own
size is the sandbox's (kuberuntime_sandbox_linux.go: calculateSandboxResources). A container with a request of its own is
charged that; the others are charged, together and once, the rest of the pod's.

The sandbox of a pod without pod-level resources says the sum of its containers, or an init container where that is more
(component-helpers resource.PodRequests): there is nothing to share out then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from policies.model import Container, PodShare, PodSize, Resources

#: The most that shares can say (MaxShares in cm/helpers_linux.go): a larger pod's size is not known.
MOST_MILLI = 256_000
#: Limits and requests that differ by no more are the same: systemd rounds quotas to 10m, a weight of cgroup v2 stands for
#: 26 shares.
SAME_MILLI = 30


def with_told(container: Container, resources: Resources) -> Container:
    """A container with the resources that an update has. Kubelet writes 2 shares into one without a request of its own."""
    share = container.pod_share
    if share is not None and not resources.milli_request:
        return replace(container, resources=resources, pod_share=replace(share, told=resources))
    return replace(container, resources=resources, pod_share=None, tells_own=resources.milli_request > 0)


def shared_out(size: Optional[PodSize], containers: Iterable[Container]) -> Mapping[str, Container]:
    """The containers of a pod by name, each with its charge; each name once, the last one counts.

    ``size``: the pod's, by its sandbox.
    """
    named = {container.name: container for container in containers}
    sharers = _sharers(size, named) if size is not None and _is_known(size) else frozenset()
    if size is None or not sharers:
        return {name: _alone(container) for name, container in named.items()}
    own = sum(c.told.milli_request for name, c in named.items() if name not in sharers)
    whole = max(0, size.milli_of_containers - own)
    if whole <= SAME_MILLI and size.milli_limit is None:  # others request all there is
        return {name: _alone(container) for name, container in named.items()}
    each, more = divmod(whole, len(sharers))
    found = {name: _alone(c) for name, c in named.items() if name not in sharers}
    for number, name in enumerate(sorted(sharers)):
        found[name] = _sharing(named[name], size, whole, each + (number < more), len(sharers))
    return found


def is_plain(size: Optional[PodSize], containers: Iterable[Container]) -> bool:
    """Whether it is seen at a glance that each of these containers has resources of its own, as in most pods."""
    limit, total = None if size is None else size.limit_of_containers, 0
    for container in containers:
        milli = container.resources.milli_request
        if container.pod_share is not None or (
            not milli and container.resources.milli_limit in (None, limit)
        ):
            return False
        total += milli
    return size is None or total <= size.milli_of_containers


def _is_known(size: PodSize) -> bool:
    return size.is_of_sandbox and 0 < size.milli_of_containers < MOST_MILLI


def _sharers(size: PodSize, named: Mapping[str, Container]) -> frozenset[str]:
    """The names of those without a request of their own."""
    whole, limit = size.milli_of_containers, size.limit_of_containers
    # 1. Sharing containers, and ones with nothing that have the pod's limit, as all of a pod with a limit have. Of
    #    a pod without any limit all with nothing: what the others do not request is theirs, until those are there.
    nothing = {name for name, c in named.items() if not c.told.milli_request}
    found = {name for name, c in named.items() if c.pod_share is not None}
    if limit is not None:
        found |= {name for name in nothing if _is_same(named[name].told.milli_limit, limit)}
        # 2. Such a one tells that the pod has resources of its own: containers given its limit as request share it.
        if found:
            found |= {name for name, c in named.items() if _has_limit_of_pod(c, limit)}
    elif not size.is_past:
        found |= {name for name in nothing if named[name].told.milli_limit is None}
    # 3. More than the pod has none of its own can be: the largest were given the pod's limit.
    left = {name: c.told.milli_request for name, c in named.items() if name not in found}
    while sum(left.values()) > whole + SAME_MILLI:
        given = {name: milli for name, milli in left.items() if _may_be_the_pods(named[name], whole)}
        if not given:  # its size is older than what an update has told
            break
        largest = max(given.values())
        found |= {name for name, milli in given.items() if milli == largest}
        left = {name: milli for name, milli in left.items() if name not in found}
    return frozenset(found)


def _has_limit_of_pod(container: Container, limit: int) -> bool:
    told = container.told
    is_limit = _is_same(told.milli_limit, limit) and _is_same(told.milli_request, limit)
    return is_limit and not container.tells_own


def _may_be_the_pods(container: Container, whole: int) -> bool:
    """Whether its request can be the pod's limit, which is no less than the pod's request."""
    told = container.told
    is_even = told.milli_limit is None or _is_same(told.milli_limit, told.milli_request)
    return is_even and told.milli_request + SAME_MILLI >= whole and not container.tells_own


def _is_same(milli: Optional[int], other: int) -> bool:
    return milli is not None and abs(milli - other) <= SAME_MILLI


def _alone(container: Container) -> Container:
    if container.pod_share is None:
        return container
    return replace(container, resources=container.told, pod_share=None)


def _sharing(container: Container, size: PodSize, whole: int, milli: int, count: int) -> Container:
    told, limit = container.told, size.limit_of_containers
    # Of two that tell of a resize, one after the other, the smaller limit is in force.
    if told.milli_limit is not None and limit is not None and not _is_same(told.milli_limit, limit):
        limit = min(told.milli_limit, limit)
    else:
        limit = told.milli_limit
    milli = milli if limit is None else min(milli, limit)
    share = PodShare(told, whole, count)
    resources = replace(told, milli_request=milli, milli_limit=limit)
    if (container.pod_share, container.resources) == (share, resources):
        return container
    return replace(container, resources=resources, pod_share=share)
