"""Objects that are made for one call and die after it: the next call's lie at their addresses, and are not taken for them.

Each case makes what a function is given anew in each call, of a few kinds of values so that entries are met again, with garbage
of the same sizes made and freed in between; every result is compared with eager's.
"""

from __future__ import annotations

import collections
import functools
import gc
import random
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bytejit
from bytejit.common.errors import Unsupported
from bytejit.common.options import Options
from bytejit.guards.native_checker import CHECKER
from bytejit.kernels.build_cpp import build

CALLS = 200


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.cxx)], autouse=True)
def checks(request):
    """How guards are checked."""
    before = CHECKER._build, CHECKER._calls
    CHECKER.install((lambda text: build([text], Options()).calls[0]) if request.param == "compiled" else None)
    bytejit.reset()
    yield request.param
    CHECKER._build, CHECKER._calls = before


class Batch(NamedTuple):
    x: torch.Tensor
    scale: torch.Tensor
    power: int


@dataclass
class Record:
    x: torch.Tensor
    power: int
    parts: list


@dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    inner: tuple


class Slots:
    __slots__ = ("x", "power", "__weakref__")

    def __init__(self, x, power):
        self.x, self.power = x, power

    def step(self, y):
        return self.x * self.power + y


class OwnDict(dict):
    pass


class OwnList(list):
    factor = 2


class OwnTuple(tuple):
    pass


class Tagged:
    """By identity a key of dicts and sets."""


class Block(nn.Module):
    def __init__(self, power):
        super().__init__()
        self.power = power
        self.weight = nn.Parameter(torch.full((4,), float(power)))

    def forward(self, x):
        return x * self.weight + self.power


def named_tuple(x, k):
    return (Batch(x, torch.full((1,), float(k)), k),)


def use_named_tuple(batch):
    x, scale, power = batch
    return (x + batch.scale) * scale * power


def use_call(f, x):
    return f(x) * 2


def closure(x, k):
    shift = torch.full((4,), float(k))

    def inner(y):
        return y * k + shift

    return inner, x


def counting_closure(x, k):
    total = k

    def inner(y):
        nonlocal total
        total += 1
        return y * total

    return inner, x


def with_defaults(x, k):
    def inner(y, by=torch.full((4,), float(k)), *, power=k):
        return y * by + power

    return inner, x


def packed(x, k):
    rows = torch.stack([x, x + k, x * 2])
    return (pack_padded_sequence(rows.unsqueeze(-1), torch.tensor([4, 3, 2 if k == 1 else 1]), batch_first=True),)


def use_packed(seq):
    return PackedSequence(seq.data * 2, seq.batch_sizes).data + seq.batch_sizes.sum()


def use_record(r):
    return r.x * r.power + sum(r.parts)


def use_frozen(r):
    (a, (b, k)) = r.inner
    return r.x + a * b + k


def use_dict(d):
    out = d["x"] * d["k"]
    for value in d["parts"].values():
        out = out + value
    return out


def use_sequence(items):
    out = items[0]
    for item in items[1:]:
        out = out * 2 + item
    return out


def generator(x, k):
    return ((x * i for i in range(k, k + 3)),)


def use_generator(rows):
    return sum(rows) + 1


def keyed(x, k):
    keys = [Tagged() for _ in range(k + 1)]
    return {key: x + i for i, key in enumerate(keys)}, keys[-1]


def use_keyed(table, key):
    out = table[key] * 2
    for other in table:
        if other is not key:
            out = out + table[other]
    return out


def watched(x, k):
    made = Slots(x, k)
    return weakref.ref(made), made


def use_watched(ref, made):
    return ref().x * made.power if ref() is made else made.x


def use_block(block, x):
    return block(x) + block.weight.sum()


def use_holder(holder):
    return holder["a"][0].x * holder["a"][1] + holder["b"].power


