"""Schemas of another version on a real API server: programs that are newer, and objects that are older than their CRDs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.api.crds import definitions
from cluster.api.names import API_VERSION, NODE_PLACEMENT, SCHEMA_CURRENT
from tests.cluster.declared import older
from tests.cluster.real.control_plane import ControlPlane, Refused
from tests.cluster.real.kubectl import Kubectl
from tests.cluster.real.parts import (
    PLACEMENTS,
    POLICIES,
    WAIT_S,
    DescribedNode,
    Part,
    condition,
    delete,
    placement,
    policy,
    policy_status,
    put_policy,
    until_applied,
    until_ready,
)
from tests.e2e.node import until
from tests.machines import HYGON_7285_2S

pytestmark = pytest.mark.cluster

APPLY = "application/apply-patch+yaml"
#: Fields that the schemas of the version before do not have here: of both halves of the agent, and of the operator.
LACKING = {
    "nodeplacements": (
        "status.frozen",
        "status.zones.memoryFreeBytes",
        "status.doctor.warnings",
        "status.policy.generation",
    ),
    "placementpolicies": ("status.inChange", "status.completedHash"),
    "affinityadvices": (),
}


class Schemas:
    """The CRDs of a server, of this version and of the one before, as `kubectl apply` brings them there."""

    def __init__(self, api: ControlPlane, kubectl: Kubectl, folder: Path) -> None:
        self._api, self._kubectl, self._folder = api, kubectl, folder
        self._new = definitions()

    async def be(self, version: str) -> None:
        """``old`` or ``new``; returns once the server goes by them."""
        found = [
            older(each, *LACKING[each["spec"]["names"]["plural"]]) if version == "old" else each
            for each in self._new
        ]
        file = self._folder / "crds.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
        await asyncio.to_thread(self._kubectl.run, "apply", "-f", str(file))
        await until(self._knows, lambda knows: knows == (version == "new"), WAIT_S)

    async def _knows(self) -> bool:
        body = {
            "apiVersion": API_VERSION,
            "kind": NODE_PLACEMENT,
            "metadata": {"name": "probe"},
            "status": {"frozen": True},
        }
        path = f"{PLACEMENTS}/probe?dryRun=All&fieldManager=probe"
        try:
            await asyncio.to_thread(lambda: self._api.ask("PATCH", path, body, content_type=APPLY))
        except Refused as refused:
            assert "field not declared in schema" in str(refused)
            return False
        return True


@pytest.fixture
def schemas(rights: ControlPlane, kubectl: Kubectl, folder: Path) -> Iterator[Schemas]:
    found = Schemas(rights, kubectl, folder)
    yield found
    asyncio.run(found.be("new"))


def message(of: Mapping[str, Any], type_: str) -> str:
    conditions = of.get("status", {}).get("conditions") or ()
    return next((str(each["message"]) for each in conditions if each["type"] == type_), "")


async def test_newer_programs_work_on_older_schemas_and_objects_survive_both_ways(
    rights: ControlPlane, schemas: Schemas, started_operator: Part, folder: Path
) -> None:
    await schemas.be("old")
    node = DescribedNode(rights, folder / "n", f"versions-{os.getpid()}", HYGON_7285_2S)

    async def seen() -> Mapping[str, Any]:
        return await placement(rights, node.name)

    try:
        await node.start(kind="versions")
        await until_ready(rights, node.name)
        # Newer programs, older schemas: what is known is written, the rest is told, and a rollout goes its way.
        only = {"matchLabels": {"kind": "versions"}}
        await put_policy(rights, policy("over", {"policy": {"Active": "topology-aware"}}, selector=only))
        await until_applied(rights, "over", node.name)
        found = await until(
            seen, lambda of: "status.policy.generation" in message(of, "ConfigApplied"), WAIT_S
        )
        assert condition(found, "ConfigApplied") == "True"
        found = await until(seen, lambda of: "status.doctor.warnings" in message(of, SCHEMA_CURRENT), WAIT_S)
        assert condition(found, SCHEMA_CURRENT) == "False"
        for path in ("status.frozen", "status.zones.memoryFreeBytes"):
            assert path in message(found, SCHEMA_CURRENT)
        assert len(found["status"]["zones"]) > 8 and "frozen" not in found["status"]
        await until(
            lambda: policy_status(rights, "over"), lambda status: status.get("phase") == "Complete", WAIT_S
        )
        assert "inChange" not in await policy_status(rights, "over")
        # The schemas follow; an agent that starts anew writes all.
        await schemas.be("new")
        await node.agent.end()
        await node.agent.start()
        found = await until(
            seen, lambda of: "frozen" in of["status"] and not message(of, SCHEMA_CURRENT), WAIT_S
        )
        # Back: objects stay, and can be written by the same managers, whose fields the schema has lost.
        await schemas.be("old")
        kept = await seen()
        assert kept["metadata"]["uid"] == found["metadata"]["uid"]
        assert kept["spec"] == found["spec"] and "frozen" not in kept["status"]
        await put_policy(rights, policy("over", {"policy": {"Active": "hygon"}}, selector=only))
        await until(
            seen,
            lambda of: of["status"]["policy"].get("hash") not in ("", found["status"]["policy"]["hash"]),
            WAIT_S,
        )
        await until_applied(rights, "over", node.name)
        await until(
            lambda: policy_status(rights, "over"), lambda status: status.get("phase") == "Complete", WAIT_S
        )
        # An agent that starts without its daemon, and so knows nothing, can write that.
        assert found["status"]["doctor"]
        await node.daemon.kill()
        await node.agent.end()
        await node.agent.start()
        await until(seen, lambda of: condition(of, "Ready") == "False", WAIT_S)
        assert "Invalid" not in node.agent.log()
    finally:
        await delete(rights, f"{POLICIES}/over")
        await node.close()
