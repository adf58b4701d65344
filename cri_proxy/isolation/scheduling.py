"""Scheduling by class: the policy, nice value and I/O priority that the threads of a container should have. Pure.

A thread has attributes of two kinds, for CPUs (sched_setattr(2), setpriority(2)) and for disks (ioprio_set(2)). Of each kind
the first of these counts:

1. as the class wants them: nothing to do
2. as the thread began, or as a class before wanted them: they are set
3. something else: the program has set them itself, and they are left

A thread with SCHED_RESET_ON_FORK has been set by its program, unless its class says so. What a class does not name stays as
the thread began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Optional

from cri_proxy.isolation.model import IsolatedContainer, Setting
from cri_proxy.isolation.named import named_class
from cri_proxy.isolation.notes import not_configured
from policies.frozen import frozen

SUBJECT = "scheduling"
#: What begins the place of a setting of threads, "threads:/CGROUP-OF-THE-POD#CONTAINER WORDS", by which it is found again.
THREADS = "threads:"

#: Policies as nri-plugins write them, and the kernel's numbers (include/uapi/linux/sched.h).
OTHER, FIFO, ROUND_ROBIN, BATCH, IDLE, DEADLINE = "other", "fifo", "rr", "batch", "idle", "deadline"
POLICIES = {OTHER: 0, FIFO: 1, ROUND_ROBIN: 2, BATCH: 3, IDLE: 5, DEADLINE: 6}
REALTIME = (FIFO, ROUND_ROBIN)
#: Those that have a nice value.
NICE = (OTHER, BATCH, IDLE)
#: Classes of I/O, and the kernel's numbers (include/uapi/linux/ioprio.h).
IO_CLASSES = {"none": 0, "rt": 1, "be": 2, "idle": 3}
RESET_ON_FORK = "reset-on-fork"
#: Flags that the kernel takes from a class, and its numbers.
FLAGS = {RESET_ON_FORK: 0x01, "reclaim": 0x02, "dl-overrun": 0x04}
#: Flags that only say that nothing is set: of the policy, and of its parameters.
KEEP_POLICY, KEEP_PARAMS = "keep-policy", "keep-params"


@frozen
class CpuAttributes:
    """How a thread gets CPUs. ``runtime``, ``deadline`` and ``period`` are of the policy deadline alone, microseconds."""

    policy: str = OTHER
    nice: int = 0
    priority: int = 0
    runtime: int = 0
    deadline: int = 0
    period: int = 0
    flags: frozenset[str] = frozenset()


@frozen
class IoAttributes:
    """How a thread's requests to disks are served. ``level``: 0 first, 7 last; of the classes none and idle 0."""

    cls: str = "none"
    level: int = 0


@frozen
class Attributes:
    """What one thread has."""

    cpu: CpuAttributes = CpuAttributes()
    io: IoAttributes = IoAttributes()


@frozen
class SchedulingClass:
    """A class of the configured section. None: it says nothing of that."""

    policy: Optional[str] = None
    nice: Optional[int] = None
    priority: Optional[int] = None
    runtime: Optional[int] = None
    deadline: Optional[int] = None
    period: Optional[int] = None
    flags: frozenset[str] = frozenset()
    io_class: Optional[str] = None
    io_priority: Optional[int] = None

    @property
    def is_of_first_thread(self) -> bool:
        """Whether only the first thread of a container is set: what it forks is as the kernel has it by default."""
        return RESET_ON_FORK in self.flags

    def over(self, before: Attributes) -> Attributes:
        """What a thread should have that began with ``before``."""
        return Attributes(self._cpu(before.cpu), self._io(before.io))

    def _cpu(self, before: CpuAttributes) -> CpuAttributes:
        policy = before.policy if self.policy is None or KEEP_POLICY in self.flags else self.policy
        flags = self.flags & FLAGS.keys()
        numbers = (self.nice, self.priority, self.runtime, self.deadline, self.period)
        if policy == before.policy and not flags and all(each is None for each in numbers):
            return before
        if KEEP_PARAMS in self.flags:
            return replace(before, policy=policy, flags=flags)
        if policy == DEADLINE:
            deadline = self.deadline or self.period or before.deadline
            return CpuAttributes(
                policy,
                runtime=self.runtime or before.runtime,
                deadline=deadline,
                period=self.period or deadline,
                flags=flags,
            )
        if policy in REALTIME:
            return CpuAttributes(policy, priority=self.priority or before.priority, flags=flags)
        nice = self.nice if self.nice is not None else before.nice
        return CpuAttributes(policy, nice=nice, flags=flags & {RESET_ON_FORK})

    def _io(self, before: IoAttributes) -> IoAttributes:
        if self.io_class is None and self.io_priority is None:
            return before
        cls = self.io_class or "be"
        return IoAttributes(cls, self.io_priority or 0 if cls in ("rt", "be") else 0)


@frozen
class SchedulingSection:
    """The option ``control.scheduling``. ``namespaces`` and ``qos``: the class of each, QoS classes in lower case."""

    classes: Mapping[str, SchedulingClass] = field(default_factory=dict)
    namespaces: Mapping[str, str] = field(default_factory=dict)
    qos: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    @property
    def has_classes(self) -> bool:
        """Whether there is anything to be written."""
        return bool(self.classes)

    def class_of(self, each: IsolatedContainer, balloon_class: str = "") -> Optional[str]:
        """The name of a container's class, None = it has none. ``balloon_class``: that of its balloon's type."""
        container = each.container
        if container is None:
            return None
        given = (
            balloon_class,
            self.namespaces.get(container.pod.namespace, ""),
            self.qos.get(container.qos.value.lower(), ""),
        )
        return named_class(self.classes, each, container.preferences.scheduling_class, given)


