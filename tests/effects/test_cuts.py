"""A kill before any effect of a daemon leaves what the next one brings in order; its effects are cut one by one.

A story is played once. Before each effect the world is copied, as a kill would leave it: what was only in memory is gone.
On each copy another daemon begins, and what must hold does. So does it where the runtime carries out later what it had
got from the daemon that was killed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.claims.cdi import file_name
from cri_proxy.engine.invariants import broken_invariants
from cri_proxy.engine.model import ContainerRecord as Grant
from cri_proxy.engine.model import Management
from cri_proxy.engine.told import LIVING, place_to_tell
from policies.machine.cpus import format_cpus, parse_cpus
from tests.effects.node import LONG_S, Life, World
from tests.effects.plugged import PluggedLife
from tests.effects.scenarios import EVERY_SCENARIO, POLICIES, SCENARIOS, Scenario
from tests.fake_runtime import ContainerRecord, Failure
from tests.machines import UNEVEN_CCX, machine

#: Requests that the runtime may carry out after the daemon that sent them has died.
CHANGING = {
    "CreateContainer",
    "UpdateContainerResources",
    "RunPodSandbox",
    "RemoveContainer",
    "StartContainer",
}
#: A request as a daemon has sent it: method, bytes, and as kubelet had made it (None: it is the daemon's own).
Late = tuple[str, bytes, Optional[bytes]]


@dataclass
class Cut:
    """``late``: a request that the runtime carries out once the next daemon has begun."""

    name: str
    world: World
    late: Optional[Late] = None


#: A daemon on a world; with the disk that it has.
Begin = Callable[..., Life]


def cuts_of(scenario: Scenario, begin: Begin = Life) -> list[Cut]:
    """The world before each effect of a scenario, and at its end."""
    world = World.make(machine(UNEVEN_CCX), POLICIES[scenario.policy])
    cuts: list[Cut] = []
    last: Any = None

    def cut(kind: str, about: str) -> None:
        nonlocal last
        if life.is_cut:
            now = world.essence()
            if now != last:
                last = now
                cuts.append(Cut(f"{len(cuts)}: before {kind} {about.rpartition('/')[2]}", world.copy()))

    def on_way(method: str, message: bytes, raw: Optional[bytes]) -> None:
        if life.is_cut and method in CHANGING:
            cuts.append(Cut(f"{len(cuts)}: {method} late", world.copy(), (method, message, raw)))

    world.on_way = on_way
    life = begin(world, scenario.disk)
    life.play(scenario.play, cut)
    cuts.append(Cut("the end", world.copy()))
    world.close()
    return cuts


PLUGGED = [each for each in SCENARIOS if (each.policy, each.disk) == ("lifting", "slow")]
REST_PLUGGED = [
    pytest.param(each, marks=pytest.mark.long)
    for each in (*SCENARIOS, *EVERY_SCENARIO)
    if each not in PLUGGED and each.policy != "hosting"
]
REST = [pytest.param(each, marks=pytest.mark.long) for each in EVERY_SCENARIO if each not in SCENARIOS]


@pytest.mark.parametrize("scenario", [*SCENARIOS, *REST], ids=str)
def test_a_kill_before_any_effect_leaves_what_the_next_daemon_brings_in_order(scenario: Scenario) -> None:
    _all_is_in_order(scenario, Life)


@pytest.mark.parametrize("nri_version", ["", pytest.param("v0.12.2", marks=pytest.mark.long)])
@pytest.mark.parametrize("scenario", [*PLUGGED, *REST_PLUGGED], ids=str)
def test_nor_does_one_of_a_plugin_of_the_runtimes_own_nri(scenario: Scenario, nri_version: str) -> None:
    _all_is_in_order(scenario, partial(PluggedLife, nri_version=nri_version))


def _all_is_in_order(scenario: Scenario, begin: Begin) -> None:
    problems = []
    for cut in cuts_of(scenario, begin):
        try:
            found = begin(cut.world).play(partial(check, late=cut.late))
        except Exception as error:
            raise AssertionError(cut.name) from error
        finally:
            cut.world.close()
        problems += [f"{cut.name}: {sentence}" for sentence in found]
    assert not problems, "\n".join(problems)


async def check(life: Life, late: Optional[Late]) -> list[str]:
    """Sentences about what does not hold; with what the daemon before had sent, and the runtime makes only now."""
    not_remembered = [] if late is None else _not_remembered(life, *late)
    await life.rest()
    if late is not None:
        with contextlib.suppress(Failure):
            await life.carry_late(*late)
        life.world.needless.clear()
        await life.look()
        await life.rest()
    found = [*not_remembered, *_records(life)]
    await life.rest(LONG_S)
    found += [f"the ticket of {t.key} stays" for t in life.engine.tickets.values()]
    await life.look()
    await life.rest()
    found += [f"later: {each}" for each in [*_records(life), *_places(life)]]
    if len(life.world.needless) != len(set(life.world.needless)):
        found.append(f"told what they had: {life.world.needless}")
    await life.command("release", all=True)
    await life.rest()
    return found + _as_without_us(life)


def _not_remembered(life: Life, method: str, message: bytes, _: Optional[bytes]) -> list[str]:
    """What a request says and the records do not, which were written before it was sent."""
    if method not in ("CreateContainer", "UpdateContainerResources"):
        return []
    engine = life.engine
    if method == "CreateContainer":
        config = cri.CreateContainerRequest.FromString(message).config
        linux, name = config.linux.resources, config.metadata.name
        records = [grant for grant in engine.grants.values() if grant.container.name == name]
    else:
        update = cri.UpdateContainerResourcesRequest.FromString(message)
        linux, name = update.linux, update.container_id
        # One that plugins are asked about is not bound yet.
        told = life.world.runtime.containers[name].name
        records = [grant for grant in engine.grants.values() if grant.container.name == told]
    places = [place for grant in records if (place := place_to_tell(grant)) is not None]
    cpus = parse_cpus(linux.cpuset_cpus)
    if not cpus or any(place.cpus == cpus for place in places):
        return []
    return [f"{name} is told {format_cpus(cpus)}; written is {[format_cpus(p.cpus) for p in places]}"]


def _live(life: Life) -> tuple[dict[str, ContainerRecord], dict[str, Grant]]:
    """The containers that have not exited: at the runtime, and in the books."""
    containers, grants = life.world.runtime.containers, life.engine.grants
    live = {key: c for key, c in containers.items() if c.state != cri.CONTAINER_EXITED}
    return live, {key: grant for key, grant in grants.items() if grant.life in LIVING}


def _records(life: Life) -> list[str]:
    """What must hold once the next daemon has compared its records with the runtime: no orphan, no CPU with two owners."""
    engine, world = life.engine, life.world
    live, known = _live(life)
    found = broken_invariants(engine)
    found += [f"{live[key].name} has no record" for key in live.keys() - known.keys()]
    found += [f"{known[key].container.path} has a record and is gone" for key in known.keys() - live.keys()]
    found += [f"{c.name} is there, and no plugin has agreed" for c in live.values() if not world.is_agreed(c)]
    found += [f"{name} is gone" for name, key in world.known.items() if key not in world.runtime.containers]
    for key in live.keys() & known.keys():
        # Containers of one balloon own its CPUs together.
        group = known[key].placement.group
        together = {k for k, grant in known.items() if group and grant.placement.group == group}
        for other in live.keys() - together - {key}:
            if both := known[key].exclusive & parse_cpus(live[other].resources.cpuset_cpus):
                found.append(f"{live[other].name} is on {format_cpus(both)}, which {live[key].name} owns")
    return found + _claims(life, live, known)


def _claims(life: Life, live: dict[str, ContainerRecord], known: dict[str, Grant]) -> list[str]:
    """What of claims does not agree: their CPUs, the containers that run there, and the CDI files."""
    found, parts = [], {key: grant for key, grant in life.engine.grants.items() if grant.is_claim}
    for key, part in parts.items():
        for other in live.keys() & known.keys():
            both = part.exclusive & parse_cpus(live[other].resources.cpuset_cpus)
            if both and key not in known[other].container.claims:
                found.append(f"{live[other].name} is on {format_cpus(both)}, which {key} owns")
    for other in live.keys() & known.keys():
        grant = known[other]
        claimed = frozenset().union(
            *[parts[key].placement.cpus for key in grant.container.claims if key in parts]
        )
        if grant.stance is Management.PLACED and grant.placement.claimed != claimed:
            found.append(f"{live[other].name} has {format_cpus(grant.placement.claimed)} of its claims")
    folder = life.world.folder / "root/var/run/cdi"
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wanted = {file_name(part.container.pod.uid) for part in parts.values()}
    return found + ([f"CDI files are {sorted(files)}, not {sorted(wanted)}"] if files != wanted else [])


def _places(life: Life) -> list[str]:
    """What of books, runtime and cgroups does not agree."""
    engine, world, found = life.engine, life.world, []
    live, known = _live(life)
    for key in live.keys() & known.keys():
        place, has = place_to_tell(known[key]), parse_cpus(live[key].resources.cpuset_cpus)
        if place is not None and place.cpus and place.cpus != (has or engine.host.usable):
            found.append(f"{live[key].name} has {format_cpus(has)}, its record {format_cpus(place.cpus)}")
        is_unlimited = live[key].resources.cpu_quota < 0
        if is_unlimited != known[key].lifted:
            found.append(
                f"{live[key].name} has the quota {live[key].resources.cpu_quota}, lifted: {known[key].lifted}"
            )
    unlimited = engine.unlimited_pods() if engine.lifting else ()
    for parent, limit in world.limits.items():
        wanted = "max" if parent in unlimited else limit
        if (now := world.limit_file(parent).read_text()) != wanted:
            found.append(f"{parent} has the limit {now}, not {wanted}")
    return found


def _as_without_us(life: Life) -> list[str]:
    """What is not as it would be without us, after a release of all."""
    world, found = life.world, []
    everything = life.engine.host.usable
    for key, container in world.runtime.containers.items():
        if container.state == cri.CONTAINER_EXITED:
            continue
        now, mine = container.resources, world.mine[key]
        for name in ("cpu_quota", "cpu_period", "cpu_shares", "memory_limit_in_bytes"):
            if getattr(now, name) != getattr(mine, name):
                found.append(
                    f"released, {container.name}'s {name} is {getattr(now, name)}, not {getattr(mine, name)}"
                )
        cpus = parse_cpus(now.cpuset_cpus) or everything
        if cpus != (parse_cpus(mine.cpuset_cpus) or everything):
            found.append(f"released, {container.name} has {now.cpuset_cpus}")
    for parent, limit in world.limits.items():
        if world.limit_file(parent).read_text() != limit:
            found.append(f"released, {parent} has {world.limit_file(parent).read_text()}, not {limit}")
    return found
