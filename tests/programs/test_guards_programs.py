"""Guards: whatever a program reads from outside, changed, gives the right result; what it does not read, no recompile

Each row builds a program, calls it, changes one thing, and calls it again on equal inputs.
"""

import collections
import copy
import enum
import functools
import random
import types

import numpy as np
import pytest
import torch
from torch import nn

import bytejit

from . import targets
from .compare import Comparer

G_INT, G_LIST, G_TENSOR, G_UNREAD = 2, [1, 2], torch.ones(3), 5


def g_helper(x):
    return x + 1


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Box:
    shared = 1

    def __init__(self, **k):
        self.__dict__.update(k)

    def go(self, x):
        return x * 2


def module(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers) if len(layers) != 1 else layers[0]


def x3():
    return torch.arange(3.0) + 1


READ, UNREAD = {}, {}


def read(f):
    """A row: f() -> (program, args, change). The change is read: the result follows it."""
    READ[f.__name__] = f
    return f


def unread(f):
    """A row: f() -> (program, args, change). The change is not read: nothing is compiled again."""
    UNREAD[f.__name__] = f
    return f


def globally(name, value):
    return lambda: globals().__setitem__(name, value)


def replaced(args):
    """A change that is another set of arguments."""
    return lambda: args


# ------------------------------------------------------------------ read: names, closures, defaults
@read
def global_int():
    return lambda x: x * G_INT, (x3(),), globally("G_INT", 7)


@read
def global_function():
    return lambda x: g_helper(x), (x3(),), globally("g_helper", lambda x: x - 1)


@read
def global_tensor():
    return lambda x: x + G_TENSOR, (x3(),), globally("G_TENSOR", torch.full((3,), 5.0))


@read
def global_tensor_values():
    return lambda x: x + G_TENSOR, (x3(),), lambda: globals().__setitem__("G_TENSOR", G_TENSOR * 9)


@read
def global_list_item():
    return lambda x: x * G_LIST[1], (x3(),), lambda: globals().__setitem__("G_LIST", [1, 9])


@read
def builtin_replaced():
    return lambda x: x * abs(-2), (x3(),), globally("abs", lambda v: 50)


@read
def cell_int():
    k = 2

    def change():
        nonlocal k
        k = 5

    return lambda x: x * k, (x3(),), change


@read
def cell_function():
    f = torch.sin

    def change():
        nonlocal f
        f = torch.cos

    return lambda x: f(x), (x3(),), change


@read
def cached_function_cleared():
    state = [2]

    @functools.lru_cache
    def factor(name, *, plus=0):
        return state[0] + len(name) + plus

    def change():
        state[0] = 50
        factor.cache_clear()

    return lambda x: x * factor("ab", plus=1), (x3(),), change


@read
def cached_tensor_cleared():
    made = []

    @functools.lru_cache(maxsize=4)
    def table(n):
        made.append(n)
        return torch.arange(3.0) + len(made) * n

    def change():
        table.cache_clear()

    return lambda x: x * table(5), (x3(),), change


@read
def callee_default_changed():
    def g(x, k=2, *, j=1):
        return x * k + j

    def change():
        g.__kwdefaults__ = {"j": 40}

    return lambda x: g(x), (x3(),), change


@read
def callee_code_changed():
    def g(x):
        return x + 1

    def change():
        g.__code__ = (lambda x: x - 1).__code__

    return lambda x: g(x), (x3(),), change


# ------------------------------------------------------------------ read: objects, containers
@read
def attribute_int():
    b = Box(k=2)
    return lambda x: x * b.k, (x3(),), lambda: setattr(b, "k", 3)


@read
def attribute_type():
    b = Box(k=2)
    return lambda x: x * b.k, (x3(),), lambda: setattr(b, "k", 2.0)


@read
def attribute_missing():
    b = Box()
    return lambda x: x * (b.k if hasattr(b, "k") else 5), (x3(),), lambda: setattr(b, "k", 3)


