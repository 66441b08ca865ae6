# ruff: noqa - the programs are as users write them
"""`warnings.warn` in a compiled function: one graph, and each call warns as eager does, in the name of the same line"""

import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import bytejit

from ..fresh_process import run_without_compiler
from .harness import F, Turn, check, program
from .heard import heard


def tell(given):
    """Print what was warned of: class, text, file and line"""
    for w in given:
        where = (w.filename, w.lineno) if not w.filename.endswith("harness.py") else "the caller"
        print(w.category.__name__, w.message, repr(w.message), where)


shown = functools.partial(heard, tell)


def old(text, level=2):
    warnings.warn(text, DeprecationWarning, stacklevel=level)


@program(F(4), Turn(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 30, 30), calls=13, graphs=1, drive=shown)
def test_warnings_of_one_graph():
    """Texts, classes and objects, over several lines, in loops, in callees, so many levels up"""

    def helper(x, level):
        old("helper", level)
        return x + 1

    def f(x, n):
        warnings.warn("hello")
        y = helper(x, n)
        warnings.warn(
            f"shape {tuple(y.shape)} {n}",
            RuntimeWarning,
            stacklevel=2,
        )
        warnings.warn(FutureWarning("made", 1))
        warnings.warn(message="named", category=UserWarning, stacklevel=1)
        for i in range(2):
            warnings.warn(f"{i}", None, 0)
        return y.sum()

    return f


@program(F(4), drive=shown, breaks=True)
def test_warnings_between_breaks():
    """Before, between and behind breaks"""

    def f(x):
        y = x + 1
        warnings.warn("first")
        print("a break")
        warnings.warn("second")
        return y * 2

    return f


class Own(UserWarning):
    pass


class Loud(UserWarning):
    def __str__(self):
        return "loud " + super().__str__()


@pytest.mark.parametrize("given", [("a", Own), ("a", Loud), ("a", int), ("a", "b"), (), ("a", None, "x"), (1,), (None,)], ids=str)
def test_classes_of_warnings(given):
    """Warnings of the program's own classes, and what is none"""

    def f(x):
        try:
            warnings.warn(*given)
        except TypeError as e:
            return str(e), x + 1
        return x

    check(f, F(3), drive=shown)


def test_objects_of_own_classes():
    """Warnings made inside, of the program's own classes"""

    def f(x):
        warnings.warn(Own("a"))
        y = x + 1
        warnings.warn(Loud("b"))
        return y * 2

    check(f, F(3), drive=shown)


@program(F(3), calls=4, breaks=True)
def test_record_read_inside():
    """A list of recorded warnings that is read where it is recorded"""

    def f(x):
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            y = x * 2
            warnings.warn("one")
            n = len(w)
            y = y + n
            old("two")
        return y, n, [(str(q.message), q.lineno) for q in w]

    return f


@program(F(3), calls=4)
def test_record_given_as_an_argument():
    """A list from outside is in one call the record of warnings, in the next another list"""
    calls = [0]

    def counted(x, seen):
        warnings.warn("q")
        return x * len(seen)

    def f(x):
        calls[0] += 1
        if calls[0] % 2:
            with warnings.catch_warnings(record=True) as w:
                return counted(x, []), counted(x, w), counted(x, w), len(w)
        return counted(x, [1])

    return f


@program(F(3), calls=3)
def test_filters_set_inside():
    """Warnings ignored and made errors inside"""

    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x * 2
            warnings.warn("no")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("an error")
                y = y + 100
            except UserWarning as e:
                y = y - len(str(e))
        return y

    return f


def under(*rules):
    """A driver: calls with filters set"""

    def drive(f, *args):
        with warnings.catch_warnings():
            for rule in rules:
                warnings.filterwarnings(*rule)
            return f(*args)

    return drive


def warn_and_count(x, log):
    log.append("before")
    warnings.warn("now")
    log.append("behind")
    return x + 1