CASES: dict[str, tuple[Callable, Callable[[torch.Tensor, int], tuple]]] = {
    "named tuple": (use_named_tuple, named_tuple),
    "bound method": (use_call, lambda x, k: (Slots(x + 1, k).step, x)),
    "method of a builtin": (use_call, lambda x, k: (torch.full((4,), float(k)).add, x)),
    "closure": (use_call, closure),
    "closure that counts": (use_call, counting_closure),
    "defaults": (use_call, with_defaults),
    "lambda": (use_call, lambda x, k: ((lambda y: y * k - x), x)),
    "partial": (use_call, lambda x, k: (functools.partial(torch.add, x, alpha=k), x)),
    "partial of a closure": (use_call, lambda x, k: (functools.partial(closure(x, k)[0]), x)),
    "packed sequence": (use_packed, packed),
    "dataclass": (use_record, lambda x, k: (Record(x, k, [x + i for i in range(k)]),)),
    "frozen dataclass with slots": (use_frozen, lambda x, k: (Frozen(x, (x + 1, (x * k, k))),)),
    "slots": (lambda s: s.step(s.x), lambda x, k: (Slots(x, k),)),
    "dict": (use_dict, lambda x, k: ({"x": x, "k": k, "parts": {i: x * i for i in range(k)}},)),
    "dict subclass": (use_dict, lambda x, k: (OwnDict(x=x, k=k, parts=OwnDict(a=x + k)),)),
    "ordered dict": (use_dict, lambda x, k: (collections.OrderedDict(x=x, k=k, parts={"a": x + k}),)),
    "list subclass": (use_sequence, lambda x, k: (OwnList([x, x + k, x * 3]),)),
    "tuple subclass": (use_sequence, lambda x, k: (OwnTuple([x, x + k, x * 3]),)),
    "deque": (lambda d: d[0] * 2 + d[-1], lambda x, k: (collections.deque([x, x + k]),)),
    "generator": (use_generator, generator),
    "iterator": (use_generator, lambda x, k: (iter([x, x * k]),)),
    "dict of objects": (use_keyed, keyed),
    "set of numbers": (lambda s, x: x * sum(s), lambda x, k: ({k, k + 1}, x)),
    "weak reference": (use_watched, watched),
    "module": (use_block, lambda x, k: (Block(k), x)),
    "nest": (use_holder, lambda x, k: ({"a": (Slots(x + k, k), k), "b": Record(x, k, [])},)),
}


def litter(rng: random.Random) -> list:
    """Objects of the sizes of what the cases make, about half of which die at once."""
    made = [(object(), i) for i in range(rng.randrange(4))] + [[i] for i in range(rng.randrange(3))]
    made += [{"x": i} for i in range(rng.randrange(3))] + [Slots(1, 2).step, lambda y: made, torch.zeros(4)]
    return rng.sample(made, len(made) // 2)


def same(got: Any, want: Any) -> bool:
    return torch.allclose(got, want, rtol=1e-5, atol=1e-5)


NET, ONE = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).requires_grad_(False), torch.ones(4)


def beside_a_model(fn: Callable) -> Callable:
    """The function with a model in it: what checks many guards may go another way than what checks a few. Parameters of
    its own, as a tuple of them would be another object that dies."""

    def of_one(a):
        return fn(a) + NET(ONE)

    def of_two(a, b):
        return fn(a, b) + NET(ONE)

    return of_one if fn.__code__.co_argcount == 1 else of_two


def run(case: str, backend: str, calls: int) -> None:
    fn, make = CASES[case]
    fn = beside_a_model(fn)
    f, rng, kept = bytejit.compile(fn, backend=backend), random.Random(case), []
    given = [(torch.randn(4), k) for k in (1, 1, 2, 1, 2, 1, 1, 2)]
    with torch.no_grad():
        want = [fn(*make(x, k)) for x, k in given]
        for i in range(calls):
            at = i % 5 if i < calls // 2 else rng.randrange(len(given))
            if i >= calls // 2:  # before, each call's objects lie where the last one's did
                kept += litter(rng)
            got = f(*make(*given[at]))
            assert same(got, want[at]), f"call {i}, values {at}: {got} is not {want[at]}"
            if rng.random() < 0.3:
                kept.clear()
            if i % 50 == 49:
                gc.collect(0)


