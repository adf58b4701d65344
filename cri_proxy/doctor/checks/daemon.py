"""What the doctor says of our own parts: configuration, daemon, sockets, state, containers, observer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cri_proxy.doctor.facts import Facts, FileFacts, StateFacts
from cri_proxy.doctor.findings import NOTE, PROBLEM, WARNING, Finding, finding, note, ok, problem, warning
from cri_proxy.text.terminal import duration_text, stance_text
from policies.machine.cpus import format_cpus, parse_cpus

_JOURNAL = "journalctl -u cri-resource-manager -n 50"
_STATUS = "cri-resmgr status"
#: State that cannot grow any more stops being kept. It is a few hundred bytes a container.
_LEAST_FREE_BYTES, _FEW_FREE_BYTES = 4 << 20, 64 << 20
_MUCH_STATE_BYTES = 256 << 20
_CLOCK_SLACK_S = 60.0
#: Rows of one kind that are named; the rest is counted.
_NAMED = 3
_OLDEST_KERNEL = (5, 10)


# ---------------------------------------------------------------------- configuration


def check_config(facts: Facts) -> Iterator[Finding]:
    """Would the files make a configuration, and is it the daemon's?"""
    config = facts.config
    if config is None:
        return
    for sentence in config.errors:
        yield problem("config", sentence, "cri-resmgr config check FILE")
    for sentence in config.warnings:
        yield warning("config-warning", sentence)
    if not config.errors:
        where = ", ".join(config.files) or "no file: the defaults are in force"
        yield ok("config", f"valid; from {where}")
    if config.others:
        sentence = f"the daemon reads other files than these: {', '.join(config.others)}"
        yield note("config-others", sentence, f"cri-resmgr doctor --config {config.others[0]}")
    if config.changed:
        sentence = f"the files have changed since the daemon read them: {', '.join(config.changed)}"
        yield warning("config-changed", sentence, "systemctl reload cri-resource-manager")


# ---------------------------------------------------------------------- daemon


def check_daemon(facts: Facts) -> Iterator[Finding]:
    """Does it run, and does it do what it should?"""
    daemon = facts.daemon
    if daemon is None:
        return
    status = daemon.status
    if status is None:
        verdict = WARNING if daemon.is_hidden else PROBLEM
        yield finding("daemon", verdict, daemon.problem, daemon.hint)
    else:
        yield from _mode(status)
        for topic, reason in status.get("degraded", {}).items():
            yield problem(f"degraded-{topic}", f"degraded: {reason}", _JOURNAL)
        for sentence in status.get("warnings", ()):
            yield warning("warning", str(sentence))
        if not status["runtime"]["connected"]:
            path = status["runtime"]["socket"]
            sentence = f"the daemon has no connection to the runtime at {path}"
            yield problem("connection", sentence, "systemctl status containerd")
        yield from _failures(status.get("counters", {}))
    yield from _control(daemon.control, status is not None)
    yield from _sockets(facts)


def _mode(status: Mapping[str, Any]) -> Iterator[Finding]:
    mode, wanted = status["mode"], status.get("mode_wanted", status["mode"])
    ready = "degraded" if status.get("degraded") else "ready"
    sentence = (
        f"version {status['version']} runs, {ready}, mode {mode}, for {duration_text(status['uptime_s'])}"
    )
    if mode == "enforce":
        yield ok("daemon", sentence)
    elif mode == wanted:
        what = "containers are decided upon and not placed" if mode == "observe" else "no container is placed"
        yield warning("daemon", f"{sentence}: {what}", "cri-resmgr mode enforce")
    else:
        yield warning("daemon", f"{sentence}, and should be in {wanted}", _STATUS)


def _failures(counters: Mapping[str, float]) -> Iterator[Finding]:
    opened = sum(n for name, n in counters.items() if name.startswith("cri_resmgr_failed_open_total"))
    if opened:
        sentence = f"{opened:.0f} requests went through unplaced because of a failure of ours"
        yield warning("failed-open", sentence, "journalctl -u cri-resource-manager | grep 'failed open'")


def _control(file: FileFacts, is_up: bool) -> Iterator[Finding]:
    if file.kind == "socket" and (file.mode & 0o022 or file.uid != 0):
        sentence = (
            f"{file.path} has mode {file.mode:04o} and owner {file.uid}: only root should command the daemon"
        )
        yield problem("control-socket", sentence, f"chown root {file.path}; chmod 0600 {file.path}")
    elif file.kind not in ("socket", "") and not is_up:
        sentence = f"{file.path} is no socket but a {file.kind}: the daemon cannot serve it"
        yield problem("control-socket", sentence, f"rm {file.path}")


