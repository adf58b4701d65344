"""An NRI plugin that keeps account of what it is told, as a process of its own.

    python -m bench.soak_plugin SOCKET NN-NAME

It says "ready" once it has been synchronized. To a line on its standard input it answers with a line of JSON: how many
calls it had, the pods and containers it takes to be there, and the ghosts: calls about what it was never told of, or of
what it was told is removed. One called "asks" answers the create of a container whose pod has the annotation
``soak/ask`` with a variable, which only a create can carry.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.connection import NriConnection

ASK = "soak/ask"
_EVERYTHING = 0x3FFF
_METHODS = nri.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
_TIMEOUT_S = 10.0


class Account:
    """Pods and containers as a plugin knows them."""

    def __init__(self) -> None:
        self.calls = 0
        self.pods: set[str] = set()
        self.containers: set[str] = set()
        self.ghosts: list[dict[str, str]] = []

    def note(self, call: str, request: Any) -> None:
        """A call of the host."""
        self.calls += 1
        if call == "Synchronize":
            self.pods |= {pod.id for pod in request.pods}
            self.containers |= {container.id for container in request.containers}
            return
        fields = type(request).DESCRIPTOR.fields_by_name
        if "pod" in fields:
            self._known(call, request.pod.id, self.pods, "PodSandbox", request.pod.id)
        if "container" in fields:
            self._known(call, request.container.id, self.containers, "Container", request.pod.id)

    def _known(self, call: str, key: str, known: set[str], kind: str, pod_id: str) -> None:
        if call in ("RunPodSandbox", "CreateContainer") and call.endswith(kind):
            known.add(key)
        elif key not in known:
            self.ghosts.append({"pod": pod_id, "what": f"{call} of {kind} {key[:12]}"})
        elif call == f"Remove{kind}":
            known.remove(key)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        there = {"pods": sorted(self.pods), "containers": sorted(self.containers)}
        return {"calls": self.calls, "ghosts": self.ghosts, **there}


def handlers(account: Account, asks: bool, synchronized: asyncio.Event) -> dict[str, Any]:
    """By call."""

    def handler(call: str) -> Any:
        request_type = getattr(nri, _METHODS[call].input_type.name)
        reply_type = getattr(nri, _METHODS[call].output_type.name)

        async def answer(message: bytes, timeout_s: float) -> bytes:
            request, reply = request_type.FromString(message), reply_type()
            if call == "Configure":
                reply.events = _EVERYTHING
            else:
                account.note(call, request)
            if call == "Synchronize":
                reply.more = request.more
                synchronized.set()
            if asks and call == "CreateContainer" and ASK in request.pod.annotations:
                reply.adjust.env.add(key="SOAK", value=request.pod.name)
            return bytes(reply.SerializeToString())

        return answer

    return {call: handler(call) for call in _METHODS if call != "StateChange"}


async def main(path: str, title: str) -> None:
    account, synchronized = Account(), asyncio.Event()
    index, _, name = title.partition("-")
    reader, writer = await asyncio.open_unix_connection(path)
    connection = NriConnection(reader, writer, "plugin", handlers(account, name == "asks", synchronized))
    running = asyncio.ensure_future(connection.run())
    request = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index, NRI_version="v0.12.2")
    await connection.call("RegisterPlugin", request.SerializeToString(), _TIMEOUT_S)
    await synchronized.wait()
    print("ready", flush=True)
    answering = asyncio.ensure_future(_answer(account))
    print(await running, file=sys.stderr)  # why the connection has ended
    answering.cancel()


async def _answer(account: Account) -> None:
    """A line for a line."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for _ in lines:
        print(json.dumps(account.told()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
