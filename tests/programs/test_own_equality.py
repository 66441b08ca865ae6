# ruff: noqa: B023, E731
"""Keys and elements whose class says in Python what they equal and hash to, in containers from outside and made inside"""

import collections
import dataclasses
import enum
import functools

import torch

from .harness import F, Turn, program
from .test_named_tuples import Own


class K:
    """Its hash is larger than what hash() of a number gives, its __eq__ says False to what it does not know."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, o):
        return isinstance(o, K) and self.n == o.n

    def __hash__(self):
        return hash(("K", self.n))

    def __repr__(self):
        return f"K{self.n}"


@dataclasses.dataclass(frozen=True)
class Key:
    n: int
    what: str = "a"
    note: float = dataclasses.field(default=0.0, compare=False)


@program(F(3), Turn(1, 2), calls=4)
def test_looked_up_in_a_dict_from_outside():
    store = {K(1): 10, (K(5), 1): 7}

    def f(x, n):
        store[K(n)] = store.get(K(n), 0) + 1
        d = {K(n): x, (K(n), 1): x * 2}
        return d[K(n)], d[K(n), 1], store[K(n)], K(9) in store, store[K(5), 1], {K(1), K(2)} & {K(n)} == {K(n)}

    return f, lambda: [(repr(k), v) for k, v in store.items()]


@program(F(3), Turn(1, 2, 3, 1), calls=6)
def test_cache_by_frozen_dataclass():
    cache = {}

    def f(x, n):
        k = Key(n, note=n + 0.5)
        if k not in cache:
            cache[k] = torch.ones(3) * n
        first = next(iter(cache))
        return x + cache[Key(n)], first.note, first is k, len(cache)

    return f, lambda: cache


@program(F(3), Turn(1, 2, 3, 1), calls=8)
def test_taken_out_and_put_back():
    cache = {Key(1): 5, Key(2, note=3.0): 6, "s": 1, (Key(3), 2): 7}
    olds = list(cache)

    def f(x, n):
        had = cache.pop(Key(n), None)
        if had is None:
            cache[Key(n, note=x.shape[0])] = 9
        d = dict(cache)
        d.pop((Key(3), 2), None)
        c = cache.copy()
        c[Key(2)] = 3
        e = {**cache, Key(n): 1}
        return x + 1, had, d, list(e), Key(2) in c, cache.get((Key(3), 2)), c == cache, Key(2) in cache.keys()

    return f, lambda: (list(cache.items()), [any(k is o for o in olds) for k in cache])


@program(F(3), calls=5)
def test_kept_in_order():
    d = collections.OrderedDict((Key(i), i) for i in range(4))
    e = collections.defaultdict(list)
    n = [0]

    def f(x):
        d.move_to_end(Key(n[0] % 4))
        e[Key(n[0] % 3)].append(x.sum())
        n[0] += 1
        del d[Key(3)]
        d[Key(3)] = n[0]
        d.setdefault(Key(9), 0)
        d[Key(9)] += 1
        return list(d.values()), len(e), e[Key(0)][0], [k.note for k in d]

    return f, lambda: (list(d.items()), e)


@program(F(3), Turn(0, 1, 2), calls=5)
def test_objects_from_outside_as_keys():
    ks = [Key(i, note=float(i)) for i in range(3)]
    d = {k: i for i, k in enumerate(ks)}
    s, fs = set(ks), frozenset(ks[:2])

    def f(x, i):
        k = ks[i]
        d[k] = d[k] + 1
        r = k in s, Key(i) in s, Key(i) in fs, len({*ks, Key(0)}), ks.index(Key(i))
        return x * d[Key(i)], r, {k: x}[Key(i)]

    return f, lambda: d


@program(F(3), Turn(1, 2), calls=5)
def test_equal_hashes():
    class M:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return self.n == o.n

        def __hash__(self):
            return 7

    b = M(2)
    d = {M(1): 1, b: 2}

    def f(x, n):
        return x + 1, d.get(M(n)), M(3) in d, d[b]

    return f, lambda: [(k.n, v) for k, v in d.items()]


@program(F(3), calls=2)
def test_hashes_as_python_takes_them():
    class H:
        def __init__(self, h):
            self.h = h

        def __hash__(self):
            return self.h

    given = H(2**62 + 5)

    def f(x):
        found = [hash(H(h)) for h in (-1, 5, True, 2**61, 2**63 - 1, 2**64 + 3, -(2**63))]
        for wrong in (1.5, None):
            try:
                hash(H(wrong))
            except TypeError as e:
                found.append(str(e))
        return x + 1, found, hash(given)

    return f


class Named(str):
    def __hash__(self):
        return hash(self.lower())

    def __eq__(self, o):
        return self.lower() == str(o).lower()


@program(F(3), Turn(1, 2), calls=3)
def test_subclasses_of_builtins():
    d = {Own(0, 1): "x", Own(0, 2): "y"}
    e = {Named("Ab"): 1}

    def f(x, n):
        made = {Own(x, n): 3}[Own(x, n)], len({Own(x, 1), Own(x, 1)}), Own(x, n) == (0, n)
        return x + 1, d[Own(x, n)], Own(x, 5) in d, made, e[Named("aB")], Named("ab") in e, {Named("x"): 2}.get(Named("X"))

    return f


class Told:
    """Tells each question that it is asked."""

    def __init__(self, n, log):
        self.n, self.log = n, log

    def __eq__(self, o):
        self.log.append(("eq", self.n))
        return isinstance(o, Told) and self.n == o.n

    def __hash__(self):
        self.tell("hash")
        return hash(self.n)

    def tell(self, what):
        self.log.append((what, self.n))


@dataclasses.dataclass(frozen=True)
class Within:
    told: object


@program(F(3), Turn(0, 1, 2, 3, 4, 5), calls=8)
def test_as_many_questions_as_in_eager():
    """Tables, sets and caches under keys whose hash tells that it was asked for: neither guards nor the tracer ask"""
    log = []
    keys = [Told(1, log), Told(2, log)]
    table, within, group, rows = {keys[0]: 3, keys[1]: 4}, {Within(keys[0]): 5.0}, set(keys), [keys[0], keys[1]]

    @functools.lru_cache(None)
    def cached(key):
        return key.n + 1

    def f(x, n):
        if n == 0:
            return x * sum(v + k.n for k, v in table.items())
        if n == 1:
            return x * table[keys[1]] + len(table)
        if n == 2:
            return x * sum(within.values()) + len({**table})
        if n == 3:
            return x + sum(k.n for k in group) + (keys[0] in group)
        if n == 4:
            return x * cached(keys[0]) + cached(keys[1])
        return x + rows.index(keys[1]) + rows.count(keys[0])

    return f, lambda: log


@program(F(3), Turn(1, 2, 9), calls=4)
def test_members_with_operators_of_their_own():
    """Operators of an Enum's members, written in Python: they run in each call, and see what has changed"""
    seen, scale = [], [2.0]

    class Level(enum.Enum):
        LOW = 1
        HIGH = 2

        def __eq__(self, other):
            seen.append("eq")
            return self.value == getattr(other, "value", other)

        def __hash__(self):
            return hash(self.value)

        def __lt__(self, other):
            seen.append("lt")
            return self.value * scale[0] < other.value * scale[0]

        def __mul__(self, x):
            seen.append("mul")
            return x * self.value * scale[0]

        def __neg__(self):
            return Level(3 - self.value)

        def __bool__(self):
            seen.append("bool")
            return self.value * scale[0] > 3

        def __len__(self):
            return self.value

        def __iter__(self):
            seen.append("iter")
            return iter(range(self.value))

        def __str__(self):
            seen.append("str")
            return f"{self.name} of {scale[0]}"

        @classmethod
        def _missing_(cls, value):
            seen.append("missing")
            return cls.HIGH

    table = {Level.LOW: 1.0, Level.HIGH: 2.0}

    def f(x, n):
        m = Level(n)
        scale[0] += 1
        parts = m == Level.LOW, m in (Level.HIGH, 1), max(m, Level.LOW), -m, len(m), list(iter(m)), str(m), f"{m}", table[m]
        return m * x if m else x, parts, [Level.LOW, m].count(2), sorted([Level.HIGH, m])

    return f, lambda: (seen, scale)


