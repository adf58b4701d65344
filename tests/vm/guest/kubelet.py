"""A kubelet under systemd, as kubeadm sets it up, switched over to us and back."""

from __future__ import annotations

from pathlib import Path

from tests.vm.guest.installation import RELAY, run, unit
from tests.vm.guest.node import RUNTIME, Node

KUBELET = "kubelet.service"
#: It connects where its flags say, and waits: its command line and its connection are all that is looked at.
_CONNECTS = """\
#!/usr/bin/python3
import signal, socket, sys
flags = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
connection = socket.socket(socket.AF_UNIX)
connection.connect(flags["container-runtime-endpoint"][len("unix://"):])
signal.pause()
"""
_UNIT = """\
[Unit]
Description=kubelet
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
"""
_DROP_IN = """\
[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
"""
PROGRAM, CONFIG = "/usr/bin/kubelet", "/var/lib/kubelet/config.yaml"
FLAGS = Path("/var/lib/kubelet/kubeadm-flags.env")
FILES = {
    PROGRAM: _CONNECTS,
    "/etc/systemd/system/kubelet.service": _UNIT,
    "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": _DROP_IN,
    CONFIG: "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n",
    str(FLAGS): f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{RUNTIME} --node-ip=10.0.0.1"\n',
}


async def kubelet_is_switched_over_and_back_to_the_byte(node: Node) -> None:
    """`disable` leaves the containers where they are, for the checks to come."""
    switch_over()
    run("cri-resmgr", "kubelet", "status")
    run("cri-resmgr", "kubelet", "disable", "--restart", "--no-release")
    kubelet_is_as_it_was()


def switch_over() -> None:
    """A kubelet that runs, and points at us."""
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path(PROGRAM).chmod(0o755)
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", KUBELET)
    print(run("cri-resmgr", "kubelet", "enable", "--restart").stdout)
    assert f"unix://{RELAY}" in FLAGS.read_text()


def kubelet_is_as_it_was() -> None:
    """Its files to the byte, and it runs; then ends it."""
    read = {name: Path(name).read_text() for name in FILES}
    assert read == FILES
    assert sorted(path.name for path in FLAGS.parent.iterdir()) == ["config.yaml", "kubeadm-flags.env"]
    kubelet_runs()
    run("systemctl", "stop", KUBELET)


def kubelet_runs() -> None:
    assert unit(KUBELET)["ActiveState"] == "active"
