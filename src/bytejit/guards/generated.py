"""A guard set, inputs and a body -> one generated Python function: the entry that a site's dispatcher calls (hot path).

    def entry(S_0, L_self, L_x, C_y):
        try:
            if not (guard): return MISS         # what is fetched more than once goes into a local: v0, v1, ...
            w = walk(table, L_self, L_x)        # where checks can be compiled: most of the guards and fetches
            if w is None: return MISS
            ...
        except Exception as error:
            if from_handler(error): raise       # a signal's
            return MISS                         # a source that cannot be fetched any more is a guard that failed
        try:
            (o0, o1,) = graph(v3, v7)
        except BaseException as error:
            return own_exit(error, (S_0, L_self, L_x))
        body                                    # effects; ends in `return (value, None)` or `return (flat, k)`

Where `env` has "undo", all from the graph on stands in `try: ... except BaseException: undo(); raise`: it puts back the
state that the graph or the body set, wherever a signal's handler raised.

Objects that the guards know by identity are held weakly; a call fetches each and holds it while it compares with it. Once
one is dead the guards fail, and `on_dead` is called. No address of an object is in the text, or in the walk's table, that
the entry does not keep alive.
"""

from __future__ import annotations

import enum
import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytejit.common.interrupts import from_handler
from bytejit.compat import numpy_types

from . import program
from .kinds import EQUALS, GLOBAL_STATE, KINDS, TENSOR, TYPE_IS, VALUE, Guard, GuardSet, State, TensorCheck, same
from .native_checker import CHECKER
from .sources import (
    Cell,
    Constant,
    Known,
    Local,
    Printer,
    Ref,
    Scope,
    Source,
    StackSlot,
    TensorSize,
    TensorStride,
    TupleItem,
    Type,
)

_numbers = itertools.count()
NUMBERS = frozenset({int, float, *numpy_types.NUMBERS})
FEWEST_PASSED_ON = 8       # inputs: fewer are cheaper passed to the graph one by one than as the walk's tuple


class EntryPrinter(Printer):
    """Prints sources for an entry: what is read more than once is fetched into a local on first use.

    `lines` are the statements so far; `hoist` makes every fetch a local (for sources read after the graph has run).
    """

    def __init__(self, env: dict[str, Any], uses: dict[Source, int], types: dict[Source, Ref]):
        super().__init__(env)
        self.uses = uses
        self.types = types                       # sources whose exact type is guarded: type(x) is then a constant
        self.lines: list[str] = []
        self.locals: dict[Source, str] = {}
        # what has been fetched: two sources may print alike (the class of two modules)
        self.by_text: dict[str, str] = {}
        self.checked: set[str] = set()
        self.watched: dict[Ref, None] = {}       # objects held weakly
        self.held: dict[Ref, str] = {}           # of them, those that a local holds during a call
        self.hoist = False
        self.walk: program.Walk | None = None
        self.walk_line = 0                       # where among the lines its call goes

    def source(self, source: Source) -> str:
        if source in self.locals:
            return self.locals[source]
        if type(source) is Type and source.base in self.types:
            return self.ref(self.types[source.base])
        if isinstance(source, (Local, StackSlot, Cell, Constant)) or _held(source):
            return source.expr(self)
        if self.walk is not None and (name := self.walk.local(source)) is not None:
            self.locals[source] = name
            return name
        text = source.expr(self)
        return self.fetch(source, text) if self.hoist or self.uses.get(source, 0) > 1 else text

    def fetch(self, source: Source, text: str) -> str:
        """Emit a fetch of the source into a local, once; the local's name."""
        name = self.by_text.get(text)
        if name is None:
            name = self.by_text[text] = f"v{len(self.by_text)}"
            self.lines.append(f"{name} = {text}")
        self.locals[source] = name
        return name

    def check(self, text: str) -> None:
        """Emit a check, once."""
        if text not in self.checked:
            self.checked.add(text)
            self.lines.append(f"if not ({text}): return MISS")

    def ref(self, ref: Ref) -> str:
        """The object's name. One held weakly is fetched first, once a call: where it is dead, the guards fail."""
        if not ref.weak:
            return super().ref(ref)
        if ref not in self.held:
            self.watch(ref)
            name = self.held[ref] = f"r{len(self.held)}"
            self.lines += [f"{name} = {super().ref(ref)}", f"if {name} is None: return MISS"]
        return self.held[ref]

    def watch(self, ref: Ref) -> None:
        self.watched[ref] = None


