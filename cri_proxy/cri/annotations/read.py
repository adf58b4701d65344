"""What a container's annotations ask of its placement: ours, nri-plugins', cri-resource-manager's, koordinator's.

The keys and their scopes are in keys.py, what each asks in docs/annotations.md. Where several say something
about one thing, ours counts before nri-plugins', before cri-resource-manager's, before koordinator's. What cannot be
understood is ignored and noted, and the next one counts; but a demand that cannot be understood is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from cri_proxy.cri.annotations.affinity import read_affinity
from cri_proxy.cri.annotations.keys import (
    AFFINITY_NAMESPACES,
    BLOCKIO,
    FOLLOWED,
    INTEL,
    KEYS,
    NOT_DONE,
    NRI,
    OURS,
    QUOTA_TURBO,
    RDT,
    Key,
    is_stranger,
    spellings,
    strangeness,
)
from cri_proxy.cri.annotations.koordinator import (
    NUMA_SPEC,
    QOS_LABEL,
    RESOURCE_SPEC,
    KoordinatorAnnotation,
    read_numa_spec,
    read_qos_class,
    read_resource_spec,
)
from cri_proxy.cri.annotations.values import of_container
from cri_proxy.text.annotation_value import BadAnnotation
from cri_proxy.text.sources import show_key
from policies.model import AffinityTerm, Container, PlacementPreferences, Pod, Qos

#: Against thousands of unknown keys in one pod.
MAX_NOTES = 20
_MARKS = (OURS, NRI, INTEL, RDT, BLOCKIO, QUOTA_TURBO, "koordinator.sh")


def understood(container: Container) -> Container:
    """The container with what its annotations, its pod's and its pod's labels ask."""
    preferences = read_preferences(container.name, container.annotations, container.pod, container.qos)
    return replace(container, preferences=preferences)


def read_preferences(
    name: str, annotations: Mapping[str, str], pod: Pod, qos: Optional[Qos] = None
) -> PlacementPreferences:
    """What is asked of the placement of container ``name``. Never raises: what is wrong is in ``notes`` or ``refusal``.

    ``annotations`` are the container's own, behind those of ``pod``. ``qos`` is the pod's class where it is known.
    """
    given = {**annotations, **pod.annotations}
    if QOS_LABEL not in pod.labels and not any(mark in key for key in given for mark in _MARKS):
        return _NOTHING
    reading = _Reading(name, given, pod, qos)
    # 1. Annotations with one value, in the order in which they count.
    for key in KEYS:
        reading.read(key)
    # 2. Those that say several things at once.
    for sign, kind in ((+1, "affinity"), (-1, "anti-affinity")):
        reading.read_affinity(kind, sign)
    reading.read_koordinator()
    # 3. What is not understood here.
    reading.note_strangers()
    preferences = replace(_NOTHING, **reading.said, affinity=tuple(reading.terms), refusal=reading.refusal)
    return replace(preferences, notes=_capped(reading.notes))


def followed(pod: Pod, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Pod:
    """The pod with what these labels and annotations of it say of classes; all else stays as it was at its start."""
    keys = [key for key in (*annotations, *pod.annotations) if key.startswith(FOLLOWED)]
    label = labels.get(QOS_LABEL)
    is_same = all(annotations.get(key) == pod.annotations.get(key) for key in keys)
    if is_same and label == pod.labels.get(QOS_LABEL):
        return pod
    rest = {key: text for key, text in pod.annotations.items() if not key.startswith(FOLLOWED)}
    now = {key: annotations[key] for key in keys if key in annotations}
    labelled = {key: text for key, text in pod.labels.items() if key != QOS_LABEL}
    labelled.update({} if label is None else {QOS_LABEL: label})
    return replace(pod, labels=labelled, annotations={**rest, **now})


_NOTHING = PlacementPreferences()


def _capped(notes: list[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(notes))
    if len(unique) > MAX_NOTES:
        unique[MAX_NOTES:] = [f"{len(unique) - MAX_NOTES} more annotations are not understood"]
    return tuple(unique)


@dataclass
class _Reading:
    """What has been understood so far of one container's annotations."""

    container: str
    annotations: Mapping[str, str]
    pod: Pod
    qos: Optional[Qos]
    said: dict[str, Any] = field(default_factory=dict)
    terms: list[AffinityTerm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusal: str = ""

    def read(self, key: Key) -> None:
        found = self._find(key.key, key.alias)
        if found is None:
            return
        name, text = found
        read = of_container(key.read, self.container) if key.by_container else key.read
        try:
            value = read(text)
        except BadAnnotation as error:
            self._fault(name, key.field, str(error), key.demands(text))
            return
        if key.guaranteed_only and value == "exclusive" and self.qos in (Qos.BURSTABLE, Qos.BESTEFFORT):
            value = ""
        if value is not None:
            self.said.setdefault(key.field, value)

    def read_affinity(self, kind: str, sign: int) -> None:
        for namespace in AFFINITY_NAMESPACES:
            found = self._find(f"{namespace}/{kind}", f"{kind}.{namespace}")
            if found is None:
                continue
            name, text = found
            try:
                read = read_affinity(text, self.container, self.pod, sign, may_require=namespace == OURS)
            except BadAnnotation as error:
                self._fault(name, "", str(error), False)
                continue
            for note in read.notes:
                self._fault(name, "", note, False)
            if read.terms:
                self.terms += read.terms
                return

    def read_koordinator(self) -> None:
        for where, key, field_name, read in _KOORDINATOR:
            text = (self.annotations if where == "annotation" else self.pod.labels).get(key)
            if text is None:
                continue
            said: KoordinatorAnnotation = read(text)
            for phrase in said.notes:
                self._fault(key, field_name, phrase, False, where)
            for phrase in said.refusals:
                self._fault(key, field_name, phrase, True, where)
            if said.value:
                self.said.setdefault(field_name, said.value)

    def note_strangers(self) -> None:
        for key, what in NOT_DONE.items():
            found = self._find(key)
            if found is not None and found[1].strip() not in _OFF:
                self.notes.append(f"annotation {found[0]}: nothing here does that ({what}); it is ignored")
        strangers = [key for key in self.annotations if is_stranger(key)]
        # What is cut off anyway (see _capped) needs no sentence: the nearest key takes long to find.
        sentences = [f"annotation {show_key(key)}: {strangeness(key)}" for key in strangers[:MAX_NOTES]]
        self.notes += [f"{sentence}; it is ignored" for sentence in sentences] + strangers[MAX_NOTES:]

    def _find(self, key: str, alias: str = "") -> Optional[tuple[str, str]]:
        for spelling in spellings(key, alias, self.container):
            if spelling in self.annotations:
                return spelling, self.annotations[spelling]
        return None

    def _fault(
        self, key: str, field_name: str, phrase: str, demands: bool, where: str = "annotation"
    ) -> None:
        # A demand that is overridden by one that counts more is none any more.
        if demands and field_name not in self.said:
            who = f"{self.pod.namespace}/{self.pod.name}/{self.container}"
            self.refusal = self.refusal or f"{who} demands by {where} {key} what is not understood: {phrase}"
        else:
            self.notes.append(f"{where} {key}: {phrase}; it is ignored")


_OFF = ("false", "False", "FALSE", "f", "F", "0")

_KOORDINATOR: tuple[tuple[str, str, str, Callable[[str], KoordinatorAnnotation]], ...] = (
    ("label", QOS_LABEL, "ownership", read_qos_class),
    ("annotation", RESOURCE_SPEC, "smt", read_resource_spec),
    ("annotation", NUMA_SPEC, "numa", read_numa_spec),
)
