"""The units say what the rest of the project relies on, and systemd finds nothing wrong with them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bpf.kernel.capabilities import NEEDED
from cri_proxy.config.config import read_config
from cri_proxy.nri.io.launcher import unit_name
from cri_proxy.relay.io.drain import longest_stop_us
from cri_proxy.relay.io.server import MAX_KEPT
from tests.systemd.units import (
    AGENT,
    FOLDER,
    NRI,
    OBSERVER,
    PLUGIN,
    SERVICE,
    SOCKET,
    WEB,
    settings_of,
    words_of,
)

DEFAULTS = read_config([]).config
_ANALYZE = shutil.which("systemd-analyze")
_VERSION = 0
if _ANALYZE:
    _said = subprocess.run([_ANALYZE, "--version"], capture_output=True, text=True, check=False).stdout
    _VERSION = int((re.findall(r"\d+", _said) or ["0"])[0])
has_analyze = pytest.mark.skipif(_VERSION < 250, reason="needs systemd-analyze of systemd 250 or newer")


def real(path: str) -> str:
    """/var/run is /run."""
    return path.replace("/var/run/", "/run/", 1)


# ---------------------------------------------------------------------- what systemd says


@has_analyze
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "etc/systemd/system")
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    for program in ("usr/bin/cri-resmgr", "bin/sh"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    units = [SERVICE, SOCKET, OBSERVER, AGENT, PLUGIN, NRI, WEB]
    command = [str(_ANALYZE), "verify", f"--root={tmp_path}", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@has_analyze
@pytest.mark.parametrize(
    ("name", "most"), [(SERVICE, 3.5), (OBSERVER, 3.9), (AGENT, 2.0), (NRI, 2.8), (WEB, 1.3)]
)
def test_the_exposure_is_no_more_than_the_docs_say(name: str, most: float) -> None:
    command = [str(_ANALYZE), "security", "--offline=true", "--no-pager", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = float(re.findall(r"exposure level for \S+: ([0-9.]+)", done.stdout)[0])
    docs = (FOLDER.parent / "docs/operations.md").read_text()
    assert exposure <= most
    assert re.search(rf"{re.escape(name)}`? \| {most}", docs), "the figure in docs/operations.md"


@has_analyze
def test_the_daemons_files_pipes_and_sockets_pass_its_system_call_filter() -> None:
    allowed: set[str] = set()
    for line in settings_of(SERVICE)["Service.SystemCallFilter"]:
        found = {call for group in line.lstrip("~").split() for call in _calls(group)}
        allowed = allowed - found if line.startswith("~") else allowed | found
    # Traced of a daemon under load that also planned: what systemd's own groups might not hold one day.
    needed = "accept4 bind chmod fchown clone3 connect epoll_wait eventfd2 execve fdatasync ftruncate futex"
    needed += " getdents64 listen mmap pipe2 poll prlimit64 pwrite64 recvmsg rename sendmsg setpriority"
    needed += " socketpair unlink wait4 perf_event_open"
    assert set(needed.split()) <= allowed
    assert not {"mount", "bpf", "ptrace", "init_module", "reboot", "setuid"} & allowed


def _calls(group: str) -> set[str]:
    if not group.startswith("@"):
        return {group}
    command = [str(_ANALYZE), "syscall-filter", "--no-pager", group]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return {call for name in names for call in (_calls(name) if name.startswith("@") else {name})}


# ---------------------------------------------------------------------- what the project relies on


def test_the_sockets_are_those_of_the_configuration() -> None:
    wanted = [DEFAULTS["relay.socket"], *DEFAULTS["relay.extra_sockets"]]
    assert settings_of(SOCKET)["Socket.ListenStream"] == [real(path) for path in wanted]


def test_nothing_but_stopping_the_socket_unit_ends_it() -> None:
    socket, service = settings_of(SOCKET), settings_of(SERVICE)
    assert socket["Socket.TriggerLimitIntervalSec"] == ["0"]
    assert service["Unit.StartLimitIntervalSec"] == ["0"]
    assert service["Service.RuntimeDirectoryPreserve"] == ["yes"]
    assert settings_of(OBSERVER)["Service.RuntimeDirectoryPreserve"] == ["yes"]
    assert "Requires" not in "".join(service)


def test_the_daemon_is_there_before_kubelet_and_comes_back_always() -> None:
    service = settings_of(SERVICE)
    assert words_of(SERVICE, "Unit.Before") == ["kubelet.service"]
    assert {"containerd.service", "crio.service", "isulad.service"} < set(words_of(SERVICE, "Unit.After"))
    assert (service["Service.Restart"], service["Service.RestartSec"]) == (["always"], ["1"])
    assert service["Service.OOMScoreAdjust"] == ["-999"]


def test_a_stop_has_the_time_it_may_take_by_default() -> None:
    most_s = longest_stop_us(DEFAULTS.constants.relay_drain_s) / 1e6
    assert float(settings_of(SERVICE)["Service.TimeoutStopSec"][0]) >= most_s


def test_intels_variables_and_flags_are_taken() -> None:
    service = settings_of(SERVICE)
    assert service["Service.ExecStart"] == ["/usr/bin/cri-resmgr $CONFIG_OPTIONS $POLICY_OPTIONS"]
    for folder in ("sysconfig", "default"):
        assert f"-/etc/{folder}/cri-resource-manager" in service["Service.EnvironmentFile"]


def test_the_files_of_the_daemon_are_where_it_may_write() -> None:
    service = settings_of(SERVICE)
    state, control = DEFAULTS["state.directory"], real(DEFAULTS["control.socket"])
    assert service["Service.StateDirectory"] == [str(Path(state).relative_to("/var/lib"))]
    assert service["Service.StateDirectoryMode"] == ["0700"]
    assert f"/run/{service['Service.RuntimeDirectory'][0]}" == str(Path(control).parent)
    assert {"/run", "-/sys/fs/cgroup", "-/sys/fs/resctrl"} <= set(words_of(SERVICE, "Service.ReadWritePaths"))
    # All else of it is read-only; where ProtectKernelTunables= is set /proc/irq is, too, whatever ReadWritePaths= says.
    assert {"/sys", "/proc/sys"} <= set(words_of(SERVICE, "Service.ReadOnlyPaths"))
    assert "Service.ProtectKernelTunables" not in service
    assert "Service.ProtectControlGroups" not in service


def test_the_observer_has_the_capabilities_it_needs_and_those_of_its_start() -> None:
    needed = {f"CAP_{name.upper()}" for names in NEEDED.values() for name in names}
    at_start = {"CAP_SETPCAP"}  # to give up others
    assert set(words_of(OBSERVER, "Service.CapabilityBoundingSet")) == needed | at_start


def test_the_observer_has_memory_for_the_compiler_and_goes_before_anything_else_does() -> None:
    observer = settings_of(OBSERVER)
    assert observer["Service.MemoryMax"] == ["512M"]
    assert int(observer["Service.OOMScoreAdjust"][0]) > 0


def test_the_daemon_has_memory_for_more_than_twice_its_worst_flood_and_is_never_slowed_down_for_it() -> None:
    service = settings_of(SERVICE)
    assert service["Service.MemoryMax"] == ["1G"]
    # The most that was measured (docs/dev/relay.md) was twice what connections may keep, and 64 MiB.
    assert 2 * (2 * (MAX_KEPT >> 20) + 64) <= 1024
    assert "Service.MemoryHigh" not in service


@pytest.mark.parametrize("name", [SERVICE, OBSERVER, NRI])
def test_reload_is_sighup_and_the_watchdog_is_on(name: str) -> None:
    unit = settings_of(name)
    assert unit["Service.ExecReload"] == ['/bin/sh -c "kill -HUP $MAINPID"']
    assert (unit["Service.Type"], unit["Service.NotifyAccess"]) == (["notify"], ["main"])
    assert int(unit["Service.WatchdogSec"][0]) >= 30


def test_enabling_the_service_enables_the_socket_and_the_alias() -> None:
    service = settings_of(SERVICE)
    assert service["Install.Alias"] == ["cri-resmgr.service"]
    assert service["Install.Also"] == [SOCKET]


def test_a_hosted_plugin_ends_with_the_daemon_and_is_launched_by_it_alone() -> None:
    plugin = settings_of(PLUGIN)
    assert plugin["Unit.BindsTo"] == [SERVICE]
    # With After= the daemon, which waits for its plugins before it is ready, would wait for ever.
    assert "Unit.After" not in plugin and "Unit.Requires" not in plugin
    assert plugin["Service.ExecStart"] == ["/usr/bin/cri-resmgr nri launch %i"]
    assert plugin["Service.Restart"] == ["no"]
    assert unit_name("10-foo") == PLUGIN.replace("@", "@10-foo")


def test_the_plugin_of_a_runtime_may_do_no_more_than_the_proxy_and_stops_nobody() -> None:
    plugin, service = settings_of(NRI), settings_of(SERVICE)
    assert plugin["Service.ExecStart"] == ["/usr/bin/cri-resmgr nri run $NRI_OPTIONS"]
    # A proxy that were stopped for it would leave kubelet without a runtime.
    assert "Unit.Conflicts" not in plugin and "Unit.Requires" not in plugin
    assert plugin["Service.CapabilityBoundingSet"] == ["CAP_SYS_RESOURCE", "CAP_SYS_NICE"]
    assert {"CAP_SYS_RESOURCE", "CAP_SYS_NICE"} <= set(words_of(SERVICE, "Service.CapabilityBoundingSet"))
    for key in (
        "ProtectSystem",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "DevicePolicy",
        "RestrictAddressFamilies",
        "StateDirectory",
    ):
        assert plugin[f"Service.{key}"] == service[f"Service.{key}"]
    most_s = longest_stop_us(DEFAULTS.constants.relay_drain_s) / 1e6
    assert float(plugin["Service.TimeoutStopSec"][0]) >= most_s


def test_the_agent_has_no_capability_and_neither_waits_for_the_daemon_nor_is_waited_for() -> None:
    agent = settings_of(AGENT)
    assert words_of(AGENT, "Service.CapabilityBoundingSet") == []
    assert not {"Unit.Requires", "Unit.BindsTo", "Unit.Before"} & set(agent)
    assert (agent["Service.Restart"], agent["Service.Type"]) == (["always"], ["notify"])
    assert settings_of(AGENT)["Service.RuntimeDirectoryPreserve"] == ["yes"]
    assert agent["Service.StateDirectoryMode"] == ["0700"]


def test_the_driver_of_claims_is_part_of_the_agent_and_writes_sockets_where_kubelet_has_plugins() -> None:
    assert words_of(AGENT, "Service.ReadWritePaths") == [
        "-/var/lib/kubelet/plugins",
        "-/var/lib/kubelet/plugins_registry",
    ]
    # On hosts /var/run is a link to it.
    for name in (SERVICE, NRI):
        assert "/run" in words_of(name, "Service.ReadWritePaths")
