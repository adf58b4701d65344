"""A role for each node, where the operator may write roles: packaging/cluster/rbac-per-node, for servers before 1.30.

Where it may not, it asks again twice a minute and says so once: there an admission policy binds agents to their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.api.names import OPERATOR_MANAGER
from cluster.api.rbac import RBAC, node_access
from cluster.kube.errors import ApiError, Unreachable
from cluster.kube.io.access import NoAccess
from cluster.kube.requests import Resource
from cluster.operator.io.clock import Clock
from cluster.operator.objects import NodePlacement

ROLES = Resource(RBAC, "v1", "clusterroles")
BINDINGS = Resource(RBAC, "v1", "clusterrolebindings")
#: Seconds between two looks at whether there are new nodes, and after a write that failed.
EVERY_S, RETRY_S = 5.0, 30.0


class NodeAccess:
    """Roles and bindings are owned by the nodes' NodePlacements, with which the server removes them."""

    def __init__(
        self, client: Any, clock: Clock, check: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        """``check`` raises where nothing may be written any more."""
        self._client, self._clock, self._check, self._log = client, clock, check, log
        #: Node and the UID of its NodePlacement, for which both are written.
        self._done: set[tuple[str, str]] = set()

    async def run(self, placements: Mapping[str, NodePlacement]) -> None:
        """For ever: roles may become writable, and nodes come."""
        allowed = True
        while True:
            wait_s = EVERY_S
            try:
                for name, uid in sorted({(each.name, each.uid) for each in placements.values()} - self._done):
                    await self._write(name, uid)
                    allowed = True
            except (ApiError, Unreachable, NoAccess) as error:
                refused = isinstance(error, ApiError) and error.status == 403
                if allowed or not refused:
                    self._log(f"roles of single nodes are not written: {error}")
                allowed = not refused
                wait_s = RETRY_S
            await self._clock.sleep(wait_s * (0.9 + self._clock.jitter() / 5))

    async def _write(self, node: str, uid: str) -> None:
        for resource, document in zip((ROLES, BINDINGS), node_access(node, owner_uid=uid)):
            self._check()
            name = document["metadata"]["name"]
            await self._client.apply(resource, name, document, manager=OPERATOR_MANAGER)
        self._done.add((node, uid))