@read
def attribute_shadows_class():
    b = Box()
    return lambda x: x * b.shared, (x3(),), lambda: setattr(b, "shared", 9)


@read
def class_attribute():
    class C:
        k = 2

    return lambda x: x * C.k, (x3(),), lambda: setattr(C, "k", 3)


@read
def class_attribute_through_instance():
    class C:
        k = 2

    c = C()
    return lambda x: x * c.k, (x3(),), lambda: setattr(C, "k", 3)


@read
def method_replaced_on_class():
    class C:
        def go(self, x):
            return x + 1

    c = C()
    return lambda x: c.go(x), (x3(),), lambda: setattr(C, "go", lambda self, x: x - 1)


@read
def method_replaced_on_instance():
    b = Box()
    return lambda x: b.go(x), (x3(),), lambda: setattr(b, "go", lambda x: x - 1)


@read
def property_source():
    class C:
        k = 2

        @property
        def p(self):
            return self.k * 10

    c = C()
    return lambda x: x * c.p, (x3(),), lambda: setattr(c, "k", 3)


@read
def property_replaced_on_class():
    class C:
        p = property(lambda self: 2)

    c = C()
    return lambda x: x * c.p, (x3(),), lambda: setattr(C, "p", property(lambda self: 3))


@read
def property_of_base_replaced():
    class B:
        p = property(lambda self: 2)

    class C(B):
        pass

    c = C()
    return lambda x: x * c.p, (x3(),), lambda: setattr(B, "p", 3)


@read
def property_deleted():
    class B:
        p = 5

    class C(B):
        p = property(lambda self: 2)

    c = C()
    return lambda x: x * c.p, (x3(),), lambda: delattr(C, "p")


@read
def property_setter_replaced():
    class C:
        p = property(lambda self: self.k, lambda self, v: setattr(self, "k", v + 1))

    c = C()

    def f(x):
        c.p = 1
        return x * c.p

    return f, (x3(),), lambda: setattr(C, "p", property(lambda self: self.k, lambda self, v: setattr(self, "k", v + 5)))


@read
def classmethod_replaced():
    class C:
        go = classmethod(lambda cls, x: x + 1)

    c = C()
    return lambda x: c.go(x), (x3(),), lambda: setattr(C, "go", classmethod(lambda cls, x: x - 1))


@read
def classmethod_replaced_read_from_class():
    class C:
        go = classmethod(lambda cls, x: x + 1)

    return lambda x: C.go(x), (x3(),), lambda: setattr(C, "go", classmethod(lambda cls, x: x - 1))


@read
def staticmethod_replaced():
    class C:
        go = staticmethod(lambda x: x + 1)

    c = C()
    return lambda x: c.go(x), (x3(),), lambda: setattr(C, "go", staticmethod(lambda x: x - 1))


@read
def staticmethod_becomes_function():
    class C:
        go = staticmethod(lambda x: x + 1)

    return lambda x: C.go(x), (x3(),), lambda: setattr(C, "go", lambda x: x - 1)


@read
def instance_class():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x - 1

    a = A()
    return lambda x: a.go(x), (x3(),), lambda: setattr(a, "__class__", B)


@read
def base_class_changed():
    class A:
        def go(self, x):
            return x + 1

    class B(A):
        pass

    b = B()
    return lambda x: b.go(x), (x3(),), lambda: setattr(B, "go", lambda self, x: x * 5)


@read
def nested_attribute():
    b = Box(a=Box(b=Box(k=2)))
    return lambda x: x * b.a.b.k, (x3(),), lambda: setattr(b.a, "b", Box(k=8))


@read
def slot_value():
    class S:
        __slots__ = ("k",)

    s = S()
    s.k = 2
    return lambda x: x * s.k, (x3(),), lambda: setattr(s, "k", 6)


@read
def list_item():
    a = [1, 2]
    return lambda x: x * a[0] + a[1], (x3(),), lambda: a.__setitem__(1, 5)


@read
def list_length():
    a = [1, 2]
    return lambda x: x * len(a), (x3(),), lambda: a.append(3)


