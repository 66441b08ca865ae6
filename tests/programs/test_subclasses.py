"""Tensor subclasses, `__torch_function__`, modes"""

import functools

import torch
import torch.nn.functional as Fn
from torch import nn
from torch.overrides import TorchFunctionMode

from .harness import F, Spec, case, program


class Tagged(torch.Tensor):
    """Overrides nothing."""


class Kept(Tagged):
    """A subclass of a subclass."""


class Logged(torch.Tensor):
    """Notes what it is told."""

    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.seen.append((func.__name__, len(args), sorted(kwargs or {}), [t.__name__ for t in types]))
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(torch.Tensor):
    """Made over a tensor, with an attribute that decides what a product is."""

    @staticmethod
    def __new__(cls, x, scale):
        made = torch.Tensor._make_subclass(cls, x)
        made.scale = scale
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        scale = next((a.scale for a in args if isinstance(a, Scaled)), 1.0)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out * scale if func is torch.Tensor.mul else out


class Box(torch.Tensor):
    """Keeps its attribute through some methods, and is a plain tensor after others; a property and a method of its own."""

    @classmethod
    def _wrap(cls, t, *, fmt):
        made = t.as_subclass(cls)
        made.fmt = fmt
        return made

    def __new__(cls, data, *, fmt="xyxy"):
        return cls._wrap(torch.as_tensor(data), fmt=fmt)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach):
            return cls._wrap(out, fmt=args[0].fmt)
        return out.as_subclass(torch.Tensor) if isinstance(out, cls) else out

    @property
    def area(self):
        return (self[..., 2] - self[..., 0]) * (self[..., 3] - self[..., 1])

    def scaled(self, k):
        return type(self)._wrap(self * k, fmt=self.fmt)


class Masked(torch.Tensor):
    """Carries a mask along, set by `__new__`, with an `__init__` of its own."""

    @staticmethod
    def __new__(cls, data, mask):
        made = torch.Tensor._make_subclass(cls, data)
        made.mask = mask
        return made

    def __init__(self, data, mask):
        self.inited = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.sum, torch.Tensor.sum):
            plain = args[0].as_subclass(torch.Tensor)
            return torch.where(args[0].mask, plain, torch.zeros(())).sum()
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Masked) and not hasattr(out, "mask"):
            out.mask = functools.reduce(torch.logical_and, [a.mask for a in args if isinstance(a, Masked)])
        return out


class Wrapped:
    """No tensor, but taken by torch's functions."""

    def __init__(self, data, note):
        self.data, self.note = data, note

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.data if isinstance(a, Wrapped) else a for a in args]
        out = func(*plain, **(kwargs or {}))
        return Wrapped(out, "+".join(a.note for a in args if isinstance(a, Wrapped)) + func.__name__)

    def __matmul__(self, other):
        return torch.matmul(self, other)


class Units:
    """A table of the functions that it knows."""

    table: dict = {}

    def __init__(self, value, unit):
        self.value, self.unit = value, unit

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in cls.table or not all(issubclass(t, (torch.Tensor, Units)) for t in types):
            return NotImplemented
        return cls.table[func](*args, **(kwargs or {}))

    def __rmul__(self, other):
        return torch.mul(other, self)


def _implements(func):
    def note(fn):
        Units.table[func] = fn
        return fn

    return note


@_implements(torch.mul)
def _mul(a, b):
    unit = "*".join(v.unit for v in (a, b) if isinstance(v, Units))
    return Units(torch.mul(getattr(a, "value", a), getattr(b, "value", b)), unit)


@_implements(torch.cat)
def _cat(parts, dim=0):
    return Units(torch.cat([p.value for p in parts], dim), parts[0].unit)


def overridable(a, b=1):
    """A function of a library that lets its arguments override it."""
    if torch.overrides.has_torch_function((a,)):
        return torch.overrides.handle_torch_function(overridable, (a,), a, b=b)
    return a + b


