"""What each pod may do and sees of its host: a table of all of them, held against what is rendered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.agent.__main__ import _arguments
from tests.cluster.manifests.rendered import pod_of, workloads

RUN, VIEW, STATE = "/run/cri-resmgr", "/run/cri-resmgr/view", "/var/lib/cri-resmgr"
AGENT = "/var/lib/cri-resmgr-agent"
RUNTIME, CGROUP, KUBELET, NRI = "/run/containerd", "/sys/fs/cgroup", "/var/lib/kubelet", "/run/nri"
OBSERVER_MAY = ["DAC_READ_SEARCH", "SYS_PTRACE", "SYS_ADMIN", "NET_ADMIN", "SYS_RESOURCE", "SETPCAP"]


@dataclass(frozen=True)
class Pod:
    """What a pod is expected to be; ``mounts``: folders of the host by container, ``ro:`` those it cannot write to."""

    folder: str
    name: str
    account: str
    mounts: dict[str, set[str]]
    has_token: bool = False
    host_pid: bool = False
    user: int = 0
    adds: tuple[str, ...] = ()


PODS = [
    Pod("base/nri", "cri-resmgr-nri", "cri-resmgr-node",
        {"nri": {NRI, RUNTIME, RUN, STATE, CGROUP, f"ro:{KUBELET}"}}, host_pid=True),
    Pod("base/standalone", "cri-resmgr-standalone", "cri-resmgr-node",
        {"standalone": {RUNTIME, RUN, STATE, CGROUP, f"ro:{KUBELET}"}}, host_pid=True),
    Pod("base/observer", "cri-resmgr-observer", "cri-resmgr-node",
        {"observer": {RUNTIME, RUN, STATE, CGROUP}}, host_pid=True, adds=tuple(OBSERVER_MAY)),
    Pod("base/agent", "cri-resmgr-agent", "cri-resmgr-agent",
        {"report": {VIEW}, "command": {RUN, AGENT}}, has_token=True),
    Pod("base/operator", "cri-resmgr-operator", "cri-resmgr-operator", {"operator": set()}, has_token=True, user=65532),
]  # fmt: skip
EACH = pytest.mark.parametrize("pod", PODS, ids=lambda pod: str(pod.folder))


def spec_of(pod: Pod) -> dict[str, Any]:
    found = workloads(pod.folder)
    assert list(found) == [pod.name]
    return pod_of(found[pod.name])


def seen(spec: dict[str, Any], container: dict[str, Any]) -> set[str]:
    """The host's folders that a container sees."""
    folders = {one["name"]: one["hostPath"]["path"] for one in spec.get("volumes", ()) if "hostPath" in one}
    mounts = [one for one in container.get("volumeMounts", ()) if one["name"] in folders]
    return {("ro:" if one.get("readOnly") else "") + folders[one["name"]] for one in mounts}


@EACH
def test_no_container_is_privileged_and_each_has_only_the_listed_capabilities(pod: Pod) -> None:
    for container in spec_of(pod)["containers"]:
        security = container["securityContext"]
        assert security["privileged"] is False
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert tuple(security["capabilities"].get("add", ())) == pod.adds


@EACH
def test_the_root_is_read_only_and_seccomp_is_the_runtimes_default(pod: Pod) -> None:
    spec = spec_of(pod)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "seccompProfile" not in container["securityContext"]


@EACH
def test_the_host_is_seen_only_where_the_table_says_so(pod: Pod) -> None:
    spec = spec_of(pod)
    assert {one["name"]: seen(spec, one) for one in spec["containers"]} == pod.mounts
    assert spec.get("hostPID", False) is pod.host_pid
    assert not spec.get("hostIPC") and not spec.get("hostNetwork")


@EACH
def test_folders_of_the_host_are_mounted_and_never_a_file(pod: Pod) -> None:
    volumes = [one["hostPath"] for one in spec_of(pod).get("volumes", ()) if "hostPath" in one]
    assert {one["type"] for one in volumes} <= {"Directory", "DirectoryOrCreate"}
    mounts = [mount for one in spec_of(pod)["containers"] for mount in one.get("volumeMounts", ())]
    assert not any("subPath" in mount for mount in mounts)


@EACH
def test_only_what_talks_to_the_api_server_has_a_token(pod: Pod) -> None:
    spec = spec_of(pod)
    assert spec["serviceAccountName"] == pod.account
    assert spec["automountServiceAccountToken"] is pod.has_token
    assert spec["securityContext"]["runAsUser"] == pod.user
    assert spec["securityContext"].get("runAsNonRoot", False) is (pod.user != 0)