def _held(source: Source) -> bool:
    return isinstance(source, (Known, Scope)) and not source.ref.weak


def _count_uses(guards: list[Guard], inputs: list[Source]) -> dict[Source, int]:
    """How often each source is read, by guards, inputs, and other sources that are read."""
    uses: dict[Source, int] = {}

    def read(source: Source, times: int) -> None:
        seen = source in uses
        uses[source] = uses.get(source, 0) + times
        if not seen:
            for base in source.bases():
                read(base, 1)

    for guard in guards:
        read(guard.source, 1 if KINDS[guard.kind].once else 2)
        for other in _more_sources(guard):
            read(other, 1)
    for source in inputs:
        read(source, 1)
    return uses


def _types(guards: list[Guard]) -> dict[Source, Ref]:
    types = {g.source: g.value for g in guards if g.kind == TYPE_IS}
    return types | {g.source: Ref(g.value.type) for g in guards if g.kind == TENSOR}


def _more_sources(guard: Guard) -> list[Source]:
    if guard.kind == "EXPR":
        return [source for _, source in guard.value.names]
    if guard.kind == VALUE:
        return list(guard.value.sources[1:])
    return [guard.value[0]] if guard.kind == "ALIAS" else []


MODES = State("function_modes")


def ordered(guards: GuardSet) -> list[Guard]:
    """Guards in the order in which an entry checks them.

    First the arguments' own (they differ between calls), then global state, then the rest in the order in which the
    trace read them: a guard on an object must come before guards on what is fetched through it.
    """
    def phase(guard: Guard) -> int:
        if guard.kind == VALUE:         # dear, and right only for tensors that have been checked
            return 3
        if guard.kind == GLOBAL_STATE:      # a mode would be told of what the guards ask of tensors
            return -1 if guard.source == MODES else 1
        near = not guard.source.bases() and not any(s.bases() for s in _more_sources(guard))
        return 0 if near and isinstance(guard.source, (Local, StackSlot)) else 2

    return sorted(guards, key=phase)


def compile_entry(params: list[str], guards: GuardSet, inputs: list[Source], body: str | Callable[[Printer], str],
                  env: dict[str, Any], outputs: int = 0, on_dead: Callable[[], None] | None = None,
                  name: str = "entry") -> Callable[..., Any]:
    """Generate the entry function.

    `params` as from `source.params_of`. `env` must hold "MISS", and "graph" and "own_exit" when there are outputs or
    inputs: `graph(*inputs)` returns a tuple of `outputs` values, bound to o0, o1, ...; `own_exit(error,
    args_without_cells)` answers when it raises; "here", if given, is the id of its
    point. `body` is Python over those, `env` names and params; as a function it
    is given a Printer, whose `source()` fetches before the graph runs (so before any effect). `on_dead()` is called
    once when an object that the guards know weakly dies. The function has attributes `text`, `guards` and
    `explain_failure(args) -> str`.
    """
    env = dict(env)
    rows = ordered(guards)
    at = EntryPrinter(env, _count_uses(rows, inputs), _types(rows))
    star = emit_guards(at, rows, inputs)
    at.hoist = True
    args = "" if star else ", ".join(at.source(s) for s in inputs)
    tail = body if isinstance(body, str) else body(at)
    words = None
    if at.walk is not None:
        call, words = at.walk.text("w")
        at.lines[at.walk_line:at.walk_line] = call
        if star:
            args = "*w" if len(at.walk.wanted) == len(inputs) else f"*w[:{len(inputs)}]"
    lines = [f"def {name}({', '.join(params)}):"]
    if at.lines:
        lines += ["    try:", *("        " + line for line in at.lines),
                  "    except RecursionError:", "        return MISS",
                  "    except Exception as error:", "        if from_handler(error): raise", "        return MISS"]
        env["from_handler"] = from_handler
    head, lines = lines, []
    if "graph" in env:
        targets = "".join(f"o{i}, " for i in range(outputs))
        call = f"({targets.rstrip()}) = graph({args})" if outputs else f"graph({args})"
        state = "".join(p + ", " for p in params if not p.startswith("C_"))
        lines += ["    try:", f"        {call}"]
        if "here" in env:       # no frame was left for the graph, so none may be for `own_exit`
            lines += ["    except RecursionError as error:",
                      f"        if error.__traceback__.tb_next is None: return ({state}), here",
                      f"        return own_exit(error, ({state}))"]
        lines += ["    except BaseException as error:", f"        return own_exit(error, ({state}))"]
    lines += ["    " + line for line in tail.splitlines()]
    if "undo" in env:
        lines = ["    try:", *("    " + line for line in lines), "    except BaseException:", "        undo()", "        raise"]
    fn = _define(name, "\n".join([*head, *lines]) + "\n", env)
    fn.guards = guards
    fn.table = words
    fn.explain_failure = lambda args: explain_failure(params, rows, args)
    fn.changed = lambda args: changed_sizes(params, rows, args)
    _die_with(fn, at.watched, on_dead)
    return fn


