# ruff: noqa - the programs are as users write them
"""Programs with the library's everyday parts: state that changes between calls, effects, and inputs that change"""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import threading
import types
import typing
import weakref

import pytest
import torch
from torch import nn

from . import targets
from .harness import F, I, Sign, Spec, Turn, case, program


# ---- attributes of functions, thread locals, loggers -------------------------------------------------------------------
@program(F(3), graphs=1, calls=5)
def test_counts_calls():
    """A decorator that counts calls on its wrapper, and keeps the last shape there"""

    def counted(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            wrapper.calls += 1
            wrapper.last = tuple(args[0].shape)
            return fn(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    @counted
    def scale(x, by=2):
        return x * by

    def f(x):
        return scale(scale(x, by=3)) + scale.calls + len(scale.last)

    return f, lambda: (scale.calls, scale.last, scale.__wrapped__.__dict__)


@program(F(3), Turn(0, 0, 1, 0, 2), graphs=1, calls=5)
def test_function_attributes():
    """Attributes of functions made, read back, found by hasattr, from two names of one function"""

    def helper(x):
        helper.calls = getattr(helper, "calls", 0) + 1
        return x + helper.calls

    alias = helper

    def f(x, n):
        if n and hasattr(alias, "calls"):
            alias.calls = alias.calls * n
        helper.log = [*getattr(alias, "log", []), n]
        y = helper(x) * alias.calls
        return y, alias.log

    return f, lambda: dict(helper.__dict__)


@program(F(3), graphs=1, calls=4)
def test_counts_itself():
    """A function that counts its own calls, and keeps a tensor"""

    def f(x):
        f.calls += 1
        before, f.last = f.last, x * 2
        return x * f.calls if before is None else x + before

    f.calls, f.last = 0, None
    return f, lambda: (f.calls, f.last)


@program(F(3), Turn(0, 1, 2, 1), graphs=1, calls=4)
def test_function_attribute_in_dict():
    """A function in a registry, with the order and options that its decorator put on it"""
    steps = {}

    def step(order, **options):
        def wrap(fn):
            fn.order, fn.options = order, options
            steps[fn.__name__] = fn
            return fn

        return wrap

    @step(2, by=3)
    def scale(x, by):
        return x * by

    @step(1, by=1)
    def shift(x, by):
        return x + by

    def f(x, n):
        shift.options["by"] = n
        for fn in sorted(steps.values(), key=operator.attrgetter("order")):
            x = fn(x, **fn.options)
            fn.used = getattr(fn, "used", 0) + 1
        if n == 2:
            scale.order = 0
        return x

    return f, lambda: [(fn.order, fn.options, fn.used) for fn in steps.values()]


class Locals(threading.local):
    def __init__(self):
        self.depth, self.seen = 0, []


@program(F(3), graphs=1, calls=4)
def test_thread_local():
    """A thread's own state: written, read back, deleted, and as a stack"""
    plain, own = threading.local(), Locals()
    plain.n = 1

    def f(x):
        plain.n += 2
        plain.last = x * plain.n
        own.depth += 1
        own.seen.append(own.depth)
        if hasattr(plain, "other"):
            del plain.other
            found = getattr(plain, "other", "gone")
        else:
            plain.other = len(own.seen)
            found = plain.other
        try:
            plain.missing
        except AttributeError as e:
            found = (found, type(e).__name__)
        return plain.last + own.depth, found

    return f, lambda: (dict(plain.__dict__), dict(own.__dict__))


def test_thread_local_of_each_thread():
    """What one thread compiled sees another thread's own values"""
    state = threading.local()

    def f(x):
        state.n = getattr(state, "n", 0) + 1
        return x * state.n

    run, seen = targets.compiled(f, targets.Counter()), []
    x = torch.ones(2)
    assert [run(x)[0].item() for _ in range(3)] == [1, 2, 3]
    thread = threading.Thread(target=lambda: seen.extend(run(x)[0].item() for _ in range(3)))
    thread.start()
    thread.join()
    assert seen == [1, 2, 3] and state.n == 3


@program(F(3), Turn(logging.WARNING, logging.ERROR), graphs=1, calls=4)
def test_logger_off():
    """Messages of a logger whose level is off"""
    log = logging.Logger("everyday")

    def f(x, level):
        log.level = level
        log.debug("shape %s", x.shape)
        log.info(f"mean {x.shape}")
        if log.isEnabledFor(logging.INFO):
            x = x * 2
        return x + 1

    return f, lambda: log.level


@program(F(3), Turn(30, 10, 30, 40, 20), calls=5)
def test_logger_level_changes():
    """A logger's messages where its level, its parent's and the whole process's change between calls"""
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append((record.levelname, record.getMessage()))

    manager = logging.Manager(logging.RootLogger(logging.WARNING))
    parent, log = manager.getLogger("parent"), manager.getLogger("parent.child")
    log.addHandler(Keep())

    def f(x, level):
        parent.setLevel(level)
        y = x * 2
        log.info("in %s", tuple(y.shape))
        manager.disable = 25 if level == 40 else 0
        manager._clear_cache()
        log.error("out")
        return y + 1

    return f, lambda: list(seen)


@program(F(3), Turn(0, 1, 2), graphs=1)
def test_private_gradient():
    """A parameter's gradient set and read under its private name"""
    p = nn.Parameter(torch.ones(3))

    def f(x, n):
        p._grad = x.detach() * n if n != 1 else None
        return x + 1 if p._grad is None else x + p.grad

    return f, lambda: p


# ---- classes -----------------------------------------------------------------------------------------------------------
@program(F(3), Turn(1, 2, 2, 5), graphs=1, calls=4)
def test_mixins():
    """Mixins with cooperative super(), each keeping something of its own"""

    class Base:
        def __init__(self, **kw):
            super().__init__(**kw)

        def run(self, x):
            return x

    class Counts(Base):
        def __init__(self, **kw):
            self.n = 0
            super().__init__(**kw)

        def run(self, x):
            self.n += 1
            return super().run(x) + self.n

    class Scales(Base):
        def __init__(self, by=1, **kw):
            self.by = by
            super().__init__(**kw)

        def run(self, x):
            return super().run(x) * self.by

    class Logs(Base):
        def __init__(self, **kw):
            self.log = []
            super().__init__(**kw)

        def run(self, x):
            y = super().run(x)
            self.log.append((type(self).__name__, tuple(y.shape)))
            return y

    class Both(Logs, Scales, Counts):
        pass

    b = Both(by=3)

    def f(x, by):
        y = b.run(x)
        b.by = by
        return y, [c.__name__ for c in type(b).__mro__]

    return f, lambda: vars(b)


@program(F(3), Turn(1, 2, 3), graphs=1)
def test_dataclass_factories():
    """Dataclasses with field factories, __post_init__, InitVar, replace, order, made inside and kept outside"""

    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        sizes: list = dataclasses.field(default_factory=list)
        table: dict = dataclasses.field(default_factory=lambda: {"a": 1}, repr=False)
        start: dataclasses.InitVar[int] = 0
        total: int = dataclasses.field(init=False, default=0)

        def __post_init__(self, start):
            self.total = start + len(self.sizes)

        def grow(self, n):
            self.sizes.append(n)
            return dataclasses.replace(self, scale=self.scale + n, start=n)

    @dataclasses.dataclass(order=True, frozen=True)
    class Key:
        n: int
        name: str = dataclasses.field(compare=False, default="k")

    held = [Config(sizes=[7])]

    def f(x, n):
        c = held[-1].grow(n)
        held.append(c)
        keys = sorted([Key(n), Key(2, "two"), Key(0)])
        y = x * c.scale + c.total + (Key(n) == Key(n, "other")) + (Key(1) < Key(n))
        return y, [k.name for k in keys], dataclasses.asdict(c), dataclasses.fields(c)[1].name

    return f, lambda: held


@program(F(3), Turn(1, 2.5, "ab", [1, 2], None), graphs=1, calls=5)
def test_singledispatch():
    """functools.singledispatch and singledispatchmethod over values of many types"""

    @functools.singledispatch
    def amount(v):
        return -1

    @amount.register
    def _(v: int):
        return v * 2

    @amount.register(float)
    def _(v):
        return v + 0.5

    @amount.register(list)
    def _(v):
        return sum(map(amount, v))

    class Scale:
        seen = []

        @functools.singledispatchmethod
        def of(self, v):
            self.seen.append("any")
            return 1

        @of.register
        def _(self, v: str):
            self.seen.append(v)
            return len(v)

    s = Scale()

    def f(x, v):
        return x * amount(v) + s.of(v)

    return f, lambda: Scale.seen


@program(F(3), Turn(0, 1, 2, 1), graphs=1, calls=4)
def test_exit_stack():
    """contextlib.ExitStack with managers, callbacks and an exception that one swallows"""
    log = []

    @contextlib.contextmanager
    def part(name):
        log.append(("in", name))
        try:
            yield len(name)
        except ValueError as e:
            log.append(("caught", str(e)))
        finally:
            log.append(("out", name))

    def f(x, n):
        with contextlib.ExitStack() as stack:
            for i in range(n):
                x = x + stack.enter_context(part("p" * (i + 1)))
            stack.callback(log.append, "callback")
            if n == 2:
                raise ValueError("two")
            x = x * 2
        with contextlib.suppress(KeyError), contextlib.nullcontext(3) as three:
            x = x * three
            {}["missing"]
        return x

    return f, lambda: list(log)


@program(F(3), Turn(True, False, True), graphs=1)
def test_optional_manager():
    """nullcontext in place of no_grad, closing, and a class used as a manager and decorator"""
    log = []

    class Timed(contextlib.ContextDecorator):
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(self.name)
            return self

        def __exit__(self, *exc):
            log.append(exc[0])
            return False

    @Timed("decorated")
    def g(x):
        return x * 2

    class Res:
        def close(self):
            log.append("closed")

    w = torch.ones(3, requires_grad=True)

    def f(x, off):
        with torch.no_grad() if off else contextlib.nullcontext():
            y = x * w
        with contextlib.closing(Res()), Timed("inner") as t:
            y = g(y) + len(t.name)
        return y

    return f, lambda: list(log)


@program(F(3), graphs=1, calls=4)
def test_nonlocal_closures():
    """Closures that share a nonlocal counter and a history, made outside and inside"""

    def make():
        count, history = 0, []

        def add(x):
            nonlocal count
            count += 2
            history.append(count)
            return x + count

        def undo():
            nonlocal count
            count = history.pop() - 1 if history else -1
            return count

        return add, undo, lambda: (count, history)

    add, undo, look = make()

    def f(x):
        y = add(add(x))
        n = undo()
        a, _, see = make()
        z = a(x)
        return y * n, z, see()[0]

    return f, look


@program(F(3), Turn(2, -3, 4), graphs=1)
def test_property_setters():
    """Properties that check, count and clamp what is set; a class property by a metaclass"""

    class Meta(type):
        @property
        def default(cls):
            return cls._default

        @default.setter
        def default(cls, v):
            cls._default = v

    class Box(metaclass=Meta):
        _default = 1

        def __init__(self):
            self._v, self.sets = 0, 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, new):
            self.sets += 1
            if new < 0:
                raise ValueError(f"negative: {new}")
            self._v = min(new, 3)

    b = Box()

    def f(x, n):
        try:
            b.v = n
            b.v += 1
        except ValueError as e:
            x = x - len(str(e))
        Box.default = Box.default + n
        return x * b.v + Box.default

    return f, lambda: (vars(b), Box._default)


@program(F(3), Turn("scale", "shift", "scale"), graphs=1)
def test_getattr_delegation():
    """__getattr__ that hands on to a wrapped object and counts what it was asked; __setattr__ that sorts names"""

    class Inner:
        scale, shift = 2, 5

        def apply(self, x, by):
            return x * by

    class Proxy:
        def __init__(self, inner):
            object.__setattr__(self, "_inner", inner)
            object.__setattr__(self, "asked", collections.Counter())

        def __getattr__(self, name):
            self.asked[name] += 1
            return getattr(self._inner, name)

        def __setattr__(self, name, value):
            setattr(self._inner if name.startswith("s") else self, name, value) if name.startswith("s") else object.__setattr__(
                self, name, value
            )

    p = Proxy(Inner())

    def f(x, name):
        y = p.apply(x, getattr(p, name))
        p.scale = p.scale + 1
        p.own = tuple(y.shape)
        return y + (0 if hasattr(p, "missing") else 1)

    return f, lambda: (p.asked, vars(p._inner), p.own)


@program(F(3), Turn("relu", "double", "late", "double"), graphs=1, calls=4)
def test_registries():
    """A registry filled by decorators and __init_subclass__, added to between calls by the program itself"""
    table = {}

    class Op:
        kinds = []

        def __init_subclass__(cls, /, key=None, **kw):
            super().__init_subclass__(**kw)
            table[key or cls.__name__.lower()] = cls
            Op.kinds.append(cls.__name__)

        def __call__(self, x):
            raise NotImplementedError

    class Relu(Op):
        def __call__(self, x):
            return x.relu()

    class Two(Op, key="double"):
        def __call__(self, x):
            return x * 2

    made = {}

    def f(x, key):
        op = made.get(key)
        if op is None:
            op = made[key] = table.get(key, Two)()
        y = op(x)
        table.setdefault("late", Relu)
        return y + len(table)

    return f, lambda: (sorted(table), list(made), [type(m).__name__ for m in made.values()], Op.kinds)


@program(F(4), Turn(0, 1, 2), graphs=1)
def test_named_tuples():
    """Named tuples of both kinds: defaults, _replace, _asdict, _make, unpacking, methods, as keys"""

    class State(typing.NamedTuple):
        x: torch.Tensor
        step: int = 0
        tags: tuple = ()

        def next(self, **kw):
            return self._replace(step=self.step + 1, tags=(*self.tags, *kw), **kw)

    Pair = collections.namedtuple("Pair", "a b", defaults=[7])
    seen = {}

    def f(x, n):
        s = State(x)
        for _ in range(n):
            s = s.next(x=s.x * 2)
        x, step, tags = s
        p = Pair(n)
        seen[p] = seen.get(p, 0) + 1
        q = Pair._make([step, *p[1:]])
        return s, q._asdict(), p == q, State._fields, x + p.b

    return f, lambda: seen


@program(F(4), Turn(3, -1, [1, 2], {"k": 5, "z": 1}, ("go", 4), "text", None, [9]), graphs=1, calls=8)
def test_match():
    """match over values, sequences, mappings, classes, guards and captures"""

    @dataclasses.dataclass
    class P:
        a: int
        b: int = 2

    log = []

    def f(x, v):
        match v:
            case int(n) if n < 0:
                y = x - n
            case int() | float():
                y = x * v
            case [a]:
                y = x + a
            case ["go", n] | [n, _]:
                log.append(n)
                y = x * n
            case {"k": k, **rest}:
                log.append(sorted(rest))
                y = x * k
            case None:
                y = x.neg()
            case str() as s:
                y = x + len(s)
        match P(len(log)):
            case P(0, b=b):
                y = y + b
            case P(a=a) if a > 1:
                y = y - a
        return y

    return f, lambda: list(log)


@program(F(6), Turn([3, 1, 2], [5], [2, 2]), graphs=1)
def test_walrus():
    """Assignment expressions in conditions, comprehensions and loops"""
    sums = []

    def f(x, ns):
        if (n := len(ns)) > 1 and (top := max(ns)) > 2:
            x = x * top
        kept = [sq for v in ns if (sq := v * v) > 1]
        i = 0
        while (i := i + 1) < n:
            x = x + i
        sums.append(total := sum(kept))
        return x + total, (n, sq, kept)

    return f, lambda: list(sums)


@program(Turn((2, 3), (2, 3), (4, 1), (5, 5)), graphs=1, calls=4)
def test_shapes_in_text():
    """f-strings with shapes, dtypes and format specs, as keys of a cache of masks"""
    masks, log = {}, []

    def f(shape):
        x = torch.ones(shape)
        key = f"{x.shape[0]:>3}x{x.size(-1):<3}|{x.dtype}"
        if key not in masks:
            masks[key] = torch.full(x.shape, len(masks) + 1.0)
            log.append(f"made {key!r} {tuple(x.shape)} {x.numel() / 3:.2f} {x.dim()=}")
        return x * masks[key], "%d of %s" % (len(masks), "all"), "{0[1]} {n!s}".format(shape, n=x.ndim)

    return f, lambda: (masks, log)


@program(F(4), Turn(["b", "a", "C"], ["aa", "b"], ["x", "X", "y"]), graphs=1)
def test_sorting():
    """sorted, sort, min and max with keys and reverse: stable, over objects, with cmp_to_key"""

    class Item:
        def __init__(self, name, w):
            self.name, self.w = name, w

        def __lt__(self, other):
            return self.w < other.w

    order = []

    def f(x, names):
        items = [Item(n, len(n) * (i % 2)) for i, n in enumerate(names)]
        items.sort()
        by = sorted(items, key=lambda i: (i.name.lower(), i.w), reverse=True)
        low = min(items, key=operator.attrgetter("name"))
        c = sorted(names, key=functools.cmp_to_key(lambda a, b: (a > b) - (a < b)))
        order.append([i.name for i in by])
        return x * (1 + low.w) + max(range(4), key=lambda i: -abs(i - len(names))), [i.name for i in items], c

    return f, lambda: order


@program(F(3), Turn(1, 2, 3, 4), graphs=1, calls=4)
def test_deque_window():
    """A deque with maxlen as a moving window of tensors; rotate, appendleft, slices by islice"""
    window, marks = collections.deque(maxlen=3), collections.deque([1, 2, 3])

    def f(x, n):
        window.append(x * n)
        marks.rotate(n)
        marks.appendleft(n)
        last = marks.pop()
        mean = sum(window) / len(window)
        return mean + last, list(itertools.islice(marks, 1, 3)), n in marks, marks.index(n)

    return f, lambda: (window, marks)


@program(F(3), Turn("a", "b", "a", "c"), graphs=1, calls=4)
def test_default_dicts():
    """defaultdict of lists and of defaultdicts, Counter arithmetic, ChainMap, OrderedDict moves"""
    groups, deep = collections.defaultdict(list), collections.defaultdict(lambda: collections.defaultdict(int))
    count, order = collections.Counter("ab"), collections.OrderedDict(a=1, b=2)
    chain = collections.ChainMap({}, {"a": 2, "z": 9})

    def f(x, k):
        groups[k].append(tuple(x.shape))
        deep[k]["n"] += len(groups[k])
        count[k] += 2
        count.update({"b": 1})
        chain[k] = chain.get(k, 0) + 1
        order[k] = len(order)
        order.move_to_end(k, last=False)
        more = count + collections.Counter(a=1)
        return x * more[k] + chain["z"] + chain[k], more.most_common(1), list(chain), deep[k]["missing"], sorted(count.elements())

    return f, lambda: (groups, deep, count, order, chain.maps)


@program(F(4), Turn([1, 2], [1, 2, 3], [3, 4]), graphs=1)
def test_zip_strict():
    """zip(strict=True) that raises, zip_longest, pairwise, enumerate from a start, dict from zip"""
    log = []

    def f(x, ns):
        try:
            for (i, n), t in zip(enumerate(ns, 1), x[:2], strict=True):
                log.append((i, n))
                x = x + t * n
        except ValueError as e:
            log.append(str(e))
        d = dict(zip("ab", ns))
        for a, b in itertools.zip_longest(ns, [5, 6, 7], fillvalue=0):
            x = x + a * b
        return x, d, [b - a for a, b in itertools.pairwise(ns)], list(itertools.accumulate(ns, initial=1))

    return f, lambda: list(log)


@program(F(3), Turn(1, 2, 3), graphs=1)
def test_forwarding():
    """Star arguments handed on through wrappers, keyword-only and positional-only parameters, partials"""
    log = []

    def base(x, /, a, *rest, k=1, **more):
        log.append((a, rest, k, sorted(more.items())))
        return x * a + sum(rest) + k + sum(more.values())

    def outer(*args, **kw):
        kw.setdefault("k", 4)
        return base(*args, **{**kw, "z": 1})

    half = functools.partial(outer, b=2)

    class C:
        run = functools.partialmethod(lambda self, x, n, *, by: x * n * by + self.off, by=3)
        off = 1

    c = C()

    def f(x, n):
        try:
            base(x, k=2)
        except TypeError as e:
            log.append(str(e)[-40:])
        c.off += n
        args = [n] * n
        return half(x, *args, x_=n), outer(x, n, k=n), c.run(x, n), c.run(x, n, by=1)

    return f, lambda: list(log)


@program(F(3), Turn(1, 1, 2, 2), graphs=1, calls=4)
def test_cached_properties():
    """cached_property computed once an object and forgotten, a hand-written descriptor that caches, lru_cache"""
    made = []

    class Lazy:
        def __init__(self, fn):
            self.fn = fn

        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls):
            if obj is None:
                return self
            if not hasattr(obj, self.name):
                setattr(obj, self.name, self.fn(obj))
            return getattr(obj, self.name)

        def __set__(self, obj, value):
            made.append(("set", value))
            setattr(obj, self.name, value)

    class A:
        def __init__(self, n):
            self.n = n

        @functools.cached_property
        def table(self):
            made.append(("table", self.n))
            return torch.arange(3.0) * self.n

        @Lazy
        def size(self):
            made.append(("size", self.n))
            return self.n * 10

    a = A(1)

    def f(x, n):
        y = x * a.table + a.size
        if a.n != n:
            a.n = n
            del a.table
            a.size = n
        return y + a.table

    return f, lambda: (made, sorted(vars(a)))


