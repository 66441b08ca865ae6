# ruff: noqa: B007, B023, B904, E731 - what the programs do is the point
"""Small programs of the kind users write, several features in each"""

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import types
import typing
import weakref

import torch
from torch import nn

from .harness import F, I, Rand, Sign, Turn, case, program


@dataclasses.dataclass
class State:
    x: torch.Tensor
    steps: int = 0
    history: list = dataclasses.field(default_factory=list)

    def advance(self, by):
        self.x, self.steps = self.x + by, self.steps + 1
        self.history.append(self.x.shape)
        return self


@contextlib.contextmanager
def scaled(state, by):
    state.x = state.x * by
    try:
        yield state
    finally:
        state.x = state.x / by
        state.history.append("out")


@case(F(4), graphs=1)
def test_dataclass_in_try_in_with(x):
    """A dataclass of tensors changed in a loop inside try/finally inside a manager"""
    s = State(x)
    with scaled(s, 2.0):
        for i in range(4):
            try:
                if i == 2:
                    raise KeyError(i)
                s.advance(i)
            except KeyError as e:
                s.history.append(e.args)
                continue
            finally:
                s.x = s.x * 1.5
    return s, dataclasses.asdict(dataclasses.replace(s, x=0.0))["steps"], dataclasses.fields(s)[0].name


@program(F(4), graphs=1)
def test_dataclass_given():
    """A dataclass from outside mutated, frozen ones replaced"""

    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float = 2.0
        names: tuple = ("a", "b")

    s, c = State(torch.zeros(4)), Config()

    def f(x):
        c2 = dataclasses.replace(c, scale=c.scale + 1)
        try:
            c.scale = 3.0
        except dataclasses.FrozenInstanceError as e:
            s.history.append(str(e))
        return s.advance(x * c2.scale).x, c2 == Config(3.0), hash(c.names) == hash(("a", "b"))

    return f, lambda: s


def pieces(x, n):
    for part in x.chunk(n):
        yield part * 2


def keep(parts, wanted):
    for i, part in enumerate(parts):
        if wanted(i):
            yield i, part


@case(F(8), graphs=1)
def test_generator_pipeline(x):
    """Generators of tensors, one over the other, ended early and closed"""
    total, order = torch.zeros(2), []
    stages = keep(pieces(x, 4), lambda i: i != 1)
    for i, part in stages:
        total = total + part
        order.append(i)
        if i == 2:
            stages.close()
    return total, order, [p.sum() for p in itertools.islice(pieces(x, 2), 1)], dict(keep(pieces(x, 2), bool))


@functools.singledispatch
def describe(value):
    return "other"


@describe.register
def _(value: torch.Tensor):
    return ("tensor", value * 2)


@describe.register(list)
def _of_list(value):
    return [describe(v) for v in value]


@describe.register(int)
@describe.register(float)
def _of_number(value):
    return value + 1


class Visitor:
    @functools.singledispatchmethod
    def visit(self, v):
        return 0

    @visit.register
    def _(self, v: torch.Tensor):
        return v.sum()


@functools.lru_cache
def power(n):
    return 2**n


@case(F(3))
def test_singledispatch_over_tensors(x):
    """functools.singledispatch over tensors, lists, numbers; singledispatchmethod; lru_cache; reduce"""
    return describe([x, 1, "s", [x + 1, 2.5]]), Visitor().visit(x), Visitor().visit(3), power(3) * x, power(3)


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor
    note: str = "none"

    @property
    def both(self):
        return self.left + self.right

    def swap(self):
        return self._replace(left=self.right, right=self.left)


Point = collections.namedtuple("Point", "u v", defaults=[0])


@case(F(4), graphs=1)
def test_named_tuple_results(x):
    """NamedTuple with methods, defaults, _replace, unpacked, nested in a result"""
    p = Pair(x, x * 2)
    a, b, note = p.swap()
    return p, p.both, a, note, p._asdict(), Pair._fields, Pair(*p[:2], note="given").note, Point(x).v


