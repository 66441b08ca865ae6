# ruff: noqa - the programs are as users write them
"""Programs as users write them: records, registries, pipelines, schedules, parsers, whose state changes between calls"""

import abc
import bisect
import calendar
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import inspect
import io
import itertools
import json
import math
import operator
import re
import string
import textwrap
import types
import typing
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import torch
import torch.nn.functional as Fn
from torch import nn

from .harness import F, I, Rand, Sign, Spec, Turn, case, program


# 1
@program(F(3), Turn("adam", "sgd", "lion"))
def test_registry():
    """A decorator that registers functions by name, looked up with a default, wrapped and counted"""
    registry: dict[str, typing.Callable] = {}
    calls = Counter()

    def register(*names, priority=0):
        def deco(fn):
            @functools.wraps(fn)
            def wrapper(*a, **k):
                calls[fn.__name__, priority] += 1
                return fn(*a, **k)

            for n in names:
                registry[n] = wrapper
            wrapper.priority = priority
            return wrapper

        return deco

    @register("adam", "adamw", priority=2)
    def adam(x, lr=0.1):
        return x - lr * x.sign()

    @register("sgd")
    def sgd(x, lr=0.5):
        return x - lr * x

    def f(x, name):
        fn = registry.get(name, lambda x: x)
        best = max(registry.items(), key=lambda kv: (getattr(kv[1], "priority", 0), kv[0]))
        if name == "lion":
            register("lion", priority=calls.total())(lambda x: x * 7)
        return fn(x), best[0], fn.__name__, sorted(registry), calls.most_common(1)

    return f, lambda: (sorted(registry), calls)


# 2
@program(F(2, 3))
def test_frozen_records():
    """Frozen dataclasses with replace, post_init, ordering, fields with factories and class variables"""

    @dataclasses.dataclass(frozen=True, order=True)
    class Box:
        area: float = dataclasses.field(init=False, repr=False)
        w: float
        h: float = 1.0
        tags: tuple = dataclasses.field(default=(), compare=False)
        made: typing.ClassVar[list] = []

        def __post_init__(self):
            object.__setattr__(self, "area", self.w * self.h)
            type(self).made.append(self.area)

        def grown(self, by):
            return dataclasses.replace(self, w=self.w + by, tags=(*self.tags, f"+{by}"))

    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        boxes: list[Box] = dataclasses.field(default_factory=list)
        extra: dataclasses.InitVar[int] = 3

        def __post_init__(self, extra):
            self.boxes = [*self.boxes, Box(float(extra))]

        @property
        def biggest(self):
            return max(self.boxes)

    def f(x):
        b = Batch(x, [Box(2.0, 3.0), Box(1.0, 9.0)], extra=len(Box.made))
        g = b.biggest.grown(0.5)
        try:
            g.w = 3
        except dataclasses.FrozenInstanceError as e:
            said = str(e)
        return (
            x * g.area,
            repr(b.boxes),
            dataclasses.asdict(g),
            dataclasses.astuple(g),
            said,
            sorted(b.boxes)[0].w,
            hash(Box(1.0)) == hash(Box(1.0)),
            [fl.name for fl in dataclasses.fields(b)],
        )

    return f, lambda: Box.made


# 3
@program(F(4), Turn(1, 2, 5))
def test_generator_pipeline():
    """Generators that send, delegate, close; pipelines of them over a tensor's rows"""
    closed = []

    def averager():
        total, n, avg = 0.0, 0, None
        try:
            while True:
                v = yield avg
                if v is None:
                    return total
                total, n = total + v, n + 1
                avg = total / n
        finally:
            closed.append(n)

    def grouped(out):
        while True:
            r = yield from averager()
            out.append(r)

    def windows(it, n):
        d = collections.deque(maxlen=n)
        for v in it:
            d.append(v)
            if len(d) == n:
                yield tuple(d)

    def f(x, n):
        out = []
        g = grouped(out)
        next(g)
        avgs = [g.send(v) for v in (x * k for k in range(n))]
        g.send(None)
        g.close()
        w = [a - b for a, b in windows(iter(x), 2)]
        return avgs, out, torch.stack(w), list(itertools.islice(windows(range(10), 3), n))

    return f, lambda: closed


# 4
@program(F(3), Turn(0, 1, 2, 3), calls=4)
def test_context_stack():
    """ExitStack with callbacks, suppress, a context manager that swallows, redirect_stdout, nested exits"""
    log = []

    class Guard:
        def __init__(self, name, swallow=()):
            self.name, self.swallow = name, swallow

        def __enter__(self):
            log.append("in " + self.name)
            return self

        def __exit__(self, t, v, tb):
            log.append((self.name, t.__name__ if t else None, str(v)))
            return t is not None and issubclass(t, self.swallow)

    @contextlib.contextmanager
    def scaled(x, by):
        try:
            yield x * by
        except ZeroDivisionError as e:
            log.append(f"scaled saw {e}")
            raise ValueError("scaled") from e
        finally:
            log.append("scaled out")

    def f(x, k):
        with contextlib.ExitStack() as stack:
            a = stack.enter_context(Guard("a", (ValueError,) if k == 2 else ()))
            stack.callback(log.append, f"callback {k}")
            b = stack.enter_context(Guard("b", (KeyError,)))
            y = stack.enter_context(scaled(x, 2))
            stack.push(lambda t, v, tb: log.append(t is None))
            if k == 1:
                raise KeyError(k)
            if k == 2:
                y = y / len([]) if not k else 1 / 0
            if k == 3:
                return y, "early"
            y = y + 1
        with contextlib.suppress(IndexError), contextlib.redirect_stdout(io.StringIO()) as buf:
            print("hidden", k)
            [][k]
        return x, len(log), buf.getvalue()

    return f, lambda: log


