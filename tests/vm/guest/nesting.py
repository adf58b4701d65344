"""Containers that use the cgroups below their own, as docker-in-docker and systemd do, and one beside its own, on v2."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from cri_api import runtime_v1_pb2 as cri
from tests.cri_client import Pod, cgroup_parent, container_config, create_request, pod_config
from tests.vm.guest.installation import SERVICE, run, set_constants
from tests.vm.guest.node import HANDLERS, TASKS, Node, Running, until

MOUNT = Path("/sys/fs/cgroup")
#: As docker-in-docker's entry point: with processes in it a cgroup may not hand controllers down.
_NEST = (
    "own=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); mkdir $own/init; echo $$ > $own/init/cgroup.procs; "
    "echo +cpuset > $own/cgroup.subtree_control; exec sleep 1000000"
)
_SYSTEM = "kubepods-system.slice"
_ROUNDS = "cri_resmgr_resyncs_total{result=ok}"


async def what_containers_do_below_or_beside_their_cgroups_is_no_drift(node: Node) -> None:
    """By runc and crun, by both cgroup drivers; the daemon finds them as they are, nested already."""
    made = await asyncio.gather(*(_nested(node, handler) for handler in HANDLERS))
    # crun keeps a container's processes in a cgroup below its scope; beside that is not beside the container's.
    beside = await node.run("beside", pod=await _pod(node, "beside", "runc"), cpu_limit=1000)
    await until(lambda: [_cgroup(container).name for container in made] == ["init"] * len(made))
    sandbox = _put_beside(beside)
    places = node.places(made)
    await asyncio.to_thread(set_constants, reconcile_interval_s=1, reconcile_poll_s=1)
    try:
        await asyncio.to_thread(run, "systemctl", "restart", SERVICE)
        await _compared(node, 5)
        status = node.ask("status")
        assert [name for name in status["counters"] if "drift" in name] == [], status["counters"]
        assert status["not_bound"] == {"default/beside/beside": f"/{sandbox.relative_to(MOUNT)}"}
        assert [node.row(container)["stance"] for container in made] == ["placed"] * len(made)
        # Another writer changes those that are theirs, with what is below.
        for container in made:
            (_cgroup(container).parent / "cpuset.cpus").write_text(f"0-{node.shape.cpus - 1}")
        await until(lambda: node.places(made), lambda found: found == places)
        await until(
            lambda: node.ask("status")["counters"].get("cri_resmgr_drift_total{result=repaired}") == len(made)
        )
        print({handler: str(_cgroup(container)) for handler, container in zip(HANDLERS, made)})
    finally:
        set_constants()
        run("systemctl", "restart", SERVICE)


async def a_pod_under_a_parent_of_its_own_has_that_ones_cpus(node: Node) -> None:
    """Others have all of kubelet's, as before."""
    uid = str(uuid.uuid4())
    await asyncio.to_thread(run, "systemctl", "set-property", "--runtime", _SYSTEM, "AllowedCPUs=0-2")
    parent = f"/kubepods.slice/{_SYSTEM}/kubepods-system-pod{uid.replace('-', '_')}.slice"
    # Without a process in it the slice has no cgroup; kubelet makes the pod's before it asks for the pod.
    await asyncio.to_thread(run, "systemctl", "start", Path(parent).name)
    pod = await node.kubelet.run_pod("system", uid=uid, cgroup_parent=parent, host_network=True)
    made = await node.run("main", pod=pod, cpu_limit=4000)
    other = await node.run("other", pod=await node.shared_pod(), cpu_limit=node.shape.cpus * 1000)
    assert node.cpus(made) == node.row(made)["cpus"] == "0-2", node.row(made)
    assert node.cpus(other) == f"0-{node.shape.cpus - 1}"
    # What it allows is followed.
    await asyncio.to_thread(run, "systemctl", "set-property", "--runtime", _SYSTEM, "AllowedCPUs=1")
    await until(lambda: node.row(made)["cpus"], lambda cpus: cpus == "1")
    await until(lambda: node.cpus(made), lambda cpus: cpus == "1")


async def _nested(node: Node, handler: str) -> Running:
    pod = await _pod(node, handler, handler)
    request = create_request(pod, container_config("nest", command=("sh", "-c", _NEST), cpu_limit=1000))
    request.config.linux.security_context.privileged = True
    container = (await node.kubelet.call("CreateContainer", request)).container_id
    await node.kubelet.start(container)
    return Running(pod, container)


async def _pod(node: Node, name: str, handler: str) -> Pod:
    """A privileged one."""
    uid = str(uuid.uuid4())
    unit = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    systemd = f"/kubepods.slice/kubepods-burstable.slice/{unit}"
    parent = systemd if HANDLERS[handler] == "systemd" else cgroup_parent("burstable", uid)
    config = pod_config(name, uid=uid, cgroup_parent=parent, host_network=True)
    config.linux.security_context.privileged = True
    asked = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
    pod_id = (await node.kubelet.call("RunPodSandbox", asked)).pod_sandbox_id
    return Pod(pod_id, uid, name, config.metadata.namespace, config)


def _cgroup(container: Running) -> Path:
    """Where the container's first process is."""
    pid = (TASKS / container.id / "init.pid").read_text()
    return MOUNT / Path(f"/proc/{pid}/cgroup").read_text().split(":", 2)[2].strip().lstrip("/")


def _put_beside(container: Running) -> Path:
    """Its processes where a sandboxed runtime has them: in another cgroup of the pod."""
    own = _cgroup(container)
    sandbox = own.with_name("sandbox")
    sandbox.mkdir()
    for pid in (own / "cgroup.procs").read_text().split():
        (sandbox / "cgroup.procs").write_text(pid)
    return sandbox


async def _compared(node: Node, times: int) -> None:
    """Once the daemon has compared its records with what is there so often since its start."""
    await until(lambda: node.ask("status")["counters"].get(_ROUNDS, 0) >= times)
