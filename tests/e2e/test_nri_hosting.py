"""NRI plugins over a runtime that has no NRI: what they ask for, seen from inside containers of a real containerd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from cri_proxy.nri.io.host.capabilities import classes_of
from cri_proxy.nri.pod_cache import PLUGIN_ID
from tests.e2e.cgroups import cgroup_mounts
from tests.e2e.node import Node, Running, problem_of, until
from tests.functional.nri.support import adjust, env, hosting, plugin, plugin_process
from tests.nri.io.host.plugins import A_WHOLE_LIFE, NO_VALIDATOR

pytestmark = pytest.mark.containerd
MIB = 1 << 20
NULL = {
    "path": "/dev/zilch",
    "type": "c",
    "major": 1,
    "minor": 3,
    "file_mode": {"value": 0o640},
    "gid": {"value": 7},
}
HAS_UNIFIED = any(not controllers and path == Path("/sys/fs/cgroup") for path, controllers in cgroup_mounts())
HAS_HUGETLB = Path("/sys/fs/cgroup/hugetlb").exists() or (
    HAS_UNIFIED and "hugetlb" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
)


@pytest.fixture
async def hosting_node(stopped_node: Node) -> AsyncIterator[Node]:
    stopped_node.agent.write_config({"nri": hosting()})
    await stopped_node.agent.start()
    await stopped_node.until_runtime_is_known()
    return stopped_node


async def test_what_plugins_ask_for_is_seen_in_the_container(hosting_node: Node, tmp_path: Path) -> None:
    node = hosting_node
    (tmp_path / "said").write_text("by a plugin")
    asked = adjust(
        env=env(FROM_A_PLUGIN="yes", BOTH="plugin"),
        mounts=[
            {"destination": "/said", "source": str(tmp_path), "type": "bind", "options": ["rbind", "ro"]}
        ],
        annotations={"plugin.example/k": "v"},
        args=["sleep", "999999"],
        linux={
            "devices": [NULL],
            "resources": {"memory": {"limit": {"value": 64 * MIB}}, "cpu": {"cpus": "1"}},
            "oom_score_adj": {"value": 777},
        },
    )
    async with plugin(node.agent, mask=0xFFF, CreateContainer=asked) as told:
        container = await node.run("pod", cpu_limit=500, envs=(("BOTH", "pod"), ("OWN", "pod")))

        async def inside(*argv: str) -> str:
            out, problem, code = await node.kubelet.exec(container.id, *argv)
            assert code == 0, problem
            return out.strip()

        variables = (await inside("env")).splitlines()
        assert {"FROM_A_PLUGIN=yes", "BOTH=plugin", "OWN=pod"} <= set(variables)
        assert await inside("cat", "/said/said") == "by a plugin"
        assert " ro," in await inside("grep", " /said ", "/proc/1/mountinfo")
        version = await node.direct.call("Version", cri.VersionRequest())
        mode = 666 if version.runtime_name == "cri-o" else 640  # CRI-O passes over a device's
        found = await inside("stat", "-c", "%t:%T %F %a %g", "/dev/zilch")
        assert found == f"1:3 character special file {mode} 7"
        assert await inside("sh", "-c", "echo x > /dev/zilch && echo written") == "written"
        assert await inside("cat", "/proc/1/oom_score_adj") == "777"
        assert (await inside("cat", "/proc/1/cmdline")).split("\0")[:2] == ["sleep", "999999"]
        assert node.runtime.memory_limit_of(container.id) == 64 * MIB
        assert await node.cpus(container) == "1"
        shown = await node.kubelet.status(container.id)
        assert shown.status.annotations["plugin.example/k"] == "v"
        row = await node.until_known(container)
        assert row["cpus"] == "1"
        # The plugin was asked about the real thing once, and shown what has become of it: its cgroup is another one.
        await told.line("PostStartContainer")
        assert told.events() == [
            "RunPodSandbox",
            "CreateContainer",
            "PostCreateContainer",
            "StartContainer",
            "PostStartContainer",
        ]
        asked_about, *seen = told.containers()
        assert asked_about["id"] in asked_about["linux"]["cgroups_path"]
        assert {"/proc", "/dev"} <= {mount["destination"] for mount in asked_about["mounts"]}
        assert any(variable.startswith("PATH=") for variable in asked_about["env"])
        for after in seen:
            assert after["id"] == asked_about["id"] != container.id
            assert container.id in after["linux"]["cgroups_path"]
            assert {"FROM_A_PLUGIN=yes", "BOTH=plugin"} <= set(after["env"])
        verbose = await node.direct.status(container.id, verbose=True)
        assert seen[-1]["pid"] == json.loads(verbose.info["info"])["pid"]
        [listed] = await node.direct.list_containers()
        assert (listed.id, listed.annotations[PLUGIN_ID]) == (container.id, asked_about["id"])


async def test_a_folder_named_by_the_id_is_in_the_container_as_long_as_it_lives(
    hosting_node: Node, tmp_path: Path
) -> None:
    """The shape of what nri-plugins' policies answer, and an answer that is another one each time."""
    node = hosting_node
    named = f"{tmp_path}/{{id}}"
    mount = {"destination": "/data", "source": named, "type": "bind", "options": ["bind", "ro", "rslave"]}
    script: dict[str, Any] = {
        "mask": NO_VALIDATOR,
        "CreateContainer": {"make": named, **adjust(mounts=[mount], env=env(A="{count}"))},
        "RemoveContainer": {"remove": named},
    }

    async def inside(container: Running, *argv: str) -> str:
        out, problem, code = await node.kubelet.exec(container.id, *argv)
        assert code == 0, problem
        return out.strip()

    async with plugin(node.agent, **script) as told:
        first, second = [await node.run(await node.pod(name)) for name in ("first", "second")]
        known = [
            (await told.line("CreateContainer", number))["message"]["container"]["id"] for number in (1, 2)
        ]
        for number, container in enumerate((first, second)):
            assert await inside(container, "cat", "/data/id") == known[number]
            assert await inside(container, "sh", "-c", "echo $A") == str(number)
        await node.kubelet.stop(first.id)
        await node.kubelet.remove(first.id)
        await told.line("RemoveContainer")
        assert [entry.name for entry in tmp_path.iterdir()] == [known[1]]
    await node.agent.kill()
    await node.agent.start()
    await node.until_runtime_is_known()
    # The plugin is back at another daemon, and knows the container again.
    async with plugin(node.agent, **script) as told:
        [listed] = (await told.line("Synchronize"))["message"]["containers"]
        assert listed["id"] == known[1]
        assert second.id in listed["linux"]["cgroups_path"]
        assert await inside(second, "cat", "/data/id") == known[1]
        await node.kubelet.stop(second.id)
        await node.kubelet.remove(second.id)
        await told.become("StopContainer", "RemoveContainer")
        assert list(tmp_path.iterdir()) == []


