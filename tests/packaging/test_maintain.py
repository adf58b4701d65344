"""What ``maintain`` sees of kubelet where the program cannot run: no package is needed for that."""

from __future__ import annotations

import pytest

from tests.packaging.roots import REPOSITORY, Root

pytestmark = pytest.mark.packages

ENDPOINT = "--container-runtime-endpoint=unix:///var/run/cri-resmgr.sock"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
#: It has the name of a kubelet, and its words.
KUBELET = f"cp /bin/sh /tmp/kubelet; /tmp/kubelet -c 'sleep 20; :' {ENDPOINT} & "
ASK = "until [ $(cat /proc/$!/comm) = kubelet ]; do :; done; sh /maintain may-be-removed"


@pytest.fixture
def bare(root: Root) -> Root:
    """A system with nothing of the package but this."""
    root.write("/maintain", (REPOSITORY / "packaging/files/maintain").read_text())
    return root


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (FLAGS, f'KUBELET_KUBEADM_ARGS="{ENDPOINT}"\n'),
        ("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/cri-resmgr/cri-resmgr.sock\n"),
        ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint /run/cri-resmgr.sock\n"),
        ("/etc/systemd/system/kubelet.service.d/20-a.conf", f"[Service]\nExecStart=/usr/bin/kubelet {ENDPOINT}\n"),
        ("/etc/rancher/k3s/config.yaml", "container-runtime-endpoint: /run/cri-resmgr/run/crio/crio.sock\n"),
        ("/var/lib/cri-resmgr/kubelet/record.json", "{}\n"),
    ],
)  # fmt: skip
def test_it_must_stay_where_a_file_of_kubelets_names_our_socket(bare: Root, file: str, text: str) -> None:
    bare.write(file, text)
    said = bare.run("sh", "/maintain", "may-be-removed", fails=True)
    assert f"has no runtime; see:\n  {file}\n  reinstall" in said


def test_it_must_stay_where_the_running_kubelet_was_given_our_socket(bare: Root) -> None:
    said = bare.run("sh", "-c", KUBELET + ASK, fails=True)
    assert "has no runtime; see:\n  the command line of process " in said


@pytest.mark.parametrize(
    "text",
    ['KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock"\n', f"# {ENDPOINT}\n"],
    ids=["the runtime's", "a comment"],
)  # fmt: skip
def test_it_may_go_where_nothing_names_our_socket(bare: Root, text: str) -> None:
    bare.write(FLAGS, text)
    assert bare.run("sh", "/maintain", "may-be-removed") == ""
