"""Frozen values are what ``dataclasses.dataclass(frozen=True)`` makes of the same class, instance by instance."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from typing import Any, Optional

import pytest

from policies.frozen import dataclass as frozen_dataclass
from policies.frozen import frozen


class _Point:
    """A point."""

    x: int
    y: int = 2
    names: tuple[str, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False)
    secret: str = field(default="s", repr=False)

    @property
    def total(self) -> int:
        return self.x + self.y


class _One:
    only: Optional[int] = None


class _None:
    pass


class _Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("below 0")

    def __repr__(self) -> str:
        return f"<{self.x}>"


def both(body: type) -> tuple[Any, Any]:
    """A class as dataclasses make it, and ours, of one body and name."""
    items = {name: item for name, item in vars(body).items() if name not in ("__dict__", "__weakref__")}
    made = [decorate(type(body.__name__, (), dict(items))) for decorate in (dataclass(frozen=True), frozen)]
    return made[0], made[1]


@frozen
class _Shared:
    x: int


@frozen
class Kept:
    """At the top of a module, where pickle finds it."""

    x: int
    y: tuple[int, ...] = ()


CALLS: list[tuple[type, tuple[Any, ...], dict[str, Any]]] = [
    (_Point, (1,), {}),
    (_Point, (1, 3), {"names": ("a",)}),
    (_Point, (), {"x": 1, "note": "n", "secret": "t"}),
    (_Point, (1, 2, (), "n", "s"), {}),
    (_Point, (), {}),
    (_Point, (1,), {"x": 2}),
    (_Point, (1,), {"z": 2}),
    (_Point, (1, 2, 3, 4, 5, 6), {}),
    (_One, (), {}),
    (_One, (3,), {}),
    (_None, (), {}),
    (_None, (1,), {}),
    (_Checked, (1,), {}),
    (_Checked, (-1,), {}),
]


@pytest.mark.parametrize(("body", "values", "named"), CALLS)
def test_an_instance_is_made_shown_compared_and_hashed_alike(body, values, named) -> None:
    def told(cls: Any) -> Any:
        try:
            one, other = cls(*values, **named), cls(*values, **named)
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        assert one == other and hash(one) == hash(other)
        return repr(one), str(one), hash(one), vars(one), asdict(one), astuple(one)

    reference, ours = both(body)
    assert told(ours) == told(reference)
    assert told(ours) == told(reference)  # not for the first time


def test_what_is_not_compared_makes_no_difference_and_all_else_does() -> None:
    for cls in both(_Point):
        assert cls(1, note="a") == cls(1, note="b") and hash(cls(1, note="a")) == hash(cls(1))
        assert cls(1) != cls(2) and cls(1) != cls(1, secret="t")


def test_instances_of_other_classes_are_never_equal() -> None:
    ours, others = both(_One)[1], both(_One)[1]
    assert ours(1) != others(1) and ours(1) != 1 and ours(1).__eq__(1) is NotImplemented
    assert ours(1) != (1,)


def test_no_attribute_can_be_set_or_deleted() -> None:
    for cls in both(_Point):
        point = cls(1)
        for change in (
            lambda item: setattr(item, "x", 2),
            lambda item: setattr(item, "other", 2),
            lambda item: delattr(item, "x"),
        ):
            with pytest.raises((FrozenInstanceError, TypeError)) as error:
                change(point)
            assert isinstance(error.value, AttributeError)
        assert point == cls(1)


def test_it_is_a_dataclass_for_those_that_ask() -> None:
    reference, ours = both(_Point)
    assert is_dataclass(ours) and [f.name for f in fields(ours)] == [f.name for f in fields(reference)]
    assert replace(ours(1), y=5, note="n") == ours(1, 5) and replace(ours(1), x=4).total == 6
    assert ours.y == reference.y == 2 and not hasattr(ours, "names")
    with pytest.raises(TypeError):
        replace(ours(1), unknown=1)


def test_an_instance_that_was_made_without_init_is_whole() -> None:
    raw = object.__new__(Kept)
    raw.__dict__.update(x=1, y=(2,))
    assert raw == Kept(1, (2,)) and hash(raw) == hash(Kept(1, (2,)))
    assert repr(raw) == "Kept(x=1, y=(2,))"
    for other in (pickle.loads(pickle.dumps(raw)), copy.copy(raw), copy.deepcopy(raw)):
        assert other == raw and other is not raw


def test_a_class_of_values_may_extend_another() -> None:
    @frozen
    class More(Kept):
        z: int = 0

    assert More(1, (), 3) == More(1, z=3) != More(1) and More(1) != Kept(1)
    assert Kept(1) == Kept(1) and repr(Kept(1)) == "Kept(x=1, y=())"


@frozen
class Lazy:
    """Its fields are looked for when they are asked for."""

    x: int
    names: tuple[str, ...] = field(default_factory=tuple)


def test_threads_that_make_the_first_instance_at_once_make_the_same() -> None:
    begin = threading.Barrier(8)

    def make(_: int) -> Lazy:
        begin.wait()
        return Lazy(1)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))
    assert {*made} == {Lazy(1, ())} and [f.name for f in fields(Lazy)] == ["x", "names"]


def test_a_method_that_was_taken_off_the_class_before_its_first_call_is_compiled_once() -> None:
    taken = _Shared.__eq__
    assert taken(_Shared(1), _Shared(1))
    compiled = _Shared.__eq__
    assert not taken(_Shared(1), _Shared(2)) and _Shared.__eq__ is compiled


def test_the_decorator_for_what_may_be_compiled_is_the_same_and_dataclasses_own_with_other_options() -> None:
    @frozen_dataclass(frozen=True)
    class One:
        x: int

    @frozen_dataclass
    class Other:
        x: int

    @frozen_dataclass(frozen=True, eq=False)
    class Itself:
        x: int

    assert One(1) == One(1) and repr(One(1)).endswith("One(x=1)") and replace(One(1), x=2) == One(2)
    assert "__dataclass_fields__" in vars(Other) and not Other.__dataclass_params__.frozen
    assert Itself(1) != Itself(1) and Itself.__dataclass_params__.frozen


START = """
import dataclasses, sys
import cri_proxy.cli.main, cri_proxy.daemon.daemon, cri_proxy.daemon.proxy
for name, module in sorted(sys.modules.items()):
    for item in vars(module).values() if name.startswith(("cri_proxy.", "policies.")) else ():
        if isinstance(item, type) and item.__module__ == name and dataclasses.is_dataclass(item):
            if item.__dataclass_params__.frozen and item.__dataclass_params__.eq:
                print(name, item.__name__)
"""


def test_a_start_compiles_no_methods_of_values_it_may_never_make() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert done.stdout == ""
