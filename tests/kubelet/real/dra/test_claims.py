"""Claims of CPUs from the server to the cgroup: who shares, who owns, what waits, and what is left afterwards."""

from __future__ import annotations

import pytest

from policies.machine.cpus import parse_cpus
from tests.e2e.node import until
from tests.kubelet.real.dra.node import DRIVER, L3_CPUS, ClaimNode, pod_of, share, user, whole_l3
from tests.kubelet.real.machine import MACHINE
from tests.kubelet.real.node import TIMEOUT_S
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, container, pod
from tests.machines import machine

pytestmark = SHARED

FRONT_ENDS = ("proxy", *(pytest.param(name, marks=pytest.mark.long) for name in ("nri", "standalone")))

L3S, NODES = len(L3_CPUS), len(machine(MACHINE).memory)
#: CPUs of an L3.
CPUS = len(L3_CPUS[0])


async def test_the_server_has_a_device_an_l3_and_whole_ones_beside(node: ClaimNode) -> None:
    counters, devices = await node.slices()
    assert {counters["pool"]["resourceSliceCount"], devices["pool"]["resourceSliceCount"]} == {2}
    assert {counters["nodeName"], devices["nodeName"]} == {node.name}
    assert sum(len(each["counters"]) for each in counters["sharedCounters"]) == L3S
    kinds = [each["attributes"]["kind"]["string"] for each in devices["devices"]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "l3": L3S,
        "whole-l3": L3S,
        "whole-numa": NODES,
    }
    shared = [each for each in devices["devices"] if each.get("allowMultipleAllocations")]
    assert {each["capacity"]["cpu"]["value"] for each in shared} == {str(CPUS)}
    assert len(shared) == L3S


async def test_a_container_with_a_claim_has_its_cpus_and_others_have_not(node: ClaimNode) -> None:
    other = await node.alone("other", cpu="500m", limit="100")
    await node.claim("one", share(1))
    ids = await node.start(pod_of("web", user("main", "one"), container("beside"), claims=["one"]))
    [given] = await node.allocation("one")
    assert (given["driver"], given["pool"], given["consumedCapacity"]) == (DRIVER, node.name, {"cpu": "1"})
    own = await node.claimed("one")
    assert len(own) == 1
    await node.until_told(ids["main"], lambda cpus: cpus == own)
    await node.until_told(other, lambda cpus: not cpus & own)
    await node.until_told(ids["beside"], lambda cpus: not cpus & own)
    await node.claims_agree()
    # The pod goes, and its claim is nowhere any more but on the server, to be given again.
    uids = node.prepared()
    assert len(uids) == 1
    await node.remove("web")
    await until(node.held, lambda held: not held.books | held.kubelet | held.devices, TIMEOUT_S)
    await node.until_told(other, lambda cpus: cpus >= own)
    await node.start(pod_of("web", user("main", "one"), claims=["one"]))
    await node.claims_agree()
    assert node.prepared() == uids


async def test_a_claim_of_more_cpus_has_them_in_its_devices_l3(node: ClaimNode) -> None:
    counts = (2, 4, CPUS)
    for count in counts:
        await node.claim(f"of-{count}", share(count))
        await node.start(pod_of(f"of-{count}", user("main", f"of-{count}"), claims=[f"of-{count}"]))
    devices = await node.devices()
    for count in counts:
        [given] = await node.allocation(f"of-{count}")
        own = await node.claimed(f"of-{count}")
        assert len(own) == count
        assert own <= L3_CPUS[devices[given["device"]]["attributes"]["l3"]["int"]]
    await node.claims_agree()


async def test_a_whole_l3_waits_for_the_last_share_of_it_and_a_share_for_the_whole(node: ClaimNode) -> None:
    await node.claim("share", share(2, l3=3))
    await node.start(pod_of("shares", user("main", "share"), claims=["share"]))
    await node.claim("whole", whole_l3(l3=3))
    await node.create(pod_of("owns", user("main", "whole"), claims=["whole"]))
    await node.until_said("owns", "FailedScheduling")
    assert await node.allocation("whole") == []
    await node.remove("shares")
    ids = await node.ids("owns", "main")
    own = await node.claimed("whole")
    assert len(own) == CPUS
    await node.until_told(ids["main"], lambda cpus: cpus == own)
    await node.claims_agree()
    # The other way round.
    await node.create(pod_of("shares", user("main", "share"), claims=["share"]))
    await node.until_said("shares", "FailedScheduling")
    await node.remove("owns")
    await node.ids("shares", "main")
    await node.claims_agree()


