"""The kubectl plugin as it is called, against a server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.api.names import FRONT_END_LABEL, INSTALLED_LABEL, INSTALLING_LABEL
from cluster.kubectl import DEPLOYMENTS, JOBS, NODES, PLACEMENTS, PODS, WIDTH
from tests.cluster.api_server import ApiServer, Fault

ROOT = Path(__file__).parents[2]
WELL = [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False"}]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Plugin:
    """``await plugin("top")``: a process of its own, as kubectl starts it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    async def __call__(self, *words: str) -> Ended:
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "PYTHONPATH": str(ROOT)}
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cluster.kubectl", *words),
            env=environment,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await started.communicate()
        assert started.returncode is not None
        return Ended(started.returncode, out.decode(), err.decode())


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def plugin(server: ApiServer, tmp_path: Path) -> Plugin:
    return Plugin(server.kubeconfig(tmp_path / "kubeconfig"))


def container(pod: str, name: str = "main", **more: Any) -> dict[str, Any]:
    own = {"namespace": "shop", "pod": pod, "container": name, "cpus": "4-7", "mems": "0", "level": "l3"}
    return {**own, "zone": "l3-1", "state": "managed", "why": "smallest L3 with room", **more}


def node_placement(name: str, **status: Any) -> dict[str, Any]:
    zone = {"name": "socket-0", "type": "Socket", "allocatableMilliCpus": 62000, "chargedMilliCpus": 7500}
    placements = status.get("placements", [])
    own = {
        "mode": "enforce",
        "frontEnd": "cri",
        "conditions": WELL,
        "zones": [{**zone, "exclusiveCpus": "4-7"}, {"name": "l3-1", "type": "L3", "parent": "socket-0"}],
        "counts": {"placements": len(placements), "unplaced": 0},
        "policy": {"name": "default", "state": "Applied"},
    }
    return {"metadata": {"name": name}, "status": {**own, **status}}


# --- top, placements, explain, doctor


async def test_top_has_one_line_a_node_and_shows_those_that_are_not_well_first(
    server: ApiServer, plugin: Plugin
) -> None:
    server.put(PLACEMENTS, node_placement("a", placements=[container("web-0")]))
    server.put(PLACEMENTS, node_placement("z", conditions=[{"type": "Ready", "status": "False"}]))
    ended = await plugin("top")
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in lines] == ["NODE", "z", "a"]
    assert lines[2].split()[1:] == ["True", "False", "enforce", "1", "7.5/62", "4", "default", "Applied"]
    assert max(map(len, lines)) <= WIDTH


async def test_a_node_whose_agent_has_written_nothing_is_shown(server: ApiServer, plugin: Plugin) -> None:
    server.put(PLACEMENTS, {"metadata": {"name": "new"}})
    assert (await plugin("top")).out.splitlines()[1].split()[:4] == ["new", "Unknown", "Unknown", "-"]
    ended = await plugin("doctor")
    assert ended.code == 1
    assert "its agent has written nothing" in ended.out


async def test_placements_are_those_of_the_namespace_that_is_named(server: ApiServer, plugin: Plugin) -> None:
    rows = [container("web-0"), container("other", namespace="else")]
    server.put(PLACEMENTS, node_placement("a", placements=rows))
    assert len((await plugin("placements")).out.splitlines()) == 3
    ended = await plugin("placements", "-n", "shop", "-o", "json")
    assert json.loads(ended.out) == [{"node": "a", **rows[0]}]


async def test_many_nodes_are_read_page_by_page(server: ApiServer, plugin: Plugin) -> None:
    for number in range(45):
        server.put(PLACEMENTS, node_placement(f"n{number}"))
    assert len(json.loads((await plugin("top", "-o", "json")).out)) == 45
    assert len(server.calls) == 3


async def test_explain_says_why_and_with_what_a_container_talks(server: ApiServer, plugin: Plugin) -> None:
    members = [{"namespace": "shop", "pod": pod, "container": "main"} for pod in ("web-0", "db-0")]
    group = {
        "members": members,
        "bytesPerSecond": 5_000_000,
        "together": False,
        "whyNot": "no room in node-0",
    }
    rows = [container("web-0", exclusive=True), container("web-0", "side"), container("db-0")]
    server.put(PLACEMENTS, node_placement("a", placements=rows, affinityGroups=[group]))
    ended = await plugin("explain", "web-0", "-n", "shop", "-c", "main")
    assert ended.code == 0, ended.err
    for said in ("shop/web-0/main", "4-7 (exclusive)", "smallest L3 with room", "shop/db-0/main"):
        assert said in ended.out
    assert "no room in node-0" in " ".join(ended.out.split())
    assert "side" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= WIDTH


async def test_a_pod_that_no_node_tells_of_is_a_sentence(server: ApiServer, plugin: Plugin) -> None:
    server.put(PLACEMENTS, node_placement("a"))
    ended = await plugin("explain", "gone", "-n", "shop")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: no node tells of shop/gone")


async def test_doctor_tells_conditions_refused_policies_and_findings(
    server: ApiServer, plugin: Plugin
) -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "Degraded", "status": "True", "message": "m1"},
    ]
    problems = [{"severity": "warning", "check": "kubelet", "message": "m3", "hint": "do that"}]
    policy = {"name": "bad", "state": "Refused", "message": "m2"}
    bad = node_placement("bad", conditions=conditions, doctor={"problems": problems}, policy=policy)
    server.put(PLACEMENTS, bad)
    server.put(PLACEMENTS, node_placement("good"))
    ended = await plugin("doctor")
    assert ended.code == 1
    assert ended.out.splitlines() == [
        "bad: error: Degraded: m1",
        "bad: error: policy bad: m2",
        "bad: warning: kubelet: m3 (do that)",
        "1 of 2 nodes are well",
    ]