# 5
@program(F(2, 2), Turn("{name!r:>8}|{v:+.3f}", "{0[a]}-{1.shape}", "{:{w}.{p}f}"))
def test_formatting():
    """Format specs nested and looked up, Template, textwrap, percent, __format__ of a class"""

    class Money:
        def __init__(self, v):
            self.v = v

        def __format__(self, spec):
            return f"<{self.v:{spec or '.1f'}}|{spec}>"

        def __str__(self):
            return f"M{self.v}"

        __repr__ = lambda self: f"Money({self.v!r})"

    def f(x, t):
        m = Money(3.14159)
        parts = [f"{m:.2f}", f"{m}", f"{m!s:*^9}", f"{m=}", "%(a)05.1f %%" % {"a": 2.5}, "%-6s|%+d|%#x" % ("ab", 5, 255)]
        parts.append(string.Template("$who has ${n} items").safe_substitute(who="x", k=2))
        parts.append(textwrap.shorten("many words in a row", 12, placeholder=".."))
        try:
            parts.append(t.format({"a": 1}, x, name="n", v=1.5, w=9, p=2))
        except (IndexError, ValueError, TypeError, AttributeError) as e:
            parts.append(f"{type(e).__name__}: {e}")
        parts.append(", ".join(f"{i:02d}:{n}" for i, n in enumerate(x.shape)))
        return (
            x * len("".join(parts)),
            parts,
            "a-b_c".translate(str.maketrans("-_", "  ")).title().split(),
            "x".join(map(str, x.shape)),
        )

    return f


# 6
@program(F(3))
def test_mapping_classes():
    """UserDict with missing keys, ChainMap scopes, a Counter's arithmetic, an OrderedDict moved, TypedDict"""

    class Config(UserDict):
        def __missing__(self, k):
            self.misses = getattr(self, "misses", 0) + 1
            return self.data.setdefault(k, len(k))

        def __setitem__(self, k, v):
            super().__setitem__(k.lower(), v)

    class Opts(TypedDict, total=False):
        lr: float
        steps: int

    cfg = Config(A=1, Bee=2)
    base: Opts = {"lr": 0.5}
    order = OrderedDict.fromkeys("abcd", 0)

    def f(x):
        scope = ChainMap({"lr": cfg["alpha"]}, base, {"steps": 9, "lr": 0})
        inner = scope.new_child({"steps": 1})
        inner["steps"] += cfg["a"]
        del inner.maps[0]["steps"]
        cfg["BETA"] = inner["steps"]
        c = Counter("abracadabra") - Counter("bar") + Counter({"z": cfg["beta"]})
        order.move_to_end("a", last=len(cfg) % 2 == 0)
        order["e"] = order.pop("b", 5) + 1
        return (
            x * scope["lr"] + inner["steps"],
            dict(scope),
            c,
            +c,
            list(order),
            sorted(cfg),
            cfg.misses,
            "beta" in cfg,
            (c & Counter(a=1)) | Counter(q=2),
        )

    return f, lambda: (cfg.data, order)


# 7
@program(F(4, 3), Turn(0, 1, 2))
def test_state_machine():
    """An Enum with members that have behaviour, Flag arithmetic, auto, a machine with a transition table"""

    class Phase(enum.Enum):
        WARM = ("warm", 1.0)
        MAIN = ("main", 2.0)
        COOL = ("cool", 0.5)

        def __init__(self, label, scale):
            self.label, self.scale = label, scale

        @property
        def next(self):
            members = list(type(self))
            return members[(members.index(self) + 1) % len(members)]

        @classmethod
        def _missing_(cls, value):
            return next((m for m in cls if m.label == value), None)

    class Perm(enum.IntFlag):
        R = enum.auto()
        W = enum.auto()
        X = enum.auto()
        RW = R | W

    class Level(str, enum.Enum):
        LOW = "low"
        HIGH = "high"

    state = {"phase": Phase.WARM, "perm": Perm.R, "seen": []}

    def f(x, k):
        p = state["phase"]
        state["phase"] = p.next
        state["perm"] |= Perm(1 << k)
        state["seen"].append((p.name, Perm.W in state["perm"], Level("low") == "low"))
        try:
            q = Phase(["cool", "main", "bad"][k])
        except ValueError as e:
            q, said = Phase.MAIN, str(e).replace(Phase.__qualname__, "Phase")
        else:
            said = q.label
        match (q, state["perm"]):
            case (Phase.COOL, Perm.R):
                y = x * p.scale
            case (Phase.MAIN, perm) if perm & Perm.RW:
                y = x + int(perm)
            case _:
                y = x - 1
        return (
            y * q.scale,
            said,
            str(state["perm"].value),
            [m.name for m in Perm],
            f"{Level.HIGH.value:>6}",
            Phase["COOL"] is Phase.COOL,
        )

    return f, lambda: state["seen"]


# 8
@program(F(3), F(3))
def test_operators_of_a_class():
    """A vector class with reflected, in-place, matmul, item and truth operators over tensors"""

    @functools.total_ordering
    class Vec:
        __slots__ = ("t", "n")
        ops = 0

        def __init__(self, t):
            self.t, self.n = t, type(self).ops

        def _of(self, t):
            Vec.ops += 1
            return type(self)(t)

        def __add__(self, o):
            if not isinstance(o, (Vec, int, float)):
                return NotImplemented
            return self._of(self.t + (o.t if isinstance(o, Vec) else o))

        __radd__ = __add__

        def __iadd__(self, o):
            self.t = self.t + (o.t if isinstance(o, Vec) else o)
            return self

        def __rsub__(self, o):
            return self._of(o - self.t)

        def __matmul__(self, o):
            return (self.t * o.t).sum()

        def __getitem__(self, i):
            return self.t[i]

        def __setitem__(self, i, v):
            self.t = self.t.clone()
            self.t[i] = v

        def __len__(self):
            return len(self.t)

        def __bool__(self):
            return self.n > 2

        def __neg__(self):
            return self._of(-self.t)

        def __eq__(self, o):
            return self.n == o.n

        def __lt__(self, o):
            return self.n < o.n

        def __hash__(self):
            return hash(self.n)

        def __contains__(self, v):
            return v == len(self)

        def __iter__(self):
            yield from (self.t[i] for i in range(len(self)))

        def __call__(self, *a, **k):
            return len(a), sorted(k)

    class Sub(Vec):
        __slots__ = ("extra",)

        def __rmul__(self, o):
            return self._of(self.t * o * 2)

    def f(x, y):
        a, b = Vec(x), Sub(y)
        c = a + b
        c += 2
        d = 1 - c
        d[1:] = 0.0
        e = 3 * b
        try:
            a + "s"
        except TypeError as err:
            said = str(err)
        s = sum([a, b, c])
        first, *rest = s
        return (
            c.t,
            d.t,
            e.t,
            a @ b,
            s[0],
            bool(c),
            a < c,
            a >= c,
            sorted([e, c, a])[0].n,
            3 in a,
            said,
            (-a)(1, z=2),
            first,
            len(rest),
            len({a, c, Vec(x)}),
            max(a, b, key=len).n,
        )

    return f, lambda: Vec.ops