@program(F(3), Turn(1, "s", 2, None), graphs=1, calls=4)
def test_descriptors():
    """A typed descriptor that checks on set, a read-only one, one that is not a data descriptor and is hidden"""

    class Typed:
        def __init__(self, kind):
            self.kind, self.errors = kind, 0

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, cls=None):
            return self if obj is None else obj.__dict__.get(self.name, 0)

        def __set__(self, obj, value):
            if not isinstance(value, self.kind):
                self.errors += 1
                raise TypeError(f"{self.name}: {type(value).__name__}")
            obj.__dict__[self.name] = value

    class Plain:
        def __get__(self, obj, cls):
            return len(obj.__dict__) if obj is not None else cls.__name__

    class A:
        n, size = Typed(int), Plain()

    a = A()

    def f(x, v):
        try:
            a.n = v
        except TypeError as e:
            a.error = str(e)
        y = x * a.n + a.size + len(A.size)
        if v == 2:
            a.size = 100
        return y + A.n.errors

    return f, lambda: (vars(a), A.__dict__["n"].errors)


@program(F(3), Turn(0, 1, 2, 0), graphs=1, calls=4)
def test_protocols():
    """isinstance of a runtime-checkable Protocol, abstract classes, registered virtual subclasses, __subclasshook__"""

    @typing.runtime_checkable
    class Runs(typing.Protocol):
        def run(self, x): ...

    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

        @property
        @abc.abstractmethod
        def k(self): ...

        def twice(self, x):
            return self.run(self.run(x)) * self.k

    class A(Base):
        k = 2

        def run(self, x):
            return x + 1

    class B:
        def run(self, x):
            return x * 3

    class D:
        pass

    Base.register(D)
    things, log = [A(), B(), D()], []

    def f(x, i):
        o = things[i]
        log.append((isinstance(o, Runs), isinstance(o, Base), issubclass(type(o), Base)))
        try:
            Base()
        except TypeError as e:
            log.append(str(e)[:20])
        if isinstance(o, Runs):
            x = o.run(x)
        return o.twice(x) if hasattr(o, "twice") else x

    return f, lambda: list(log)


