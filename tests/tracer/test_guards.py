"""Each kind of guard both ways: what it names changed -> the entry misses; something else changed -> it still fits.

Everything runs twice: with checks made from Python, and with the compiled ones (guards/native_checker.py).
"""

from __future__ import annotations

import collections
import enum
import gc
import math
import random
import sys
import traceback
import weakref

import pytest
import torch
from torch import nn

from bytejit.common.options import Options
from bytejit.compat import class_versions
from bytejit.guards.class_lookups import ClassLookups, Lookup, find
from bytejit.guards.conditions import ComputedItems, Distinct, SizeCondition
from bytejit.guards.equality import same
from bytejit.guards.generated import Work, compile_entry
from bytejit.guards.guard_set import Guard, GuardSet
from bytejit.guards.item_sources import DictItem, TupleItem
from bytejit.guards.kinds import KINDS
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam, SubModule
from bytejit.guards.native_checker import CHECKER
from bytejit.guards.source import params_of
from bytejit.guards.sources import (
    Attr,
    Closure,
    Global,
    InstanceDict,
    Item,
    KnownSource,
    Local,
    Scope,
    StackSlot,
    TensorSize,
    Type,
)
from bytejit.guards.tensor_checks import TensorCheck

MISS = object()
A, B = Local("a"), Local("b")
LIMIT = 7


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.cxx)], autouse=True)
def checker(request):
    """How tensors and instance dicts are checked."""
    from bytejit.kernels.build_cpp import build

    before = CHECKER._build, CHECKER._calls
    CHECKER.install((lambda text: build([text], Options()).calls[0]) if request.param == "compiled" else None)
    yield request.param
    CHECKER._build, CHECKER._calls = before


def entry(*guards, params=("a",), inputs=(), on_dead=None, body="return ('hit', None)"):
    found = GuardSet()
    for kind, source, value in guards:
        found.add(kind, source, value)
    env = {"MISS": MISS, "own_exit": lambda error, flat: (flat, 0)}
    return compile_entry(params_of(0, params, ()), found, Work(list(inputs), body, env), on_dead=on_dead)


def state_entry(args: tuple):
    """An entry that guards global state as it is now, beside these tensors: compiled, it is checked in one call with them."""
    found = GuardSet()
    for source, x in zip((A, B), args):
        found.add("TENSOR", source, TensorCheck.of(x))
    found.add_state()
    params = params_of(0, ("a", "b")[: len(args)], ())
    return compile_entry(params, found, Work([], "return ('hit', None)", {"MISS": MISS}))


def fits(fn, *args) -> bool:
    """Whether the guards hold; the explanation must agree."""
    hit = fn(*args) is not MISS
    assert (fn.explain_failure(args) == "no guard fails") == hit, fn.explain_failure(args)
    return hit


class Plain:
    def __init__(self, **attrs):
        self.__dict__.update(attrs)


class Sub(Plain):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Name(str):
    pass


def scale(x, k=1, *, w=2):
    return x * k * w


def other(x, k=1, *, w=2):
    return x + k + w


def adder(n):
    return lambda x: x + n


scale_by = adder(float("1.25"))


X, OBJ, KEY = torch.randn(2, 3), Plain(), Plain()