def test_filters_change_between_calls():
    """An error where a filter says so, from one call to the next, with what was done before it"""
    compiled, x = bytejit.compile(warn_and_count, backend="eager"), torch.ones(2)
    for rules in [(), (("error",),), (), (("ignore",),), (("error", "other"),), (("error", "now"),), ()]:
        logs = [], []
        outcomes = []
        for f, log in zip((warn_and_count, compiled), logs):
            try:
                outcomes.append(under(*rules)(f, x, log).tolist())
            except UserWarning as e:
                outcomes.append(repr(e))
        assert outcomes[0] == outcomes[1] and logs[0] == logs[1]


def test_shown_by_the_program(monkeypatch):
    """`warnings.showwarning` replaced: it sees what was done before the warning, and nothing that was done behind"""
    seen, log = [], []
    monkeypatch.setattr(warnings, "showwarning", lambda *given, **more: seen.append((str(given[0]), list(log))))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        bytejit.compile(warn_and_count, backend="eager")(torch.ones(2), log)
    assert seen == [("now", ["before"])]


def test_captured_by_logging():
    """`logging.captureWarnings`"""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("py.warnings").addHandler(handler)
    compiled = bytejit.compile(warn_and_count, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        compiled(torch.ones(2), [])
        logging.captureWarnings(True)
        try:
            compiled(torch.ones(2), [])
        finally:
            logging.captureWarnings(False)
            logging.getLogger("py.warnings").removeHandler(handler)
    assert len(said) == 1 and "now" in said[0]


def test_shown_once_as_eager_does():
    """Written to stderr: once for each line with Python's own filters, and not where the graph raises after all"""
    run_without_compiler(
        """
import contextlib, io, warnings, torch, bytejit

def f(x):
    y = x + 1
    warnings.warn("here")
    return y[torch.tensor([5])]

compiled = bytejit.compile(f, backend="eager", fullgraph=True, dynamic=False)
for action, counts in ("default", [1, 0, 0]), ("always", [1, 1, 1]):
    warnings.simplefilter(action)
    for x, count in zip((torch.ones(6), torch.ones(6), torch.ones(2)), counts):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.suppress(IndexError):
            compiled(x)
        assert said.getvalue().count("UserWarning: here") == count, said.getvalue()
assert bytejit.counters["graphs"].total() <= 2
""",
        __file__,
    )


def levels(tag):
    for k in range(1, 8):
        warnings.warn(f"{tag}{k}", stacklevel=k)


class Many:
    @functools.cached_property
    def cached(self):
        levels("cached")
        return 1

    def part(self, a, b):
        levels("part")
        return a + b

    partly = functools.partialmethod(part, 1)

    @functools.singledispatchmethod
    def single(self, a):
        levels("single")

    def __deepcopy__(self, memo):
        levels("deepcopy")
        return self

    def __lt__(self, other):
        levels("lt")
        return False

    def __iter__(self):
        levels("iter")
        return iter([1])

    def __class_getitem__(cls, key):
        levels("class item")
        return cls

    def __getattr__(self, name):
        levels("getattr")
        return name

    @property
    def prop(self):
        levels("prop")

    @staticmethod
    @torch.no_grad()
    def plainly(x):
        levels("no grad")
        return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        levels("forward")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g


class Kind(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value):
        levels("missing")
        return cls.A


@dataclasses.dataclass
class Made:
    items: list = dataclasses.field(default_factory=lambda: levels("factory") or [])

    def __post_init__(self):
        levels("post")


class Layer(nn.Module):
    def forward(self, x):
        levels("layer")
        return x


@functools.singledispatch
def single(a):
    levels("dispatched")


@contextlib.contextmanager
def managed():
    levels("enter")
    try:
        yield
    except ValueError:
        levels("caught")


def within():
    with managed():
        raise ValueError


def counted():
    levels("generator")
    yield 1


LAYER = Layer()
WAYS = {
    "cached_property": lambda x: Many().cached,
    "partialmethod": lambda x: Many().partly(2),
    "singledispatchmethod": lambda x: Many().single(3),
    "singledispatch": lambda x: single(3),
    "deepcopy": lambda x: copy.deepcopy([Many()]),
    "sorted": lambda x: sorted([Many(), Many()]),
    "iter": lambda x: [*Many()],
    "class item": lambda x: Many[1],
    "getattr": lambda x: Many().other,
    "property": lambda x: Many().prop,
    "no_grad": lambda x: Many.plainly(x),
    "autograd function": lambda x: Doubled.apply(x),
    "missing": lambda x: Kind(5),
    "dataclass": lambda x: Made(),
    "module": lambda x: LAYER(x),
    "manager": lambda x: within(),
    "generator": lambda x: sum(counted()),
    "map": lambda x: list(map(lambda v: levels("map"), [1])),
    "key": lambda x: min([1, 2], key=lambda v: levels("key") or v),
    "cmp_to_key": lambda x: sorted([2, 1], key=functools.cmp_to_key(lambda a, b: levels("compare") or a - b)),
    "tree_map": lambda x: tree_map(lambda v: levels("tree") or v, [x]),
    "re.sub": lambda x: re.sub("a", lambda m: levels("match") or "b", "a"),
    "accumulate": lambda x: list(itertools.accumulate([1, 2], lambda a, b: levels("sum") or a + b)),
    "eval": lambda x: eval("levels('eval')", {"levels": levels}),
    "comprehension": lambda x: [levels("list") for _ in (1,)],
}


@pytest.mark.parametrize("name", WAYS)
def test_levels_are_counted_as_in_eager(name):
    """`stacklevel` through what calls a function: each level names the same line"""

    def f(x):
        y = x + 1
        WAYS[name](y)
        return y * 2

    check(f, F(2), drive=shown)


def test_the_record_goes_on_between_calls():
    """pytest.warns around a compiled function under fullgraph"""

    def f(x):
        warnings.warn("here", RuntimeWarning)
        return x + 1

    compiled = bytejit.compile(f, backend="eager", fullgraph=True)
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="here"):
            compiled(torch.ones(2))
    assert bytejit.counters["graphs"].total() == 1


