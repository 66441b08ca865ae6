"""Sources: how they print, that what they print fetches the value, and how they compare."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from bytejit.guards.item_sources import DictItem, TupleItem, dict_item
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam, SubModule
from bytejit.guards.references import permanent
from bytejit.guards.source import param_name, params_of
from bytejit.guards.sources import (
    Attr,
    Builtin,
    Call0,
    Cell,
    CellContents,
    Closure,
    Constant,
    Defaults,
    Global,
    InstanceDict,
    Item,
    KnownSource,
    KwDefaults,
    Local,
    MethodFunc,
    MethodSelf,
    Ref,
    Scope,
    Source,
    SourcePrinter,
    StackSlot,
    TensorGrad,
    TensorSize,
    TensorStride,
    Type,
)

L = Local("a")


class Pair(tuple):
    def __getitem__(self, index):
        raise AssertionError("TupleItem goes past an overridden __getitem__")


def closed(x, y=5, *, k=7):
    def inner():
        return x + y

    return inner


def cell_of(value):
    return (lambda: value).__closure__[0]


BN = nn.BatchNorm1d(3)
SEQ = nn.Sequential(nn.Linear(2, 3), BN)
T = torch.arange(6.0).reshape(2, 3)[:, 1:]
OBJ = object()

CASES = [  # source, the value of `a`, what it must fetch, its name
    (L, 3, 3, "a"),
    (Attr(L, "real"), 3, 3, "a.real"),
    (CellContents(L), cell_of(4), 4, "a.cell_contents"),
    (InstanceDict(L), SEQ, SEQ.__dict__, "a.__dict__"),
    (DictItem(L, "k"), {"k": 1}, 1, "a['k']"),
    (DictItem(L, (1, "k")), {(1, "k"): 2}, 2, "a[(1, 'k')]"),
    (DictItem(InstanceDict(L), "training"), SEQ, True, "a.training"),
    (dict_item(L, OBJ), {OBJ: 9}, 9, "a[a object]"),
    (Item(L, -1), [1, 2], 2, "a[-1]"),
    (TupleItem(L, 1), Pair((1, 2)), 2, "a[1]"),
    (Type(L), 3, int, "type(a)"),
    (Closure(L, 0), closed(11), 11, "a.__closure__[0]"),
    (Defaults(L, 0), closed, 5, "a.__defaults__[0]"),
    (KwDefaults(L, "k"), closed, 7, "a.__kwdefaults__['k']"),
    (MethodSelf(L), SEQ.forward, SEQ, "a.__self__"),
    (MethodFunc(L), SEQ.forward, nn.Sequential.forward, "a.__func__"),
    (SubModule(L, "1"), SEQ, BN, "a['1']"),
    (ModuleParam(SubModule(L, "1"), "weight"), SEQ, BN.weight, "a['1'].weight"),
    (ModuleBuffer(L, "running_mean"), BN, BN.running_mean, "a.running_mean"),
    (TensorGrad(L), T, None, "a.grad"),
    (TensorSize(L, 0), T, 2, "a.shape[0]"),
    (TensorStride(L, 0), T, 3, "a.stride(0)"),
    (Builtin("len"), None, len, "len"),
    (Constant(2.5), None, 2.5, "2.5"),
    (Constant((1, None, "s")), None, (1, None, "s"), "(1, None, 's')"),
    (KnownSource.of(OBJ, "obj"), None, OBJ, "obj"),
    (Global.of(globals(), "OBJ"), None, OBJ, "OBJ"),
    (Scope.of(globals()), None, globals(), f"(globals of {__name__})"),
]


@pytest.mark.parametrize("source,base,want,name", CASES, ids=[type(row[0]).__name__ for row in CASES])
def test_text_fetches_the_value(source, base, want, name) -> None:
    at = SourcePrinter()
    text = source.expr(at)
    got = eval(text, {**at.env, "L_a": base})
    assert got is want or got == want
    assert type(got) is type(want)
    assert source.name() == repr(source) == name


def test_getters() -> None:
    at = SourcePrinter()
    assert eval(Call0(torch.is_grad_enabled).expr(at), at.env) is torch.is_grad_enabled()


def test_sources_compare_by_structure() -> None:
    def make() -> Source:
        return ModuleParam(SubModule(Local("self"), "conv"), "weight")

    assert make() == make() and hash(make()) == hash(make()) and len({make(), make()}) == 1
    assert make() != ModuleBuffer(SubModule(Local("self"), "conv"), "weight")
    assert Local("x") != Cell("x") and Local("x") != StackSlot(0)
    assert DictItem(L, 1) != DictItem(L, True) != DictItem(L, 1.0)
    assert Global.of(globals(), "L") == Global.of(globals(), "L")
    assert Global.of(globals(), "L") != Global.of(dict(globals()), "L")
    assert KnownSource.of(OBJ) == KnownSource.of(OBJ) != KnownSource.of(object())
    assert make().root() == Local("self")


def test_params_are_identifiers() -> None:
    names = params_of(2, ("x", ".0"), ("y",))
    assert names == ["S_0", "S_1", "L_x", "L_dot0", "C_y"] and all(map(str.isidentifier, names))
    assert Local(".0").expr(SourcePrinter()) == param_name("local", ".0")


def test_objects_are_known_weakly_unless_a_module_holds_them() -> None:
    module = nn.Linear(1, 1)
    ref, seen = Ref(module), weakref.ref(module)
    at = SourcePrinter()
    text = KnownSource(ref).expr(at)
    assert ref.weak and eval(text, at.env) is module
    del module
    gc.collect()
    assert seen() is None and ref.get() is None
    assert permanent(nn.Linear) and permanent(torch.nn) and permanent(torch.add) and permanent(closed)
    assert not permanent(closed(1)) and not permanent(OBJ) and not permanent(type("Local", (), {}))
    assert Ref(nn.Linear).weak is False and Ref([1]).weak is False


def test_equal_constants_do_not_share_a_name() -> None:
    at = SourcePrinter()
    assert at.bind(1.0) != at.bind(-0.0) and at.literal(True) == "True" and at.literal(1) == "1"