BOTH_WAYS = [  # kind, value at trace time, value of the guard, values that fit, values that do not
    ("TYPE_IS", OBJ, Plain, [Plain(), Plain(x=1)], [Sub(), 1, None]),
    ("ID_IS", OBJ, OBJ, [OBJ], [Plain(), None]),
    ("ID_IS", None, None, [None], [0, False, OBJ]),
    ("ID_IS", True, True, [True], [1, False]),
    ("EQUALS", 3, 3, [3], [4, 3.0, True, "3", None]),
    ("EQUALS", 1, 1, [1], [True, 1.0, torch.tensor(1)]),
    ("EQUALS", 10**9, 10**9, [10**9, int("1000000000")], [1e9, 10**9 + 1]),
    ("EQUALS", True, True, [True], [1, 1.0, False]),
    ("EQUALS", None, None, [None], [0, False]),
    ("EQUALS", 0.0, 0.0, [0.0, float("0")], [-0.0, 0, False]),
    ("EQUALS", -0.0, -0.0, [-0.0], [0.0]),
    ("EQUALS", 1.5, 1.5, [1.5, float("1.5")], [1.25, "1.5"]),
    ("EQUALS", math.nan, math.nan, [math.nan, float("nan")], [0.0, 1.0]),
    ("EQUALS", complex(0, -0.0), complex(0, -0.0), [complex(0, -0.0)], [complex(0, 0.0), 0]),
    ("EQUALS", "relu", "relu", ["relu", "".join(["re", "lu"])], ["gelu", b"relu", Name("relu")]),
    ("EQUALS", (1, 2), (1, 2), [(1, 2), tuple([1, 2])], [(1, 2, 3), (1, True), (1.0, 2), [1, 2], torch.Size((1, 2))]),
    ("EQUALS", (1, (0.0, "s")), (1, (0.0, "s")), [(1, (0.0, "s"))], [(1, (-0.0, "s")), (True, (0.0, "s"))]),
    ("EQUALS", torch.float32, torch.float32, [torch.float32], [torch.float64, None]),
    ("EQUALS", X.device, X.device, [torch.device("cpu")], [torch.device("meta"), "cpu"]),
    ("EQUALS", slice(0, 1), slice(0, 1), [slice(0, 1)], [slice(0, 1, 1), slice(False, 1)]),
    ("EQUALS", range(3), range(3), [range(3)], [range(4), [0, 1, 2]]),
    ("EQUALS", Color.RED, Color.RED, [Color.RED], [Color.BLUE, 1]),
    ("EQUALS_AS", Name("x"), (str, "x"), [Name("x")], [Name("y")]),
    ("BOOL", [1], True, [[2], [1, 2]], [[]]),
    ("BOOL", [], False, [[], ()], [[0]]),
    ("LEN_IS", [1, 2], 2, [[3, 4], (5, 6)], [[1], 3]),
    ("DICT_KEYS", {"x": 1, "y": 2}, ("x", "y"), [{"x": 5, "y": 6}], [{"y": 2, "x": 1}, {"x": 1}, {"x": 1, "y": 2, "z": 3}]),
    ("DICT_KEYS", {"long": 1}, ("long",), [{"".join("long"): 1}], [{"".join("lang"): 1}, {"long": 1, "".join("er"): 2}]),
    ("DICT_KEYS", {}, (), [{}], [{"x": 1}]),
    ("DICT_KEYS", {1: 0}, (1,), [{1: 5}], [{True: 0}, {1.0: 0}]),
    ("DICT_KEYS", {KEY: 0}, (KEY,), [{KEY: 3}], [{Plain(): 0}, {}]),
    ("DICT_KEYS", {KEY: 0, "x": 1}, (KEY, "x"), [{KEY: 3, "x": 4}], [{"x": 1, KEY: 0}, {KEY: 0}]),
    ("DICT_ABSENT", {}, "x", [{}, {"y": 1}], [{"x": None}]),
    ("DICT_ABSENT", {}, KEY, [{}, {Plain(): 1}], [{KEY: 1}]),
    ("ATTR_ABSENT", OBJ, "extra", [Plain(), Plain(x=1)], [Plain(extra=1)]),
    ("SET_ITEMS", {1}, frozenset({1}), [{1}, frozenset({1})], [{2}, {1, 2}, {1.0}, {True}]),
    ("SET_ITEMS", {1}, (1,), [{1}], [{2}, set(), {True}]),
    ("FUNCTION", scale, scale, [scale], [other, len, None]),
    ("FUNCTION", adder(1), adder(1), [adder(2)], [lambda x: x]),
    ("VALUE", torch.tensor([1, 2]), ComputedItems(torch.sum, (A,), 3), [torch.tensor([0, 3])], [torch.tensor([1, 3])]),
    ("EXPR", 3, SizeCondition("s0 * 2 < 8 and s0 > 1", (("s0", A),)), [2, 3], [4, 1]),
]


@pytest.mark.parametrize("kind,seen,value,good,bad", BOTH_WAYS, ids=[f"{r[0]}-{i}" for i, r in enumerate(BOTH_WAYS)])
def test_kind_both_ways(kind, seen, value, good, bad) -> None:
    fn = entry((kind, A, value))
    assert fits(fn, seen)
    assert all(fits(fn, v) for v in good)
    for v in bad:
        assert not fits(fn, v), v
        assert "a" in fn.explain_failure((v,))


def test_every_kind_has_a_test_here() -> None:
    assert set(KINDS) == {r[0] for r in BOTH_WAYS} | {"TENSOR", "ALIAS", "DISTINCT", "GLOBAL_STATE", "PRESENT", "CLASS"}


def test_present() -> None:
    """Only that it can be fetched; whatever it is."""
    fn = entry(("PRESENT", DictItem(A, "x"), None))
    assert fits(fn, {"x": 1}) and fits(fn, {"x": None})
    assert fn({"y": 1}) is MISS and "cannot be fetched" in fn.explain_failure(({"y": 1},))


def lookups(cls: type, *names: str) -> ClassLookups:
    return ClassLookups.of(cls, [Lookup.of(n, None, *find(cls, n)) for n in names])


def test_class() -> None:
    """Its attributes may change where nothing was looked for, and be put back; a value may become another value."""
    base = type("Base", (), {"a": 1, "f": lambda self: 1, "p": property(len), "s": staticmethod(len)})
    cls = type("Sub", (base,), {})
    fn = entry(("CLASS", KnownSource.of(cls), lookups(cls, "a", "f", "p", "s", "__len__", "none")))
    assert fits(fn, 1) and fits(fn, 1)
    cls.other, base.other, base.a = 1, 2, 3
    assert fits(fn, 1) and fits(fn, 1)
    for name, value in (("a", property(len)), ("f", len), ("f", lambda self: 2), ("p", property(id)), ("p", 1), ("none", 1)):
        for owner in (cls, base):
            before = vars(owner).get(name)
            setattr(owner, name, value)
            assert not fits(fn, 1) and name in fn.explain_failure((1,)), (name, value)
            delattr(owner, name) if before is None else setattr(owner, name, before)
            assert fits(fn, 1) and fits(fn, 1)
    cls.__bases__ = (type("Other", (base,), {}),)
    assert not fits(fn, 1)


