"""Claims of CPUs on a whole daemon: prepared and unprepared by its commands, and whole after a kill at any effect of it.

The daemon is that of tests/effects/node.py: nothing of it is left out but sockets and threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Optional

import pytest

from cri_api.claims import cdi_device, part_name
from cri_api.control import ControlError
from cri_proxy.claims.cdi import file_name
from cri_proxy.claims.parameters import API_VERSION, KIND
from cri_proxy.engine.invariants import broken_invariants
from policies.machine.cpus import parse_cpus
from policies.machine.topology import TopologyData
from policies.machine.topology_json import write_topology
from tests.effects.node import Life, World
from tests.machines import EPYC_NPS4_1S, HYGON_7285_2S, machine, take_offline

ON = {"dra": {"enabled": True}}
UID = "3f2a7c1e-0c6b-4d55-9a51-0a3c0f8e4b11"
Work = Callable[[Life], Coroutine[Any, Any, Any]]


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Makes worlds whose nodes prepare claims; ``config`` beside that."""
    made: list[World] = []

    def world(where: Optional[TopologyData] = None, **config: Any) -> World:
        made.append(World.make(where or machine(EPYC_NPS4_1S), {**ON, **config}))
        return made[-1]

    yield world
    for each in made:
        each.close()


def result(device: str = "l3-0", cpus: Optional[int] = 2, request: str = "cpus") -> dict[str, Any]:
    return {"request": request, "device": device, "cpus": cpus, "share": "s"}


def claim(*results: dict[str, Any], uid: str = UID, name: str = "c", **parameters: str) -> dict[str, Any]:
    said = (
        [{"requests": [], "value": {"apiVersion": API_VERSION, "kind": KIND, **parameters}}]
        if parameters
        else []
    )
    return {
        "uid": uid,
        "namespace": "default",
        "name": name,
        "results": list(results or [result()]),
        "parameters": said,
        "pods": [{"name": "pod", "uid": "uid-pod"}],
    }


def cdi(world: World) -> dict[str, list[str]]:
    """The CDI files, and the devices in them."""
    folder = world.folder / "root/var/run/cdi"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {f.name: [d["name"] for d in json.loads(f.read_text())["devices"]] for f in files}


async def refused(life: Life, command: str, **arguments: Any) -> str:
    with pytest.raises(ControlError) as error:
        await life.command(command, **arguments)
    return str(error.value)


async def rows(life: Life) -> list[dict[str, Any]]:
    return list((await life.command("claims"))["claims"])


# ---------------------------------------------------------------------- prepared and unprepared


def test_a_claim_that_is_prepared_has_cpus_of_its_device_a_record_and_a_cdi_file(make: Any) -> None:
    async def work(life: Life) -> None:
        answer = await life.command("claim-prepare", **claim(result(cpus=3)))
        [part] = answer["parts"]
        assert (part["request"], part["cdi"]) == ("cpus", cdi_device(part_name(UID, "cpus")))
        l3 = next(l3 for l3 in life.engine.host.topology.at("l3") if l3.ids[l3.levels.index("l3")] == 0)
        assert len(parse_cpus(part["cpus"])) == 3 and parse_cpus(part["cpus"]) <= l3.cpus
        [row] = await rows(life)
        assert row == {
            "uid": UID, "namespace": "default", "name": "c", "request": "cpus", "devices": ["l3-0"],
            "cpus": part["cpus"], "l3s": ["l3-0"], "containers": [], "why": row["why"], "moved": False, "healthy": True,
        }  # fmt: skip
        assert cdi(life.world) == {file_name(UID): [part_name(UID, "cpus")]}
        assert (await life.command("status"))["claims"]["count"] == 1
        assert await life.command("claim-unprepare", uid=UID) == {}
        assert (await rows(life), cdi(life.world)) == ([], {})
        assert not life.engine.grants

    Life(make()).play(work)


def test_to_ask_again_changes_nothing_and_gives_the_same(make: Any) -> None:
    async def work(life: Life) -> None:
        asked = claim(result(cpus=3), result("l3-1-whole", None, "whole"))
        first = await life.command("claim-prepare", **asked)
        grants, file = dict(life.engine.grants), life.world.folder / "root/var/run/cdi" / file_name(UID)
        before = file.stat().st_mtime_ns
        assert await life.command("claim-prepare", **asked) == first
        assert (life.engine.grants, file.stat().st_mtime_ns) == (grants, before)
        for _ in range(2):
            assert await life.command("claim-unprepare", uid=UID) == {}

    Life(make()).play(work)


