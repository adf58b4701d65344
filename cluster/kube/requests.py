"""What is asked of an API server: paths and queries of kinds of objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode


class Resource(NamedTuple):
    """A kind of object as paths name it; the group "" is the core's."""

    group: str
    version: str
    plural: str
    namespaced: bool = False


def path(resource: Resource, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Of one object, or of all (of a namespace) if ``name`` is "".

    :raises ValueError: an object of a namespace is named without it.
    """
    if resource.namespaced and name and not namespace:
        raise ValueError(f"{resource.plural} {name!r} is named without its namespace")
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def target(where: str, query: Mapping[str, str]) -> str:
    """A path with those parameters that have a value."""
    given = {name: value for name, value in query.items() if value}
    return f"{where}?{urlencode(given)}" if given else where