def emit_guards(at: EntryPrinter, rows: list[Guard], inputs: list[Source]) -> bool:
    """Append all checks to the printer's lines. Whether `inputs` are the first values that the walk hands out.

    Where checks can be compiled and are worth it, a walk makes those that it can, tensors that are reached through
    objects last; global state is checked before it, and the rest after it.
    """
    walk = program.Walk(at) if CHECKER.usable else None
    if walk is not None:
        far = [g.kind == TENSOR and bool(g.source.bases()) for g in rows]
        first = [g for g, late in zip(rows, far) if not late]
        kept = [g for g in (*first, *(g for g, late in zip(rows, far) if late)) if not walk.take(g)]
        rows = kept if walk.pays else rows
    star = False
    if walk is not None and walk.pays:
        star = len(inputs) >= FEWEST_PASSED_ON and walk.want_all(inputs)
        for guard in rows:
            if guard.kind == GLOBAL_STATE:
                _check(at, guard)
        at.walk, at.walk_line = walk, len(at.lines)
        rows = [g for g in rows if g.kind != GLOBAL_STATE]
    for guard in rows:
        _check(at, guard)
    return star


def _check(at: EntryPrinter, guard: Guard) -> None:
    at.check(KINDS[guard.kind].check(at, at.source(guard.source), guard.value))


def _define(name: str, text: str, env: dict[str, Any]) -> Callable[..., Any]:
    """Run the text; tracebacks show its lines."""
    filename = f"<bytejit {name} {next(_numbers)}>"
    exec(compile(text, filename, "exec"), env)
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    fn = env.pop(name)
    fn.text = text
    weakref.finalize(fn, linecache.cache.pop, filename, None).atexit = False
    return fn