def test_many_claims_are_prepared_at_once(make: Any) -> None:
    async def work(life: Life) -> None:
        asked = [claim(result(f"l3-{n % 2}", 1), uid=f"u-{n}", name=f"c{n}") for n in range(8)]
        answers = await asyncio.gather(*(life.command("claim-prepare", **each) for each in asked))
        cpus = [parse_cpus(answer["parts"][0]["cpus"]) for answer in answers]
        assert len(frozenset().union(*cpus)) == 8
        assert len(cdi(life.world)) == 8
        assert broken_invariants(life.engine) == []

    Life(make()).play(work)


def test_of_one_claim_what_was_asked_for_first_is_done_first(make: Any) -> None:
    """An agent that was killed has asked for a prepare, which waits; the next agent is told that the pod has ended."""

    async def work(life: Life) -> None:
        life.daemon.services.node_state.books.doubt("the runtime was not asked yet")
        prepare = asyncio.ensure_future(life.command("claim-prepare", **claim()))
        other = asyncio.ensure_future(life.command("claim-prepare", **claim(uid="u-2", name="d")))
        await asyncio.sleep(0)
        given_up = asyncio.ensure_future(life.command("claim-unprepare", uid=UID))
        await asyncio.sleep(0)
        given_up.cancel()
        unprepare = asyncio.ensure_future(life.command("claim-unprepare", uid=UID))
        await asyncio.sleep(0)
        life.daemon.services.node_state.books.confirm()
        await asyncio.gather(prepare, other, unprepare)
        assert [row["uid"] for row in await rows(life)] == ["u-2"]
        assert list(cdi(life.world)) == [file_name("u-2")]

    Life(make()).play(work)


def test_a_whole_device_excludes_its_parts_and_a_part_the_whole_device(make: Any) -> None:
    async def work(life: Life) -> None:
        [part] = (await life.command("claim-prepare", **claim(result("l3-0-whole", None))))["parts"]
        l3 = life.engine.host.topology.at("l3")[0]
        assert parse_cpus(part["cpus"]) == l3.cpus
        sentence = await refused(life, "claim-prepare", **claim(result(cpus=1), uid="u-2", name="d"))
        assert "claim default/d wants 1 CPU of l3-0" in sentence and "claim default/c" in sentence
        assert (len(await rows(life)), len(cdi(life.world))) == (1, 1)
        await life.command("claim-unprepare", uid=UID)
        await life.command("claim-prepare", **claim(result(cpus=1), uid="u-2", name="d"))
        assert "default/d" in await refused(life, "claim-prepare", **claim(result("l3-0-whole", None)))

    Life(make()).play(work)


def test_one_thread_of_each_core_of_a_whole_device_runs_where_the_others_are_hidden(make: Any) -> None:
    async def work(life: Life) -> None:
        [part] = (await life.command("claim-prepare", **claim(result("l3-0-whole", None), smt="hide")))[
            "parts"
        ]
        topology = life.engine.host.topology
        assert parse_cpus(part["cpus"]) == topology.one_thread_per_core(topology.at("l3")[0].cpus)
        assert (await rows(life))[0]["healthy"]

    Life(make(machine(HYGON_7285_2S))).play(work)


def test_all_parts_of_a_claim_are_prepared_or_none(make: Any) -> None:
    async def work(life: Life) -> None:
        size = len(life.engine.host.topology.at("l3")[0].cpus)
        asked = claim(result("l3-0", 1, "a"), result("l3-1", size + 1, "b"))
        assert f"wants {size + 1} CPUs of l3-1" in await refused(life, "claim-prepare", **asked)
        assert (life.engine.grants, cdi(life.world)) == ({}, {})

    Life(make()).play(work)


def test_containers_that_lose_cpus_by_a_claim_have_been_told_when_it_is_answered(make: Any) -> None:
    async def work(life: Life) -> None:
        pod = await life.run_pod("a")
        container = await life.create(pod, "a", cpu_limit=2000)
        await life.start(container)
        (on,) = [
            l3 for l3 in life.engine.host.topology.at("l3") if life.engine.grants[container].cpus <= l3.cpus
        ]
        name = f"l3-{on.ids[on.levels.index('l3')]}"
        [part] = (await life.command("claim-prepare", **claim(result(name, 2))))["parts"]
        has = parse_cpus(life.world.runtime.containers[container].resources.cpuset_cpus)
        assert has and has.isdisjoint(parse_cpus(part["cpus"]))

    Life(make()).play(work)