@EACH
def test_every_container_has_requests_and_a_limit_of_memory(pod: Pod) -> None:
    for container in spec_of(pod)["containers"]:
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        # No limit of CPU: it would be a quota, and slow down what is to be fast.
        assert set(container["resources"]["limits"]) == {"memory"}


@EACH
def test_what_a_node_needs_runs_on_every_node_and_is_the_last_to_be_evicted(pod: Pod) -> None:
    spec = spec_of(pod)
    if pod.name == "cri-resmgr-operator":
        assert spec["priorityClassName"] == "system-cluster-critical"
    else:
        assert spec["priorityClassName"] == "system-node-critical"
        assert spec["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("pod", [pod for pod in PODS if "operator" not in pod.name], ids=lambda pod: pod.name)
def test_an_update_takes_one_node_at_a_time(pod: Pod) -> None:
    strategy = workloads(pod.folder)[pod.name]["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


@pytest.mark.parametrize("front_end", ["nri", "standalone"])
def test_a_front_end_stays_away_from_nodes_of_another_and_from_installed_ones(front_end: str) -> None:
    spec = spec_of(next(pod for pod in PODS if pod.folder == f"base/{front_end}"))
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    absent = {"key": "cri-resmgr.io/installed", "operator": "DoesNotExist"}
    assert [term["matchExpressions"] for term in affinity["nodeSelectorTerms"]] == [
        [{"key": "cri-resmgr.io/front-end", "operator": "In", "values": [front_end]}, absent],
        [{"key": "cri-resmgr.io/front-end", "operator": "DoesNotExist"}, absent],
    ]


CDI, PLUGINS, REGISTRY = "/var/run/cdi", f"{KUBELET}/plugins", f"{KUBELET}/plugins_registry"


@pytest.mark.parametrize("front_end", ["nri", "standalone", "proxy"])
def test_with_dra_the_commanding_half_serves_kubelet_and_the_daemon_names_devices(front_end: str) -> None:
    before, after = workloads(front_end), workloads(f"dra/{front_end}")
    assert before.keys() == after.keys()
    added = {
        (name, container["name"]): seen(pod_of(one), container) - seen(pod_of(before[name]), old)
        for name, one in after.items()
        for container, old in zip(pod_of(one)["containers"], pod_of(before[name])["containers"])
    }
    expected = {
        ("cri-resmgr-agent", "command"): {f"ro:{KUBELET}", PLUGINS, REGISTRY},
        (f"cri-resmgr-{front_end}", front_end): {CDI},
    }
    assert {key: folders for key, folders in added.items() if folders} == {
        key: folders for key, folders in expected.items() if key[0] in after
    }
    kinds = {
        one["hostPath"]["type"]
        for workload in after.values()
        for one in pod_of(workload)["volumes"]
        if "hostPath" in one
    }
    assert kinds <= {"Directory", "DirectoryOrCreate"}


def test_beside_an_installed_proxy_run_the_agent_and_the_operator_only() -> None:
    assert set(workloads("proxy")) == {"cri-resmgr-agent", "cri-resmgr-operator"}


@pytest.mark.parametrize("folder", ["nri", "standalone"])
def test_the_daemon_in_a_pod_is_started_and_restarted_by_probes(folder: str) -> None:
    (container,) = spec_of(next(pod for pod in PODS if pod.folder == f"base/{folder}"))["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][-1] == "/run/cri-resmgr/view/view.sock"


def test_the_agents_two_containers_are_told_which_half_each_is() -> None:
    (agent,) = workloads("base/agent").values()
    told = {}
    for container in pod_of(agent)["containers"]:
        *program, module = container["command"][:4]
        assert (program[1:], module) == (["-I", "-m"], "cluster.agent")
        told[container["name"]] = _arguments([*container["command"][4:], *container.get("args", ())])
        probe = container["livenessProbe"]["exec"]["command"]
        assert _arguments(probe[4:]).check_health == told[container["name"]].health_file
    report, command = told["report"], told["command"]
    # The half that reports would else answer a spec with "reports only", beside the half that carries it out.
    assert report.commands_elsewhere and report.control_socket is None
    assert report.view_socket == Path(VIEW, "view.sock")
    assert command.view_socket is None and command.control_socket == Path(RUN, "control.sock")
    assert command.state_dir == Path(AGENT)