def _die_with(fn: Any, refs: Iterable[Ref], on_dead: Callable[[], None] | None) -> None:
    """Call `on_dead` once one of the objects dies: nothing can match any more. This only tidies up: the guards fail by
    themselves, as they look at the objects through weak references."""
    this = weakref.ref(fn)

    def died(_: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        entry = None if ending() else this()      # at exit the modules that on_dead uses are gone
        if entry is not None and entry.watches:
            entry.watches = ()
            on_dead()

    weak = [] if on_dead is None else [obj for ref in refs if ref.weak and (obj := ref.get()) is not None]
    fn.watches = tuple(weakref.ref(obj, died) for obj in weak)


# ---- which guard failed (slow path) ------------------------------------------------------------------------------

def explain_failure(params: list[str], rows: list[Guard], args: tuple) -> str:
    """The first guard that fails on these arguments, with the value seen; "no guard fails" when all hold."""
    frame = dict(zip(params, args))
    for guard in rows:
        if _is_dead(guard):
            return f"what {guard.source.name()} was compared with is dead: {guard.value!r}{_line(guard)}"
        at = Printer()
        text = guard.source.expr(at)
        try:
            value = eval(text, {**at.env, **frame})
        except Exception as error:
            return f"{guard.source.name()} cannot be fetched: {type(error).__name__}: {error}{_line(guard)}"
        try:
            check = KINDS[guard.kind].check(at, "_x", guard.value)
            holds = eval(check, {**at.env, **frame, "_x": value})
        except Exception as error:
            return f"{guard!r}: the check raised {type(error).__name__}: {error}"
        if not holds:
            return _explain(guard, value) + _line(guard)
    return "no guard fails"


def _is_dead(guard: Guard) -> bool:
    """Whether an object that the guard names is dead."""
    named = guard.value if type(guard.value) is tuple else (guard.value,)
    return any(isinstance(ref, Ref) and ref.weak and ref.get() is None for ref in named)


def changed_sizes(params: list[str], rows: list[Guard], args: tuple) -> dict[Source, int]:
    """The sizes, strides, ints and floats that differ on these arguments from what the entry's guards have: TensorSize,
    TensorStride, or a number's own source. And those that were symbolic, where a condition on them does not hold.
    With each what it was, where that is a size above 1; 0 for others."""
    frame = dict(zip(params, args))
    found: dict[Source, int] = {}
    for guard in rows:
        if guard.kind == "EXPR" and not _holds(guard, frame):
            found.update((source, 0) for _, source in guard.value.names if source not in found)
        if guard.kind != TENSOR and (guard.kind != EQUALS or not _has_number(guard.value)):
            continue
        at = Printer()
        try:
            value = eval(guard.source.expr(at), {**at.env, **frame})
        except Exception:       # not there any more: nothing is known of its size
            continue
        if guard.kind == EQUALS:
            found.update(dict.fromkeys(_changed_numbers(guard, value), 0))
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided and value.dim() == len(guard.value.shape):
            found.update(_changed_dims(guard.source, guard.value, value))
    return found


def _holds(guard: Guard, frame: dict[str, Any]) -> bool:
    at = Printer()
    text = KINDS[guard.kind].check(at, "", guard.value)
    try:
        return bool(eval(text, {**at.env, **frame}))
    except Exception:           # a tensor that has no such dimension: another guard fails too
        return True


def _has_number(value: Any) -> bool:
    return type(value) in NUMBERS or isinstance(value, tuple) and any(type(v) in NUMBERS for v in value)


def _changed_numbers(guard: Guard, value: Any) -> set[Source]:
    if type(value) in NUMBERS and type(guard.value) is type(value):
        return {guard.source} if not same(value, guard.value) else set()
    if type(value) is type(guard.value) and isinstance(value, tuple) and len(value) == len(guard.value):
        return {TupleItem(guard.source, i) for i, (a, b) in enumerate(zip(value, guard.value))
                if type(a) in NUMBERS and type(b) is type(a) and not same(a, b)}
    return set()


def _changed_dims(source: Source, check: TensorCheck, value: torch.Tensor) -> dict[Source, int]:
    """Sizes that differ; a stride that differs where it cannot be for a size of the same tensor."""
    sizes: dict[Source, int] = {TensorSize(source, i): b if b > 1 else 0
                                for i, (a, b) in enumerate(zip(value.shape, check.shape)) if b >= 0 and a != b}
    steps = {TensorStride(source, i): 0 for i, (a, b) in enumerate(zip(value.stride(), check.stride))
             if b is not None and b >= 0 and a != b}
    return sizes | steps


def _line(guard: Guard) -> str:
    return f" ({guard.where})" if guard.where else ""


def _explain(guard: Guard, value: Any) -> str:
    row = KINDS[guard.kind]
    want = guard.value[0].name() if guard.kind == "ALIAS" else guard.value
    got: Any = ""
    if row.seen:
        try:
            got = eval(row.seen.format(x="_x"), {"_x": value})
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
    return row.says.format(name=guard.source.name(), want=_show(want), got=_show(got))


def _show(value: Any) -> str:
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            return f"a {value.layout} tensor"
        return repr(TensorCheck.of(value))
    if type(value) is str:
        return value if len(value) < 200 else value[:200] + "..."
    if not _has_plain_repr(value):
        return f"a {type(value).__qualname__}"
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) < 200 else text[:200] + "..."


def _has_plain_repr(value: Any) -> bool:
    """Whether repr(value) runs no code of the program, which may have effects or take long."""
    if type(value) in (list, tuple, set, frozenset, dict):
        inside = [*value, *value.values()] if type(value) is dict else [*value]
        return len(inside) < 100 and all(map(_has_plain_repr, inside))
    return type(value).__module__.partition(".")[0] in ("builtins", "torch", "numpy", "bytejit", "types") or issubclass(
        type(value), enum.Enum)
