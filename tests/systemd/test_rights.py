"""The daemon does its work with the few rights the unit leaves it, and says so where they are not enough."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cri_proxy.affinity.effect.io.counting import NOT_PERMITTED
from tests.affinity.effect.io.counted_cgroup import counted_root
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, resyncs, until
from tests.functional.support import new_agent, run_pod_with
from tests.kubelet_host import KubeletHost, config_tree
from tests.systemd.units import SERVICE, words_of

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux"
)


def as_the_unit(*program: str) -> tuple[str, ...]:
    """A command that runs the daemon, or other Python, with the unit's capabilities and umask, and no way to more."""
    program = program or ("-m", "cri_proxy")
    names = [word[len("CAP_") :].lower() for word in words_of(SERVICE, "Service.CapabilityBoundingSet")]
    bounds = ",".join(["-all", *(f"+{name}" for name in names)])
    limited = (
        "setpriv",
        "--bounding-set",
        bounds,
        "--no-new-privs",
        "sh",
        "-c",
        'umask 0077; exec "$@"',
        "sh",
    )
    return (*limited, sys.executable, *program)


def _capabilities(agent: Agent) -> int:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    found = re.search(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    assert found is not None
    return int(found[1], 16)


async def test_it_places_plans_and_keeps_its_state(runtime: FakeRuntime) -> None:
    os.chown(runtime.socket, 0, 1234)
    os.chmod(runtime.socket, 0o660)
    async with new_agent(runtime) as agent:
        await agent.start(command=as_the_unit())
        # Root of a container may have fewer itself, such as no CAP_SYS_RESOURCE.
        given = len(words_of(SERVICE, "Service.CapabilityBoundingSet"))
        assert given == 5
        assert given - 1 <= bin(_capabilities(agent)).count("1") <= given
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""
        code, _, err = await agent.cli("rebalance", "--dry-run")
        assert code == 0, err
        shown = os.stat(agent.socket)
        assert (shown.st_gid, shown.st_mode & 0o777) == (1234, 0o660)
        await agent.kill()
        await agent.start(command=as_the_unit())
        status = await until(agent, lambda status: resyncs(status) > 0)
        assert (status["containers"], status["degraded"]) == ({"placed": 1}, {})


def test_groups_of_caches_are_made_in_a_folder_that_the_kernel_makes_read_only(tmp_path: Path) -> None:
    """Without CAP_DAC_OVERRIDE; and the folder is as it was."""
    mount = tmp_path / "resctrl"
    (mount / "mon_groups").mkdir(parents=True)
    for folder in (mount / "mon_groups", mount):
        folder.chmod(0o555)
    program = (
        "import sys; from pathlib import Path; mount = Path(sys.argv[1])\n"
        "from cri_proxy.isolation.io.monitoring_groups import MonitoringGroups\n"
        "from cri_proxy.isolation.io.resctrl import Resctrl\n"
        "control, monitors = Resctrl(mount), MonitoringGroups(mount)\n"
        "control.make('cri-resmgr.batch'); control.make('cri-resmgr.gold'); control.remove('cri-resmgr.gold')\n"
        "monitors.make_monitor('', 'cri-resmgr.1'); monitors.make_monitor('', 'cri-resmgr.2')\n"
        "monitors.remove_monitor('', 'cri-resmgr.2')\n"
    )
    subprocess.run(as_the_unit("-c", program, str(mount)), check=True)
    assert sorted(path.name for path in mount.iterdir()) == ["cri-resmgr.batch", "mon_groups"]
    assert [path.name for path in (mount / "mon_groups").iterdir()] == ["cri-resmgr.1"]
    assert {folder.stat().st_mode & 0o777 for folder in (mount, mount / "mon_groups")} == {0o555}


async def test_a_state_directory_that_is_not_ours_costs_durability_until_it_is(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime, constants={"reconcile_poll_s": 0.1}) as agent:
        agent.state.mkdir(mode=0o700)
        os.chown(agent.state, 1234, 1234)
        await agent.start(command=as_the_unit())
        status = await ask(agent, "status")
        assert status["mode"] == "enforce"
        assert str(agent.state) in status["degraded"]["state"]
        await agent.logged("degraded")
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
            assert runtime.cpuset(container_id) != ""
            os.chown(agent.state, 0, 0)
            await run_pod_with(client, "more", cpu_limit=8000)
        await until(agent, lambda status: "state" not in status["degraded"])
        await agent.kill()
        await agent.start(command=as_the_unit())
        assert (await until(agent, lambda status: resyncs(status) > 0))["containers"] == {"placed": 2}


async def test_a_state_directory_that_is_closed_under_it_is_used_again_once_it_may(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime, constants={"reconcile_poll_s": 0.1}) as agent:
        await agent.start(command=as_the_unit())
        agent.state.chmod(0)
        async with CriClient(agent.socket) as client:
            _, container_id = await run_pod_with(client, "web", cpu_limit=8000)
        assert runtime.cpuset(container_id) != ""
        status = await until(agent, lambda status: "state" in status["degraded"])
        assert f"{agent.state}: Permission denied" in status["degraded"]["state"]
        agent.state.chmod(0o700)
        await until(agent, lambda status: not status["degraded"])
        await agent.kill()
        (agent.state / "state.db").chmod(0)  # which a start puts right: it is ours
        await agent.start(command=as_the_unit())
        status = await until(agent, lambda status: resyncs(status) > 0)
        assert (status["containers"], status["degraded"]) == ({"placed": 1}, {})
        assert not list(agent.state.glob("*.aside-*"))


async def test_a_configuration_that_may_not_be_read_is_said_and_read_once_it_may(
    runtime: FakeRuntime,
) -> None:
    async with new_agent(runtime) as agent:
        await agent.start(command=as_the_unit())
        os.chown(agent.config_file, 1234, 1234)
        agent.config_file.chmod(0o600)
        agent.reload()
        status = await until(agent, lambda status: "config" in status["degraded"])
        assert f"{agent.config_file}" in status["degraded"]["config"]
        assert status["mode"] == "enforce"
        os.chown(agent.config_file, 0, 0)
        agent.reload()
        await until(agent, lambda status: "config" not in status["degraded"])


async def test_on_cri_o_it_makes_the_socket_by_which_kubelet_knows_that(folder: Path) -> None:
    async with FakeRuntime(str(folder / "crio.sock")) as runtime, new_agent(runtime) as agent:
        await agent.start(command=as_the_unit())
        by_name = str(agent.folder / "run/crio/crio.sock")
        assert by_name in (await ask(agent, "status"))["sockets"]
        async with CriClient(by_name) as client:
            await run_pod_with(client, "web", cpu_limit=8000)


CONNECTION = """
import signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print("connected", flush=True)
signal.pause()
"""
CONNECTED = """
import sys
from cri_proxy.kubelet.io.service import is_connected
print(is_connected(int(sys.argv[1]), sys.argv[2]))
"""


def test_what_the_unit_may_not_see_of_kubelet_is_not_known_and_no_warning(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(path)
        served.listen()
        kubelet = subprocess.Popen([sys.executable, "-c", CONNECTION, path], stdout=subprocess.PIPE)
        assert kubelet.stdout is not None
        try:
            assert kubelet.stdout.readline() == b"connected\n"
            words = ["-c", CONNECTED, str(kubelet.pid), f"unix://{path}"]
            with served.accept()[0]:
                outside = subprocess.check_output([sys.executable, *words], text=True)
                inside = subprocess.check_output([*as_the_unit()[:-2], *words], text=True)
        finally:
            kubelet.kill()
            kubelet.wait()
            kubelet.stdout.close()
    assert (outside.strip(), inside.strip()) == ("True", "None")


COUNT = """
import os
from pathlib import Path
from cri_proxy.affinity.effect.io.counting import Countable, Counting
from cri_proxy.affinity.effect.comparison import Subject
from tests.affinity.effect.io.counted_cgroup import SOFTWARE
cpu = min(os.sched_getaffinity(0))
counting = Counting(Countable(SOFTWARE), Path({root!r}), Path("/nowhere"))
counting.open((Subject("a", "/", frozenset({{cpu}})),), frozenset({{cpu}}), 512)
print(sorted(counting.keys), counting.problem)
"""


def test_the_units_rights_are_enough_to_count_a_cgroup_and_those_without_perfmon_are_not() -> None:
    root = counted_root()
    if root is None:
        pytest.skip("this kernel counts nothing by cgroup")
    words = [sys.executable, "-c", COUNT.format(root=str(root))]
    counted = subprocess.check_output([*as_the_unit()[:-3], *words], text=True)
    assert counted.strip() == "['a']"
    without = ["setpriv", "--bounding-set", "-all", "--no-new-privs"]
    refused = subprocess.check_output([*without, *words], text=True)
    assert refused.strip() == f"[] {NOT_PERMITTED}"


# ---------------------------------------------------------------------- what may not be looked at is not taken for absent

#: Python of a user that may not read root's, as those of pyenv are: it is imported before the rights are gone.
AS_USER = """
import os, pkgutil, sys
from importlib import import_module
import cri_api.runtime_v1_pb2, cri_proxy
from cri_proxy.cli.main import cli
for module in ("cli.doctor", "cli.kubelet", "runtime", "relay.io.channel", "config.documents", "view.io.daemon"):
    import_module(f"cri_proxy.{module}")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
cli()
"""
#: Each checker with the rights it has.
CHECKERS = {"the daemon's unit": as_the_unit(), "a user": (sys.executable, "-c", AS_USER)}
#: A finding that differs from root's says so in one of these ways.
UNKNOWN = re.compile(
    r"not (?:wholly )?known|could not be found out|could not be checked|[Pp]ermission|not run as root"
)


def _findings(agent: Agent, told: Sequence[str], *command: str) -> dict[str, str]:
    words = ("--control-socket", str(agent.control), "doctor", "--json", "--config", str(agent.config_file))
    done = subprocess.run([*command, *words, *told], capture_output=True, text=True, timeout=60, check=False)
    rows = json.loads(done.stdout or done.stderr)["findings"]
    return {row["check"]: re.sub(r"\d+ s\b", "some s", row["sentence"]) for row in rows}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("root", ["the machine's", "a described one"])
async def test_doctor_says_the_same_with_fewer_rights_or_that_it_does_not_know(
    root: str, checker: str, folder: Path, runtime: FakeRuntime
) -> None:
    async with new_agent(runtime) as agent:
        await agent.start()
        host = KubeletHost(folder, config_tree(agent.socket))
        for open_to_all in (folder, agent.folder):
            open_to_all.chmod(0o755)
        host.start()
        told = [
            "--proc",
            str(host.folder / "proc"),
            *(["--root", str(host.root)] if "described" in root else []),
        ]
        try:
            of_root = await asyncio.to_thread(_findings, agent, told, sys.executable, "-m", "cri_proxy")
            found = await asyncio.to_thread(_findings, agent, told, *CHECKERS[checker])
        finally:
            host.close()
    claimed = {
        check: (sentence, of_root.get(check))
        for check, sentence in found.items()
        if not of_root.get(check, "").startswith(sentence) and not UNKNOWN.search(sentence)
    }
    assert claimed == {}, f"{found}\n{of_root}"


FIND = """
import os
from cri_proxy.kubelet.io.service import find_kubelet
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(find_kubelet())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("level", ["1", "2"])
def test_kubelet_is_not_absent_where_proc_hides_the_processes_of_others(level: str) -> None:
    mounted = ("unshare", "--mount", "--propagation=private", "sh", "-c")
    script = f'mount -t proc -o hidepid={level} proc /proc && exec "$@"'
    words = [*mounted, script, "sh", sys.executable, "-c", FIND]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(done.stderr.strip())
    said = {"1": "/proc/1/comm: Operation not permitted", "2": "/proc hides processes (hidepid)"}[level]
    assert done.stdout == f"NotSeen {said}\n", done


#: Commands that a user may type, who has no right to the daemon's socket.
TYPED = [
    "status", "placements", "explain web", "release --all", "adopt --all", "reset-policy", "history", "metrics", "mode off",
    "affinity", "observer status", "nri status", "config show", "kubelet status", "kubelet enable", "kubelet disable",
    "run --reset-policy",
]  # fmt: skip


async def test_a_user_without_rights_is_told_to_be_root_by_every_command(runtime: FakeRuntime) -> None:
    async with new_agent(runtime) as agent:
        agent.folder.chmod(0o755)
        await agent.start()
        for command in TYPED:
            first, *rest = command.split()
            takes = first in ("kubelet", "release", "history", "reset-policy", "run")
            given = ["--config", str(agent.config_file)] if takes else []
            words = ["--control-socket", str(agent.control), first, *given, *rest]
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", AS_USER, *words],
                capture_output=True,
                text=True,
                timeout=60,
            )
            said = done.stdout + done.stderr
            assert "Traceback" not in said, (command, said)
            assert "root" in said or command.startswith("kubelet"), (command, said)
            assert done.returncode == 1, (command, said)
