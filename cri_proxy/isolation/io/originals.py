"""What was at each place before the first write of ours there, on disk, and the way back to it.

``put_back`` needs nothing but the file and the kernel: no daemon, no configuration, no list of the runtime's.

After a boot the kernel has its own values again, so a file of another boot says nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Optional

from bpf.service.json_file import write_json
from cri_api.printable import printable
from cri_proxy import effects
from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io import monitoring_groups
from cri_proxy.isolation.io.resctrl import ResourceControl, machine_resctrl
from cri_proxy.isolation.io.scheduling import put_back_threads
from cri_proxy.isolation.model import FILE, RESCTRL, ROOT, is_ours, place_parts
from cri_proxy.isolation.places import FilePlace, file_place
from cri_proxy.isolation.scheduling import THREADS
from cri_proxy.node.cgroups import Cgroups

FILE_NAME = "isolation.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Without a daemon threads are looked at again so often, and after so many seconds: a fork copies memory for 10 ms a GiB.
THREAD_LOOKS, THREAD_LOOK_S = 20, 0.1


class Originals:
    """The values of before in the state directory, by place, in the order of writing. All of it but ``values`` blocks."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self.values: dict[str, str] = {}
        #: Whether groups of ours may be there.
        self.has_groups = False
        #: Whether the file says it; one that cannot be read says nothing that a successor could use.
        self._is_kept = True
        self._path = directory / FILE_NAME
        self._boot_id = boot_id

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.has_groups

    def load(self) -> None:
        """Read what was there before; a file of another boot, or one that is none of ours, counts as none."""
        self.values, self.has_groups, self._is_kept = {}, False, True
        try:
            document = json.loads(read_text(self._path))
            if document["boot_id"] == self._boot_id:
                values = {str(place): str(value) for place, value in document["values"].items()}
                self.values, self.has_groups = values, bool(document["groups"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            # Groups are known by their names.
            self.has_groups, self._is_kept = True, False

    def has(self, values: Mapping[str, str], groups: bool) -> bool:
        """Whether all of this is remembered."""
        return self._is_kept and values.keys() <= self.values.keys() and groups <= self.has_groups

    def remember(self, values: Mapping[str, str], groups: bool, changed: Collection[str] = ()) -> None:
        """Have these on disk before anything is written there. What is remembered of a place already stays.

        ``changed``: places of which the new value counts.

        :raises OSError: they are not on disk: nothing may be written there.
        """
        more = {
            place: value for place, value in values.items() if place not in self.values or place in changed
        }
        if not self.has(values, groups) or more:
            self._write({**self.values, **more}, groups or self.has_groups)

    def forget(self, places: Collection[str], groups: bool = False) -> None:
        """These were put back. ``groups``: and no group of ours is there. With the last one the file goes.

        :raises OSError: the disk refuses; they are put back once more then, which changes nothing.
        """
        left = {place: value for place, value in self.values.items() if place not in places}
        has_groups = self.has_groups and not groups
        if left or has_groups:
            if (left, has_groups) != (self.values, self.has_groups):
                self._write(left, has_groups)
            return
        self.values, self.has_groups, self._is_kept = {}, False, True
        if self._path.exists():
            effects.before(effects.STATE, FILE_NAME)
            self._path.unlink(missing_ok=True)

    def _write(self, values: dict[str, str], has_groups: bool) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        effects.before(effects.STATE, FILE_NAME)
        document = {"boot_id": self._boot_id, "values": values, "groups": has_groups}
        write_json(str(self._path), document)
        self.values, self.has_groups, self._is_kept = values, has_groups, True


def write_file(path: str, text: str) -> None:
    """Write a value to a file of the kernel's, which is never made.

    :raises OSError: the kernel refuses.
    """
    effects.before(effects.SYSTEM, path)
    # With O_NONBLOCK a smaller memory.high is written at once, and what is over it is reclaimed by those that allocate.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def write_place(place: str, value: str) -> None:
    """Have a value at a file's place.

    :raises OSError: the kernel refuses; where ``is_gone`` says so, there is no such place any more.
    """
    parts = file_place(place)
    try:
        write_file(parts.path, parts.written(value))
    except OSError as error:
        if parts.line and error.errno == errno.EOPNOTSUPP:
            # The disk has another scheduler: what the one before had of the cgroup ended with it.
            raise OSError(errno.ENODEV, error.strerror) from None
        raise


def read_place(place: FilePlace) -> str:
    """The value at a place.

    :raises OSError: as ``write_place``.
    """
    return place.value_in(read_text(place.path))


def is_gone(error: OSError) -> bool:
    """Whether a file's place has ended: a container, a device or a CPU that was there before."""
    # Of a file that was open when its cgroup ended, and of a device that a line names, it is ENODEV.
    return error.errno in (errno.ENOENT, errno.ENODEV)


def is_away(error: OSError) -> bool:
    """Whether a place that cannot be read will be there again: a cpufreq policy whose CPUs are offline."""
    return error.errno == errno.EBUSY


def put_back_values(
    values: Mapping[str, str], resctrl: ResourceControl, cgroups: Optional[Cgroups] = None
) -> tuple[list[str], dict[str, str]]:
    """Write the values of before, what was written last first; what is refused again once others are written.

    ``cgroups``: where those of threads are, None = where they are mounted. Returns the places that are
    done, or gone, and what was refused: place -> sentence. One that is away is neither, nor one whose
    threads had to be set: others were being forked perhaps, and a later call finds them.
    """
    done: list[str] = []
    refused: dict[str, str] = {}
    left = list(reversed(list(values)))
    while left:
        refused = {}
        for place in left:
            try:
                if not _put_back_place(place, values[place], resctrl, cgroups):
                    continue
            except OSError as error:
                if not is_gone(error) and not _is_for_good(place, error):  # resctrl may be unmounted, too
                    refused[place] = error.strerror or str(error)
                    continue
            done.append(place)
        left = list(refused) if len(refused) < len(left) else []
    return done, refused


def _is_for_good(place: str, error: OSError) -> bool:
    """Whether the kernel takes no other value until the cgroup ends (openEuler's cpu_qos_write)."""
    return error.errno == errno.EINVAL and place.endswith("/cpu.qos_level")


def _put_back_place(
    place: str, value: str, resctrl: ResourceControl, cgroups: Optional[Cgroups] = None
) -> bool:
    """False: the place is away, and has its value of before when it comes and this is done again."""
    if place.startswith(FILE):
        try:
            if read_place(file_place(place)) == value:
                return True  # some refuse even what they have
        except OSError as error:  # one that can be written only
            if is_away(error):
                return False
        write_place(place, value)
    elif place.startswith(RESCTRL):
        group, resource, number = place_parts(place)
        if group == ROOT:  # the others go as a whole
            resctrl.write(group, resource, {number: value})
    elif place.startswith(THREADS):
        return put_back_threads(place, value, cgroups or Cgroups())
    return True


def remove_groups(resctrl: ResourceControl) -> dict[str, str]:
    """Remove all groups of ours; what was refused: group -> sentence."""
    try:
        names: Iterable[str] = [name for name in resctrl.seen().schemata if is_ours(name)]
    except OSError:
        return {}  # no tree, no groups
    refused = {}
    for name in names:
        try:
            resctrl.remove(name)
        except OSError as error:
            refused[f"{RESCTRL}{name}"] = error.strerror or str(error)
    return refused


def put_back(
    directory: Path,
    resctrl: Optional[ResourceControl] = None,
    boot_id_file: Path = BOOT_ID,
    cgroups: Optional[Cgroups] = None,
) -> list[str]:
    """Have the kernel as it was before isolation wrote there; returns a sentence for each place that refuses. Blocks.

    What could not be put back stays in the file. Where there is no file nothing is read of the kernel.
    """
    problems = monitoring_groups.put_back(directory)
    if not (directory / FILE_NAME).exists():
        return problems
    control = resctrl or machine_resctrl()
    originals = Originals(directory, read_text(boot_id_file).strip())
    originals.load()
    done, refused = put_back_values(originals.values, control, cgroups)
    for _ in range(THREAD_LOOKS):
        left = _of_threads(originals.values, {*done, *refused})
        if not left:
            break
        time.sleep(THREAD_LOOK_S)
        more, refused_now = put_back_values(left, control, cgroups)
        done += more
        refused.update(refused_now)
    refused.update(
        dict.fromkeys(_of_threads(originals.values, {*done, *refused}), "its threads come too fast")
    )
    refused_groups = remove_groups(control) if originals.has_groups else {}
    with contextlib.suppress(OSError):
        originals.forget(done, groups=not refused_groups)
    away = dict.fromkeys(originals.values.keys() - done, "its CPUs are offline")
    return problems + [
        f"{place} is not as it was before: {reason}"
        for place, reason in {**away, **refused, **refused_groups}.items()
    ]


def _of_threads(values: Mapping[str, str], but: Collection[str]) -> dict[str, str]:
    return {place: value for place, value in values.items() if place.startswith(THREADS) and place not in but}


def main(directory: str) -> None:
    """What the removal of the package calls: ends the process with 1 where something is left."""
    problems = put_back(Path(directory))
    for sentence in problems:
        print(printable(f"cri-resmgr: {sentence}"), file=sys.stderr)
    sys.exit(1 if problems else 0)