async def test_a_claim_that_does_not_fit_an_l3_waits_until_there_is_room(node: ClaimNode) -> None:
    for name, count in (("first", CPUS - 3), ("second", 4)):
        await node.claim(name, share(count, l3=5))
        await node.create(pod_of(name, user("main", name), claims=[name]))
        if name == "first":
            await node.ids(name, "main")
    await node.until_said("second", "FailedScheduling")
    await node.claim("third", share(3, l3=5))
    await node.start(pod_of("third", user("main", "third"), claims=["third"]))
    await node.claims_agree()
    await node.remove("first")
    await node.ids("second", "main")
    await node.claims_agree()


async def test_containers_of_a_pod_share_a_claim(node: ClaimNode) -> None:
    await node.claim("both", share(4))
    both = [user("left", "both"), user("right", "both")]
    ids = await node.start(pod_of("web", *both, claims=["both"]))
    own = await node.claimed("both")
    for each in ids.values():
        await node.until_told(each, lambda cpus: cpus == own)
    row = (await node.parts())["both/cpus"]
    assert set(row["containers"]) == {"default/web/left", "default/web/right"}
    await node.claims_agree()


async def test_two_pods_share_a_claim_and_it_ends_with_the_last(node: ClaimNode) -> None:
    await node.claim("both", share(2))
    for name in ("first", "second"):
        await node.start(pod_of(name, user("main", "both"), claims=["both"]))
    own = await node.claimed("both")
    await node.claims_agree()
    await node.remove("first")
    await node.claims_agree()
    assert await node.claimed("both") == own
    await node.remove("second")
    await until(node.held, lambda held: not held.books | held.kubelet | held.devices, TIMEOUT_S)


async def test_a_container_has_cpus_of_its_claim_and_shares_others_beside(node: ClaimNode) -> None:
    await node.claim("own", share(2))
    mixed = user("main", "own", cpu="3", limit="6")
    ids = await node.start(pod_of("web", mixed, claims=["own"]))
    other = await node.alone("other", cpu="500m", limit="100")
    own = await node.claimed("own")
    await node.until_told(ids["main"], lambda cpus: cpus > own)
    beside = parse_cpus(node.told(ids["main"])) - own
    await node.until_told(other, lambda cpus: not cpus & own and bool(cpus & beside))
    await node.claims_agree()


async def test_a_pod_has_several_claims_of_its_template(node: ClaimNode) -> None:
    await node.template("two", share(2, name="left"), share(1, name="right"))
    containers = [user("both", "mine"), container("none")]
    ids = await node.start(pod_of("web", *containers, mine="two"))
    [name] = {key.partition("/")[0] for key in await node.parts()}
    own = await node.claimed(name, "left") | await node.claimed(name, "right")
    assert len(own) == 3
    await node.until_told(ids["both"], lambda cpus: cpus == own)
    await node.claims_agree()
    await node.remove("web")
    # The claim was made for the pod: it goes with it.
    await until(node.held, lambda held: held.is_one and not held.books, TIMEOUT_S)


async def test_what_containers_without_claims_own_is_not_offered(node: ClaimNode) -> None:
    main = await node.alone("db", limit="6", annotations=EXCLUSIVE)
    own = await node.own(main)
    assert len(own) == 6

    async def offered() -> str:
        devices = [each for each in (await node.devices()).values() if each.get("allowMultipleAllocations")]
        [of] = [each for each in devices if own <= L3_CPUS[each["attributes"]["l3"]["int"]]]
        return str(of["capacity"]["cpu"]["value"])

    await until(offered, lambda value: value == str(CPUS - 6), TIMEOUT_S)
    await node.remove("db")
    await until(offered, lambda value: value == str(CPUS), TIMEOUT_S)


async def test_a_pod_is_told_what_holds_its_claim_back(node: ClaimNode) -> None:
    """What the slices promised was taken between the scheduler's choice and kubelet's call."""
    await node.claim("late", share(CPUS, l3=0))
    # 1. The scheduler chooses while nothing prepares.
    async with node.without_agent():
        await node.create(pod_of("late", user("main", "late"), claims=["late"]))
        await until(lambda: node.allocation("late"), bool, TIMEOUT_S)
        # 2. Containers without claims take CPUs of every L3.
        owners = [container(f"owner-{number}", limit=str(CPUS - 1)) for number in range(L3S)]
        await node.start(pod("db", *owners, annotations=EXCLUSIVE))
    # 3. Kubelet asks, and is told.
    said = await node.until_said("late", "1 of 8 are free")
    assert said.startswith("FailedPrepareDynamicResources")
    assert "container default/db/owner-" in said
    await node.remove("db")
    await node.ids("late", "main")
    await node.claims_agree()