@program(F(4), graphs=1)
def test_chain_map_of_configs():
    """ChainMap, defaultdict, Counter, OrderedDict, MappingProxyType of configurations"""
    defaults = {"scale": 2.0, "shift": 1.0, "name": "d"}
    frozen = types.MappingProxyType({"scale": 4.0})
    seen = collections.Counter()

    def f(x, **given):
        config = collections.ChainMap({}, dict(frozen), defaults)
        config["shift"] = 5.0
        child = config.new_child({"name": "c"})
        groups = collections.defaultdict(list)
        for k in sorted(child):
            seen[k] += 1
            groups[type(child[k]).__name__].append(k)
        order = collections.OrderedDict((k, child[k]) for k in ("shift", "scale"))
        order.move_to_end("shift")
        for k, v in order.items():
            x = x * v if k == "scale" else x + v
        return x, dict(groups), child["name"], len(child), list(order), "scale" in frozen

    return f, lambda: (seen, defaults)


@case(F(4), graphs=1)
def test_closures_in_lists(x):
    """Closures captured in lists and dicts, sharing and not sharing cells, called later, some returned"""
    total = 0
    fs, table = [], {}
    for i in range(3):

        def add(y, i=i):
            nonlocal total
            total += i
            return y + i

        fs.append(add)
        fs.append(lambda y: y * (i + 1))
        table[f"k{i}"] = functools.partial(lambda y, k: y - k, k=i)
    for f in fs:
        x = f(x)
    for name in table:
        x = table[name](x)
    compose = functools.reduce(lambda f, g: lambda y: g(f(y)), fs[:2])
    return x, total, compose(x), fs[1](2), table["k2"](10)


@program(F(4), graphs=1)
def test_property_setters_on_modules():
    """Property setters, class attributes and `__setattr__` of modules"""

    class Scaler(nn.Module):
        count = 0

        def __init__(self):
            super().__init__()
            self._scale, self.log = 1.0, []
            self.register_buffer("last", torch.zeros(4))

        @property
        def scale(self):
            return self._scale

        @scale.setter
        def scale(self, value):
            self.log.append((self._scale, value))
            self._scale = value

        def __setattr__(self, name, value):
            if name == "limit":
                value = min(value, 10)
            super().__setattr__(name, value)

        def forward(self, x):
            self.scale = self.scale * 2
            self.limit = 5 * self._scale
            type(self).count += 1
            self.last = x.detach() * self.scale
            return self.last + self.limit

    m = Scaler()
    return m, lambda: (m.log, m._scale, m.limit, m.last, Scaler.count)


class Delegate:
    def __init__(self, inner, **extra):
        self.__dict__.update(inner=inner, asked=[], extra=extra)

    def __getattr__(self, name):
        if name in self.extra:
            return self.extra[name]
        self.asked.append(name)
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def __dir__(self):
        return ["all"]

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


@program(F(2, 4), graphs=1)
def test_getattr_delegation():
    """`__getattr__` and `__setattr__` that pass on to a module"""
    torch.manual_seed(0)
    d = Delegate(nn.Linear(4, 4), gain=3.0)

    def f(x):
        d.note = "set"
        y = d(x) * d.gain + d.weight.sum() + d.in_features
        return y, d.note, hasattr(d, "nothing"), getattr(d, "missing", None)

    return f, lambda: (d.asked, d.inner.note)


@program(F(2, 4), graphs=1)
def test_modules_with_kwargs_hooks():
    """Forward hooks with keyword arguments, pre-hooks that change arguments, always_call, removed in between"""
    torch.manual_seed(0)
    log = []

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, *, scale=1.0, bias=None):
            y = self.lin(x) * scale
            return y if bias is None else y + bias

    m = Scaled()
    m.register_forward_pre_hook(lambda mod, args, kw: (args, {**kw, "scale": kw.get("scale", 1.0) + 1}), with_kwargs=True)
    m.register_forward_hook(lambda mod, args, kw, out: (log.append(sorted(kw)), out * 2)[1], with_kwargs=True, always_call=True)
    h = m.lin.register_forward_hook(lambda mod, args, out: out.relu())

    def f(x):
        y = m(x, bias=x) + m(x, scale=3.0)
        return y, len(m._forward_hooks)

    return f, lambda: (log, h.id in m.lin._forward_hooks)


