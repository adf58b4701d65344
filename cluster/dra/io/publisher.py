"""Keeps a node's ResourceSlices as they should be: what the daemon gives to claims, as the scheduler reads it.

All of them are read once; after that a watch of their metadata tells of a slice that something else has changed or
deleted, as kubelet does with all slices of its node when it starts. Requests that write are a second apart, and there is
none where nothing has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Optional

from cluster.agent.io.log import TroubleLog, log
from cluster.agent.io.written import NO_ANSWER
from cluster.dra.slices import (
    SLICES,
    Step,
    Stored,
    contents_of,
    dropped,
    has_lists,
    next_step,
    object_of,
)
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.pace import Backoff, WriteRate
from cluster.kube.requests import ApiError, Resource, is_older
from cri_api.supervisor import together

NODES = Resource("", "v1", "nodes")
#: Between two writes.
WRITE_S = 1.0
#: A server whose gates are off is tried again this rarely.
GATES_S = 600.0
FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 403, 404, 409, 422


class Publisher:
    """Slices of one driver on one node. ``run`` never ends by itself; ``want`` says what should be there."""

    def __init__(self, client: Client, node: str, driver: str, clock: Clock) -> None:
        self._client, self._node, self._driver, self._clock = client, node, driver, clock
        self._document: Optional[Mapping[str, Any]] = None
        #: By name what the server has; None = it is not known.
        self._there: Optional[dict[str, Stored]] = None
        self._news = asyncio.Event()
        self._pace, self._backoff = WriteRate(WRITE_S), Backoff()
        self._takes_lists = True
        self._gates = ""
        self._said = TroubleLog("resource slices", "they are written")
        #: Requests that have written something.
        self.writes = 0
        #: The server has what is wanted, as far as is known.
        self.is_settled = False

    def want(self, document: Mapping[str, Any]) -> None:
        """The daemon's ``claim-devices``; where it is not enabled all slices are deleted."""
        if document != self._document:
            self._document = document
            self.is_settled = False
            self._news.set()

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        self._there, self.is_settled = None, False
        self._news.set()
        await together(self._follow(), self._keep())

    @property
    def _mine(self) -> str:
        return f"spec.nodeName={self._node},spec.driver={self._driver}"

    # ------------------------------------------------------------------ what is there

    async def _follow(self) -> None:
        events = self._client.watch(
            SLICES, field_selector=self._mine, keep=lambda found: found["metadata"], metadata_only=True
        )
        async for event in events:
            if self._there is None:  # it is read with the first write
                continue
            if event.kind == "SYNC":
                listed = {row["name"] for row in event.object}
                for name in self._there.keys() - listed:
                    self._gone(name, self._there[name].uid)
                for row in event.object:
                    self._heard(row)
            elif event.kind == "DELETED":
                self._gone(event.object["name"], event.object["uid"])
            else:
                self._heard(event.object)

    def _heard(self, row: Mapping[str, Any]) -> None:
        there = self._there or {}
        known = there.get(row["name"])
        is_same = known is not None and known.uid == row["uid"]
        if known is not None and is_same and not is_older(known.version, row["resourceVersion"]):
            return
        there[row["name"]] = Stored(row["uid"], row["resourceVersion"], None)
        self._wake()

    def _gone(self, name: str, uid: str) -> None:
        there = self._there or {}
        if name in there and there[name].uid == uid:
            del there[name]
            self._wake()

    def _wake(self) -> None:
        self.is_settled = False
        self._news.set()

    async def _look(self) -> dict[str, Stored]:
        """What there is, with specs."""
        there = self._there
        if there is None or any(stored.spec is None for stored in there.values()):
            found = await self._client.list(SLICES, field_selector=self._mine)
            before, there = there or {}, {}
            for each in found["items"]:
                meta = each["metadata"]
                stored = Stored(meta["uid"], meta["resourceVersion"], each["spec"])
                known = before.get(meta["name"])
                is_known = known is not None and known[:2] == stored[:2] and known.spec is not None
                there[meta["name"]] = known if known is not None and is_known else stored
            self._there = there
        return there

    # ------------------------------------------------------------------ what should be there

    async def _keep(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while not await self._round():
                pass

    async def _round(self) -> bool:
        """One request that writes, if one is due; whether nothing is left to do."""
        if self._document is None:
            return True
        try:
            there = await self._look()
            step = next_step(self._contents(), there, self._node, self._driver)
            if step is None:
                self._backoff.reset()
                self.is_settled = not self._gates
                if not self._gates:
                    self._said.well()
                    return True
                await self._wait(GATES_S)
                self._gates = ""
                return False
            wait_s = self._pace.wait_s(self._clock.monotonic())
            if wait_s > 0:
                await self._clock.sleep(wait_s)
                return False  # what is wanted may be another by now
            self._pace.wrote(self._clock.monotonic(), self._clock.random01())
            self.writes += 1
            await self._write(step)
            self._backoff.reset()
        except (ApiError, *NO_ANSWER) as error:
            await self._failed(error)
        return False

    def _contents(self) -> dict[str, dict[str, Any]]:
        document = self._document or {}
        return {} if self._gates else contents_of(document, self._node, lists=self._takes_lists)

    async def _write(self, step: Step) -> None:
        there = self._there
        assert there is not None
        if step.spec is None:
            assert step.before is not None
            try:
                await self._client.delete(SLICES, step.name, uid=step.before.uid)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
            there.pop(step.name, None)
            return
        try:
            body = object_of(step, await self._owner())
            if step.before is None:
                answer = await self._client.create(SLICES, body)
            else:
                answer = await self._client.replace(SLICES, step.name, body)
        except ApiError as error:
            if error.status == INVALID and self._takes_lists and has_lists({step.name: step.spec}):
                # The server knows no attributes that are lists: without its gate they lose their values.
                self._takes_lists = False
                log("info", "resource slices", reason=f"without lists: {error.message[:300]}")
                return
            raise
        meta = answer["metadata"]
        self._there = {
            **(self._there or {}),
            step.name: Stored(meta["uid"], meta["resourceVersion"], step.spec, is_told=True),
        }
        self._gates = dropped(step.spec, answer.get("spec") or {})
        if self._gates:
            self._said.trouble(self._gates)

    async def _owner(self) -> list[dict[str, Any]]:
        """The Node, as it is now: a slice of one that was made anew would be deleted as an orphan."""
        try:
            found = await self._client.get(NODES, self._node, metadata_only=True)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return []
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": found["metadata"]["uid"]}]

    async def _failed(self, error: Exception) -> None:
        delay_s = self._backoff.after(error, self._clock.random01())
        if isinstance(error, ApiError) and error.status in (CONFLICT, NOT_FOUND):
            log("info", "resource slices", reason=f"read again: {error.message}")
        else:
            self._said.trouble(_sentence(error))
        # The request may have come through, or another has written.
        self._there = None
        await self._clock.sleep(delay_s)

    async def _wait(self, seconds: float) -> None:
        """So long, or until something else is wanted."""
        await together(self._sleep(seconds), self._news.wait())
        self._news.clear()

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def _sentence(error: Exception) -> str:
    if not isinstance(error, ApiError):
        return f"the API server does not answer: {error}"
    return f"the API server says {error.status} {error.reason}: {error.message}"