def test_class_with_many_versions() -> None:
    """A class that is given so many versions that it gets none any more, and its version wherever it lies."""
    assert class_versions.place() is not None
    cls = type("Counts", (), {"n": 0})
    fn = entry(("CLASS", KnownSource.of(cls), lookups(cls, "n", "late")))
    for n in range(3000):
        cls.n = n
        assert fn(1) is not MISS
    cls.late = 1
    assert fn(1) is MISS


# ---- tensors -----------------------------------------------------------------------------------------------------


def with_strides(shape, stride):
    return torch.zeros(64).as_strided(shape, stride)


TENSORS = [  # name, tensor at trace time, tensors that fit, tensors that do not
    ("values", X, [torch.ones(2, 3), X.clone(), torch.zeros(5, 3)[1:3]], [torch.ones(3, 2), torch.ones(2, 3, 1), torch.ones(6)]),
    ("dtype", X, [], [X.double(), X.half(), X.int(), X.bool(), X.to(torch.complex64)]),
    ("device", X, [], [X.to("meta")]),
    ("type", X, [], [nn.Parameter(X), X.numpy(), X.tolist(), None, 3]),
    ("grad", X, [], [X.clone().requires_grad_(), X.clone().requires_grad_() * 2]),
    ("needs grad", X.clone().requires_grad_(), [X.clone().requires_grad_() * 2], [X]),
    ("strides", X, [], [torch.ones(3, 2).t(), torch.ones(2, 6)[:, ::2], torch.ones(1, 3).expand(2, 3)]),
    ("transposed", torch.ones(3, 2).t(), [torch.zeros(3, 2).t()], [X, torch.ones(2, 3)]),
    ("layout", X, [], [X.to_sparse(), torch.ones(2, 3).to_mkldnn(), X.to_sparse_csr()]),
    ("size 1", torch.ones(1, 3), [torch.zeros(1, 3)], [with_strides((1, 3), (7, 1)), torch.ones(1, 4)]),
    ("odd size 1", with_strides((2, 1), (1, 5)), [with_strides((2, 1), (1, 5))], [torch.ones(2, 1)]),
    ("size 0", torch.ones(0, 3), [torch.ones(0, 3)], [torch.ones(0, 4), torch.ones(3, 0)]),
    (
        "scalar",
        torch.tensor(1.0),
        [torch.tensor(2.0)],
        [torch.ones(1), torch.tensor(1), torch.ones(1, dtype=torch.cfloat).conj().imag[0]],
    ),
    ("int scalar", torch.tensor(1), [torch.tensor(5)], [torch.tensor(True), torch.tensor(1.0)]),
    ("conj", torch.ones(3, dtype=torch.cfloat), [torch.zeros(3, dtype=torch.cfloat)], [torch.ones(3, dtype=torch.cfloat).conj()]),
    ("neg", torch.ones(4).view(2, 2)[:, 0], [], [torch.ones(2, dtype=torch.cfloat).conj().imag]),
    ("is neg", torch.ones(2, dtype=torch.cfloat).conj().imag, [], [torch.ones(4)[::2]]),
    ("bfloat16", X.bfloat16(), [torch.ones(2, 3, dtype=torch.bfloat16)], [X.half(), X.short()]),
    (
        "bytes",
        torch.zeros(3, dtype=torch.uint8),
        [torch.ones(3, dtype=torch.uint8)],
        [torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.int8)],
    ),
    ("six dims", torch.ones(2, 2, 2, 2, 2, 2), [torch.zeros(2, 2, 2, 2, 2, 2)], [torch.ones(2, 2, 2, 2, 4)]),
    ("parameter", nn.Parameter(X), [nn.Parameter(torch.ones(2, 3))], [X, nn.Parameter(X, requires_grad=False), nn.Buffer(X)]),
]


@pytest.mark.parametrize("name,seen,good,bad", TENSORS, ids=[r[0] for r in TENSORS])
def test_tensor_both_ways(name, seen, good, bad) -> None:
    fn = entry(("TENSOR", A, TensorCheck.of(seen)))
    assert fits(fn, seen)
    assert all(fits(fn, v) for v in good)
    for v in bad:
        assert not fits(fn, v), v


def test_unchecked_requires_grad_and_dynamic_sizes() -> None:
    fn = entry(("TENSOR", A, TensorCheck.of(X, requires_grad=False)))
    assert fits(fn, X) and fits(fn, X.clone().requires_grad_()) and not fits(fn, X.double())
    fn = entry(("TENSOR", A, TensorCheck.of(X, shape=(-2, 3), stride=(3, 1))))
    assert fits(fn, torch.ones(9, 3)) and not fits(fn, torch.ones(9, 4)) and not fits(fn, torch.ones(3, 9).t())
    fn = entry(
        ("TENSOR", A, TensorCheck.of(X, shape=(2, -2), stride=(-2, 1))),
        ("EXPR", A, SizeCondition("s0 > 2", (("s0", TensorSize(A, 1)),))),
    )
    assert fits(fn, torch.ones(2, 5)) and not fits(fn, torch.ones(2, 2)) and not fits(fn, torch.ones(3, 5))
    fn = entry(("TENSOR", A, TensorCheck.of(torch.ones(2, 3, 4), shape=(2, -2, 4), stride=(-2, 4, 1))))
    assert fits(fn, torch.ones(2, 7, 4)) and not fits(fn, torch.ones(2, 4, 7).transpose(1, 2))


