"""The names that agent, operator, installer and manifests share; a name here is an interface and does not change."""

from __future__ import annotations

GROUP = "cri-resmgr.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: Kind and plural of what is defined by packaging/cluster/crds.
NODE_PLACEMENT, NODE_PLACEMENTS = "NodePlacement", "nodeplacements"
PLACEMENT_POLICY, PLACEMENT_POLICIES = "PlacementPolicy", "placementpolicies"
AFFINITY_ADVICE, AFFINITY_ADVICES = "AffinityAdvice", "affinityadvices"

#: What is not cluster-scoped is here.
NAMESPACE = "cri-resmgr"
AGENT, OPERATOR, INSTALLER = "cri-resmgr-agent", "cri-resmgr-operator", "cri-resmgr-installer"

#: Field managers of server-side apply: one for each writer of an object.
AGENT_MANAGER, OPERATOR_MANAGER = AGENT, OPERATOR

#: Conditions of a NodePlacement.
READY, DEGRADED, CONFIG_APPLIED = "Ready", "Degraded", "ConfigApplied"
#: Only where it is False: the server's schema is older than the agent, which names what is not written.
SCHEMA_CURRENT = "SchemaCurrent"

#: On a node: the version that the installer has put there, and whether it is in the middle of it.
INSTALLED_LABEL = f"{GROUP}/installed"
INSTALLING_LABEL = f"{GROUP}/installing"

#: On a node, by an administrator: which front end runs there, ``nri``, ``standalone`` or ``proxy``. Without it the
#: DaemonSets that were applied run there; the installer touches only nodes that say ``proxy``.
FRONT_END_LABEL = f"{GROUP}/front-end"
#: On Jobs and their pods: the node's whole name.
NODE_ANNOTATION = f"{GROUP}/node"
