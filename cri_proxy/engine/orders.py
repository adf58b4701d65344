"""What is asked of this node besides its configuration: containers pinned to zones, and that nothing is moved. Pure.

Orders stay until they are taken back, over restarts too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from policies.machine.domain_names import domain_text, read_domain
from policies.model import Container

#: As many overrides are taken: each is held against every container of its names.
MOST = 1000
#: Names in Kubernetes have 253 characters at most.
NAME_CHARS = 253
_FIELDS = ("namespace", "pod", "container", "zone")


class BadOrder(ValueError):
    """An order that cannot be read. The message is a sentence that names the place."""


@dataclass(frozen=True)
class Override:
    """A container that belongs into a zone. ``pod`` may end in ``*``: all pods whose names begin so.

    ``zone``: the name that programs have for it, ``node-0``; ``text`` is what people read.
    """

    namespace: str
    pod: str
    container: str
    zone: str

    @property
    def text(self) -> str:
        """The zone as sentences name it."""
        return domain_text(self.zone)

    def matches(self, container: Container) -> bool:
        """Whether it is about a container."""
        pod = container.pod
        if (pod.namespace, container.name) != (self.namespace, self.container):
            return False
        return pod.name.startswith(self.pod[:-1]) if self.pod.endswith("*") else pod.name == self.pod


@dataclass(frozen=True)
class Orders:
    """``freeze``: no container that runs is moved. Of several ``overrides`` about one container the first counts."""

    freeze: bool = False
    overrides: tuple[Override, ...] = ()


NO_ORDERS = Orders()


def read_overrides(given: Any) -> tuple[Override, ...]:
    """Overrides as a command has them.

    :raises BadOrder: what was given is no list of them.
    """
    if not isinstance(given, list):
        raise BadOrder("overrides is no list, expected a list of namespace, pod, container and zone")
    if len(given) > MOST:
        raise BadOrder(f"overrides has {len(given)} items, expected at most {MOST}")
    return tuple(_read_override(item, f"overrides[{index}]") for index, item in enumerate(given))


def _read_override(item: Any, where: str) -> Override:
    if not isinstance(item, Mapping):
        raise BadOrder(f"{where} is no object, expected namespace, pod, container and zone")
    unknown = sorted(str(key) for key in item if key not in _FIELDS)
    if unknown:
        raise BadOrder(
            f"{where} has the unknown field {unknown[0][:NAME_CHARS]!r}, expected {', '.join(_FIELDS)}"
        )
    for name in _FIELDS:
        value = item.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS or not value.isprintable():
            raise BadOrder(
                f"{where}.{name} is {_shown(value)}, expected a name of 1 to {NAME_CHARS} characters"
            )
        if "*" in (value[:-1] if name == "pod" else value):
            raise BadOrder(f"{where}.{name} is {_shown(value)}, expected a * nowhere but at the end of pod")
    namespace, pod, container, zone = (item[name] for name in _FIELDS)
    return Override(namespace, pod, container, read_domain(zone))


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (str, int, float, bool, type(None))) else "no text"
    return text if len(text) <= 60 else text[:57] + '..."'


def write_orders(orders: Orders) -> str:
    """Orders as they are kept."""
    return json.dumps({"freeze": orders.freeze, "overrides": [asdict(o) for o in orders.overrides]})


def read_orders(text: str) -> tuple[Orders, tuple[str, ...]]:
    """Orders as they were kept ("" = none were), and a sentence for each that makes no sense here; it is left out.

    An order that a later version has kept must not keep the daemon from its start, nor cost the other orders: fields
    that this version does not know are passed over.
    """
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return NO_ORDERS, ("what was kept is not JSON",)
    items = document.get("overrides", []) if isinstance(document, dict) else None
    if not isinstance(items, list):
        return NO_ORDERS, ("what was kept is no object with a list of overrides",)
    found, left_out = [], []
    for index, item in enumerate(items[:MOST]):
        known = {name: item.get(name) for name in _FIELDS} if isinstance(item, Mapping) else item
        try:
            found.append(_read_override(known, f"overrides[{index}]"))
        except BadOrder as error:
            left_out.append(str(error))
    return Orders(document.get("freeze") is True, tuple(found)), tuple(left_out)