def loading_between(f, x):
    """Calls with the module's weights loaded, its mode and dtype changed in between."""
    m = f.__wrapped__.net if hasattr(f, "__wrapped__") else f.net
    outs = [f(x)]
    m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()})
    outs.append(f(x))
    m.eval()
    outs.append(f(x))
    m.train().double()
    outs.append(f(x.double()))
    m.float()
    m.drop.p = 0.0
    m.requires_grad_(False)
    outs.append(f(x))
    return outs


@program(F(4, 4), drive=loading_between, calls=2)
def test_state_dict_loads_and_mode_flips():
    """`load_state_dict`, `.eval()`, `.double()`, an attribute and `requires_grad_` changed between calls"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.norm(self.a(x)).relu())

    net = Net()

    def f(x):
        return net(x)

    f.net = net
    return f, lambda: net


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"

    def reduce(self, x):
        return getattr(x, self.value)()


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@case(F(4), Turn(Mode.SUM, Mode.MEAN), graphs=1)
def test_enums_and_match(x, mode):
    """Enum members with methods, flags, match over them, over dicts and over instances"""
    out = []
    for item in (mode, {"op": "add", "by": 2, "rest": 1}, Pair(x, x), [x, 1, 2], Flags.A | Flags.B, None):
        match item:
            case Mode.SUM:
                out.append("sum")
            case Mode():
                out.append(item.reduce(x))
            case {"op": "add", "by": by, **rest}:
                out.append((x + by, rest))
            case Pair(left=a, note=note):
                out.append((a * 2, note))
            case [first, *others] if len(others) == 2:
                out.append((first, others))
            case Flags() as f:
                out.append((Flags.A in f, f.name if f.name else f.value))
            case _:
                out.append("else")
    return out


class Registry(type):
    known: typing.ClassVar[dict] = {}

    def __new__(mcs, name, bases, ns, **kw):
        cls = super().__new__(mcs, name, bases, ns)
        if "op" in ns:
            mcs.known[ns["op"]] = cls
        return cls

    def __getitem__(cls, k):
        return cls.known[k]


class Op(metaclass=Registry):
    def __init__(self, k):
        self.k = k

    def __rmatmul__(self, x):
        return self.run(x)

    def __or__(self, other):
        return Chain(self, other)


class Add(Op):
    op = "add"

    def run(self, x):
        return x + self.k


class Mul(Op):
    op = "mul"

    def run(self, x):
        return x * self.k


class Chain(Op):
    def __init__(self, *parts):
        super().__init__(len(parts))
        self.parts = parts

    def run(self, x):
        return functools.reduce(lambda y, p: p.run(y), self.parts, x)

    def __iter__(self):
        yield from self.parts

    def __len__(self):
        return self.k


@case(F(4), graphs=1)
def test_operators_and_registry(x):
    """A metaclass that registers classes, operators that build chains, iterated and measured"""
    chain = Op["add"](2) | Op["mul"](3)
    names = [type(p).__name__ for p in chain]
    return chain.run(x), names, len(chain), bool(chain), sorted(Registry.known), (chain | Add(1)).run(x)


@program(F(4), Turn(3, 5, 9))
def test_cached_property_and_weakrefs():
    """cached_property, weak references and a WeakValueDictionary between objects"""

    class Node:
        def __init__(self, value, parent=None):
            self.value, self.children = value, []
            self.parent = weakref.ref(parent) if parent is not None else None
            if parent is not None:
                parent.children.append(self)

        @functools.cached_property
        def total(self):
            return self.value + sum(c.total for c in self.children)

    root = Node(torch.ones(4))
    kids = [Node(torch.full((4,), float(i)), root) for i in range(3)]
    names = weakref.WeakValueDictionary(root=root)

    def f(x, n):
        if n == 9:
            vars(root).pop("total", None)
        return root.total * x + n, kids[0].parent() is root, "root" in names

    return f, lambda: ("total" in vars(root), [k.value for k in kids])


class Shape(abc.ABC):
    registry: typing.ClassVar[list] = []

    def __init_subclass__(cls, weight=1.0, **kw):
        super().__init_subclass__(**kw)
        cls.weight = weight
        Shape.registry.append(cls.__name__)

    @abc.abstractmethod
    def area(self): ...

    @classmethod
    def of(cls, *args):
        return cls(*args)

    @staticmethod
    def norm(x):
        return x / x.abs().max()


class Square(Shape, weight=2.0):
    __slots__ = ("side",)

    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2 * self.weight


class Cube(Square):
    def area(self):
        return super().area() * self.side * 6

    def __eq__(self, other):
        return isinstance(other, Cube) and self.side is other.side

    def __hash__(self):
        return 7


class Sized(typing.Protocol):
    def area(self): ...


@case(F(4), graphs=1)
def test_abstract_classes_and_super(x):
    """ABC, `__init_subclass__` with keywords, slots, class and static methods, super, equality and hash"""
    shapes = [Square.of(x), Cube.of(x), Cube(x)]
    try:
        Shape()
    except TypeError as e:
        said = "abstract" in str(e)
    areas = [Shape.norm(s.area()) for s in shapes]
    return areas, shapes[1] == shapes[2], len({shapes[1], shapes[2], shapes[0]}), said, Shape.registry, [s.weight for s in shapes]


@case(F(4), graphs=1)
def test_exception_chains_with_tensors(x):
    """Exceptions with tensors in them, causes and contexts, groups, else and finally, raised in callees"""
    log = []

    class Bad(ValueError):
        def __init__(self, at, value):
            super().__init__(f"bad at {at}")
            self.at, self.value = at, value

    def check(i, y):
        try:
            if i % 2:
                raise Bad(i, y * i)
        except Bad as e:
            raise RuntimeError("wrapped") from e
        else:
            log.append("fine")
        finally:
            log.append(i)
        return y + i

    for i in range(3):
        try:
            x = check(i, x)
        except RuntimeError as e:
            cause = e.__cause__
            x = x - cause.value
            log.append((str(e), cause.at, cause.args, e.__context__ is cause))
    try:
        raise ExceptionGroup("many", [Bad(1, x), KeyError("k")])
    except* Bad as g:
        log.append(len(g.exceptions))
        x = x + g.exceptions[0].value
    except* KeyError:
        log.append("key")
    return x, log


class Tree(typing.NamedTuple):
    value: torch.Tensor
    kids: tuple = ()


def walk(tree, depth=0):
    yield depth, tree.value
    for kid in tree.kids:
        yield from walk(kid, depth + 1)


@case(F(4), graphs=1)
def test_recursive_generators(x):
    """Recursive generators over a tree, sorted, grouped, mapped back"""
    tree = Tree(x, (Tree(x * 2, (Tree(x * 3),)), Tree(x * 4)))
    found = sorted(walk(tree), key=lambda p: -p[0])
    groups = {d: [v for _, v in g] for d, g in itertools.groupby(found, key=lambda p: p[0])}
    mapped = (lambda f: lambda t: f(f, t))(lambda f, t: Tree(t.value + 1, tuple(f(f, k) for k in t.kids)))(tree)
    return {d: sum(v) for d, v in groups.items()}, mapped, max(d for d, _ in walk(tree))


@program(F(3, 4), graphs=1)
def test_module_containers():
    """ModuleDict, ParameterList, ParameterDict, ModuleList sliced, inserted into between calls, named_* walks"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(1, 4)])
            self.shifts = nn.ParameterDict({"x": torch.zeros(4)})
            self.blocks = nn.ModuleList([nn.Identity(), nn.ReLU(), nn.Tanh()])

        def forward(self, x):
            for s in self.scales:
                x = x * s + self.shifts["x"]
            for block in self.blocks[1:]:
                x = block(x)
            out = {name: head(x) for name, head in self.heads.items()}
            out["n"] = sum(p.numel() for _, p in self.named_parameters())
            out["names"] = [n for n, m in self.named_modules() if isinstance(m, nn.Linear)]
            return out, len(self.scales), "a" in self.heads, self.blocks[-1].__class__.__name__

    return Net()