def test_batched_wrappers_are_not_taken_for_plain_tensors() -> None:
    found = GuardSet()
    found.add("TENSOR", A, TensorCheck.of(torch.ones(3)))
    found.add_state()
    fn = compile_entry(["L_a"], found, Work([], "return ('hit', None)", {"MISS": MISS}))
    assert fn(torch.ones(3)) is not MISS
    seen = []
    torch.vmap(lambda row: (seen.append(fn(row)), row)[1])(torch.ones(2, 3))
    torch.func.grad(lambda row: (seen.append(fn(row)), row.sum())[1])(torch.ones(3))
    with torch.autograd.forward_ad.dual_level():
        seen.append(fn(torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))))
    assert seen == [MISS] * 3


# ---- global state, aliases, sources --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.no_grad(),
        lambda: torch.inference_mode(),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: torch.utils._device.DeviceContext(torch.device("cpu")),
        lambda: torch.overrides.BaseTorchFunctionMode(),
        lambda: torch.utils._python_dispatch.TorchDispatchMode(),
    ],
    ids=["no_grad", "inference", "autocast", "device", "device context", "function mode", "dispatch mode"],
)
@pytest.mark.parametrize("args", [(), (X,)], ids=["alone", "beside a tensor"])
def test_global_state(change, args: tuple) -> None:
    fn = state_entry(args)
    assert fits(fn, *args)
    with change():
        assert not fits(fn, *args)
        inside = state_entry(args)
        assert fits(inside, *args)
    assert fits(fn, *args) and not fits(inside, *args)


@pytest.mark.parametrize("args", [(), (X,)], ids=["alone", "beside a tensor"])
def test_default_dtype_and_determinism(args: tuple) -> None:
    fn = state_entry(args)
    torch.set_default_dtype(torch.float64)
    try:
        assert not fits(fn, *args) and "default_dtype was torch.float32, is torch.float64" in fn.explain_failure(args)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert not fits(fn, *args)
    finally:
        torch.use_deterministic_algorithms(False)
    assert fits(fn, *args)


def test_torchs_own_state_is_checked_before_tensors(checker: str) -> None:
    """In one call with them; a function mode hears nothing of it."""
    heard: list[object] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    leaf = X.clone().requires_grad_()
    fn = state_entry((leaf,))
    assert (fn.table is not None) == (checker == "compiled")
    if fn.table is not None:
        assert fn.text.count("return MISS") == 5 and fn.text.count("()") == 1, fn.text
    with Mode():
        found = fn(leaf)
    assert found is MISS and not heard and fits(fn, leaf)


def test_autocast_dtype_is_guarded_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = GuardSet()
        found.add_state()
        fn = compile_entry([], found, Work([], "return ('hit', None)", {"MISS": MISS}))
        assert fits(fn)
    with torch.autocast("cpu", torch.float16):
        assert not fits(fn)
    assert not fits(fn)


def test_alias() -> None:
    x, y = torch.ones(2), torch.ones(2)
    one, two = (entry(("ALIAS", A, (B, same_object)), params=("a", "b")) for same_object in (True, False))
    assert fits(one, x, x) and not fits(one, x, y) and fits(two, x, y) and not fits(two, x, x)


@pytest.mark.parametrize("changed,others", [(4, 0), (1, 5), (3, 2), (40, 30), (9, 200)])
def test_distinct(changed: int, others: int) -> None:
    """Each of the changed is another object than all the rest; the others may be one."""
    n = changed + others
    items = [Item(A, i) for i in range(n)]
    value = Distinct(tuple(items[:changed]), tuple(items[changed:]))
    fn = entry(*(("PRESENT", s, None) for s in items), ("DISTINCT", items[0], value))
    draw = random.Random(n)
    for _ in range(20):
        all_of = [object() for _ in range(n)]
        assert fits(fn, all_of)
        i, j = sorted(draw.sample(range(n), 2))
        all_of[i] = all_of[j]
        assert fits(fn, all_of) == (i >= changed)
        if i < changed:
            assert fn.explain_failure((all_of,)) == f"a[{i}] and a[{j}] have become one object"


def test_globals_builtins_and_closures() -> None:
    space = {"LIMIT": 7, "__name__": "space"}
    fn = entry(("EQUALS", Global.of(space, "LIMIT"), 7), ("DICT_ABSENT", Scope.of(space), "len"))
    assert fits(fn, 0)
    space["unread"] = 1
    assert fits(fn, 0)
    space["LIMIT"] = 8
    assert not fits(fn, 0) and fn.explain_failure((0,)) == "LIMIT was 7, is 8"
    space.update(LIMIT=7, len=sum)
    assert not fits(fn, 0)
    del space["LIMIT"]
    assert not fits(fn, 0) and "cannot be fetched: KeyError" in fn.explain_failure((0,))
    f = adder(1)
    fn = entry(("FUNCTION", A, f), ("EQUALS", Closure(A, 0), 1))
    assert fits(fn, f) and fits(fn, adder(1)) and not fits(fn, adder(2))


