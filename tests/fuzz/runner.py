"""Run one random program plainly and compiled, and compare all that a user can see."""

import contextlib
import hashlib
import io
import linecache
import random
import re
import signal
import sys
import traceback
from collections.abc import Callable

import torch

from bytejit.common.ambient import capture

from ..programs import harness, targets

CALLS = 3
TOLERANCE = {"inductor": (1e-4, 1e-5)}  # others compute as eager does


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


def check_source(source: str, backend: str = "eager", interrupts: bool = True) -> None:
    """Raise unless the compiled program does what the plain one does. interrupts: also interrupt it at a random moment."""
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
    tol = TOLERANCE.get(backend, (0.0, 0.0))
    try:
        for n in range(CALLS):
            with state_stays():
                expected = call(plain, n, name)
            with state_stays():
                found = call(ours, n, name)
            harness.compare(expected, found, f"call {n}", tol)
        disturb(source, name, counter, interrupts)
    finally:
        linecache.cache.pop(name, None)


@contextlib.contextmanager
def state_stays():
    """Torch's and Python's ambient state is the same afterwards. Raises: AssertionError."""
    before = capture()
    yield
    differences = before.differences()
    before.restore()
    assert not differences, f"the ambient state changed: {differences}"


# ---- interrupts and recursion --------------------------------------------------------------------------------------
def expire(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def disturb(source: str, name: str, backend: object, interrupts: bool) -> None:
    """Once more, interrupted at a moment that the text decides, and close to the recursion limit. Raises: AssertionError."""
    draw = random.Random(source)
    if draw.random() < 0.5 and interrupts:
        interrupted(build(source, name)[0], draw.uniform(0.0005, 0.05), backend)
    else:
        in_few_frames(source, name, draw.randint(90, 140), backend)


def interrupted(fn: Callable, after: float, backend: object) -> None:
    """The process is as it was; an operation of torch is one."""
    ours, before = targets.compiled(fn, backend), capture()
    arguments_ = arguments(harness.Rand(0), fn.__globals__)
    handler, cut_short = signal.signal(signal.SIGALRM, expire), False
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            signal.setitimer(signal.ITIMER_REAL, after)
            ours(*arguments_)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as e:  # torch's own managers may be cut short in the original code, as in eager
        cut_short = any(
            f.f_code.co_filename.endswith(("autocast_mode.py", "grad_mode.py")) for f, _ in traceback.walk_tb(e.__traceback__)
        )
    except Exception:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    differences = before.differences()
    before.restore()
    assert cut_short or not differences, f"an interrupt left the ambient state changed: {differences}"
    two = torch.ones(2) + 1
    assert type(two) is torch.Tensor and two.tolist() == [2, 2]


def in_few_frames(source: str, name: str, left: int, backend: object) -> None:
    """What eager returns so many frames before the limit, the compiled program returns."""
    outcomes, limit, depth = [], sys.getrecursionlimit(), 0
    frame = sys._getframe()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    for compiled in (False, True):
        fn, observe = build(source, name)
        run = targets.compiled(fn, backend) if compiled else fn
        sys.setrecursionlimit(depth + left)
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                result = run(*arguments(harness.Rand(0), fn.__globals__))
            outcomes.append((repr(observe()), printed.getvalue(), type(result)))
        except RecursionError:
            outcomes.append("RecursionError")
        except Exception as e:
            outcomes.append((repr(observe()), printed.getvalue(), repr(e)))
        finally:
            now = sys.getrecursionlimit()
            sys.setrecursionlimit(limit)
        assert now == depth + left, "the recursion limit changed"
    if "RecursionError" not in str(outcomes[0]):
        a, b = (re.sub(r"0x[0-9a-f]+", "", str(o)) for o in outcomes)
        assert backend.inner != "eager" or a == b, f"{left} frames before the limit: {a}\nbut {b}"


def call(side: harness.Side, n: int, name: str) -> harness.Outcome:
    """A call whose object is of the side's own class."""
    return side.call(n, lambda r: (arguments(r, side.space), {}))