@read
def list_order():
    a = [2, 1]
    return lambda x: x * a[0] - a[1], (x3(),), a.reverse


@read
def dict_value():
    d = {"a": 1}
    return lambda x: x * d["a"], (x3(),), lambda: d.update(a=9)


@read
def dict_key_missing():
    d = {"a": 1}
    return lambda x: x * d.get("b", 4), (x3(),), lambda: d.update(b=9)


@read
def dict_contains():
    d = {"a": 1}
    return lambda x: x + 1 if "b" in d else x - 1, (x3(),), lambda: d.update(b=9)


@read
def dict_order():
    d = {"a": 1, "b": 2}

    def change():
        d["a"] = d.pop("a")

    return lambda x: x * list(d.values())[0], (x3(),), change


@read
def set_contents():
    s = {1}
    return lambda x: x + 1 if 2 in s else x - 1, (x3(),), lambda: s.add(2)


@read
def deque_contents():
    q = collections.deque([1, 2])
    return lambda x: x * q[0], (x3(),), q.rotate


@read
def ordered_dict_contents():
    d = collections.OrderedDict(a=1)
    return lambda x: x * sum(d.values()), (x3(),), lambda: d.update(b=9)


@read
def namespace_value():
    n = types.SimpleNamespace(k=2)
    return lambda x: x * n.k, (x3(),), lambda: setattr(n, "k", 5)


@read
def partial_arguments():
    b = Box(p=functools.partial(torch.mul, other=2))
    return lambda x: b.p(x), (x3(),), lambda: setattr(b, "p", functools.partial(torch.mul, other=3))


@read
def python_module_attribute():
    m = types.ModuleType("m")
    m.k = 2
    return lambda x: x * m.k, (x3(),), lambda: setattr(m, "k", 3)


@read
def ndarray_values():
    a = np.ones(3, dtype=np.float32)
    return lambda x: x + torch.from_numpy(a), (x3(),), lambda: a.__setitem__(0, 9)


# ------------------------------------------------------------------ read: arguments
@read
def argument_int():
    return lambda x, k: x * k, (x3(), 2), replaced((x3(), 3))


@read
def argument_float():
    return lambda x, k: x * k, (x3(), 2.0), replaced((x3(), 3.5))


@read
def argument_int_to_float():
    return lambda x, k: x.int() * k, (x3(), 2), replaced((x3(), 2.0))


@read
def argument_bool_to_int():
    return lambda x, k: (x * k, str(k)), (x3(), True), replaced((x3(), 1))


@read
def argument_negative_zero():
    return lambda x, k: x * k, (x3(), 0.0), replaced((x3(), -0.0))


@read
def argument_nan():
    return lambda x, k: x * k, (x3(), 1.0), replaced((x3(), float("nan")))


@read
def argument_str():
    return lambda x, k: getattr(torch, k)(x), (x3(), "sin"), replaced((x3(), "cos"))


@read
def argument_none():
    return lambda x, k: x if k is None else x * k, (x3(), None), replaced((x3(), 3))


@read
def argument_enum():
    return lambda x, k: x * k.value, (x3(), Color.RED), replaced((x3(), Color.BLUE))


@read
def argument_dtype():
    return lambda x, d: x.to(d), (x3(), torch.float64), replaced((x3(), torch.int32))


@read
def argument_list_to_tuple():
    return lambda x, a: (x * a[0], a * 2), (x3(), [1, 2]), replaced((x3(), (1, 2)))


@read
def argument_object_other():
    return lambda x, b: x * b.k, (x3(), Box(k=2)), replaced((x3(), Box(k=3)))


@read
def argument_aliases():
    def f(x, y):
        x.add_(1)
        return y * 2

    a = x3()
    return f, (x3(), x3()), replaced((a, a))


@read
def argument_function():
    return lambda x, f: f(x), (x3(), torch.sin), replaced((x3(), torch.cos))


@read
def varargs_count():
    return lambda *a: sum(a), (x3(),), replaced((x3(), x3()))


