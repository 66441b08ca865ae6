"""Run one random program plainly and compiled, and compare all that a user can see."""

import collections
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
from ..programs.compare import Different
from .rounding import explain, runs
from .sides import CALLS, arguments, build, call, case_of

TOLERANCE = {"inductor": (1e-4, 1e-5)}  # others compute as eager does; what is further off is held against float64
EXPLAINED: collections.Counter[str] = collections.Counter()  # differences that were none, by rounding.explain


def check_source(source: str, backend: str = "eager", interrupts: bool = True) -> None:
    """Raise unless the compiled program does what the plain one does. interrupts: also interrupt it at a random moment."""
    name = f"<fuzz {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    targets.reset()
    counter = targets.Counter(backend)
    case = case_of(lambda: build(source, name), name, backend)
    plain, ours = harness.Side(case, lambda fn: fn), harness.Side(case, lambda fn: targets.compiled(fn, counter))
    tol = TOLERANCE.get(backend)
    try:
        for n in range(CALLS):
            expected, found = call(plain, n), call(ours, n)
            try:
                harness.compare(expected, found, f"call {n}", tol or (0.0, 0.0))
            except Different:
                why = explain(runs(source, name, n + 1), expected, found, tol) if tol else ""
                if not why:
                    raise
                EXPLAINED[why] += 1
                break  # what follows starts from other values
        disturb(source, name, counter, interrupts)
    finally:
        linecache.cache.pop(name, None)


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
