"""Our DaemonSets as they are applied, in pods of a real kubelet: what they do, and that their end changes no host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api.names import AGENT, NAMESPACE
from cri_proxy import machine_root
from policies.machine.topology_json import write_topology
from tests.agent import ROOT
from tests.cluster.real.parts import POLICIES, policy
from tests.cluster.real.whole import NODE, PODS, WholeCluster, until
from tests.e2e.image import ARCHIVE, build
from tests.e2e.node import ONE_NODE
from tests.kubelet.real.node import static_pod

pytestmark = pytest.mark.cluster

DAEMON, OPERATOR_POD = "cri-resmgr-standalone", "cri-resmgr-operator"
FOLDER = "standalone"


@pytest.fixture(scope="module")
def archive(cluster_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    build(dist)
    return dist / ARCHIVE


@pytest.fixture(scope="module")
def cluster(cluster_programs: dict[str, Path], archive: Path) -> Iterator[WholeCluster]:
    with WholeCluster(cluster_programs, archive) as running:
        yield running


@pytest.fixture(scope="module")
def applied(cluster: WholeCluster) -> WholeCluster:
    """The cluster with all that one command applies, ready."""
    apply(cluster)
    return cluster


@pytest.fixture(autouse=True)
def no_pods_of_people(cluster: WholeCluster) -> Iterator[None]:
    """Every test begins without."""
    yield
    cluster.remove_people()


def apply(cluster: WholeCluster) -> None:
    cluster.kubectl.run("apply", "-f", str(cluster.written(FOLDER)))
    for app in (DAEMON, AGENT, OPERATOR_POD):
        cluster.ready_pod(app)


def placed(cluster: WholeCluster, name: str) -> str:
    """The id of the container of a new pod, once it has one CPU: each is an L3, and a quarter of one is wanted."""
    container = cluster.run(name, limit="250m")
    until(lambda: cluster.containerd.cpuset_of(container)[0], lambda cpus: cpus in ("0", "1"))
    return container


def evict(cluster: WholeCluster, pod: dict[str, Any]) -> None:
    """As `kubectl drain` and the descheduler do."""
    metadata = {"name": pod["metadata"]["name"], "namespace": NAMESPACE}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    cluster.api.ask("POST", f"{PODS.format(NAMESPACE)}/{metadata['name']}/eviction", eviction)


def update(cluster: WholeCluster, pod: dict[str, Any]) -> None:
    """A rolling update: another environment."""
    cluster.kubectl.run("-n", NAMESPACE, "set", "env", f"daemonset/{DAEMON}", "NEWS=1")
    cluster.kubectl.run("-n", NAMESPACE, "rollout", "status", f"daemonset/{DAEMON}", "--timeout=120s")


def test_one_command_runs_our_image_in_pods_that_place_and_tell(applied: WholeCluster) -> None:
    for app in (DAEMON, AGENT, OPERATOR_POD):
        statuses = applied.ready_pod(app)["status"]["containerStatuses"]
        assert {status["imageID"] for status in statuses} == {applied.image_id()}
    container = placed(applied, "one")
    row = until(lambda: applied.rows().get("one"))
    assert row is not None
    assert (row["cpus"], row["state"]) == (applied.containerd.cpuset_of(container)[0], "managed")
    assert applied.node_placement()["status"]["frontEnd"] == "standalone"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(update, id="rolling update"),
        pytest.param(evict, id="eviction", marks=pytest.mark.long),
    ],
)
def test_a_pod_of_the_daemon_that_is_replaced_changes_no_host(applied: WholeCluster, change: Any) -> None:
    kept = placed(applied, "kept")
    old = applied.ready_pod(DAEMON)
    before = applied.state_of_host(kept)
    change(applied, old)
    new = applied.ready_pod(DAEMON, but=old["metadata"]["uid"])
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    # The daemon in the new pod is at work, and has taken over what the old one had placed.
    placed(applied, "young")
    until(lambda: set(applied.rows()), lambda pods: pods == {"kept", "young"})
    assert applied.rows()["kept"]["state"] == "managed"
    assert applied.state_of_host(kept) == before


@pytest.mark.long
def test_an_agent_is_given_a_folder_that_was_made_anew(applied: WholeCluster) -> None:
    # As the removal of a package that ran on the host leaves it, and its next installation.
    before = applied.ready_pod(AGENT)
    applied.kubectl.run("-n", NAMESPACE, "delete", "daemonset", DAEMON)
    until(lambda: not applied.all_pods(DAEMON))
    shutil.rmtree(applied.on_host("/run/cri-resmgr"))
    until(lambda: applied.condition("Ready"), lambda status: status == "False")
    apply(applied)
    until(lambda: applied.condition("Ready"), lambda status: status == "True")

    # The half that commands looks twice a minute.
    def restarts() -> list[int]:
        return [status["restartCount"] for status in applied.pods(AGENT)[0]["status"]["containerStatuses"]]

    until(restarts, lambda counts: counts == [1, 1])
    assert applied.ready_pod(AGENT)["metadata"]["uid"] == before["metadata"]["uid"]


def test_deleting_everything_without_an_uninstall_changes_no_host(applied: WholeCluster) -> None:
    kept = placed(applied, "kept")
    before = applied.state_of_host(kept)
    applied.kubectl.run("delete", "-f", str(applied.written(FOLDER)))
    until(lambda: not applied.our_containers())
    assert applied.state_of_host(kept) == before
    assert applied.is_kubelet_well()
    # 2. Kubelet and the runtime run pods as they did before us: anywhere.
    free = applied.run("free", limit="250m")
    assert applied.containerd.cpuset_of(free)[0] in ("", applied.all_cpus())
    # 3. What stays is what docs/cluster.md says.
    left = {str(path.relative_to(applied.host.root)) for path in applied.own_folders()}
    assert left == {"run/cri-resmgr", "var/lib/cri-resmgr", "var/lib/cri-resmgr-agent"}


@pytest.mark.long
def test_containers_have_all_cpus_again_where_the_daemon_was_told_to_release_them(
    cluster: WholeCluster,
) -> None:
    apply(cluster)
    kept = placed(cluster, "kept")
    pod = cluster.ready_pod(DAEMON)
    daemon = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    cluster.containerd.ctr(
        "tasks", "exec", "--exec-id", "release", daemon, "/usr/bin/cri-resmgr", "release", "--all"
    )
    until(lambda: cluster.containerd.allowed_of(kept)[0], lambda cpus: cpus == cluster.all_cpus())
    cluster.kubectl.run("delete", "-f", str(cluster.written(FOLDER)))
    until(lambda: not cluster.our_containers())
    assert cluster.containerd.allowed_of(kept)[0] == cluster.all_cpus()


def test_the_label_of_a_proxy_node_alone_keeps_the_daemon_in_a_pod_off(cluster: WholeCluster) -> None:
    cluster.kubectl.run("label", "node", NODE, "cri-resmgr.io/front-end=proxy")
    try:
        cluster.kubectl.run("apply", "-f", str(cluster.written(FOLDER)))
        cluster.ready_pod(AGENT)
        assert not cluster.all_pods(DAEMON)
    finally:
        cluster.kubectl.run("label", "node", NODE, "cri-resmgr.io/front-end-")
        cluster.kubectl.run("delete", "-f", str(cluster.written(FOLDER)))
        until(lambda: not cluster.our_containers())


# --- of a new node, and of one that a version before ran on

INSTALLED = "default of the install"


@pytest.fixture
def new_node(cluster: WholeCluster) -> Iterator[WholeCluster]:
    """No version has run on it."""
    for folder in ("/var/lib/cri-resmgr", "/var/lib/cri-resmgr-agent"):
        shutil.rmtree(cluster.on_host(folder), ignore_errors=True)
    yield cluster
    cluster.kubectl.run("delete", "--ignore-not-found", "-f", str(cluster.written(FOLDER)))
    until(lambda: not cluster.our_containers())


def until_mode(cluster: WholeCluster, mode: str, origin: str) -> None:
    def told() -> tuple[Any, Any]:
        status = cluster.node_placement().get("status", {})
        return status.get("mode"), status.get("modeFrom")

    until(told, lambda said: said == (mode, origin))


def test_a_new_install_observes_until_a_policy_says_otherwise_and_doctor_has_nothing_against_it(
    new_node: WholeCluster,
) -> None:
    new_node.kubectl.run("apply", "-f", str(new_node.written(FOLDER, mode="")))
    for app in (DAEMON, AGENT, OPERATOR_POD):
        new_node.ready_pod(app)
    until_mode(new_node, "observe", INSTALLED)
    seen = new_node.run("seen", limit="250m")
    until(lambda: new_node.rows().get("seen"))
    assert new_node.containerd.cpuset_of(seen)[0] in ("", new_node.all_cpus())
    # Nothing that kubelet made for the pod is open to every user.
    doctor = until(lambda: new_node.node_placement()["status"].get("doctor"))
    assert "state-mode" not in {problem["check"] for problem in doctor.get("problems", ())}
    # It is brought over, and back.
    wanted = policy("over", {"relay": {"mode": "enforce"}}, abortOn=["Degraded"])
    new_node.api.ask("POST", POLICIES, wanted)
    try:
        until_mode(new_node, "enforce", "cluster policy over (generation 1)")
        placed(new_node, "young")
    finally:
        new_node.api.ask("DELETE", f"{POLICIES}/over")
    until_mode(new_node, "observe", INSTALLED)


def test_an_upgrade_changes_no_mode(new_node: WholeCluster) -> None:
    # 1. As the version before was applied: no mode in the ConfigMap, and a program that knows of no first mode.
    before = new_node.written(FOLDER, mode="", without="--first-mode=observe")
    new_node.kubectl.run("apply", "-f", str(before))
    for app in (DAEMON, AGENT, OPERATOR_POD):
        new_node.ready_pod(app)
    kept = placed(new_node, "kept")
    old = new_node.ready_pod(DAEMON)
    cpus = new_node.containerd.cpuset_of(kept)
    # 2. This one.
    new_node.kubectl.run("apply", "-f", str(new_node.written(FOLDER, mode="")))
    new_node.ready_pod(DAEMON, but=old["metadata"]["uid"])
    until_mode(new_node, "enforce", INSTALLED)
    placed(new_node, "young")
    assert new_node.containerd.cpuset_of(kept) == cpus


# --- claims of CPUs

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@contextlib.contextmanager
def proxy_on_host(cluster: WholeCluster) -> Iterator[None]:
    """The daemon as a package would have it run, in the folders that our pods have of the host, and kubelet behind it."""
    run, config = cluster.on_host("/run/cri-resmgr"), cluster.folder / "proxy.json"
    (run / "view").mkdir(parents=True, exist_ok=True)
    socket = str(run / "cri-resmgr.sock")
    endpoint = str(cluster.containerd.socket)
    settings: dict[str, Any] = {
        "relay": {"socket": socket, "extra_sockets": [], "runtime_endpoint": endpoint, "mode": "enforce"},
        "topology": {"source": str(cluster.folder / "machine.json")},
        "control": {"socket": str(run / "control.sock"), "view_socket": str(run / "view/view.sock")},
        "state": {"directory": str(cluster.on_host("/var/lib/cri-resmgr"))},
        "affinity": {"socket": str(run / "affinity.sock")},
        "nri": {"host": "off"},
        "kubelet": {"directory": str(cluster.on_host("/var/lib/kubelet"))},
        "dra": {"enabled": True},
    }
    config.write_text(json.dumps(settings))
    (cluster.folder / "machine.json").write_text(json.dumps(write_topology(ONE_NODE)))
    # What it has no setting for is below its root: CDI files.
    root = cluster.folder / "proxy"
    (root / "var" / "run").mkdir(parents=True)
    (root / "var" / "run" / "cdi").symlink_to(cluster.on_host("/var/run/cdi"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), machine_root.VARIABLE: str(root)}
    with (cluster.folder / "proxy.log").open("wb") as log:
        command = (sys.executable, "-m", "cri_proxy", "run", "--config", str(config))
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=cluster.folder)
    try:
        until(Path(socket).exists)
        cluster.point_kubelet_at(socket)
        yield
    finally:
        print((cluster.folder / "proxy.log").read_text()[-6000:])
        cluster.point_kubelet_at(endpoint)
        daemon.terminate()
        daemon.wait()


@pytest.fixture(params=["standalone", "nri", pytest.param("proxy", marks=pytest.mark.long)])
def claims(cluster: WholeCluster, request: pytest.FixtureRequest) -> Iterator[WholeCluster]:
    """The cluster with the folder for claims of each front end applied.

    Mount points in a folder that pods see read-only are there.
    """
    (cluster.on_host("/var/lib/kubelet") / "plugins_registry").mkdir(exist_ok=True)
    file = cluster.written(f"dra/{request.param}")
    on_host = proxy_on_host(cluster) if request.param == "proxy" else contextlib.nullcontext()
    in_pods = [] if request.param == "proxy" else [f"cri-resmgr-{request.param}"]
    with on_host:
        cluster.kubectl.run("apply", "-f", str(file))
        for app in (*in_pods, AGENT, OPERATOR_POD):
            cluster.ready_pod(app)
        yield cluster
        cluster.remove_people()
        cluster.kubectl.run("delete", "-f", str(file))
        until(lambda: not cluster.our_containers())


def test_a_pod_has_the_cpu_that_it_claims_and_gives_it_back(claims: WholeCluster) -> None:
    # 1. The driver of the agent in its pod has registered, and tells what the node has: each CPU is an L3.
    def devices() -> set[str]:
        items = claims.api.ask("GET", SLICES)["items"]
        return {device["name"] for one in items for device in one["spec"].get("devices", ())}

    until(devices, lambda names: {"l3-0", "l3-1"} <= names)
    # 2. A pod is scheduled, prepared and placed.
    asked = {"deviceClassName": "l3.cpu.cri-resmgr.io", "capacity": {"requests": {"cpu": "1"}}}
    spec = {"devices": {"requests": [{"name": "cpu", "exactly": asked}]}}
    claims.api.ask("POST", TEMPLATES, {"metadata": {"name": "one"}, "spec": {"spec": spec}})
    pod = static_pod("claims", resources={"claims": [{"name": "cpu"}]})
    pod["spec"]["resourceClaims"] = [{"name": "cpu", "resourceClaimTemplateName": "one"}]
    claims.api.ask("POST", PODS.format("default"), pod)
    container = until(lambda: claims.container("claims"))
    told = claims.kubectl.run("cri_resmgr", "claims", "-o", "json")
    [claim] = json.loads(told)
    cpu = claim["devices"][0].partition("-")[2].partition("-")[0]
    until(lambda: claims.containerd.cpuset_of(container)[0], lambda cpus: cpus == cpu)
    assert (claim["node"], claim["cpus"], claim["pods"]) == (NODE, 1, ["claims"])
    other = claims.run("other", limit="250m")
    until(lambda: claims.containerd.cpuset_of(other)[0], lambda cpus: cpus in ("0", "1") and cpus != cpu)
    # 3. Its end.
    assert list(claims.on_host("/var/run/cdi").glob("cri-resmgr.io-cpu-*.json"))
    claims.remove_people()
    until(lambda: not list(claims.on_host("/var/run/cdi").glob("cri-resmgr.io-cpu-*.json")))
    claims.api.ask("DELETE", f"{TEMPLATES}/one")
