"""Corners where a value is not what its kind usually is: keys, counts of arguments, classes and iterators out of the way."""

import collections
import decimal
import types

import torch

import bytejit

from .harness import F, Spec, case, program


@case(F(3), graphs=1)
def test_tuples_as_constant_keys(x):
    """A dict written out with tuples as keys; equal keys and elements: the first key stays, with the last value"""
    table = {(0, 1): 2, ("a", (1.0, None)): 3}
    one, two = 1, True
    same = {one: "int", two: "bool"}
    return x * table[0, 1] + table["a", (1.0, None)], table, same, {one, two}, {two} | {one}, set([two, one])


@case(F(3))
def test_decimal_arithmetic(x):
    """pow, round and abs of decimal numbers"""
    d = decimal.Decimal("2.50")
    return x + float(pow(d, 2)), pow(d, 2, None), round(d, 1), abs(-d), pow(2, 5, mod=7)


@case(F(3), Spec(lambda r: 3**9000), graphs=1)
def test_very_long_ints(x, n):
    """An int of more digits than Python writes out"""
    made = 7**9000
    return x + (n > made), n, made, -made


@case(F(3))
def test_wrong_keywords_of_builtins(x):
    """Builtins called with keywords that they do not take, and with too few arguments without a name"""
    said = []
    for call in (
        lambda: {}.__contains__(x=2),
        lambda: [].index(x=2),
        lambda: next(x=2),
        lambda: len(obj=[]),
        lambda: "a".join(iterable=[]),
        lambda: isinstance(1, classinfo=int),
        lambda: sorted(iterable=[2, 1]),
    ):
        try:
            said.append(call())
        except TypeError as e:
            said.append(str(e))
    return x + 1, said


@case(F(3))
def test_slice_indices_refused(x):
    """slice.indices of a negative length"""
    try:
        return x[slice(*slice(None, 2).indices(-1))]
    except ValueError as e:
        return x + 1, str(e), slice(1, None, 2).indices(5)


class Shrinking:
    """Makes a list shorter when it is compared."""

    def __init__(self, of):
        self.of = of

    def __eq__(self, other):
        self.of.clear()
        return False

    __hash__ = None


@case(F(3))
def test_list_emptied_by_a_comparison(x):
    """list.index whose comparison empties the list"""
    items = [1]
    items += [Shrinking(items), 2, 3]
    try:
        return items.index("z")
    except ValueError:
        return x + len(items)


@program(F(3))
def test_iterators_over_what_became_shorter():
    """Iterators from outside over a dict that grew, and reversed over a list that got shorter"""
    table, items = {1: 2, 3: 4}, [1, 2, 3]

    def f(x):
        try:
            return x, next(grown)
        except RuntimeError as e:
            return x + 1, str(e), next(back, "ended")

    grown, back = iter(table), reversed(items)
    table[5] = 6
    items.pop()
    return f, lambda: (table, items)


class OwnItems(dict):
    """A dict that says other things of itself than it holds."""

    def items(self):
        return ["items"]

    def __contains__(self, key):
        return key in ("a", "b")

    def __getitem__(self, key):
        return f"{key}!"


@program(F(3), breaks=True)
def test_proxy_of_a_dict_with_methods_of_its_own():
    """A mapping proxy over a dict whose class replaces its methods"""
    proxy = types.MappingProxyType(OwnItems(c=1))

    def f(x):
        return x + 1, proxy["b"], "a" in proxy, "c" in proxy, proxy.items(), len(proxy)

    return f, None


class Unhashable(type):
    """Its classes cannot be hashed."""

    def __eq__(cls, other):
        return cls is other


class LostModule(type):
    """Its classes do not say where they are from."""

    @property
    def __module__(cls):
        raise ZeroDivisionError


class Lost(metaclass=LostModule):
    n = 2


@case(F(3), breaks=True)
def test_metaclass_without_a_hash(x):
    """A class made inside by a metaclass whose classes have no hash"""
    made = Unhashable("Made", (), {"n": 2})
    return x + made.n, made == made, isinstance(made(), made)


@case(F(3))
def test_class_without_a_module(x):
    """A class whose metaclass raises where it is asked for its module; one whose module is no name"""

    class Odd(Exception):
        __module__ = 3

    return x + Lost.n, Lost().n, isinstance(Odd("a"), Odd), str(Odd("a"))


