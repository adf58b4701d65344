"""The host under a folder, and commands in its namespaces: what is there, what is put there, what is run there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from cluster.installer.plan import (
    DOCTOR_S,
    FOLDER,
    INTELS,
    LEFTOVERS,
    PACKAGE,
    PROGRAM,
    UNITS,
    UNITS_S,
    HostState,
    Package,
    Platform,
)
from cluster.installer.record import PATH, InstallationRecord, read_record, write_record

#: The host's first process is seen by a pod with hostPID; its namespaces are the host's.
NSENTER = ("nsenter", "--target", "1", "--mount", "--uts", "--ipc", "--net", "--")
_QUERIES = {
    "deb": ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}"),
    "rpm": ("rpm", "--query", "--queryformat=installed %{VERSION}-%{RELEASE}"),
}
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "HOME": "/root",
    "DEBIAN_FRONTEND": "noninteractive",
}
#: Characters of what a failed command printed that are kept: a pod's termination message has 4,096 bytes.
_SAID_MOST = 1500


class StepFailed(Exception):
    """A command of the host failed; the message has its words."""


@dataclass(frozen=True)
class CommandResult:
    """What a command printed, and how it ended."""

    code: int
    out: str
    said: str


class InstallationHost:
    """``root``: where its files are; ``enter``: what runs a command on it; ``pause`` waits seconds."""

    def __init__(self, root: Path, enter: Sequence[str] = NSENTER) -> None:
        self.root = root
        self.enter = tuple(enter)
        self.pause = time.sleep

    # ---------------------------------------------------------------- looking

    def platform(self) -> Platform:
        """What it can take. Of several package managers the one that has packages is the host's own."""
        kind = ""
        if self._has("/usr/bin/dpkg") and self.path("/var/lib/dpkg/status").is_file():
            kind = "deb"
        elif self._has("/usr/bin/rpm"):
            kind = "rpm"
        has_intels = kind != "" and self._version(kind, INTELS) != ""
        return Platform(kind, self._pythons(), has_intels)

    def _pythons(self) -> tuple[str, ...]:
        versions = {
            match[1] for found in self.path("/usr/bin").glob("python3.*")
            if (match := re.fullmatch(r"python(3\.\d+)", found.name))
        }  # fmt: skip
        ordered = sorted(versions, key=lambda version: int(version.partition(".")[2]), reverse=True)
        with contextlib.suppress(OSError):
            default = Path(os.readlink(self.path("/usr/bin/python3"))).name.replace("python", "")
            ordered.sort(key=lambda version: version != default)
        return tuple(ordered)

    def state(self, kind: str, record: Optional[InstallationRecord]) -> HostState:
        """How it is now, with the package's bytes as the record knows them."""
        version = self._version(kind, PACKAGE)
        known = record.known if record is not None else ()
        # Installed and underway may be of one version; the later one has been put there, if any has.
        sha256 = next((package.sha256 for package in reversed(known) if package.version == version), "")
        if record is not None and record.underway is not None and record.underway.version == version:
            # It was cut off: whether it is there as a whole, its package manager is to see to.
            sha256 = ""
        return HostState(
            version.lstrip("?"),
            sha256,
            self._units("is-enabled", "enabled"),
            self._units("is-active", "active"),
            self._kubelet() if version else False,
            frozenset(path for path in LEFTOVERS if self.path(path).exists()),
        )

    def _version(self, kind: str, package: str) -> str:
        """As the package manager names it, with ``?`` before it if it is not wholly there; "" if it is not there."""
        answer = self.run((*_QUERIES[kind], package), UNITS_S)
        status, _, version = answer.out.strip().partition(" ")
        if answer.code != 0 or status in ("", "not-installed", "config-files"):
            return ""
        return version if status == "installed" else f"?{version}"

    def _units(self, question: str, wanted: str) -> frozenset[str]:
        """Those of UNITS of which systemctl answers so: a line for each, none for one that it does not know."""
        answers = self.run(("systemctl", question, *UNITS), UNITS_S).out.split()
        if len(answers) != len(UNITS):
            return frozenset()
        return frozenset(unit for unit, answer in zip(UNITS, answers) if answer == wanted)

    def _kubelet(self) -> Optional[bool]:
        answer = self.run((PROGRAM, "kubelet", "status", "--json"), UNITS_S)
        try:
            return bool(json.loads(answer.out)["points_at_us"])
        except (ValueError, KeyError, TypeError):
            return None

    def doctor(self) -> str:
        """The first problem, and how many there are; "" if there is none.

        :raises StepFailed: it cannot tell.
        """
        # A node whose kubelet has just come back is busy: what is slow there is no problem.
        answer = self.run((PROGRAM, "doctor", "--json", "--timeout", f"{DOCTOR_S / 2:g}"), DOCTOR_S)
        try:
            document = json.loads(answer.out)
            return str(document["summary"]) if document["verdict"] == "problem" else ""
        except (ValueError, KeyError, TypeError):
            raise StepFailed(f"cri-resmgr doctor did not answer: {answer.said}") from None

    # ---------------------------------------------------------------- changing

    def run(self, command: Sequence[str], timeout_s: float) -> CommandResult:
        """Run a command there, in a group of its own: a signal to us is not one to it.

        :raises StepFailed: it did not end in time, or cannot be started.
        """
        try:
            done = subprocess.run(
                [*self.enter, *command],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise StepFailed(f"{' '.join(command)}: not done after {timeout_s:.0f} s") from None
        except OSError as error:
            raise StepFailed(f"{self.enter[0]}: {error.strerror}") from None
        said = " ".join(f"{done.stderr} {done.stdout}".split())
        return CommandResult(done.returncode, done.stdout, said[-_SAID_MOST:])

    def give(self, package: Package, images: Path) -> None:
        """The package's file is in FOLDER of the host, from the image if it is not there already.

        :raises StepFailed: it is not in the image either.
        """
        target = self.path(f"{FOLDER}/{package.file}")
        if target.is_file() and _digest(target) == package.sha256:
            return
        source = images / package.name
        if not source.is_file() or _digest(source) != package.sha256:
            raise StepFailed(f"{package.name} is neither in this image nor in {FOLDER}")
        unfinished = target.with_name(f"{target.name}.new")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)

    def remove(self, paths: Sequence[str]) -> None:
        """Folders of the host, with what is in them; no symbolic link is followed."""
        for path in map(self.path, paths):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    # ---------------------------------------------------------------- what is written down

    def load(self) -> Optional[InstallationRecord]:
        """:raises BadRecord: there is one, and it cannot be read."""
        try:
            return read_record(self.path(PATH).read_text())
        except FileNotFoundError:
            return None

    def save(self, record: InstallationRecord) -> None:
        """On the disk when it returns: a node may lose its power in the next step."""
        path = self.path(PATH)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_name("record.new")
        with unfinished.open("w") as file:
            file.write(write_record(record))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def keep_only(self, package: Package) -> None:
        """Of the package files, the one that the next failure would go back to."""
        for file in self.path(FOLDER).iterdir():
            if file.suffix in (".deb", ".rpm") and file.name != package.file:
                file.unlink()

    def forget(self) -> None:
        """Nothing is left of the installer."""
        self.remove([FOLDER])

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other installer is at work on this host; the kernel ends the claim with this process."""
        # The folder itself is locked (flock(2)): a file of ours would be left behind.
        run = self.path("/run")
        run.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def path(self, name: str) -> Path:
        """A path of the host."""
        return self.root / name.lstrip("/")

    def _has(self, program: str) -> bool:
        return self.path(program).exists()


def packages_in(folder: Path) -> list[Package]:
    """The packages that the image carries; their names say what they are (packaging/build.py gives them)."""
    found = []
    for file in sorted(folder.glob("cri-resmgr[-_]*")):
        deb = re.fullmatch(r"cri-resmgr_(.+\+py(3\.\d+))_[^_]+\.deb", file.name)
        rpm = re.fullmatch(r"cri-resmgr-(.+\.py3(\d+))\.(?!src)[^.]+\.rpm", file.name)
        if deb:
            found.append(Package("deb", deb[2], deb[1], file.name, _digest(file)))
        elif rpm:
            found.append(Package("rpm", f"3.{rpm[2]}", rpm[1], file.name, _digest(file)))
    return found


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tell(sentence: str) -> None:
    """A line of the pod's log."""
    print(sentence, file=sys.stdout, flush=True)