def test_function_defaults() -> None:
    f = type(scale)(scale.__code__, globals(), "f", scale.__defaults__)
    f.__kwdefaults__ = {"w": 2}
    fn = entry(("FUNCTION", A, f))
    assert fits(fn, f)
    f.__kwdefaults__ = {"w": 2, "v": 3}
    assert not fits(fn, f)
    f.__kwdefaults__, f.__defaults__ = {"w": 5}, (4,)
    assert fits(fn, f)  # values of defaults have guards of their own
    f.__defaults__ = None
    assert not fits(fn, f)
    f.__defaults__, f.__code__ = (4,), other.__code__
    assert not fits(fn, f)


def test_a_check_that_raises_is_a_miss() -> None:
    class Rude:
        def __eq__(self, other):
            raise RuntimeError("no")

        @property
        def size(self):
            raise RuntimeError("no")

        __hash__ = object.__hash__

    assert entry(("EQUALS", Attr(A, "size"), 3))(Rude()) is MISS
    assert entry(("EQUALS", Item(A, 3), 3))([1]) is MISS
    assert entry(("DICT_KEYS", A, ("x", 2)))({Rude(): 1, 2: 2}) is MISS


# ---- modules -------------------------------------------------------------------------------------------------------

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.proj = nn.Conv2d(4, 4, 1)
        self.scale, self.unread = 2, "x"


def net_entry(net: nn.Module, on_dead=None):
    """An entry guarded as following nn.Module.__call__ does."""
    guards, root = [], A
    for name, module in net.named_modules():
        source = root
        for part in name.split(".") if name else ():
            source = SubModule(source, part)
        own = InstanceDict(source)
        guards += [("TYPE_IS", source, type(module)), ("ID_IS", source, module)]
        guards += [("DICT_ABSENT", own, n) for n in ("forward", "_call_impl", "_compiled_call_impl")]
        guards += [("TYPE_IS", DictItem(own, h), collections.OrderedDict) for h in HOOKS]
        guards += [("BOOL", DictItem(own, h), False) for h in HOOKS]
        guards += [("EQUALS", DictItem(own, "training"), module.training)]
        guards += [
            ("EQUALS", DictItem(own, n), module.__dict__[n])
            for n in ("stride", "eps", "momentum", "scale", "inplace")
            if n in module.__dict__
        ]
        guards += [("FUNCTION", Attr(Type(source), "forward"), type(module).forward)]
        guards += [("TENSOR", ModuleParam(source, n), TensorCheck.of(p)) for n, p in module._parameters.items()]
        guards += [("TENSOR", ModuleBuffer(source, n), TensorCheck.of(b)) for n, b in module._buffers.items()]
    return entry(*guards, on_dead=on_dead)


def put(path, value):
    def change(net):
        owner, _, name = path.rpartition(".")
        setattr(net.get_submodule(owner), name, value)

    return change


def raw(path, value):
    def change(net):
        owner, _, name = path.rpartition(".")
        net.get_submodule(owner).__dict__[name] = value

    return change


def data(path, f):
    def change(net):
        p = net.get_parameter(path)
        p.data = f(p.data)

    return change


def swap_class(net):
    net.act.__class__ = type("Mine", (nn.ReLU,), {})


NOTICED = {
    "param.data of another dtype": data("conv.weight", torch.Tensor.double),
    "param.data of another shape": data("conv.bias", lambda t: t[:2]),
    "param.data transposed": data("conv.weight", lambda t: t.transpose(2, 3)),
    "param.data channels last": data("conv.weight", lambda t: t.contiguous(memory_format=torch.channels_last)),
    "reshaped in place": lambda n: n.norm.running_mean.unsqueeze_(0),
    "1x1 weight permuted": data("proj.weight", lambda t: t.transpose(0, 1)),
    "to(float64)": lambda n: n.double(),
    "to(meta)": lambda n: n.to("meta"),
    "requires_grad_": lambda n: n.conv.weight.requires_grad_(False),
    "parameter without gradient": put("norm.weight", nn.Parameter(torch.ones(4), requires_grad=False)),
    "parameter removed": lambda n: n.conv._parameters.pop("bias"),
    "parameter set to None": put("conv.bias", None),
    "buffer of another dtype": put("norm.running_mean", torch.zeros(4).double()),
    "submodule replaced": put("act", nn.ReLU()),
    "submodule removed": lambda n: n._modules.pop("act"),
    "class replaced": swap_class,
    "training flipped": lambda n: n.eval(),
    "training of one": lambda n: n.norm.eval(),
    "training of another type": raw("norm.training", 1),
    "forward hook": lambda n: n.conv.register_forward_hook(print),
    "forward pre-hook": lambda n: n.register_forward_pre_hook(print),
    "full backward hook": lambda n: n.act.register_full_backward_hook(print),
    "full backward pre-hook": lambda n: n.act.register_full_backward_pre_hook(print),
    "hook dict replaced": raw("conv._forward_hooks", collections.OrderedDict({1: print})),
    "hook dict of another type": raw("conv._forward_hooks", {}),
    "hook dict removed": lambda n: n.conv.__dict__.pop("_forward_hooks"),
    "instance forward": raw("act.forward", abs),
    "instance _call_impl": raw("conv._call_impl", abs),
    "attribute": put("scale", 3),
    "attribute of another type": put("scale", 2.0),
    "stride": put("conv.stride", (2, 2)),
    "stride of another type": put("conv.stride", [1, 1]),
    "eps": put("norm.eps", 1e-3),
}
IGNORED = {
    "parameter values": lambda n: n.conv.weight.data.add_(1),
    "param.data alike": data("conv.weight", torch.clone),
    "parameter replaced by one alike": put("conv.weight", nn.Parameter(torch.zeros(4, 3, 3, 3))),
    "state dict loaded": lambda n: n.load_state_dict(Net().state_dict()),
    "unread attribute": put("unread", "y"),
    "new attribute": put("conv.note", 1),
    "new submodule": lambda n: n.add_module("more", nn.Linear(1, 1)),
    "state dict hook": lambda n: n.register_load_state_dict_post_hook(lambda m, k: None),
    "training set again": lambda n: n.train(),
    "an equal float": put("norm.eps", float("1e-5")),
    "an equal tuple": put("conv.stride", tuple([1, 1])),
    "gradient": lambda n: setattr(n.conv.weight, "grad", torch.ones(4, 3, 3, 3)),
}


