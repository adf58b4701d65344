"""What is written into the guest's file system: its names, the job's unit, and what it need not start."""

from __future__ import annotations

from pathlib import Path

#: Waits for nothing of the network or of devices; systemctl start multi-user.target works from there.
TARGET = "vm.target"
_UNITS = {
    TARGET: """\
[Unit]
Description=What the tests want of this machine
Requires=basic.target
Wants=vm-job.service
After=basic.target
AllowIsolate=yes
""",
    # It says how it ended on the line the host listens to; the machine then goes off, pods or not.
    "vm-job.service": """\
[Unit]
Description=The tests in this machine
After=basic.target dbus.socket
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
Type=oneshot
TimeoutStartSec=infinity
WorkingDirectory=/job
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
ExecStart=/bin/sh -c 'exec /usr/bin/python3 -m tests.vm.guest >/dev/job 2>&1'
ExecStopPost=/bin/sh -c 'echo "VM end $SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" >/dev/job'
""",
    # Without its ExecStartPre (modprobe overlay): the modules come with the initramfs. What Go starts for itself on
    # eight CPUs (of containerd, its shims, runc) mostly waits for others of its kind, and waiting is work for QEMU.
    "containerd.service.d/vm.conf": "[Service]\nExecStartPre=\nEnvironment=GOMAXPROCS=2 GOGC=400\n",
}
_NOT_WANTED = (
    *("systemd-timesyncd", "systemd-networkd", "systemd-resolved", "systemd-logind", "systemd-pstore"),
    *("systemd-update-utmp", "systemd-journal-flush", "systemd-random-seed", "systemd-machine-id-commit"),
    *("systemd-firstboot", "ldconfig", "systemd-journal-catalog-update", "systemd-update-done"),
    *(
        "systemd-sysusers",
        "systemd-hwdb-update",
        "systemd-binfmt",
        "systemd-remount-fs",
        "getty@",
        "serial-getty@",
    ),
    *("modprobe@configfs", "modprobe@drm", "modprobe@fuse", "modprobe@efi_pstore", "e2scrub_reap"),
)
_NOT_WANTED_UNITS = (
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount"),
    *("sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount"),
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "fstrim.timer",
    ),
    *("systemd-tmpfiles-clean.timer", "remote-fs.target", "getty.target"),
    *("systemd-ask-password-wall.path", "systemd-ask-password-console.path"),
)
_FILES = {
    "etc/fstab": "",
    "etc/hostname": "hygon\n",
    "etc/hosts": "127.0.0.1 localhost hygon\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "etc/resolv.conf": "",
}


def prepare_root(tree: Path) -> None:
    """Make an unpacked Debian into the guest's."""
    for name, content in _FILES.items():
        (tree / name).write_text(content)
    units = tree / "etc" / "systemd" / "system"
    for name, content in _UNITS.items():
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text(content)
    for name in (*(f"{service}.service" for service in _NOT_WANTED), *_NOT_WANTED_UNITS):
        _link(units / name, "/dev/null")
    # Where the job is mounted; containerd's overlays cannot lie on the overlay that is the root.
    for name in ("job", "var/lib/containerd"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    # Started by the job, once it is configured.
    (units / "multi-user.target.wants" / "containerd.service").unlink(missing_ok=True)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
