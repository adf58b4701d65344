"""Short stories of one node: each sets the stage, says ``life.cut()``, and goes on. What comes from there on is cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from cri_api import nri_v1alpha1_pb2 as nri
from cri_proxy.nri.io.host.host import PluginRefused
from policies.machine.cpus import parse_cpus
from tests.effects.node import Answer, Life, Refused
from tests.fake_runtime import ContainerRecord, Failure
from tests.machines import GIB

Story = Callable[[Life], Coroutine[Any, Any, None]]

OWNER: dict[str, Any] = {"qos": "guaranteed", "memory_limit": GIB}
POLICIES: dict[str, dict[str, Any]] = {
    "hygon": {},
    "claiming": {"dra": {"enabled": True}},
    "hosting": {"policy": {"Active": "topology-aware"}, "nri": {"host": "on"}},
    "exclusive": {"policy": {"Active": "topology-aware"}, "placement": {"move_exclusive": True}},
    "lifting": {"policy": {"Active": "topology-aware"}, "placement": {"cfs_quota": "lift"}},
    "balloons": {
        "policy": {
            "Active": "balloons",
            "balloons": {"BalloonTypes": [{"Name": "b", "Namespaces": ["*"], "MinCPUs": 2}]},
        }
    },
}


async def _shared(life: Life, name: str, milli: int = 4000, **more: Any) -> str:
    """A pod with a running container that shares its CPUs; ``name`` is both's."""
    pod = await life.run_pod(name, "burstable", milli)
    made = await life.create(pod, name, cpu_limit=milli, **more)
    await life.start(made)
    return made


async def _owner(life: Life, name: str, milli: int = 4000) -> str:
    """A pod with a running container that owns CPUs where the policy has it so."""
    pod = await life.run_pod(name, "guaranteed", milli)
    made = await life.create(pod, name, cpu_limit=milli, **OWNER)
    await life.start(made)
    return made


async def _busy(life: Life) -> list[str]:
    made = [await _shared(life, f"busy{number}", 8000) for number in range(3)]
    made.append(await _owner(life, "owner", 4000))
    await life.rest()
    return made


# ---------------------------------------------------------------------- stories


async def create(life: Life) -> None:
    await _busy(life)
    life.cut()
    await _shared(life, "web", 4000)


async def create_owner(life: Life) -> None:
    await _busy(life)
    life.cut()
    await _owner(life, "web", 6000)


async def create_refused(life: Life) -> None:
    await _busy(life)
    pod = await life.run_pod("web", "guaranteed", 4000)
    life.world.failing["CreateContainer"] = Failure(2, "no image")
    life.cut()
    with contextlib.suppress(Refused):
        await life.create(pod, "web", cpu_limit=4000, **OWNER)


async def create_two_at_once(life: Life) -> None:
    await _busy(life)
    life.cut()
    await asyncio.gather(_owner(life, "one", 4000), _owner(life, "two", 6000))


async def start_fails(life: Life) -> None:
    pod = await life.run_pod("web", "guaranteed", 4000)
    made = await life.create(pod, "web", cpu_limit=4000, **OWNER)
    life.world.failing["StartContainer"] = Failure(2, "cpuset: no such CPU")
    life.cut()
    with contextlib.suppress(Refused):
        await life.start(made)
    await life.remove(made)