# ------------------------------------------------------------------ read: tensors
@read
def tensor_dtype():
    return lambda x: (x * 2, x.dtype), (x3(),), replaced((x3().double(),))


@read
def tensor_shape():
    return lambda x: (x.sum(), x.shape[0]), (x3(),), replaced((torch.ones(5),))


@read
def tensor_rank():
    return lambda x: x.sum(-1), (x3(),), replaced((torch.ones(2, 3),))


@read
def tensor_size_one():
    return lambda x: x + torch.ones(3), (x3(),), replaced((torch.ones(1),))


@read
def tensor_size_zero():
    return lambda x: (x.sum(), x * 2), (x3(),), replaced((torch.ones(0),))


@read
def tensor_strides():
    return lambda x: (x + 1, x.is_contiguous()), (torch.ones(3, 3),), replaced((torch.ones(3, 3).t()[:, ::2],))


@read
def tensor_transposed_same_shape():
    return lambda x: (x + 1, x.stride()), (torch.rand(3, 3),), replaced((torch.rand(3, 3).t(),))


@read
def tensor_requires_grad():
    return lambda x: x * 2, (x3(),), replaced((x3().requires_grad_(),))


@read
def tensor_to_parameter():
    return lambda x: (x * 2, isinstance(x, nn.Parameter)), (x3(),), replaced((nn.Parameter(x3()),))


@read
def tensor_to_none():
    return lambda x, y: x if y is None else x + y, (x3(), x3()), replaced((x3(), None))


@read
def tensor_to_number():
    return lambda x, y: x + y, (x3(), x3()), replaced((x3(), 4))


@read
def tensor_subclass():
    class Sub(torch.Tensor):
        pass

    return lambda x: (type(x).__name__, x + 1), (x3(),), replaced((x3().as_subclass(Sub),))


@read
def tensor_attribute():
    t = x3()
    return lambda x: x * 2 if hasattr(t, "tag") else x, (x3(),), lambda: setattr(t, "tag", 1)


@read
def outside_tensor_data():
    t = x3()
    return lambda x: x * t, (x3(),), lambda: setattr(t, "data", torch.full((3,), 4.0, dtype=torch.float64))


@read
def inference_tensor():
    def make():
        with torch.inference_mode():
            return (x3(),)

    return lambda x: x * 2, (x3(),), make


# ------------------------------------------------------------------ read: modes of torch
@read
def grad_mode():
    x = x3().requires_grad_()
    return lambda y: y * 2, (x,), lambda: torch.set_grad_enabled(False)


@read
def default_dtype():
    return lambda x: x + torch.zeros(3), (x3(),), lambda: torch.set_default_dtype(torch.float64)


@read
def autocast_mode():
    return lambda x: x @ x, (torch.ones(3, 3),), lambda: torch.set_autocast_enabled("cpu", True)


# ------------------------------------------------------------------ read: modules
@read
def module_training():
    m = module(nn.Linear(3, 3), nn.Dropout(0.5))
    return lambda x: m(x).detach(), (x3(),), m.eval


@read
def module_submodule_training():
    m = module(nn.Linear(3, 3), nn.Dropout(0.5))
    return lambda x: m(x).detach(), (x3(),), m[1].eval


@read
def module_weight_values():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: m.weight.data.fill_(2)


@read
def module_parameter_replaced():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: setattr(m, "weight", nn.Parameter(torch.ones(3, 3)))


@read
def module_bias_removed():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: setattr(m, "bias", None)


@read
def module_submodule_replaced():
    m = module(nn.Linear(3, 3), nn.ReLU())
    return lambda x: m(x).detach(), (x3(),), lambda: m.__setitem__(1, nn.Tanh())


@read
def module_appended():
    m = module(nn.Linear(3, 3), nn.ReLU())
    return lambda x: m(x).detach(), (x3(),), lambda: m.append(nn.Tanh())


@read
def module_to_double():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x.to(m.weight.dtype)).detach(), (x3(),), m.double


@read
def module_hook_added():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: m.register_forward_hook(lambda s, a, o: o * 5)