@torch.library.custom_op("bytejit_tests_warn::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("from the operator")
    return x + 1


@noted.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_of_the_program_that_warns():
    """A warning before an operator's own comes first"""

    def f(x):
        y = noted(x)
        warnings.warn("before")
        return noted(y)

    check(f, F(3), drive=shown)


@pytest.mark.cxx
@pytest.mark.parametrize("dynamic", [None, True])
def test_functions_of_torch_that_warn_of_sizes(dynamic):
    """A function of torch's that warns while sizes are symbols: once a compile, of numbers, in the name of the user's line"""

    def f(x):
        return nn.functional.mse_loss(x, x[:1] * 2)

    compiled = bytejit.compile(f, dynamic=dynamic)
    for shape in ((5, 4), (5, 3)):
        seen = []
        for call in (f, compiled):
            heard(lambda given: seen.append([(str(w.message), w.filename, w.lineno) for w in given]), call, torch.ones(shape))
        assert seen[1] == seen[0] or dynamic and not seen[1], shape


def test_class_items_are_asked_each_call():
    """`cls[key]` calls the class's own `__class_getitem__` in each call"""
    asked = []

    class Counted:
        def __class_getitem__(cls, key):
            asked.append(key)
            return len(asked)

    def f(x):
        return x * Counted[3] + Counted[int] + Counted[2]

    compiled = bytejit.compile(f, backend="eager")
    for n in (1, 4, 7):
        assert compiled(torch.ones(1)).item() == n + n + 1 + n + 2
    assert asked == [3, int, 2] * 3


WARNING = {
    "~b, ~(n > 2), True.__invert__(), (~b) & 1": "since Python 3.12",
    "bool(NotImplemented), not NotImplemented, 1 if NotImplemented else 2": "until Python 3.13",
    "complex(1j, 2)": "since Python 3.14",
    "re.split('a', 'babab', 1), re.sub('a', 'b', 'aaa', 1)": "since Python 3.13",
    "re.compile(f'[[a]{n}').pattern": "while it is compiled first",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", WARNING)
def test_what_warns_of_itself(text):
    """What is run while the graph is made may warn: each call does, where the program's line stands, or raises"""
    f = eval(f"lambda x, b, n: (x + 1, {text})", {"re": re})

    def told(f, n, action):
        re.purge()
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter(action)
            try:
                result = repr(f(torch.ones(2), True, n))
            except Exception as e:
                result = repr(e)
        return result, [(w.category, str(w.message), w.filename, w.lineno) for w in given]

    compiled = bytejit.compile(f, backend="eager")
    for n, action in ((1, "always"), (1, "always"), (3, "always"), (1, "error"), (1, "ignore"), (4, "always")):
        if "compile" in text and bytejit.counters.total("graphs"):
            return  # the pattern that a graph holds is not compiled again
        assert told(compiled, n, action) == told(f, n, action), (n, action)


def test_what_cpp_warns_of_while_a_graph_is_made():
    """The user's line is named where arguments are read; what only shape inference would run says nothing"""
    norm = nn.BatchNorm1d(2).eval()

    def copied(x):
        return torch.tensor(x) + 1

    def mapped(x):
        return torch.func.vmap(torch.func.grad(lambda p: norm(p[None]).sum()))(x)

    for f, line in ((copied, copied.__code__.co_firstlineno + 1), (mapped, None)):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            bytejit.compile(f, backend="aot_eager")(torch.ones(3, 2))
        assert [(w.filename, w.lineno) for w in given] == ([(__file__, line)] if line else []), [str(w) for w in given]


SOFT, LOSS = nn.Softmax(), nn.MSELoss()
OF_TORCH = {
    "softmax": lambda x: nn.functional.softmax(x),
    "a module": lambda x: SOFT(x) + LOSS(x, x[:1]),
    "upsample": lambda x: nn.functional.upsample(x, scale_factor=2.0),
    "losses": lambda x: nn.functional.kl_div(x, x) + nn.functional.l1_loss(x, x[:1]),
    "dropout2d": lambda x: nn.functional.dropout2d(x[0], training=False),
    "reduce": lambda x: nn.functional.binary_cross_entropy(x, x, reduce=True),
    "in a loop": lambda x: [nn.functional.log_softmax(x * i) for i in range(3)],
}


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", OF_TORCH)
def test_functions_of_torch_that_warn_do_in_each_call(name, backend):
    """In the name of the same line as in eager, as often as the filters say, and with no other warning beside it"""
    compiled = bytejit.compile(OF_TORCH[name], backend=backend, fullgraph=True)
    for action in ("always", "default", "ignore"):
        seen = []
        for f in (OF_TORCH[name], compiled):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter(action)
                for _ in range(3):
                    f(torch.rand(2, 2, 4))
            seen.append([(w.category, str(w.message), w.filename, w.lineno) for w in given])
        assert seen[1] == seen[0] and (seen[0] or action == "ignore")


ONCE = {
    "deprecated": lambda x: torch.range(0, 3) + x,
    "copied": lambda x: torch.tensor(x) + 1,
    "in Python, under vmap": lambda x: torch.func.vmap(lambda a: nn.functional.softmax(a))(x),
    "slow under vmap": lambda x: torch.func.vmap(lambda a: torch.histc(a, 4))(x) + 1,
}


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", ONCE)
def test_other_warnings_of_torch_come_once(name, backend):
    """While the graph is made, and in the name of the program's line; the graph does not repeat it"""
    f = ONCE[name]
    compiled = bytejit.compile(f, backend=backend, fullgraph=True)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(torch.rand(2, 4))
    assert [(w.filename, w.lineno) for w in given] == [(__file__, f.__code__.co_firstlineno)]