@program(F(3), Turn(0, 1, 4, 3), graphs=1, calls=4)
def test_recursion():
    """Recursion over numbers, nested containers and a tree of objects, with memo and mutual calls"""
    memo, visits = {}, []

    def fib(n):
        if n not in memo:
            memo[n] = n if n < 2 else fib(n - 1) + fib(n - 2)
        return memo[n]

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    def walk(v, x):
        match v:
            case dict():
                return {k: walk(w, x) for k, w in v.items()}
            case list() | tuple():
                return type(v)(walk(w, x) for w in v)
            case torch.Tensor():
                return v * x
        visits.append(v)
        return v

    class Node:
        def __init__(self, v, *kids):
            self.v, self.kids = v, kids

        def sum(self, x):
            return x * self.v + sum(k.sum(x) for k in self.kids)

    tree = Node(1, Node(2, Node(3)), Node(4))

    def f(x, n):
        tree.kids[0].v += n
        return tree.sum(x) + fib(n) + even(n), walk({"a": [x, n, (1, x)], "b": {}}, x)

    return f, lambda: (memo, visits, tree.kids[0].v)


@program(F(3), Turn(1, 2, 3), graphs=1)
def test_generators_with_send():
    """Generators driven by send, throw and close, with return values through yield from"""
    log = []

    def averager():
        total, n = 0, 0
        try:
            while True:
                v = yield total / n if n else 0
                if v is None:
                    break
                total, n = total + v, n + 1
        except KeyError as e:
            log.append(("thrown", e.args))
        finally:
            log.append("end")
        return total

    def outer(out):
        got = yield from averager()
        out.append(got)
        yield "done"

    def f(x, n):
        g, out = outer([]), []
        next(g)
        for i in range(n):
            y = g.send(x * i)
        last = g.send(None) if n != 2 else g.throw(KeyError("k"))
        h = averager()
        next(h)
        h.close()
        try:
            next(h)
        except StopIteration:
            log.append("stopped")
        return y, last

    return f, lambda: list(log)


