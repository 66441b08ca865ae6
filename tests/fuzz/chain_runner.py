"""Run a chain in eager and compiled, and compare values.

A value is wrong where it is further from eager's than what eager itself makes of rounding errors, and further from
float64 than twice eager's distance. Either alone is not enough: noise seldom meets a step (round(), an exponent of a sum
that is nearly zero) or what a half cannot hold (1e-12), and eager's distance may be small by luck.
"""

import hashlib
import linecache
import re
import warnings
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..programs import targets

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
WIDE = re.compile(r"torch\.(float32|float16|bfloat16)\b")
ROUNDS = 48  # noisy runs, at most, that say how well-conditioned a program is: a value next to a step of round() needs many


class Differs(AssertionError):
    """Compiled and plain run of a chain differ."""


def build(text: str, device: str = "cpu") -> dict:
    """The names that a program's text defines; tracebacks find its lines. Its inputs are made on the CPU and lie on the device,
    which is the default one where it runs."""
    name = f"<chain {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {"__name__": "chained"}
    exec(compile(text, name, "exec"), space)
    made = space["inputs"]
    if device != "cpu":

        def inputs() -> tuple:
            with torch.device("cpu"):
                args = made()
            return tuple(in_other_storages(args, lambda whole: whole.to(device)))

        space["inputs"] = inputs
    return space | {"text": text, "device": device}


def in_other_storages(args: tuple, change: Callable[[torch.Tensor], torch.Tensor]) -> list:
    """The tensors in storages that a change of the former ones makes; they share them as they did."""
    made: dict[tuple, torch.Tensor] = {}
    out = []
    for t in args:
        if not t.numel():
            out.append(change(t))
            continue
        key = t.untyped_storage().data_ptr(), t.dtype
        if key not in made:
            made[key] = change(torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()))
        out.append(made[key].as_strided(t.shape, t.stride(), t.storage_offset()))
    return out


def execute(fn, args: tuple) -> object:
    """The results, or the exception's type and message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fn(*args)
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, NotImplementedError) as e:
        return e


def raises(text: str, device: str = "cpu") -> bool:
    """Whether the program raises in eager."""
    space = build(text, device)
    return isinstance(execute(space["program"], space["inputs"]()), Exception)


class Noise(TorchDispatchMode):
    """What every operator reads and makes of floats is off by a rounding or two."""

    def __init__(self, seed: int):
        super().__init__()
        self.g = torch.Generator("cpu").manual_seed(seed)

    def off(self, t: torch.Tensor, eps: float) -> torch.Tensor:
        if t._is_zerotensor() or t.is_meta:  # a sum with zeros that have no storage asks for its shape on meta
            return t
        off_by = torch.randint(-1, 2, t.shape, generator=self.g, device="cpu").to(t.device).double() * (2 * eps)
        return (t.double() * (1 + off_by)).to(t.dtype)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        schema, kwargs = func._schema, kwargs or {}
        dtypes = [x.dtype for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        eps = max((EPS[d] for d in (*dtypes, kwargs.get("dtype")) if d in EPS), default=EPS[torch.float32])
        if all(r.alias_info is None for r in schema.returns) and not schema.is_mutable:
            args = [self.off(a, eps) if isinstance(a, torch.Tensor) and a.dtype in EPS else a for a in args]
        out = func(*args, **kwargs)
        for t, ret in zip(out if isinstance(out, (tuple, list)) else (out,), schema.returns):
            fresh = ret.alias_info is None or ret.alias_info.is_write
            if not isinstance(t, torch.Tensor) or t._is_zerotensor() or t.is_meta:
                continue
            if fresh and t.dtype in EPS and t.numel() and 0 not in t.stride():
                t.copy_(self.off(t, max(eps, EPS[t.dtype])))
        return out


def noisy(space: dict, round_: int) -> list:
    """Values of arguments and results in a run with noise."""
    args = space["inputs"]()
    with warnings.catch_warnings(), Noise(1000 + round_):
        warnings.simplefilter("ignore")
        return [*args, *space["program"](*args)]


def widened(args: tuple) -> list:
    """The tensors, floats as float64, that share storages as they did."""
    return in_other_storages(args, lambda whole: whole.double() if whole.is_floating_point() else whole)


def in_float64(space: dict) -> list:
    """Values of arguments and results of the program with float64 for every float, on the CPU; [] where it raises so. Some
    kernels of a GPU have constants of f32 in them (hardswish)."""
    with torch.device("cpu"):
        args, text = widened(build(space["text"])["inputs"]()), WIDE.sub("torch.float64", space["text"])
        program = build(text.replace(".float()", ".double()").replace(".half()", ".double()"))["program"]
        torch.set_default_dtype(torch.float64)
        try:
            results = execute(program, tuple(args))
        finally:
            torch.set_default_dtype(torch.float32)
    return [] if isinstance(results, Exception) else [t.to(space["device"]) for t in (*args, *results)]


def further(exact: torch.Tensor | None, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Where q is further from float64 than twice p's distance, or not what float64 makes where that is a number and p none;
    everywhere, where float64 makes another shape."""
    if exact is None or exact.shape != p.shape:
        return torch.ones(p.shape, dtype=torch.bool, device=p.device)
    far = distance(exact, p)
    return torch.where(far.isinf(), off(exact.to(p.dtype), q), distance(exact, q) > 2 * far)