class Quantised(torch.Tensor):
    """A weight of int8 that is made a float where a layer uses it; runs ATen operations itself."""

    @staticmethod
    def __new__(cls, q, scale):
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=scale.dtype, device=q.device)

    def __init__(self, q, scale):
        self.q, self.scale = q, scale

    def dequantised(self):
        return self.q.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is Fn.linear:
            return Fn.linear(args[0], args[1].dequantised(), *args[2:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(str(func))


class Twice(TorchFunctionMode):
    """Doubles each sum."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.add else out


class Notes(TorchFunctionMode):
    """Notes each function."""

    def __init__(self, log):
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append((getattr(func, "__name__", "?"), len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Doubles(TorchFunctionMode):
    """Makes tensors of float64 where nothing else is asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.zeros, torch.arange, torch.full):
            kwargs.setdefault("dtype", torch.float64)
        return func(*args, **kwargs)


@case(Spec(lambda r: r.f(4).as_subclass(Tagged)), F(4), graphs=1)
def test_subclass_given(x, y):
    """A subclass of Tensor as argument: what it makes of results, in place, in views, as a plain tensor again"""
    z = torch.add(x, y) * 2
    x.add_(1)
    x[0] = 5.0
    y.mul_(x)
    return z, type(z).__name__, isinstance(z, Tagged), z.as_subclass(torch.Tensor), x.view(2, 2), x.detach(), x[1:]


@case(Spec(lambda r: r.f(4).as_subclass(Tagged)), Spec(lambda r: r.f(4).as_subclass(Kept)), F(4), graphs=1)
def test_two_subclasses(a, b, c):
    """Two subclasses of Tensor, one of the other, in one operation; results that are tuples"""
    return a + b, c * a, torch.stack([c, b]), a.T, list(b), a.data, b.grad, a.max(0), torch.split(b, 2), a.shape


@case(Spec(lambda r: r.f(4).as_subclass(Logged)), F(4), graphs=1)
def test_torch_function_told(x, y):
    """A `__torch_function__` is told the functions that torch would tell it: of operators, attributes, items"""
    Logged.seen.clear()
    z = torch.add(x, y) * 2 - x
    z = Fn.softmax(torch.cat([z, y]), dim=-1) if z.shape[0] == 4 and len(z) == 4 else z
    return z, x[1:], 1 - x, -x, x.T, x == y, list(Logged.seen)


@case(Spec(lambda r: Scaled(r.f(4), 3.0)), F(4), graphs=1)
def test_torch_function_with_attributes(x, y):
    """A `__torch_function__` that reads attributes of its arguments and turns overrides off; made inside as well"""
    inner = Scaled(y, 2.0)
    return x * y + x.sin(), torch.mul(y, x), x.scale, (inner * y).as_subclass(torch.Tensor), inner.scale


@case(Spec(lambda r: Box(r.f(3, 4), fmt="cxcy")), F(3, 4), graphs=1)
def test_subclass_with_methods(given, x):
    """A subclass with a property, methods, a constructor and a keyword, as torchvision has them"""
    made = Box(x, fmt="a")
    scaled = made.scaled(3)
    return (
        given + x,
        given.clone(),
        given.clone().fmt,
        given.area,
        given.scaled(2.0),
        given.to(torch.float64),
        given.fmt,
        type(given * 2).__name__,
        made.area,
        scaled,
        scaled.fmt,
        made.clone(),
        isinstance(made, Box),
    )


@case(F(4), F(4), graphs=1)
def test_subclass_made_inside(x, y):
    """Tensors of a subclass made inside, with `__init__`, an attribute each, that leave the region"""
    a, b = Masked(x, x > 0), Masked(y, y > 0)
    c = a + b
    return c.mask, c, torch.sum(c), c.sum(), a.inited, x.as_subclass(Tagged) * y


@program(F(2, 4), graphs=1)
def test_parameters_of_subclasses():
    """Parameters whose data is a subclass, and subclasses of Parameter with methods and attributes"""

    class Named(nn.Parameter):
        def __new__(cls, data, tag):
            made = torch.Tensor._make_subclass(cls, data, True)
            made.tag = tag
            return made

        def doubled(self):
            return self * 2

    torch.manual_seed(0)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.w = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4).as_subclass(Tagged))
            self.n = Named(torch.randn(4, 4), "t")

        def forward(self, x):
            y = self.lin(x) @ self.w
            return y, y.as_subclass(torch.Tensor) @ self.n.doubled(), self.n.tag, isinstance(self.w, nn.Parameter)

    return M()


def _trained(f, x):
    y = f(x)
    y.as_subclass(torch.Tensor).backward()
    return type(y).__name__, x.grad


@case(F(3, 4, grad=True), drive=_trained, graphs=1)
def test_gradients_through_a_subclass(x):
    """Gradients through tensors of a subclass made inside"""
    y = (x * 2).as_subclass(Tagged)
    y[0] *= 3
    return y.exp().sum()


@case(F(4, 4), Spec(lambda r: Wrapped(r.f(4, 4), "given")), graphs=1)
def test_objects_with_torch_function(x, given):
    """Objects with `__torch_function__` that are no tensors, from outside and made inside"""
    w = Wrapped(x, "a")
    z, q, r = torch.add(w, x), w @ Wrapped(x, "b"), Fn.relu(given)
    return z.data, z.note, q.data, q.note, r, torch.stack([given.data, x]), torch.is_tensor(w), torch.overrides.is_tensor_like(w)


@case(F(4), F(4), graphs=1)
def test_table_of_functions(x, y):
    """A table from torch functions to implementations, found by `__torch_function__`"""
    a, b = Units(x, "m"), Units(y, "s")
    c, d = torch.mul(a, b), torch.cat([a, b])
    return c.value, c.unit, d.value, d.unit, (2 * a).value


@case(F(4))
def test_function_not_implemented(x):
    """A function that every `__torch_function__` refuses raises TypeError"""
    try:
        torch.sub(Units(x, "m"), x)
    except TypeError as e:
        return type(e).__name__, x + 1