@pytest.mark.parametrize("case", CASES)
def test_made_for_each_call(case):
    run(case, "eager", CALLS)


@pytest.mark.cxx
@pytest.mark.parametrize("case", ["named tuple", "bound method", "closure", "packed sequence", "nest"])
def test_made_for_each_call_inductor(case, checks):
    if checks == "python":
        pytest.skip("the guards are the same")
    run(case, "inductor", 60)


# ---- trees of such containers, at random -----------------------------------------------------------------------------


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree of the containers above, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, Slots):
        yield from leaves(tree.x)
    elif isinstance(tree, Record):
        yield from leaves(tree.x)
        yield from leaves(tree.parts)
    elif callable(tree):
        yield tree(2)


def total(tree: Any) -> torch.Tensor:
    out = torch.zeros(4)
    for i, leaf in enumerate(leaves(tree)):
        out = out * 1.5 + leaf * (i + 1)
    return out


def shape_of(rng: random.Random, depth: int) -> tuple:
    """A random nest of containers."""
    kinds = ["leaf", "method", "closure"]
    if depth:
        kinds += ["tuple", "list", "dict", "named", "slots", "record", "own"] * 2
    kind = rng.choice(kinds)
    return kind, tuple(shape_of(rng, depth - 1) for _ in range(rng.randrange(1, 4) if depth else 0))


def made_of(shape: tuple) -> Any:
    """New containers of a shape, with new tensors."""
    kind, below = shape
    x = torch.randn(4)
    if kind == "leaf":
        return x
    if kind == "method":
        return Slots(x, 3).step
    if kind == "closure":
        return lambda y: x + y
    parts = [made_of(b) for b in below]
    match kind:
        case "tuple":
            return tuple(parts)
        case "list":
            return parts
        case "dict":
            return {f"k{i}": p for i, p in enumerate(parts)}
        case "named":
            return Batch(parts[0], x, parts[-1])
        case "slots":
            return Slots(parts, 1)
        case "record":
            return Record(x, 1, parts)
    return OwnTuple(parts) if len(parts) % 2 else OwnDict(enumerate(parts))


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(seed):
    """Three shapes in turn, hundreds of times, with trees of the others alive or dead in between."""
    rng = random.Random(seed)
    shapes = [shape_of(rng, 3) for _ in range(3)]
    f, alive = bytejit.compile(beside_a_model(total), backend="eager"), []
    with torch.no_grad():
        for i in range(CALLS):
            tree = made_of(rng.choice(shapes) if i > 20 else shapes[0])
            assert same(f(tree), beside_a_model(total)(tree)), f"call {i}"
            if rng.random() < 0.4:
                alive.append(tree)
            del tree
            alive += litter(rng)
            while len(alive) > 12:
                alive.pop(rng.randrange(len(alive)))


# ---- objects that die while guards look at them ----------------------------------------------------------------------


class Owner:
    """Its property drops and makes anew what other guards look at."""

    def __init__(self):
        self.fill()
        self.act = False

    def fill(self):
        self.parts = {"a": Slots(torch.ones(4), 2), "b": [torch.ones(4), 3]}

    @property
    def gain(self):
        if self.act:
            self.fill()
            gc.collect(0)
        return 2.0


def use_owner(owner, x):
    a, b = owner.parts["a"], owner.parts["b"]
    return (a.x * a.power + b[0] * b[1]) * owner.gain + owner.parts["a"].x + x


def test_guards_that_run_code_which_drops_what_they_look_at():
    owner, f = Owner(), bytejit.compile(use_owner, backend="eager")
    for i in range(CALLS):
        x, owner.act = torch.randn(4), i > 5 and i % 3 == 0
        assert same(f(owner, x), use_owner(owner, x))