# 9
@program(F(3, 4), Turn({"act": "relu", "n": 2}, {"act": "tanh", "n": 1, "bias": False}, {"act": "gelu"}))
def test_config_driven_module():
    """A module built from a config by getattr, setattr, ModuleDict, buffers and hooks in forward"""

    class Net(nn.Module):
        acts = {"relu": Fn.relu, "tanh": torch.tanh}

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({f"l{i}": nn.Linear(4, 4) for i in range(3)})
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))
            self.register_buffer("hidden", torch.ones(4), persistent=False)
            self.history: list[str] = []
            with torch.no_grad():
                for i, p in enumerate(self.parameters()):
                    p.fill_(0.1 * (i + 1))

        def __getattr__(self, name):
            if name.startswith("layer_"):
                return self.layers["l" + name[6:]]
            return super().__getattr__(name)

        def forward(self, x, act="relu", n=3, **rest):
            self.seen += 1
            fn = self.acts.get(act) or getattr(Fn, act)
            for i in range(n):
                x = fn(getattr(self, f"layer_{i}")(x))
            if not rest.get("bias", True):
                x = x - self.layers["l0"].bias
            self.history.append(f"{act}/{n}/{sorted(rest)}")
            setattr(self, "last_" + act, x.detach())
            return (
                x * self.hidden,
                {k: tuple(v.shape) for k, v in self.state_dict().items()},
                hasattr(self, "last_tanh"),
                hasattr(self, "layer_9") if n > 5 else None,
            )

    net = Net()

    def f(x, cfg):
        net.hidden = net.hidden * 2
        return net(x, **cfg), [n for n, _ in net.named_buffers()], net.history[-1]

    return f, lambda: (net.history, net.seen, net.hidden)


# 10
@program(F(5), Turn([3, 1, 2], [5, 4], []))
def test_priority_queue():
    """heapq with tuples, bisect.insort, merge, nlargest, a sorted list of tensors by key"""
    heap: list = []

    def f(x, jobs):
        for k, j in enumerate(jobs):
            heapq.heappush(heap, (j, -k, f"job{j}"))
        done = heapq.heappop(heap) if heap else None
        if len(heap) > 2:
            done = heapq.heappushpop(heap, (0, 0, "zero"))
        keys = sorted(h[0] for h in heap)
        at = bisect.bisect_left(keys, 3)
        bisect.insort(keys, 3.5)
        merged = list(heapq.merge(keys, [0, 4], key=lambda v: v))
        rows = sorted((x[i] * (-1) ** i for i in range(3)), key=lambda t: id(t) * 0, reverse=True)
        return x * at, done, merged, heapq.nlargest(2, heap, key=operator.itemgetter(1)), rows, keys

    return f, lambda: heap


# 11
@program(F(4), Turn("a=1;b=x*2", "b=x+1;c=bad(", "c=x.relu();a=(3, 4)"))
def test_small_parser():
    """re with groups, finditer, a class of tokens, json and literals, eval of user expressions"""
    env: dict = {"n": 1}
    pat = re.compile(r"(?P<name>\w+)=(?P<expr>[^;]+)")

    class Token(NamedTuple):
        name: str
        expr: str
        span: tuple = (0, 0)

        @property
        def size(self):
            return self.span[1] - self.span[0]

    def f(x, text):
        toks = [Token(**m.groupdict(), span=m.span()) for m in pat.finditer(text)]
        errors = []
        for t in toks:
            try:
                env[t.name] = eval(t.expr, {"x": x, **env})
            except SyntaxError as e:
                errors.append((type(e).__name__, t._replace(span=(1, 1))))
        total = sum(v if isinstance(v, torch.Tensor) else x * len(repr(v)) for k, v in sorted(env.items()))
        sub = re.sub(r"\d+", lambda m: str(int(m[0]) + 1), text)
        return (
            total,
            errors,
            [t.size for t in toks],
            sub,
            json.loads(json.dumps({"t": toks, "k": sorted(env)})),
            text.partition(";")[::2],
        )

    return f, lambda: sorted(env)


# 12
@program(F(2, 3), Turn(2, 3, 2))
def test_caches():
    """lru_cache, cached_property, singledispatch, a memo dict keyed by shapes, cache_info after"""

    @functools.lru_cache(maxsize=2)
    def factor(n, *, kind="a"):
        made.append((n, kind))
        return math.factorial(n) + len(kind)

    made = []

    class Table:
        def __init__(self, n):
            self.n = n

        @functools.cached_property
        def weights(self):
            made.append("weights")
            return torch.arange(float(self.n))

        @functools.singledispatchmethod
        def show(self, v):
            return f"any {v!r}"

        @show.register
        def _(self, v: int):
            return f"int {v + self.n}"

        @show.register(list)
        @show.register(tuple)
        def _(self, v):
            return [self.show(i) for i in v]

    table = Table(3)
    memo = {}

    def f(x, n):
        key = (x.shape, x.dtype, n)
        if key not in memo:
            memo[key] = factor(n) * factor(n, kind="bb")
        if n == 3:
            table.__dict__.pop("weights", None)
        return (
            x * table.weights * memo[key],
            table.show([1, (2, "s")]),
            table.show(2.5),
            factor.cache_info(),
            factor.__wrapped__(2),
        )

    return f, lambda: (made, list(memo.values()))