class Strict(torch.Tensor):
    """Raises TypeError for what it was not made for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__.strip("_") in ("add", "mul", "lt", "eq") and all(isinstance(a, Strict) for a in args):
            raise TypeError("no Strict with a Strict")
        return super().__torch_function__(func, types, args, kwargs)


@case(Spec(lambda r: r.f(4).as_subclass(Strict)), F(4), breaks=True)
def test_torch_function_raises_within_an_operator(a, x):
    """A TypeError of `__torch_function__` is NotImplemented to an operator, and itself to a function"""
    told = [a + x]
    for f in (lambda: a + a, lambda: a < a, lambda: a == a, lambda: a != x, lambda: torch.add(a, a), lambda: a.mul(a)):
        try:
            told.append(f())
        except TypeError as e:
            told.append(str(e))
    return told


@case(F(4), Spec(lambda r: Wrapped(r.f(4), "w")), graphs=1)
def test_overridable_functions(x, w):
    """A library's function that asks `has_torch_function` and hands over"""
    found = overridable(w, b=3)
    return overridable(x), found.note, found.data


Wrapped.overridable = overridable


@program(F(2, 4), graphs=1)
def test_weight_that_overrides_linear():
    """A quantised weight that overrides `linear` and runs ATen operations itself: its parts are in the graph"""
    g = torch.Generator().manual_seed(0)
    q, scale = torch.randint(-9, 9, (3, 4), generator=g, dtype=torch.int8), torch.rand(3, 1, generator=g)
    lin = nn.Linear(4, 3)
    with torch.no_grad():
        lin.bias.fill_(0.5)
    lin.weight = nn.Parameter(Quantised(q, scale), requires_grad=False)
    return lambda x: lin(x).relu()


class Plus(torch.Tensor):
    """Defines an operator of its own."""

    def __add__(self, other):
        return "mine"


@case(Spec(lambda r: r.f(4).as_subclass(Plus)), breaks=True)
def test_subclass_with_operators(a):
    """A subclass that defines an operator itself"""
    return a + 1, a * 2


def _noted(f, x):
    log = []
    f(x)
    with Notes(log):
        first = f(x)
    with Notes(log):
        second = f(x)
    return first, second, log, f(x)


@program(F(4, 4), drive=_noted, total=2)
def test_function_mode_around():
    """A TorchFunctionMode around the call is told each function in each call; its effects are in the graph's exit"""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))

    def f(x):
        y = m(x) + 1 - x * 2
        y[0] = 3.0
        if y.shape[0] == 4 and y.dim() == 2 and len(y) == 4:
            y = y.T @ x
        y += torch.zeros(4, 4)
        z = (-y).sum(dim=1, keepdim=True)
        a, b = y.split(2)
        return torch.cat([y, z], 1), y.softmax(-1), a, b[0], 1 / (y.abs() + 2), (y > 0) & (x < 1), x.device, y.requires_grad

    return f


def _doubled(f, x):
    with Doubles():
        first = f(x), f(x)
    return first, f(x)


@case(F(4), drive=_doubled, total=2)
def test_function_mode_changes_factories(x):
    """A TorchFunctionMode around the call that changes the dtype of what is made"""
    return torch.zeros(3), torch.arange(4) + x, torch.full((2,), 1)


@case(F(4), F(4), graphs=1)
def test_function_modes_inside(x, y):
    """TorchFunctionModes entered inside, nested, left by an exception"""
    log = []
    with Twice():
        with Twice():
            a = torch.add(x, y)
        b = torch.add(a, x).sin()
    try:
        with Notes(log):
            c = x + 1
            raise ValueError("a")
    except ValueError:
        c = c * 2
    return a, b, c, torch.add(x, y), log


@case(F(4), breaks=True, total=2)
def test_break_within_a_function_mode(x):
    """A break inside a TorchFunctionMode: it is told of what comes after as well"""
    log = []
    with Notes(log):
        y = x + 1
        if y.sum() > -100:
            y = y * 2
        z = y.sin()
    return z, log


@case(Spec(lambda r: r.f(4).as_subclass(Tagged)), F(4), graphs=1)
def test_overrides_turned_off(x, y):
    """`DisableTorchFunctionSubclass` and `DisableTorchFunction` as managers"""
    with torch._C.DisableTorchFunctionSubclass():
        a = x + y
    with Twice(), torch._C.DisableTorchFunction():
        b = torch.add(x, y)
    return a, b, x + y


@program(F(3, grad=True))
def test_gradients_beside_a_subclass():
    """What `backward` accumulates is a plain tensor, what `torch.autograd.grad` returns is of the subclass"""

    class Own(torch.Tensor):
        pass

    leaves = [
        torch.ones(3).as_subclass(Own).requires_grad_(),
        torch.nn.Parameter(torch.ones(3).as_subclass(Own)),
        torch.nn.Parameter(torch.ones(3)),
    ]

    def told(v):
        return type(v).__name__, v.as_subclass(torch.Tensor).detach()

    def f(x):
        y = ((x.as_subclass(Own) * leaves[0] + leaves[1]) * leaves[2]).sum()
        given = torch.autograd.grad(y, [x, leaves[0]], retain_graph=True)
        y.backward(retain_graph=True)
        first = [told(v.grad) for v in [x, *leaves]]
        y.backward()
        return first, [told(v.grad) for v in [x, *leaves]], [told(v) for v in given]

    return f