@pytest.mark.parametrize("name", NOTICED)
def test_change_of_a_module_is_noticed(name) -> None:
    net = Net()
    fn = net_entry(net)
    assert fits(fn, net)
    NOTICED[name](net)
    assert not fits(fn, net)


@pytest.mark.parametrize("name", IGNORED)
def test_change_of_something_unread_is_not(name) -> None:
    net = Net()
    fn = net_entry(net)
    IGNORED[name](net)
    assert fits(fn, net)


def test_class_attribute_patched() -> None:
    class Mine(nn.ReLU):
        def forward(self, x):
            return x

    net = nn.Sequential(Mine())
    fn = net_entry(net)
    assert fits(fn, net)
    Mine.forward = lambda self, x: x + 1
    assert not fits(fn, net)


def test_modules_are_not_kept_alive_and_a_dead_entry_misses() -> None:
    net, dead = Net(), []
    net.back = [net.conv]
    net.conv.parent = [net]  # a cycle: only the collector frees it
    fn = net_entry(net, on_dead=lambda entry: dead.append(1))
    assert fits(fn, net)
    seen = [weakref.ref(net), weakref.ref(net.conv), weakref.ref(net.conv.weight)]
    del net
    gc.collect()
    assert [r() for r in seen] == [None] * 3 and dead == [1]
    assert fn(Net()) is MISS


class Thing:
    """Takes weak references."""


def at_the_same_address(make, address):
    """A new object at a dead one's address; skips where the allocator gives it to none."""
    others = []
    for _ in range(10000):
        made = make()
        if id(made) == address:
            return made
        others.append(made)
    pytest.skip("the address was not given out again")


def dead_by(kind, value_of, container):
    """An entry with a guard of `kind` about a Thing, and one about a Thing at the address of that one, dead now. The entry is
    not told of the death, as where a RecursionError swallows the callback."""
    thing = Thing()
    fn = entry((kind, A, value_of(thing)))
    assert not fn.watches and fits(fn, container(thing))
    address = id(thing)
    del thing
    return fn, at_the_same_address(Thing, address)


@pytest.mark.parametrize(
    "kind,value_of,container",
    [
        ("ID_IS", lambda t: t, lambda t: t),
        ("DICT_KEYS", lambda t: (t,), lambda t: {t: 1}),
        ("DICT_KEYS", lambda t: (t, "a"), lambda t: {t: 1, "a": 2}),
        ("SET_ITEMS", lambda t: (t,), lambda t: {t}),
    ],
)
def test_an_object_at_the_address_of_a_dead_one_is_another(kind, value_of, container) -> None:
    fn, other = dead_by(kind, value_of, container)
    assert not fits(fn, container(other)) and not fits(fn, None)
    assert kind != "DICT_KEYS" or not fits(fn, {None: 1})


def test_a_class_at_the_address_of_a_dead_one_is_another() -> None:
    """Of every kind of guard on a type, with the compiled check and without."""

    def make():
        return type("Made", (), {})

    cls = make()
    fn, one = entry(("TYPE_IS", A, cls), ("TYPE_IS", B, cls), params=("a", "b")), cls()
    assert fits(fn, one, one)
    address = id(cls)
    del cls, one
    gc.collect()
    other = at_the_same_address(make, address)()
    assert not fits(fn, other, other)


def test_an_object_that_dies_while_guards_are_checked() -> None:
    """A property drops the last reference to what a later guard compares with."""

    class Owner:
        @property
        def act(self):
            self.thing = None
            return 1

    owner = Owner()
    owner.thing = Thing()
    guards = [("EQUALS", Attr(A, "act"), 1), ("ID_IS", Attr(A, "thing"), owner.thing)]
    guards += [("BOOL", Attr(A, f"b{i}"), True) for i in range(10)]
    fn = entry(*guards)
    for i in range(10):
        setattr(owner, f"b{i}", True)
    assert not fits(fn, owner)