# 13
@program(F(3, 3))
def test_deep_copies():
    """copy and deepcopy with hooks, shared parts, cycles, a tensor that appears twice, __reduce__"""

    class Node:
        copies = 0

        def __init__(self, t, parent=None):
            self.t, self.parent, self.kids, self.meta = t, parent, [], {"w": t}

        def add(self, t):
            self.kids.append(Node(t, self))
            return self

        def __deepcopy__(self, memo):
            Node.copies += 1
            new = object.__new__(type(self))
            memo[id(self)] = new
            for k, v in self.__dict__.items():
                setattr(new, k, copy.deepcopy(v, memo))
            return new

    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __reduce__(self):
            return Pair, (self.b, self.a), {"swapped": True}

    def f(x):
        root = Node(x).add(x * 2).add(x + 1)
        twin = copy.deepcopy(root)
        twin.t.add_(1)
        twin.kids[0].t.zero_()
        shallow = copy.copy(root)
        shallow.kids.append("end")
        p = copy.copy(Pair(x, [x]))
        d = copy.deepcopy({"l": [x, x], "s": {1, 2}})
        d["l"][0].mul_(3)
        return (
            twin.t,
            twin.meta["w"] is twin.t,
            twin.kids[1].parent is twin,
            root.kids[-1],
            p.swapped,
            p.b,
            d,
            root.t is x,
            Node.copies,
        )

    return f, lambda: Node.copies


# 14
@program(F(3), Turn("value", "key", "chain", "group", "none"), calls=5)
def test_exception_families():
    """Own exception classes with notes, chains, else and finally, re-raise, exception groups, __context__"""
    trail = []

    class AppError(Exception):
        code = 1

        def __init__(self, msg, *, data=None):
            super().__init__(msg)
            self.data = data

        def __str__(self):
            return f"[{self.code}] {super().__str__()}"

    class Missing(AppError, KeyError):
        code = 2

    def risky(x, kind):
        if kind == "value":
            raise AppError("bad value", data=x.sum())
        if kind == "key":
            raise Missing("no key")
        if kind == "chain":
            try:
                {}["q"]
            except KeyError as e:
                err = AppError("from key")
                err.add_note("note 1")
                raise err from e
        if kind == "group":
            raise ExceptionGroup("many", [ValueError(1), AppError("in group"), TypeError("t")])
        return x * 2

    def f(x, kind):
        try:
            y = risky(x, kind)
        except Missing as e:
            trail.append((str(e), e.code, isinstance(e, LookupError)))
            y = x - 1
        except AppError as e:
            trail.append((str(e), getattr(e, "__notes__", None), repr(e.__cause__), e.__suppress_context__))
            y = x * 0 if e.data is None else x * e.data
        except ExceptionGroup as g:
            known, rest = g.split((ValueError, TypeError))
            trail.append((g.message, [repr(e) for e in known.exceptions], [str(e) for e in rest.exceptions]))
            y = x * len(g.exceptions)
        else:
            trail.append("fine")
        finally:
            trail.append(kind)
        return y, trail[-2:]

    return f, lambda: trail


# 15
@program(F(3), Turn(1, 4, 2))
def test_decorator_classes():
    """Decorators that are classes, that take methods, that stack; a descriptor that validates; wrapped signatures"""

    class Retry:
        def __init__(self, times):
            self.times, self.log = times, []

        def __call__(self, fn):
            @functools.wraps(fn)
            def again(*a, **k):
                for i in range(self.times):
                    try:
                        return fn(*a, **k)
                    except ValueError as e:
                        self.log.append(f"{fn.__qualname__.rpartition('.')[2]} {i}: {e}")
                raise RuntimeError(f"gave up after {self.times}")

            return again

    class Positive:
        def __set_name__(self, owner, name):
            self.name = "_" + name
            owner.fields = [*getattr(owner, "fields", []), name]

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.name, 1)

        def __set__(self, obj, value):
            if value <= 0:
                raise ValueError(f"{self.name[1:]} must be positive, not {value}")
            setattr(obj, self.name, value)

    class Counted:
        def __init__(self, fn):
            functools.update_wrapper(self, fn)
            self.fn, self.n = fn, 0

        def __get__(self, obj, owner=None):
            return types.MethodType(self, obj)

        def __call__(self, *a, **k):
            self.n += 1
            return self.fn(*a, **k)

    retry = Retry(3)

    class Layer:
        scale = Positive()
        shift = Positive()

        def __init__(self):
            self.tries = 0

        @retry
        def risky(self, x, need):
            self.tries += 1
            if self.tries % need:
                raise ValueError(f"try {self.tries}")
            return x * self.scale

        @Counted
        def run(self, x, *, plus=1):
            """Doc of run"""
            return x + plus + self.run.n

    layer = Layer()

    def f(x, need):
        try:
            layer.scale = need - 2
        except ValueError as e:
            retry.log.append(str(e))
        try:
            y = layer.risky(x, need)
        except RuntimeError as e:
            y = x - len(str(e))
        return (
            y,
            layer.run(x, plus=need),
            Layer.run.__doc__ if hasattr(Layer.run, "__doc__") else None,
            Layer.fields,
            layer.risky.__name__,
            str(inspect.signature(Layer.risky)),
        )

    return f, lambda: (retry.log, layer.tries, layer.__dict__)


