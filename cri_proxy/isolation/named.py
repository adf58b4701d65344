"""Which class of a configured section a container has: one rule for all sections but ``rdt``'s. Pure.

Of the names that the section has, the first of these counts:

1. what an annotation asks for
2. what the container's balloon type, its namespace or its QoS class is given there, in this order
3. the name of its QoS class: Guaranteed, Burstable, BestEffort, as Intel's cri-resource-manager had it
4. its isolation class: protected, standard, batch
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Optional

from cri_proxy.isolation.model import IsolatedContainer

#: What a class is called that containers of a QoS class have.
QOS_NAMES = ("Guaranteed", "Burstable", "BestEffort")
_QOS = {name.lower(): name for name in QOS_NAMES}


def named_class(
    names: Collection[str], each: IsolatedContainer, asked: str = "", given: Iterable[str] = ()
) -> Optional[str]:
    """The class of a container, None = it has none. ``given``: number 2, those first that count first."""
    container = each.container
    qos = _QOS.get(container.qos.value.lower(), "") if container is not None else ""
    return next((name for name in (asked, *given, qos, each.cls) if name and name in names), None)