@case(F(6), I(3, lo=0, hi=6), graphs=1)
def test_views_aliases_and_inplace(x, idx):
    """Views written through, index_put, masked_fill_, swap by tuple assignment, out="""
    y = x.clone()
    head, tail = y[:3], y[3:]
    head += tail
    y[idx] = 0
    tail.masked_fill_(tail > 0, 9.0)
    head[0], head[1] = head[1].clone(), head[0].clone()
    out = torch.empty(3)
    torch.add(head, tail, out=out)
    y.view(2, 3).t()[0].mul_(2)
    x[::2] *= -1
    return y, head, tail, out, x.view(3, 2)[:, 0], head.data_ptr if False else head._base is y


@case(F(2, 3), Turn("sum", "mean", "max"))
def test_strings_formats_and_dispatch(x, how):
    """Strings, formats of sizes, getattr by name, str methods, bytes, math"""
    name = f"{how!r:>6}|{x.shape[0]:03d}|{math.pi:.3f}|{tuple(x.shape)}|{x.dtype}"
    fn = {"sum": torch.sum, "mean": torch.mean}.get(how) or getattr(torch, how.lower())
    parts = name.replace("|", " ").split()
    y = fn(x) * len(parts) + ord(how[0]) + int("12") + float("1e2") + len(how.encode())
    said = f"{how}-{x.dim():d}"
    return y, parts, name.partition("|")[0].strip().title(), said, math.prod(x.shape), divmod(x.numel(), 4)