async def resize(life: Life, to: int) -> None:
    made = (await _busy(life))[-1]
    life.cut()
    await life.update(made, cpu_quota=to * 100, cpu_period=100_000, cpu_shares=to * 1024 // 1000)


async def resize_shared(life: Life, to: int) -> None:
    made = (await _busy(life))[0]
    life.cut()
    await life.update(made, cpu_quota=to * 100, cpu_period=100_000, cpu_shares=to * 1024 // 1000)


async def resize_refused(life: Life) -> None:
    made = (await _busy(life))[-1]
    life.world.failing["UpdateContainerResources"] = Failure(2, "no")
    life.cut()
    with contextlib.suppress(Refused):
        await life.update(made, cpu_quota=800_000, cpu_period=100_000, cpu_shares=8192)


async def exit_and_again(life: Life) -> None:
    await _busy(life)
    pod = await life.run_pod("web", "guaranteed", 4000)
    made = await life.create(pod, "web", cpu_limit=4000, **OWNER)
    await life.start(made)
    life.cut()
    await life.stop(made)
    again = await life.create(pod, "web", attempt=1, cpu_limit=4000, **OWNER)
    await life.start(again)
    await life.remove(made)


async def exit_unseen(life: Life) -> None:
    made = (await _busy(life))[-1]
    life.cut()
    life.world.runtime.exit(life.world.runtime.containers[made], 1)
    await life.look()


async def end_of_a_pod(life: Life) -> None:
    await _busy(life)
    pod = await life.run_pod("web", "guaranteed", 8000)
    made = await life.create(pod, "web", cpu_limit=8000, **OWNER)
    await life.start(made)
    life.cut()
    await life.stop(made)
    await life.end_pod(pod)


async def move(life: Life) -> None:
    """Pinned to a zone, then to another one, and then to none."""
    made = await _shared(life, "web", 2000)
    await _owner(life, "owner", 2000)
    places = [life.engine.grants[made].cpus]
    life.cut()
    for zone in ("node-0", "node-1", ""):
        item = {"namespace": "default", "pod": "web", "container": "web", "zone": zone}
        await life.command("overrides", overrides=[item] if zone else [])
        places.append(life.engine.grants[made].cpus)
    assert len(set(places)) > 1, places


async def grow_by_demand(life: Life) -> None:
    """A set that usage has made small, and large again."""
    made = await _shared(life, "web", 12000, cpu_request=500)
    await _owner(life, "owner", 2000)
    node_state = life.daemon.services.node_state
    life.cut()
    for milli in (2000, None):
        assert life.engine.size(made, milli, "by usage", node_state.clock())
        node_state.save()
        await life.rest(1)


async def adopt(life: Life) -> None:
    made = await _busy(life)
    for key in made:
        await life.command("release", container=key)
    life.cut()
    await life.command("adopt", all=True)


async def adopt_one(life: Life) -> None:
    made = (await _busy(life))[-1]
    await life.command("release", container=made)
    life.cut()
    await life.command("adopt", container=made)


async def release(life: Life) -> None:
    await _busy(life)
    life.cut()
    await life.command("release", all=True)


async def release_one(life: Life) -> None:
    made = (await _busy(life))[-1]
    life.cut()
    await life.command("release", container=made)


async def release_refused(life: Life) -> None:
    made = (await _busy(life))[-1]
    life.world.failing["UpdateContainerResources"] = Failure(2, "no")
    life.cut()
    await life.command("release", container=made)


async def switch_policy(life: Life, to: str) -> None:
    await _busy(life)
    life.configure(POLICIES[to])
    life.cut()
    await life.daemon.reload()
    await _owner(life, "web")


async def switch_mode(life: Life) -> None:
    await _busy(life)
    life.cut()
    await life.command("mode", mode="observe")
    await _owner(life, "web")
    await life.command("mode", mode="enforce")


async def reset_policy(life: Life, replace: bool = False) -> None:
    await _busy(life)
    life.cut()
    await life.command("reset-policy", replace=replace)


async def drift(life: Life) -> None:
    made = (await _busy(life))[0]
    life.world.runtime.containers[made].resources.cpuset_cpus = "0"
    life.world.write_cgroups(made)
    life.cut()
    await life.look()


async def kubelet_limits_again(life: Life) -> None:
    made = (await _busy(life))[-1]
    life.cut()
    life.world.set_limit(life.engine.grants[made].container.pod.cgroup_parent, 4000)
    life.daemon.services.node_state.follow_quotas()


async def second_container_needs_the_limit(life: Life) -> None:
    pod = await life.run_pod("both", "guaranteed", 4500)
    first = await life.create(pod, "own", cpu_limit=4000, **OWNER)
    await life.start(first)
    life.cut()
    second = await life.create(pod, "share", cpu_limit=500, **OWNER)
    await life.start(second)
    await life.stop(second)
    await life.remove(second)


async def checkpoint(life: Life) -> None:
    await _busy(life)
    life.cut()
    await life.daemon.services.store.checkpoint()
    await _shared(life, "web")


async def clean_end(life: Life) -> None:
    await _busy(life)
    life.cut()
    await life.daemon.services.store.close()


async def restart(life: Life) -> None:
    """A daemon that has just begun, and one call."""
    life.cut()
    await _shared(life, "web")


async def hosted(
    life: Life, answer: Answer, is_agreed: Callable[[ContainerRecord], bool], fence: str = ""
) -> None:
    """A create about which a plugin is asked."""
    await _owner(life, "owner")
    life.plug(answer)
    life.world.fence = fence
    life.world.is_agreed = lambda container: container.name != "web" or is_agreed(container)
    life.cut()
    with contextlib.suppress(Refused):
        await _owner(life, "web")


def _nothing(_: nri.Container) -> nri.ContainerAdjustment:
    return nri.ContainerAdjustment()


def _variable(_: nri.Container) -> nri.ContainerAdjustment:
    return nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="b")])


