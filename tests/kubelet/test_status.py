"""Whether kubelet points at us is told from its files, its command line and what we wrote once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from cri_proxy.kubelet.record import FileChange, SwitchRecord
from cri_proxy.kubelet.status import (
    KubeletStatus,
    RunningKubelet,
    judge,
    socket_to_write,
    status_text,
    unfit,
    unknown,
)
from tests.kubelet.test_settings import found
from tests.kubelet_trees import CONFIG, FLAGS_ENV, KUBEADM, OLD, RANCHER, flags_env

SOCKETS = ("/var/run/cri-resmgr.sock", "/var/run/cri-resmgr/cri-resmgr.sock")
US = "unix:///var/run/cri-resmgr.sock"
FLAG = "--container-runtime-endpoint="
THEIRS = {**KUBEADM, FLAGS_ENV: flags_env(FLAG + OLD)}
OURS = {**KUBEADM, FLAGS_ENV: flags_env(FLAG + US)}
IN_CONFIG = {**KUBEADM, CONFIG: f"containerRuntimeEndpoint: {US}\n"}
CHANGE = FileChange(FLAGS_ENV, OLD, US, "0", "1")
RECORD = SwitchRecord(US, OLD, (CHANGE,), written_at=100.0)
CONFIG_RECORD = replace(RECORD, changes=(replace(CHANGE, path=CONFIG),))
KUBELET = ("kubelet", "--config=/var/lib/kubelet/config.yaml")
RESTART = "systemctl daemon-reload && systemctl restart kubelet"
ENABLE = "cri-resmgr kubelet enable --restart"

#: files, record, command line, start; then: points at us, by us, dropped, restart pending, what to type.
CASES: dict[str, tuple[dict[str, str], Optional[SwitchRecord], tuple[str, ...], float, tuple[Any, ...]]] = {
    "theirs": (THEIRS, None, (*KUBELET, FLAG + OLD), 50.0, (False, False, False, False, ENABLE)),
    "nothing set": (KUBEADM, None, KUBELET, 50.0, (False, False, False, False, ENABLE)),
    "ours": (OURS, RECORD, (*KUBELET, FLAG + US), 150.0, (True, True, False, False, "")),
    "ours by hand": (OURS, None, (*KUBELET, FLAG + US), 50.0, (True, False, False, False, "")),
    "another name of ours": (
        {**KUBEADM, FLAGS_ENV: flags_env(FLAG + "/run/cri-resmgr/cri-resmgr.sock")}, None,
        (*KUBELET, FLAG + "/run/cri-resmgr/cri-resmgr.sock"), 50.0, (True, False, False, False, ""),
    ),
    "written, not restarted": (OURS, RECORD, (*KUBELET, FLAG + OLD), 50.0, (False, True, False, True, RESTART)),
    "a flag written where none was, not restarted": (OURS, None, KUBELET, 50.0, (False, False, False, True, RESTART)),
    "configuration written, not restarted": (
        IN_CONFIG, CONFIG_RECORD, KUBELET, 50.0, (False, True, False, True, RESTART),
    ),
    "configuration written and read": (IN_CONFIG, CONFIG_RECORD, KUBELET, 150.0, (True, True, False, False, "")),
    "dropped by an upgrade": (THEIRS, RECORD, (*KUBELET, FLAG + OLD), 150.0, (False, False, True, False, ENABLE)),
    "dropped, kubelet has not seen it": (
        THEIRS, RECORD, (*KUBELET, FLAG + US), 150.0, (True, False, True, True, ""),
    ),
    "stopped": (OURS, RECORD, (), 0.0, (True, True, False, False, "")),
    "a wrapper": (
        {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/opt/start.sh\n"}, None,
        ("kubelet", FLAG + US), 50.0, (True, False, False, False, ""),
    ),
    "a wrapper of another": (
        {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/opt/start.sh\n"}, None,
        ("kubelet", FLAG + OLD), 50.0,
        (False, False, False, False, f"add {FLAG}{US} to kubelet's flags, and restart it"),
    ),
}  # fmt: skip


UNDONE = replace(CONFIG_RECORD, undone_at=200.0)
THEIR_CONFIG = {**KUBEADM, CONFIG: f"containerRuntimeEndpoint: {OLD}\n"}
IMAGES = f"imageServiceEndpoint: {US}\n"
AT_US, OURS_AT_US = "/run/cri-resmgr.sock", (True, True, False, False, "")

#: files, record, start, the socket of ours it is connected to; then as above.
CONNECTED: dict[str, tuple[dict[str, str], Optional[SwitchRecord], float, str, tuple[Any, ...]]] = {
    "given back, not restarted": (THEIR_CONFIG, UNDONE, 150.0, AT_US, (True, False, False, True, "")),
    "given back, not restarted, nobody serves it": (THEIR_CONFIG, UNDONE, 150.0, "", (True, False, False, True, "")),
    "given back, restarted": (THEIR_CONFIG, UNDONE, 250.0, "", (False, False, False, False, ENABLE)),
    "given back, never ours": (THEIR_CONFIG, UNDONE, 50.0, "", (False, False, False, False, ENABLE)),
    "the record is lost": (THEIR_CONFIG, None, 150.0, AT_US, (True, False, False, True, "")),
    "written once more": (IN_CONFIG, replace(CONFIG_RECORD, written_at=200.0), 150.0, AT_US, OURS_AT_US),
    "only images": ({**THEIR_CONFIG, CONFIG: THEIR_CONFIG[CONFIG] + IMAGES}, None, 150.0, AT_US,
                    (False, False, False, False, ENABLE)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONNECTED)
def test_whom_kubelet_is_connected_to_tells_what_it_has_read(name: str) -> None:
    files, record, started_at, socket, expected = CONNECTED[name]
    status = judge(found(files, KUBELET), record, SOCKETS, RunningKubelet(7, started_at, socket))
    said = (status.points_at_us, status.written_by_us, status.dropped, status.restart_pending, status.hint)
    assert said == expected


def test_inside_of_k3s_only_the_connection_tells() -> None:
    files = {"/etc/rancher/k3s/config.yaml": f"kubelet-arg: container-runtime-endpoint={US}\n"}
    status = judge(found(files), None, SOCKETS, RunningKubelet(7, 50.0))
    assert (status.points_at_us, status.restart_pending) == (True, False)
    status = judge(found(RANCHER["k3s"].files), None, SOCKETS, RunningKubelet(7, 50.0, AT_US))
    assert (status.points_at_us, status.restart_pending) == (True, True)


def test_images_that_come_through_us_are_warned_of() -> None:
    status = judge(found({**KUBEADM, CONFIG: IMAGES}), None, SOCKETS, None)
    assert f"pulls images through us by {CONFIG}:1" in status.warnings[0]


UNKNOWN: dict[str, tuple[tuple[str, ...], Optional[bool], str]] = {
    "connected": (KUBELET, True, ""),
    "not known": (KUBELET, None, ""),
    "connected elsewhere": (KUBELET, False, "connected neither to the daemon's runtime at /run/x.sock nor to us"),
    "another configuration": (
        ("kubelet", "--config=/etc/k.yaml"), True, f"runs with --config=/etc/k.yaml, and its files say {CONFIG}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_kubelet_that_is_not_as_its_files_say_is_told_why(name: str) -> None:
    argv, is_connected, phrase = UNKNOWN[name]
    reason = unknown(found(KUBEADM, argv), "/run/x.sock", is_connected)
    assert phrase in reason
    assert bool(reason) == bool(phrase)


def judged(name: str) -> KubeletStatus:
    files, record, argv, started_at, _ = CASES[name]
    return judge(found(files, argv), record, SOCKETS, RunningKubelet(7, started_at) if argv else None)


@pytest.mark.parametrize("name", CASES)
def test_where_kubelet_points_and_what_to_type(name: str) -> None:
    status = judged(name)
    said = (status.points_at_us, status.written_by_us, status.dropped, status.restart_pending, status.hint)
    assert said == CASES[name][4]


@pytest.mark.parametrize("name", CASES)
def test_the_text_says_it_in_its_first_line_and_what_to_type_in_its_last(name: str) -> None:
    status = judged(name)
    first, *_, last = status_text(status).splitlines()
    assert first.startswith(
        "kubelet points at us: " if status.points_at_us else "kubelet does NOT point at us: "
    )
    assert last == f"type: {status.hint}" if status.hint else not last.startswith("type:")


def test_k3s_is_told_its_own_way() -> None:
    status = judge(found(RANCHER["k3s"].files), None, SOCKETS, None)
    assert status.manager == "k3s"
    assert US in status.hint


GOOD: dict[str, Any] = {
    "degraded": {},
    "mode": "enforce",
    "runtime": {"socket": "/run/containerd/containerd.sock", "connected": True},
    "sockets": ["/run/cri-resmgr.sock"],
}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "an image service of its own": ({"degraded": {"images": "why"}}, ""),
    "good": ({}, ""),
    "observing": ({"mode": "observe"}, ""),
    "degraded": ({"degraded": {"config": "no ladder"}}, "degraded: no ladder"),
    "off": ({"mode": "off"}, "mode is off"),
    "standalone": (
        {"front_end": "standalone", "sockets": []},
        "runs as standalone: it serves kubelet no socket",
    ),
    "no runtime": ({"runtime": {"socket": "/r", "connected": False}}, "no connection to the runtime at /r"),
    "another runtime": (
        {"runtime": {"socket": "/run/crio/crio.sock", "connected": True}},
        f"kubelet's runtime is {OLD}, and the daemon's /run/crio/crio.sock",
    ),
    "another socket": (
        {"sockets": ["/run/x.sock"]},
        "does not serve /var/run/cri-resmgr.sock but /run/x.sock",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_daemon_that_is_not_healthy_says_why(name: str) -> None:
    change, phrase = UNFIT[name]
    reason = unfit({**GOOD, **change}, SOCKETS[0], [OLD])
    assert phrase in reason
    assert bool(reason) == bool(phrase)


def test_on_crio_kubelet_gets_the_name_by_which_it_knows_crio() -> None:
    crio = "/var/run/cri-resmgr/run/crio/crio.sock"
    assert socket_to_write({**GOOD, "sockets": [SOCKETS[0], crio]}, SOCKETS) == crio
    assert socket_to_write(GOOD, SOCKETS) == SOCKETS[0]