# 16
@program(F(2, 4), Turn("b", "c", "d"))
def test_multiple_inheritance():
    """A diamond with cooperative super, mixins, classmethods that build, __init_subclass__, abstract methods"""

    class Base(abc.ABC):
        kinds: dict = {}

        def __init_subclass__(cls, *, kind=None, **kw):
            super().__init_subclass__(**kw)
            if kind:
                Base.kinds[kind] = cls

        def __init__(self, **kw):
            self.trace = ["Base"]
            assert not kw, kw

        @abc.abstractmethod
        def apply(self, x): ...

        @classmethod
        def make(cls, kind, **kw):
            return cls.kinds[kind](**kw)

        @staticmethod
        def norm(x):
            return x / (1 + x.abs().amax())

    class Scale(Base, kind="b"):
        def __init__(self, *, by=2, **kw):
            super().__init__(**kw)
            self.by = by
            self.trace.append("Scale")

        def apply(self, x):
            return x * self.by

    class Shift(Base, kind="c"):
        def __init__(self, *, plus=1, **kw):
            super().__init__(**kw)
            self.plus = plus
            self.trace.append("Shift")

        def apply(self, x):
            return x + self.plus

    class Both(Scale, Shift, kind="d"):
        def apply(self, x):
            y = super().apply(x)
            z = super(Scale, self).apply(x)
            return self.norm(y) + Shift.apply(self, z)

        def __getattribute__(self, name):
            if name == "secret":
                return 42
            return super().__getattribute__(name)

    def f(x, kind):
        o = Base.make(kind, **({"by": 3, "plus": 2} if kind == "d" else {}))
        try:
            Base()
        except TypeError as e:
            said = "abstract" in str(e)
        return (
            o.apply(x),
            o.trace,
            [c.__name__ for c in type(o).__mro__],
            isinstance(o, Shift),
            getattr(o, "secret", None),
            said,
            sorted(Base.kinds),
            issubclass(Both, (int, Scale)),
        )

    return f


# 17
@program(F(6), Turn(2, 3, 4))
def test_itertools_tricks():
    """groupby, accumulate with a function, product, zip_longest, tee, starmap, pairwise, compress, chain"""
    total = itertools.count(10, 5)

    def f(x, n):
        rows = list(x.split(n))
        runs = [(k, [v for _, v in g]) for k, g in itertools.groupby(enumerate("aabbca"), key=lambda p: p[1])]
        acc = list(itertools.accumulate(rows, lambda a, b: a[: len(b)] + b))
        a, b = itertools.tee(range(n))
        next(b)
        pairs = [*itertools.starmap(pow, zip(a, b)), *itertools.pairwise("abc")]
        padded = [tuple(0 if p is None else p.shape[0] for p in t) for t in itertools.zip_longest(rows, rows[1:])]
        picked = list(
            itertools.compress("abcdef", itertools.cycle([1, 0]))
            if False
            else itertools.compress("abcdef", [i % n for i in range(6)])
        )
        flat = list(itertools.chain.from_iterable(itertools.combinations(range(n), 2)))
        until = list(itertools.takewhile(lambda v: v < 25, total))
        after = [
            *itertools.dropwhile(str.isalpha, "ab1c"),
            *itertools.filterfalse(lambda i: i % 2, range(4)),
            *itertools.repeat("r", 2),
        ]
        grid = sum(x[i] * j for i, j in itertools.product(range(2), range(n)))
        perm = [*map("".join, itertools.permutations("abc", 2))]
        return acc, runs, pairs, padded, picked, flat, until, after, grid, perm, next(total)

    return f, lambda: repr(total)


# 18
@program(F(3), Turn({"a": {"b": [1, 2]}}, {"a": {"c": 5}, "z": (1,)}, {}))
def test_nested_dict_merging():
    """Recursive merges, flattening with paths, dict comprehension, setdefault, views' set algebra, sorted items"""
    seen: dict = {}

    def merge(a, b):
        out = dict(a)
        for k, v in b.items():
            if isinstance(v, dict) and isinstance(out.get(k), dict):
                out[k] = merge(out[k], v)
            elif isinstance(v, list):
                out[k] = [*out.get(k, []), *v]
            else:
                out[k] = v
        return out

    def flat(d, path=()):
        for k in sorted(d):
            v = d[k]
            if isinstance(v, dict):
                yield from flat(v, (*path, k))
            else:
                yield ".".join((*path, str(k))), v

    def f(x, new):
        nonlocal seen
        before = seen.keys() | {"x"}
        seen = merge(seen, new) | {"last": x.shape[0]}
        paths = dict(flat(seen))
        inverse: dict = {}
        for k, v in paths.items():
            inverse.setdefault(type(v).__name__, []).append(k)
        gone = {k: seen.pop(k) for k in [k for k in seen if k == "z"]}
        seen.update(x=len(seen), **{"k" + str(i): i for i in range(2)})
        y = x * sum(v for v in paths.values() if isinstance(v, int))
        *_, lastk = seen
        return (
            y,
            paths,
            inverse,
            sorted(seen.keys() - before),
            gone,
            lastk,
            seen.items() >= {("x", len(seen) - 3)},
            dict(zip(*[iter(range(6))] * 2)),
            list(reversed(seen)),
        )

    return f, lambda: seen


# 19
@program(F(3, 2))
def test_sets_and_frozensets():
    """Set algebra, comprehension over shapes, frozensets as keys, symmetric differences in place, sorted by key"""
    known: set = {1, 2}
    table: dict = {frozenset("ab"): 1.5}

    def f(x):
        s = {d for d in x.shape} | known
        s ^= {3, 9}
        known.add(len(known) + 10)
        known.discard(1)
        key = frozenset(c for c in "ba")
        table[frozenset({len(known)})] = table.get(key, 0) + 1
        sub = {2, 3} <= s, s.isdisjoint({77}), {*s} - {2}, s.intersection([3, 2], (2,)), s >= set()
        try:
            s.remove(1000)
        except KeyError as e:
            miss = e.args
        return (
            x * len(s) * table[key],
            sorted(s),
            sub,
            miss,
            sorted(map(sorted, table)),
            len({x.dtype, torch.float32, x.device}),
            {True: "a", 1: "b", 1.0: "c"},
        )

    return f, lambda: (known, table)


