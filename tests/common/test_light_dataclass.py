"""Light dataclasses are as frozen ones of the standard library."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import pytest
import torch

from bytejit.common.light_dataclass import light_dataclass

KINDS = pytest.mark.parametrize("make", (dataclass, light_dataclass), ids=("dataclass", "light"))


class Odd:
    """Equal to all, and says so in no bool."""

    def __eq__(self, other: object) -> torch.Tensor:  # type: ignore[override]
        return torch.ones(2)

    __hash__ = object.__hash__


@KINDS
@pytest.mark.parametrize("slots", (False, True))
def test_fields_equality_hash_and_repr(make: Callable, slots: bool) -> None:
    @make(frozen=True, slots=slots)
    class Point:
        x: int
        y: tuple = ()
        note: str = field(default="", compare=False)
        hidden: list = field(default_factory=list, repr=False, hash=False)

    a, b = Point(1, (2,)), Point(1, y=(2,), note="other")
    assert a == b and hash(a) == hash(b) == hash((1, (2,))) and len({a, b}) == 1
    assert a != Point(1, (2,), hidden=[1]) and a != (1, (2,)) and Point.__eq__(a, 1) is NotImplemented
    assert repr(b).endswith("Point(x=1, y=(2,), note='other')")
    assert replace(a, x=5) == Point(5, (2,)) and copy.copy(a) == a
    assert [f.name for f in fields(a)] == ["x", "y", "note", "hidden"] == [*Point.__match_args__]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Point()


@KINDS
def test_one_field_none_and_one_that_equals_in_its_own_way(make: Callable) -> None:
    @make(frozen=True)
    class None_:
        pass

    @make(frozen=True)
    class One:
        x: object

    nan, odd = float("nan"), Odd()
    assert None_() == None_() and hash(None_()) == hash(())
    assert hash(One(3)) == hash((3,))
    if make is not dataclass or sys.version_info < (3, 13):  # newer ones do not look whether it is the very object
        assert One(nan) == One(nan) and One(odd) == One(odd)


@KINDS
def test_methods_of_the_class_stay(make: Callable) -> None:
    @make(frozen=True)
    class Base:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "mine"

    @make(frozen=True)
    class Below(Base):
        y: int = 0

    @make(frozen=True)
    class OnlyEqual:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

    @make(frozen=True, eq=False)
    class Same:
        x: int

    assert Base(1) == 5 and hash(Base(1)) == 7 and repr(Base(1)) == "mine"
    assert Below(1, 2) == Below(1, 2) != Below(1, 3) and hash(Below(1, 2)) == hash((1, 2)) and "y=2" in repr(Below(1, 2))
    assert OnlyEqual(1) == 2 and hash(OnlyEqual(1)) == hash((1,))
    assert Same(1) != Same(1) and hash(Same(1)) != hash((1,))


@light_dataclass(frozen=True)
class Kept:
    x: int
    inner: object = None


def test_pickled_and_within_itself() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, Kept(2)))) == Kept(1, Kept(2))
    held: list = []
    held.append(Kept(1, held))
    assert repr(held) == "[Kept(x=1, inner=[...])]"


@KINDS
@pytest.mark.parametrize("slots", (False, True))
def test_initialisers(make: Callable, slots: bool) -> None:
    """With defaults, factories, names only, and what is set afterwards; of a class below; errors with the class's name."""

    @make(frozen=True, slots=slots)
    class Above:
        x: int
        made: list = field(default_factory=list)
        same: list = field(default=None)  # type: ignore[assignment]
        late: int = field(init=False, default=4)
        fresh: dict = field(init=False, default_factory=dict)
        named: int = field(kw_only=True, default=7)

        def __post_init__(self) -> None:
            self.made.append(self.x)

    @make(frozen=True, slots=slots)
    class Below(Above):
        y: int = 2

    class Plain(Above):
        def __init__(self, x: int) -> None:
            Above.__init__(self, x + 1)

    given: list = [0]
    a = Below(1, given, y=3)
    assert (a.x, a.made, a.same, a.late, a.fresh, a.named, a.y) == (1, [0, 1], None, 4, {}, 7, 3) and a.made is given
    assert Above(1).made == [1] == Above(1).made and Above(1).fresh is not Above(1).fresh
    assert Plain(1).x == 2 and replace(Above(1, named=3), x=2).named == 3
    for wrong, text in (((), "Above.__init__.. missing 1 required"), ((1, 2, 3, 4), "Above.__init__.. takes")):
        with pytest.raises(TypeError, match=text):
            Above(*wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'late'"):
        Above(1, late=3)
    assert Above.__init__.__module__ == __name__ or make is dataclass


def test_an_initialiser_is_compiled_once() -> None:
    @light_dataclass(frozen=True)
    class Seldom:
        x: int

    first = Seldom.__init__
    Seldom(1)
    assert Seldom.__init__ is not first and (made := Seldom.__init__) is not None
    Seldom(2)
    assert Seldom.__init__ is made
