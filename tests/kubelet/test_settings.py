"""Which of kubelet's places wins is found as kubelet and systemd find it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Optional

import pytest

from cri_proxy.kubelet.settings import BadKubeletFile, Setup, paths_wanted, socket_of, survey
from tests.kubelet_trees import CONFIG, DROP_IN, FLAGS_ENV, KUBEADM, OLD, RANCHER, TREES, UNIT, flags_env

ALL = {**TREES, **RANCHER}
ENDPOINTS = {
    "unix:///run/a.sock": "/run/a.sock",
    "unix:///var/run/a.sock": "/run/a.sock",
    "unix:/run/a.sock": "/run/a.sock",
    "/var/run//a.sock": "/run/a.sock",
    "unix:////run/a/../a.sock": "/run/a.sock",
    "/var/lib/a.sock": "/var/lib/a.sock",
    "": "",
}
BROKEN = {
    "a list": ("- a\n", f"{CONFIG}:1: expected a mapping"),
    "half a mapping": ("a: 1\nb: [\n", f"{CONFIG}:3: "),
    "two documents": ("a: 1\n---\nb: 2\n", f"{CONFIG}:2: "),
    "bytes": ("a: \udcff\n", f"{CONFIG}: "),
}


def found(files: dict[str, str], argv: tuple[str, ...] = ()) -> Setup:
    everything: dict[str, Optional[str]] = dict(files)
    everything.update(dict.fromkeys(paths_wanted(everything, argv) - everything.keys()))
    return survey(everything, argv)


def place(setup: Setup) -> str:
    return setup.winner.place if setup.winner and setup.winner.text else "default"


@pytest.mark.parametrize("name", ALL)
def test_the_place_that_wins_is_found(name: str) -> None:
    setup = found(ALL[name].files)
    assert (setup.endpoint, place(setup)) == (ALL[name].endpoint, ALL[name].place)


@pytest.mark.parametrize("name", ALL)
def test_every_file_of_a_host_is_asked_for(name: str) -> None:
    files: dict[str, Optional[str]] = {}
    for _ in range(6):
        for path in paths_wanted(files, ()) - files.keys():
            files.update(
                {p: text for p, text in ALL[name].files.items() if fnmatchcase(p, path.replace("**/", "*"))}
            )
            files.setdefault(path, None)
    assert survey(files).endpoint == ALL[name].endpoint


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_socket_has_one_spelling(endpoint: str) -> None:
    assert socket_of(endpoint) == ENDPOINTS[endpoint]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_its_line(name: str) -> None:
    text, beginning = BROKEN[name]
    with pytest.raises(BadKubeletFile) as caught:
        found({**KUBEADM, CONFIG: text})
    assert str(caught.value).startswith(beginning)
    assert "\n" not in str(caught.value)


def test_a_unit_in_etc_replaces_the_packages() -> None:
    own = f"[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint={OLD}\n"
    setup = found({UNIT: KUBEADM[UNIT], "/etc/systemd/system/kubelet.service": own})
    assert place(setup) == "/etc/systemd/system/kubelet.service:2"


def test_a_drop_in_of_the_same_name_in_etc_replaces_the_packages() -> None:
    own = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
    setup = found(
        {**KUBEADM, FLAGS_ENV: flags_env(f"--container-runtime-endpoint={OLD}"), own: "[Service]\n"}
    )
    assert place(setup) == "default"


def test_the_last_flag_wins_in_the_order_of_the_command_line() -> None:
    first = flags_env("--container-runtime-endpoint=unix:///run/first.sock")
    extra = "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/last.sock\n"
    setup = found({**KUBEADM, FLAGS_ENV: first, "/etc/default/kubelet": extra})
    assert setup.endpoint == "unix:///run/last.sock"


def test_a_flag_that_the_unit_does_not_use_counts_for_nothing() -> None:
    files = {
        UNIT: KUBEADM[UNIT],
        "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=/x\n",
    }
    assert place(found(files)) == "default"


def test_an_assignment_that_systemd_ignores_counts_for_nothing() -> None:
    text = f"export KUBELET_EXTRA_ARGS=--container-runtime-endpoint={OLD}\n"
    assert place(found({**KUBEADM, "/etc/default/kubelet": text})) == "default"


def test_a_commented_flag_counts_for_nothing() -> None:
    assert "commented" in KUBEADM[DROP_IN]
    assert place(found(KUBEADM)) == "default"


def test_the_running_kubelet_tells_its_configuration_file() -> None:
    files = {"/opt/k.yaml": f"containerRuntimeEndpoint: {OLD}\ncpuManagerPolicy: static\n"}
    setup = found(files, ("/opt/kubelet", "--config", "/opt/k.yaml", "--v=2"))
    assert (place(setup), setup.cpu_manager) == ("/opt/k.yaml:1", "static")


def test_flags_that_no_unit_writes_are_known_to_be_so() -> None:
    setup = found(
        {UNIT: "[Service]\nExecStart=/opt/start-node.sh\n"},
        ("kubelet", f"--container-runtime-endpoint={OLD}"),
    )
    assert setup.is_wrapped
    assert setup.running == OLD


#: The command line, and the settings that matter on it.
FLAGS: dict[str, tuple[str, dict[str, str]]] = {
    "values": (
        "--cgroup-driver=systemd --memory-manager-policy Static --reserved-cpus=0-1",
        {"cgroup-driver": "systemd", "memory-manager-policy": "Static", "reserved-cpus": "0-1"},
    ),
    "a boolean": ("--cpu-cfs-quota=false", {"cpu-cfs-quota": "false"}),
    "a boolean without a value": (
        "--cpu-cfs-quota --topology-manager-policy=none",
        {"topology-manager-policy": "none"},
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_settings_of_the_command_line_are_found(name: str) -> None:
    words, expected = FLAGS[name]
    setup = found({UNIT: f"[Service]\nExecStart=/usr/bin/kubelet {words}\n"})
    assert {flag: value.text for flag, value in setup.flags.items()} == expected


#: ExecStart's words and a variable's value, as systemd.service(5) has them; then the endpoint kubelet gets.
EXPANDED = {
    "several words": ("$X", f"--v=2 --container-runtime-endpoint={OLD}", OLD),
    "one word": ("${X}", f"--container-runtime-endpoint={OLD}", OLD),
    "one word, which is no flag of ours": ("${X}", f"--v=2 --container-runtime-endpoint={OLD}", None),
    "no word of its own": ("--x=$X", f"--container-runtime-endpoint={OLD}", None),
    "quoted": ('"$X"', f"--container-runtime-endpoint={OLD}", OLD),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_variables_are_expanded_as_systemd_does(name: str) -> None:
    words, value, endpoint = EXPANDED[name]
    setup = found({UNIT: f'[Service]\nEnvironment="X={value}"\nExecStart=/usr/bin/kubelet {words}\n'})
    assert (setup.winner.text if setup.winner else None) == endpoint


def test_a_kubelet_that_runs_with_another_configuration_is_seen() -> None:
    files = {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n", "/etc/k.yaml": ""}
    assert found(files, ("kubelet", "--config=/etc/k.yaml")).other_config == ""
    assert found(files, ("kubelet", "--config=/etc/other.yaml")).other_config == "/etc/other.yaml"


def test_of_the_two_units_of_rke2_the_one_that_is_on_is_restarted() -> None:
    folder = "/etc/systemd/system/multi-user.target.wants"
    unit = "[Service]\nExecStart=/usr/local/bin/rke2 {}\n"
    units = {f"/usr/local/lib/systemd/system/rke2-{r}.service": unit.format(r) for r in ("agent", "server")}
    assert found(units).unit == "rke2-server"
    assert found({**units, f"{folder}/rke2-agent.service": "on"}).unit == "rke2-agent"
