"""Installs a host and takes that back: looks, asks ``plan.py``, carries the steps out, writes down what was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Optional

from cluster.installer.io.host import InstallationHost, StepFailed, packages_in
from cluster.installer.plan import (
    CannotInstall,
    HostState,
    InstallationStep,
    Target,
    back_target,
    choose,
    installed_target,
    refuse_foreign,
    steps,
)
from cluster.installer.record import BadRecord, InstallationRecord

#: Where the image has the packages (packaging/cluster/image.py).
IMAGE_PACKAGES = Path("/usr/share/cri-resmgr/packages")
#: Right after kubelet's restart the doctor may see a node that is not whole yet: asked so often, so many seconds apart.
DOCTOR_TRIES, DOCTOR_PAUSE_S = 6, 10.0


class ExitCode(IntEnum):
    """The exit code. STUCK: not everything could be taken back; the record is kept, and the next try goes on."""

    DONE = 0
    TAKEN_BACK = 1
    STUCK = 2


class Interrupted(Exception):
    """The pod is to end: what was begun is taken back."""


class Installer:
    """One run of it. ``is_ending``: whether the pod was told to end; asked before each step."""

    def __init__(
        self,
        host: InstallationHost,
        tell: Callable[[str], None],
        packages: Path = IMAGE_PACKAGES,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._tell = tell
        self._packages = packages
        self._is_ending = is_ending

    def install(self) -> tuple[ExitCode, str]:
        """What came of it, and one sentence. After TAKEN_BACK the host is as it was before this call."""
        return self._alone(self._install)

    def uninstall(self) -> tuple[ExitCode, str]:
        """The same, of taking back all that earlier calls of ``install`` did."""
        return self._alone(self._uninstall)

    def _alone(self, work: Callable[[], tuple[ExitCode, str]]) -> tuple[ExitCode, str]:
        with self._host.alone() as is_alone:
            if not is_alone:
                return ExitCode.TAKEN_BACK, "another installer is at work on this node; nothing was changed"
            try:
                return work()
            except (CannotInstall, BadRecord, StepFailed) as error:
                return ExitCode.TAKEN_BACK, f"{error}; nothing was changed"

    # ---------------------------------------------------------------- install

    def _install(self) -> tuple[ExitCode, str]:
        host = self._host
        # 1. What is there, and whether it may be touched.
        platform = host.platform()
        package = choose(packages_in(self._packages), platform)
        record = host.load()
        now = host.state(platform.kind, record)
        refuse_foreign(platform, now, record.known if record else ())
        if record is None:
            record = InstallationRecord(before=now)
        target = installed_target(package, record.before)
        todo = steps(platform.kind, now, target)
        # 2. Written down first: whatever comes between, the next installer knows how the host was.
        host.save(replace(record, underway=package))
        try:
            self._carry_out(todo)
            self._verify()
        except (StepFailed, Interrupted) as error:
            return self._take_back(platform.kind, replace(record, underway=package), str(error))
        # 3. It is so.
        host.save(InstallationRecord(record.before, installed=package))
        host.keep_only(package)
        done = "installed" if todo else "installed already, nothing was changed"
        return ExitCode.DONE, f"cri-resmgr {package.version} is {done}"

    def _verify(self) -> None:
        """:raises StepFailed: the doctor still finds a problem after a minute."""
        for last in (False,) * (DOCTOR_TRIES - 1) + (True,):
            problem = self._host.doctor()
            if not problem:
                self._tell("doctor: no problem")
                return
            self._tell(f"doctor: {problem}")
            if last:
                raise StepFailed(f"doctor: {problem}")
            self._stop_if_ending()
            self._host.pause(DOCTOR_PAUSE_S)

    def _take_back(self, kind: str, record: InstallationRecord, why: str) -> tuple[ExitCode, str]:
        self._tell(f"{why}: taking back what was done")
        stuck = self._reach(kind, record, record.way_back())
        if stuck:
            return ExitCode.STUCK, f"{why}; and taking it back failed: {stuck}"
        if record.installed is None:
            self._host.forget()
        else:
            self._host.save(replace(record, underway=None))
            self._host.keep_only(record.installed)
        return ExitCode.TAKEN_BACK, f"{why}; the node is as it was"

    # ---------------------------------------------------------------- uninstall

    def _uninstall(self) -> tuple[ExitCode, str]:
        record = self._host.load()
        if record is None:
            return ExitCode.DONE, "nothing on this node is from the installer"
        stuck = self._reach(self._host.platform().kind, record, back_target(record.before))
        if stuck:
            return ExitCode.STUCK, f"not everything was taken back: {stuck}"
        self._host.forget()
        return ExitCode.DONE, "what the installer had done on this node is taken back"

    def _reach(self, kind: str, record: InstallationRecord, target: Target) -> str:
        """Go to the target from whatever is there; why that stopped on the way, "" if it did not."""
        try:
            now = self._host.state(kind, record)
            self._carry_out(steps(kind, now, target), may_end=False)
            return unlike(self._host.state(kind, record), target)
        except StepFailed as error:
            return str(error)

    # ---------------------------------------------------------------- steps

    def _carry_out(self, todo: Sequence[InstallationStep], may_end: bool = True) -> None:
        """:raises StepFailed: one failed, and those after it were not begun. :raises Interrupted: see ``is_ending``."""
        for step in todo:
            if may_end:
                self._stop_if_ending()
            self._tell(f"{step.name}: {' '.join(step.command or step.removes)}")
            try:
                self._one(step)
            except OSError as error:
                raise StepFailed(f"{step.name}: {error}") from None
        if may_end:
            self._stop_if_ending()

    def _one(self, step: InstallationStep) -> None:
        if step.gives is not None:
            self._host.give(step.gives, self._packages)
        if step.removes:
            self._host.remove(step.removes)
        if step.command:
            answer = self._host.run(step.command, step.timeout_s)
            if answer.code != 0:
                raise StepFailed(f"{step.name}: {' '.join(step.command)} failed: {answer.said}")

    def _stop_if_ending(self) -> None:
        if self._is_ending():
            raise Interrupted("the installer's pod was told to end")


def unlike(now: HostState, target: Target) -> str:
    """In which of the things that matter to a node's pods it is not as it should be; "" in none."""
    wanted: Optional[str] = target.package.version if target.package else ""
    if now.version != wanted:
        return f"the package is {now.version or 'gone'}, expected {wanted or 'none'}"
    if now.version and now.kubelet is not target.kubelet:
        return "kubelet is not where it should point"
    return ""
