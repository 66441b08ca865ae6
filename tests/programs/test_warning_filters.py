# ruff: noqa - the programs are as users write them
"""Blocks of warnings.catch_warnings and filters in a compiled function: the warnings that come out, and the filters after it"""

import functools
import warnings

import pytest
import sympy  # sets a filter when it is imported
import torch
import torch.nn.functional as FN

import bytejit
from bytejit.common import given_warnings

from .harness import F, Turn, case, program
from .heard import heard


def tell(given):
    """Print what was warned of, and the filters behind it"""
    for w in given:
        print(w.category.__name__, w.message, w.lineno)
    print([(f[0], getattr(f[1], "pattern", f[1]), f[2].__name__, *f[4:]) for f in warnings.filters])


shown = functools.partial(heard, tell)


def quiet(fn):
    @functools.wraps(fn)
    def inner(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fn(*args)

    return inner


@quiet
def old(x):
    warnings.warn("old", DeprecationWarning)
    return x * 2


def blocks(x, n):
    y = x + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        y = y * 2
        warnings.warn("not said", DeprecationWarning)
        warnings.warn(f"said {n}", UserWarning)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*inner.*", category=UserWarning)
            warnings.warn("an inner one")
            warnings.warn("another")
        warnings.warn("an inner one")
    warnings.warn("said after", DeprecationWarning)
    for i in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("once")
            warnings.warn("once")
        warnings.warn("each")
    return old(y) + 1


test_blocks = case(F(4), 3, calls=3, graphs=1, drive=shown)(blocks)
test_blocks.__doc__ = "Nested, in loops, in a decorator"
test_blocks_inductor = case(F(4), 3, calls=3, graphs=1, drive=shown, backend="inductor")(blocks)
test_blocks_inductor.__doc__ = "The same, compiled to kernels"


@case(F(4), calls=2, graphs=1, drive=shown)
def test_filters_that_stay(x):
    """Filters that are set outside of a block hold from there on"""
    warnings.warn("before", FutureWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, append=False)
    warnings.warn("behind", FutureWarning)
    return x + 1


@case(F(4), Turn(0, 1), calls=4, drive=shown)
def test_exceptions_in_blocks(x, bad):
    """An exception within the block, caught outside of it"""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a.*")
            warnings.warn("a")
            y = x * 2
            if bad:
                raise ValueError("bad")
            warnings.warn("b")
    except ValueError:
        y = x - 1
    warnings.warn("a")
    return y


@case(F(4), Turn(0, 1), calls=4, drive=shown)
def test_exceptions_that_leave_blocks(x, bad):
    """An exception that leaves the function: the filters are those of before"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("a")
        y = x[torch.tensor(9 if bad else 1)] * 2
        if x.sum() > 100:
            raise ValueError("bad")
    warnings.warn("b")
    return y


@case(F(4), Turn(0, 1), calls=4, drive=shown, breaks=True)
def test_a_break_within_a_block(x, bad):
    """Code that runs as it is within the block has its filters"""
    y = x * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = y + 1
        print("within")
        warnings.warn("not said")
        if bad:
            raise KeyError("bad")
        y = y * 3
    warnings.warn("said")
    return y + 1


@case(F(4), calls=2, drive=shown, breaks=True)
def test_filters_that_are_read(x):
    """The list of filters is read within the block"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n = len(warnings.filters)
        y = x + 1
    return y, n, warnings.filters[0][0]


@case(F(4), calls=2, drive=shown, breaks=True)
def test_warnings_that_are_errors(x):
    """Filters that make errors of warnings; wrong arguments"""
    said = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("boom")
    except UserWarning as e:
        said.append(str(e))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("quiet")
    except (AssertionError, ValueError) as e:
        said.append(type(e).__name__)
    return x + 1, said


@case(F(4), calls=2, drive=shown)
def test_a_manager_entered_twice(x):
    """It raises, as does the end of one that was not entered"""
    m = warnings.catch_warnings(action="ignore")
    said = []
    with m:
        warnings.warn("not said")
        y = x + 1
    for act in (m.__enter__, warnings.catch_warnings().__exit__):
        try:
            act()
        except RuntimeError as e:
            said.append(str(e)[:12])
    return y, said


@case(F(4), calls=2, drive=shown, breaks=True)
def test_warnings_recorded_within(x):
    """A block that records them"""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        y = x * 2
        warnings.warn("kept")
    return y + 1, [str(w.message) for w in given]


@case(F(4), calls=3, drive=shown)
def test_operations_that_warn(x):
    """Torch's own warnings, of Python and of C++"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = FN.grid_sample(x.view(1, 1, 2, 2), torch.zeros(1, 1, 1, 2))
        z = FN.softmax(x) + x[torch.ones(4, dtype=torch.uint8)]
    return y, z


@program(F(4), calls=3, drive=shown)
def test_a_manager_from_outside():
    """Entered before the region, left in it"""
    m = []

    def f(x):
        m.append(warnings.catch_warnings())
        m[-1].__enter__()
        warnings.simplefilter("ignore")
        y = x + 1
        print("between")
        warnings.warn("not said")
        m[-1].__exit__(None, None, None)
        warnings.warn("said")
        return y * 2

    return f, lambda: len(m)


@program(F(4), calls=3, drive=shown)
def test_a_block_where_the_module_was_changed():
    """`warnings.showwarning` set within the block; the block puts it back"""
    said = []

    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *rest: said.append(str(message))
            warnings.warn("mine")
            y = x + 1
        warnings.warn("yours")
        return y * 2

    return f, lambda: said


def test_a_block_that_is_cut_short(monkeypatch):
    """An exception of a signal's handler where the region ends: the filters are those of before"""

    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("p")
            y = x * 2
        return y

    made, x = bytejit.compile(f, backend="eager", fullgraph=True), torch.ones(2)
    made(x)
    before, kept = warnings.filters, list(warnings.filters)

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(given_warnings.Place, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made(x)
    assert warnings.filters is before and warnings.filters == kept