# 20
@program(F(2, 3), Turn(None, 2, (1, 3)))
def test_generic_and_protocol():
    """typing: Generic classes with parameters, runtime protocols, overloads, cast, Literal, get_type_hints, NewType"""
    T = TypeVar("T")
    UserId = typing.NewType("UserId", int)

    @typing.runtime_checkable
    class Sized2(Protocol):
        def __len__(self) -> int: ...

    class Stack(Generic[T]):
        def __init__(self, items: list[T] | None = None) -> None:
            self.items: list[T] = list(items or ())

        def push(self, v: T) -> "Stack[T]":
            self.items.append(v)
            return self

        def pop(self, default: T | None = None) -> T:
            return self.items.pop() if self.items else typing.cast(T, default)

        def __len__(self):
            return len(self.items)

    kept = Stack[torch.Tensor]()

    @typing.overload
    def pick(x: torch.Tensor, i: None) -> torch.Tensor: ...
    @typing.overload
    def pick(x: torch.Tensor, i: int) -> torch.Tensor: ...
    def pick(x, i):
        return x if i is None else x[:, : i[0] if isinstance(i, tuple) else i]

    def f(x, i):
        y = pick(x, i)
        kept.push(y.sum()).push(x.mean())
        top = kept.pop() if len(kept) > 2 else kept.pop(x.sum())
        hints = typing.get_type_hints(Stack.pop)
        lit = typing.get_args(typing.Literal["a", "b"])
        return (
            y * top,
            len(kept),
            isinstance(kept, Sized2),
            isinstance(3, Sized2),
            UserId(5) + 1,
            sorted(hints),
            lit,
            typing.get_origin(dict[str, int]),
            Stack[int].__origin__ is Stack,
            bool(kept),
        )

    return f, lambda: kept.items


# 21
@program(F(4), Turn(5, 0, -3))
def test_numbers_of_python():
    """divmod, rounding modes, Fraction, Decimal, int methods, math and statistics, big ints, float hex, bit tricks"""
    running = [fractions.Fraction(1, 3)]

    def f(x, n):
        running.append(running[-1] + fractions.Fraction(n, 7))
        d = decimal.Decimal("1.10") * n
        q, r = divmod(n * 7, -4)
        parts = [
            round(2.5),
            round(-n / 3, 2),
            n // 3,
            n % -3,
            (-n) ** 3,
            abs(n) << 3,
            ~n,
            n.bit_length(),
            math.isqrt(abs(n)),
            math.gcd(n, 15),
            int("ff", 16),
            float.fromhex("0x1.8p1"),
        ]
        parts += [
            math.copysign(1, n),
            math.hypot(n, 4),
            math.prod([1, 2, n]),
            (0.1 + 0.2).hex(),
            10**20 + n,
            int.from_bytes(b"\x01\x02", "big"),
            (n + 300).to_bytes(2, "little"),
            bool(n),
            complex(n, 1) * 1j,
            (7.0).is_integer(),
            (0.75).as_integer_ratio(),
        ]
        try:
            parts.append(n / (n if n else 0))
        except ZeroDivisionError as e:
            parts.append(str(e))
        return (
            x * q + r,
            parts,
            str(running[-1]),
            f"{d:.2f}",
            min(n, 2, key=abs),
            max([n], default=9),
            sum([0.1] * 3) == math.fsum([0.1] * 3),
            x * float(running[-1].limit_denominator(10)),
            math.floor(-2.5),
            math.trunc(n / 2),
        )

    return f, lambda: [str(r) for r in running]


# 22
@program(F(3, 3), Turn(0, 1, 2))
def test_slices_and_stars():
    """Slice objects, extended assignment, star unpacking, walrus, chained comparisons, conditional lambdas, nested defs"""
    buf = list(range(10))

    def f(x, k):
        s = slice(k, None, 2)
        buf[s] = [v * 10 for v in buf[s]]
        buf[1:3] = "abc"[:k]
        del buf[-1:]
        first, (second, *inner), *rest = [1, (2, 3, 4), 5, *buf[:k]]
        sign = (lambda v: "neg" if v < 0 else "zero" if not v else "pos")(k - 1)
        if (n := len(buf)) > 5 and 0 <= k < n != 7:
            x = x[s.start :, :: s.step or 1]
        swap = [x, x + 1]
        swap[0], swap[1] = swap[1], swap[0]
        i = 0
        i, swap[i] = 1, "zero"
        args = {"sep": "-", **({"end": "!"} if k else {})}
        print(first, second, *inner, **args)
        return (
            x.sum(0),
            inner,
            rest,
            sign,
            n,
            swap[1 - i],
            [(a, b) for a in range(k + 1) for b in range(a) if (a + b) % 2],
            s.indices(5),
            (lambda *a, y=k, **z: (a, y, z))(*inner, q=1),
            x[..., None][(0, slice(None))].shape,
        )

    return f, lambda: buf


# 23
@program(F(2, 3), Turn("train", "eval", "train"))
def test_trainer_loop():
    """A trainer class with callbacks by name, a running mean, early stop by exception, state as a dict"""

    class Stop(Exception):
        pass

    class Callback:
        def __getattr__(self, name):
            if name.startswith("on_"):
                return lambda *a: None
            raise AttributeError(name)

    class History(Callback):
        def __init__(self):
            self.rows = []

        def on_step(self, t, loss):
            self.rows.append((t.step, t.mode))

    class Limit(Callback):
        def on_step(self, t, loss):
            if t.step >= 4:
                raise Stop(t.step)

    class Trainer:
        def __init__(self, *callbacks):
            self.callbacks, self.step, self.mode, self.mean = callbacks, 0, "train", None
            self.w = torch.ones(3, 1, requires_grad=True)

        def emit(self, event, *a):
            for c in self.callbacks:
                getattr(c, f"on_{event}")(self, *a)

        def run(self, x, steps):
            self.emit("start")
            for self.step in range(self.step + 1, self.step + 1 + steps):
                loss = ((x @ self.w) ** 2).mean()
                if self.mode == "train":
                    (g,) = torch.autograd.grad(loss, self.w)
                    with torch.no_grad():
                        self.w -= 0.1 * g
                self.mean = loss.detach() if self.mean is None else self.mean * 0.9 + 0.1 * loss.detach()
                self.emit("step", loss)
            return loss

    history = History()
    tr = Trainer(history, Limit())

    def f(x, mode):
        tr.mode = mode
        try:
            out = tr.run(x, 2)
        except Stop as s:
            out = x.sum() * s.args[0]
        return out.detach(), tr.mean, tr.step

    return f, lambda: (history.rows, tr.w, tr.mean)