@case(F(3))
def test_attributes_of_types_deleted(x):
    """object.__delattr__ and object.__setattr__ called with a class"""
    said = []
    for call in (lambda: object.__delattr__(str, "lower"), lambda: object.__setattr__(str, "lower", 1)):
        try:
            call()
        except TypeError:
            said.append("refused")
    return x + 1, said


@program(F(3))
def test_field_of_an_error_that_is_not_set():
    """A field of a built-in exception from outside that no argument has set"""
    error = BlockingIOError("a", "b")

    def f(x):
        try:
            return x, error.characters_written
        except AttributeError:
            return x + 1, error.args

    return f, None


class Plain:
    """A class with a namespace."""


@program(F(3), breaks=True)
def test_namespace_read_by_another_classs_descriptor():
    """An instance whose class reads `__dict__` by another class's descriptor"""

    class Other:
        __dict__ = Plain.__dict__["__dict__"]

    it = Other()
    it.n = 2

    def f(x):
        return x + it.n

    return f, None


@case(
    F(3),
    Spec(lambda r: [1.0, 2.0].pop),
    Spec(lambda r: {"a": 3}.get),
    Spec(lambda r: (2.5).__add__),
    Spec(lambda r: ",".join),
    Spec(lambda r: (torch.arange(4.0) + r.call).sum),
    graphs=1,
    total=1,
    calls=4,
)
def test_bound_methods_of_c_given(x, pop, get, add, join, total):
    """Methods written in C bound to an object, made anew for each call"""
    return x * pop() + get("a") + get("b", 4) + add(1), join(["x", "y"]), total(), pop.__self__, pop


@program(F(3), total=2, calls=4)
def test_bound_method_of_c_over_a_break():
    """A bound `append` and `get` kept over a break"""
    table = {"a": 1, "b": 2}

    def f(x):
        seen = []
        add, get = seen.append, table.get
        y = x + 1
        bytejit.graph_break()
        add(get("b"))
        return y * get("a"), seen

    return f, None


@case(F(3))
def test_byte_arrays_are_new_each_time(x):
    """bytearray(...) gives a new object in each call and in each turn of a loop"""
    made = []
    for _ in range(2):
        b = bytearray(b"ab")
        b.append(1)
        made.append(b)
    return x + 1, made


@case(F(3))
def test_slices_as_keys(x):
    """A slice as a key: Python 3.11 refuses to hash it"""
    said = []
    for ask in (lambda: slice(0, 2) in {}, lambda: {}.get(slice(1)), lambda: {slice(2): 1}[slice(2)], lambda: {slice(0)}):
        try:
            said.append(ask())
        except (TypeError, KeyError) as e:
            said.append((type(e), str(e)))
    return x + 1, said


class Odd:
    def __index__(self):
        return 1


@case(F(3))
def test_wrong_counts_of_builtins(x):
    """Methods of builtins with too many arguments, or of the wrong types, and what they leave behind"""
    said, items, table = [], [3, 1, 2], types.MappingProxyType({"a": 1})
    for call in (
        lambda: items.sort(1),
        lambda: items.index(2, "a"),
        lambda: (1, 2).index(2, 0.5),
        lambda: items.index(1, Odd()),
        lambda: slice(1).indices(2, 3),
        lambda: table.get(),
        lambda: table.keys(1),
        lambda: {}.copy(1),
        lambda: {}.update({}, {}),
        lambda: map(3),
        lambda: filter(3),
        lambda: str(b"a", Odd()),
        lambda: collections.deque([], "a"),
        lambda: collections.Counter().update({}, {}),
        lambda: items.__init__(5),
    ):
        try:
            said.append(call())
        except TypeError as e:
            said.append(str(e))
    return x + 1, said, items, type(collections.Counter("a").elements())


@program(F(2), calls=2)
def test_pop_of_an_empty_dict():
    """Its key is not hashed, so that no hash is missed"""
    outside, filled = {}, {1: 2}

    def f(x):
        found = [{}.pop([], 5), outside.pop([1], 6)]
        for d in ({}, outside, filled, {1: x}):
            for key in ([], {}, 7):
                try:
                    found.append(d.pop(key))
                except (KeyError, TypeError) as e:
                    found.append((type(e).__name__, str(e), e.args))
        return x + 1, found

    return f