class Flags(enum.Flag):
    A = 1
    B = 2


@program(F(3), Turn(Flags.A, Flags.A | Flags.B), graphs=1)
def test_members_of_a_flag():
    """Iteration over a Flag's members"""
    return lambda x, flags: [x * flag.value for flag in flags]


@program(F(3), calls=2)
def test_operators_of_a_metaclass():
    """Operators of a metaclass, written in Python: they run in each call"""
    seen = []

    class Meta(type):
        def __iter__(cls):
            seen.append("iter")
            return iter(cls.items)

        def __bool__(cls):
            seen.append("bool")
            return len(cls.items) > 2

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.more = 2
            return made

        def __getattr__(cls, name):
            seen.append(name)
            raise AttributeError(name)

        def __subclasscheck__(cls, other):
            seen.append("subclass")
            return False

        def __contains__(cls, item):
            seen.append("contains")
            return item in cls.items

        def __lt__(cls, other):
            seen.append("lt")
            return len(cls.items) < len(other.items)

        def __repr__(cls):
            seen.append("repr")
            return f"{cls.__name__} after {len(seen)}"

        def __getitem__(cls, i):
            return cls.items[i]

        def __dir__(cls):
            seen.append("dir")
            return []

        def __instancecheck__(cls, other):
            return other == 2

    class Few(metaclass=Meta):
        items = [1.0, 2.0]

        def __init__(self, n):
            self.n = n

    class Many(metaclass=Meta):
        items = [1.0, 2.0, 3.0]

    shown = "{} and", "%s %r"

    def f(x):
        made = Few(3)
        x = sum(x * v for v in Few) if Few else x + made.n * made.more
        said = str(Few), f"{Many} {Few!r:>40}", shown[0].format(Few), shown[1] % (Many, Few), repr([Many, {Few: 1}])
        found = {Many: 1, Few: 2}[Few], Few[1], isinstance(2, Few), isinstance(3, Few), Few == Many, Many != Few
        held = max(Many), bool(Many), not Few, 2.0 in Few, 5 not in Many, Few < Many, Few > Many, any([Few, Many])
        return x, held, said, found

    return f, lambda: seen


