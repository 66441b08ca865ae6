# ruff: noqa: F401 - the calls that use them are texts
"""Calls that Python refuses: what is raised, in the words of the Python that runs, which differ between versions."""

from __future__ import annotations

import collections
import functools
import operator
import types
from typing import Any

import pytest
import torch

import bytejit


class Plain:
    """Without methods."""


class Slots:
    """Without a dict; not iterable in spite of its method."""

    __slots__ = ("s",)

    @property
    def p(self):
        return 1

    def __iter__(self):
        return 3


class Wrong:
    """Special methods that return what they must not."""

    def __bool__(self):
        return 3

    def __len__(self):
        return "a"


class Returns:
    def __init__(self):
        return 1


def given(a, b, *, c):
    pass


def gen():
    yield 1


def two(v):
    a, b = v


def three(v):
    a, b, *c = v


def grown():
    d = {1: 2}
    for k in d:
        d[k + 1] = 1


def added(a, b):
    a += b


def raised_to(a, b):
    a **= b


def another_class():
    Plain().__class__ = 3


def stubborn():
    def f():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    g = f()
    next(g)
    g.close()


def kept():
    class A:
        def __init_subclass__(cls):
            pass

    class B(A, k=1):
        pass


class Enters:
    def __enter__(self):
        return 1


class Exits:
    def __exit__(self, *about):
        return False


class Matched:
    __match_args__ = ("a", "b")


class Unmatched:
    __match_args__ = 3


def entered(v):
    with v:
        pass


def matched(v):
    match v:
        case int(1, 2):
            pass
        case Plain(1):
            pass
        case Matched(1, 2, 3):
            pass
        case Unmatched(1):
            pass


def unbound(inner):
    def f():
        return later

    if inner:
        f()
    later  # noqa: B018, F821 - read before it is set
    later = 1


def unknown():
    return no_such_name  # noqa: F821 - that is asked


def forgotten():
    global no_such_global
    del no_such_global