@program(F(3), Turn(2, 0, 1), graphs=1)
def test_generator_pipeline():
    """A pipeline of generators over a list that grows, chained and grouped"""
    items = [1, 2, 3]

    def numbers():
        for i in items:
            yield i

    def evens(it, rest):
        for i in it:
            if i % 2:
                rest.append(i)
            else:
                yield i

    def f(x, n):
        rest = []
        items.append(n + len(items))
        y = x * sum(evens(numbers(), rest))
        groups = {k: list(g) for k, g in itertools.groupby(sorted(items), key=lambda i: i > 2)}
        first = next((i for i in numbers() if i > n), None)
        return y + len(rest), groups, first, any(i > 5 for i in items), all(map(bool, items))

    return f, lambda: list(items)


# ---- a store of what is there already ----------------------------------------------------------------------------------
class Slots:
    __slots__ = ("a", "b")


HOLDERS = {
    "instance": types.SimpleNamespace,
    "class": lambda: type("C", (), {}),
    "slots": Slots,
    "function": lambda: types.FunctionType((lambda: 0).__code__, {}),
    "python module": lambda: types.ModuleType("m"),
    "nn.Module": nn.Module,
    "tensor": lambda: torch.ones(1),
    "thread local": threading.local,
    "dict": dict,
    "ordered": collections.OrderedDict,
    "default": lambda: collections.defaultdict(int),
    "dict's": lambda: type("D", (dict,), {})(),
}


