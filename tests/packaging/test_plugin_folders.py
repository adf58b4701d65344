"""The agent's unit under systemd itself, where kubelet has never run: the driver of claims can make its sockets there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packaging.node import Node, booted
from tests.systemd.units import AGENT, FOLDER

pytestmark = pytest.mark.packages

#: In the agent's place, with all that the unit takes away: makes what the driver makes, and may write nothing else there.
IN_ITS_PLACE = """
[Service]
NotifyAccess=all
ExecStart=
ExecStart=/bin/sh -euc 'cd /var/lib/kubelet; mkdir plugins/cpu.example; touch plugins/cpu.example/dra.sock; \
    touch plugins_registry/cpu.example-reg.sock; ! touch pods; systemd-notify --ready; exec sleep infinity'
"""


@pytest.fixture
def node() -> Iterator[Node]:
    try:
        with booted("bookworm") as found:
            yield found
    except LookupError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kubelet", ["never ran", "ran"])
def test_the_agent_writes_its_sockets_on_a_node_where_kubelet(kubelet: str, node: Node) -> None:
    if kubelet == "ran":
        node.type("mkdir -p -m 0750 /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry")
        node.type("touch /var/lib/kubelet/plugins_registry/other.sock")
    node.root.write(f"/etc/systemd/system/{AGENT}", (FOLDER / AGENT).read_text())
    node.root.write(f"/etc/systemd/system/{AGENT}.d/in-its-place.conf", IN_ITS_PLACE)
    node.type(f"systemctl daemon-reload; systemctl start {AGENT}")
    # Modes as kubelet makes them.
    folders = node.type("cd /var/lib/kubelet; stat -c '%n %a %U' . plugins plugins_registry").splitlines()
    assert folders[1:] == ["plugins 750 root", "plugins_registry 750 root"]
    assert folders[0] == (". 755 root" if kubelet == "ran" else ". 750 root")
    found = node.type("cd /var/lib/kubelet; find . -type f").split()
    others = ["./plugins_registry/other.sock"] if kubelet == "ran" else []
    ours = ["./plugins/cpu.example/dra.sock", "./plugins_registry/cpu.example-reg.sock"]
    assert sorted(found) == sorted([*ours, *others])
    # As `kubeadm reset` leaves it.
    node.type(f"rm -rf /var/lib/kubelet/*; systemctl restart {AGENT}")
    assert sorted(node.type("cd /var/lib/kubelet; find . -type f").split()) == ours
    node.type(f"systemctl stop {AGENT}")
