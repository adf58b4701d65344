"""What the containers of a pod are charged, in the books: as soon as one comes, goes or is told otherwise, all of its pod.

What each is charged follows from the sandbox's size and what its containers were told (policies/pod_share.py), whatever
came first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from cri_proxy.engine.ledger import Ledger
from cri_proxy.engine.records import Grant, Life
from policies.groups import is_pod_group
from policies.model import Container, Pod, PodSize, altered, wanted_milli
from policies.pod_share import SAME_MILLI, is_plain, shared_out


def share_out(ledger: Ledger) -> None:
    """Book the containers of the pods in which something has changed as they are charged now."""
    while ledger.unshared:
        share_out_pod(ledger, ledger.unshared.pop())


def share_out_pod(
    ledger: Ledger, sandbox_id: str, newcomer: Optional[Container] = None
) -> Optional[Container]:
    """The same for one pod. ``newcomer``: one that is not in the books as it is told now; returned as it is charged."""
    grants = [ledger.grants[key] for key in ledger.sandboxes.get(sandbox_id, ())]
    size = _size_of(ledger, sandbox_id, newcomer, grants)
    containers = [grant.container for grant in grants] + ([newcomer] if newcomer is not None else [])
    if size is None or is_plain(size, containers):
        ledger.unshared.discard(sandbox_id)
        return newcomer
    # Of a container that is there twice the request under way counts; the other one stays as it is until that has ended.
    grants.sort(key=lambda g: (g.life is Life.CREATING, g.container.attempt, g.key))
    containers = [grant.container for grant in grants] + ([newcomer] if newcomer is not None else [])
    named = {container.name: container for container in containers}
    shares = shared_out(size, named.values())
    for grant in grants:
        container = grant.container
        now = shares[container.name]
        if named[container.name] is container and now is not container:
            ledger.put(altered(ledger.grants[grant.key], container=now))
    ledger.unshared.discard(sandbox_id)
    return None if newcomer is None else shares[newcomer.name]


def own_together(ledger: Ledger, sandbox_id: str) -> bool:
    """Whether containers of a pod own CPUs as their pod's, or are to."""
    grants = [ledger.grants[key] for key in ledger.sandboxes.get(sandbox_id, ())]
    return any(
        g.container.pod_share is not None
        and g.placement.exclusive
        and (not g.placement.group or is_pod_group(g.placement.group))
        for g in grants
    )


def without_past(ledger: Ledger, container: Container, replaced: tuple[Grant, ...]) -> Pod:
    """The pod of a container that takes over from init containers which have finished; its size is known to be theirs where
    they needed as much, with those that run beside them.

    A pod's size is that of its init containers where it is the larger (component-helpers resource.PodRequests, PodLimits).
    """
    pod = container.pod
    size = pod.size
    over = [g for g in replaced if g.container.name != container.name]
    if size is None or size.is_past or not over:
        return pod
    there = {key: ledger.grants[key] for key in ledger.sandboxes.get(pod.id, ())}
    there.update({grant.key: grant for grant in over})
    needed = sum(wanted_milli(g.container) for g in there.values() if g.container.name != container.name)
    limit = size.milli_of_containers if size.limit_of_containers is None else size.limit_of_containers
    if needed + SAME_MILLI < limit:
        return pod
    pod = replace(pod, size=replace(size, is_past=True))
    ledger.change("pod", ledger.pods, pod.id, pod)
    return pod


def _size_of(
    ledger: Ledger, sandbox_id: str, newcomer: Optional[Container], grants: list[Grant]
) -> Optional[PodSize]:
    pod = ledger.pods.get(sandbox_id)
    if pod is None:
        known = [g.container.pod for g in grants] + ([newcomer.pod] if newcomer is not None else [])
        pod = next((p for p in known if p.size is not None), None)
    return None if pod is None else pod.size