def test_a_container_with_a_claim_runs_on_its_cpus_and_is_named_by_it(make: Any) -> None:
    async def work(life: Life) -> None:
        [part] = (await life.command("claim-prepare", **claim(result(cpus=2))))["parts"]
        pod = await life.run_pod("a")
        container = await life.create(pod, "a", cdi=[part["cdi"]])
        assert life.world.runtime.containers[container].resources.cpuset_cpus == part["cpus"]
        [row] = await rows(life)
        assert row["containers"] == ["default/a/a"]
        assert (await life.command("explain", container="default/a/a"))["containers"]

    Life(make()).play(work)


# ---------------------------------------------------------------------- devices


def test_devices_are_told_with_what_is_free_of_containers_without_claims(make: Any) -> None:
    async def work(life: Life) -> None:
        document = await life.command("claim-devices")
        assert (document["enabled"], document["reason"], document["driver"]) == (
            True,
            "",
            "cpu.cri-resmgr.io",
        )
        devices = {device["name"]: device for device in document["devices"]}
        assert document["counters"] == [f"l3-{n}" for n in range(len(life.engine.host.topology.at("l3")))]
        assert (devices["l3-0"]["shared"], devices["l3-0-whole"]["counters"]) == (True, ["l3-0"])
        before = devices["l3-0"]["cpus"]
        await life.command("claim-prepare", **claim(result(cpus=2)))
        devices = {device["name"]: device for device in (await life.command("claim-devices"))["devices"]}
        assert devices["l3-0"]["cpus"] == before  # the scheduler knows what claims have
        assert "l3-0-whole" in devices

    Life(make()).play(work)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dra": {"enabled": False}}, "dra.enabled is false on this node"),
        (
            {"policy": {"Active": "balloons"}},
            "claims of CPUs are prepared by policy.Active hygon; on this node that is balloons",
        ),
        (
            {"relay": {"mode": "observe"}},
            "cri-resmgr is in mode observe on this node: it prepares claims in mode enforce only",
        ),
    ],
    ids=["off", "policy", "mode"],
)
def test_where_no_claim_is_prepared_it_is_said_why(make: Any, config: dict[str, Any], reason: str) -> None:
    async def work(life: Life) -> None:
        document = await life.command("claim-devices")
        assert (document["enabled"], document["reason"], document["devices"]) == (False, reason, [])
        assert await refused(life, "claim-prepare", **claim()) == reason
        assert (await life.command("claims"))["reason"] == reason
        assert await life.command("claim-unprepare", uid=UID) == {}
        assert not life.engine.grants

    Life(make(**config)).play(work)


@pytest.mark.parametrize("how", ["off", "policy", "mode"])
def test_a_claim_that_is_there_is_answered_and_ended_where_none_is_prepared_any_more(
    make: Any, how: str
) -> None:
    async def work(life: Life) -> None:
        first = await life.command("claim-prepare", **claim())
        if how == "mode":
            await life.command("mode", mode="observe")
        else:
            life.configure(
                {"dra": {"enabled": False}} if how == "off" else {"policy": {"Active": "topology-aware"}}
            )
            await life.daemon.reload()
        assert await life.command("claim-prepare", **claim()) == first
        assert not (await life.command("claim-devices"))["enabled"]
        reason = (await life.command("claims"))["reason"]
        assert await refused(life, "claim-prepare", **claim(result(cpus=3))) == reason
        assert await refused(life, "claim-prepare", **claim(uid="u-2", name="d")) == reason
        assert [row["uid"] for row in await rows(life)] == [UID]
        await life.command("claim-unprepare", uid=UID)
        assert (await rows(life), cdi(life.world)) == ([], {})

    Life(make()).play(work)


