# ruff: noqa: B007, B023, B904, E731 - what the programs do is the point
"""Programs that break in the middle of other things: gradients, modes, iterators, copies, hooks"""

import collections
import contextlib
import copy
import functools
import itertools
import threading
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .harness import F, I, Sign, Turn, backward_after, case, program


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > ctx.low) * 2, None


@case(F(4, grad=True), breaks=True, drive=backward_after)
def test_autograd_function_in_breaking_loop(x):
    """An autograd function in a loop that breaks, with a list of results"""
    kept = []
    for i in range(3):
        x = Clamp.apply(x, -0.5 * i)
        if x.detach().sum() > 1e6:
            x = x * 0
        kept.append(x)
    return sum(kept), len(kept)


@program(F(2, 4), breaks=True, drive=backward_after)
def test_checkpoint_in_breaking_model():
    """Checkpointed blocks between breaks, in train and eval mode"""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))
            self.norms = []

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                x = checkpoint(block, x, use_reentrant=False)
                if i == 1:
                    self.norms.append(x.norm().item() > 0)
            return x

    m = Model()
    return m, lambda: (m.norms, [p.grad for p in m.parameters()])


@program(F(4), breaks=True)
def test_inference_loop_with_early_stop():
    """A decoding loop under inference_mode that stops on a tensor's value"""
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    @torch.inference_mode()
    def f(x):
        tokens = []
        state = {"h": x}
        for step in itertools.count():
            state["h"] = net(state["h"]).tanh()
            token = int(state["h"].argmax())
            tokens.append(token)
            if token == 3 or step >= 4:
                break
        return state, tokens, state["h"].is_inference(), torch.is_inference_mode_enabled()

    return f


@program(F(2, 3), breaks=True)
def test_copy_kept_while_breaking():
    """An exponential average of weights: a deep copy at the first call, updated under no_grad, with a break"""

    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net, self.twin, self.n = nn.Linear(3, 3), None, 0

        def forward(self, x):
            if self.twin is None:
                self.twin = copy.deepcopy(self.net).requires_grad_(False)
            with torch.no_grad():
                for (name, p), (_, q) in zip(self.net.named_parameters(), self.twin.named_parameters()):
                    q.lerp_(p, 0.1)
                    if q.sum() > 1e6:
                        self.n = name
                    p.data = p.data * 0.9
            self.n += 1
            return self.net(x) - self.twin(x)

    m = Averaged()
    return m, lambda: (m.n, m)


@case(F(3, grad=True), drive=backward_after)
def test_hooks_around_a_break(x):
    """Hooks registered before and after a break, one of them removed by the handle kept across it"""
    y = x * 2
    h = y.register_hook(lambda g: g * 3)
    k = y.register_hook(lambda g: g + 1)
    if y.sum() > 1e6:
        y = y - 1
    k.remove()
    z = y.exp()
    z.register_hook(lambda g: g * 0.5)
    return z, type(h).__name__


@case(F(4), F(4), breaks=True)
def test_iterators_across_breaks(x, y):
    """Two iterators advanced in turns across breaks, one peeked by next with a default, zip of both"""
    names, values = iter("abcdef"), iter([x, y, x + y, x - y])
    seen = []
    for name in names:
        v = next(values, None)
        if v is None:
            seen.append("end")
            break
        x = x + v
        if x.sum() > 1e6:
            seen.append(name)
        seen.append(next(names, "-"))
    return x, seen, list(names), list(zip(names, values))


@case(F(4), breaks=True)
def test_nested_loops_over_outside_iterators(x):
    """Nested loops, each with a break in it, over enumerate, items, reversed and chained iterators"""
    table = collections.OrderedDict(a=[1, 2], b=[3])
    out = []
    for i, (k, vs) in enumerate(table.items(), 1):
        for v in reversed(vs):
            x = x * v
            if x.max() > 1e6:
                out.append("big")
            for w in map(str, range(v)):
                out.append(k + w)
                if float(x[0]) > 1e6:
                    break
            else:
                out.append("all")
        x = x - i
    return x, out


@case(Sign(4), breaks=True)
def test_managers_and_returns_across_breaks(x):
    """Returns, continue and exceptions out of nested managers around breaks, with ExitStack and suppress"""
    log = []

    @contextlib.contextmanager
    def step(name):
        log.append("+" + name)
        try:
            yield name.upper()
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append("-" + name)

    for i in range(3):
        with contextlib.ExitStack() as stack:
            a = stack.enter_context(step(f"a{i}"))
            stack.callback(log.append, f"cb{i}")
            with torch.set_grad_enabled(i == 1), step("b") as b:
                x = x * 1.5
                if x.sum() > 0:
                    log.append((a, b, torch.is_grad_enabled()))
                    if i == 1:
                        continue
                    raise ValueError(f"v{i}")
                if i == 2:
                    return x, log
            x = x + 1
    return x, log, "end"


class Tracker:
    """Overrides attribute access, comparison and calling, and counts all of them."""

    def __init__(self, value):
        self.value, self.counts = value, collections.Counter()

    def __getattribute__(self, name):
        if not name.startswith("_") and name not in ("value", "counts"):
            object.__getattribute__(self, "counts")[name] += 1
        return object.__getattribute__(self, name)

    def double(self):
        return Tracker(self.value * 2)

    def __lt__(self, other):
        return bool((self.value < other.value).all())

    def __iadd__(self, other):
        self.value = self.value + other
        return self

    def __matmul__(self, other):
        return self.value @ other

    def __enter__(self):
        self.counts["enter"] += 1
        return self.value

    def __exit__(self, kind, value, tb):
        self.counts[kind.__name__ if kind else "none"] += 1
        return kind is KeyError