def test_methods_of_models_in_turn():
    """Bound methods of three models of one class, which one entry serves."""
    nets, x = [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3)], torch.randn(4)
    fn = beside_a_model(use_call)
    f = bytejit.compile(fn, backend="eager")
    with torch.no_grad():
        want = [fn(net.forward, x) for net in nets]
        for i in range(CALLS):
            assert same(f(nets[i % 3].forward, x), want[i % 3])


class Held:
    """What weak collections hold."""

    def __init__(self, scale):
        self.scale = scale


def weak_collections():
    """A program that looks into weak collections by an object, and changes of them between calls."""
    owners = [Held(n) for n in range(4)]
    table = weakref.WeakKeyDictionary({o: torch.full((4,), float(o.scale)) for o in owners[:2]})
    members, chosen = weakref.WeakSet(owners[:2]), [owners[0]]

    def f(x):
        o = chosen[0]
        y = x * table[o] if o in table else x - 1
        if o in members:
            y = y + o.scale
        return y, table.get(owners[-1]) is None, len(members)

    def changes():
        yield
        yield chosen.__setitem__(0, owners[1])
        yield chosen.__setitem__(0, owners[2])
        yield table.__setitem__(owners[2], torch.ones(4) * 7)
        yield members.add(owners[2])
        yield members.discard(owners[2])
        yield table.pop(owners[2])
        yield table.__setitem__(chosen[0], torch.ones(4) * 9)
        yield (owners.pop(0), chosen.__setitem__(0, owners[0]))
        yield owners.clear() or owners.append(chosen[0])

    return f, changes


def weak_values():
    """A program that asks a WeakValueDictionary by name and goes through it and a WeakSet, and changes between calls."""
    owners = [Held(n) for n in range(1, 4)]
    table = weakref.WeakValueDictionary({f"o{o.scale}": o for o in owners[:2]})
    members = weakref.WeakSet(owners[:2])

    def f(x):
        y = x * table["o1"].scale if "o1" in table else x - 1
        y = y + sum(o.scale * len(name) for name, o in table.items())
        return y + sum(o.scale for o in members), table.get("o3") is None, len(table), sorted(table)

    def changes():
        yield
        yield table.__setitem__("o3", owners[2])
        yield members.add(owners[2])
        yield table.__setitem__("o1", owners[2])
        yield members.discard(owners[1])
        yield table.pop("o3")
        yield owners.pop(0)
        yield owners.clear()

    return f, changes


@pytest.mark.parametrize("program", [weak_collections, weak_values])
def test_weak_containers(program):
    """Looked into within one graph. What changes in them between calls, or dies, is seen as without compiling"""
    (plain, changed), (fn, changes) = program(), program()
    compiled = bytejit.compile(fn, backend="eager", fullgraph=True, options={"recompile_limit": 20})
    for _ in zip(changed(), changes()):
        gc.collect()
        want, made = plain(torch.ones(4)), compiled(torch.ones(4))
        assert torch.equal(want[0], made[0]) and want[1:] == made[1:]


def test_an_object_taken_from_a_set_may_die():
    held, wanted = {Held(3)}, []
    wanted.append(weakref.ref(next(iter(held))))

    def f(x):
        held.clear()
        return x + (wanted[0]() is None)

    compiled = bytejit.compile(f, backend="eager")
    assert compiled(torch.zeros(1)).item() == 1 and not held


@pytest.mark.parametrize(
    "empty", [list.clear, lambda xs: xs.__setitem__(slice(None), []), lambda xs: xs.__delitem__(slice(None))]
)
def test_a_list_that_was_empty_when_it_was_emptied(empty):
    held, other, wanted = [], Held(1), []
    wanted.append(weakref.ref(other))

    def f(x):
        empty(held)
        return x + (wanted[0]() is None)

    compiled = bytejit.compile(f, backend="eager")
    assert compiled(torch.zeros(1)).item() == 0
    held.append(Held(3))
    wanted[0] = weakref.ref(held[0])
    assert compiled(torch.zeros(1)).item() == 1 and not held