def test_a_daemon_without_an_engine_says_that_it_is_degraded(make: Any) -> None:
    world = make()
    (world.folder / "machine.json").write_text("{}")

    async def work(life: Life) -> None:
        for name in ("claim-devices", "claims", "claim-prepare", "claim-unprepare"):
            assert "is degraded and prepares no claims" in await refused(life, name, **claim())

    Life(world).play(work)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "uid is null, expected the UID of a claim"),
        ({**claim(), "uid": "../x"}, 'uid is "../x", expected the UID of a claim'),
        ({**claim(), "results": []}, "results is empty, expected the devices that the claim was allocated"),
        (claim(result("l3-99")), "the request cpus was allocated l3-99, and this node has no such device"),
        (
            claim(result("l3-0", None)),
            "the allocation of the request cpus does not say how many CPUs of l3-0",
        ),
        (
            claim(result("l3-0", 1), result("l3-1", 1)),
            "the request cpus was allocated parts of 2 devices (l3-0, l3-1)",
        ),
        (claim(smtt="any"), "the claim's parameters has the unknown key 'smtt'"),
        (claim(smt="none"), "the claim's parameters.smt is 'none', expected full-core, hide or any"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence_and_leaves_nothing(
    make: Any, arguments: dict[str, Any], sentence: str
) -> None:
    async def work(life: Life) -> None:
        assert sentence in await refused(life, "claim-prepare", **arguments)
        assert (life.engine.grants, cdi(life.world)) == ({}, {})
        counted = (await life.command("status"))["counters"]
        assert counted["cri_resmgr_claim_calls_total{call=prepare,result=refused}"] == 1

    Life(make()).play(work)


# ---------------------------------------------------------------------- kills, boots and disks


async def prepared(life: Life) -> None:
    """A claim of two parts, another one, and a container that has lost CPUs by them."""
    pod = await life.run_pod("a")
    await life.start(await life.create(pod, "a", cpu_limit=2000))
    await life.command("claim-prepare", **claim(uid="u-1", name="other"))
    life.cut()
    await life.command("claim-prepare", **claim(result(cpus=2), result("l3-1-whole", None, "whole")))


async def unprepared(life: Life) -> None:
    await life.command("claim-prepare", **claim(uid="u-1", name="other"))
    await life.command("claim-prepare", **claim(result(cpus=2), result("l3-1-whole", None, "whole")))
    life.cut()
    await life.command("claim-unprepare", uid=UID)


def cuts_of(work: Work, world: World, disk: str) -> list[World]:
    """The world before each effect of a story that is cut, and at its end."""
    found: list[World] = []
    life = Life(world, disk)

    def cut(kind: str, about: str) -> None:
        if life.is_cut:
            found.append(world.copy())

    life.play(work, cut)
    return [*found, world.copy()]


@pytest.mark.parametrize("disk", ["quick", "slow"])
@pytest.mark.parametrize("work", [prepared, unprepared])
def test_a_kill_at_any_effect_leaves_all_of_a_claim_or_nothing_and_to_ask_again_gives_the_same(
    make: Any, work: Work, disk: str
) -> None:
    answers = set()

    async def check(life: Life) -> None:
        await life.rest()
        there = {row["uid"] for row in await rows(life)}
        assert there | {UID} == {"u-1", UID}
        parts = [part_name(UID, "cpus"), part_name(UID, "whole")]
        files = {
            file_name("u-1"): [part_name("u-1", "cpus")],
            **({file_name(UID): parts} if UID in there else {}),
        }
        assert cdi(life.world) == files
        assert broken_invariants(life.engine) == []
        found = {row["request"]: row["cpus"] for row in await rows(life) if row["uid"] == UID}
        if work is prepared:
            answer = await life.command(
                "claim-prepare", **claim(result(cpus=2), result("l3-1-whole", None, "whole"))
            )
            now = {part["request"]: part["cpus"] for part in answer["parts"]}
            assert now == found or not found
            answers.add(json.dumps(now))
        else:
            await life.command("claim-unprepare", uid=UID)
            assert {row["uid"] for row in await rows(life)} == {"u-1"}
            assert cdi(life.world) == {file_name("u-1"): [part_name("u-1", "cpus")]}

    cuts = cuts_of(work, make(), disk)
    assert len(cuts) >= 3
    for world in cuts:
        try:
            Life(world).play(check)
        finally:
            world.close()
    assert len(answers) == (work is prepared)


def test_at_a_start_missing_files_are_written_those_without_a_claim_removed_and_others_left_alone(
    make: Any,
) -> None:
    world = make()
    folder = world.folder / "root/var/run/cdi"

    async def prepare(life: Life) -> None:
        await life.command("claim-prepare", **claim())

    async def check(life: Life) -> None:
        await life.rest()
        assert {f.name for f in folder.iterdir()} == {
            file_name(UID),
            "nvidia.com-gpu.json",
            "cri-resmgr.io-cpu.json",
        }
        assert cdi(life.world)[file_name(UID)] == [part_name(UID, "cpus")]

    Life(world).play(prepare)
    (folder / file_name(UID)).unlink()
    (folder / file_name("gone")).write_text("{}")
    for name in ("nvidia.com-gpu.json", "cri-resmgr.io-cpu.json"):
        (folder / name).write_text('{"devices": []}')
    Life(world).play(check)


def test_a_claim_outlives_a_boot_and_containers_of_the_boot_before_do_not(make: Any) -> None:
    world = make()

    async def begin(life: Life) -> None:
        [part] = (await life.command("claim-prepare", **claim()))["parts"]
        pod = await life.run_pod("a")
        await life.create(pod, "a", cdi=[part["cdi"]])
        life.daemon.services.store.write({}, {"boot_id": "another"})
        await life.rest()

    async def check(life: Life) -> None:
        # Claims say nothing of what containers of this boot own.
        assert life.daemon.services.node_state.books.may_be_owned is None
        await life.rest()
        [row] = await rows(life)
        assert (row["uid"], row["healthy"], row["containers"]) == (UID, True, [])
        assert [grant.is_claim for grant in life.engine.grants.values()] == [True]
        assert cdi(world) == {file_name(UID): [part_name(UID, "cpus")]}
        await life.command("claim-unprepare", uid=UID)

    Life(world).play(begin)
    world.runtime.containers.clear()
    world.runtime.pods.clear()
    for file in (world.folder / "root/var/run/cdi").iterdir():  # /var/run is empty after a boot
        file.unlink()
    Life(world).play(check)


def test_claims_stay_where_the_state_is_set_aside_and_where_all_is_released(make: Any) -> None:
    async def work(life: Life) -> None:
        [part] = (await life.command("claim-prepare", **claim()))["parts"]
        for name, arguments in (("reset-policy", {}), ("release", {"all": True}), ("adopt", {"all": True})):
            await life.command(name, **arguments)
            await life.rest()
            [row] = await rows(life)
            assert (row["uid"], row["cpus"]) == (UID, part["cpus"]), name
            assert cdi(life.world) == {file_name(UID): [part_name(UID, "cpus")]}

    world = make()
    Life(world).play(work)

    async def still(life: Life) -> None:
        assert [row["uid"] for row in await rows(life)] == [UID]

    Life(world).play(still)


def test_a_folder_that_cannot_be_written_is_a_sentence_and_made_up_for(make: Any) -> None:
    world = make()
    run = world.folder / "root/var/run"
    run.parent.mkdir(parents=True)
    run.write_text("no folder")

    async def work(life: Life) -> None:
        sentence = await refused(life, "claim-prepare", **claim())
        assert "cannot be written" in sentence and "root/var/run" in sentence
        run.unlink()
        await life.command("claim-prepare", **claim())
        assert cdi(world) == {file_name(UID): [part_name(UID, "cpus")]}

    Life(world).play(work)


def test_a_folder_that_cannot_be_written_at_the_start_is_a_warning_until_it_can(make: Any) -> None:
    world = make()
    run = world.folder / "root/var/run"

    async def prepare(life: Life) -> None:
        await life.command("claim-prepare", **claim())

    async def look(life: Life) -> None:
        await life.rest()
        warnings = (await life.command("status"))["warnings"]
        assert [
            w for w in warnings if w.startswith("claims have no CDI files: ") and "cannot be written" in w
        ]
        run.unlink()
        await life.daemon.claims.try_again()
        assert cdi(world) == {file_name(UID): [part_name(UID, "cpus")]}
        assert not [w for w in (await life.command("status"))["warnings"] if "CDI" in w]
        # One that is removed later is there again after the next round.
        (run / "cdi" / file_name(UID)).unlink()
        await life.daemon.claims.try_again()
        assert cdi(world) == {file_name(UID): [part_name(UID, "cpus")]}

    Life(world).play(prepare)
    for file in (run / "cdi").iterdir():
        file.unlink()
    (run / "cdi").rmdir()
    run.rmdir()
    run.write_text("no folder")
    Life(world).play(look)


def test_a_claim_that_cannot_be_written_down_is_not_answered_until_it_is(make: Any, monkeypatch: Any) -> None:
    async def work(life: Life) -> None:
        store = life.daemon.services.store.store
        real = store.flush
        monkeypatch.setattr(store, "flush", lambda *_: False)
        for _ in range(2):
            assert "the claim cannot be written down" in await refused(life, "claim-prepare", **claim())
            assert cdi(life.world) == {}
        monkeypatch.setattr(store, "flush", real)
        await life.command("claim-prepare", **claim())
        assert len(await rows(life)) == len(cdi(life.world)) == 1
        monkeypatch.setattr(store, "flush", lambda *_: False)
        for _ in range(2):
            assert "the claim cannot be written down" in await refused(life, "claim-unprepare", uid=UID)
            assert len(cdi(life.world)) == 1
        monkeypatch.setattr(store, "flush", real)
        await life.command("claim-unprepare", uid=UID)
        assert (await rows(life), cdi(life.world)) == ([], {})

    Life(make()).play(work)


# ---------------------------------------------------------------------- the driver's name


def test_the_drivers_name_stays_until_the_claims_prepared_under_it_have_ended(make: Any) -> None:
    world = make()

    async def begin(life: Life) -> None:
        await life.command("claim-prepare", **claim())
        life.configure({"dra": {"enabled": True, "driver_name": "dra.cpu"}})
        await life.daemon.reload()
        assert (await life.command("claim-devices"))["driver"] == "cpu.cri-resmgr.io"
        assert (
            "dra.driver_name is dra.cpu, and stays cpu.cri-resmgr.io until all of its claims have ended: "
            "1 claim was prepared under that name; see: cri-resmgr claims"
        ) in (await life.command("status"))["warnings"]

    async def end(life: Life) -> None:
        assert (await life.command("claim-devices"))["driver"] == "cpu.cri-resmgr.io"
        await life.command("claim-unprepare", uid=UID)
        assert (await life.command("claim-devices"))["driver"] == "dra.cpu"
        assert not [w for w in (await life.command("status"))["warnings"] if "driver_name" in w]
        await life.command("claim-prepare", **claim())
        assert (await life.command("status"))["claims"]["driver"] == "dra.cpu"

    Life(world).play(begin)
    Life(world).play(end)


# ---------------------------------------------------------------------- what becomes of a claim


def test_pods_hear_that_the_cpus_of_their_claim_are_others_or_fewer(make: Any) -> None:
    data = machine(EPYC_NPS4_1S)

    async def work(life: Life) -> None:
        async def take_away(cpus: frozenset[int]) -> list[dict[str, Any]]:
            known = life.daemon.orders.notable.since(None)["events_next"]
            gone.update(cpus)
            (life.world.folder / "machine.json").write_text(
                json.dumps(write_topology(take_offline(data, gone)))
            )
            await life.daemon.assembly.follow_machine()
            await life.rest()
            return list(life.daemon.orders.notable.since(known)["events"])

        gone: set[int] = set()
        [part] = (await life.command("claim-prepare", **claim(result(cpus=2))))["parts"]
        pod = await life.run_pod("a")
        await life.start(await life.create(pod, "a", cdi=[part["cdi"]]))
        l3 = life.engine.host.topology.at("l3")[0].cpus
        # 1. Its device has others.
        events = await take_away(frozenset([min(parse_cpus(part["cpus"]))]))
        [row] = await rows(life)
        assert (row["moved"], row["healthy"]) == (True, True)
        [event] = [e for e in events if e["reason"].startswith("Claim")]
        assert (event["reason"], event["type"], event["pod"], event["container"]) == (
            "ClaimMoved",
            "Normal",
            "a",
            "a",
        )
        assert event["message"].startswith(f"claim default/c is on CPUs {row['cpus']} now: ")
        # 2. It has none.
        events = await take_away(l3 - {max(parse_cpus(row["cpus"]))})
        [row] = await rows(life)
        assert not row["healthy"] and row["cpus"]
        [event] = [e for e in events if e["reason"].startswith("Claim")]
        assert (event["reason"], event["type"]) == ("ClaimShort", "Warning")
        assert event["message"].startswith(f"claim default/c has CPUs {row['cpus']}: ")
        assert broken_invariants(life.engine) == []

    Life(make(data)).play(work)
