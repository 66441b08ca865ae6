"""Plan -> C++: one translation unit for a graph (two when it is large), with a `run` function for each sequence of kernels
between two library calls.

    source = emit_cpp(plan)
    source.units      texts of the translation units
    source.runs       for each sequence of kernels: its unit and function, and the pointers and sizes it takes, in order

Kernels that differ only in their buffers, or in the offset at which they begin, are one function: a BERT has 12 equal layers.
The user's line is a comment beside each statement; kernels that differ only in comments are equal.

A unit contains the kernels (`static void` functions of pointers, sizes, threads and an error) and the run functions. A run
function is a Python builtin function (METH_FASTCALL), which the unit makes itself. It is called with addresses, sizes and
`torch.get_num_threads()`, and returns an error code: 0 is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bytejit.codegen.emit import common
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.ops.table import OpTable
from bytejit.codegen.ops.table import table as op_table
from bytejit.common.light_dataclass import light_dataclass

from .kernel import KernelPrinter
from .reductions import CppText

HEAD = '#include "glue.h"\n#define BJ_KERNEL static __attribute__((noinline)) void\n'
UNIT_CHARS = 12_000  # characters: with more kernel text, a second translation unit is worth starting the compiler twice
RELEASE_BYTES = 1 << 18  # bytes of traffic above which a run releases the GIL


@light_dataclass(frozen=True)
class UnitFunction:
    """A function of a unit. args: what a call passes, in order: ("buffer", name), ("arena", ""), ("slot", number),
    ("size", symbol), ("threads", "").

    raises: it returns an error code that is not zero when a check failed.
    """

    steps: tuple[int, ...]
    unit: int
    function: str
    args: tuple[tuple[str, str], ...]
    raises: bool = False

    def __repr__(self) -> str:
        return f"run {self.function} of unit {self.unit}: steps {self.steps[0]}..{self.steps[-1]}"


@light_dataclass(frozen=True)
class CppSource:
    """What emit_cpp returns. kernels: number of distinct kernel functions; bytes: read and written in one call of the graph."""

    units: tuple[str, ...]
    runs: tuple[UnitFunction, ...]
    kernels: int
    bytes: int

    def __repr__(self) -> str:
        counts = f"{len(self.units)} units, {self.kernels} kernels, {len(self.runs)} runs"
        return f"C++ source: {counts}, {self.bytes} bytes a call"


@dataclass
class Kernels:
    """Distinct kernels: text without name and comments -> (name, text, raises)."""

    found: dict[str, tuple[str, CppText, bool]]

    def add(self, printer: KernelPrinter) -> tuple[str, bool]:
        text = printer.print()
        key = text.plain()
        if key not in self.found:
            self.found[key] = (f"k{len(self.found)}", text, printer.raises)
        name, _, raises = self.found[key]
        return name, raises


def emit_cpp(plan: Plan, max_units: int = 2) -> CppSource:
    """The C++ of a plan. Deterministic: equal plans give equal text."""
    rows = op_table()
    kernels, total = Kernels({}), 0
    bodies: dict[str, str] = {}
    runs: list[tuple[tuple[int, ...], tuple, bool, str]] = []
    for steps in common.segments(plan):
        calls = [call for i in steps if isinstance(call := plan.steps[i], Call)]
        if not calls:
            continue
        body, args, raises, traffic = _run(plan, calls, kernels, rows)
        total += traffic
        bodies.setdefault(body, f"run{len(bodies)}")
        runs.append((tuple(steps), args, raises, body))
    names = {name: text for name, text, _ in kernels.found.values()}
    units, place = _units(names, bodies, max_units)
    made = tuple(UnitFunction(steps, place[body], bodies[body], args, raises) for steps, args, raises, body in runs)
    return CppSource(units, made, len(names), total)


def _run(plan: Plan, calls: list[Call], kernels: Kernels, rows: OpTable) -> tuple[str, tuple, bool, int]:
    """(body of the run's function, its arguments, raises, traffic). The body names kernels and a[...], no buffers."""
    args: dict[tuple[str, str], str] = {}
    lines: list[str] = []
    any_raises, parallel, traffic, failed = False, False, 0, False
    for call in calls:
        printer = KernelPrinter(call, plan.buffers, rows, "@")
        name, raises = kernels.add(printer)
        any_raises, parallel = any_raises or raises, parallel or bool(call.schedule.parallel or call.schedule.split)
        traffic += common.traffic(plan, call)
        passed = [_pointer(plan, b, args, printer.starts.get(b, 0)) for b in (*call.reads, *call.writes)]
        passed += [args.setdefault(("size", s), f"n{len(args)}") for s in printer.symbols]
        # after a kernel has failed no input may be written: the caller then runs the program's own code
        guard = "if (!err) " if failed and any(plan.buffers[b].kind == "input" for b in call.writes) else ""
        failed = failed or raises
        lines.append(f"    {guard}{name}({', '.join([*passed, 'threads', '&err'])});")
    out = []
    for i, ((kind, _), name) in enumerate(args.items()):
        out.append(f"    i64 {name} = integer(a[{i}]);" if kind == "size" else f"    u8* {name} = pointer<u8>(a[{i}]);")
    out.append(f"    i64 threads = {f'integer(a[{len(args)}])' if parallel else '1'};")
    out.append("    i32 err = 0;")
    release = traffic >= RELEASE_BYTES
    out += ["    void* state = PyEval_SaveThread();"] * release + lines + ["    PyEval_RestoreThread(state);"] * release
    out.append("    return PyLong_FromLong(err);")
    listed = tuple(args) + ((("threads", ""),) if parallel else ())
    return "\n".join(out), listed, any_raises, traffic


def _pointer(plan: Plan, name: str, args: dict[tuple[str, str], str], start: int) -> str:
    """A kernel's argument for a buffer: a pointer that was passed, or an address in the arena. start: elements to skip."""
    b = plan.buffers[name]
    more = f" + {start}" if start else ""
    if name in plan.slots:
        return f"({b.dtype}*){args.setdefault(('slot', str(plan.slots[name])), f'n{len(args)}')}{more}"
    if name in plan.offsets:
        base = args.setdefault(("arena", ""), f"n{len(args)}")
        return f"({b.dtype}*)({base} + {plan.offsets[name]}){more}"
    return f"({b.dtype}*){args.setdefault(('buffer', name), f'n{len(args)}')}{more}"


def _units(names: Mapping[str, CppText], bodies: Mapping[str, str], max_units: int) -> tuple[tuple[str, ...], dict[str, int]]:
    """Unit texts, and the unit of each run body. A kernel is in every unit that has a run with it."""
    sizes = {name: len(text.plain()) for name, text in names.items()}
    count = max(1, min(max_units, 1 + sum(sizes.values()) // UNIT_CHARS, len(bodies)))
    held: list[dict[str, None]] = [{} for _ in range(count)]
    place: dict[str, int] = {}
    uses = {body: [k for k in names if f" {k}(" in body] for body in bodies}
    for body in sorted(bodies, key=lambda b: -sum(sizes[k] for k in uses[b])):
        load = [sum(sizes[k] for k in {**unit, **dict.fromkeys(uses[body])}) for unit in held]
        place[body] = load.index(min(load))
        held[place[body]].update(dict.fromkeys(uses[body]))
    texts = []
    for u in range(count):
        inside = [(body, fn) for body, fn in bodies.items() if place[body] == u]
        kernels = [text.full().replace("@", name) for name, text in names.items() if name in held[u]]
        runs = [f"static PyObject* {fn}(PyObject*, PyObject* const* a, bj_size) {{\n{body}\n}}" for body, fn in inside]
        entries = ", ".join(f'{{"{fn}", {fn}, 0x80, nullptr}}' for _, fn in inside)
        tail = f"static bj::Method table[] = {{{entries}}};\nBJ_EXPORT(table, {len(inside)})\n"
        texts.append("\n\n".join([HEAD, *kernels, *runs, tail]) if inside else "")
    return tuple(t for t in texts if t), place