async def test_resources_are_there_without_a_second_create(hosting_node: Node) -> None:
    node = hosting_node
    resources = {"memory": {"limit": {"value": 48 * MIB}}, "cpu": {"cpus": "0", "quota": {"value": 30000}}}
    async with plugin(node.agent, mask=0xFFF, CreateContainer=adjust(linux={"resources": resources})) as told:
        container = await node.run("pod", cpu_limit=500, memory_limit=32 * MIB)
        assert node.runtime.memory_limit_of(container.id) == 48 * MIB
        assert node.runtime.quota_of(container.id) == 30000
        assert await node.cpus(container) == "0"
        assert told.events().count("CreateContainer") == 1


async def test_two_plugins_in_conflict_leave_nothing_behind(hosting_node: Node) -> None:
    node = hosting_node
    async with (
        plugin(node.agent, "10-foo", CreateContainer=adjust(annotations={"k": "1"})),
        plugin(node.agent, "20-bar", CreateContainer=[adjust(annotations={"k": "2"}), {}]),
    ):
        pod = await node.pod("pod")
        _, details = await problem_of(node.kubelet.create(pod, "main"))
        assert details == 'cri-resmgr: plugins "20-bar" and "10-foo" both tried to set Annotations k'
        assert await node.direct.list_containers() == []
        await node.run(pod)


async def test_a_plugin_killed_in_the_middle_of_a_request_hurts_nobody(hosting_node: Node) -> None:
    node = hosting_node
    async with plugin_process(
        node.agent, "10-dies", mask=NO_VALIDATOR, CreateContainer={"hang": True}
    ) as dying:
        pod = await node.pod("pod")
        creating = asyncio.ensure_future(node.run(pod))
        await dying.log.line("CreateContainer")
        await dying.kill()
        container = await creating
        assert [item.id for item in await node.direct.list_containers()] == [container.id]


async def test_a_slow_plugin_is_given_up_and_the_pod_starts(hosting_node: Node) -> None:
    node = hosting_node
    async with plugin(node.agent, "10-slow", mask=NO_VALIDATOR, CreateContainer={"hang": True}):
        await node.run("pod")
        await until(lambda: node.ask("status"), lambda status: status["nri"]["plugins"] == [])


