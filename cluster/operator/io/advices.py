"""AffinityAdvice objects, compared once a minute with the advice of now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

from cluster.api.crds import affinity_advice
from cluster.api.names import AFFINITY_ADVICES, GROUP, OPERATOR_MANAGER, VERSION
from cluster.api.reader import read
from cluster.kube.io.access import NoAccess
from cluster.kube.io.clock import Clock
from cluster.kube.io.known_fields import KnownFields
from cluster.kube.requests import ApiError, Resource, Unreachable
from cluster.operator.advice import (
    FOLLOW_LABEL,
    Between,
    Holder,
    NodeTraffic,
    Owner,
    PodFacts,
    addresses_wanted,
    advise,
    between,
    holder_of,
    owners_wanted,
    read_pod,
    read_published,
    scale_selector,
)

ADVICES = Resource(GROUP, VERSION, AFFINITY_ADVICES)
KINDS = {
    "Deployment": Resource("apps", "v1", "deployments", namespaced=True),
    "StatefulSet": Resource("apps", "v1", "statefulsets", namespaced=True),
}
PODS = Resource("", "v1", "pods", namespaced=True)
EVERY_S = 60.0
#: Addresses looked up in one round: for each the server goes through all pods that it has in memory.
LOOKUPS = 20
#: Seconds that the owner of an address is believed. With ``LOOKUPS`` a minute 600 addresses stay known.
ADDRESS_S = 1800.0
#: Seconds that an owner's selector is believed; it cannot be changed but by making the owner again.
SELECTOR_S = 600.0


class Advices:
    """Advice is no more than that: what goes wrong here is logged and tried again a minute later."""

    def __init__(
        self, client: Any, clock: Clock, check: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        """``check`` raises where nothing may be written any more."""
        self._client, self._clock, self._check, self._log = client, clock, check, log
        self._known = KnownFields(client, ADVICES, affinity_advice(), clock.monotonic)
        #: By name: the status that was written last, and what the server had of it then.
        self._told: dict[str, tuple[Any, Any]] = {}
        #: Selector of an owner, "" of one that there is not, and when it was read.
        self._selectors: dict[Owner, tuple[str, float]] = {}
        #: The owner of an address, None = it is left out, and when it was looked up.
        self._holders: dict[str, tuple[Optional[Holder], float]] = {}
        self._said = self._said_of_addresses = ""
        self._say_again_at = 0.0

    async def run(self, traffic: Mapping[str, NodeTraffic], zones: Callable[[], Mapping[str, str]]) -> None:
        """For ever, from what each node's agent has said last. ``zones``: of the nodes that have one."""
        while True:
            try:
                await self._round(list(traffic.values()), zones())
                self._said = ""
            except (ApiError, Unreachable, NoAccess) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    self._log(f"AffinityAdvice: {error}")
            await self._clock.sleep(EVERY_S * (0.9 + self._clock.random01() / 5))

    async def _round(self, traffic: list[NodeTraffic], zones: Mapping[str, str]) -> None:
        listed = await self._client.list(ADVICES)
        present = {each["metadata"]["name"]: each for each in listed.get("items") or ()}
        published = {name: read_published(each) for name, each in present.items()}
        remote, now = (await self._between(traffic)).rates, self._clock.wall()
        wanted = owners_wanted(traffic, remote, published, now)
        selectors = {}
        for owner in sorted(wanted):
            selector = await self._selector(owner)
            if selector:
                selectors[owner] = selector
        self._selectors = {owner: kept for owner, kept in self._selectors.items() if owner in wanted}
        advices = advise(traffic, remote, selectors, published, zones, now)
        for name, advice in advices.items():
            there = present.get(name)
            has, wanted = (there or {}).get("status"), advice["status"]
            if there is None or _is_followed(there) != _is_followed(advice):
                self._check()
                without = {key: value for key, value in advice.items() if key != "status"}
                await self._known.apply(name, without, manager=OPERATOR_MANAGER)
            # What an older schema makes of a status is no difference.
            if has != wanted and self._told.get(name) != (wanted, has):
                self._check()
                await self._write(name, advice)
        self._told = {name: told for name, told in self._told.items() if name in advices}
        for name in sorted(present.keys() - advices.keys()):
            self._check()
            await self._delete(name)

    async def _between(self, traffic: list[NodeTraffic]) -> Between:
        wanted = addresses_wanted(traffic)
        self._holders = {address: self._holders[address] for address in wanted if address in self._holders}
        now = self._clock.monotonic()
        old = [address for address, (_, at) in self._holders.items() if now >= at + ADDRESS_S]
        new = [address for address in wanted if address not in self._holders]
        refused = ""
        # Whatever comes anew, known addresses are looked up again now and then.
        for address in [*old[: LOOKUPS // 2], *new, *old[LOOKUPS // 2 :]][:LOOKUPS]:
            try:
                found = await self._client.list(
                    PODS,
                    field_selector=f"status.podIP={address}",
                    keep=lambda pod: read(pod, read_pod),
                    cached=True,
                )
            except ApiError as error:
                # Without the right to read pods there is advice as far as owners share nodes.
                if error.status != 403:
                    raise
                refused = str(error)
                break
            pods = [pod for pod in found.get("items") or () if isinstance(pod, PodFacts)]
            self._holders[address] = holder_of(pods), now
        made = between(traffic, {address: holder for address, (holder, _) in self._holders.items()})
        self._say_addresses(made, len(wanted), refused)
        return made

    def _say_addresses(self, made: Between, wanted: int, refused: str) -> None:
        said = (
            f"of {wanted} addresses that nodes exchange bytes with, {made.left_out} are of no pod, of several, or of "
            f"none of a Deployment or StatefulSet, and {made.unknown} are not looked up yet"
        )
        if refused:
            said = f"what goes from node to node is left out, as pods cannot be looked up: {refused}"
        elif not made.left_out and not made.unknown:
            said = ""
        now = self._clock.monotonic()
        if said and said != self._said_of_addresses and now >= self._say_again_at:
            self._say_again_at = now + ADDRESS_S
            self._said_of_addresses = said
            self._log(f"AffinityAdvice: {said}")

    async def _selector(self, owner: Owner) -> str:
        now = self._clock.monotonic()
        kept = self._selectors.get(owner)
        if kept and now < kept[1] + SELECTOR_S:
            return kept[0]
        selector = ""
        try:
            scale = await self._client.get(
                KINDS[owner.kind], owner.name, owner.namespace, subresource="scale"
            )
            selector = scale_selector(scale)
        except ApiError as error:
            if error.status != 404:
                raise
        self._selectors[owner] = (selector, now)
        return selector

    async def _write(self, name: str, advice: dict[str, Any]) -> None:
        answer = await self._known.apply(name, advice, manager=OPERATOR_MANAGER, subresource="status")
        self._told[name] = (advice["status"], answer.get("status"))

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(ADVICES, name)
        except ApiError as error:
            if error.status != 404:
                raise


def _is_followed(advice: Mapping[str, Any]) -> bool:
    return FOLLOW_LABEL in (advice["metadata"].get("labels") or {})
