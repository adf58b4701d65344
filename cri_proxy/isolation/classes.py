"""The class of a container: what it is to the others. Pure.

The first that says something counts:

1. the annotation ``cri-resmgr.io/class`` in any of its forms (``PlacementPreferences.isolation_class``)
2. ``volcano.sh/preemptable: "true"`` on the pod, as rubik and Volcano read it: batch
3. Koordinator's QoS class, a label of the pod
4. the selectors of the options ``isolation.protected`` and ``isolation.batch``: balloons before namespaces before QoS
   classes, and of one rank protected before batch
5. nothing of these: standard
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

from cri_proxy.cri.annotations.keys import PREEMPTABLE
from cri_proxy.cri.annotations.koordinator import QOS_LABEL
from cri_proxy.isolation.model import BATCH, CLASSES, PROTECTED, STANDARD, IsolationClass
from policies.model import Container
from policies.settings import ClassSelectors

#: Koordinator's classes. LS is latency-sensitive without CPUs of its own; SYSTEM says nothing of what a container is.
_KOORDINATOR = {"LSE": PROTECTED, "LSR": PROTECTED, "LS": STANDARD, "BE": BATCH}

_ANNOTATED = {kind: IsolationClass(kind, "annotation cri-resmgr.io/class") for kind in CLASSES}
_PREEMPTABLE = IsolationClass(BATCH, f"annotation {PREEMPTABLE}")
_OTHER = IsolationClass(STANDARD, "nothing says otherwise")


def class_of(container: Container, group: str, selectors: ClassSelectors) -> IsolationClass:
    """What a container is to the others. ``group``: the balloon that it is in, "" = none."""
    annotated = container.preferences.isolation_class
    if annotated:
        return _ANNOTATED[annotated]
    pod = container.pod
    if pod.annotations.get(PREEMPTABLE, "").strip().lower() == "true":
        return _PREEMPTABLE
    koordinator = pod.labels.get(QOS_LABEL, "")
    if koordinator in _KOORDINATOR:
        return IsolationClass(_KOORDINATOR[koordinator], f"label {QOS_LABEL}: {koordinator}")
    return _selected(selectors, group.rpartition("[")[0], pod.namespace, container.qos.value)


@lru_cache(maxsize=256)
def _selected(selectors: ClassSelectors, balloon: str, namespace: str, qos: str) -> IsolationClass:
    for rank, name in (("balloon", balloon), ("namespace", namespace), ("qos", qos)):
        for kind, listed in ((PROTECTED, selectors.protected), (BATCH, selectors.batch)):
            for selector in listed:
                what, _, wanted = selector.partition("/")
                if what == rank and name and fnmatchcase(name, wanted.lower() if rank == "qos" else wanted):
                    return IsolationClass(kind, selector)
    return _OTHER
