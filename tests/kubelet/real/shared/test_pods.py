"""Pods of an API server, of every kind that a node treats in its own way."""

from __future__ import annotations

import asyncio

from policies.machine.cpus import format_cpus, parse_cpus
from tests.cluster.real.node import found
from tests.cri_client import IMAGE
from tests.e2e.images import PAUSE
from tests.kubelet.real.machine import HUGE_PAGES, MACHINE
from tests.kubelet.real.node import UNTIL_TOLD, static_pod
from tests.kubelet.real.shared.conftest import HANDLER
from tests.kubelet.real.shared.node import EXCLUSIVE, SHARED, SharedNode, container, pod
from tests.kubelet.real.test_placement import SIZES
from tests.machines import machine

pytestmark = SHARED

ALL = format_cpus(cpu.cpu for cpu in machine(MACHINE).cpus)
#: Whole CPUs that pods own.
OWN = {"db": 4, "cache": 2}
OF_MAIN = {"cpus.cri-resmgr.io/container.main": "exclusive"}
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
TOLD_TO_END = ["sh", "-c", UNTIL_TOLD]


async def test_each_size_has_its_rung(node: SharedNode) -> None:
    for name, (size, _, _) in SIZES.items():
        await node.create(pod(name, container(**size)))
    levels = {name: await node.level((await node.ids(name, "main"))["main"]) for name in SIZES}
    assert levels == {name: (level, count) for name, (_, level, count) in SIZES.items()}
    await node.all_agree()


async def test_exclusive_cpus_are_one_containers_own(node: SharedNode) -> None:
    shared = await node.alone("shared", cpu="500m", limit="100")
    ids = {
        name: await node.alone(name, limit=str(count), annotations=EXCLUSIVE) for name, count in OWN.items()
    }
    own = {name: await node.own(each) for name, each in ids.items()}
    assert {name: len(cpus) for name, cpus in own.items()} == OWN
    await node.all_agree()
    await node.remove("db")
    await node.until_told(shared, lambda cpus: cpus >= own["db"])
    await node.all_agree()


async def test_an_init_container_has_its_place_while_it_runs_and_a_sidecar_keeps_its_own(
    node: SharedNode,
) -> None:
    sidecar = container("proxy", cpu="1", limit="2", restartPolicy="Always", command=TOLD_TO_END)
    init = container("init", cpu="4", limit="16", command=TOLD_TO_END)
    app = container("app", cpu="2", limit="4")
    await node.create(pod("web", app, initContainers=[sidecar, init]))
    ids = await node.ids("web", "proxy", "init")
    assert await node.level(ids["init"]) == ("numa", 16)
    place = await node.cpus(ids["proxy"])
    await node.end(ids["init"], 0)
    main = (await node.ids("web", "app"))["app"]
    assert await node.level(main) == ("ccx", 8)
    await node.all_agree()
    # One that ends starts again where it was, and the other goes on.
    await node.end(ids["proxy"], 1)
    again = await node.ids("web", "proxy", "app", but=[ids["proxy"]])
    assert (await node.cpus(again["proxy"]), again["app"]) == (place, main)
    await node.all_agree()


async def test_an_ephemeral_container_runs_beside_what_its_pod_owns(node: SharedNode) -> None:
    main = await node.alone("web", limit="4", annotations=OF_MAIN)
    told = node.told_so_far(main)
    words = ("debug", "pod/web", f"--image={IMAGE}", "--image-pull-policy=Never", "--container=debug")
    await asyncio.to_thread(node.kubectl.run, *words, "--", "sleep", "1000000")
    debug = (await node.ids("web", "debug"))["debug"]
    assert (await node.row(debug))["stance"] == "placed"
    assert not parse_cpus(await node.cpus(debug)) & await node.own(main)
    assert node.told_so_far(main) == told
    await node.all_agree()


async def test_an_image_is_a_volume(node: SharedNode) -> None:
    mounts = [{"name": "image", "mountPath": "/image"}]
    volumes = [{"name": "image", "image": {"reference": PAUSE, "pullPolicy": "Never"}}]
    ids = await node.start(pod("web", container(cpu="1", limit="4", volumeMounts=mounts), volumes=volumes))
    assert "busybox" in (await node.inside(ids["main"], "ls", "/image/bin")).split()
    assert await node.level(ids["main"]) == ("ccx", 8)
    await node.all_agree()


async def test_huge_pages_are_mounted_and_the_place_is_as_ever(node: SharedNode) -> None:
    capacity = (await node.object())["status"]["capacity"]
    assert capacity["hugepages-2Mi"] == f"{2 * HUGE_PAGES * len(machine(MACHINE).memory) >> 10}Gi"
    main = container(
        cpu="1",
        limit="4",
        limits={"hugepages-2Mi": "16Mi"},
        volumeMounts=[{"name": "pages", "mountPath": "/pages"}],
    )
    volumes = [{"name": "pages", "emptyDir": {"medium": "HugePages"}}]
    ids = await node.start(pod("web", main, volumes=volumes))
    assert "/pages hugetlbfs" in await node.inside(ids["main"], "cat", "/proc/mounts")
    assert await node.level(ids["main"]) == ("ccx", 8)
    await node.all_agree()


async def test_a_runtime_class_of_virtual_machines_opts_its_pods_out(node: SharedNode) -> None:
    if not await found(node.api, f"{CLASSES}/virtual"):
        kind = {"metadata": {"name": "virtual"}, "handler": HANDLER}
        await asyncio.to_thread(node.api.ask, "POST", CLASSES, kind)
    guest = (await node.start(pod("guest", container(cpu="1", limit="4"), runtimeClassName="virtual")))[
        "main"
    ]
    beside = await node.alone("beside", cpu="1", limit="4")
    assert (await node.row(guest))["stance"] == "opted out"
    assert (node.told(guest), node.told_so_far(guest)) == (ALL, [])
    assert await node.level(beside) == ("ccx", 8)
    await node.all_agree(but=[guest])


async def test_a_static_pod_is_placed_and_goes_with_its_file(node: SharedNode) -> None:
    node.host.put(static_pod("static", cpu="1", limit="4"))
    name = f"static-{node.name}"
    ids = await node.ids(name, "main")
    assert await node.level(ids["main"]) == ("ccx", 8)
    await node.until_pod(name, lambda mirror: mirror.get("status", {}).get("phase") == "Running")
    await node.all_agree()
    node.host.take("static")
    await node.until_ended(name)
    await node.until_pod(name, lambda mirror: not mirror)


async def test_an_evicted_pod_leaves_its_cpus_to_others(node: SharedNode) -> None:
    shared = await node.alone("shared", cpu="500m", limit="100")
    own = await node.own(await node.alone("db", limit="4", annotations=EXCLUSIVE))
    await node.until_told(shared, lambda cpus: not cpus & own)
    await node.evict("db")
    await node.until_pod("db", lambda left: not left)
    await node.until_told(shared, lambda cpus: cpus >= own)
    await node.all_agree()
