"""What the node's agent asks about claims of CPUs: which devices there are, to prepare a claim, to unprepare one.

Prepare is a decision of the engine before there is a container. It is answered when the claim's record is durable, when
the containers that lose CPUs by it have been told (or have had the time that a create gives them), and when its CDI file
is there. All of it may be asked again: what is done stays as it is, what is missing is made up for. What is asked about one
claim is done in the order of its coming: what an agent has asked for that was killed since goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from cri_api.claims import CLAIM, cdi_device, claim_key, part_name
from cri_api.control import ControlError
from cri_proxy.claims.devices import device_row, devices_of, find_device
from cri_proxy.claims.io.cdi_folder import CdiUnusable
from cri_proxy.claims.parameters import BadParameters
from cri_proxy.claims.report import claim_rows
from cri_proxy.claims.requests import BadClaim, ClaimRequest, parts_of, read_claim, read_uid
from cri_proxy.config.config import subjects_on
from cri_proxy.control import Command
from cri_proxy.daemon.claims_host import FilesLate
from cri_proxy.engine.claims import keys_of
from cri_proxy.engine.engine import Engine
from cri_proxy.engine.model import ClaimPart
from cri_proxy.services.books import CALL_WAIT_S
from policies.machine.cpus import format_cpus
from policies.model import PROTECTED, BudgetSpent, PlacementRefused

if TYPE_CHECKING:
    from cri_proxy.daemon.daemon import Daemon

#: The kinds of calls that are counted, and how they end.
PREPARE, UNPREPARE = "prepare", "unprepare"
DONE, REFUSED = "done", "refused"
AGAIN = "kubelet asks again"


class ClaimCommands:
    """The commands about claims of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._host = daemon.claims
        self._node_state = daemon.services.node_state

    def table(self) -> Mapping[str, Command]:
        """The commands by the name they have on the wire."""
        return {
            "claim-devices": self.devices,
            "claims": self.claims,
            "claim-prepare": partial(self._counted, PREPARE, self._prepare),
            "claim-unprepare": partial(self._counted, UNPREPARE, self._unprepare),
        }

    # ------------------------------------------------------------------ questions

    async def devices(self, arguments: dict[str, Any]) -> Any:
        """What can be claimed here now; where claims are not prepared, why not."""
        engine, reason = self._engine(), self._host.reason()
        head = {
            "enabled": not reason,
            "reason": reason,
            "driver": self._host.driver,
            "boot": self._host.boot_id,
        }
        if reason:
            return {**head, "counters": [], "devices": []}
        hardware = await self._host.hardware(engine.host.topology)
        isolation = PROTECTED if subjects_on(self._daemon.services.config) else ""
        devices = devices_of(engine)
        counters = dict.fromkeys(name for device in devices for name in device.counters)
        rows = [device_row(engine, device, hardware, isolation) for device in devices]
        return {**head, "counters": list(counters), "devices": rows}

    async def claims(self, arguments: dict[str, Any]) -> Any:
        """The claims that are prepared, and where their CPUs are."""
        return {"claims": claim_rows(self._engine()), "reason": self._host.reason()}

    # ------------------------------------------------------------------ actions

    async def _counted(self, call: str, work: Any, arguments: dict[str, Any]) -> Any:
        counter = self._daemon.services.metrics.claim_calls
        about = {key: str(arguments.get(key, "")) for key in ("uid", "namespace", "name") if key in arguments}
        try:
            async with self._host.turn(read_uid(arguments)):
                answer = await work(arguments)
        except (BadClaim, BadParameters, PlacementRefused, BudgetSpent, CdiUnusable, FilesLate) as error:
            counter.labels(call, REFUSED).inc()
            self._daemon.log.warning(f"claim {call} refused", **about, why=str(error))
            raise ControlError(str(error)) from None
        except ControlError as error:
            counter.labels(call, REFUSED).inc()
            self._daemon.log.warning(f"claim {call} refused", **about, why=str(error))
            raise
        counter.labels(call, DONE).inc()
        self._daemon.log.info(f"claim {call}d", **about)
        return answer

    async def _prepare(self, arguments: dict[str, Any]) -> Any:
        claim, engine = read_claim(arguments), self._engine()
        parts = parts_of(claim, partial(find_device, engine), engine.grants)
        # 1. What is there is answered wherever it is asked again: by a kubelet that has begun anew, say.
        if not self._is_there(engine, claim, parts):
            parts = await self._grant(claim)
        # 2. The record is durable; others have left; the runtime knows the devices.
        await self._durable(claim.uid)
        await self._alone(claim, parts)
        await self._host.follow_one(claim.uid)
        return {"parts": [self._answer(claim, part) for part in parts]}

    async def _grant(self, claim: ClaimRequest) -> tuple[ClaimPart, ...]:
        """Have the engine give all parts of a claim their CPUs, or none, in one step.

        :raises ControlError, PlacementRefused, BudgetSpent, BadClaim: it has not, and nothing has changed.
        """
        node_state = self._node_state
        # By true books: a container may own CPUs of which the records say nothing yet.
        if not self._host.reason() and not await node_state.books.known("claim-prepare", CALL_WAIT_S):
            raise ControlError(node_state.books.sentence())
        engine = self._engine()
        if reason := self._host.reason():
            raise ControlError(reason)
        parts, driver = parts_of(claim, partial(find_device, engine), engine.grants), self._host.driver
        engine.prepare(claim.uid, claim.namespace, claim.name, parts, node_state.clock())
        self._host.note_driver(driver)
        node_state.save()
        return parts

    @staticmethod
    def _is_there(engine: Engine, claim: ClaimRequest, parts: tuple[ClaimPart, ...]) -> bool:
        """Whether a claim is prepared with these parts, of the same devices, and no others."""
        wanted = {claim_key(part_name(claim.uid, part.request)): (part.devices, part.count) for part in parts}
        known = {key: engine.grants[key].part for key in keys_of(engine, claim.uid)}
        return wanted == {key: (part.devices, part.count) for key, part in known.items() if part is not None}

    async def _unprepare(self, arguments: dict[str, Any]) -> Any:
        uid, node_state = read_uid(arguments), self._node_state
        engine = self._engine()
        engine.unprepare(uid, node_state.clock())
        node_state.save()
        await self._durable(uid)
        await self._host.follow_one(uid)
        return {}

    def _engine(self) -> Engine:
        engine: Optional[Engine] = self._node_state.engine
        if engine is None:
            reasons = "; ".join(self._daemon.health.reasons.values()) or "it is starting"
            raise ControlError(f"cri-resmgr of this node is degraded and prepares no claims: {reasons}")
        return engine

    async def _durable(self, uid: str) -> None:
        """Wait until the records of a claim are as they are in memory.

        :raises ControlError: they cannot be had there now.
        """
        store, beginning = self._daemon.services.store, f"{CLAIM}{uid}_"

        def is_unsaved() -> bool:
            return any(str(key).startswith(beginning) for _, key in store.unsaved)

        await store.settled()
        if is_unsaved():
            # It has failed, or takes long: tried once more, before anything is said of it.
            store.later(_nothing)
            await store.settled()
        if is_unsaved():
            why = store.problem or "the disk is slow"
            raise ControlError(f"the claim cannot be written down, and {AGAIN}: {why}")

    async def _alone(self, claim: ClaimRequest, parts: tuple[ClaimPart, ...]) -> None:
        """Wait until other containers have left the claim's CPUs, no longer than a create waits for it."""
        node_state, loop = self._node_state, asyncio.get_running_loop()
        until_s, staying = loop.time() + node_state.shrink_wait_s, set()
        for part in parts:
            key = claim_key(part_name(claim.uid, part.request))
            staying |= set(await node_state.updates.alone(key, max(0.0, until_s - loop.time())))
        if staying:
            node_state.metrics.not_alone.labels("claim-prepare").inc()
            self._daemon.log.warning(
                "a claim is not alone on its CPUs", claim=claim.path, others=sorted(staying)
            )

    def _answer(self, claim: ClaimRequest, part: ClaimPart) -> dict[str, Any]:
        name, engine = part_name(claim.uid, part.request), self._engine()
        grant = engine.grants.get(claim_key(name))
        if grant is None:
            raise ControlError(f"{claim.path} was unprepared while it was being prepared")
        return {
            "request": part.request,
            "cdi": cdi_device(name),
            "cpus": format_cpus(grant.placement.cpus),
        }


def _nothing() -> None:
    pass
