"""A guard set, inputs and a body -> one generated Python function: the entry that a site's dispatcher calls (hot path).

    def entry(S_0, L_self, L_x, C_y):
        try:
            if not (guard): return MISS         # what is fetched more than once goes into a local: v0, v1, ...
            w = run(table, L_self, L_x)         # where checks can be compiled: most of the guards and fetches
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
one is dead the guards fail, and `on_dead` is called. The text and the table of the guard program name no object by its
address that the entry does not keep alive.
"""

from __future__ import annotations

import array
import itertools
import linecache
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from bytejit.common.interrupts import from_handler
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.profiling import FLAG_TEXT
from bytejit.runtime.entry import Args, Entry

from .entry_printer import EntryPrinter, count_uses, guarded_types, ordered
from .explain import between_modules, changed_numbers, explain_failure, fails_by_class
from .guard_set import Guard, GuardSet
from .kinds import GLOBAL_STATE, ID_IS, KINDS, TENSOR
from .native_checker import CHECKER
from .program import GuardProgram
from .sources import Ref, Source, SourcePrinter

_numbers = itertools.count()
FEWEST_PASSED_ON = 8  # inputs: fewer are cheaper passed to the graph one by one than as the program's tuple


class GuardedEntry(Entry):
    """An entry with guards. `table`: of its guard program, None where all guards are checked from Python."""

    __slots__ = ("guards", "text", "table", "watches", "_params", "_ordered")

    def __init__(self, run: Callable, text: str, guards: GuardSet, params: list[str], rows: list[Guard]) -> None:
        super().__init__(run)
        self.guards: GuardSet = guards
        self.text = text
        self.table: array.array | None = None
        self.watches: tuple[weakref.ref, ...] = ()  # of the objects without which the guards can never hold again
        self._params, self._ordered = params, rows

    def explain_failure(self, args: Args) -> str:
        """The first guard that fails on these arguments, with the value seen; "no guard fails" when all hold."""
        return explain_failure(self._params, self._ordered, args)

    def fails_by_class(self, args: Args) -> bool:
        """Whether it fits but for a class that the program has made anew."""
        return fails_by_class(self._params, self._ordered, args)

    def changed_numbers(self, args: Args) -> dict[Hashable, int]:
        """The sources of sizes, strides, ints and floats that differ from what the guards have; each with the size above 1
        that it had, or 0."""
        return {source: size for source, size in changed_numbers(self._params, self._ordered, args).items()}

    def between_modules(self, args: Args) -> tuple[set[Hashable], set[Hashable]]:
        """Sources of integers that modules hold, and of lengths, that differ from what the guards have."""
        numbers, lengths = between_modules(self._params, self._ordered, args)
        return {*numbers}, {*lengths}

    def dead_objects(self) -> list[Hashable]:
        """Sources of objects that the guards know by identity, and that have died."""
        known = ((g.source, g.value) for g in self._ordered if g.kind == ID_IS)
        return [source for source, ref in known if isinstance(ref, Ref) and ref.weak and ref.get() is None]

    def tell_when_dead(self, refs: Iterable[Ref], on_dead: Callable[[Entry], None]) -> None:
        """Call `on_dead` once one of the objects dies: nothing can match any more. This only tidies up: the guards fail by
        themselves, as they look at the objects through weak references."""
        this = weakref.ref(self)

        def died(_: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
            entry = None if ending() else this()  # at exit the modules that on_dead uses are gone
            if entry is not None and entry.watches:
                entry.watches = ()
                on_dead(entry)

        self.watches = tuple(weakref.ref(obj, died) for ref in refs if ref.weak and (obj := ref.get()) is not None)


@light_dataclass(frozen=True)
class Work:
    """What an entry does when its guards hold: call the graph, then run the body.

    `env` must hold "MISS", and "graph" and "own_exit" when there are outputs or inputs: `graph(*inputs)` returns a tuple of
    `outputs` values, bound to o0, o1, ...; `own_exit(error, args_without_cells)` is returned when it raises. "here", if
    given, is the id of the entry's point; "profiled", if given, calls the graph, its first argument, while `profiler` is
    active. `body` is Python over those, `env` names and params; as a function it is given a Printer, whose `source()`
    fetches before the graph runs (so before any effect). What the guards fetched of `only_looked_at` is let go before the
    graph runs.
    """

    inputs: list[Source]
    body: str | Callable[[SourcePrinter], str]
    env: dict[str, Any]
    outputs: int = 0
    only_looked_at: Sequence[Source] = ()


def compile_entry(
    params: list[str],
    guards: GuardSet,
    work: Work,
    on_dead: Callable[[Entry], None] | None = None,
    name: str = "entry",
) -> GuardedEntry:
    """Generate an entry. `params` as from `source.params_of`. `on_dead(entry)` is called once when an object that the guards
    know weakly dies.
    """
    env, inputs = dict(work.env), work.inputs
    rows = ordered(guards)
    at = EntryPrinter(env, count_uses(rows, inputs), guarded_types(rows))
    star = emit_guards(at, rows, inputs)
    at.hoist = True
    args = "" if star else ", ".join(at.source(s) for s in inputs)
    tail = work.body if isinstance(work.body, str) else work.body(at)
    table = None
    let_go = set(work.only_looked_at)
    needed = {name for s, name in at.locals.items() if s not in let_go}
    done_with = dict.fromkeys(at.locals[s] for s in work.only_looked_at if s in at.locals and at.locals[s] not in needed)
    if done_with:
        at.lines.append(f"{' = '.join(done_with)} = None")
    if at.program is not None:
        call, table = at.program.text("w")
        at.lines[at.program_line : at.program_line] = call
        if star:
            args = "*w" if len(at.program.wanted) == len(inputs) else f"*w[:{len(inputs)}]"
    lines = [f"def {name}({', '.join(params)}):", *_guard_lines(at, env), *_work_lines(params, env, args, work.outputs, tail)]
    text = "\n".join(lines) + "\n"
    entry = GuardedEntry(_define(name, text, env), text, guards, params, rows)
    entry.table = table
    if on_dead is not None:
        entry.tell_when_dead(at.watched, on_dead)
    return entry


def _guard_lines(at: EntryPrinter, env: dict[str, Any]) -> list[str]:
    """Returns the lines that check all guards. A source that cannot be fetched is a guard that failed. Exceptions of a signal's
    handler reach the program."""
    if not at.lines:
        return []
    env["from_handler"] = from_handler
    return [
        "    try:",
        *("        " + line for line in at.lines),
        "    except RecursionError:",
        "        return MISS",
        "    except Exception as error:",
        "        if from_handler(error): raise",
        "        return MISS",
    ]


def _work_lines(params: list[str], env: dict[str, Any], args: str, outputs: int, tail: str) -> list[str]:
    """The graph's call with `args`, and the body."""
    lines = []
    if "graph" in env:
        targets = "".join(f"o{i}, " for i in range(outputs))
        given = f"graph, {args}" if args else "graph"
        call = f"profiled({given}) if {FLAG_TEXT} else graph({args})" if "profiled" in env else f"graph({args})"
        call = f"({targets.rstrip()}) = {call}" if outputs else call
        state = "".join(p + ", " for p in params if not p.startswith("C_"))
        lines += ["    try:", f"        {call}"]
        if "here" in env:  # no frame was left for the graph, so none may be for `own_exit`
            lines += [
                "    except RecursionError as error:",
                f"        if error.__traceback__.tb_next is None: return ({state}), here",
                f"        return own_exit(error, ({state}))",
            ]
        lines += ["    except BaseException as error:", f"        return own_exit(error, ({state}))"]
    lines += ["    " + line for line in tail.splitlines()]
    if "undo" in env:
        lines = ["    try:", *("    " + line for line in lines), "    except BaseException:", "        undo()", "        raise"]
    return lines


def emit_guards(at: EntryPrinter, rows: list[Guard], inputs: list[Source]) -> bool:
    """Append all checks to the printer's lines. Whether `inputs` are the first values that the program hands out.

    Where checks can be compiled and are worth it, a guard program makes those that it can, global state first, tensors that are
    reached through objects last. Global state that it cannot check is checked before it, and the rest after it.
    """
    program = GuardProgram(at) if CHECKER.usable else None
    if program is not None:
        kept = [g for g in sorted(rows, key=_phase) if not program.take(g)]
        rows = kept if program.pays else rows
    star = False
    if program is not None and program.pays:
        star = len(inputs) >= FEWEST_PASSED_ON and program.want_all(inputs)
        for guard in rows:
            if guard.kind == GLOBAL_STATE:
                _check(at, guard)
        at.program, at.program_line = program, len(at.lines)
        rows = [g for g in rows if g.kind != GLOBAL_STATE]
    for guard in rows:
        _check(at, guard)
    return star


def _phase(guard: Guard) -> int:
    """When a guard program checks a guard: modes of torch would be told of what the others ask of tensors."""
    return 0 if guard.kind == GLOBAL_STATE else 2 if guard.kind == TENSOR and guard.source.bases() else 1


def _check(at: EntryPrinter, guard: Guard) -> None:
    at.check(KINDS[guard.kind].check(at, at.source(guard.source), guard.value))


def _define(name: str, text: str, env: dict[str, Any]) -> Callable[..., Any]:
    """Run the text; tracebacks show its lines."""
    filename = f"<bytejit {name} {next(_numbers)}>"
    exec(compile(text, filename, "exec"), env)
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    fn = env.pop(name)
    weakref.finalize(fn, linecache.cache.pop, filename, None).atexit = False
    return fn