def test_items_that_move_within_their_dict() -> None:
    """Where an item was last is only a hint: moved, gone, replaced, behind many others, or under an equal key."""
    fn = entry(
        *(("EQUALS", DictItem(A, key), value) for key, value in (("x", 1), ("y", "text"), ("z", 2.5), (7, 3))),
        *(("BOOL", DictItem(A, f"b{i}"), True) for i in range(6)),
        ("TYPE_IS", DictItem(A, "empty"), dict),
        ("BOOL", DictItem(A, "empty"), False),
    )
    right = {"x": 1, "y": "text", "z": 2.5, 7: 3, **{f"b{i}": True for i in range(6)}, "empty": {}}
    rng = random.Random(0)
    for n in range(60):
        keys = rng.sample(list(right), len(right))
        fillers = {f"f{i}": i for i in range(rng.choice((0, 0, 3, 200)))}
        if n % 4 == 0:  # equal keys, other objects
            keys = [k if type(k) is int else "".join(k) + "" if len(k) == 1 else "".join(list(k)) for k in keys]
        table = {**fillers, **{k: right[k] for k in keys}} if n % 2 else {**{k: right[k] for k in keys}, **fillers}
        if n % 3 == 0:
            del table[keys[0]]
            table[keys[0]] = right[keys[0]]
        assert fits(fn, table) and fits(fn, table)
        key = rng.choice(keys)
        table[key] = {1: 2} if key == "empty" else None
        assert not fits(fn, table)
        del table[key]
        assert not fits(fn, table)


def test_two_modules_of_a_class_do_not_share_an_entry() -> None:
    one, two = Net(), Net()
    fn = net_entry(one)
    assert fits(fn, one) and not fits(fn, two)


# ---- the set and the function ----------------------------------------------------------------------------------------


def test_guards_that_others_imply_are_dropped() -> None:
    found = GuardSet()
    found.add("TYPE_IS", A, torch.Tensor)
    found.add("TENSOR", A, TensorCheck.of(X))
    found.add("TYPE_IS", A, torch.Tensor)
    found.add("TYPE_IS", B, int)
    found.add("EQUALS", B, 3)
    found.add("ID_IS", KnownSource.of(OBJ), OBJ)
    assert [g.kind for g in found] == ["TENSOR", "EQUALS"]
    found.add("DICT_ABSENT", Local("d"), "x")
    found.add("DICT_ABSENT", Local("d"), "y")
    found.add("DICT_ABSENT", Local("d"), "x")
    assert len(found) == 4
    found.add("DICT_KEYS", Local("d"), ("z",))
    assert len(found) == 3
    net = nn.ReLU()
    found.add("TYPE_IS", Local("m"), nn.ReLU)
    found.add("ID_IS", Local("m"), net)
    assert len(found) == 5  # __class__ of an instance can change: the type stays
    assert len(found.copy()) == 5 and "TENSOR a: f32[2,3] no grad" in found.text()
    with pytest.raises(KeyError):
        found.add("NO_SUCH_KIND", A, 1)


def test_contradicting_guards_stay() -> None:
    found = GuardSet()
    found.add("EQUALS", A, 1)
    found.add("ID_IS", A, OBJ)
    assert len(found) == 2 and isinstance(next(iter(found)), Guard)


def test_entry_runs_graph_effects_and_exits() -> None:
    found = GuardSet()
    found.add("TENSOR", A, TensorCheck.of(X))
    box = {"n": 1}
    item = DictItem(Local("box"), "n")

    def body(at):
        old = at.source(item)  # fetched before the graph runs
        return f"L_box['n'] = {old} + 10\nreturn ((o0, {old}), 4)"

    def graph(x):
        box["n"] = 99
        if x[0, 0] == 0:
            raise ValueError("a user's error")
        return (x + 1,)

    env = {"MISS": MISS, "graph": graph, "own_exit": lambda error, flat: ((type(error), *flat), 2)}
    fn = compile_entry(["S_0", "L_a", "L_box", "C_c"], found, Work([A], body, env, outputs=1))
    (got, old), where = fn(None, torch.ones(2, 3), box, None)
    assert torch.equal(got, torch.full((2, 3), 2.0)) and old == 1 and where == 4 and box["n"] == 11
    flat, where = fn("s", torch.zeros(2, 3), box, None)
    assert where == 2 and flat[:2] == (ValueError, "s") and len(flat) == 4
    assert fn(None, torch.ones(3), box, None) is MISS


def test_stack_slots_and_the_text_in_tracebacks() -> None:
    found = GuardSet()
    found.add("TYPE_IS", StackSlot(0), int)
    fn = compile_entry(["S_0"], found, Work([], "return (1 // S_0, None)", {"MISS": MISS}))
    assert fn(1) == (1, None) and fn("s") is MISS
    with pytest.raises(ZeroDivisionError) as caught:
        fn(0)
    assert "return (1 // S_0, None)" in "".join(traceback.format_exception(caught.value))


def test_without_a_compiler_checks_are_made_from_python() -> None:
    from bytejit.common import registry
    from bytejit.common.errors import BytejitError

    def build(text):
        raise BytejitError("no compiler")

    CHECKER.install(build)
    fn = entry(("TENSOR", A, TensorCheck.of(X)))
    assert fits(fn, X) and not fits(fn, X.double()) and not CHECKER.usable
    assert registry.counters["fallbacks"]["guards are checked from Python: BytejitError"] == 1