def test_weak_references_as_keys_keep_nothing_alive():
    def f(x, o):
        return x + (o in members)

    members, compiled = weakref.WeakSet(), bytejit.compile(f, backend="eager", fullgraph=True)
    for _ in range(3):
        o = Held(1)
        members.add(o)
        assert compiled(torch.zeros(1), o).item() == 1
        gone = weakref.ref(o)
        del o
        assert gone() is None and not members


def ends(kind: str, log: list) -> Callable:
    """A function that puts another object in the place of one whose end is told."""

    class Told:
        def __init__(self, i: int) -> None:
            self.i = i
            if kind == "finalize":
                weakref.finalize(self, log.append, ("gone", i))

    class Finalized(Told):
        def __del__(self) -> None:
            log.append(("gone", self.i))

    cls = Told if kind == "finalize" else Finalized
    box, table = types.SimpleNamespace(now=cls(-1)), {"now": cls(-2), "list": [cls(-3)]}

    def step(x: torch.Tensor, i: int) -> tuple:
        if kind == "item":
            table["now"] = cls(i)
        elif kind == "in a list":
            table["list"] = [cls(i)]
        elif kind == "deleted":
            table.pop("spare", None)
            table["spare"] = 1
            if "now" in table:
                del table["now"]
        else:
            box.now = cls(i)
        log.append(("step", i))
        return x + i, len(log)

    return step


@pytest.mark.parametrize("kind", ["attribute", "finalize", "item", "in a list", "deleted"])
def test_what_is_replaced_ends_at_its_place(kind: str) -> None:
    """Its finalizer runs before what follows, and what it writes is not lost"""
    seen = []
    for compiled in (False, True):
        log: list = []
        step = ends(kind, log)
        f = bytejit.compile(step, backend="eager") if compiled else step
        counts = [f(torch.ones(1), i)[1] for i in range(4)]
        seen.append((counts, list(log)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["__del__", "finalize", "a weak reference"])
def test_under_nopython_it_ends_with_the_region(kind: str) -> None:
    """Where that makes no difference to what the region does"""
    told: list = []

    class Held:
        def __init__(self, i: int) -> None:
            self.i = i

        def note(self) -> None:
            told.append(self.i)

    class Finalized(Held):
        def __del__(self) -> None:
            self.note()

    objects = [(Finalized if kind == "__del__" else Held)(i) for i in range(4)]
    if kind == "finalize":
        for held in objects:
            weakref.finalize(held, told.append, held.i)
    refs = [weakref.ref(held) for held in objects] if kind == "a weak reference" else []
    box = types.SimpleNamespace(now=objects[0], steps=0)

    @bytejit.compile(backend="eager", fullgraph=True)
    def step(x: torch.Tensor, held: object) -> torch.Tensor:
        box.now = held
        box.steps += 1
        return x + box.steps

    for i in range(1, 4):
        objects[i - 1] = None
        assert step(torch.zeros(1), objects[i]).item() == i and box.now is objects[i]
        assert told == ([] if refs else list(range(i)))
        assert [r() is None for r in refs] == ([True] * i + [False] * (4 - i) if refs else [])


@pytest.mark.parametrize("read", [True, False])
def test_under_nopython_what_a_finalizer_touches_is_refused(read: bool) -> None:
    """The region reads or writes afterwards what it writes"""
    told: list = []

    class Held:
        def __del__(self) -> None:
            told.append("gone")

    box = types.SimpleNamespace(now=Held())

    @bytejit.compile(backend="eager", fullgraph=True)
    def step(x: torch.Tensor, held: object) -> torch.Tensor:
        box.now = held
        if not read:
            told.append("step")
        return x + (len(told) if read else 1)

    with pytest.raises(Unsupported, match="finalizer"):
        step(torch.zeros(1), Held())
