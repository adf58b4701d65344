"""An NRI plugin that does what a script says, as a process of its own. It speaks the wire protocol and nothing else.

    python -m tests.nri.io.host.plugin --socket SOCKET --name NAME --index NN --script SCRIPT.json --log LOG.jsonl

Without --socket it takes its connection, name and index as a pre-registered plugin does: from its environment.
``plugins.py`` starts it. SCRIPT is a JSON object, every key optional:

    "mask": 15                        the events it asks for (default 0x3fff; 0 = everything)
    "unknown": ["RunPodSandbox"]      calls that are answered with code 12, as by a plugin that is older than they are
    "registers": false                connect and say nothing
    "knows_more": false               answer a part of a Synchronize as plugins before NRI 0.7 do
    "is_quick": true                  note no calls: they are answered as fast as Python can, for measurements
    "actions": {"CreateContainer": [ACTION, ...], "CreateContainer/app": [...]}
                                      by call, or by call and name of the container (or pod); one action a call, the
                                      last one for all that follow. Without any the answer is empty.

An ACTION may have: "until": "FILE" (wait until it exists), "reply": {...} (the response as JSON), "raw": "ff00" (the
response's bytes), "error": "text" and "code": 2, "hang": true, "exit": 1 (of the process, at once), "close": true, "make":
"FOLDER" (with a file "id" in it), "remove": "FOLDER". In texts {id} is the container's id, {count} another each time.
On its standard input it takes calls of its own, a line each: {"method": "UpdateContainers", "message": {...}}.
LOG gets a line for all that happens: {"event": "CreateContainer", "pod": ..., "container": ..., "message": {...}}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Callable, Optional

from google.protobuf import json_format

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.connection import CallFailed, CallTimedOut, ConnectionClosed, NriConnection

CALLS = tuple(method.name for method in nri.DESCRIPTOR.services_by_name["Plugin"].methods)
TIMEOUT_S = 5.0


class ScriptedPlugin:
    """One plugin on one connection."""

    def __init__(self, script: dict[str, Any], log: Path) -> None:
        self.script = script
        self._log = log.open("a", buffering=1)
        self._done: dict[str, int] = {}
        self.connection: Optional[NriConnection] = None

    def note(self, event: str, **more: Any) -> None:
        """A line in the log."""
        self._log.write(json.dumps({"event": event, **more}) + "\n")

    def close(self) -> None:
        """The log, that is; the process does it where there is one."""
        self._log.close()

    def handlers(self) -> dict[str, Callable[[bytes, float], Awaitable[bytes]]]:
        """By call."""
        return {call: self._handler(call) for call in CALLS if call not in self.script.get("unknown", ())}

    def _handler(self, call: str) -> Callable[[bytes, float], Awaitable[bytes]]:
        descriptor = nri.DESCRIPTOR.services_by_name["Plugin"].methods_by_name[call]
        request_type = getattr(nri, descriptor.input_type.name)
        reply_type = getattr(nri, descriptor.output_type.name)

        async def answer(message: bytes, timeout_s: float) -> bytes:
            request = request_type.FromString(message)
            name = (
                "" if self.script.get("is_quick") else self._note_call(call, request, len(message), timeout_s)
            )
            reply = reply_type()
            if call == "Configure":
                reply.events = self.script.get("mask", 0x3FFF)
            elif call == "Synchronize" and request.more:
                reply.more = self.script.get("knows_more", True)
            about = request.container.id if "container" in request_type.DESCRIPTOR.fields_by_name else ""
            action = self._action(call, name, about)
            raw = await self._act(action)
            if raw is not None:
                return raw
            json_format.ParseDict(action.get("reply", {}), reply)
            return bytes(reply.SerializeToString())

        return answer

    def _note_call(self, call: str, request: Any, size: int, timeout_s: float) -> str:
        """Note a call; return the name of the container, or else the pod, that it is about."""
        fields = type(request).DESCRIPTOR.fields_by_name
        pod = request.pod.name if "pod" in fields else ""
        container = request.container.name if "container" in fields else ""
        shown = _short(json_format.MessageToDict(request, preserving_proto_field_name=True))
        self.note(call, pod=pod, container=container, size=size, timeout_s=timeout_s, message=shown)
        return container or pod

    def _action(self, call: str, name: str, about: str) -> dict[str, Any]:
        scripted = self.script.get("actions", {})
        key = f"{call}/{name}" if f"{call}/{name}" in scripted else call
        actions = scripted.get(key, [{}])
        at = self._done.get(key, 0)
        self._done[key] = at + 1
        text = json.dumps(actions[min(at, len(actions) - 1)])
        found: dict[str, Any] = json.loads(text.replace("{id}", about).replace("{count}", str(at)))
        return found

    async def _act(self, action: dict[str, Any]) -> Optional[bytes]:
        assert self.connection is not None
        if "until" in action:
            while not os.path.exists(action["until"]):
                await asyncio.sleep(0.005)
        if "make" in action:
            os.mkdir(action["make"])
            Path(action["make"], "id").write_text(Path(action["make"]).name)
        if "remove" in action:
            shutil.rmtree(action["remove"])
        if "exit" in action:
            os._exit(action["exit"])
        if action.get("close"):
            self.connection.close("as the script says")
        if action.get("hang"):
            await asyncio.Event().wait()
        if "error" in action:
            raise CallFailed(action.get("code", 2), action["error"])
        return bytes.fromhex(action["raw"]) if "raw" in action else None

    async def run(self, name: str, index: str, end: socket.socket) -> str:
        """Register, and serve until the connection ends."""
        reader, writer = await asyncio.open_connection(sock=end)
        self.connection = NriConnection(reader, writer, "plugin", self.handlers())
        running = asyncio.ensure_future(self.connection.run())
        commands = asyncio.ensure_future(self._obey())
        if self.script.get("registers", True):
            request = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index, NRI_version="v0.12.2")
            await self._call("RegisterPlugin", request)
        reason = await running
        commands.cancel()
        self.note("closed", reason=reason)
        return reason

    async def _call(self, method: str, request: Any) -> None:
        assert self.connection is not None
        outcome: dict[str, Any] = {}
        try:
            reply = await self.connection.call(method, request.SerializeToString(), TIMEOUT_S)
            if method == "UpdateContainers":
                failed = nri.UpdateContainersResponse.FromString(reply).failed
                outcome["failed"] = [update.container_id for update in failed]
        except CallFailed as error:
            outcome.update(error=str(error), code=error.code)
        except (CallTimedOut, ConnectionClosed) as error:
            outcome["error"] = str(error)
        self.note(f"{method} answered", **outcome)

    async def _obey(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        try:
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        except (ValueError, OSError):
            return  # /dev/null, of a pre-registered one
        async for line in reader:
            told = json.loads(line)
            request = json_format.ParseDict(told["message"], getattr(nri, f"{told['method']}Request")())
            await self._call(told["method"], request)


def _short(shown: dict[str, Any]) -> dict[str, Any]:
    """Without the texts of many thousands of characters that some tests send."""
    return {
        key: value if len(str(value)) < 20_000 else f"{len(str(value))} characters"
        for key, value in shown.items()
    }


def main(words: Optional[list[str]] = None) -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    parser.add_argument("--name", default=os.environ.get("NRI_PLUGIN_NAME", ""))
    parser.add_argument("--index", default=os.environ.get("NRI_PLUGIN_IDX", ""))
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    told = parser.parse_args(words)
    plugin = ScriptedPlugin(json.loads(told.script.read_text()), told.log)
    environment = {key: value for key, value in os.environ.items() if key != "LC_CTYPE"}  # Python's own
    plugin.note("started", pid=os.getpid(), environment=environment, descriptors=_descriptors())
    if told.socket:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(told.socket)
    else:
        end = socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"]))
    asyncio.run(plugin.run(told.name, told.index, end))
    sys.exit(1)  # as plugins written in Go do


def _descriptors() -> dict[str, str]:
    """Those that were open at the start, but for the log."""
    found = {}
    for entry in sorted(os.listdir("/proc/self/fd"), key=int)[:10]:
        try:
            found[entry] = os.readlink(f"/proc/self/fd/{entry}").split(":")[0]
        except OSError:
            continue  # that of the listing itself
    return found


if __name__ == "__main__":
    main()
