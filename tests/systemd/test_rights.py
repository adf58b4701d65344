"""The daemon does its work with the few rights the unit leaves it, and says so where they are not enough."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cri_proxy.affinity.effect.io.counting import NOT_PERMITTED
from tests.affinity.effect.io.counted_cgroup import counted_root
from tests.agent import Agent
from tests.cri_client import CriClient
from tests.fake_runtime import FakeRuntime
from tests.functional.conftest import ask, resyncs, until
from tests.functional.support import new_agent, run_pod_with
from tests.systemd.units import SERVICE, words_of

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux"
)


def as_the_unit() -> tuple[str, ...]:
    """A command that runs the daemon with the unit's capabilities and umask, and no way to more."""
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
    return (*limited, sys.executable, "-m", "cri_proxy")


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
        assert given == 4
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
