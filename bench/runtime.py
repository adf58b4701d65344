"""The fastest runtime Python can be: ``python -m bench.runtime SOCKET CONTAINERS`` answers from ready bytes.

Lists ``CONTAINERS`` exited containers (nobody asks for details of those), gives every create a new id, and
answers everything else with an empty message.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import grpc
import grpc.aio

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import container_config

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


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


class Handler(grpc.GenericRpcHandler):
    """Every method, from ready bytes."""

    def __init__(self, containers: int) -> None:
        version = cri.VersionResponse(
            version="0.1.0", runtime_name="containerd", runtime_version="1.7.0", runtime_api_version="v1"
        )
        self._ready = {"Version": version.SerializeToString(), "ListContainers": listing(containers)}
        self._ids = itertools.count(1 << 200)

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            self._create
            if handler_call_details.method.endswith("/CreateContainer")
            else self._answer(handler_call_details)
        )

    def _answer(self, details: Any) -> Any:
        reply = self._ready.get(details.method.rpartition("/")[2], b"")

        async def answer(request: bytes, context: Any) -> bytes:
            return reply

        return answer

    async def _create(self, request: bytes, context: Any) -> bytes:
        return cri.CreateContainerResponse(container_id=f"{next(self._ids):064x}").SerializeToString()


async def serve(socket: str, containers: int) -> None:
    server = grpc.aio.server(handlers=[Handler(containers)], options=OPTIONS)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
