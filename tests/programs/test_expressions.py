# ruff: noqa - the programs are as users write them
"""Calls of builtins and of the standard library in one expression: arguments by place, by name, too many, of other types.

Each is a program of its own: its value, or its exception and the text of that, is what eager has, also where a number changes.
"""

import bisect
import collections
import functools
import heapq
import itertools
import json
import math
import operator
import re
import textwrap
import types
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

import pytest

from .harness import F, Turn, check


class O:
    def __round__(self, *digits):
        return "round", digits

    def __init_subclass__(cls, **named):
        cls.named = named


EXPRESSIONS = r"""
round(2.567, ndigits=1)
round(number=2.567)
round(2.5, None)
round(O(), ndigits=n)
round(O(), None)
round(O(), n)
int("ff", base=16)
sum([1, 2], start=n)
sum([x, x], start=n)
list(enumerate("ab", start=n))
list(enumerate(iterable="ab"))
pow(2, exp=n)
pow(base=2, exp=n, mod=5)
pow(x, exp=n)
str(b"ab", encoding="ascii")
str(object="q")
bytes("ab", encoding="ascii")
"a b c".split(sep=" ", maxsplit=1)
"a b c".rsplit(maxsplit=1)
"a".encode(encoding="utf-8", errors="strict")
n.to_bytes(length=2, byteorder="big", signed=False)
int.from_bytes(bytes=b"ab", byteorder="little")
"a\nb".splitlines(keepends=True)
"a\tb".expandtabs(tabsize=4)
complex(real=n, imag=2)
complex(imag=2)
math.isclose(1, 1.1, rel_tol=0.2)
math.prod([n, 2], start=3)
list(itertools.accumulate([1, n], initial=3))
list(itertools.accumulate([1, n], func=max))
list(itertools.product([0, 1], repeat=2))
list(itertools.repeat(object=n, times=2))
list(itertools.repeat(n, times=2))
list(itertools.zip_longest([1], [1, n], fillvalue=0))
list(itertools.permutations(iterable=[1, n], r=1))
list(itertools.combinations([1, n], r=2))
list(itertools.islice(itertools.count(start=n, step=2), 2))
list(itertools.count(n, step=2).__next__() for _ in range(2))
[(k, list(g)) for k, g in itertools.groupby([1, 3, 2], key=lambda v: v % 2)]
list(itertools.compress(data=[1, n], selectors=[0, 1]))
heapq.nlargest(2, [1, n, 2], key=lambda v: -v)
heapq.nsmallest(n=1, iterable=[3, 1])
list(heapq.merge([1, 3], [2], key=None, reverse=False))
bisect.bisect([1, 3, 5], n, lo=1, hi=2)
bisect.bisect_left(a=[1, 3], x=n)
bisect.bisect([-1, 3], n, key=lambda v: v)
sorted([1, n, 2], key=lambda v: -v, reverse=True)
max([1, n], key=lambda v: -v)
max([], default=n)
min(1, n, key=lambda v: -v)
deque([1, n, 2], maxlen=2)
deque(iterable=[1], maxlen=n)
deque(maxlen=n)
dict([("a", 1)], b=n)
dict(a=1, **{"b": n})
dict.fromkeys([1, 2], n)
{}.setdefault("a", n)
{"a": 1}.pop("b", n)
OrderedDict(a=n).popitem(last=False)
OrderedDict(a=n, b=1).move_to_end(key="a", last=True)
defaultdict(list, a=n)
Counter("aab", z=n)
Counter(a=n).most_common(n=1)
collections.namedtuple("Q", "a b", defaults=[n])(1)
types.SimpleNamespace(a=n)
functools.partial(lambda *a, **k: (a, k), 1, b=n)(2, c=3)
functools.reduce(lambda a, b: a + b, [1, n], 10)
operator.itemgetter(1, 0)([n, 2])
operator.methodcaller("split", sep=",")("a,b")
operator.length_hint(obj=[1])
isinstance(n, (int, str))
getattr(O(), "zz", n)
iter([n]).__next__()
next(iter([]), n)
slice(1, n, None)
range(0, n, 2)
list(zip([1], [n], strict=True))
list(map(lambda a, b: a + b, [1], [n]))
list(filter(function=None, iterable=[1]))
type("T", (), {"a": n})().a
type("T", (O,), dict(b=n), tag=n).__name__
property(fget=lambda s: n, doc="d").__doc__
re.sub("a", "b", "aaa", count=n)
re.split(",", "a,b,c", maxsplit=1)
re.compile("A", flags=re.I).match("a") is not None
re.findall(pattern="a", string="aa")
"{a}-{b}".format(a=n, b=2)
"{0}{a}".format(1, a=n)
format(n, "04d")
format(value=n)
"x".center(5, "-")
"a-b".replace("-", "+", n)
"a-b".replace("-", "+", count=1)
b"a,b".split(sep=b",")
json.dumps({"a": n}, sort_keys=True, separators=(",", ":"))
textwrap.indent("a", prefix="> ")
textwrap.wrap("aa bb cc", width=5)
math.log(8, 2)
math.dist([0, 0], [n, 4])
math.gcd(n, 12, 6)
math.fsum([0.1] * n)
math.hypot(n, 4, 2)
math.perm(n)
math.ldexp(1.0, i=2)
divmod(n, 2)
hash((1, n))
bool(n)
bool(x=n)
float("1.5")
float(x="1")
int(x="1")
list(iterable=[1])
tuple(sequence=[1])
set(iterable=[1])
reversed(sequence=[1])
len(obj=[1])
abs(x=1)
callable(obj=1)
chr(i=65)
ord("a", "b")
hex(number=1)
any(iterable=[1])
all([1], [2])
isinstance(1)
issubclass(int)
repr()
id()
hash()
vars(5)
dir(5)[:1]
super(5)
next([])
iter()
zip(strict=True)
enumerate([1], n, 3)
map(None)
filter([1])
sum(5)
sum([[1]], [])
max()
max(1, 2, default=3)
sorted()
sorted([1], key=5)
[3, 1].sort(reverse=1)
[1, 2].index(2, 0, n)
[1].insert(5, n)
[1].extend(n)
[1].pop(5)
[1].remove(5)
(1, n).count(n)
(1,).index(5)
{1}.union([n], (4,))
{1, 2}.issubset([1, 2, n])
{1}.isdisjoint([n])
{1}.add()
{1}.update()
{1}.pop()
{}.update(5)
{}.update([(1,)])
{}.get()
{"a": 1}.items() == {("a", 1)}
"abc".find("c", 1, n)
"abc".count("a", 0, 1)
"abc".startswith(("x", "a"), 0)
"abc".index("q")
",".join([1])
",".join(5)
"a".join("bcd")
"%s %d" % ("a",)
"%d" % "a"
"%(a)s" % {"b": 1}
"{}".format()
"{x}".format(y=1)
"a" * -n
[1] * 0
(1,) * n
[1] + (2,)
"a" + n
n + "a"
{} | {n: 1}
{} + {}
[] < [1]
[1] < ["a"]
{} < {}
None < 1
1j < 2j
-None
~1.5
n @ n
n[0]
[1]["a"]
{}[[]]
(lambda a, /, b, *, c: 0)(1, 2)
(lambda a, /, b, *, c: 0)(a=1, b=2, c=3)
(lambda *a, k=1: k)(1, z=2)
(lambda a: a)()
(lambda a: a)(1, 2)
(lambda a, b=1: a)(b=2)
O().nope
O()()
O()[0]
len(O())
list(O())
O() + 1
O() < O()
int(O())
float("abc")
int("abc")
int("12", 99)
int(1.5, 2)
int([])
complex("1+")
sorted({"b": 1, "a": n}.items(), key=lambda kv: kv[1])
Counter("abca") + Counter(a=n)
Counter("abca") - Counter(a=n)
Counter([1, n, 1]).most_common()
-Counter(a=n, b=-1)
Counter("aab")["z"]
Counter("ab") <= Counter("aab")
Counter("ab").total()
Counter("ab").subtract("a")
list(Counter(a=n).elements())
Counter(a=1) | {"b": 2}
OrderedDict(a=1, b=n) == OrderedDict(b=n, a=1)
OrderedDict(a=1, b=n) == dict(b=n, a=1)
OrderedDict(a=1) | {"b": n}
list(reversed(OrderedDict(a=1, b=n).values()))
OrderedDict([("a", 1)]).pop("z", n)
OrderedDict([("a", 1)]).pop("z")
deque([1, n, 2]).rotate(1)
deque([1, n]) + deque([2])
deque([1, n]) * 2
deque([1, n]) < deque([1, 9])
deque([1, n])[5]
deque([1, n], 1).appendleft(5)
deque([1, n]).index(n, 1)
deque([1, n, 1]).remove(7)
deque([1, n])[0:1]
ChainMap({"a": 1}, {"a": n, "b": 2})["b"]
len(ChainMap({"a": 1}, {"b": n}))
ChainMap({"a": 1}).new_child({"a": n}).maps
dict(ChainMap({"a": 1}, {"b": n}))
ChainMap({})["q"]
{"a": 1}.keys() | {"b"}
{"a": 1}.keys() & "ab"
{"a": n}.items() - {("a", 1)}
{"a": n}.items() == {"a": n}.items()
{"a": n}.values() == {"a": n}.values()
{"a": 1}.keys() < {"a", "b"}
"a" in {"a": n}.keys()
("a", n) in {"a": n}.items()
n in {"a": n}.values()
list({"a": 1, "b": n}.items())[-1]
dict({"a": n}.items())
next(iter({"a": n}.items()))
f"{n:>5}|{n:<5}|{n:^5}|{n:05}|{n:+}|{n: }|{n:,}|{n:_}|{n:b}|{n:o}|{n:x}|{n:X}|{n:#b}|{n:e}|{n:.2f}|{n:g}|{n:%}|{n:c}|{n:n}"
"%5d|%-5d|%05d|%+d|%x|%#x|%o|%e|%.2f|%g|%c|%s|%r|%%" % ((n,) * 13)
n / 0
n // 0
n % 0
isinstance(n, (int, str)), isinstance(True, int), issubclass(bool, int), isinstance(x, object), isinstance(None, type(None))
isinstance(n, [int])
heapq.heappushpop([1, 2], n), heapq.nsmallest(2, [3, 1, n])
heapq.heappop([])
"ab" & {"a": n}.keys()
[1, "a"] - {"a": n}.keys()
{"a": n}.keys() - ["a"]
{"a": n}.keys() ^ ("b",)
{"a": n}.keys() | iter(["b"])
{"a": n}.items() & [("a", n)]
{"a": n}.values() & {1}
{"a": n}.values() | [1]
{"a": n}.keys() & frozenset("ab")
{"a": n}.keys() & {"a": 1}
{"a": n}.keys() & 5
5 - {"a": n}.keys()
{"a": n}.keys() & x.shape
{"a": n}.values() < {"a": n}.values()
{"a": n}.values() == {1}
{1: 2}.keys() == {1}
{1: 2}.keys() == [1]
{1: 2}.keys() < [1]
heapq.heapreplace([], n)
heapq.heappushpop([], n)
isinstance(n, (int, [str]))
isinstance(n, (str, [int]))
isinstance(n, ((str,), (int,)))
issubclass(int, [int])
isinstance(n, {int})
isinstance(n, "int")
n % 0.0
n / 0.0
n // 0.0
divmod(n, 0)
pow(n, -1, 0)
(-n) ** 0.5
0 ** -n
round(x)
round(x, 2)
",".join(O())
",".join(iter(["a", str(n)]))
vars(O())
vars(x.shape)
n @ 1.5
n << 1.5
n & 1.5
str(b"ab", "ascii")
str(b"a\xff", errors="replace", encoding="ascii")
"""


@pytest.mark.parametrize("expression", EXPRESSIONS.strip().splitlines())
def test_expression(expression):
    code = f"""def f(x, n):
    try:
        found = {expression}
    except Exception as e:
        found = type(e).__name__, str(e)
    return x * n, found"""
    space = dict(globals())
    exec(code, space)
    check(space["f"], F(4), Turn(3, 1, 2))