@case(Sign(4), F(4), breaks=True)
def test_data_dependent_paths(x, y):
    """Branches, loops and indexes decided by tensor values, within with, try and a nested function"""
    log = []

    def pick(t):
        if t.sum() > 0:
            log.append("pos")
            return t * 2
        log.append("neg")
        return t - 1

    with torch.no_grad():
        try:
            z = pick(x) + y
            while z.norm() > 1:
                z = z / 2
                log.append(len(log))
        finally:
            log.append("done")
    k = int(z.argmax())
    return z, log, [x, y][k % 2], k, torch.is_grad_enabled()


@program(F(4), breaks=True)
def test_break_in_comprehension_in_method():
    """A break inside a comprehension inside a method inside a loop over modules, state kept on self"""

    class Gate(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k, self.hits = k, 0

        def forward(self, x):
            if (x.mean() > self.k).item():
                self.hits += 1
                return x * 2
            return x + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates = nn.ModuleList([Gate(0.0), Gate(100.0), Gate(-100.0)])
            self.seen = []

        def route(self, xs):
            return [g(v) for g, v in zip(self.gates, xs) if v.dim() == 1]

        def forward(self, x):
            for i in range(2):
                x = torch.stack(self.route([x, x * 2, x - 1])).sum(0)
                self.seen.append((i, [g.hits for g in self.gates]))
            return x

    return Net()


@case(F(4), breaks=True)
def test_print_between_tensor_work(x):
    """print of values in a loop, in order with other effects, f-strings of tensors"""
    total = x
    for i, v in enumerate(x):
        total = total + v * i
        if i % 2:
            print(f"step {i}: {float(v) > 1e6}", end=";")
    print(f"{total.shape} {total.sum().item() > 1e9}")
    return total


@program(F(4), Turn({"a": 1}, {"b": 2, "a": 3}, {}))
def test_kwargs_that_change():
    """Keyword arguments of changing names passed through decorators and partials"""
    calls = []

    def logged(fn):
        @functools.wraps(fn)
        def inner(*args, **kw):
            calls.append((fn.__name__, sorted(kw)))
            return fn(*args, **kw)

        return inner

    @logged
    def core(x, *args, a=0, b=0, **rest):
        return x * (a + 1) + b + len(args) + len(rest)

    def f(x, given):
        half = functools.partial(core, x, 7, **given)
        return half(c=3), core(x, **{**given, "b": 9}), core.__name__

    return f, lambda: calls


@case(F(2, 3, 4), graphs=1)
def test_einops_like_shapes(x):
    """Shape arithmetic: unpacked sizes, reshape by computed ints, einsum, unfold, broadcasting with None"""
    b, (h, w) = x.size(0), x.shape[-2:]
    flat = x.reshape(b, -1)
    assert flat.shape == (b, h * w), f"{flat.shape}"
    windows = flat.unfold(1, 3, 3)
    outer = x[:, :, None, :] * x[:, None, :, :]
    heads = x.view(b, h, 2, w // 2).permute(0, 2, 1, 3).flatten(1, 2)
    pos = torch.arange(w, dtype=x.dtype, device=x.device)[None].expand(h, -1)
    return windows.sum(-1), outer.sum((1, 2)), torch.einsum("bhw,bkw->bhk", x, x), heads, x + pos, x.new_zeros(b, *x.shape[1:])


class Ring:
    """A buffer that behaves like a sequence."""

    def __init__(self, n):
        self.n, self.items = n, collections.deque(maxlen=n)

    def push(self, *values):
        self.items.extend(values)
        return self

    def __getitem__(self, i):
        return list(self.items)[i] if isinstance(i, slice) else self.items[i % len(self.items)]

    def __setitem__(self, i, v):
        self.items[i] = v

    def __len__(self):
        return len(self.items)

    def __contains__(self, v):
        return any(v is i for i in self.items)

    def __reversed__(self):
        return reversed(list(self.items))

    def __bool__(self):
        return len(self) == self.n


@program(F(4), graphs=1)
def test_ring_buffer_outside():
    """A user's sequence over a deque, from outside, pushed to, indexed, sliced, reversed, tested"""
    ring = Ring(3).push(torch.zeros(4), torch.ones(4))

    def f(x):
        ring.push(x)
        ring[0] = ring[0] + x
        return sum(ring[1:]), x in ring, [v.sum() for v in reversed(ring)], bool(ring), len(ring), ring[5]

    return f, lambda: list(ring.items)


@program(F(4))
def test_global_registry_and_counters():
    """Module-level state: a global counter, a dict of functions, a default argument that is mutated"""
    space = {}
    exec(
        compile(
            """
import torch
COUNT = 0
HANDLERS = {}
def register(name):
    def wrap(fn):
        HANDLERS[name] = fn
        return fn
    return wrap
@register("double")
def double(x, seen=[]):
    seen.append(len(seen))
    return x * 2, list(seen)
@register("neg")
def neg(x):
    global COUNT
    COUNT += 10
    return -x
def run(x):
    global COUNT, LAST
    COUNT += 1
    LAST = x.sum()
    out = {k: fn(x) for k, fn in HANDLERS.items()}
    del LAST
    return out, COUNT
""",
            __file__,
            "exec",
        ),
        space,
    )
    return space["run"], lambda: (space["COUNT"], "LAST" in space, space["double"].__defaults__)


@case(F(4, grad=True), F(4), graphs=1)
def test_autocast_no_grad_decorators(x, y):
    """autocast, no_grad and enable_grad as decorators and managers, nested in generators and methods"""

    class Model:
        @torch.no_grad()
        def frozen(self, v):
            return v * 2

        @torch.enable_grad()
        def alive(self, v):
            return v * 3

        @torch.autocast("cpu", dtype=torch.bfloat16)
        def low(self, v):
            return v[None] @ v[:, None]

    m = Model()
    with torch.no_grad():
        alive = m.alive(x)
        inner = [torch.is_grad_enabled() for _ in range(2)]
    return m.frozen(x), alive, m.low(y), inner, torch.is_grad_enabled(), m.low(y).dtype


@program(I(2, 5, lo=0, hi=10), graphs=1)
def test_embedding_with_cache():
    """A decoder step: embeddings, a mask by sizes, a cache in a dict that grows between calls"""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.emb, self.q = nn.Embedding(10, 8), nn.Linear(8, 8, bias=False)
            self.cache: dict[str, torch.Tensor] = {}

        def forward(self, ids):
            h = self.emb(ids)
            past = self.cache.get("k")
            k = h if past is None else torch.cat([past, h], 1)
            self.cache["k"] = k.detach()
            n, t = h.size(1), k.size(1)
            mask = torch.ones(n, t).tril(t - n).bool()
            att = (self.q(h) @ k.transpose(1, 2)).masked_fill(~mask, float("-inf")).softmax(-1)
            return att @ k, t

    return Decoder()


@case(F(4), Turn(None, 2, "3"))
def test_optional_arguments(x, k):
    """Optional, union and default arguments, isinstance chains, walrus, conditional expressions, early returns"""

    def norm(v: "int | str | None") -> float:
        if v is None:
            return 1.0
        if isinstance(v, str) and (n := int(v)) > 2:
            return float(n)
        return v * 0.5 if isinstance(v, int | float) else 0.0

    s = norm(k)
    return x * s if s != 1 else x, s, (lambda *a, **k: (a, k))(1, b=2), [v for v in (k, s) if v]


@program(F(3, 4), calls=2)
def test_training_step():
    """A training step: zero_grad, forward and loss compiled, backward and an SGD step by hand"""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    losses = []

    def f(x):
        for p in m.parameters():
            p.grad = None
        loss = nn.functional.mse_loss(m(x), x.sum(1, keepdim=True))
        loss.backward()
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad
        losses.append(loss.item())
        return loss.detach()

    return f, lambda: (losses, list(m.parameters()))


@program(F(3, 4), calls=3)
def test_optimizer_step():
    """A training step with torch.optim.SGD and a learning rate schedule inside"""
    torch.manual_seed(0)
    m = nn.Linear(4, 1)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)

    def f(x):
        opt.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        opt.step()
        schedule.step()
        return loss.detach(), opt.param_groups[0]["lr"]

    return f, lambda: list(m.parameters())


@case(F(5), graphs=1)
def test_class_made_inside_with_everything(x):
    """A class made inside with slots, properties, operators, a descriptor, used only inside"""

    class Positive:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls=None):
            return self if obj is None else getattr(obj, self.name)

        def __set__(self, obj, value):
            setattr(obj, self.name, value.abs())

    class Vec:
        data = Positive()
        made = 0

        def __init__(self, data):
            self.data = data
            Vec.made += 1

        def __add__(self, other):
            return Vec(self.data + (other.data if isinstance(other, Vec) else other))

        __radd__ = __add__

        def __getitem__(self, i):
            return self.data[i]

        def __format__(self, spec):
            return f"Vec{spec}{tuple(self.data.shape)}"

    v = 1 + Vec(x) + Vec(x * 2)
    return v.data, v[1:3], f"{v:!}", Vec.made, isinstance(Vec.__dict__["data"], Positive)


