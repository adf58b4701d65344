"""What a real Go plugin asks for, over our host and over containerd's own NRI: the containers are the same ones.

The plugin is one with NRI's own stub (tests/peers/nri-plugin), of the newest release and of the oldest that runtimes have.
It runs twice: at our host, before a containerd without NRI, and at a containerd 2 with NRI. Containers are compared by what
runc was given, by their cgroups, and from inside.

NRI_PLUGINS in the environment: a folder with NRI's own plugins, by the names of their modules. The runtimes start them, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import CriClient, Pod
from tests.e2e import runtimes
from tests.e2e.containerd import Containerd
from tests.e2e.node import CPUS, Node, problem_of, remove_all_pods
from tests.e2e.spec import changed, flatten, spec_of
from tests.functional.nri.support import hosting
from tests.peers.programs import Unavailable, find

pytestmark = pytest.mark.containerd
MIB = 1 << 20
NEWEST, OLDEST = "nri-plugin", "nri-plugin-0.6"
#: A plugin that the runtime starts, and its configuration.
LAUNCHED = "05-launched"
CONFIGURED = json.dumps({"adjust": {"env": [{"key": "LAUNCHED", "value": "with a configuration"}]}})
#: NRI's own plugins, as they are started, and their configurations.
THEIR_PLUGINS = {
    "11-logger": "events: [all]\naddEnv: LOGGED\n",
    "12-template": "",
    "21-device-injector": "",
    "22-ulimit-adjuster": "",
    "23-rdt": "",
    "31-network-logger": "",
    "32-network-device-injector": "",
    "33-writable-cgroups": "",
}
THEIR_FOLDER = os.environ.get("NRI_PLUGINS", "")
#: A plugin that answers must not be given up on a busy machine; against 0.01 s.
ANSWER_TIMEOUT_S = 5
#: What every container is before plugins are asked.
REQUESTED: dict[str, Any] = {
    "envs": (("OWN", "pod"),),
    "mounts": (cri.Mount(container_path="/own", host_path="/usr/share"),),
    "cpu_request": 200,
    "memory_limit": 32 * MIB,
}


@dataclass
class Side:
    """A runtime that has NRI, its own or by our host, and a client of it."""

    runtime: Containerd
    client: CriClient
    #: Where plugins connect.
    nri: Path

    async def pod(self, name: str, **told: str) -> Pod:
        """A pod that tells plugins what to do: ``PLUGIN__EVENT__CONTAINER``."""
        words = (key.split("__") for key in told)
        keys = (f"{plugin}.plugin.example/{event}.{container}" for plugin, event, container in words)
        return await self.annotated_pod(name, dict(zip(keys, told.values())))

    async def annotated_pod(self, name: str, annotations: dict[str, str]) -> Pod:
        parent = f"{self.runtime.cgroup_parent}/kubepods/burstable/pod{name}"
        return await self.client.run_pod(name, uid=name, cgroup_parent=parent, annotations=annotations)

    async def run(self, pod: Pod, name: str = "main") -> str:
        container = await self.client.create(pod, name, **REQUESTED)
        await self.client.start(container)
        return container

    async def created(self, pod: Pod, name: str) -> dict[str, Any]:
        """The spec of a container that is not started: this machine may lack what it needs."""
        container = await self.client.create(pod, name, **REQUESTED)
        status = await self.client.status(container, verbose=True)
        return flatten(json.loads(status.info["info"].replace(container, "it"))["runtimeSpec"])

    async def refusal(self, pod: Pod, name: str) -> str:
        """What the client is told of a create that must fail, and leave nothing."""
        _, details = await problem_of(self.client.create(pod, name, **REQUESTED))
        left = await self.client.list_containers()
        assert name not in {container.metadata.name for container in left}
        return details

    def spec(self, container: str) -> dict[str, Any]:
        return spec_of(self.runtime, container)

    def limits(self, container: str) -> tuple[int, str]:
        """Bytes of memory, and CPU shares, in its cgroup."""
        shares = self.runtime.cgroup_file_of(container, "cpu", "cpu.shares")
        return self.runtime.memory_limit_of(container), shares

    @contextlib.asynccontextmanager
    async def plugin(
        self, title: str = "10-foo", program: str = NEWEST
    ) -> AsyncIterator[subprocess.Popen[str]]:
        """A plugin ``NN-name`` that connects, once it is synchronized; it says what it is done with."""
        index, _, name = title.partition("-")
        words = ["-socket", str(self.nri), "-name", name, "-index", index]
        with subprocess.Popen([find(program)[program], *words], stdout=subprocess.PIPE, text=True) as running:
            try:
                assert await said_by(running) == "synchronized"
                yield running
            finally:
                running.kill()


async def said_by(plugin: subprocess.Popen[str]) -> str:
    assert plugin.stdout is not None
    return (await asyncio.to_thread(plugin.stdout.readline)).rstrip()


def launch_from(folder: Path, configurations: Path) -> None:
    """Put plugins with their configurations where a runtime starts them from."""
    folder.mkdir(parents=True)
    configurations.mkdir(parents=True)
    plugins = {LAUNCHED: (find(NEWEST)[NEWEST], CONFIGURED)}
    for title, configuration in THEIR_PLUGINS.items() if THEIR_FOLDER else ():
        plugins[title] = Path(THEIR_FOLDER, title.partition("-")[2]), configuration
    for title, (program, configuration) in plugins.items():
        shutil.copy(program, folder / title)
        (configurations / f"{title}.conf").write_text(configuration)


@pytest.fixture(scope="module")
def runtime_with_nri(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    folder = tmp_path_factory.mktemp("nri") / "c"
    try:
        find(NEWEST, OLDEST)
        made = runtimes.make("containerd-2", folder, images=images, cpus=CPUS, has_nri=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert isinstance(made, Containerd)
    made.nri_timeout_s = ANSWER_TIMEOUT_S
    launch_from(made.nri_plugins, made.nri_config)
    with made as running:
        yield running


@pytest.fixture
async def theirs(runtime_with_nri: Containerd) -> AsyncIterator[Side]:
    async with CriClient(str(runtime_with_nri.socket)) as client:
        try:
            yield Side(runtime_with_nri, client, runtime_with_nri.nri_socket)
        finally:
            await remove_all_pods(client)


@pytest.fixture
async def ours(theirs: Side, stopped_node: Node) -> Side:
    agent, runtime = stopped_node.agent, stopped_node.runtime
    if not isinstance(runtime, Containerd):
        pytest.skip("Of other runtimes it is not known here what runc was given.")
    folder, configurations = agent.folder / "plugins", agent.folder / "plugins.d"
    launch_from(folder, configurations)
    settings = {
        "plugin_path": str(folder),
        "plugin_config_path": str(configurations),
        "request_timeout": f"{ANSWER_TIMEOUT_S}s",
    }
    agent.write_config({"nri": hosting(**settings)})
    await agent.start()
    await stopped_node.until_runtime_is_known()
    return Side(runtime, stopped_node.kubelet, Path(agent.config["nri"]["socket"]))


@pytest.fixture
def sides(ours: Side, theirs: Side) -> tuple[Side, Side]:
    return ours, theirs


def adjust(**what: Any) -> str:
    return json.dumps({"adjust": what})


def update(container: str, **resources: Any) -> str:
    """``container``: as plugins read it, "{id main}"."""
    return json.dumps({"update": [{"container_id": container, "linux": {"resources": resources}}]})


def bind(source: str, destination: str, *options: str) -> dict[str, Any]:
    return {"source": source, "destination": destination, "type": "bind", "options": options}


def env(key: str, value: str = "") -> dict[str, str]:
    return {"key": key, "value": value}


def resources(**what: Any) -> dict[str, Any]:
    return {"linux": {"resources": what}}


def device(path: str, kind: str, *number: int, **more: int) -> dict[str, Any]:
    named = {key: {"value": value} for key, value in more.items()}
    return {
        "linux": {"devices": [{"path": path, "type": kind, "major": number[0], "minor": number[1], **named}]}
    }


#: What both carry, by the name of the container.
CARRIED: dict[str, dict[str, Any]] = {
    "env": {"env": [env("A", "b=c d"), env("EMPTY"), env("OWN", "plugin")]},
    "env-replaced": {"env": [env("-OWN"), env("OWN", "plugin")]},
    "args": {"args": ["sleep", "999999"]},
    "mount": {"mounts": [bind("/usr/lib", "/added", "rbind", "ro", "rprivate")]},
    "mount-over": {"mounts": [bind("/usr/lib", "/own", "rbind", "ro")]},
    "mount-replaced": {"mounts": [{"destination": "-/own"}, bind("/usr/lib", "/own", "rbind", "ro")]},
    "mount-removed": {"mounts": [{"destination": "-/own"}]},
    "device": device("/dev/zilch", "c", 1, 3),
    "device-owned": device("/dev/zilch", "c", 1, 3, file_mode=0o640, uid=5, gid=7),
    "device-nowhere": device("/dev/odd", "c", 240, 77, file_mode=0o600),
    "device-block": device("/dev/odd", "b", 240, 77),
    "oom": {"linux": {"oom_score_adj": {"value": 777}}},
    "memory": resources(memory={"limit": {"value": 64 * MIB}}),
    "shares": resources(cpu={"shares": {"value": 300}}),
    "quota": resources(cpu={"quota": {"value": 30000}, "period": {"value": 100000}}),
    "seccomp": {
        "linux": {
            "seccomp_policy": {
                "default_action": "SCMP_ACT_ALLOW",
                "syscalls": [
                    {"names": ["sethostname"], "action": "SCMP_ACT_ERRNO", "errno_ret": {"value": 5}}
                ],
            }
        }
    },
}
#: NRI 0.6 does not know them.
YOUNGER = {"args", "oom", "seccomp"}
#: What CRI has no word for: in a container by containerd's own NRI, refused by our host with this.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "limit": (
        {"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024}]},
        "Rlimits RLIMIT_NOFILE: CRI has no resource limits of processes",
    ),
    "hook": (
        {"hooks": {"prestart": [{"path": "/bin/true", "args": ["true"]}]}},
        "OciHooks: CRI has no OCI hooks",
    ),
    "sysctl": (
        {"linux": {"sysctl": {"net.core.somaxconn": "100"}}},
        "Sysctl net.core.somaxconn: CRI has sysctls of pods only",
    ),
    "io": (
        {"linux": {"io_priority": {"class": "IOPRIO_CLASS_BE", "priority": 5}}},
        "IoPriority: CRI has no IO priority; isolation.scheduling: enforce does it",
    ),
    "scheduler": (
        {"linux": {"scheduler": {"policy": "SCHED_BATCH", "nice": 5}}},
        "LinuxSched: CRI has no scheduler; isolation.scheduling: enforce does it",
    ),
    "namespace": (
        {"linux": {"namespaces": [{"type": "ipc"}]}},
        "Namespace ipc: CRI has no namespaces of containers to choose",
    ),
    "memory-policy": (
        {"linux": {"memory_policy": {"mode": "MPOL_BIND", "nodes": "0"}}},
        "MemoryPolicy: CRI has no memory policy",
    ),
    "rdt": ({"linux": {"rdt": {"clos_id": {"value": "x"}}}}, "RdtClosID: CRI has RDT classes only"),
    "tmpfs": (
        {"mounts": [{"destination": "/t", "source": "tmpfs", "type": "tmpfs", "options": ["size=1m"]}]},
        "Mounts /t: CRI has bind mounts only, not tmpfs",
    ),
    "option": (
        {"mounts": [bind("/usr/lib", "/t", "rbind", "nosuid")]},
        "Mounts /t: CRI has no mount option nosuid",
    ),
    "rule": (
        resources(devices=[{"allow": True, "type": "c", "major": {"value": 10}, "minor": {"value": 200}}]),
        "Devices c 10:200: CRI has no rules for devices",
    ),
}


@pytest.mark.parametrize("program", [NEWEST, OLDEST])
async def test_what_a_plugin_asks_for_is_in_the_container(sides: tuple[Side, Side], program: str) -> None:
    cases = {name: asked for name, asked in CARRIED.items() if program == NEWEST or name not in YOUNGER}
    found: list[dict[str, Any]] = []
    for side in sides:
        async with side.plugin(program=program):
            pod = await side.pod("pod", **{f"foo__create__{name}": adjust(**cases[name]) for name in cases})
            plain = side.spec(await side.run(pod, "plain"))
            found.append({name: changed(plain, side.spec(await side.run(pod, name))) for name in cases})
    ours, theirs = found
    assert all(theirs.values())
    assert ours == theirs


async def test_what_cri_has_no_word_for_is_refused_by_its_name(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    told = {f"foo__create__{name}": adjust(**asked) for name, (asked, _) in REFUSED.items()}
    async with ours.plugin(), theirs.plugin():
        pod, other = [await side.pod("pod", **told) for side in sides]
        plain = await theirs.created(other, "plain")
        for name, (_, why) in REFUSED.items():
            assert (await ours.refusal(pod, name)).endswith(f" asked for {why}")
            assert changed(plain, await theirs.created(other, name)) != {}


async def test_an_annotation_is_in_the_status_instead_of_the_spec(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    told = adjust(annotations={"plugin.example/k": "v"})
    async with ours.plugin(), theirs.plugin():
        here, there = [await side.run(await side.pod("pod", foo__create__main=told)) for side in sides]
        assert theirs.spec(there)["annotations.plugin.example/k"] == "v"
        assert (await ours.client.status(here)).status.annotations["plugin.example/k"] == "v"


@pytest.fixture
def shared_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a shared mount, as all are on a host with systemd."""
    folder = tmp_path / "shared"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        subprocess.run(["mount", "--make-shared", folder], check=True)
        (folder / "volume").mkdir()
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_mount_follows_the_host_as_asked(sides: tuple[Side, Side], shared_folder: Path) -> None:
    asked = {"unsaid": (), "slave": ("rslave",), "shared": ("rshared",), "private": ("rprivate",)}
    found = []
    for side in sides:
        mounts = {
            f"foo__create__{name}": adjust(mounts=[bind(str(shared_folder), "/m", "rbind", *words)])
            for name, words in asked.items()
        }
        async with side.plugin():
            pod = await side.pod("pod", **mounts)
            containers = {name: await side.run(pod, name) for name in asked}
            volume = shared_folder / "volume"
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", volume], check=True)
            (volume / "file").touch()
            seen = {name: await side.client.exec(it, "ls", "/m/volume") for name, it in containers.items()}
            subprocess.run(["umount", volume], check=True)
            found.append({name: output for name, (output, _, _) in seen.items()})
    ours, theirs = found
    assert theirs == {"unsaid": "file\n", "slave": "file\n", "shared": "file\n", "private": ""}
    assert ours == theirs