def check_chain(
    text: str, backend="inductor", dynamic=None, calls: int = 1, resized: tuple[str, ...] = (), device: str = "cpu"
) -> None:
    """resized: the same text with other sizes, for later calls. Raises: Differs (compiled and plain run differ), or what
    bytejit raises by itself."""
    space = build(text, device)
    targets.reset()
    ours = targets.compiled(space["program"], backend, dynamic=dynamic)
    for given in [space] * calls + [build(t, device) | {"program": space["program"]} for t in resized]:
        space = given
        plain_args, our_args = space["inputs"](), space["inputs"]()
        plain, got = execute(space["program"], plain_args), execute(ours, our_args)
        if isinstance(plain, Exception) or isinstance(got, Exception):
            if type(plain) is not type(got) or str(plain) != str(got):
                raise Differs(f"raises {got!r}, plain {plain!r}") from (got if isinstance(got, Exception) else None)
            continue
        compare(space, [*plain_args, *plain], [*our_args, *got])


def compare(space: dict, plain: list, got: list) -> None:
    """Types, layouts, sharing and values. Raises: Differs."""
    if len(plain) != len(got):
        raise Differs(f"{len(got)} results, plain {len(plain)}")
    for i, (p, q) in enumerate(zip(plain, got)):
        for what in ("dtype", "shape", "requires_grad"):
            if getattr(p, what) != getattr(q, what):
                raise Differs(f"value {i}: {what} {getattr(q, what)}, plain {getattr(p, what)}")
        if p.numel() > 1 and significant(p) != significant(q):
            raise Differs(f"value {i}: strides {q.stride()}, plain {p.stride()} of shape {tuple(p.shape)}")
    real = [not p._is_zerotensor() for p in plain]  # zeros without a storage: the gradient of sgn(), say
    ours, theirs = ([x for x, there in zip(xs, real) if there] for xs in (got, plain))
    if sharing(ours) != sharing(theirs):
        raise Differs(f"sharing {sharing(ours)}, plain {sharing(theirs)}")
    runs: list[list] = []
    exact: list | None = None
    for i, (p, q) in enumerate(zip(plain, got)):
        wrong, widest = off(p, q), torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for k in range(ROUNDS):
            if not wrong.any():
                break
            if k == len(runs):
                runs.append(noisy(space, k))
            noise = runs[k][i]
            spread = distance(p, noise) if noise.shape == p.shape else torch.full_like(widest, torch.inf)
            widest = torch.maximum(widest, spread)
            wrong &= distance(p, q) > 8 * widest
        if wrong.any():
            exact = exact or in_float64(space)
            wrong &= further(exact[i] if len(exact) == len(plain) else None, p, q)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise Differs(
                f"value {i} {p.dtype} at {at} of {tuple(p.shape)}: {q[at].item()!r}, plain {p[at].item()!r}"
                f" (noise {widest[at].item():.3g}; {int(wrong.sum())} wrong)"
            )


def significant(t: torch.Tensor) -> tuple:
    return tuple(s for n, s in zip(t.shape, t.stride()) if n > 1)


def sharing(values: list) -> list:
    """For every value the first one that it shares a storage with, whether it is that object, and where it begins in it."""
    first, out = {}, []
    for i, t in enumerate(values):
        if not t.numel():
            out.append(None)
            continue
        at = first.setdefault(t.untyped_storage().data_ptr(), i)
        begin = (t.data_ptr() - values[at].data_ptr()) if at != i else 0
        out.append((at, values[at] is t, begin))
    return out


def distance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """How far apart, 0 where equal or both nan, inf where one is no number."""
    a, b = p.double(), q.double()
    d = (a - b).abs()
    d = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, d)
    return torch.where(d.isnan(), torch.inf, d)


def off(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Where q is not p: ints exactly, floats by their precision, zeros by their sign."""
    if not p.is_floating_point():
        return p != q
    eps = EPS[p.dtype] * 16
    finite = p.double().abs()
    return ~(distance(p, q) <= eps * (torch.where(finite.isfinite(), finite, 0.0) + 1 / 16))