def _cpus(_: nri.Container) -> nri.ContainerAdjustment:
    adjust = nri.ContainerAdjustment()
    adjust.linux.resources.cpu.cpus = "6-20"
    return adjust


def _refusal(_: nri.Container) -> nri.ContainerAdjustment:
    raise PluginRefused("no")


HOSTED: dict[str, Story] = {
    "a plugin changes nothing": partial(hosted, answer=_nothing, is_agreed=lambda container: True),
    "a plugin adds a variable": partial(hosted, answer=_variable, is_agreed=lambda c: len(c.config.envs) > 0),
    "a plugin gives a cpuset": partial(
        hosted,
        answer=_cpus,
        fence="6-20",
        is_agreed=lambda c: parse_cpus(c.resources.cpuset_cpus) <= parse_cpus("6-20"),
    ),
    "a plugin refuses": partial(hosted, answer=_refusal, is_agreed=lambda container: False),
}

# ---------------------------------------------------------------------- stories of claims


async def _claim(life: Life, uid: str, device: str = "l3-0", cpus: int = 3) -> str:
    """The CDI device of a claim that is prepared."""
    results = [{"request": "cpus", "device": device, "cpus": cpus, "share": "s"}]
    answer = await life.command("claim-prepare", uid=uid, namespace="default", name=uid, results=results)
    return str(answer["parts"][0]["cdi"])


async def _member(life: Life, name: str, *devices: str, milli: int = 3000) -> str:
    """A pod with a running container that has claims."""
    pod = await life.run_pod(name, "burstable", milli)
    made = await life.create(pod, name, cpu_limit=milli, cdi=devices)
    await life.start(made)
    return made


async def claim(life: Life) -> None:
    await _busy(life)
    life.cut()
    await _member(life, "web", await _claim(life, "u-1"))


async def claim_of_two(life: Life) -> None:
    await _busy(life)
    life.cut()
    device = await _claim(life, "u-1")
    await asyncio.gather(_member(life, "one", device), _member(life, "two", device, milli=5000))


async def claims_at_once(life: Life) -> None:
    await _busy(life)
    life.cut()
    one, two = await asyncio.gather(_claim(life, "u-1"), _claim(life, "u-2", "l3-1"))
    await _member(life, "web", one, two, milli=6000)


async def claim_ends(life: Life) -> None:
    await _busy(life)
    pod = await life.run_pod("web", "burstable", 3000)
    made = await life.create(pod, "web", cpu_limit=3000, cdi=(await _claim(life, "u-1"),))
    await life.start(made)
    life.cut()
    await life.stop(made)
    await life.end_pod(pod)
    await life.command("claim-unprepare", uid="u-1")


