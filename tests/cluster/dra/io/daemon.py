"""Test support: a control socket that answers the commands about claims, as the daemon does, and does nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from cri_api.claims import cdi_device, part_name
from cri_api.control import read_request, write_error, write_result

L3 = {"kind": "l3", "cpus": 8, "shared": True, "counters": ["l3-0"], "attributes": {}}


class ClaimDaemon:
    """``held``: claims that are prepared, by UID. ``asked``: commands and their arguments, in the order of their coming."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.held: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        #: By a claim's name: the sentence with which its prepare is refused; by a command's: with which it is.
        self.refusals: dict[str, str] = {}
        #: Prepares wait for it; None: they do not.
        self.gate: Optional[asyncio.Event] = None
        #: What is changed in the answer to ``claims``, by the claim's UID.
        self.troubles: dict[str, dict[str, Any]] = {}
        self.at_once = self.most_at_once = 0
        #: The answer to ``claim-devices``.
        self.document: dict[str, Any] = {
            "enabled": True,
            "devices": [{"name": f"l3-{n}", **L3} for n in range(2)],
        }
        self._news = asyncio.Condition()
        self._server: Optional[asyncio.AbstractServer] = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.socket), limit=1 << 20)

    async def stop(self) -> None:
        """It is away, and its socket refuses."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self.socket.unlink(missing_ok=True)

    def commands(self, name: str) -> list[dict[str, Any]]:
        return [arguments for command, arguments in self.asked if command == name]

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Looked at after each command that has come."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(is_so), 60)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            writer.write(await self._answer(line))
            await writer.drain()
        writer.close()

    async def _answer(self, line: bytes) -> bytes:
        command, arguments = read_request(line)
        self.asked.append((command, arguments))
        async with self._news:
            self._news.notify_all()
        if command in self.refusals:
            return write_error(self.refusals[command])
        if command == "claim-devices":
            return write_result(self.document)
        if command == "claims":
            return write_result({"claims": [row for uid in self.held for row in self._rows(uid)]})
        if command == "claim-unprepare":
            self.held.pop(arguments["uid"], None)
            return write_result({})
        assert command == "claim-prepare"
        return await self._prepare(arguments)

    async def _prepare(self, arguments: dict[str, Any]) -> bytes:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.at_once -= 1
        if arguments["name"] in self.refusals:
            return write_error(self.refusals[arguments["name"]])
        self.held[arguments["uid"]] = arguments["results"]
        requests = dict.fromkeys(each["request"] for each in arguments["results"])
        parts = [{"request": each, "cdi": cdi_device(part_name(arguments["uid"], each))} for each in requests]
        return write_result({"parts": parts})

    def _rows(self, uid: str) -> list[dict[str, Any]]:
        row = {
            "uid": uid,
            "namespace": "shop",
            "name": "four",
            "cpus": "0-3",
            "healthy": True,
            "moved": False,
        }
        devices = [each["device"] for each in self.held[uid]]
        return [{**row, "request": "cpus", "devices": devices, "why": "", **self.troubles.get(uid, {})}]
