"""Takes the CPU quota off pods' cgroups and gives it back: cgroup v1 and v2, both of kubelet's drivers.

What was there is on disk before it goes, for what kubelet has written is more than the sum of the limits we see: it
counts init containers and overhead. It has a file of its own (``TakenFile``), which no loss of the records takes along.
Kubelet may write a limit anew any time; what it wrote last is then what is given back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.engine.model import ContainerRecord, Life, Management, pod_cgroup
from cri_proxy.engine.resources import is_unlimited
from policies.model import Pod

V1_QUOTA, V1_PERIOD, V2_LIMIT = "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"
#: Where the hierarchy with CPU quotas may be mounted, below the cgroup root: v1, v1 as most distributions
#: mount it, v2, and v2 beside v1.
MOUNTS = ("cpu", "cpu,cpuacct", "", "unified")
HINT = "let the daemon write there, or set cfs_quota: keep"
FILE = "pod-limits.json"


class TakenFile:
    """The limits that were taken away, in the state directory. ``boot_id``: another boot's cgroups are gone."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._path = directory / FILE
        self._boot_id = boot_id

    def read(self) -> str:
        """What was written last; "" = nothing in this boot. May wait for the disk."""
        try:
            document = json.loads(read_text(self._path))
            return json.dumps(document["pods"]) if document["boot_id"] == self._boot_id else ""
        except (OSError, ValueError, TypeError, KeyError):
            return ""

    def write(self, text: str) -> None:
        """Keep what ``Quotas`` asks to be kept. May wait for the disk.

        :raises OSError: what was written before is there still.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._path.with_name(FILE + ".new")
        beside.write_text(json.dumps({"boot_id": self._boot_id, "pods": json.loads(text)}))
        effects.before(effects.STATE, FILE)
        os.replace(beside, self._path)


class Quotas:
    """The pods of one node, by their ``cgroup_parent``. ``taken``: the limits that we have taken away, or are about to.

    ``keep`` begins to make a text durable: ``kept`` must follow with it, or ``not_kept``. Until then no limit is lifted.
    """

    def __init__(self, root: Path, log: Any, keep: Callable[[str], object]) -> None:
        self.taken: dict[str, str] = {}
        #: Those of them that are durable, and the pods whose limits go when theirs are.
        self._kept: dict[str, str] = {}
        self._waiting: set[str] = set()
        #: What ``keep`` was given last.
        self._asked = "{}"
        #: What could not be done, a sentence a pod.
        self.problems: dict[str, str] = {}
        self._root = root
        self._log = log
        self._keep = keep
        #: Why the quotas of containers in a pod are kept.
        self._refused: dict[str, str] = {}
        #: Pods whose limit is known to be gone, or never was.
        self._settled: set[str] = set()

    def recall(self, text: str) -> None:
        """Take over what ``keep`` was given last by the daemon before this one; "" = nothing."""
        try:
            self.taken = {str(pod): str(limit) for pod, limit in json.loads(text or "{}").items()}
            self._kept, self._asked = dict(self.taken), json.dumps(self.taken)
        except (ValueError, AttributeError):
            self._log.error("the limits of pods that were lifted are not known any more", text=text[:200])

    def kept(self, text: str, lifts: bool = True) -> None:
        """A text that was to be kept is durable: (``lifts``) limits that it has are lifted where that is still wanted."""
        self._kept = json.loads(text)
        for pod in sorted(self._waiting) if lifts else ():
            self._attempt(pod, self._lift)
        self._ask()

    def not_kept(self) -> None:
        """A text could not be kept: no limit is lifted; with the next look at the pods it is tried again."""
        self._asked = ""

    @property
    def is_waiting(self) -> bool:
        """Whether a limit is to be lifted once it is durable."""
        return bool(self._waiting)

    def _ask(self) -> None:
        text = json.dumps(self.taken)
        if text != self._asked:
            self._asked = text
            self._keep(text)

    def refusal(self, cgroup_parent: str) -> str:
        """Why a pod's limit cannot be lifted; "" if it can, or there is none. A few system calls."""
        sentence = self._refusal(cgroup_parent) if cgroup_parent else ""
        self._refused.pop(cgroup_parent, None)
        if sentence:
            self._refused[cgroup_parent] = sentence
        return sentence

    def _refusal(self, cgroup_parent: str) -> str:
        file = self._file(cgroup_parent)
        if file is None:
            return f"the pod's cgroup {pod_cgroup(cgroup_parent)} is not below {self._root}; {HINT}"
        try:
            if is_unlimited(_read(file)):
                return ""
            os.close(os.open(file, os.O_WRONLY))
        except OSError as error:
            return f"{file} cannot be written ({error.strerror}); {HINT}"
        return ""

    def follow(
        self, unlimited: Iterable[str], changed: Optional[Iterable[str]] = None, gives_back: bool = True
    ) -> None:
        """Lift the limits of these pods, and (``gives_back``) give back those of all others.

        ``changed``: the pods that have to be looked at again; None = all.
        """
        wanted = frozenset(unlimited)
        self._settled = self._settled & wanted if changed is not None else set()
        self._settled.difference_update(changed or ())
        for pod in sorted(wanted - self._settled):
            self._attempt(pod, self._lift)
        self._waiting &= wanted
        if gives_back:
            self.give_back(self.taken.keys() - wanted)
        self._ask()
        for pod in [p for p in self.problems if p not in wanted and p not in self.taken]:
            del self.problems[pod]

    def give_back(self, pods: Iterable[str]) -> None:
        """Give back the limits that were taken away from these pods."""
        chosen = frozenset(pods)
        self._waiting -= chosen
        for pod in sorted(self.taken.keys() & chosen):
            self._attempt(pod, self._give_back)
        self._ask()

    def drifted(
        self, grants: Iterable[ContainerRecord], cgroup_of: Callable[[str], Optional[str]]
    ) -> Iterator[tuple[str, bool, str]]:
        """Containers whose own cgroup does not say what it should: their ids, whether it has no limit, and what is wrong.

        That is: lifted ones that have a limit, and released ones whose limit has not come back (the daemon ended).
        """
        for grant in grants:
            was_lifted = grant.placement.lift_quota and grant.stance is Management.RELEASED
            owed = grant.quota if was_lifted else None
            path = cgroup_of(grant.key) if grant.lifted or owed else None
            file = None if path is None or grant.life is not Life.RUNNING else self._file(path)
            if file is None:
                continue
            try:
                unlimited = is_unlimited(_read(file))
            except OSError:
                continue  # it has ended meanwhile
            if grant.lifted and not unlimited:
                yield grant.key, False, "its CPU quota had been set again"
            elif owed and unlimited:
                yield grant.key, True, "its CPU quota had not come back"

    def sentences(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """What an operator should know of the pods there are: what could not be done, and what was refused."""
        live = {pod.cgroup_parent for pod in pods}
        self._refused = {pod: sentence for pod, sentence in self._refused.items() if pod in live}
        refused = (f"a CPU quota is not lifted: {sentence}" for sentence in self._refused.values())
        return (*self.problems.values(), *refused)

    # ------------------------------------------------------------------ one pod

    def _attempt(self, pod: str, step: Callable[[str, Path], None]) -> None:
        file = self._file(pod)
        if file is None:  # the pod is gone, and its limit with it
            self._forget(pod)
            return
        try:
            step(pod, file)
        except OSError as error:
            sentence = f"{file} cannot be written ({error.strerror}); {HINT}"
            if self.problems.get(pod) != sentence:
                self._log.warning("a pod's CPU quota could not be changed", problem=sentence)
            self.problems[pod] = sentence
        else:
            self.problems.pop(pod, None)

    def _lift(self, pod: str, file: Path) -> None:
        limit = _read(file)
        self._waiting.discard(pod)
        if not is_unlimited(limit):
            self.taken[pod] = limit
            if self._kept.get(pod) != limit:
                self._waiting.add(pod)
                return
            effects.before(effects.CGROUP, pod)
            file.write_text("-1" if file.name == V1_QUOTA else "max")
            self._log.info("pod's CPU quota lifted", file=str(file), was=limit)
        self._settled.add(pod)

    def _give_back(self, pod: str, file: Path) -> None:
        # One that is limited again was given another limit by kubelet.
        if is_unlimited(_read(file)):
            limit = self.taken[pod]
            effects.before(effects.CGROUP, pod)
            file.write_text(limit.split()[0] if file.name == V1_QUOTA else limit)
            self._log.info("pod's CPU quota given back", file=str(file), now=limit)
        self._forget(pod)

    def _forget(self, pod: str) -> None:
        self.taken.pop(pod, None)

    def _file(self, cgroup_parent: str) -> Optional[Path]:
        """The file with the quota of a cgroup, which may be v1's or v2's."""
        path = pod_cgroup(cgroup_parent)
        for mount in MOUNTS:
            for name in (V1_QUOTA, V2_LIMIT):
                file = self._root / mount / path / name
                if file.exists():
                    return file
        return None


def _read(file: Path) -> str:
    """``QUOTA PERIOD``, as cpu.max of cgroup v2 has it.

    :raises OSError: it is gone, or cannot be read.
    """
    text = read_text(file).strip()
    return f"{text} {read_text(file.with_name(V1_PERIOD)).strip()}" if file.name == V1_QUOTA else text