async def test_doctor_of_nodes_that_are_well_exits_with_0(server: ApiServer, plugin: Plugin) -> None:
    server.put(PLACEMENTS, node_placement("good"))
    assert await plugin("doctor") == Ended(0, "1 of 1 nodes are well\n", "")


# --- what is missing


async def test_a_cluster_without_the_crds_is_told_how_to_get_them(server: ApiServer, plugin: Plugin) -> None:
    server.missing.add("nodeplacements")
    ended = await plugin("top")
    assert ended.code == 1
    assert "does not know NodePlacements: kubectl apply -k packaging/cluster/crds" in ended.err


async def test_a_missing_right_is_named(server: ApiServer, plugin: Plugin) -> None:
    server.refuse = lambda call: 'User "eve" cannot list resource "nodeplacements"'
    ended = await plugin("top")
    assert ended.code == 1
    assert 'User "eve" cannot list resource "nodeplacements"; your account needs that right' in ended.err


async def test_a_server_that_is_away_is_a_sentence(server: ApiServer, plugin: Plugin) -> None:
    await server.stop()
    ended = await plugin("top")
    assert ended.code == 1
    assert f"error: {server.url} cannot be reached" in ended.err
    assert "Traceback" not in ended.err


async def test_a_kubeconfig_that_is_not_there_is_a_sentence(plugin: Plugin, tmp_path: Path) -> None:
    ended = await plugin("top", "--kubeconfig", str(tmp_path / "none"))
    assert ended.code == 1
    assert "cannot be read" in ended.err


async def test_a_server_error_is_not_a_traceback(server: ApiServer, plugin: Plugin) -> None:
    server.faults.append(Fault("refuse", status=500))
    ended = await plugin("top")
    assert (ended.code, "Traceback" in ended.err) == (1, False)


# --- uninstall


def installed(server: ApiServer, *names: str) -> None:
    labels = {INSTALLED_LABEL: "1.0", FRONT_END_LABEL: "proxy"}
    for name in names:
        server.put(NODES, {"metadata": {"name": name, "labels": dict(labels)}})
    containers = [{"args": ["--installer-image=registry/cri-resmgr@sha256:1"]}]
    server.put(
        DEPLOYMENTS,
        {
            "metadata": {"name": "cri-resmgr-operator", "namespace": "cri-resmgr"},
            "spec": {"template": {"spec": {"containers": containers}}},
        },
    )


async def finish(server: ApiServer, done: int, condition: str, sentence: str = "") -> dict[str, Any]:
    """Wait for the Job number ``done`` and let it end; the Job."""
    await server.called(lambda call: call.method == "POST" and call.path.endswith("/jobs"), done)
    job = (await server.until(lambda: server.objects(JOBS)))[-1]
    name = job["metadata"]["name"]
    if sentence:
        state = {"terminated": {"message": sentence, "exitCode": 1}}
        pod = {"name": f"{name}-x", "namespace": "cri-resmgr", "labels": {"job-name": name}}
        server.put(PODS, {"metadata": pod, "status": {"containerStatuses": [{"state": state}]}})
    server.put(JOBS, {**job, "status": {"conditions": [{"type": condition, "status": "True"}]}})
    return dict(job)


async def test_uninstall_without_yes_changes_nothing(server: ApiServer, plugin: Plugin) -> None:
    installed(server, "a")
    ended = await plugin("uninstall", "--all")
    assert ended.code == 1
    assert "say --yes" in ended.err
    assert {call.method for call in server.calls} == {"GET"}


async def test_uninstall_goes_node_by_node_and_takes_the_labels_away(
    server: ApiServer, plugin: Plugin
) -> None:
    installed(server, "a", "b")
    running = asyncio.ensure_future(plugin("uninstall", "--all", "--yes"))
    first = await finish(server, 1, "Complete")
    assert "registry/cri-resmgr@sha256:1" in json.dumps(first)
    b = server.object(NODES, "b")
    assert b is not None and b["metadata"]["labels"] == {INSTALLED_LABEL: "1.0", FRONT_END_LABEL: "proxy"}
    server.remove(JOBS, first["metadata"]["name"], "cri-resmgr")
    await finish(server, 2, "Complete")
    ended = await running
    assert ended == Ended(0, "a: taken back\nb: taken back\n", "")
    for name in "ab":
        node = server.object(NODES, name)
        assert node is not None and not node["metadata"].get("labels")


async def test_a_job_that_fails_stops_uninstall_and_says_the_jobs_own_sentence(
    server: ApiServer, plugin: Plugin
) -> None:
    installed(server, "a", "b")
    running = asyncio.ensure_future(plugin("uninstall", "--all", "--yes"))
    await finish(server, 1, "Failed", "kubelet did not come back")
    ended = await running
    assert ended.code == 1
    assert "a: kubelet did not come back" in ended.err
    a, b = server.object(NODES, "a"), server.object(NODES, "b")
    assert a is not None and a["metadata"]["labels"][INSTALLING_LABEL] == "uninstall"
    assert b is not None and INSTALLING_LABEL not in b["metadata"]["labels"]


async def test_a_node_that_is_not_there_is_named_before_anything_is_done(
    server: ApiServer, plugin: Plugin
) -> None:
    installed(server, "a")
    ended = await plugin("uninstall", "--node", "x", "--yes")
    assert ended.code == 1
    assert "the cluster has no node 'x'" in ended.err
    assert {call.method for call in server.calls} == {"GET"}


async def test_help_names_every_command(plugin: Plugin) -> None:
    ended = await plugin("--help")
    assert ended.code == 0
    for command in ("top", "placements", "explain", "doctor", "uninstall"):
        assert command in ended.out