@program(F(3), calls=3)
def test_equality_of_a_metaclass():
    """Equality of classes, written in Python: it is asked as often as in eager, of classes and for their instances"""
    return _telling(hash_too=False)


@program(F(3), calls=3)
def test_hash_of_a_metaclass():
    """Hash of classes, written in Python: it is asked as often as in eager, of classes and for their instances"""
    return _telling(hash_too=True)


def _telling(hash_too):
    seen = []

    class Meta(type):
        def __eq__(cls, other):
            seen.append("eq")
            return cls is other or other == cls.size

        def __hash__(cls):
            seen.append("hash")
            return cls.size

        if not hash_too:
            __hash__ = type.__hash__

    class Two(metaclass=Meta):
        size = 2

        def __call__(self, x):
            return x * self.size

    class Three(Two):
        size = 3

    two, held = Two(), {"three": Three(), "class": Two}

    def f(x):
        x = two(x) + held["three"](x) + Three()(x)
        same = Two == Three, Two != Three, 2 == Two, Two in (Three, held["class"]), [Three].index(3), isinstance(two, Three)
        return x, same, {Three: 1, Two: 2}[Two]

    return f, lambda: seen


@program(F(3), graphs=1)
def test_ascii_of_what_has_its_own_repr():
    """ascii() escapes what a program's `__repr__` returns, of instances and of classes"""

    class Meta(type):
        def __repr__(cls):
            return "Ünit"

    class Unit(metaclass=Meta):
        def __repr__(self):
            return "µm"

    def f(x):
        unit = Unit()
        return x + 1, ascii(unit), f"{unit!a}{Unit!a}{'ä'!a}", f"{unit!a}", ascii([unit]), repr(unit)

    return f
