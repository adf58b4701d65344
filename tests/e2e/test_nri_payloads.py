"""What plugins are shown by our host, field by field beside what containerd's own NRI shows of the same container."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cri_api import runtime_v1_pb2 as cri
from tests.e2e.node import CPUS, Node
from tests.e2e.runtime import MakeRuntime, RealRuntime
from tests.functional.nri.support import hosting, plugin
from tests.nri.io.host.plugins import Log, eventually, external

pytestmark = pytest.mark.containerd

#: All that NRI 0.8, containerd 1.7's, knows.
CLASSIC = 0x7FF
#: Fields that are younger than that NRI.
YOUNGER = {
    "pod": {"ips"},
    "container": {
        *("created_at", "started_at", "finished_at", "exit_code", "status_reason", "status_message"),
        *("user", "image"),
    },
}
#: A label that containerd 2 puts on pods, which CRI does not tell.
INTERNAL_LABEL = "oci_runtime_type"
#: The events at whose time both have the same to show, and what must be left out of the comparison.
SAME: dict[str, set[str]] = {
    "RUN_POD_SANDBOX": set(),
    # An empty message, which says nothing.
    "CREATE_CONTAINER": {"hooks"},
    "POST_CREATE_CONTAINER": set(),
    # Ours comes before the start is sent: there is no process yet.
    "START_CONTAINER": {"pid"},
    "POST_START_CONTAINER": set(),
    # containerd 1.7 shows one that still runs; later releases what we show.
    "STOP_CONTAINER": {"pid", "state"},
}


@pytest.fixture(scope="module")
def shared_runtime(
    make_runtime: MakeRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRuntime]:
    with make_runtime(tmp_path_factory.mktemp("nri") / "c", cpus=CPUS, has_nri=True) as running:
        yield running


def told(log: Log) -> dict[str, dict[str, Any]]:
    """The pods and containers that came with each event, without what containerd 1.7 cannot tell."""
    found = {}
    for line in log.lines():
        message = line.get("message", {})
        event = message.get(
            "event", "".join(f"_{c}" if c.isupper() else c for c in line["event"])[1:].upper()
        )
        found[event] = {
            kind: {key: value for key, value in message[kind].items() if key not in younger}
            for kind, younger in YOUNGER.items()
            if kind in message
        }
        for shown in found[event].values():
            shown["labels"] = {k: v for k, v in shown.get("labels", {}).items() if k != INTERNAL_LABEL}
    return found


async def test_it_is_what_containerds_own_nri_shows(stopped_node: Node) -> None:
    node = stopped_node
    node.agent.write_config({"nri": hosting()})
    await node.agent.start()
    await node.until_runtime_is_known()
    folder = node.runtime.folder
    async with (
        external(folder, node.runtime.nri_socket, "10-theirs", {"mask": CLASSIC}) as theirs,
        plugin(node.agent, "10-ours", mask=CLASSIC) as ours,
    ):
        container = await node.run("pod", cpu_limit=500, memory_limit=64 << 20, envs=(("A", "b"),))
        await node.kubelet.stop(container.id)
        await node.kubelet.remove_pod(container.pod.id)
        await ours.line("RemovePodSandbox")
        await eventually(lambda: "REMOVE_POD_SANDBOX" in told(theirs.log), theirs.log.events)
        shown, expected = told(ours), told(theirs.log)
        version = await node.direct.call("Version", cri.VersionRequest())
        untold = {"pid"} if version.runtime_name == "cri-o" else set()  # its NRI tells of no process
        different = {
            (event, kind, key): (shown[event][kind].get(key), fields.get(key))
            for event, left_out in SAME.items()
            for kind, fields in expected[event].items()
            for key in {*fields, *shown[event][kind]} - left_out - untold
            if shown[event][kind].get(key) != fields.get(key)
        }
        assert different == {}
        asked_about = (await ours.line("CreateContainer"))["message"]["container"]
        assert not {"state", "created_at", "pid"} & {*asked_about}
        after = (await ours.line("PostCreateContainer"))["message"]["container"]
        assert after["state"] == "CONTAINER_CREATED" and int(after["created_at"]) > 0
