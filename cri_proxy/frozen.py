"""Frozen values, as ``dataclasses.dataclass(frozen=True)`` makes them, that cost next to nothing until one is made.

dataclasses writes and compiles six methods for each class. A start of the daemon imports 190 such classes and makes
instances of twenty: half a millisecond each. Here one closure per class does for each of five methods, and ``__init__``,
which is dataclasses' own, is compiled when the first instance is made.

Standard library only. Not for classes in packages that mypyc may compile: it knows dataclasses alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields, make_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Callable, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda function: function


_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True)
def frozen(cls: _Class) -> _Class:
    """Make a class whose annotations are its fields a frozen value; for ``fields``, ``replace``, ``asdict`` and pickle it
    is a dataclass. What the class defines itself stays. Until the first instance ``inspect.signature`` knows no parameters.
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # else dataclasses takes a signature for it, by inspect
    dataclass(init=False, repr=False, eq=False)(cls)
    for method in _methods(cls):
        if method.__name__ not in cls.__dict__:
            setattr(cls, method.__name__, method)
    return cls


def _methods(cls: type) -> Sequence[Callable[..., Any]]:
    compared = _getter([field.name for field in fields(cls) if field.compare])
    shown = [field.name for field in fields(cls) if field.repr]

    def __init__(self: Any, *values: Any, **named: Any) -> None:
        compiled = _compiled_init(cls)
        cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *values, **named)

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self: Any, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(compared(self))

    return __init__, __repr__, __eq__, __hash__, __setattr__, __delattr__


def __setattr__(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of some attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda item: tuple(getattr(item, name) for name in names)


def _compiled_init(cls: type) -> Callable[..., None]:
    """The ``__init__`` of a frozen dataclass with the same fields: it assigns past ``__setattr__``."""
    items = [(field.name, field.type, field) for field in fields(cls)]
    namespace = {"__doc__": cls.__doc__}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    twin = make_dataclass(cls.__name__, items, namespace=namespace, repr=False, eq=False, frozen=True)
    init: Any = twin.__init__  # type: ignore[misc]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    compiled: Callable[..., None] = init
    return compiled