def test_prefixes_are_fetched_once(checker) -> None:
    net = Net()
    fn = net_entry(net)
    if checker == "compiled":  # one call fetches all
        assert "['" not in fn.text and fn.text.count("_run") == 1 and fn.table is not None
        return
    assert fn.table is None
    assert fn.text.count("['conv']") == 1 and fn.text.count("['_modules']") == 1
    assert fn.text.count("conv") <= 2


def test_no_reference_leaks_or_goes_missing() -> None:
    net = Net()
    net.note = note = object()
    net.eps = 10.0**3
    sources = [
        ModuleParam(SubModule(A, "conv"), "weight"),
        Attr(A, "note"),
        Item(B, 0),
        InstanceDict(A),
        TupleItem(B, 1),
        Closure(KnownSource.of(scale_by), 0),
        *(SubModule(A, n) for n in ("norm", "act", "proj")),
    ]
    found = GuardSet()
    for kind, source, value in [
        ("TYPE_IS", A, Net),
        ("ID_IS", A, net),
        ("LEN_IS", B, 2),
        ("EQUALS", Attr(A, "eps"), 1000.0),
        ("EQUALS", DictItem(InstanceDict(A), "scale"), 2),
        ("DICT_KEYS", Attr(A, "_buffers"), ()),
        ("TYPE_IS", DictItem(InstanceDict(A), "_forward_hooks"), collections.OrderedDict),
        ("BOOL", DictItem(InstanceDict(A), "_forward_hooks"), False),
        ("DICT_KEYS", Attr(A, "_modules"), ("conv", "norm", "act", "proj")),
        ("DICT_ABSENT", InstanceDict(A), "x"),
        ("FUNCTION", KnownSource.of(adder), adder),
        ("ALIAS", Item(B, 0), (Attr(A, "note"), True)),
        ("TENSOR", sources[0], TensorCheck.of(net.conv.weight)),
        ("TYPE_IS", SubModule(A, "act"), nn.ReLU),
    ]:
        found.add(kind, source, value)
    env = {"MISS": MISS, "graph": lambda *x: (x,), "own_exit": None}
    fn = compile_entry(["L_a", "L_b"], found, Work(sources, "return (o0, None)", env, outputs=1))
    pair, other_pair = (note, float("7")), (None, float("7"))
    got = fn(net, pair)[0]
    assert got[0] is net.conv.weight and got[1:5] == (note, note, net.__dict__, 7.0) and got[6] is net.norm
    del got
    watched = [
        net,
        note,
        pair,
        *pair,
        None,
        net.__dict__,
        net._modules,
        net.conv,
        net.conv.weight,
        net.act,
        net.eps,
        net._forward_hooks,
        "note",
        adder,
        adder.__code__,
        Net,
        nn.ReLU,
        scale_by.__closure__[0].cell_contents,
    ]
    before = [sys.getrefcount(x) for x in watched]
    for i in range(200):
        assert fn(net, pair) is not MISS and fn(net, other_pair) is MISS
        net.eps = 10.0**3 if i % 2 else watched[11]  # an equal one
        net.scale = 3
        assert fn(net, pair) is MISS
        net.scale = 2
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(net.__dict__, "_forward_hooks", {} if i % 3 else {1: 2})
            assert fn(net, pair) is MISS
    net.eps = watched[11]
    after = [sys.getrefcount(x) for x in watched]
    assert all(abs(a - b) < 20 for a, b in zip(after, before)), (before, after)


def test_a_class_with_its_own_dict_attribute_is_asked() -> None:
    class Odd:
        @property
        def __dict__(self):
            return {"x": self.y}

    class Strict:
        def __getattribute__(self, name):
            return {"x": 1} if name == "__dict__" else object.__getattribute__(self, name)

    for kind in (Odd, Strict):
        obj = kind()
        obj.y = 1
        x = DictItem(InstanceDict(A), "x")
        fn = entry(("TYPE_IS", A, kind), ("EQUALS", x, 1), ("TENSOR", B, TensorCheck.of(X)), params=("a", "b"))
        assert fits(fn, obj, X)
        obj.y = 2
        assert fits(fn, obj, X) == (kind is Strict)


def test_equality_is_strict_all_the_way_down() -> None:
    assert same([1, {"k": (0.0,)}], [1, {"k": (0.0,)}]) and not same([1, {"k": (0.0,)}], [1, {"k": (-0.0,)}])
    assert not same({1: 2}, {True: 2}) and not same({"a": 1, "b": 2}, {"b": 2, "a": 1}) and not same([1], (1,))
    assert same(math.nan, float("nan")) and not same(1, True)


def test_what_failed_is_said() -> None:
    fn = entry(("TENSOR", A, TensorCheck.of(X)), ("EQUALS", B, 3), params=("a", "b"))
    assert fn.explain_failure((X.double(), 3)) == "a was f32[2,3] no grad, is f64[2,3] no grad"
    assert fn.explain_failure((X, 4)) == "b was 3, is 4"
    assert fn.explain_failure((X, 3)) == "no guard fails"
