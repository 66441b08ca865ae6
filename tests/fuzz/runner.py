"""Run one random program plainly and compiled, and compare all that a user can see."""
import hashlib
import linecache

from ..programs import harness, targets

CALLS = 3


def build(source: str, name: str):
    """(program, observe) of a fresh run of the text; tracebacks and inspect find its lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"__name__": "fuzzed"}
    exec(compile(source, name, "exec"), space)
    return space["program"], lambda: (space["LOG"], space["TOTAL"])


def arguments(r: harness.Rand, space_of) -> tuple:
    """Arguments of a call: y is a view of x's storage in odd calls, n changes, containers and the object are new."""
    base = r.f(4)
    x, y = (base[:3], base[1:]) if r.call % 2 else (r.f(3), r.f(3))
    thing = space_of["Child" if r.call == 2 else "Thing"]
    return x, y, (3, 3, 4)[r.call % 3], [1, x], {"a": 2, "t": y}, thing(r.f(3), 2)


def check_source(source: str, backend: str = "eager") -> None:
    """Raise unless the compiled program does what the plain one does."""
    name = f"<fuzz {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    targets.reset()
    spaces = []

    def fresh():
        fn, observe = build(source, name)
        spaces.append(fn.__globals__)
        return fn, observe

    counter = targets.Counter(backend)
    case = harness.make_case(fresh, (), None, None, None, None, False, backend, CALLS, None, (), (0.0, 0.0), name)
    plain, ours = harness.Side(case, lambda fn: fn), harness.Side(case, lambda fn: targets.compiled(fn, counter))
    try:
        for n in range(CALLS):
            harness.compare(call(plain, n, name), call(ours, n, name), f"call {n}", (0.0, 0.0))
    finally:
        linecache.cache.pop(name, None)


def call(side: harness.Side, n: int, name: str) -> harness.Outcome:
    """A call whose object is of the side's own class."""
    return side.call(n, lambda r: (arguments(r, side.space), {}))
