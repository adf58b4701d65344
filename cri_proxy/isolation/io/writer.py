"""Brings the kernel to what a plan says: reads what is there, writes what differs, keeps what was refused. Blocks.

The order of a round, each step for what differs only:

1. Groups of ours that are not wanted are removed, which frees their classes of service.
2. What is there now at places to be written is remembered on disk (``Originals``).
3. Groups are made, most important first. Where classes of service are used up, the least important one gives way.
4. Values are written, one line a group and resource; of a line that is refused each value alone. Of files in the plan's
   order; what is refused again once others are written.
5. Places that are not wanted any more get their value of before.
6. What was written is read: the kernel may have rounded it, and may keep to what it had.

A refusal is tried again after a pause that doubles, and at once where another value is wanted.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Union

from cri_proxy.bounded_files import read_text
from cri_proxy.isolation.io.originals import (
    FILE_NAME,
    Originals,
    is_away,
    is_gone,
    put_back_values,
    read_place,
    write_place,
)
from cri_proxy.isolation.io.resctrl import ResourceControl
from cri_proxy.isolation.io.scheduling import threads_of
from cri_proxy.isolation.io.subjects import Subject
from cri_proxy.isolation.model import (
    PREFIX,
    RESCTRL,
    ROOT,
    Group,
    SeenGroups,
    Setting,
    is_ours,
    is_value_of,
    place_parts,
    resctrl_place,
)
from cri_proxy.isolation.places import file_place
from cri_proxy.isolation.plan import Plan, subject_of
from cri_proxy.isolation.scheduling import SUBJECT as SCHEDULING
from cri_proxy.isolation.scheduling import THREADS
from policies.frozen import frozen

#: Seconds until a refusal is tried again, at first and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
#: Seconds that a round waits in all for values to show that were taken, and how long at a time.
PATIENCE_S, _PAUSE_S = 0.5, 0.005
#: How often another program must change a value of ours until that is a warning.
DRIFT_TOLD = 3
#: What of values is written: as wanted, as it was before us, or nothing as it was refused.
WRITTEN, PUT_BACK, REFUSED = "written", "put back", "refused"
#: What becomes of groups is counted as this subject.
GROUPS = "groups"
#: The places of refusals of the disk: before the first write, and after a value was put back.
REMEMBERED, FORGOTTEN = f"{FILE_NAME} before a write", f"{FILE_NAME} after it was put back"


@frozen
class Refusal:
    """What the kernel did not take. ``place``: of a group, "resctrl:GROUP". ``tries``: how often it was refused.

    ``is_final``: it never will, and is not asked again.
    """

    place: str
    value: str
    sentence: str
    tries: int
    again_s: float
    is_final: bool = False


@frozen
class Outcome:
    """How the kernel is after a round. ``groups``: those of ours that are there. ``drift``: how often another program has
    changed each place. ``writes``: of this round, by subject and what came of it. ``is_clean``: nothing of ours is left.
    """

    seen: SeenGroups = SeenGroups()
    groups: frozenset[str] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    drift: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    is_clean: bool = True


class Writer:
    """``originals`` must be loaded. ``subjects``: by name, those that compare values of files themselves."""

    def __init__(
        self,
        resctrl: ResourceControl,
        originals: Originals,
        clock: Callable[[], float],
        subjects: Iterable[Subject] = (),
    ) -> None:
        self._resctrl = resctrl
        self._originals = originals
        self._clock = clock
        self._subjects = {subject.name: subject for subject in subjects}
        self._threads = threads_of(self._subjects.values())
        self._refused: dict[str, Refusal] = {}
        #: What was written last at each place, and what the kernel showed then.
        self._set: dict[str, tuple[str, str]] = {}
        #: Groups that were there after the last round.
        self._made: set[str] = set()
        #: Places that are wanted, remembered, and are not there any more.
        self._gone: Collection[str] = ()
        #: Files' places that had their value when they were read last.
        self._held: dict[str, str] = {}
        #: Of files' places that were written.
        self._subject_of: dict[str, str] = {}
        self._patience_s = 0.0
        self._drift: Counter[str] = Counter()
        self._writes: Counter[tuple[str, str]] = Counter()
        #: Places that others share, and have written since our last write.
        self._changed: set[str] = set()

    def apply(self, plan: Plan, is_look: bool = True) -> Outcome:
        """One round. ``is_look`` False: of files only those whose setting is another than in the last round are read.

        An error of the tree of groups as a whole (it was unmounted) is as if it had no groups.
        """
        self._writes = Counter()
        seen, was_read = self._read(plan)
        if was_read:
            self._note_lost_groups(seen)
            self._remove_others(plan, seen)
            self._keep_groups(plan, seen)
        self._keep_files(plan, is_look)
        self._keep_threads(plan)
        self._put_back(plan)
        if was_read:
            if self._writes:
                seen, _ = self._read(plan)
            self._note_taken(plan, seen)
        self._forget_refusals(plan, seen)
        return Outcome(
            seen,
            frozenset(self._made),
            tuple(self._refused.values()),
            dict(self._drift),
            dict(self._writes),
            self._originals.is_empty,
        )

    @property
    def next_try_s(self) -> float:
        """When something that was refused is to be tried again; infinity: nothing."""
        return min((refusal.again_s for refusal in self._refused.values()), default=float("inf"))

    def _read(self, plan: Plan) -> tuple[SeenGroups, bool]:
        kept = any(place.startswith(RESCTRL) for place in self._originals.values)
        if not (plan.wanted.groups or plan.enforced.groups or self._originals.has_groups or kept):
            self._made.clear()
            return SeenGroups(), False
        try:
            return self._resctrl.seen(), True
        except OSError:
            self._made.clear()
            return SeenGroups(), False

    def _note_lost_groups(self, seen: SeenGroups) -> None:
        for name in self._made - seen.schemata.keys():
            self._drift[f"{RESCTRL}{name}"] += 1
            self._group_is_gone(name)

    def _group_is_gone(self, name: str) -> None:
        self._made.discard(name)
        for place in [each for each in self._set if is_value_of(each, name)]:
            del self._set[place]

    # ------------------------------------------------------------------ groups

    def _remove_others(self, plan: Plan, seen: SeenGroups) -> None:
        kept = {group.name for group in plan.enforced.groups}
        for name in seen.schemata:
            if is_ours(name) and name not in kept:
                self._remove(name)

    def _remove(self, name: str) -> None:
        if self._attempt(GROUPS, f"{RESCTRL}{name}", "", lambda: self._resctrl.remove(name), PUT_BACK):
            self._group_is_gone(name)

    def _keep_groups(self, plan: Plan, seen: SeenGroups) -> None:
        groups = [group for group in plan.enforced.groups if self._is_remembered(group, seen)]
        there = {name for name in seen.schemata if name} & {group.name for group in groups}
        for number, group in enumerate(groups):
            if group.name != ROOT and group.name not in there:
                weaker = [each.name for each in groups[number + 1 :] if each.name in there]
                if self._make(group.name, weaker, there):
                    there.add(group.name)
        self._made = there
        for group in groups:
            if group.name == ROOT or group.name in there:
                # A group that was made just now may have anything.
                self._keep_values(group, seen.schemata.get(group.name, {}))

    def _make(self, name: str, weaker: list[str], there: set[str]) -> bool:
        """Make a group, if need be in place of weaker ones that are there."""
        place = f"{RESCTRL}{name}"

        def make() -> None:
            while True:
                try:
                    return self._resctrl.make(name)
                except OSError as error:
                    if error.errno != errno.ENOSPC or not weaker:
                        raise
                    last = weaker.pop()
                    self._resctrl.remove(last)
                    self._group_is_gone(last)
                    there.discard(last)

        return self._attempt(GROUPS, place, name, make, WRITTEN)

    def _is_remembered(self, group: Group, seen: SeenGroups) -> bool:
        """Have on disk what the root group has, or that there are groups of ours. False: nothing may be written."""
        values = {}
        if group.name == ROOT:
            there = seen.schemata.get(ROOT, {})
            values = {
                resctrl_place(ROOT, resource, number): there[resource][number]
                for resource, wanted in group.schemata.items()
                for number, value in wanted.items()
                if there.get(resource, {}).get(number, value) != value
            }
        return self._remember(values, group.name != ROOT)

    def _remember(self, values: Mapping[str, str], groups: bool) -> bool:
        changed, self._changed = self._changed & values.keys(), set()
        if self._originals.has(values, groups) and not changed:
            return True
        remember = partial(self._originals.remember, values, groups, changed)
        return self._attempt(GROUPS, REMEMBERED, "", remember, "")

    def _keep_values(self, group: Group, seen: Mapping[str, Mapping[int, str]]) -> None:
        for resource, wanted in group.schemata.items():
            there, subject = seen.get(resource, {}), subject_of(resource)
            values = {
                number: value
                for number, value in wanted.items()
                if self._differs(resctrl_place(group.name, resource, number), value, there.get(number, ""))
                and self._may_try(resctrl_place(group.name, resource, number), value)
            }
            if values and not self._write(group.name, resource, values, subject, is_last=len(values) == 1):
                for number, value in values.items() if len(values) > 1 else ():
                    self._write(group.name, resource, {number: value}, subject, is_last=True)

    def _write(
        self, group: str, resource: str, values: Mapping[int, str], subject: str, is_last: bool
    ) -> bool:
        """``is_last``: a refusal is one of these values; else each is tried alone."""
        try:
            self._resctrl.write(group, resource, values)
        except OSError as error:
            for number, value in values.items() if is_last else ():
                self._refuse(
                    subject, resctrl_place(group, resource, number), value, error.strerror or str(error)
                )
            return False
        for number, value in values.items():
            self._written(subject, resctrl_place(group, resource, number), value, WRITTEN)
        return True

    # ------------------------------------------------------------------ files

    def _keep_files(self, plan: Plan, is_look: bool) -> None:
        """``is_look``: all places are read; else those whose setting is another one."""
        files = [each for each in plan.files if not each.place.startswith(THREADS)]
        settings = [each for each in files if is_look or self._held.get(each.place) != each.value]
        there, gone = self._read_places(settings)
        self._gone = self._originals.values.keys() & gone
        for each in settings:  # what was refused before, and is there by now
            if each.place in there and self._is_same(each.subject, each.place, there[each.place], each.value):
                self._refused.pop(each.place, None)
        self._patience_s = PATIENCE_S
        differing = [
            each
            for each in settings
            if each.place in there
            and self._differs(each.place, each.value, there[each.place], each.subject, each.is_shared)
            and self._may_try(each.place, each.value)
        ]
        values: dict[str, str] = {}
        for each in differing:
            values.update(self._beside(each))  # what was remembered last is put back first
            values[each.place] = there[each.place]
        taken: list[Setting] = []
        if values and self._remember(values, False):
            taken = self._write_files(differing)
        for each in taken:
            self._note_file(each, there[each.place])
        named = {each.place: each.value for each in plan.files}
        held = {} if is_look else self._held
        as_wanted = there.keys() - {each.place for each in differing} | {each.place for each in taken}
        self._held = {
            **{place: value for place, value in held.items() if named.get(place) == value},
            **{place: named[place] for place in as_wanted - self._refused.keys()},
        }

    def _write_files(self, settings: Sequence[Setting]) -> list[Setting]:
        """Write in the plan's order; returns those that were taken.

        What is refused is tried again once others are written: some values are taken only after others, as a minimum is
        that is above the maximum of before.
        """
        taken: list[Setting] = []
        refused: list[tuple[Setting, OSError]]
        left, refused = list(settings), []
        while left:
            refused = []
            for each in left:
                try:
                    write_place(each.place, each.value)
                except OSError as error:
                    if is_gone(error):
                        self._refused.pop(each.place, None)
                    else:
                        refused.append((each, error))
                else:
                    self._written(each.subject, each.place, each.value, WRITTEN)
                    self._subject_of[each.place] = each.subject
                    taken.append(each)
            left = [each for each, _ in refused] if len(refused) < len(left) else []
        for each, problem in refused:
            is_final = problem.errno in each.final
            self._refuse(each.subject, each.place, each.value, problem.strerror or str(problem), is_final)
        return taken

    def _read_places(self, settings: Iterable[Setting]) -> tuple[dict[str, str], set[str]]:
        """What is there, and the places that are gone; of one that is away neither. Each file is read once."""
        there: dict[str, str] = {}
        gone: set[str] = set()
        texts: dict[str, Union[str, OSError]] = {}
        for setting in settings:
            place = file_place(setting.place)
            if place.path not in texts:
                try:
                    texts[place.path] = read_text(place.path)
                except OSError as error:
                    texts[place.path] = error
            text = texts[place.path]
            if isinstance(text, str):
                there[setting.place] = place.value_in(text)
            elif is_gone(text) or is_away(text):
                self._refused.pop(setting.place, None)
                gone |= {setting.place} if is_gone(text) else set()
            else:
                self._refuse_once(setting, text.strerror or str(text))
        return there, gone

    def _beside(self, setting: Setting) -> dict[str, str]:
        """What is there now at the places that the kernel changes along with one."""
        found = {}
        for place in setting.beside:
            with contextlib.suppress(OSError):
                found[place] = read_place(file_place(place))
        return found

    def _note_file(self, setting: Setting, before: str) -> None:
        """What a file says after a write: the kernel may have rounded, or not have taken it.

        Some show a value a moment later: limits of cpufreq, which a worker of the kernel's takes over.
        """
        try:
            now = read_place(file_place(setting.place))
            while is_still := self._is_still(setting, before, now):
                if self._patience_s <= 0:
                    break
                self._patience_s -= _PAUSE_S
                time.sleep(_PAUSE_S)
                now = read_place(file_place(setting.place))
        except OSError:
            return  # one that can be written only
        self._set[setting.place] = setting.value, now
        if is_still:
            self._refuse(setting.subject, setting.place, setting.value, f"it was written, and is still {now}")

    def _is_still(self, setting: Setting, before: str, now: str) -> bool:
        return now == before and not self._is_same(setting.subject, setting.place, now, setting.value)

    def _refuse_once(self, setting: Setting, sentence: str) -> None:
        if self._may_try(setting.place, setting.value):
            self._refuse(setting.subject, setting.place, setting.value, sentence)

    def _keep_threads(self, plan: Plan) -> None:
        """Threads are read and set one by one, and a refusal is the class's (``ThreadScheduling``)."""
        places = [each.place for each in plan.files if each.place.startswith(THREADS)]
        if self._threads is None or not (places or self._threads.status()):
            return
        self._remember(self._threads.befores(places, self._originals.values), False)
        remembered = self._originals.values
        # Of a container that is not on disk no thread is set.
        kept = {place: remembered[place] for place in places if place in remembered}
        count = self._threads.keep(kept, remembered)
        if count:
            self._writes[SCHEDULING, WRITTEN] += count

    # ------------------------------------------------------------------ the way back

    def _put_back(self, plan: Plan) -> None:
        wanted = {place for setting in plan.files for place in (setting.place, *setting.beside)}
        wanted |= {
            resctrl_place(ROOT, resource, number)
            for group in plan.enforced.groups
            if group.name == ROOT
            for resource, values in group.schemata.items()
            for number in values
        }
        taken_over = {} if self._threads is None else self._threads.taken_over(self._originals.values)
        back = {
            place: value
            for place, value in self._originals.values.items()
            if place not in wanted and place not in taken_over and self._may_try(place, value)
        }
        cgroups = None if self._threads is None else self._threads.cgroups
        done, refused = put_back_values(back, self._resctrl, cgroups)
        for place in done:
            self._written(self._subject(place), place, back[place], PUT_BACK)
            self._set.pop(place, None)
            self._held.pop(place, None)
            self._subject_of.pop(place, None)
        done += self._gone
        # What the kernel refuses for good has its value still.
        done += [place for place in self._originals.values if place not in wanted and self._is_final(place)]
        done += [place for place, is_done in taken_over.items() if is_done]
        for place, sentence in refused.items():
            self._refuse(self._subject(place), place, back[place], sentence)
        has_groups = bool(self._made) or any(group.name for group in plan.enforced.groups)
        left = any(refusal.place.startswith(f"{RESCTRL}{PREFIX}") for refusal in self._refused.values())
        is_over = not has_groups and not left
        self._attempt(GROUPS, FORGOTTEN, "", partial(self._originals.forget, done, groups=is_over), "")

    # ------------------------------------------------------------------ one place

    def _differs(self, place: str, value: str, seen: str, subject: str = "", is_shared: bool = False) -> bool:
        last = self._set.get(place)
        if self._is_same(subject, place, seen, value) or last == (value, seen):
            if last is not None:
                self._set[place] = value, seen
            return False  # the second: as the kernel has rounded it
        if is_shared and last is not None and last[1] != seen:
            self._changed.add(place)
        if last is not None and last[0] == value:
            if not is_shared:
                self._drift[place] += 1
            del self._set[place]  # counted once, however often the write is refused
        return True

    def _is_same(self, subject: str, place: str, seen: str, value: str) -> bool:
        compares = self._subjects.get(subject)
        return seen == value or (compares is not None and compares.is_same(place, seen, value))

    def _may_try(self, place: str, value: str) -> bool:
        refusal = self._refused.get(place)
        if refusal is None or self._is_final(place):
            return refusal is None
        return refusal.value != value or self._clock() >= refusal.again_s

    def _is_final(self, place: str) -> bool:
        refusal = self._refused.get(place)
        return refusal is not None and refusal.is_final

    def _attempt(self, subject: str, place: str, value: str, act: Callable[[], object], outcome: str) -> bool:
        """``outcome``: what is counted; "" = nothing, as nothing of the kernel's is written."""
        if not self._may_try(place, value):
            return False
        try:
            act()
        except OSError as error:
            self._refuse(subject, place, value, error.strerror or str(error))
            return False
        self._written(subject, place, value, outcome)
        return True

    def _written(self, subject: str, place: str, value: str, outcome: str) -> None:
        self._refused.pop(place, None)
        if outcome:
            self._writes[subject, outcome] += 1

    def _refuse(self, subject: str, place: str, value: str, sentence: str, is_final: bool = False) -> None:
        before = self._refused.get(place)
        tries = before.tries + 1 if before is not None and before.value == value else 1
        pause_s = min(FIRST_PAUSE_S * 2 ** min(tries - 1, 10), LONGEST_PAUSE_S)
        again_s = float("inf") if is_final else self._clock() + pause_s
        self._refused[place] = Refusal(place, value, sentence, tries, again_s, is_final)
        self._writes[subject, REFUSED] += 1

    def _note_taken(self, plan: Plan, seen: SeenGroups) -> None:
        """What the kernel shows of the groups' values after a round that has written."""
        for group in plan.enforced.groups:
            there = seen.schemata.get(group.name, {})
            for resource, values in group.schemata.items():
                for number, value in values.items():
                    place = resctrl_place(group.name, resource, number)
                    if place not in self._refused and number in there.get(resource, {}):
                        self._set[place] = value, there[resource][number]

    def _forget_refusals(self, plan: Plan, seen: SeenGroups) -> None:
        """Refusals are forgotten of places that are wanted no more, and have nothing to be put back."""
        names = {group.name for group in plan.enforced.groups} | {
            name for name in seen.schemata if is_ours(name)
        }
        places = {setting.place for setting in plan.files} | self._originals.values.keys()
        for place in list(self._refused):
            of_group = any(place == f"{RESCTRL}{name}" or is_value_of(place, name) for name in names)
            if place not in places and place not in (REMEMBERED, FORGOTTEN) and not of_group:
                del self._refused[place]

    def _subject(self, place: str) -> str:
        """Of a place that has its value of before again; of a file that an earlier daemon has written it is not known."""
        if place.startswith(THREADS):
            return SCHEDULING
        return (
            subject_of(place_parts(place)[1])
            if place.startswith(RESCTRL)
            else self._subject_of.get(place, "files")
        )