@read
def module_pre_hook_added():
    m = module(nn.Linear(3, 3), nn.ReLU())
    return lambda x: m(x).detach(), (x3(),), lambda: m[0].register_forward_pre_hook(lambda s, a: (a[0] * 5,))


@read
def module_forward_replaced():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: setattr(m, "forward", lambda x: x * 3)


@read
def module_option():
    m = module(nn.Sequential(nn.LeakyReLU(0.5)))
    return lambda x: m(-x), (x3(),), lambda: setattr(m[0], "negative_slope", 0.1)


@read
def module_frozen():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x), (x3(),), lambda: m.requires_grad_(False)


@read
def module_argument_other():
    a, b = module(nn.Linear(3, 3)), nn.Linear(3, 3)
    return lambda m, x: m(x).detach(), (a, x3()), replaced((b, x3()))


@read
def module_parameters_tied():
    m = module(nn.Linear(3, 3), nn.Linear(3, 3))

    def f(x):
        with torch.no_grad():
            m[0].weight.fill_(1)
        return m[1](x).detach()

    return f, (x3(),), lambda: setattr(m[1], "weight", m[0].weight)


# ------------------------------------------------------------------ unread
@unread
def global_unread():
    return lambda x: x * 2, (x3(),), globally("G_UNREAD", 6)


@unread
def attribute_unread():
    b = Box(k=2, other=1)
    return lambda x: x * b.k, (x3(),), lambda: setattr(b, "other", 2)


@unread
def attribute_added_unread():
    b = Box(k=2)
    return lambda x: x * b.k, (x3(),), lambda: setattr(b, "fresh", 2)


@unread
def dict_value_unread():
    d = {"a": 1, "b": 2}
    return lambda x: x * d["a"], (x3(),), lambda: d.update(b=3)


@unread
def dict_key_added_unread():
    d = {"a": 1}
    return lambda x: x * d["a"], (x3(),), lambda: d.update(z=3)


@unread
def list_item_unread():
    a = [1, 2, 3]
    return lambda x: x * a[0], (x3(),), lambda: a.__setitem__(2, 9)


@unread
def tensor_values():
    return lambda x: x * 2, (x3(),), replaced((x3() * 5,))


@unread
def tensor_other_object():
    return lambda x, y: x + y, (x3(), x3()), replaced((x3(), x3() - 4))


@unread
def outside_tensor_values():
    t = x3()
    return lambda x: x * t, (x3(),), lambda: t.add_(1)


@unread
def argument_unread():
    return lambda x, k: x * 2, (x3(), 1), replaced((x3(), 2))


@unread
def equal_string_other_object():
    return lambda x, k: getattr(torch, k)(x), (x3(), "sin"), replaced((x3(), "".join(["s", "in"])))


@unread
def equal_list_other_object():
    return lambda x, a: x * a[0], (x3(), [2]), replaced((x3(), [2]))


@unread
def equal_int():
    return lambda x, k: x * k, (x3(), 1000), replaced((x3(), int("1000")))


@unread
def module_weight_values_unread():
    m = module(nn.Linear(3, 3))
    return lambda x: m(x).detach(), (x3(),), lambda: m.weight.data.fill_(2)


@unread
def other_modules_training():
    m = module(nn.Linear(3, 3), nn.Dropout(0.1))
    return lambda x: m[0](x).detach(), (x3(),), m[1].eval


@unread
def random_state():
    return lambda x: x * 2, (x3(),), lambda: random.seed(9)


@unread
def tensor_storage_offset():
    return lambda x: x * 2, (x3(),), lambda: (torch.arange(6.0)[3:],)


@unread
def class_attribute_unread():
    class C:
        k, j = 2, 3

    return lambda x: x * C.k, (x3(),), lambda: setattr(C, "j", 4)


@unread
def training_restored():
    m = module(nn.Linear(3, 3), nn.Dropout(0.1)).eval()

    def change():
        m.train()
        m.eval()

    return lambda x: m(x).detach(), (x3(),), change