# 24
@program(F(4), Turn(3, 1, 2))
def test_lazy_sequences():
    """A Sequence and a Mapping from abc, slicing in __getitem__, reversed, index, in, zip over them, an iterator class"""

    class Ramp(collections.abc.Sequence):
        def __init__(self, t, n):
            self.t, self.n = t, n

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            if isinstance(i, slice):
                return [self[j] for j in range(*i.indices(self.n))]
            if not -self.n <= i < self.n:
                raise IndexError(i)
            return self.t * (i % self.n)

    class Names(collections.abc.MutableMapping):
        def __init__(self, **k):
            self.d = k

        __getitem__ = lambda self, k: self.d[k.lower()]
        __setitem__ = lambda self, k, v: self.d.__setitem__(k.lower(), v)
        __delitem__ = lambda self, k: self.d.__delitem__(k.lower())
        __iter__ = lambda self: iter(sorted(self.d))
        __len__ = lambda self: len(self.d)

    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            self.n -= 1
            if self.n < 0:
                raise StopIteration
            return self.n

    names = Names(a=1)

    def f(x, n):
        r = Ramp(x, n)
        names["B"] = names.get("b", 0) + n
        names.update({"C": 1}, D=2)
        popped = names.pop("d"), names.setdefault("E", 5)
        rows = [a + i for i, a in zip(Countdown(5), reversed(r))]
        c = Countdown(4)
        part = [next(c), *itertools.islice(c, 1)]
        return (
            rows,
            r[0:2],
            sum(r),
            "c" in names,
            dict(names),
            popped,
            part,
            list(c),
            next(c, "end"),
            names == {"a": 1},
            list(map(len, [r, names])),
            [k for k, v in names.items() if v > 1],
        )

    return f, lambda: names.d


# 25
@program(F(3), Turn("a", "b", "a"))
def test_weak_and_events():
    """Weak references with callbacks, a WeakValueDictionary, an event bus of bound methods, __del__ order"""
    log = []

    class Bus:
        def __init__(self):
            self.subs = defaultdict(list)

        def on(self, name):
            def deco(fn):
                self.subs[name].append(fn)
                return fn

            return deco

        def fire(self, name, *a, **k):
            return [fn(*a, **k) for fn in self.subs.get(name, ())]

    class Listener:
        def __init__(self, name):
            self.name = name

        def hear(self, x, gain=1):
            log.append((self.name, gain))
            return x * gain

    bus, alive = Bus(), Listener("alive")
    bus.on("a")(alive.hear)

    @bus.on("a")
    @bus.on("b")
    def plain(x, gain=2):
        return x + gain

    def f(x, name):
        tmp = Listener("tmp")
        ref = weakref.ref(tmp)
        bus.on("b")(tmp.hear)
        out = bus.fire(name, x, gain=3)
        bus.subs["b"].pop()
        same = ref() is tmp
        cache = weakref.WeakValueDictionary(k=tmp)
        return (
            sum(out),
            same,
            len(bus.subs["b"]),
            alive.hear == alive.hear,
            "k" in cache,
            bus.subs.keys() == {"a", "b"},
            len(bus.fire("none")),
            tmp.name,
        )

    return f, lambda: log


# 26
@program(F(2, 2), Turn(1, 2, 3))
def test_partial_and_operator():
    """partial with keywords, partialmethod, reduce, attrgetter with dots, methodcaller, compose, cmp_to_key"""

    class Op:
        def __init__(self, n):
            self.n, self.inner = n, types.SimpleNamespace(v=n * 2, deep=types.SimpleNamespace(w="w" * n))

        def scale(self, x, by, *, plus=0):
            return x * by + plus + self.n

        double = functools.partialmethod(scale, by=2)
        triple = functools.partialmethod(scale, by=3, plus=1)

    def compose(*fns):
        return functools.reduce(lambda f, g: lambda x: g(f(x)), fns, lambda x: x)

    def f(x, n):
        ops = [Op(i) for i in (n, n + 1, 1)]
        by = functools.partial(torch.add, alpha=n)
        chain = compose(torch.relu, functools.partial(torch.mul, x), operator.methodcaller("sum", 0), lambda t: by(t, t))
        order = sorted(ops, key=functools.cmp_to_key(lambda a, b: (a.n > b.n) - (a.n < b.n)))
        get = operator.attrgetter("inner.v", "inner.deep.w")
        ns = types.SimpleNamespace(**{"k": n, **vars(ops[0].inner)})
        ns.k += 1
        p2 = functools.partial(by, x, alpha=n + 1)
        return (
            chain(x),
            ops[0].double(x),
            ops[1].triple(x),
            [get(o) for o in order],
            ns.k,
            sorted(vars(ns)),
            p2(x),
            p2.keywords,
            operator.itemgetter(0, -1)([o.n for o in ops]),
            functools.reduce(operator.mul, range(1, n + 2), 1),
            operator.index(True),
        )

    return f