async def claim_ends_first(life: Life) -> None:
    await _busy(life)
    made = await _member(life, "web", await _claim(life, "u-1"))
    life.cut()
    await life.command("claim-unprepare", uid="u-1")
    await life.stop(made)


async def claim_comes_again(life: Life) -> None:
    """Its container has begun again; and the state was set aside."""
    await _busy(life)
    device = await _claim(life, "u-1")
    pod = await life.run_pod("web", "burstable", 3000)
    made = await life.create(pod, "web", cpu_limit=3000, cdi=(device,))
    await life.start(made)
    life.cut()
    await life.stop(made)
    again = await life.create(pod, "web", attempt=1, cpu_limit=3000, cdi=(device,))
    await life.start(again)
    await life.remove(made)
    await life.command("reset-policy")


CLAIMING: dict[str, Story] = {
    "claim": claim,
    "claim of two": claim_of_two,
    "claims at once": claims_at_once,
    "claim ends": claim_ends,
    "claim ends first": claim_ends_first,
    "claim comes again": claim_comes_again,
}

STORIES: dict[str, Story] = {
    "create": create,
    "create owner": create_owner,
    "create refused": create_refused,
    "create two at once": create_two_at_once,
    "start fails": start_fails,
    "resize up": partial(resize, to=8000),
    "resize down": partial(resize, to=2000),
    "resize to a fraction": partial(resize, to=500),
    "resize a shared one up": partial(resize_shared, to=20000),
    "resize a shared one down": partial(resize_shared, to=2000),
    "resize refused": resize_refused,
    "exit and next attempt": exit_and_again,
    "exit unseen": exit_unseen,
    "end of a pod": end_of_a_pod,
    "move": move,
    "demand": grow_by_demand,
    "adopt all": adopt,
    "adopt one": adopt_one,
    "release all": release,
    "release one": release_one,
    "release refused": release_refused,
    "policy to exclusive": partial(switch_policy, to="exclusive"),
    "policy to hygon": partial(switch_policy, to="hygon"),
    "policy to balloons": partial(switch_policy, to="balloons"),
    "mode": switch_mode,
    "reset-policy": reset_policy,
    "reset-policy --replace": partial(reset_policy, replace=True),
    "drift": drift,
    "kubelet limits again": kubelet_limits_again,
    "second container": second_container_needs_the_limit,
    "checkpoint": checkpoint,
    "clean end": clean_end,
    "first start": restart,
}


#: Policies that have stories of their own, and no others.
OF_SOME = ("hosting", "claiming")
#: A container goes elsewhere by itself: one in a balloon is where that is.
OF_PLACES = ("move", "demand")


@dataclass(frozen=True)
class Scenario:
    """A story under a policy, with a disk that is written at once or a while later."""

    story: str
    policy: str
    disk: str

    def __str__(self) -> str:
        return f"{self.story}, {self.policy}, {self.disk} disk"

    async def play(self, life: Life) -> None:
        await {**STORIES, **HOSTED, **CLAIMING}[self.story](life)
        await life.rest()


def _scenarios(policies: dict[str, tuple[str, ...]]) -> list[Scenario]:
    found = [
        Scenario(story, name, disk)
        for story in STORIES
        for name, disks in policies.items()
        for disk in disks
        if name != "balloons" or story not in OF_PLACES
    ]
    found += [Scenario(story, "hosting", disk) for story in HOSTED for disk in DISKS]
    return found + [Scenario(story, "claiming", disk) for story in CLAIMING for disk in DISKS]


DISKS = ("quick", "slow")
#: Those that tell most; and all there are.
SCENARIOS = [
    *_scenarios({"lifting": DISKS, "hygon": ("slow",), "exclusive": ("quick",)}),
    Scenario("second container", "balloons", "slow"),
]
EVERY_SCENARIO = _scenarios({name: DISKS for name in POLICIES if name not in OF_SOME})
