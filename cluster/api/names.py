"""The names that agent, operator and manifests share; a name here is an interface and does not change."""

from __future__ import annotations

GROUP = "cri-resmgr.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: Kind and plural of the CRDs in packaging/cluster/crds.
NODE_PLACEMENT, NODE_PLACEMENTS = "NodePlacement", "nodeplacements"
PLACEMENT_POLICY, PLACEMENT_POLICIES = "PlacementPolicy", "placementpolicies"
AFFINITY_ADVICE, AFFINITY_ADVICES = "AffinityAdvice", "affinityadvices"

#: Namespace of namespaced objects.
NAMESPACE = "cri-resmgr"
AGENT, OPERATOR = "cri-resmgr-agent", "cri-resmgr-operator"

#: Field managers of server-side apply: one for each writer of an object.
AGENT_MANAGER, OPERATOR_MANAGER = AGENT, OPERATOR

#: Conditions of a NodePlacement.
READY, DEGRADED, CONFIG_APPLIED = "Ready", "Degraded", "ConfigApplied"
#: The operator's; only where it is or was False: the operator cannot read the object, and leaves it as it is.
READABLE = "Readable"
#: Reason of a Ready that the operator has made Unknown.
AGENT_SILENT = "AgentSilent"
#: Only where it is False: figures of the status are not of now, since when and why.
CURRENT = "Current"
#: Only where it is False: the server's schema is older than the agent, which names the fields not written.
SCHEMA_CURRENT = "SchemaCurrent"