# ---------------------------------------------------------------------- one thread


@frozen
class Decision:
    """What is done about a thread. ``cpu`` and ``io``: what is set, None = nothing. ``is_own``: something was left that its
    program has set."""

    cpu: Optional[CpuAttributes] = None
    io: Optional[IoAttributes] = None
    is_own: bool = False


def decide(seen: Attributes, wanted: Attributes, known: Iterable[Attributes]) -> Decision:
    """``known``: what the thread may have begun with, or was given before."""
    known = tuple(known)
    cpu: Optional[CpuAttributes] = None
    io: Optional[IoAttributes] = None
    is_own = False
    if _as_counted(seen.cpu) != _as_counted(wanted.cpu):
        if any(_as_counted(seen.cpu) == _as_counted(each.cpu) for each in known):
            cpu = wanted.cpu
        else:
            is_own = True
    seen_io = _said_io(seen)
    if seen_io != _said_io(wanted):
        if any(seen_io == _said_io(each) for each in known):
            io = wanted.io
        else:
            is_own = True
    return Decision(cpu, io, is_own)


def _as_counted(cpu: CpuAttributes) -> CpuAttributes:
    """The attributes as the kernel tells them: of a policy without a nice value it tells none."""
    return cpu if cpu.policy in NICE else replace(cpu, nice=0)


def _said_io(each: Attributes) -> IoAttributes:
    """A priority that says what a thread without any has by its policy and nice value is none (ioprio_get(2))."""
    default = IoAttributes("be", (each.cpu.nice + 20) // 5)
    if each.cpu.policy == IDLE:
        default = IoAttributes("idle")
    elif each.cpu.policy in (*REALTIME, DEADLINE):
        default = IoAttributes("rt", 4)
    return IoAttributes() if each.io == default else each.io


# ---------------------------------------------------------------------- as text, in places and on disk

_NUMBERS = ("nice", "priority", "runtime", "deadline", "period")


def write_class(cls: SchedulingClass) -> str:
    """A class in one line, such as "batch nice=10 io=be:6"."""
    words = [cls.policy] if cls.policy is not None else []
    words += [f"{name}={value}" for name in _NUMBERS if (value := getattr(cls, name)) is not None]
    words += [f"flags={','.join(sorted(cls.flags))}"] if cls.flags else []
    if cls.io_class is not None or cls.io_priority is not None:
        level = "" if cls.io_priority is None else f":{cls.io_priority}"
        words.append(f"io={cls.io_class or 'be'}{level}")
    return " ".join(words)


def read_class(text: str) -> SchedulingClass:
    """The way back.

    :raises ValueError: these are not such words.
    """
    found: dict[str, object] = {}
    for word in text.split():
        name, is_given, value = word.partition("=")
        if not is_given and name in POLICIES:
            found["policy"] = name
        elif name in _NUMBERS:
            found[name] = int(value)
        elif name == "flags":
            found["flags"] = frozenset(value.split(","))
        elif name == "io" and value.partition(":")[0] in IO_CLASSES:
            found["io_class"], _, level = value.partition(":")
            found["io_priority"] = int(level) if level else None
        else:
            raise ValueError(f"{word!r} is no word of a scheduling class")
    return SchedulingClass(**found)  # type: ignore[arg-type]


def write_attributes(seen: Attributes) -> str:
    """What a thread has in one line."""
    cpu, io = seen.cpu, seen.io
    return write_class(
        SchedulingClass(
            cpu.policy,
            cpu.nice if cpu.policy in NICE else None,
            cpu.priority or None,
            cpu.runtime or None,
            cpu.deadline or None,
            cpu.period or None,
            cpu.flags,
            io.cls,
            io.level,
        )
    )


def read_attributes(text: str) -> Attributes:
    """The way back.

    :raises ValueError: these are not such words.
    """
    return read_class(text).over(Attributes())


def threads_place(pod: str, key: str, words: str) -> str:
    """The place of what a container's threads should have. ``pod``: the cgroup of its pod."""
    return f"{THREADS}{pod}#{key} {words}"


def threads_parts(place: str) -> tuple[str, str, str]:
    """Pod's cgroup, container and words of a place that ``threads_place`` has made."""
    pod, _, rest = place[len(THREADS) :].rpartition("#")
    key, _, words = rest.partition(" ")
    return pod, key, words


# ---------------------------------------------------------------------- the subject's plan


def settings(
    containers: Iterable[IsolatedContainer],
    pods: Mapping[str, str],
    section: SchedulingSection,
    balloon_classes: Mapping[str, str] = {},
) -> list[Setting]:
    """What the threads of all containers with a class should have.

    ``pods``: the cgroups of pods by the containers' keys; of others nothing can be said. ``balloon_classes``: by type. What
    an NRI plugin has asked for counts before any class.
    """
    found = []
    for each in containers:
        words, why = each.scheduling, f"a plugin asks so for {each.path}"
        if not words:
            name = section.class_of(each, balloon_classes.get(each.balloon, ""))
            words = "" if name is None else write_class(section.classes[name])
            why = f"{each.path} is of the scheduling class {name}"
        if words and each.key in pods:
            place = threads_place(pods[each.key], each.key, words)
            found.append(Setting(SUBJECT, place, words, why, (each.key,)))
    return found


def unknown_classes(
    containers: Iterable[IsolatedContainer], section: SchedulingSection, balloon_classes: Collection[str]
) -> tuple[str, ...]:
    """A sentence for each class that is asked for and not configured."""
    asked = {each.container.preferences.scheduling_class for each in containers if each.container is not None}
    return not_configured("scheduling", (asked | set(balloon_classes)) - {""} - section.classes.keys())