@program(F(4), breaks=True)
def test_tracker_object():
    """An object that overrides attribute reads, operators and the manager's methods, changed across breaks"""
    t = Tracker(torch.zeros(4))

    def f(x):
        nonlocal t
        t += x
        d = t.double()
        with t as v:
            y = v + d.value
            if t < d:
                y = y * 2
            raise KeyError
        t += 1
        return y, t @ x, d.counts, t.counts["double"]

    return f, lambda: (t.value, t.counts)


@program(F(4), Turn(0, 1, 2))
def test_warnings_and_logging():
    """warnings.warn caught and counted, logging with a handler, around tensor work"""
    import logging

    logger = logging.Logger("programs")
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.levelname, record.getMessage()))

    logger.addHandler(Keep())

    def f(x, n):
        logger.info("start %d", n)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = x * n
            if n:
                warnings.warn(f"n is {n}", DeprecationWarning, stacklevel=1)
            logger.warning("shape %s", tuple(y.shape))
        return y, [str(w.message) for w in caught], [w.category.__name__ for w in caught]

    return f, lambda: records


@program(F(4))
def test_locks_and_thread_locals():
    """A lock, a thread-local and a queue used inside; results of a worker thread"""
    import queue

    lock, local, q = threading.Lock(), threading.local(), queue.SimpleQueue()

    def work(v):
        local.seen = getattr(local, "seen", 0) + 1
        q.put((local.seen, v * 2))

    def f(x):
        with lock:
            local.seen = getattr(local, "seen", 10) + 1
            y = x + local.seen
        t = threading.Thread(target=work, args=(y,))
        t.start()
        t.join()
        return y, q.get(), local.seen

    return f


@case(F(3, 4), I(3, lo=0, hi=4), breaks=True)
def test_dynamic_outputs_in_containers(x, idx):
    """nonzero, unique, masks and bincounts kept in dicts and sorted by size"""
    parts = {int(k): x[idx == k] for k in idx.unique()}
    order = sorted(parts, key=lambda k: (-len(parts[k]), k))
    where = [tuple(p.nonzero()[:, 0].tolist()) for p in (x > 0).float()]
    return {k: parts[k].sum(0) for k in order}, order, where, torch.bincount(idx, minlength=4).tolist()


@program(F(2, 4), breaks=True)
def test_forward_replaced_and_methods_patched():
    """`forward` replaced on the instance, a method patched on the class, restored in finally, a break within"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.lin, self.calls = nn.Linear(4, 4), []

        def act(self, x):
            return x.relu()

        def forward(self, x):
            self.calls.append("own")
            return self.act(self.lin(x))

    m = Net()

    def f(x):
        old = m.forward
        m.forward = lambda v: m.calls.append("patched") or old(v) * 2
        try:
            y = m(x)
            if y.sum() > 1e6:
                y = -y
        finally:
            del m.forward
        m.act = functools.partial(torch.clamp, min=-1.0, max=1.0)
        z = m(x)
        del m.act
        return y, z, "forward" in m.__dict__

    return f, lambda: m.calls


@program(F(2, 4), drive=backward_after, calls=2)
def test_gradients_through_breaks_and_no_grad():
    """A loss over parts made with and without gradients, detached statistics, a buffer updated, a break"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            h = self.a(x)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
                big = bool(h.abs().max() > 1e6)
            h = h - self.mean
            if big:
                h = h.tanh()
            frozen = self.b(h.detach())
            return (self.b(h) * frozen.detach()).mean(), frozen.requires_grad

    m = Net()
    return m, lambda: ([p.grad for p in m.parameters()], m.mean)


@case(F(4), breaks=True)
def test_stack_of_closures_across_breaks(x):
    """Closures over a loop variable and a nonlocal counter called before and after breaks, recursion with a memo"""
    count, memo = 0, {}

    def bump(by):
        nonlocal count
        count += by
        return count

    def fib(n):
        if n not in memo:
            memo[n] = x * n if n < 2 else fib(n - 1) + fib(n - 2)
        return memo[n]

    undo = []
    for i in range(3):
        undo.append(lambda: bump(-i))
        x = x + bump(i)
        if x.sum() > 1e6:
            undo.pop()
    last = fib(4)
    while undo:
        undo.pop()()
        if last.sum() > 1e6:
            break
    return x, count, last, sorted(memo)


@program(F(4), Turn("a", "b", "a"), breaks=True)
def test_plugins_chosen_by_name():
    """Functions from a registry chosen by name, wrapped with retries that catch, a break in one of them"""

    def retry(times):
        def wrap(fn):
            @functools.wraps(fn)
            def inner(*args, **kwargs):
                for left in reversed(range(times)):
                    try:
                        return fn(*args, attempt=left, **kwargs)
                    except ConnectionError as e:
                        errors.append((fn.__name__, left, e.args))
                        if not left:
                            raise

            return inner

        return wrap

    errors, plugins = [], {}

    @retry(3)
    def a(x, attempt):
        if attempt > 1:
            raise ConnectionError("a", attempt)
        return x * 2

    @retry(2)
    def b(x, attempt):
        if x.sum() > 1e6:
            raise ValueError
        raise ConnectionError("b", attempt)

    plugins.update(a=a, b=b)

    def f(x, name):
        try:
            return plugins[name](x)
        except ConnectionError as e:
            return x, str(e), len(errors)

    return f, lambda: errors