number, pair = 3, collections.namedtuple("pair", "a b")
CALLS = {
    "statements": """entered(3); entered(Plain()); entered(Enters()); entered(Exits()); matched(1); matched(Plain())
        matched(Matched()); matched(Unmatched()); unbound(True); unbound(False); unknown(); forgotten()""",
    "iteration": """iter(1, 2); iter(1); iter(Slots()); next(1); reversed(1); reversed({1}); zip(1); map(); map(1)
        enumerate(); enumerate([], 'a'); filter(1); two(3); two([1]); two([1, 2, 3]); two((1, 2, 3))
        two({1: 1, 2: 2, 3: 3}); two({1, 2, 3}); two(iter([1, 2, 3])); two('abc'); two(i for i in range(5)); three([1])
        grown(); list(zip([1], [1, 2], strict=True)); list(zip([1, 2], [1], strict=True))
        list(zip([1, 2], [1, 2], [1], strict=True)); sum(['a']); sum(['a'], ''); sum([], b'')
        list(map(lambda a, b: a, [1], [], strict=True)); functools.reduce(max, []); functools.reduce(max, 1); max([])
        min(); max(1); max(1, 2, default=3); sorted([1, 'a']); sorted([1], max); [1, 'a'].sort(); range('a')
        range(1, 2, 0); range(); range(1.0); any(1); list(1); set(1); tuple(1); dict(1); collections.deque(1); stubborn()
        gen().send(1); gen().throw(3)""",
    "keys": """hash([]); {[]: 1}; {[]}; {}[[]]; [] in {}; [] in set(); set().add([]); {}.get({}); {}.setdefault([])
        {([],): 1}; {}.__setitem__([], 1); {}.__delitem__([]); frozenset([[]]); set().discard([]); set().remove([])
        dict.fromkeys([[]]); dict([([], 1)]); {}[1]; {}.pop(1); {1: 2}.pop([]); {}.popitem()
        collections.OrderedDict().popitem(); set().pop(); collections.OrderedDict().move_to_end(1); {}.update([1])
        {}.update([(1, 2, 3)]); {}.update(1); {} | 1; {1} | [1]; collections.defaultdict(1); collections.Counter(1)
        collections.ChainMap({})[1]; dict(1, 2)""",
    "items": """[1]['a']; (1,)['a']; [1][None]; [1][Plain()]; (1,)[1.0]; 'a'['b']; 'a'[3]; range(3)[7]; range(3)['a']
        [1][3]; (1,)[3]; pair(1, 2)['a']; [1]['a':]; [1][::0]; [1][Plain():]; collections.deque([1])[3]
        collections.deque([1])[1:]; collections.deque()['a']; number[0]; given[0]; Plain[0]; Plain()[0]
        operator.setitem([], 0, 1); operator.setitem([], 'a', 1); operator.setitem((1,), 0, 1); operator.setitem(3, 0, 1)
        operator.setitem({1}, 0, 1); operator.setitem(collections.deque([1]), 'a', 1)
        operator.setitem([1, 2], slice(None, None, 2), [1]); operator.setitem([1, 2], slice(None), 1)
        operator.setitem([1, 2], slice(None, None, 2), 1); operator.setitem(types.MappingProxyType({}), 1, 1)
        operator.delitem(3, 0); operator.delitem((1,), 0); operator.delitem((1,), 'a'); operator.delitem({1}, 0)
        operator.delitem('a', 0); operator.delitem([], 0); operator.delitem([], 'a')
        operator.delitem(collections.deque(), 'a'); 1 in 3; 1 in Plain(); len(3); len(Plain()); len(Wrong())
        operator.itemgetter(1)([])""",
    "sequences": """collections.deque([], -1); collections.deque([], 'a'); [].extend(1); [].pop(); [1].pop(3); [1].pop('a')
        collections.deque().pop(); collections.deque().popleft(); [].remove(1); collections.deque().remove(1); [1].index(2)
        (1,).index(2); collections.deque([1]).index(2); [1].index(1, 'a'); [].insert('a', 1); [].append(); list(a=1)
        tuple(a=1); collections.deque([1], 1).insert(0, 1); collections.deque().rotate('a')""",
    "attributes": """setattr(Slots(), 'p', 1); delattr(Slots(), 'p'); Slots().s; delattr(Slots(), 's')
        setattr(Slots(), '__iter__', 1); delattr(Slots(), 't'); setattr(Slots(), 't', 1); Plain().x; Plain.x
        delattr(Plain(), 'x'); super(Plain, Plain()).x; given.x; types.x; getattr(1, 2); hasattr(1, 2)
        setattr(Plain(), 1, 2); delattr(Plain(), 1); getattr(1); another_class(); operator.attrgetter('a.b')(1)
        pair(1, 2).c""",
    "calls": """number(); Plain()(); Plain(1); Plain(a=1); object(1); Returns(); given(); given(1); given(1, 2, 3)
        given(*3); given(1, 2, c=1, d=2); given(1, 2, a=1, c=1); given(**3); given(**{'a': 1}, **{'a': 2}); given(**{1: 2})
        type(); type(1, 2); kept(); callable(); ValueError(a=1); ValueError().add_note(1); types.SimpleNamespace(1)
        types.SimpleNamespace({'a': 1}).a; types.SimpleNamespace(1, 2); functools.partial(); functools.partial(1); pair(1)
        pair(1, 2)._replace(c=1); issubclass(1, int); issubclass(int, 1); isinstance(1, 1); isinstance(1, (int, 1))
        isinstance(1.0, (int, 1))""",
    "numbers": """bool(Wrong()); -'a'; ~1.0; 1 + 'a'; 'a' + 1; [1] + (1,); (1,) + [1]; 'a' * 1.0; 1 < 'a'; 1 % 0; 1 / 0
        1 // 0; 1.0 % 0; 1.0 // 0; 1.0 / 0; divmod(1, 0); divmod(1.0, 0); 0 ** -1; 0.0 ** -1; pow(2, -1, 4); pow(2, 1, 0)
        1 << -1; 1 @ 2; operator.iadd(1, 'a'); operator.ipow('a', 1); added(1, 'a'); added([1], 2); added((1,), [2])
        raised_to('a', 1); 1j / 0; int('a'); int(None); int([]); float('a'); float([]); int(float('inf'))
        int(float('nan')); complex('a'); abs('a'); round('a'); round(1, 'a'); hash(slice(1))""",
    "text": """str(1, 2); chr(-1); ord('ab'); bytes([300]); ''.join([1]); '{}'.format(); '{a}'.format(); '%d' % 'a'
        '%d' % (1, 2); '%s %s' % 1; format(1, 's'); format('a', 'd'); format(Plain(), 'd'); 'a'.split(''); 'a'.find(1)
        'a'.index('b'); 'a'.replace(1, 2); 'a'.encode('zz'); 'a'.startswith(1)""",
}


def outcome(call: Any, x: torch.Tensor) -> tuple:
    """What a call raises, or the kind of what it returns."""
    try:
        made = call()
    except Exception as e:
        more = repr(e.__cause__), repr(e.__context__), getattr(e, "name", None)
        return x + 1, type(e), str(e), repr(e.args), more
    return x + 1, type(made)


@pytest.mark.parametrize("family", CALLS)
def test_what_is_refused_is_refused_in_pythons_words(family: str) -> None:
    x = torch.ones(2)
    for text in (c for line in CALLS[family].splitlines() for c in line.strip().split("; ")):
        call = eval(f"lambda: {text}", globals())
        bytejit.reset()
        got = bytejit.compile(lambda x, call=call: outcome(call, x), backend="eager")(x)
        assert got[1:] == outcome(call, x)[1:] and not bytejit.counters.total("faults"), text
