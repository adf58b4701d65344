"""crictl: each of its subcommands says and does the same past our daemon and through it, on containerd 2 or CRI-O."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.agent import Agent
from tests.cri_tools.crictl import TIMEOUT_S, Crictl, Said, alike, shape_of
from tests.e2e import runtimes
from tests.e2e.containerd import missing
from tests.e2e.images import Image, busybox_layer
from tests.e2e.node import CPUS, REAL_CGROUPS, TWO_NODES
from tests.e2e.registry import Registry
from tests.peers.programs import find

pytestmark = [
    pytest.mark.cri_tools,
    pytest.mark.skipif(missing() != "", reason=missing()),
    pytest.mark.asyncio(loop_scope="module"),
]

PULLED, REMOVED = "registry.example/tools/web:1", "registry.example/tools/life:1"
PAGE = "root:x:0:"
IMAGES = {
    f"tools/{name}:1": Image(
        [busybox_layer()], ("sh", "-c", f"echo {name} started; exec httpd -f -p 80 -h /etc")
    )
    for name in ("web", "life")
}
#: Ends once it is told a line.
READER = ("sh", "-c", "read x; echo got $x; exit 3")
CPUSET = (
    "inspect",
    "-o",
    "go-template",
    "--template",
    "{{.status.resources.linux.cpusetCpus}}",
    "{container}",
)

#: What only reads, by a name of its own; {web} runs, {created} and {exited} do not, {pod} has them, {over} was stopped.
READS: dict[str, Sequence[str]] = {
    "version": ("version",),
    "info": ("info",),
    "runtime-config": ("runtime-config",),
    "images": ("images", "-o", "json"),
    "images table": ("images", "--digests"),
    "inspecti": ("inspecti", PULLED),
    "pods": ("pods", "-o", "json"),
    "pods that are ready": ("pods", "--state", "ready", "-q"),
    "inspectp": ("inspectp", "{pod}"),
    "inspectp of one that was stopped": ("inspectp", "{over}"),
    "ps": ("ps", "-a", "-o", "json"),
    "ps of a pod": ("ps", "--pod", "{pod}", "-q"),
    "inspect": ("inspect", "{web}"),
    "inspect of one that was created": ("inspect", "{created}"),
    "inspect of one that has ended": ("inspect", "{exited}"),
    "inspect of none": ("inspect", "nothing"),
    "logs": ("logs", "-t", "{web}"),
    "exec": ("exec", "{web}", "cat", "/etc/group"),
    "exec by websocket": ("exec", "--transport", "websocket", "{web}", "cat", "/etc/group"),
    "exec that fails": ("exec", "{web}", "sh", "-c", "echo no >&2; exit 7"),
    "exec, synchronous": ("exec", "--sync", "{web}", "cat", "/etc/group"),
    "exec of one that has ended": ("exec", "{exited}", "true"),
}
#: Which of them fail; a websocket containerd refuses (403), whatever it goes through.
FAILS = {"exec by websocket", "exec that fails", "exec of one that has ended", "inspect of none"}
#: What reads what is measured: the same but for its numbers and its order.
MEASURES: dict[str, Sequence[str]] = {
    "imagefsinfo": ("imagefsinfo",),
    "metricdescs": ("metricdescs",),
    "stats": ("stats", "-a", "-o", "json"),
    "statsp": ("statsp", "-o", "json"),
    "metricsp": ("metricsp",),
}


@dataclass(frozen=True)
class Step:
    """One subcommand of a life; what it prints is called ``name`` in those that follow, if that is given."""

    words: Sequence[str]
    name: str = ""
    typed: str = ""


#: What changes, one after another.
LIFE = (
    Step(("pull", REMOVED)),
    Step(("runp", "{folder}/life.json"), "pod"),
    Step(("create", "--no-pull", "{pod}", "{folder}/short.json", "{folder}/life.json"), "container"),
    Step(("start", "{container}")),
    Step(CPUSET),
    Step(("update", "--cpu-share", "512", "{container}")),
    Step(
        ("inspect", "-o", "go-template", "--template", "{{.status.resources.linux.cpuShares}}", "{container}")
    ),
    Step(("update", "--cpu-period", "1", "--cpu-quota", "1", "{container}")),
    # criu is not installed.
    Step(("checkpoint", "--export={folder}/checkpoint.tar", "{container}")),
    Step(("update-runtime-config", "--pod-cidr", "10.0.0.0/8")),
    Step(("create", "{pod}", "{folder}/reader.json", "{folder}/life.json"), "reader"),
    Step(("start", "{reader}")),
    Step(("attach", "-i", "{reader}"), typed="hello\n"),
    Step(("logs", "-f", "{reader}")),
    Step(("logs", "--reopen", "{container}")),
    Step(("rm", "{container}")),
    Step(("stop", "-t", "0", "{container}")),
    Step(("stop", "-t", "0", "{container}")),
    Step(("rm", "{container}")),
    Step(("start", "{container}")),
    Step(("update", "--cpu-share", "512", "{container}")),
    Step(("stopp", "{pod}")),
    Step(("create", "{pod}", "{folder}/short.json", "{folder}/life.json")),
    Step(("rmp", "{pod}")),
    Step(("inspectp", "{pod}")),
    Step(("run", "{folder}/short.json", "{folder}/life.json"), "run"),
    Step(("pods", "--name", "life", "-q"), "second"),
    Step(("rmp", "-f", "{second}")),
    Step(("rmi", REMOVED)),
    Step(("rmi", REMOVED)),
)
#: What tests below try in their own way.
OTHERS = ("events", "port-forward")
#: What asks no runtime.
LOCAL = ("completion", "config", "help")


@dataclass(frozen=True)
class Place:
    """``direct`` and ``through`` speak to one containerd; ``names`` are the ids of what is there to be looked at."""

    folder: Path
    direct: Crictl
    through: Crictl
    agent: Agent
    names: dict[str, str]

    def filled(self, words: Sequence[str], names: dict[str, str]) -> list[str]:
        """Words of a table with ids and the folder in them; templates of crictl's stay."""
        known = {**names, "folder": str(self.folder)}
        return [re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda found: known[found[1]], word) for word in words]

    def pod_file(self, name: str, parent: str) -> str:
        """A file with the configuration of a pod of this name."""
        return self._write(
            name,
            {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "log_directory": str(self.folder / "logs" / name),
                "linux": {"cgroup_parent": f"{parent}/kubepods/burstable/pod{name}"},
            },
        )

    def container_file(self, name: str, image: str = PULLED, **more: object) -> str:
        """A file with the configuration of a container of this name, with the image's command if none is given."""
        return self._write(
            name, {"metadata": {"name": name}, "image": {"image": image}, "log_path": f"{name}.log", **more}
        )

    def _write(self, name: str, config: object) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        return str(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(pytestconfig: pytest.Config) -> AsyncIterator[Place]:
    program = find("crictl")["crictl"]
    folder = Path(tempfile.mkdtemp(prefix="crl-"))
    with Registry(IMAGES) as registry:
        runtime = runtimes.make(
            runtimes.for_peers(pytestconfig.getoption("--runtime")),
            folder / "c",
            images=folder,
            cpus=CPUS,
            registry=registry.address,
        )
        agent = Agent(runtime.socket, TWO_NODES, REAL_CGROUPS)
        try:
            await asyncio.to_thread(runtime.start)
            await agent.start()
            sides = Crictl(program, str(runtime.socket)), Crictl(program, agent.socket)
            place = Place(folder, *sides, agent, {})
            place.container_file("short", REMOVED)
            place.container_file("reader", REMOVED, command=READER, stdin=True, stdin_once=True)
            place.pod_file("life", runtime.cgroup_parent)
            await make(place, runtime.cgroup_parent)
            yield place
        finally:
            await agent.close()
            await asyncio.to_thread(runtime.close)
            shutil.rmtree(folder)


async def make(place: Place, parent: str) -> None:
    """What is there to be looked at, made through our daemon."""
    names, do = place.names, place.through.ask
    await do("pull", PULLED)
    pod, over = (place.pod_file(name, parent) for name in ("pod", "over"))
    names["pod"], names["over"] = await do("runp", pod), await do("runp", over)
    await do("stopp", names["over"])
    web, ends = place.container_file("web"), place.container_file("ends", command=["true"])
    for name, config in (("web", web), ("exited", ends), ("created", place.container_file("created"))):
        names[name] = await do("create", names["pod"], config, pod)
    await do("start", names["web"], names["exited"])
    # CRI-O knows a rate from the second look on.
    await do("stats", "-a", "-o", "json")
    async with asyncio.timeout(TIMEOUT_S):
        while "started" not in await do("logs", names["web"]):
            await asyncio.sleep(0.02)
        while names["exited"] not in await do("ps", "--state", "exited", "--no-trunc", "-q"):
            await asyncio.sleep(0.02)


async def test_every_subcommand_is_tried(place: Place) -> None:
    listed = (await place.direct.ask("help")).partition("COMMANDS:")[2].partition("GLOBAL OPTIONS:")[0]
    there = {line.split()[0].rstrip(",") for line in listed.splitlines() if line.strip()}
    tried = {words[0] for words in (*READS.values(), *MEASURES.values(), *(step.words for step in LIFE))}
    assert there == tried | set(OTHERS) | set(LOCAL)


@pytest.mark.parametrize("name", READS)
async def test_it_reads_the_same(place: Place, name: str) -> None:
    words = place.filled(READS[name], place.names)
    direct, through = await place.direct(*words), await place.through(*words)
    assert told(direct, {}) == told(through, {})
    assert (direct.code != 0) == (name in FAILS), direct


@pytest.mark.parametrize("name", MEASURES)
async def test_it_measures_the_same_things(place: Place, name: str) -> None:
    words = place.filled(MEASURES[name], place.names)
    direct, through = await place.direct.ask(*words), await place.through.ask(*words)
    assert shape_of(direct) == shape_of(through)


async def test_a_life_goes_the_same_way(place: Place) -> None:
    direct, through = [await live(place, side) for side in (place.direct, place.through)]
    # The one difference is what we are for.
    where = [step.words for step in LIFE].index(CPUSET)
    assert (direct.pop(where).out, through.pop(where).out in ("0\n", "1\n")) == ("\n", True)
    assert direct == through
    failed = [
        step.words[0] for step, said in zip((s for s in LIFE if s.words != CPUSET), direct) if said.code
    ]
    assert failed == ["update", "checkpoint", "rm", "start", "update", "create", "inspectp", "rmi"]


async def live(place: Place, crictl: Crictl) -> list[Said]:
    """What is said at each step."""
    # Logs stay when their container goes.
    shutil.rmtree(place.folder / "logs" / "life", ignore_errors=True)
    names: dict[str, str] = {}
    says = []
    for step in LIFE:
        said = await crictl(*place.filled(step.words, names), typed=step.typed)
        if step.name:
            assert said.code == 0, said
            names[step.name] = said.out.strip()
        says.append(told(said, names))
    return says


def told(said: Said, names: dict[str, str]) -> Said:
    return Said(said.code, alike(said.out, names), alike(said.err, names))


async def test_both_are_told_the_same_events(place: Place) -> None:
    form = (
        "events",
        "-o",
        "go-template",
        "--template",
        "{{.containerId}} {{.containerEventType}} {{.podSandboxStatus}}",
    )
    pod = str(place.folder / "life.json")
    async with (
        asyncio.timeout(TIMEOUT_S),
        place.direct.lines(*form) as past,
        place.through.lines(*form) as us,
    ):
        # crictl does not say when it listens: lives go by until both have seen a part of one.
        listening = [asyncio.ensure_future(side.readline()) for side in (past, us)]
        while not all(one.done() for one in listening):
            await place.direct.ask("rmp", "-f", await place.direct.ask("runp", pod))
        seen = await place.direct.ask("runp", pod)
        await place.direct.ask("rmp", "-f", seen)
        told = [await until_stopped(side, seen) for side in (past, us)]
    assert told[0] == told[1]
    # containerd tells of the making, too.
    assert [line.split()[1] for line in told[0]][-2:] == [
        "CONTAINER_STARTED_EVENT",
        "CONTAINER_STOPPED_EVENT",
    ]


async def until_stopped(lines: asyncio.StreamReader, pod: str) -> list[str]:
    """What is told of a pod, until it was stopped."""
    told: list[str] = []
    while not told or "_STOPPED_" not in told[-1]:
        line = (await lines.readline()).decode()
        assert line != "", told
        if line.startswith(pod):
            told.append(line)
    return told


async def test_a_port_of_a_pod_is_forwarded_by_both(place: Place) -> None:
    for side in (place.direct, place.through):
        async with side.lines("port-forward", place.names["pod"], ":80") as lines:
            said = (await asyncio.wait_for(lines.readline(), TIMEOUT_S)).decode()
            found = re.match(r"Forwarding from (127\.0\.0\.1:\d+) -> 80", said)
            assert found is not None, said
            assert (await asyncio.to_thread(get, f"http://{found[1]}/group")).startswith(PAGE)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


async def test_the_daemon_stayed_whole(place: Place) -> None:
    status = await place.agent.ask("status")
    assert (status["degraded"], status["invariants"]) == ({}, [])
    assert not [name for name in status["counters"] if "failed_open" in name]
