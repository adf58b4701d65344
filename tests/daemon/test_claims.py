"""Claims of CPUs on a whole daemon: prepared and unprepared by its commands, and whole after a kill at any effect of it.

The daemon is that of tests/effects/node.py: nothing of it is left out but sockets and threads.
"""

from __future__ import annotations

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
from tests.effects.node import Life, World
from tests.machines import EPYC_NPS4_1S, machine

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
        import asyncio

        asked = [claim(result(f"l3-{n % 2}", 1), uid=f"u-{n}", name=f"c{n}") for n in range(8)]
        answers = await asyncio.gather(*(life.command("claim-prepare", **each) for each in asked))
        cpus = [parse_cpus(answer["parts"][0]["cpus"]) for answer in answers]
        assert len(frozenset().union(*cpus)) == 8
        assert len(cdi(life.world)) == 8
        assert broken_invariants(life.engine) == []

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

    Life(make()).play(work)


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
