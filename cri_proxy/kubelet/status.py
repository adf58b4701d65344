"""Whether kubelet points at us: what its files say, what it runs with, what we wrote once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from cri_proxy.kubelet.record import SwitchRecord
from cri_proxy.kubelet.settings import DEFAULT_ENDPOINT, Setup, socket_of
from cri_proxy.kubelet.switch import FLAG, KEY, by_hand, points_at, remarks_on, restart_line

ENABLE = "cri-resmgr kubelet enable --restart"
#: The start of a process is known in ticks of 10 ms, and so is the uptime.
_CLOCKS_DIFFER_S = 0.05


@dataclass(frozen=True)
class RunningKubelet:
    """A kubelet that runs, since when (Unix seconds)."""

    pid: int
    started_at: float
    #: The socket of ours that it is connected to; "" if it is to none, or the kernel does not tell.
    socket: str = ""


@dataclass(frozen=True)
class KubeletStatus:
    """``endpoint``: what kubelet uses, as far as can be told; ``written``: what its files say, at ``place``."""

    endpoint: str
    written: str
    place: str
    points_at_us: bool
    #: What points at us is what `kubelet enable` wrote.
    written_by_us: bool
    #: `kubelet enable` wrote it, and it is gone: a kubeadm upgrade does that.
    dropped: bool
    #: kubelet runs with something else than its files say.
    restart_pending: bool
    pid: Optional[int]
    image_endpoint: str
    #: "k3s" or "rke2", where these start kubelet.
    manager: str
    warnings: tuple[str, ...]
    #: What to type if it does not point at us; "" if it does.
    hint: str
    #: That it is not known whether kubelet runs, or to what it is connected, and why; "": what matters is known.
    unseen: str = ""


def judge(
    setup: Setup, record: Optional[SwitchRecord], sockets: Sequence[str], running: Optional[RunningKubelet]
) -> KubeletStatus:
    """``sockets``: all our names, first the one to write. ``running``: None if kubelet does not run."""
    written = setup.endpoint
    used = _used(setup, record, sockets, running)
    is_written = points_at(written, sockets)
    points = points_at(used, sockets)
    place = setup.winner.place if setup.winner and setup.winner.text else "default"
    pending = running is not None and socket_of(used) != socket_of(written)
    if setup.running is not None and setup.winner is None and setup.is_wrapped:
        pending, place = False, "kubelet's command line"
    ours = is_written and record is not None and bool(setup.winner and setup.winner.path in record.paths)
    is_gone = record is not None and not points_at(written, [*sockets, record.endpoint])
    return KubeletStatus(
        endpoint=used,
        written=written,
        place=place,
        points_at_us=points,
        written_by_us=ours,
        dropped=is_gone and record is not None and record.undone_at is None,
        restart_pending=pending,
        pid=running.pid if running else None,
        image_endpoint=setup.images,
        manager=setup.manager,
        warnings=tuple(_warnings(setup, sockets)),
        hint=_hint(setup, sockets, points, is_written),
    )


def _used(
    setup: Setup, record: Optional[SwitchRecord], sockets: Sequence[str], running: Optional[RunningKubelet]
) -> str:
    """The command line of the running kubelet tells, then its connection; else what its files said at its start."""
    if setup.running is not None:
        return setup.running
    if running is None:
        return setup.endpoint
    # Images may come through us where containers do not.
    if running.socket and not points_at(setup.images, sockets):
        return f"unix://{running.socket}"
    started_at = running.started_at + _CLOCKS_DIFFER_S
    winner = setup.winner
    if record is not None and record.undone_at is not None:
        has_seen_us = record.written_at < started_at < record.undone_at
        return record.endpoint if has_seen_us else setup.endpoint
    if record is not None and winner is not None and winner.path in record.paths:
        return record.previous if started_at < record.written_at else setup.endpoint
    is_flag = winner is not None and winner is setup.flags.get(FLAG[2:])
    if is_flag and not setup.is_wrapped and not setup.manager:
        # The flag was written after this kubelet was started, and not by us.
        value = setup.config.get(KEY)
        return (value.text if value else "") or DEFAULT_ENDPOINT
    return setup.endpoint


def _warnings(setup: Setup, sockets: Sequence[str]) -> list[str]:
    found = [remark for remark in remarks_on(setup, (), "") if remark.startswith("warning:")]
    if points_at(setup.images, sockets):
        place = setup.images_at.place if setup.images_at else "its command line"
        found.append(
            f"warning: kubelet pulls images through us by {place}, which `kubelet enable` did not write: "
            "`kubelet disable` refuses while it is there"
        )
    return found


def _hint(setup: Setup, sockets: Sequence[str], points: bool, is_written: bool) -> str:
    if points:
        return ""
    if is_written:
        return restart_line(setup)
    is_others = setup.manager or (setup.is_wrapped and setup.winner is None and setup.running is not None)
    return by_hand(setup, f"unix://{sockets[0]}") if is_others else ENABLE


def status_text(status: KubeletStatus) -> str:
    """For a person: one line that says it, then why and what to do."""
    whose = {"default": "the default, nothing is set"}.get(status.place, status.place)
    lines = [f"kubelet {'points' if status.points_at_us else 'does NOT point'} at us: {status.endpoint}"]
    if status.restart_pending:
        lines.append(f"its files say {status.written} ({whose}), and it was started before that")
    else:
        lines.append(f"from: {whose}" + ("  (written by kubelet enable)" if status.written_by_us else ""))
    if status.dropped:
        lines.append("kubelet enable wrote our socket once and it is gone: a kubeadm upgrade does that")
    if status.unseen:
        lines.append(status.unseen)
    elif status.pid is None:
        lines.append("kubelet does not run" + (f"; {status.manager} starts it" if status.manager else ""))
    if status.image_endpoint:
        lines.append(f"images: {status.image_endpoint}")
    lines += status.warnings
    if status.hint:
        lines.append(f"type: {status.hint}")
    return "\n".join(lines)


def unfit(status: Mapping[str, Any], socket: str, current: Sequence[str]) -> str:
    """Why kubelet, which uses the endpoints ``current`` now, must not be given this socket of a daemon with this status.

    "" if it may.
    """
    if status.get("front_end", "proxy") != "proxy":
        return f"the daemon runs as {status['front_end']}: it serves kubelet no socket, and needs none"
    # A separate image service is what `kubelet enable` writes for kubelet.
    reasons = [reason for topic, reason in status["degraded"].items() if topic != "images"]
    if reasons:
        return f"the daemon is degraded: {'; '.join(reasons)}"
    if status["mode"] == "off":
        return "the daemon's mode is off: it would place nothing"
    runtime = status["runtime"]
    if not runtime["connected"]:
        return f"the daemon has no connection to the runtime at {runtime['socket']}"
    if not points_at(socket, status["sockets"]):
        return f"the daemon does not serve {socket} but {', '.join(status['sockets']) or 'nothing'}"
    for endpoint in current:
        if not points_at(endpoint, [runtime["socket"], *status["sockets"]]):
            # Kubelet would see none of its pods.
            return (
                f"kubelet's runtime is {endpoint}, and the daemon's {runtime['socket']}; "
                "see relay.runtime_endpoint"
            )
    return ""


def unknown(setup: Setup, runtime: str, is_connected: Optional[bool]) -> str:
    """Why the running kubelet is another than its files describe, so that changing them may be no switch of it.

    ``is_connected``: to the daemon's ``runtime`` or to us; None: not known. "" if it is as they say.
    """
    if setup.other_config:
        return (
            f"kubelet runs with --config={setup.other_config}, and its files say {setup.config_file}: "
            "it was started before they were changed, or from elsewhere"
        )
    if is_connected is False:
        return f"kubelet is connected neither to the daemon's runtime at {runtime} nor to us: it uses another runtime"
    return ""


def socket_to_write(status: Mapping[str, Any], sockets: Sequence[str]) -> str:
    """The name of our socket that kubelet is given; on CRI-O the one by which it knows CRI-O."""
    return next((path for path in status["sockets"] if path.endswith("/run/crio/crio.sock")), sockets[0])
