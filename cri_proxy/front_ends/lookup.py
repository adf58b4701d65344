"""What has to be asked of the machine about a container before it can be placed."""

from __future__ import annotations

from dataclasses import replace

from cri_proxy.cri.device_hints import Use, counted
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.resources import wants_lift, with_quota_kept
from cri_proxy.services.node_state import NodeState
from policies.model import Container


async def look_up(
    node_state: NodeState, engine: Engine, container: Container, uses: tuple[Use, ...]
) -> Container:
    """The container with the hints of what it uses, and with its quota kept where that cannot be lifted. A line of the log
    says which of its annotations are ignored.

    Waits only for what was never asked before; most containers use nothing that there is to ask about. The
    pod's cgroup is there by now: kubelet, or else the runtime, has made it for the sandbox.
    """
    if ignored := engine.policy.ignored(container):
        node_state.log.warning("annotations", container=container.path, ignored=list(ignored))
    settings = engine.policy.settings
    counting = counted(uses, container, settings)
    if counting:
        hints = await node_state.devices.hints(counting, engine.host.topology)
        container = replace(container, hints=hints)
    if node_state.quotas is not None and wants_lift(container, settings):
        refusal = node_state.quotas.refusal(container.pod.cgroup_parent)
        if refusal:
            node_state.log.warning("a CPU quota is not lifted", container=container.path, reason=refusal)
            container = with_quota_kept(container, refusal)
    return container