#: What two plugins cannot both set, and what the sentence calls it.
CONFLICTS: dict[str, tuple[dict[str, Any], str]] = {
    "annotations": ({"annotations": {"k": "1"}}, "Annotations k"),
    "env": ({"env": [env("A", "1")]}, "Env A"),
    "args": ({"args": ["sleep", "10"]}, "Args "),
    "mounts": ({"mounts": [bind("/usr", "/x", "rbind")]}, "Mounts /x"),
    "devices": (device("/dev/z", "c", 1, 3), "Devices /dev/z"),
    "memory": (resources(memory={"limit": {"value": 64 * MIB}}), "MemLimit "),
    "cpuset": (resources(cpu={"cpus": "0"}), "CPUSetCPUs "),
    "pages": (resources(hugepage_limits=[{"page_size": "2MB", "limit": 4 * MIB}]), "HugepageLimits 2MB"),
    "class": (resources(rdt_class={"value": "x"}), "RdtClass "),
    "limits": ({"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 5, "soft": 5}]}, "Rlimits RLIMIT_NOFILE"),
    "cdi": ({"CDI_devices": [{"name": "v.com/d=x"}]}, "CdiDevices v.com/d=x"),
    "namespaces": ({"linux": {"namespaces": [{"type": "ipc"}]}}, "Namespace ipc"),
    "memory-policy": ({"linux": {"memory_policy": {"mode": "MPOL_BIND", "nodes": "0"}}}, "MemoryPolicy "),
}


async def test_two_plugins_that_set_the_same_are_told_of_in_the_same_words(sides: tuple[Side, Side]) -> None:
    told = {
        f"{plugin}__create__{name}": adjust(**asked)
        for name, (asked, _) in CONFLICTS.items()
        for plugin in ("foo", "bar")
    }
    told["foo__create__later"] = adjust(env=[env("A", "1")], mounts=[bind("/usr", "/x", "rbind", "rprivate")])
    told["bar__create__later"] = adjust(
        env=[env("-A"), env("A", "2")],
        mounts=[{"destination": "-/x"}, bind("/tmp", "/x", "rbind", "rprivate")],
    )
    for side in sides:
        async with side.plugin("10-foo"), side.plugin("20-bar"):
            pod = await side.pod("pod", **told)
            for name, (_, what) in CONFLICTS.items():
                details = await side.refusal(pod, name)
                assert details.endswith(f': plugins "20-bar" and "10-foo" both tried to set {what}')
            # One that takes away what the one before it has set may set it.
            spec = side.spec(await side.run(pod, "later"))
            assert (spec["process.env A"], spec["mount /x"]["source"]) == ("2", "/tmp")


async def test_updates_are_in_the_cgroup(sides: tuple[Side, Side]) -> None:
    """In a create of another container, in an update that a client asks for, and of the plugin's own accord."""
    found = []
    for side in sides:
        told = {
            "foo__create__second": update(
                "{id first}", memory={"limit": {"value": 48 * MIB}}, cpu={"shares": {"value": 333}}
            ),
            "foo__update__first": update("{id}", cpu={"shares": {"value": 444}}),
            "bar__update__first": update("{id second}", memory={"limit": {"value": 96 * MIB}}),
            "foo__started__third": update("{id first}", memory={"limit": {"value": 80 * MIB}}),
            "foo__create__fourth": update("{id first}", memory={"limit": {"value": 81 * MIB}}),
            "bar__create__fourth": update("{id first}", memory={"limit": {"value": 82 * MIB}}),
            "foo__create__fifth": update("{id}", memory={"limit": {"value": 81 * MIB}}),
            "foo__create__sixth": update("none", memory={"limit": {"value": 81 * MIB}}),
        }
        seen: list[Any] = []
        async with side.plugin("10-foo") as foo, side.plugin("20-bar"):
            pod = await side.pod("pod", **told)
            first, second = await side.run(pod, "first"), await side.run(pod, "second")
            seen.append(side.limits(first))
            # What the client asks for and the plugin does not change stays.
            await side.client.update(first, cpu_shares=999, memory_limit_in_bytes=70 * MIB)
            seen += [side.limits(first), side.limits(second)]
            await side.run(pod, "third")
            seen += [await said_by(foo), side.limits(first)]
            fourth, fifth = await side.refusal(pod, "fourth"), await side.refusal(pod, "fifth")
            assert fourth.endswith(': plugins "20-bar" and "10-foo" both tried to set MemLimit ')
            assert 'plugin "10-foo" asked update of ' in fifth and fifth.endswith(" during creation")
            await side.run(pod, "sixth")
            found.append([*seen, side.limits(first)])
    ours, theirs = found
    assert theirs[0] == (48 * MIB, "333")
    assert ours == theirs


async def test_a_plugin_that_fails_fails_the_request_in_its_words(sides: tuple[Side, Side]) -> None:
    told = {"foo__create__main": "fail not this one", "foo__update__other": "fail leave it"}
    for side in sides:
        async with side.plugin():
            pod = await side.pod("pod", foo__started__third="fail never mind", **told)
            assert (await side.refusal(pod, "main")).endswith(" not this one")
            container = await side.run(pod, "other")
            before = side.limits(container)
            _, details = await problem_of(side.client.update(container, cpu_shares=999))
            assert details.endswith(" leave it")
            assert side.limits(container) == before
            await side.run(pod, "third")


@pytest.mark.parametrize("what", ["die", "hang"])
async def test_a_plugin_that_ends_or_is_silent_is_left_out(sides: tuple[Side, Side], what: str) -> None:
    asked = adjust(env=[env("A", "1")])
    for side in sides:
        async with side.plugin("10-foo"), side.plugin("20-bar") as bar:
            pod = await side.pod(
                "pod", foo__create__main=asked, foo__create__next=asked, bar__create__main=what
            )
            assert side.spec(await side.run(pod))["process.env A"] == "1"
            # It was hung up on; of which of its ends NRI's stub notices first, it says nothing or an error.
            assert await asyncio.to_thread(bar.wait, 30) in ((3,) if what == "die" else (0, 1))
            assert side.spec(await side.run(pod, "next"))["process.env A"] == "1"


async def test_a_plugin_that_the_runtime_starts_has_its_configuration(sides: tuple[Side, Side]) -> None:
    for side in sides:
        pod = await side.pod("pod", launched__create__told=adjust(env=[env("TOLD", "by the pod")]))
        spec = side.spec(await side.run(pod))
        assert spec["process.env LAUNCHED"] == "with a configuration"
        spec = side.spec(await side.run(pod, "told"))
        assert spec["process.env TOLD"] == "by the pod" and "process.env LAUNCHED" not in spec


#: What NRI's own plugins are told by annotations of a pod, by the name of the container.
TOLD = {
    "device": (
        "devices.noderesource.dev",
        "- {path: /dev/zilch, type: c, major: 1, minor: 3, file_mode: 416, uid: 3, gid: 4}",
    ),
    "device-old": ("devices.nri.io", "- {path: /dev/zilch, type: c, major: 1, minor: 3}"),
    "mount": (
        "mounts.noderesource.dev",
        "- {source: /usr/lib, destination: /lib2, type: bind, options: [rbind, ro]}",
    ),
}
TOLD_IN_VAIN = {
    "limits": (
        "ulimits.noderesource.dev",
        "- {type: RLIMIT_NOFILE, soft: 1024, hard: 4096}",
        'plugin "22-ulimit-adjuster" asked for Rlimits RLIMIT_NOFILE: CRI has no resource limits of processes',
    ),
    "sysctl": (
        "sysctl.noderesource.dev",
        'net.core.somaxconn: "256"',
        'plugin "21-device-injector" asked for Sysctl net.core.somaxconn: CRI has sysctls of pods only',
    ),
    "memory-policy": (
        "memory-policy.noderesource.dev",
        '{mode: MPOL_BIND, nodes: "0"}',
        'plugin "21-device-injector" asked for MemoryPolicy: CRI has no memory policy',
    ),
    "rdt": (
        "closid.rdt.noderesource.dev",
        "x",
        'plugin "23-rdt" asked for RdtClosID: CRI has RDT classes only',
    ),
}


@pytest.mark.skipif(not THEIR_FOLDER, reason="NRI_PLUGINS names no folder with NRI's own plugins.")
async def test_nris_own_plugins_do_the_same(sides: tuple[Side, Side]) -> None:
    told = {**TOLD, **TOLD_IN_VAIN}
    annotations = {f"{key}/container.{name}": value for name, (key, value, *_) in told.items()}
    ours, theirs = sides
    found = []
    for side in sides:
        pod = await side.annotated_pod("pod", annotations)
        plain = side.spec(await side.run(pod, "plain"))
        assert plain["process.env LOGGED"].startswith("logger-pid-")
        found.append({name: changed(plain, side.spec(await side.run(pod, name))) for name in TOLD})
    assert found[0] == found[1]
    assert all(found[1].values())
    pod, other = [await side.annotated_pod("vain", annotations) for side in sides]
    for name, (_, _, sentence) in TOLD_IN_VAIN.items():
        assert await ours.refusal(pod, name) == f"cri-resmgr: {sentence}"
        assert changed(plain, await theirs.created(other, name)) != {}
