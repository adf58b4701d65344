"""Makes the daemon's claims those that are: ends what is gone, and has prepared again what the daemon has lost.

A claim is asked for in the API by its name: a list would be of all claims of the cluster, for each node.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Optional

from cluster.agent.io.daemon import DaemonClient
from cluster.agent.io.log import TroubleLog, log
from cluster.agent.io.written import NO_ANSWER
from cluster.api import names
from cluster.dra.claims import CLAIMS, ClaimName, ClaimUnusable, prepare_arguments
from cluster.dra.io.preparing import Preparing
from cluster.dra.recovery import (
    NO_RELATION,
    STATE_FILE,
    KubeletClaims,
    Recovery,
    is_allocated_here,
    read_kubelet,
)
from cluster.kube.events import WARNING, About, Events
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cluster.kube.io.event_writer import EventWriter
from cluster.kube.requests import ApiError
from cri_api.control import ControlError

#: Claims of one round of which the API is asked; others wait for the next.
MOST_A_ROUND = 16
#: A preparation moves containers, and waits for the runtime.
PREPARE_S = 60.0
FORBIDDEN, NOT_FOUND = 403, 404
#: Reason of the Event on the pods of a claim that cannot be had again.
NOT_RESTORED = "ClaimNotRestored"


class Recoverer:
    """Of one driver on one node; ``round`` is called with the polls of the daemon."""

    def __init__(
        self,
        daemon: DaemonClient,
        client: Client,
        node: str,
        driver: str,
        kubelet_dir: Path,
        clock: Clock,
        preparing: Preparing,
    ) -> None:
        """``preparing``: what kubelet asks for meanwhile."""
        self._preparing = preparing
        self._daemon, self._client, self._node, self._driver = daemon, client, node, driver
        self._file, self._clock = kubelet_dir / STATE_FILE, clock
        self._recovery = Recovery()
        self._stamp: Optional[tuple[int, int, int]] = None
        self._kubelet: Optional[KubeletClaims] = None
        self._file_said = TroubleLog("kubelet's claims", "they are read")
        self._api_said = TroubleLog("claims", "the API server answers")
        self._events = Events(names.AGENT, f"{int(clock.wall()):x}c", node)
        self._event_writer = EventWriter(client, clock, self._events, lambda count: None)

    async def round(self) -> bool:
        """One look; whether the daemon has claims, or kubelet has some of which it has not heard yet that they ended.

        :raises DaemonAway, FolderGone, ControlError: as the daemon says.
        """
        rows = (await self._daemon.ask("claims"))["claims"]
        kubelet = self._kubelet_claims()
        self._preparing.forget(() if kubelet is None else kubelet.known)
        looked = self._recovery.look(rows, kubelet, self._clock.monotonic())
        try:
            for claim in looked.doubtful[:MOST_A_ROUND]:
                await self._end_if_gone(claim)
            for claim in looked.lost[:MOST_A_ROUND]:
                await self._preparing.restore(claim, partial(self._prepare_again, claim))
            await self._event_writer.round()
            if looked.doubtful or looked.lost:
                self._api_said.well()
        except (ApiError, *NO_ANSWER) as error:
            # What the API has is not known: then everything stays.
            self._api_said.trouble(str(error))
        return bool(rows) or (kubelet is not None and bool(kubelet.prepared))

    def _kubelet_claims(self) -> Optional[KubeletClaims]:
        """Read anew where it is another file; None: it is not there, or is not understood."""
        try:
            found = os.stat(self._file)
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp != self._stamp:
                self._kubelet = read_kubelet(self._file.read_text(), self._driver)
                self._stamp = stamp
            self._file_said.well()
        except FileNotFoundError:
            self._stamp = self._kubelet = None
        except (OSError, ValueError) as error:
            self._stamp = self._kubelet = None
            self._file_said.trouble(f"{self._file}: {error}")
        return self._kubelet

    async def _end_if_gone(self, claim: ClaimName) -> None:
        try:
            is_there = is_allocated_here(await self._get(claim), claim.uid, self._driver, self._node)
        except ApiError as error:
            if not self._says_gone(error, claim):
                raise
            is_there = False
        self._recovery.asked(claim, self._clock.monotonic())
        if not is_there:
            log(
                "info", "claim ended", claim=claim, uid=claim.uid, reason="neither the API nor kubelet has it"
            )
            await self._daemon.ask("claim-unprepare", uid=claim.uid)

    def _says_gone(self, error: ApiError, claim: ClaimName) -> bool:
        if error.status == NOT_FOUND:  # a server that does not know the kind of object names none
            return f'"{claim.name}" not found' in error.message
        # Kubelet's credentials may read the claims of its pods only: that of none of them is not there for it.
        return error.status == FORBIDDEN and NO_RELATION in error.message and self._kubelet is not None

    async def _prepare_again(self, claim: ClaimName) -> None:
        pods: list[dict[str, str]] = []
        try:
            found = await self._get(claim)
            if not is_allocated_here(found, claim.uid, self._driver, self._node):
                raise ClaimUnusable(f"the claim {claim} has no allocation here any more")
            arguments: dict[str, Any] = prepare_arguments(found, self._driver, self._node)
            pods = arguments["pods"]
            self._recovery.asked(claim, self._clock.monotonic())
            await self._daemon.ask("claim-prepare", PREPARE_S, **arguments)
            log(
                "info",
                "claim prepared again",
                claim=claim,
                uid=claim.uid,
                reason="kubelet has it, the daemon had not",
            )
        except (ClaimUnusable, ControlError) as error:
            self._refused(claim, pods, str(error))
        except ApiError as error:
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            self._refused(claim, pods, error.message)

    def _refused(self, claim: ClaimName, pods: list[dict[str, str]], sentence: str) -> None:
        self._recovery.asked(claim, self._clock.monotonic())
        log("warning", "claim not prepared again", claim=claim, uid=claim.uid, reason=sentence)
        message = (
            f"the CPUs of the claim {claim} were lost on {self._node} and cannot be had again: {sentence}"
        )
        for pod in pods:
            about = About("v1", "Pod", pod["name"], pod["uid"], claim.namespace)
            self._events.add(about, NOT_RESTORED, WARNING, message, self._clock.stamp())

    async def _get(self, claim: ClaimName) -> dict[str, Any]:
        return await self._client.get(CLAIMS, claim.name, claim.namespace)