def _sockets(facts: Facts) -> Iterator[Finding]:
    daemon, runtime = facts.daemon, facts.runtime
    assert daemon is not None
    for file, is_served in daemon.sockets:
        if file.kind not in ("socket", ""):
            sentence = f"{file.path} is no socket but a {file.kind}: kubelet cannot be served there"
            yield problem("socket", sentence, f"rm {file.path}; systemctl restart cri-resource-manager")
        elif not file.kind or not is_served:
            what = "is not there" if not file.kind else "is there, and nothing listens on it"
            # A socket unit is not started beside its service that runs.
            units = "cri-resource-manager.socket cri-resource-manager.service"
            hint = f"systemctl stop cri-resource-manager.service; systemctl restart {units}"
            yield problem("socket", f"{file.path} {what}: kubelet would be refused", hint)
        elif file.mode & 0o002:  # to connect is to write
            sentence = f"{file.path} has mode {file.mode:04o}: every user of this host may use the runtime through it"
            yield problem("socket", sentence, f"chmod 0660 {file.path}")
        elif runtime and runtime.socket.kind == "socket" and _access(file) != _access(runtime.socket):
            sentence = (
                f"{file.path} has {_shown(file)}, the runtime's socket {_shown(runtime.socket)}: "
                "users of one may not use the other"
            )
            yield note("socket", sentence, "systemctl restart cri-resource-manager, or SocketMode=")
        elif daemon.status is None and not daemon.is_hidden:
            sentence = f"{file.path} is listened on all the same: calls wait for the daemon, or pass unplaced"
            yield note("socket", sentence)
        else:
            yield ok("socket", f"{file.path} is listened on, {_shown(file)}")


def _access(file: FileFacts) -> tuple[int, int, int]:
    return file.mode, file.uid, file.gid


def _shown(file: FileFacts) -> str:
    return f"mode {file.mode:04o}, owner {file.uid}:{file.gid}"


# ---------------------------------------------------------------------- state


def check_state(facts: Facts) -> Iterator[Finding]:
    """Would a restart know what runs where?"""
    state = facts.state
    if state is None:
        return
    folder = state.directory
    if not folder.kind:
        verdict = NOTE if facts.status is None else PROBLEM
        yield finding("state", verdict, f"{folder.path} is not there: nothing has been kept yet")
        return
    if folder.kind != "directory":
        sentence = f"{folder.path} is no directory but a {folder.kind}: no state can be kept"
        yield problem("state", sentence, f"rm {folder.path}; systemctl restart cri-resource-manager")
        return
    yield from _folder(state)
    yield from _clock(facts, state)
    problems = list(_file(state))
    yield from problems
    if state.writable and state.check == "ok" and not problems:
        size, free = state.size_bytes / 1024, state.free_bytes / 2**30
        yield ok("state", f"{folder.path}: sound, {size:.0f} KiB, {free:.1f} GiB free")
    elif not state.file.kind:
        yield note("state", f"{folder.path} holds no state yet")


def _file(state: StateFacts) -> Iterator[Finding]:
    """What is wrong with the file itself."""
    path = state.file.path
    if state.file.kind and state.file.uid != 0:
        sentence = f"{path} has owner {state.file.uid}, expected root: the daemon would set it aside"
        yield problem("state-owner", sentence, f"chown root {path}")
    if state.unchecked:
        sentence = f"{path} could not be checked: {state.unchecked}"
        yield warning("state-file", sentence, "df -h /tmp /dev/shm /run")
    elif state.check not in ("", "ok"):
        yield problem("state-file", f"{path}: {state.check}", "cri-resmgr reset-policy")
    if state.size_bytes > _MUCH_STATE_BYTES:
        sentence = f"{path} has {state.size_bytes / 2**20:.0f} MiB, it should be small"
        yield warning("state-size", sentence, "cri-resmgr reset-policy moves nothing")


def _folder(state: StateFacts) -> Iterator[Finding]:
    folder = state.directory
    if folder.mode & 0o077 or folder.uid != 0:
        sentence = f"{folder.path} has mode {folder.mode:04o} and owner {folder.uid}; expected 0700 and root"
        yield warning("state-mode", sentence, f"chown root {folder.path}; chmod 0700 {folder.path}")
    if not state.writable:
        sentence = (
            f"{folder.path} cannot be written (a read-only file system?): a restart would lose the state"
        )
        yield problem("state-writable", sentence, f"findmnt -T {folder.path}")
    if state.free_bytes < _FEW_FREE_BYTES:
        verdict = PROBLEM if state.free_bytes < _LEAST_FREE_BYTES else WARNING
        sentence = f"{folder.path} has {state.free_bytes / 2**20:.1f} MiB free"
        yield finding("state-space", verdict, sentence, f"df -h {folder.path}")


def _clock(facts: Facts, state: StateFacts) -> Iterator[Finding]:
    if state.ahead_s > _CLOCK_SLACK_S:
        sentence = f"the state was written {state.ahead_s:.0f} s from now: the clock was set back"
        yield warning("clock", sentence, "timedatectl")
    if facts.kernel is not None and not facts.kernel.boot_id:
        sentence = "the boot id cannot be read: places held before a reboot may be kept after it"
        yield warning("boot-id", sentence, "cat /proc/sys/kernel/random/boot_id")


# ---------------------------------------------------------------------- containers