# 27
@program(F(3), Turn(2024, 2023, 1999))
def test_dates_and_texts():
    """datetime arithmetic and formats, calendar, string methods in many ways, bytes, encodings, sorting of texts"""
    seen = []

    def f(x, year):
        d = datetime.date(year, 2, 28) + datetime.timedelta(days=1)
        seen.append(d.isoformat())
        t = datetime.datetime(year, 1, 1, 12) - datetime.timedelta(hours=36, minutes=5)
        leap = calendar.isleap(year)
        s = f"Run {year}: {d:%d/%m/%y} {t:%H:%M}"
        words = sorted(s.replace(":", " ").split(), key=lambda w: (len(w), w[::-1]))
        enc = s.encode("utf-8")[:4] + bytes([65, 66]) + b"%d" % year
        return (
            x * (2 if leap else 1) + d.day,
            words,
            s.casefold().count("r"),
            enc.decode().swapcase(),
            s.find("zz"),
            s.rjust(30, ".")[:5],
            s.removeprefix("Run "),
            "%s" % (d.timetuple()[:3],),
            s.isalnum(),
            "a,b,,c".split(",", 2),
            "x".join(["1"]) * 3,
            "tab\tb".expandtabs(4),
            s.rpartition(":"),
            "é".encode("latin-1"),
            (d - datetime.date(year, 1, 1)).days,
            "\n".join(s.splitlines(True)),
            ord("a"),
            chr(98),
            "abc" < "abd",
            min("hello"),
            s.startswith(("Run", "x")),
            "{:>{w}}".format("r", w=4),
            "Zz".maketrans("Z", "Y"),
        )

    return f, lambda: seen


# 28
@program(F(3, 4), Turn(0.0, 0.5, 1.0))
def test_mixed_precision_policy():
    """A policy object with class-level state that casts by name, try and finally around a counter, dtype tables"""

    class Policy:
        active: typing.ClassVar[list] = []
        table = {"half": torch.bfloat16, "full": torch.float32, "double": torch.float64}

        def __init__(self, name):
            self.name = name

        def __enter__(self):
            Policy.active.append(self)
            return self

        def __exit__(self, *exc):
            assert Policy.active.pop() is self
            return False

        def cast(self, *ts):
            return tuple(t.to(self.table[self.name]) if t.is_floating_point() else t for t in ts)

        @classmethod
        def current(cls):
            return cls.active[-1] if cls.active else cls("full")

    counts = Counter()

    def layer(x, w):
        p = Policy.current()
        counts[p.name] += 1
        x, w = p.cast(x, w)
        return x * w

    def f(x, level):
        w = torch.arange(4)
        y = layer(x, w)
        with Policy("half" if level else "double") as p:
            z = layer(x, w)
            try:
                with Policy("double"):
                    u = layer(x, x)
                    if level == 1.0:
                        raise StopIteration(level)
            except StopIteration as e:
                u = x * e.value
            finally:
                counts["done"] += 1
        return (
            y,
            z.float(),
            u,
            z.dtype,
            p.name,
            len(Policy.active),
            torch.promote_types(z.dtype, u.dtype),
            torch.finfo(z.dtype).bits,
        )

    return f, lambda: counts


# 29
@program(F(5), Turn(2, 0, 3))
def test_tree_and_visitors():
    """An expression tree with visitors dispatched by class name, match on class patterns, folding, __match_args__"""

    class Expr:
        __match_args__ = ("op", "args")

        def __init__(self, op, *args):
            self.op, self.args = op, args

        def __repr__(self):
            return f"{self.op}({', '.join(map(repr, self.args))})"

    class Visitor:
        def visit(self, e):
            name = type(e).__name__ if not isinstance(e, Expr) else e.op
            return getattr(self, f"visit_{name}", self.generic)(e)

        def generic(self, e):
            return e

    class Eval(Visitor):
        def __init__(self, env):
            self.env, self.steps = env, 0

        def visit_add(self, e):
            self.steps += 1
            return functools.reduce(operator.add, map(self.visit, e.args))

        def visit_neg(self, e):
            return -self.visit(*e.args)

        def visit_str(self, e):
            return self.env[e]

    def fold(e):
        match e:
            case Expr("add", [int(a), int(b)]):
                return a + b
            case Expr("neg", (Expr("neg", (inner,)),)):
                return fold(inner)
            case Expr(op, args) if args:
                return Expr(op, *map(fold, args))
            case {"x": v, **rest} if rest:
                return v
            case [*_] | (str() | int()):
                return e
            case _:
                raise TypeError(f"cannot fold {e!r}")

    def f(x, n):
        e = Expr("add", "x", Expr("neg", Expr("neg", "y")), Expr("add", n, 3))
        for _ in range(n):
            e = Expr("neg", e)
        g = fold(e)
        ev = Eval({"x": x, "y": x * 2})
        try:
            fold(None)
        except TypeError as err:
            said = str(err)
        return ev.visit(g), repr(g), ev.steps, said, fold({"x": n, "y": 1})

    return f


# 30
@program(F(2, 3), Turn(1, 2, 3))
def test_accumulators_between_calls():
    """Attributes, globals by closure, default arguments and class attributes that grow between calls, in several forms"""

    class Ema:
        decay = 0.5
        made = []

        def __init__(self):
            self.avg = {}
            self.__class__.made.append(id(self) * 0)

        def update(self, **ts):
            for k, t in ts.items():
                old = self.avg.get(k)
                self.avg[k] = t.clone() if old is None else torch.lerp(old, t, self.decay)
            self.decay = self.decay * 0.9
            return self

        def __getattr__(self, k):
            try:
                return self.__dict__["avg"][k]
            except KeyError:
                raise AttributeError(k) from None

        def __delattr__(self, k):
            if k in self.avg:
                del self.avg[k]
            else:
                super().__delattr__(k)

    ema = Ema()

    def counter(start=0):
        n = start

        def inc(by=1):
            nonlocal n
            n += by
            return n

        inc.get = lambda: n
        return inc

    inc = counter(5)

    def f(x, k, log=[], *, hist={"n": 0}):
        log.append(k)
        hist["n"] += sum(log)
        ema.update(**{f"t{k}": x, "all": x * inc(k)})
        if k == 2:
            del ema.t1
            f.mark = k
        got = getattr(ema, "t1", None)
        return (
            ema.all * hist["n"],
            got is None,
            sorted(ema.avg),
            inc.get(),
            round(ema.decay, 4),
            "decay" in vars(ema),
            Ema.decay,
            getattr(f, "mark", 0),
            f.__defaults__[0] is log,
        )

    return f, lambda: (ema.avg, ema.made, inc.get(), f.__defaults__, f.__kwdefaults__)