@program(F(4), graphs=1)
def test_copies_of_state():
    """copy and deepcopy of containers, dataclasses and tensors, then changed apart"""
    s = State(torch.zeros(4), history=[1])

    def f(x):
        a, b = copy.copy(s), copy.deepcopy(s)
        a.advance(x)
        b.advance(x * 2)
        b.x.add_(1)
        nested = {"k": [x, (x, {"d": x})]}
        twin = copy.deepcopy(nested)
        twin["k"][0] += 1
        return a, b, twin, nested["k"][0], twin["k"][1][0] is twin["k"][0]

    return f, lambda: s


@case(args=lambda r: ([r.f(3) for _ in range(3)], {"w": r.f(3), "b": [r.f(3), 2.0]}), graphs=1)
def test_nested_inputs_and_pytrees(xs, params):
    """Nested containers in and out, torch.utils._pytree, zip with star, sorted with keys, any and all"""
    from torch.utils import _pytree as pytree

    flat, spec = pytree.tree_flatten(params)
    doubled = pytree.tree_map(lambda v: v * 2, params)
    cols = list(zip(*[x.unbind() for x in xs]))
    xs.sort(key=lambda t: t.shape, reverse=True)
    params["w"] = xs[0] + params["b"][0]
    params["b"].append(cols[0][0])
    return len(flat), doubled, [sum(c) for c in cols], any(x.dim() == 2 for x in xs), spec.num_leaves


def shapes(r: Rand):
    return r.f(2 + r.call, 4), 2 + r.call


@case(args=shapes, calls=5)
def test_changing_shapes(x, n):
    """Sizes and an int that change with each call: loops, slices and comparisons of them"""
    y = x.sum(0)
    for i in range(min(n, 3)):
        y = y + x[i] * i
    if x.shape[0] > 4:
        y = y * 2
    return y, x[: n // 2].mean(), torch.arange(n).sum() + x.numel(), [x.size(0), n * 2]