def check_containers(facts: Facts) -> Iterator[Finding]:
    """Are containers where they should be?"""
    status = facts.status
    if status is None or "policy" not in status:
        return
    counts = (
        ", ".join(f"{count} {stance_text(stance)}" for stance, count in status["containers"].items())
        or "none"
    )
    yield ok("containers", f"policy {status['policy']}, containers: {counts}")
    for sentence in status["invariants"]:
        yield problem("invariant", f"broken: {sentence}", "cri-resmgr reset-policy; and report it")
    yield from _named(status["foreign"], "foreign", "modified externally, again and again: the cpuset of {}",
                      "stop it, then: cri-resmgr adopt CONTAINER")  # fmt: skip
    yield from _named(status["unusable_fences"], "fence", "the caller's cpuset holds no usable CPU for {}",
                      "cri-resmgr explain CONTAINER")  # fmt: skip
    sentence = "cpusets bind nothing of {}: the processes run outside of the containers' cgroups"
    yield from _named(list(status.get("not_bound", ())), "not-bound", sentence,
                      "name the handler of such a runtime in placement.unmanaged_handlers")  # fmt: skip
    yield from _named(status["distrusted"], "distrusted", "failed to start where it was placed, so left alone: {}",
                      "compare cri-resmgr topology with lscpu")  # fmt: skip
    if status["in_doubt"]:
        sentence = f"{status['in_doubt']} creates of unknown outcome: their callers gave up before the runtime answered"
        yield note("in-doubt", sentence, "resolved by itself within minutes; else see the runtime")
    waiting = status["updates_waiting"]
    if waiting:
        sentence = f"{waiting} updates wait for the runtime to take them"
        yield warning("updates", sentence, "cri-resmgr metrics | grep updates")
    yield from _unclean(facts)


def _named(names: list[str], check: str, sentence: str, hint: str) -> Iterator[Finding]:
    if names:
        more = len(names) - _NAMED
        shown = ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield warning(check, sentence.format(shown), hint)


def _unclean(facts: Facts) -> Iterator[Finding]:
    """Exclusive CPUs that another running container still has; the runtime has not taken its update, perhaps."""
    running = [row for row in facts.rows if row["state"] in ("created", "running")]
    unclean = []
    for owner in running:
        own = parse_cpus(owner["exclusive"]) if owner["exclusive"] else frozenset()
        others = (row for row in running if row is not owner and row["cpus"])
        if own and any(own & parse_cpus(row["cpus"]) for row in others):
            unclean.append(f"{owner['namespace']}/{owner['pod']}/{owner['container']} ({format_cpus(own)})")
    yield from _named(unclean, "exclusive", "exclusive CPUs are used by others, too: {}",
                      "cri-resmgr placements shows the containers")  # fmt: skip


# ---------------------------------------------------------------------- traffic


def check_traffic(facts: Facts) -> Iterator[Finding]:
    """Is traffic between containers seen, and how?"""
    affinity: Mapping[str, Any] = (facts.status or {}).get("affinity") or {}
    observer: Mapping[str, Any] = affinity.get("observer") or {}
    if affinity and not affinity["enabled"]:
        sentence = "affinity is off: containers are not drawn by their traffic"
        yield note("observer", sentence, "affinity.enabled: true")
    elif observer and not observer.get("problem"):
        sentence = f"the observer runs, traffic is seen by {observer['provider']}"
        if observer["provider"] == "ebpf":
            yield ok("observer", f"{sentence}: {observer['detail']}".rstrip(": "))
            return
        refused = "; ".join(map(str, observer.get("refused", ())))
        yield note("observer", f"{sentence}{f' ({refused})' if refused else ''}", "")
    else:
        reason = str(observer.get("problem") or "the observer is not known to run")
        sentence = f"{reason}: containers are placed without looking at traffic"
        yield note("observer", sentence, "systemctl enable --now cri-resmgr-observer")
    yield from _ebpf(facts)


def _ebpf(facts: Facts) -> Iterator[Finding]:
    """What eBPF would need and is not there."""
    obstacles = list(_obstacles(facts))
    for sentence, hint in obstacles:
        yield note("ebpf", f"no eBPF: {sentence}; sockets are polled instead", hint)
    if not obstacles and facts.kernel is not None:
        yield ok("ebpf", f"nothing stands against eBPF (kernel {facts.kernel.release})")


def _obstacles(facts: Facts) -> Iterator[tuple[str, str]]:
    kernel, cgroups, system = facts.kernel, facts.cgroups, facts.system
    if system is not None and system.has_bcc is False:
        yield (
            "bcc is not there for the system's Python",
            "apt install python3-bpfcc, or: dnf install python3-bcc (openEuler: that or python3-bpfcc)",
        )
    if cgroups is not None and cgroups.version == "v1":
        yield "containers have no cgroup v2 of their own", "boot with systemd.unified_cgroup_hierarchy=1"
    if kernel is None:
        return
    number = re.match(r"(\d+)\.(\d+)", kernel.release)
    if number and (int(number[1]), int(number[2])) < _OLDEST_KERNEL:
        yield f"the kernel is {kernel.release}, and 5.10 is the oldest", ""
    if kernel.bpf_config:
        yield f"the kernel is built without {kernel.bpf_config}", ""
    if kernel.lockdown == "confidentiality":
        yield "the kernel is locked down (confidentiality)", "lockdown=integrity on the kernel's command line"