@pytest.fixture(autouse=True)
def modes_restored():
    saved = {k: globals()[k] for k in ("G_INT", "G_LIST", "G_TENSOR", "G_UNREAD", "g_helper")}
    yield
    globals().update(saved)
    globals().pop("abs", None)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)


def call(f, args):
    torch.manual_seed(1)
    return f(*args)


def copies(args):
    """Equal arguments, tensors cloned with their sharing; modules and the rest as they are."""
    memo = {id(a): a for a in args if type(a) not in (torch.Tensor, nn.Parameter)}
    if any(isinstance(a, torch.Tensor) and a.is_inference() for a in args):
        return args
    return copy.deepcopy(tuple(args), memo)


def equal(f, plain, args) -> None:
    """Both on equal arguments. The plain function goes second where both write into one outside tensor."""
    mine, theirs = copies(args), copies(args)
    Comparer().same((call(plain, theirs), theirs), (call(f, mine), mine), "result")


@pytest.mark.parametrize("name", READ)
def test_change_read(name):
    """Changed and read: the result follows"""
    program, args, change = READ[name]()
    counter = targets.Counter()
    f = targets.compiled(program, counter)
    equal(f, program, args)
    equal(f, program, args)
    new = change()
    args = new if isinstance(new, tuple) else args
    equal(f, program, args)
    equal(f, program, args)


@pytest.mark.parametrize("name", READ)
def test_read_and_unchanged(name):
    """Read and not changed: no recompile"""
    program, args, _ = READ[name]()
    counter = targets.Counter()
    f = targets.compiled(program, counter)
    for _ in range(2):
        f(*copies(args))
    before = counter.count
    for _ in range(3):
        f(*copies(args))
    assert counter.count == before, f"{counter.count - before} recompiles, nothing changed"


def test_own_defaults_changed():
    """New `__defaults__`, `__kwdefaults__` and `__code__` of the compiled function itself"""

    def program(x, k=2, *, j=1):
        return x * k + j

    def other(x, k=2, *, j=1):
        return x - k - j

    f = targets.compiled(program, targets.Counter())
    equal(f, program, (x3(),))
    for fn in (f, program):
        fn.__defaults__ = (7,)
    equal(f, program, (x3(),))
    for fn in (f, program):
        fn.__kwdefaults__ = {"j": 40}
    equal(f, program, (x3(),))
    for fn in (f, program):
        fn.__code__ = other.__code__
    equal(f, program, (x3(),))


@pytest.mark.parametrize("name", UNREAD)
def test_change_unread(name):
    """Changed and not read: no recompile, and right"""
    program, args, change = UNREAD[name]()
    counter = targets.Counter()
    f = targets.compiled(program, counter)
    equal(f, program, args)
    before = counter.count
    new = change()
    args = new if isinstance(new, tuple) else args
    equal(f, program, args)
    assert counter.count == before, f"{counter.count - before} recompiles, nothing that is read changed"


def test_what_is_written_becomes_one():
    """Of many tensors that are written, two become one; then one of them is what is only read"""

    def program(written, read):
        for i, t in enumerate(written):
            t.mul_(i + 2).add_(read[i % len(read)])
        return sum(written)

    f = targets.compiled(program, targets.Counter())
    for ties in ([], [("written", 1, "written", 4)], [("written", 3, "read", 2)], [("read", 0, "read", 1)], []):
        both = []
        for fn in (f, program):
            torch.manual_seed(0)
            args = {"written": [torch.randn(3) for _ in range(6)], "read": [torch.randn(3) for _ in range(3)]}
            for to, i, name, j in ties:
                args[to][i] = args[name][j]
            both.append((fn(**args), args))
        Comparer(1e-6, 1e-6).same(*reversed(both), where=str(ties))


def test_guards_grow_with_the_model():
    """Twice the layers: about twice the guards of a step, not four times"""

    def guards_of(layers):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        return len(bytejit.explain(step)(torch.ones(2, 4)).out_guards[-1])

    assert guards_of(20) < 2.2 * guards_of(10)