async def test_a_block_io_class_that_the_runtime_has_not_fails_the_create(hosting_node: Node) -> None:
    """One that has no annotation for it would pass it over: then we refuse it by its name."""
    node = hosting_node
    version = await node.direct.call("Version", cri.VersionRequest())
    knows = "blockio_class" in classes_of(version.runtime_name, version.runtime_version)
    resources = {"blockio_class": {"value": "slow"}}
    async with plugin(node.agent, "10-foo", CreateContainer=adjust(linux={"resources": resources})):
        pod = await node.pod("pod")
        if version.runtime_name == "cri-o":  # it has no classes by default, and passes them over
            await node.kubelet.create(pod, "main")
            return
        _, details = await problem_of(node.kubelet.create(pod, "main"))
        ours = (
            'cri-resmgr: plugin "10-foo" asked for BlockioClass: the runtime has no annotation for "slow", and CRI '
            "no field; isolation.disks: enforce, with a class of that name in control.blockio, does it"
        )
        assert ("refusing to set blockio class" in details) if knows else (details == ours)
        assert await node.direct.list_containers() == []


@pytest.mark.skipif(HAS_UNIFIED, reason="This machine has cgroup v2, where unified resources are had.")
async def test_unified_resources_on_cgroup_v1_are_refused_by_field_and_plugin(hosting_node: Node) -> None:
    node = hosting_node
    resources = {"unified": {"memory.high": "1000000"}}
    async with plugin(node.agent, "10-foo", CreateContainer=adjust(linux={"resources": resources})):
        pod = await node.pod("pod")
        _, details = await problem_of(node.kubelet.create(pod, "main"))
        assert details == (
            'cri-resmgr: plugin "10-foo" asked for CgroupsUnified memory.high: this host has cgroup v1, which has no '
            "unified resources"
        )
        assert await node.direct.list_containers() == []


@pytest.mark.skipif(
    not HAS_UNIFIED, reason="This machine has cgroup v1, where unified resources are refused."
)
async def test_unified_resources_are_in_the_cgroup(hosting_node: Node) -> None:
    node = hosting_node
    resources = {
        "unified": {"memory.high": str(96 * MIB)},
        "memory": {"reservation": {"value": 32 * MIB}},
        "pids": {"limit": 77},
    }
    async with plugin(node.agent, CreateContainer=adjust(linux={"resources": resources})):
        container = await node.run("pod", memory_limit=128 * MIB)
        read = node.runtime.cgroup_file_of
        assert read(container.id, "memory", "memory.high") == str(96 * MIB)
        assert read(container.id, "memory", "memory.low") == str(32 * MIB)
        assert read(container.id, "pids", "pids.max") == "77"


@pytest.mark.skipif(not HAS_HUGETLB, reason="This machine has no hugetlb controller where runc looks for it.")
async def test_hugepage_limits_are_in_the_cgroup(hosting_node: Node) -> None:
    node = hosting_node
    limits = {"hugepage_limits": [{"page_size": "2MB", "limit": 4 * MIB}]}
    async with plugin(node.agent, CreateContainer=adjust(linux={"resources": limits})):
        container = await node.run("pod")
        name = "hugetlb.2MB.max" if HAS_UNIFIED else "hugetlb.2MB.limit_in_bytes"
        assert node.runtime.cgroup_file_of(container.id, "hugetlb", name) == str(4 * MIB)


async def test_a_process_that_ends_is_told_of_and_a_pod_has_all_its_events(hosting_node: Node) -> None:
    node = hosting_node
    async with plugin(node.agent, mask=NO_VALIDATOR) as told:
        container = await node.run("pod", command=("sh", "-c", "exit 5"))
        shown = (await told.line("StopContainer"))["message"]["container"]
        assert (shown["id"], shown["exit_code"]) == (container.id, 5)
        pod = (await told.line("RunPodSandbox"))["message"]["pod"]
        assert pod["linux"]["cgroup_parent"].endswith(container.pod.uid)
        version = await node.direct.call("Version", cri.VersionRequest())
        has_process = version.runtime_name != "cri-o"  # of the pod's own
        assert pod["ips"] and (pod.get("pid", 0) > 0) is has_process
        await node.kubelet.stop_pod(container.pod.id)
        await node.kubelet.remove_pod(container.pod.id)
        await told.become(*A_WHOLE_LIFE)


async def test_a_daemon_killed_in_the_middle_leaves_nothing_for_long(hosting_node: Node) -> None:
    node = hosting_node
    pod = await node.pod("pod")
    async with plugin(node.agent, CreateContainer={"hang": True}) as told:
        creating = asyncio.ensure_future(problem_of(node.kubelet.create(pod, "main")))
        await told.line("CreateContainer")
        await node.agent.kill()
        await creating
    assert len(await node.direct.list_containers()) == 1
    await node.agent.start()
    container = await node.run(pod)
    assert [item.id for item in await node.direct.list_containers()] == [container.id]
