"""Claims are prepared and given back as kubelet asks: what was allocated is read from the API server, the daemon does it.

Kubelet asks again until it has succeeded, also after its own restarts: both are the same however often they are done. Of
one claim one thing is done at a time, what the recovery does of it included. A call that kubelet has given up goes on: what
it was for is there at the next ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine
from typing import Any, Callable, NamedTuple, TypeVar, Union

from cluster.agent.io.daemon import DaemonAway, DaemonClient, FolderGone, daemon_trouble
from cluster.agent.io.log import log
from cluster.dra.claims import (
    CLAIMS,
    ClaimName,
    ClaimUnusable,
    PreparedDevice,
    check_uid,
    prepare_arguments,
    prepared_devices,
)
from cluster.kube.io.access import NoAccess
from cluster.kube.io.client import Client
from cluster.kube.requests import ApiError, Unreachable
from cri_api.control import ControlError
from cri_api.printable import printable
from cri_api.waiting import wait_within

#: Claims that are prepared at a time, and as many that are given back; a pod has few, a node that was just booted has a
#: hundred pods.
MOST_AT_ONCE = 8
#: The daemon moves containers out of the way before it answers.
DAEMON_PATIENCE_S = 30.0
#: Kubelet's call ends after 45 s (defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin): what is late is told before that.
PATIENCE_S = 40.0
#: Of an Event's message, which has a sentence of kubelet's before ours (core/v1 bounds it at 1024).
MOST_SENTENCE = 700
_NOT_FOUND, _FORBIDDEN = 404, 403
#: What is done of a claim, in the words of the log.
PREPARE, UNPREPARE, RESTORE = "prepare", "unprepare", "restore"

Result = TypeVar("Result")


class Prepared(NamedTuple):
    """What has become of one claim; ``error``: one sentence, "" = it was done."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class _Work(NamedTuple):
    kind: str
    claim: ClaimName
    task: asyncio.Task[Any]


class Preparing:
    """Of one node's driver. ``close()`` at its end."""

    def __init__(self, daemon: DaemonClient, client: Client, node: str, driver: str) -> None:
        self._daemon, self._client, self._node, self._driver = daemon, client, node, driver
        #: By what is done: an API server that does not answer keeps no claim from being given back.
        self._at_once = {kind: asyncio.Semaphore(MOST_AT_ONCE) for kind in (PREPARE, UNPREPARE)}
        #: By the claim's UID.
        self._works: dict[str, _Work] = {}
        #: UIDs of claims that kubelet has given back last, and may still have in its file.
        self._given_back: set[str] = set()

    async def prepare(self, claim: ClaimName) -> Prepared:
        """The claim's devices, or why it cannot be prepared."""
        return await self._once(PREPARE, claim, self._prepare)

    async def unprepare(self, claim: ClaimName) -> Prepared:
        """Give the claim's CPUs back. Of the API nothing is needed: the claim may be gone from it."""
        return await self._once(UNPREPARE, claim, self._unprepare)

    async def restore(self, claim: ClaimName, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what makes good a claim that kubelet has prepared and the daemon has lost; what kubelet asks of it meanwhile
        is done afterwards.

        Nothing is done where kubelet has given the claim back, or asks for something: then its file is older than that.
        """
        if claim.uid in self._works or claim.uid in self._given_back:
            return
        task = self._begin(RESTORE, claim, do())
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if not task.cancelled():
            task.result()

    def forget(self, known: Collection[str]) -> None:
        """Kubelet's file has these claims and no others."""
        self._given_back &= set(known)

    async def close(self) -> None:
        """Whatever is under way is given up."""
        tasks = [work.task for work in self._works.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------------ one thing at a time

    async def _once(
        self, kind: str, claim: ClaimName, do: Callable[[ClaimName], Awaitable[Prepared]]
    ) -> Prepared:
        # 1. What is asked for may be under way already; something else of the same claim has to end first.
        while (work := self._works.get(claim.uid)) is not None and (work.kind, work.claim) != (kind, claim):
            await asyncio.wait([work.task])
        # 2. A caller that gives up ends nothing: others may wait for the same.
        task = self._begin(kind, claim, self._told(kind, claim, do)) if work is None else work.task
        return await asyncio.shield(task)

    def _begin(self, kind: str, claim: ClaimName, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._works[claim.uid] = _Work(kind, claim, task)
        task.add_done_callback(lambda _: self._works.pop(claim.uid))
        return task

    async def _told(
        self, kind: str, claim: ClaimName, do: Callable[[ClaimName], Awaitable[Prepared]]
    ) -> Prepared:
        try:
            found = await wait_within(PATIENCE_S, self._in_turn(kind, claim, do))
        except asyncio.TimeoutError:
            found = _refused(f"the claim {claim} is still being worked on after {PATIENCE_S:.0f} s")
        except (DaemonAway, FolderGone) as error:
            log("warning", "daemon", reason=str(error))
            found = _refused(daemon_trouble(self._node, DaemonAway()))
        except (ClaimUnusable, ControlError) as error:
            found = _refused(str(error))
        except (ApiError, Unreachable, NoAccess) as error:
            found = _refused(_api_trouble(claim, error))
        if found.error:
            log("warning", f"claim not {kind}d", claim=claim, uid=claim.uid, reason=found.error)
        else:
            devices = {"devices": ",".join(each.device for each in found.devices)} if found.devices else {}
            log("info", f"claim {kind}d", claim=claim, uid=claim.uid, **devices)
        return found

    async def _in_turn(
        self, kind: str, claim: ClaimName, do: Callable[[ClaimName], Awaitable[Prepared]]
    ) -> Prepared:
        async with self._at_once[kind]:
            return await do(claim)

    # ------------------------------------------------------------------ what is done

    async def _prepare(self, claim: ClaimName) -> Prepared:
        self._given_back.discard(claim.uid)
        found = await self._client.get(CLAIMS, claim.name, claim.namespace)
        check_uid(found, claim)
        arguments = prepare_arguments(found, self._driver, self._node)
        answer = await self._daemon.ask("claim-prepare", DAEMON_PATIENCE_S, **arguments)
        return Prepared(prepared_devices(arguments, answer, self._node))

    async def _unprepare(self, claim: ClaimName) -> Prepared:
        await self._daemon.ask("claim-unprepare", DAEMON_PATIENCE_S, uid=claim.uid)
        self._given_back.add(claim.uid)
        return Prepared()


def _refused(sentence: str) -> Prepared:
    sentence = printable(sentence)
    return Prepared(error=sentence if len(sentence) <= MOST_SENTENCE else f"{sentence[:MOST_SENTENCE]}...")


def _api_trouble(claim: ClaimName, error: Union[ApiError, Unreachable, NoAccess, Any]) -> str:
    if isinstance(error, ApiError) and error.status == _NOT_FOUND:
        return f"the claim {claim} is gone from the API server"
    if isinstance(error, ApiError) and error.status == _FORBIDDEN:
        return f"the node agent may not read the claim {claim}: {error.message}"
    return f"the claim {claim} could not be read from the API server: {error}"
