"""What a runtime answers, as ready bytes."""

from __future__ import annotations

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import container_config


def listing(count: int) -> bytes:
    """A ListContainersResponse of the size kubelet's containers have."""
    reply = cri.ListContainersResponse()
    for number in range(count):
        config = container_config(f"app-{number}", labels={"io.kubernetes.pod.uid": f"uid-{number:030}"})
        reply.containers.add(
            id=f"{number:064x}",
            pod_sandbox_id=f"{number // 2:064x}",
            metadata=config.metadata,
            image=config.image,
            image_ref=f"sha256:{number:064x}",
            state=cri.CONTAINER_EXITED,
            created_at=1,
            labels=config.labels,
            annotations={**config.annotations, "io.kubernetes.container.hash": "9f1c4bb2"},
        )
    return reply.SerializeToString()


def version() -> bytes:
    """A VersionResponse."""
    return cri.VersionResponse(
        version="0.1.0", runtime_name="containerd", runtime_version="1.7.0", runtime_api_version="v1"
    ).SerializeToString()


def event(size: int) -> bytes:
    """A ContainerEventResponse of about that many bytes."""
    status = cri.ContainerStatus(
        id=f"{1:064x}", state=cri.CONTAINER_RUNNING, message="m" * max(0, size - 150)
    )
    return cri.ContainerEventResponse(
        container_id=status.id, container_event_type=cri.CONTAINER_STARTED_EVENT, containers_statuses=[status]
    ).SerializeToString()
