"""Frozen values, as ``dataclasses.dataclass(frozen=True)`` makes them, that cost next to nothing until one is made.

dataclasses looks through the annotations of each class, and writes and compiles six methods: half a millisecond. A start
of the daemon imports 240 such classes and makes instances of thirty. Here a method is dataclasses' own too, but compiled
when it is first called, and fields are looked for when they are first asked for.

Standard library only. ``frozen`` and ``dataclass(frozen=True)`` of this module do the same; the second is for packages that
may be compiled: mypyc knows dataclasses' own, by the name that mypy finds, and calls what has that name at run time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, fields, make_dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, Callable, NoReturn, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    from typing_extensions import dataclass_transform
else:

    def dataclass(cls=None, **options):
        is_frozen_value = cls is None and options == {"frozen": True}
        return frozen if is_frozen_value else dataclasses.dataclass(cls, **options)

    def dataclass_transform(**_):
        return lambda function: function


_Class = TypeVar("_Class", bound=type)

#: The options of make_dataclass with which it makes a method.
_METHODS = {"__init__": "init", "__repr__": "repr", "__eq__": "eq", "__hash__": "eq"}
#: Threads that need the fields of one class: to look for them takes their defaults from the class.
_looking = RLock()


@dataclass_transform(frozen_default=True)
def frozen(cls: _Class) -> _Class:
    """Make a class whose annotations are its fields a frozen value; for ``fields``, ``replace``, ``asdict`` and pickle it
    is a dataclass. What the class defines itself stays. Until the first instance ``inspect.signature`` knows no parameters.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # else dataclasses takes a signature for it, by inspect
    if "__mypyc_attrs__" in cls.__dict__:
        _find_fields(cls)  # a compiled class has its defaults only while it is decorated
    else:
        cls.__dataclass_fields__ = _Fields(cls)  # type: ignore[attr-defined]
    for name in _METHODS:
        if cls.__dict__.get(name) is None:
            setattr(cls, name, _compiled_when_called(cls, name))
    for method in (__setattr__, __delattr__):
        if method.__name__ not in cls.__dict__:
            setattr(cls, method.__name__, method)
    return cls


class _Fields:
    """In the place of a class's ``__dataclass_fields__`` until it is asked for them."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, item: object, owner: type) -> Any:
        with _looking:
            if self._cls.__dict__["__dataclass_fields__"] is self:
                _find_fields(self._cls)
        return self._cls.__dict__["__dataclass_fields__"]


def _find_fields(cls: type) -> None:
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)


def _compiled_when_called(cls: type, name: str) -> Callable[..., Any]:
    def method(self: Any, *values: Any, **named: Any) -> Any:
        # What has taken the method off the class before its first call keeps this one.
        if cls.__dict__[name] is method:
            setattr(cls, name, _compiled(cls, name))
        return cls.__dict__[name](self, *values, **named)

    return method


def __setattr__(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _compiled(cls: type, name: str) -> Callable[..., Any]:
    """A method of a frozen dataclass with the same fields; its ``__init__`` assigns past ``__setattr__``."""
    items = [(field.name, field.type, field) for field in fields(cls)]
    namespace = {"__doc__": cls.__doc__}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    options: dict[str, Any] = {option: option == _METHODS[name] for option in _METHODS.values()}
    twin = make_dataclass(cls.__name__, items, namespace=namespace, frozen=True, **options)
    compiled: Any = getattr(twin, name)
    compiled.__qualname__ = f"{cls.__qualname__}.{name}"
    return compiled  # type: ignore[no-any-return]