@pytest.mark.parametrize("value", [int, str, torch.ones, nn.Parameter])
@pytest.mark.parametrize("kind", HOLDERS)
def test_stored_again(kind, value):
    """What a call stores is in the first call the very object that is there, and another one in the next"""
    o = HOLDERS[kind]()

    def f(x, new):
        if isinstance(o, dict):
            o["a"] = new
            o["a"], o["b"] = o["b"], o["a"]
        else:
            o.a = new
            o.a, o.b = o.b, o.a
        return x + 1

    values = [value(torch.ones(n) if value is nn.Parameter else n) for n in (2, 3, 4)]
    run = targets.compiled(f, targets.Counter())
    get = (lambda name: o[name]) if isinstance(o, dict) else (lambda name: getattr(o, name))
    if isinstance(o, dict):
        o.update(a=values[0], b=values[0])
    else:
        o.a = o.b = values[0]
    before = values[0]
    for new in (values[0], values[1], values[2], values[0]):
        run(torch.ones(2), new)
        for got, want in ((get("b"), new), (get("a"), before)):
            assert got is want or value in (int, str) and got == want
        before = new


@case(Spec(lambda r: r.f(3 + r.call, 2)), calls=4, total=2)
def test_checked_distributions_of_any_size(x):
    """Distributions that check their arguments: what the check would print of them keeps no size fixed"""
    normal, picked = torch.distributions.Normal(x, x.exp()), torch.distributions.Categorical(logits=x)
    return normal.log_prob(x + 1), picked.entropy(), torch._is_any_true(x > 9)
