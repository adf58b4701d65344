"""The kubectl plugin as it is called, with a real kubectl, against a server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.kubectl import ADVICES, CLAIMS, PAGE, PLACEMENTS, POLICIES, WIDTH
from cri_api.printable import printable
from tests.cluster.api_server import ApiServer, Fault, certificates
from tests.peers.programs import Unavailable, find

ROOT = Path(__file__).parents[2]
WELL = [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False"}]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Plugin:
    """``await plugin("top")``: a process of its own, as kubectl starts it."""

    def __init__(self, kubeconfig: Path, kubectl: Path) -> None:
        self._environment = {
            "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(kubeconfig.parent),
            "PYTHONPATH": str(ROOT),
        }

    async def __call__(self, *words: str, **environment: str) -> Ended:
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cluster.kubectl", *words),
            env={**self._environment, **environment},
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


@pytest.fixture(scope="session")
def kubectl() -> Path:
    try:
        return find("kubectl")["kubectl"]
    except Unavailable as reason:
        pytest.skip(f"The plugin asks kubectl: {reason}.")


@pytest.fixture
def plugin(server: ApiServer, tmp_path: Path, kubectl: Path) -> Plugin:
    return Plugin(server.kubeconfig(tmp_path / "kubeconfig"), kubectl)


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


async def test_top_has_one_line_a_node_and_shows_those_that_are_not_well_first(server, plugin) -> None:
    server.put(PLACEMENTS, node_placement("a", placements=[container("web-0")]))
    server.put(PLACEMENTS, node_placement("z", conditions=[{"type": "Ready", "status": "False"}]))
    ended = await plugin("top")
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in lines] == ["NODE", "z", "a"]
    assert lines[2].split()[1:] == ["True", "False", "enforce", "1", "7.5/62", "4", "default", "Applied"]
    assert max(map(len, lines)) <= WIDTH


BROKEN = {
    'status.zones[0].exclusiveCpus is "0-999999999", expected CPUs such as 0-3,8': (
        "top",
        {"zones": [{"exclusiveCpus": "0-999999999"}]},
    ),
    "status.conditions[0] has no type, expected one": ("top", {"conditions": [{}]}),
    "status.placements[0] is a list of 0, expected a mapping": ("placements", {"placements": [[]]}),
    "status.doctor.problems[0].hint is 5, expected a text": (
        "doctor",
        {"doctor": {"problems": [{"hint": 5}]}},
    ),
    "status.affinityGroups[0].members is 5, expected a list": (
        "explain",
        {"affinityGroups": [{"members": 5}]},
    ),
}


@pytest.mark.parametrize("sentence", BROKEN)
async def test_a_node_that_cannot_be_read_is_named_and_the_others_are_shown(
    server, plugin, sentence: str
) -> None:
    command, status = BROKEN[sentence]
    server.put(PLACEMENTS, node_placement("bad", **status))
    server.put(PLACEMENTS, node_placement("good", placements=[container("web-0")]))
    words = ("explain", "web-0", "-n", "shop") if command == "explain" else (command,)
    ended = await plugin(*words)
    if command == "doctor":
        assert sentence in " ".join(ended.out.split())
        assert (ended.code, ended.err) == (1, "")
        assert ended.out.endswith("1 of 2 nodes are well\n")
    else:
        said = f"warning: bad is left out, as its NodePlacement cannot be read: {sentence}\n"
        assert (ended.code, ended.err) == (0, said)
        assert "good" in ended.out


async def test_a_node_whose_agent_has_written_nothing_is_shown(server, plugin) -> None:
    server.put(PLACEMENTS, {"metadata": {"name": "new"}})
    assert (await plugin("top")).out.splitlines()[1].split()[:4] == ["new", "Unknown", "Unknown", "-"]
    ended = await plugin("doctor")
    assert ended.code == 1
    assert "its agent has written nothing" in ended.out


async def test_placements_are_those_of_the_namespace_that_is_named(server, plugin) -> None:
    rows = [container("web-0"), container("other", namespace="else")]
    server.put(PLACEMENTS, node_placement("a", placements=rows))
    assert len((await plugin("placements")).out.splitlines()) == 3
    ended = await plugin("placements", "-n", "shop", "-o", "json")
    assert json.loads(ended.out) == [{"node": "a", **rows[0]}]


async def test_many_nodes_are_read_page_by_page(server, plugin) -> None:
    for number in range(2 * PAGE + 1):
        server.put(PLACEMENTS, node_placement(f"n{number}"))
    assert len(json.loads((await plugin("top", "-o", "json")).out)) == 2 * PAGE + 1
    assert len(server.calls) == 3


async def test_explain_says_why_and_with_what_a_container_talks(server, plugin) -> None:
    members = [{"namespace": "shop", "pod": pod, "container": "main"} for pod in ("web-0", "db-0")]
    group = {
        "members": members,
        "bytesPerSecond": 5_000_000,
        "together": False,
        "whyNot": "no room in numa-0",
    }
    rows = [container("web-0", exclusive=True), container("web-0", "side"), container("db-0")]
    server.put(PLACEMENTS, node_placement("a", placements=rows, affinityGroups=[group]))
    ended = await plugin("explain", "web-0", "-n", "shop", "-c", "main")
    assert ended.code == 0, ended.err
    for said in ("shop/web-0/main", "4-7 (exclusive)", "smallest L3 with room", "shop/db-0/main"):
        assert said in ended.out
    assert "no room in numa-0" in " ".join(ended.out.split())
    assert "side" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= WIDTH


@pytest.mark.parametrize("zone", ["numa-3", "node-3"], ids=["an agent of today", "an older agent"])
async def test_explain_names_a_numa_node_so_that_it_is_no_machine(server, plugin, zone) -> None:
    server.put(PLACEMENTS, node_placement("a", placements=[container("web-0", level="numa", zone=zone)]))
    ended = await plugin("explain", "web-0", "-n", "shop")
    assert "place       numa numa-3" in ended.out


async def test_a_pod_that_no_node_tells_of_is_a_sentence(server, plugin) -> None:
    server.put(PLACEMENTS, node_placement("a"))
    ended = await plugin("explain", "gone", "-n", "shop")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: no node tells of shop/gone")


async def test_doctor_tells_conditions_refused_policies_and_findings(server, plugin) -> None:
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


async def test_doctor_of_nodes_that_are_well_exits_with_0(server, plugin) -> None:
    server.put(PLACEMENTS, node_placement("good"))
    assert await plugin("doctor") == Ended(0, "1 of 1 nodes are well\n", "")


# --- rollout


def policy(name: str, config: Any, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"config": config}, "status": status}


async def test_rollout_has_a_line_a_policy_and_one_for_all_nodes_that_are_alike(server, plugin) -> None:
    config = {"relay": {"mode": "enforce"}, "placement": {"memory": "off"}}
    counts = {"desired": 40, "updated": 4, "ready": 3, "degraded": 0}
    why = "n9 is not changed before it is well: the disk is full"
    server.put(POLICIES, policy("over", config, **counts, phase="Waiting", message=why))
    server.put(POLICIES, policy("young", {}))
    origin = "cluster policy over (generation 1)"
    for number in range(12):
        new = {"mode": "observe", "modeFrom": "default of the install", "policy": {"state": "None"}}
        done = {"mode": "enforce", "modeFrom": origin, "policy": {"name": "over", "state": "Applied"}}
        server.put(PLACEMENTS, node_placement(f"n{number:02}", **(new if number > 1 else done)))
    ended = await plugin("rollout")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "POLICY  MODE     MEMORY  UPDATED  READY  DEGRADED  PHASE",
        "over    enforce  off     4/40     3      0         Waiting",
        "young   -        -       0/0      0      0         -",
        "",
        f"over: {why}",
        "",
        "NODES  MODE     FROM                                POLICY",
        "10     observe  default of the install              -",
        "       n02, n03, n04, n05, n06, n07, n08, n09 and 2 more",
        f"2      enforce  {origin}  over Applied",
        "       n00, n01",
    ]
    told = json.loads((await plugin("rollout", "-o", "json", "--node", "n01")).out)
    assert [row["policy"] for row in told["policies"]] == ["over", "young"]
    assert [row["modeFrom"] for row in told["nodes"]] == [origin]


async def test_rollout_of_a_cluster_without_any_says_so(server, plugin) -> None:
    ended = await plugin("rollout")
    assert ended == Ended(0, "no PlacementPolicy\n\nno node has a NodePlacement\n", "")


async def test_rollout_names_what_cannot_be_read_and_shows_the_others(server, plugin) -> None:
    server.put(POLICIES, policy("bad\x1b[2J", {"relay": "enforce"}))
    server.put(PLACEMENTS, node_placement("a", mode={"not": "a text"}))
    server.put(PLACEMENTS, node_placement("b", modeFrom="\x1b]0;title\x07"))
    ended = await plugin("rollout")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "cannot be read: spec.config.relay is" in ended.out
    assert "a cannot be read: status.mode is" in ended.out
    assert "\n       b\n" in ended.out


# --- what is missing


async def test_a_cluster_without_the_crds_is_told_how_to_get_them(server, plugin) -> None:
    server.missing.add("nodeplacements")
    ended = await plugin("top")
    assert ended.code == 1
    assert "does not know NodePlacements: kubectl apply -k packaging/cluster/crds" in ended.err


async def test_a_node_without_a_nodeplacement_is_named(server, plugin) -> None:
    server.put(PLACEMENTS, node_placement("a"))
    ended = await plugin("top", "--node", "a", "--node", "b")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        'error: nodeplacements.cri-resmgr.io "b" not found; the nodes that have one: kubectl get nodeplacements\n'
    )


async def test_a_missing_right_is_named(server, plugin) -> None:
    server.refuse = lambda call: 'User "eve" cannot list resource "nodeplacements"'
    sentence = 'Error from server (Forbidden): User "eve" cannot list resource "nodeplacements"\n'
    assert await plugin("top") == Ended(1, "", sentence)


async def test_a_server_that_is_away_is_a_sentence(server, plugin) -> None:
    await server.stop()
    ended = await plugin("top")
    assert ended.code == 1
    assert ended.err.startswith(f"The connection to the server 127.0.0.1:{server.port} was refused")
    assert ended.err.count("\n") == 1


async def test_a_list_whose_version_is_forgotten_is_read_once_more(server, plugin) -> None:
    for number in range(PAGE + 1):
        server.put(PLACEMENTS, node_placement(f"n{number}"))
    running = asyncio.ensure_future(plugin("top", "-o", "json"))
    await server.called(lambda call: True)
    server.touch()
    server.compact()
    assert len(json.loads((await running).out)) == PAGE + 1
    assert [bool(call.query.get("continue")) for call in server.calls] == [False, True, False, True]


async def test_kubeconfig_and_context_are_handed_on(server, plugin, tmp_path) -> None:
    server.put(PLACEMENTS, node_placement("a"))
    none, other = str(tmp_path / "none"), str(server.kubeconfig(tmp_path / "other"))
    ended = await plugin("top", "--kubeconfig", none)
    assert ended == Ended(1, "", f"error: stat {none}: no such file or directory\n")
    assert (await plugin("top", KUBECONFIG=none)).code == 1
    assert (await plugin("top", "--kubeconfig", other, "--context", "test", KUBECONFIG=none)).code == 0
    assert await plugin("top", "--context", "no") == Ended(1, "", 'error: context "no" does not exist\n')


async def test_a_login_by_a_program_works_and_what_that_says_is_shown(plugin, tmp_path) -> None:
    certificate, key = certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = json.dumps({**credential, "status": {"token": "of the program"}})
    async with ApiServer(context) as server:
        server.put(PLACEMENTS, node_placement("a"))
        server.tokens = {"of the program"}
        config = json.loads(server.kubeconfig(tmp_path / "exec", ca_file=str(certificate)).read_text())
        config["users"][0]["user"]["exec"] = {
            "apiVersion": credential["apiVersion"],
            "command": "sh",
            "args": ["-c", f"echo go to https://login.example >&2; echo '{answer}'"],
            "interactiveMode": "Never",
        }
        del config["users"][0]["user"]["token"]
        (tmp_path / "exec").write_text(json.dumps(config))
        ended = await plugin("top", "--kubeconfig", str(tmp_path / "exec"))
    assert (ended.code, ended.err) == (0, "go to https://login.example\n")


async def test_without_a_kubectl_the_plugin_says_so(plugin, tmp_path) -> None:
    ended = await plugin("top", PATH=str(tmp_path))
    assert ended == Ended(
        1, "", "error: there is no kubectl in $PATH, by which this command asks the API server\n"
    )


#: What a node's token may write into its status, and a terminal would take as commands.
FOREIGN = "\x1b[31m\x1b]0;x\x07\x9b2J\r\n5 of 5 nodes are well\u202e"


def hostile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return value + FOREIGN if isinstance(value, str) else value


@pytest.mark.parametrize(
    "words",
    [
        ("top",),
        ("placements",),
        ("explain", f"web-0{FOREIGN}", "-n", f"shop{FOREIGN}"),
        ("doctor",),
        ("rollout",),
        ("claims",),
    ],
)
async def test_a_nodes_words_are_shown_and_no_terminal_obeys_them(words, server, plugin) -> None:
    group = {"members": [{"namespace": "shop", "pod": "web-0", "container": "main"}], "whyNot": "no room"}
    problem = {"severity": "error", "check": "disk", "message": "it is full", "hint": "df"}
    of_node = node_placement(
        "a", placements=[container("web-0")], affinityGroups=[group], doctor={"problems": [problem]}
    )
    zones = of_node["status"].pop("zones")  # what is no list of CPUs is a sentence of its own
    server.put(
        PLACEMENTS, {"metadata": {"name": "a"}, "status": {**hostile(of_node["status"]), "zones": zones}}
    )
    server.put(CLAIMS, claim("cpus", f"a{FOREIGN}", result(f"l3-0{FOREIGN}", "4", pool=f"a{FOREIGN}")))
    told = [printable(word) for word in words]
    ended = await plugin(*told)
    assert "Traceback" not in ended.err
    assert "\\x1b[31m" in ended.out
    assert all(line.isprintable() for line in (ended.out + ended.err).split("\n")), ended
    assert not any(line.startswith("5 of 5") for line in ended.out.split("\n"))
    json.loads((await plugin(*told, "-o", "json")).out)


@pytest.mark.parametrize("words", [("top",), ("explain", "web-0"), ("doctor",)], ids="-".join)
@pytest.mark.parametrize("given", [(), ("--kubeconfig", "/nope"), ("--context", "nope")], ids="-".join)
async def test_without_a_cluster_it_says_what_kubectl_says(words, given, plugin, kubectl, tmp_path) -> None:
    environment = {"KUBECONFIG": str(tmp_path / "none")}
    command = [str(kubectl), "get", "--raw", "/apis", *given]
    said = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stderr
    assert await plugin(*words, *given, **environment) == Ended(1, "", said.stderr)


async def test_what_is_no_api_server_is_a_sentence(plugin, tmp_path) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho '<html>log in</html>'\n")
    program.chmod(0o755)
    ended = await plugin("top", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (ended.code, ended.out, "Traceback" in ended.err) == (1, "", False)
    assert "is no JSON object: does the kubeconfig name an API server?" in ended.err


async def test_the_namespace_of_the_context_is_that_of_a_pod(server, plugin, tmp_path) -> None:
    server.put(PLACEMENTS, node_placement("a", placements=[container("web-0")]))
    config = json.loads(server.kubeconfig(tmp_path / "shop").read_text())
    config["contexts"][0]["context"]["namespace"] = "shop"
    (tmp_path / "shop").write_text(json.dumps(config))
    assert (await plugin("explain", "web-0", "--kubeconfig", str(tmp_path / "shop"))).code == 0
    assert "no node tells of default/web-0" in (await plugin("explain", "web-0")).err


async def test_a_server_error_is_not_a_traceback(server, plugin) -> None:
    server.faults.append(Fault("refuse", status=500))
    ended = await plugin("top")
    assert (ended.code, "Traceback" in ended.err) == (1, False)


async def test_help_names_every_command(plugin) -> None:
    ended = await plugin("--help")
    assert ended.code == 0
    for command in ("top", "placements", "explain", "claims", "rollout", "doctor"):
        assert command in ended.out


# --- advice


def advised(name: str, target: str, weight: int) -> dict[str, Any]:
    parts = {"term": {"weight": weight}, "apart": {"weight": 9}, "spread": {"maxSkew": 2}}
    follower = {"kind": "Deployment", "namespace": "shop", "name": "web", **parts}
    owner = {"kind": "StatefulSet", "namespace": "shop", "name": target}
    status = {"target": owner, "followers": [follower], "remoteBytesPerSecond": 5_000_000}
    return {"metadata": {"name": name}, "status": status}


async def test_advice_is_a_line_each_and_one_patch_for_each_owner_with_all_its_terms(server, plugin) -> None:
    server.put(ADVICES, advised("a", "db", 100))
    server.put(ADVICES, advised("b", "cache", 40))
    server.put(ADVICES, {"metadata": {"name": "c"}, "status": {"followers": "x"}})
    ended = await plugin("advice")
    assert (ended.code, ended.err.count("c is left out, as its AffinityAdvice cannot be read")) == (0, 1)
    assert [line.split()[:3] for line in ended.out.splitlines()[1:]] == [
        ["a", "shop/web", "shop/db"],
        ["b", "shop/web", "shop/cache"],
    ]
    ended = await plugin("advice", "--patch")
    [line] = ended.out.splitlines()
    words = shlex.split(line)
    assert words[:6] == ["kubectl", "-n", "shop", "patch", "deployment", "web"]
    spec = json.loads(words[-1])["spec"]["template"]["spec"]
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    assert spec == {
        "affinity": {
            "podAffinity": {preferred: [{"weight": 100}, {"weight": 40}]},
            "podAntiAffinity": {preferred: [{"weight": 9}]},
        },
        "topologySpreadConstraints": [{"maxSkew": 2}],
    }


# --- claims


def result(device: str, cpus: Any = None, **more: Any) -> dict[str, Any]:
    """What a claim has of a device of node a; ``cpus`` None: all of it."""
    consumed = {} if cpus is None else {"consumedCapacity": {"cpu": cpus}}
    return {"driver": "cpu.cri-resmgr.io", "pool": "a", "device": device, "request": "r", **consumed, **more}


def claim(
    name: str, pod: str = "", *results: dict[str, Any], of: str = "l3.cpu.cri-resmgr.io"
) -> dict[str, Any]:
    requests = [{"name": "r", "exactly": {"deviceClassName": of}}]
    status = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    reserved = {"reservedFor": [{"resource": "pods", "name": pod, "uid": "u"}]} if pod else {}
    metadata = {"name": name, "namespace": "shop"}
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
        "status": {**status, **reserved},
    }


async def test_claims_have_a_line_each_and_those_that_wait_come_first(server, plugin) -> None:
    for found in (
        claim("shared", "web-0", result("l3-0", "4")),
        claim("two", "db-0", result("l3-0", "2"), result("l3-1", "3000m")),
        claim("all", "big-0", result("l3-2-whole", pool="b")),
        claim("later"),
        claim("mixed", "nic-0", result("nic-0", driver="nic.example.com"), result("l3-3", 1)),
        claim("nic", "nic-0", result("nic-0", driver="nic.example.com"), of="nic.example.com"),
        claim("nic-later", of="nic.example.com"),
    ):
        server.put(CLAIMS, found)
    ended = await plugin("claims")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["NAMESPACE", "CLAIM", "NODE", "DEVICES", "CPUS", "PODS"],
        ["shop", "later", "waits", "-", "-", "-"],
        ["shop", "mixed", "a", "l3-3", "1", "nic-0"],
        ["shop", "shared", "a", "l3-0", "4", "web-0"],
        ["shop", "two", "a", "l3-0,l3-1", "5", "db-0"],
        ["shop", "all", "b", "l3-2-whole", "whole", "big-0"],
    ]
    assert [
        row["claim"] for row in json.loads((await plugin("claims", "--node", "b", "-o", "json")).out)
    ] == ["all"]
    assert len((await plugin("claims", "-n", "else")).out.splitlines()) == 1
    assert "nic-0" in (await plugin("claims", "--driver", "nic.example.com")).out


async def test_a_claim_that_cannot_be_read_is_named_and_the_others_are_shown(server, plugin) -> None:
    server.put(CLAIMS, claim("bad", "web-0", result("l3-0", "500m")))
    server.put(CLAIMS, claim("good", "web-0", result("l3-0", "4")))
    ended = await plugin("claims")
    sentence = 'consumedCapacity.cpu is "500m", expected a whole number of CPUs'
    assert ended.code == 0
    assert "warning: bad is left out, as its ResourceClaim cannot be read: " in ended.err
    assert sentence in ended.err
    assert "good" in ended.out


async def test_a_cluster_without_resource_claims_is_told_which_has_them(server, plugin) -> None:
    server.missing.add("resourceclaims")
    ended = await plugin("claims")
    assert (ended.code, ended.out) == (1, "")
    assert "Kubernetes 1.34 or later" in ended.err
