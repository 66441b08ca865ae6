"""copy.deepcopy: what is one object stays one in the copy, also through `__deepcopy__` and a memo of the program's"""

import copy

import torch
from torch import nn

from .harness import F, Spec, case, program


class Node:
    """A tree whose nodes copy themselves."""

    def __init__(self, t, parent=None):
        self.t, self.parent, self.kids = t, parent, []

    def add(self, t):
        self.kids.append(Node(t, self))
        return self

    def __deepcopy__(self, memo):
        new = object.__new__(type(self))
        memo[id(self)] = new
        for k, v in self.__dict__.items():
            setattr(new, k, copy.deepcopy(v, memo))
        return new


@case(F(2), graphs=1)
def test_parents(x):
    """Children that refer to their parent"""
    root = Node(x).add(x * 2).add(x + 1)
    twin = copy.deepcopy(root)
    return [k.parent is twin for k in twin.kids], [k.parent is root for k in root.kids], twin, root


@case(F(2), graphs=1)
def test_two_copies(x):
    """Two copies share nothing"""
    root = Node(x)
    a, b = copy.deepcopy(root), copy.deepcopy(root)
    a.t.add_(1)
    return a, b, a is b, a.t is b.t


@case(F(2), graphs=1)
def test_memo_of_the_program(x):
    """A memo that the program gives, twice, and reads"""
    m = {}
    a = [x, (1, 2)]
    b = copy.deepcopy(a, m)
    return m[id(a)] is b, copy.deepcopy(a, memo=m) is b, m[id(x)] is b[0], copy.deepcopy(a, None) is b, id(a[1]) in m, b


@case(F(2), graphs=1)
def test_memo_filled_before(x):
    """What the program has put into the memo is the copy"""
    y = x + 1
    m = {id(x): y}
    return copy.deepcopy([x, {"x": x}], m)


@program(F(2))
def test_of_outside():
    """Trees that were there before, in two copies, changed between calls"""
    root = Node(torch.ones(1)).add(torch.zeros(1))

    def f(x):
        a, b = copy.deepcopy(root), copy.deepcopy([root, root])
        root.t = root.t + x.sum()
        return a.kids[0].parent is a, b[0] is b[1], a is b[0], b[0].kids[0].parent is b[0], a.t, x + 1

    return f, lambda: root.t


@case(F(2), graphs=1)
def test_cycles(x):
    """An object that is its own parent, a list that holds itself"""
    n, ring = Node(x), [1]
    n.parent = n
    ring.append(ring)
    m, k = copy.deepcopy(n), copy.deepcopy(ring)
    return m.parent is m, k[1] is k, ring[1] is ring, x + 1


@case(F(2), graphs=1)
def test_tuples(x):
    """A tuple of what is not copied stays the same object, and is not in the memo"""
    t, v, m = ((1,), [2]), ((1,), 2), {}
    u, w = copy.deepcopy(t, m), copy.deepcopy(v, m)
    return u is t, u[0] is t[0], w is v, id(v) in m, id(t) in m, x + 1


class Refuses:
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise ValueError("no")


@case(F(2), graphs=1)
def test_a_copy_that_fails(x):
    """An exception in `__deepcopy__`, and the same object again"""
    e, m, said = Refuses(), {}, []
    for _ in range(2):
        try:
            copy.deepcopy(e, m)
        except ValueError as error:
            said.append(str(error))
    return said, len(m), x + 1


class Scaled(nn.Parameter):
    pass


def described(x):
    return type(x).__name__, x.stride(), x.storage_offset(), x.untyped_storage().nbytes(), getattr(x, "tag", None), x.grad is None


@program(Spec(lambda r: r.call), calls=9)
def test_tensors_that_a_clone_does_not_copy():
    """A deep copy of a tensor has its class, memory, attributes and gradient; tensors that share memory share its copy"""
    base, tagged, graded = torch.arange(8.0), torch.ones(4), torch.ones(4)
    tagged.tag, graded.grad = [1], torch.ones(4)
    given = [
        torch.ones(4),
        base[:4],
        base[2:6],
        base[::2],
        tagged,
        graded,
        base[:1].expand(4),
        Scaled(torch.ones(4)),
        nn.Buffer(torch.ones(4)),
    ]

    def f(i):
        x = given[i]
        y = x + 1
        one, two, views = copy.deepcopy(x), copy.deepcopy([x, x, y]), copy.deepcopy([base, base[1:], y, y[1:]])
        views[0][1], views[2][1] = 100, 200
        two[0].data.add_(1)
        return one, described(one), two[0] is two[1], two, described(two[0]), views, described(views[1]), base

    return f
