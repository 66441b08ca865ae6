"""Plan -> the Python function that runs it: allocations, runs of kernels, library calls, writes into inputs, outputs.

    def call(p0, p1):
        o0 = new_f32((64, 128), (128, 1))
        run0(p0.data_ptr(), p1.data_ptr(), o0.data_ptr(), threads())
        return (o0,)

Every constant is a default argument, as a local is the fastest name. Internal buffers lie in an arena, one allocation that is
kept between calls. A call takes an arena out of `pool` and puts it back at its end, so that two threads, or a call within a call,
never share one. The views of the arena that library calls read or write are made once, with the arena. The result of a library
call is freed behind the last step that uses it: the next one is made in the same memory, which is in the cache. So are the inputs
of a graph that is boxed: `call` takes them in one list, which it empties.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.codegen.aten.graph import Out
from bytejit.codegen.aten.output_text import output_text
from bytejit.codegen.emit.call_source import CallSource, fail
from bytejit.codegen.emit.memory import SlotMemory, arena_maker, fixed
from bytejit.codegen.loops.ir import Buffer, Extern, MutationCopy, View
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.codegen.ops.extern import is_window, resolve
from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import DTYPES, itemsize, torch_dtype
from bytejit.common.profiling import FLAG, FLAG_TEXT, in_scopes
from bytejit.common.where import Where

from .boxed_inputs import freeing
from .check import CheckLine, UncheckedLine, steady_check, words_of
from .operands import Operands

SET_VERSIONS = torch._C._autograd._unsafe_set_version_counter
TOGETHER = 4  # at least so many copies into inputs are made by one call


class CallPrinter(Operands):
    """Prints one plan."""

    # ---- methods that a printer for another device overrides ------------------------------------------------------
    def dead(self, step: int) -> list[str]:
        """The locals that no step behind this one needs."""
        return [self.text[b] for b in self.plan.steps[step].free if b in self.text]

    def needs_memory(self) -> bool:
        """Whether the call needs an arena. It may have 0 bytes, when all temps have no elements."""
        return bool(self.plan.arena or self.views) or any(kind == "arena" for run in self.source.runs for kind, _ in run.args)

    def opening(self) -> list[str]:
        """The first lines."""
        return []

    def closing(self) -> list[str]:
        """The last lines before the return."""
        return []

    def passed(self) -> str:
        """The text of the inputs as arguments of a call to the function."""
        given = "".join(f"p{i}, " for i in range(self.given))
        return f"[{given}]" if self.boxed else given

    # ---- steps ----------------------------------------------------------------------------------------------------
    def run(self, run: Any, fn: Any) -> None:
        """Prints one call of a unit's function."""
        args = []
        for kind, name in run.args:
            if kind == "buffer":
                args.append(self.pointer(name))
            elif kind == "size":
                args.append(self.symbol(name))
            else:
                args.append(f"slot{name}" if kind == "slot" else kind)
        if "threads" in args:
            self.bind("threads", torch.get_num_threads)
            args[args.index("threads")] = "threads()"
        name = self.bind(f"run{run.unit}_{run.function[3:]}", fn)
        self.scopes[name] = fn, kernels_text(self.plan, run.steps)
        call = f"{name}({', '.join(args)})"
        self.lines.append(f"err = {call}" if run.raises else call)
        if run.raises:
            self.bind("fail", fail)
            self.lines.append("if err: fail(err)")

    def pointer(self, buffer: str) -> str:
        """The address of a buffer; one used in several runs is fetched once."""
        if buffer in self.pointers:
            return self.pointers[buffer]
        text = f"{self.tensor(buffer)}.data_ptr()"
        if self.uses.get(buffer, 0) > 1:
            name = self.pointers[buffer] = f"d{len(self.pointers)}"
            self.lines.append(f"{name} = {text}")
            return name
        return text

    def extern(self, step: ExternCall) -> None:
        """Prints one library call."""
        e = step.extern
        self.externs.append((e.target, e.reason))
        args = [self.value(a) for a in e.args] + [f"{k}={self.value(v)}" for k, v in e.kwargs]
        at = {"aten.as_strided.default": 3, "aten.as_strided_scatter.default": 4}.get(e.target)
        if at:  # torch counts offsets from the start of the storage, the graph from the tensor's first element
            args[at:] = [f"{args[0]}.storage_offset() + {args[at] if len(args) > at else 0}"]
        if e.into:
            args.append(f"out={self.tensor(e.outs[0])}")
        fn = self.overrides.get(e.target)
        call = f"{self.bind(e.target.replace('.', '_').replace('::', '_'), fn or resolve(e.target))}({', '.join(args)})"
        if e.into:
            self.lines.append(call)
            if self.plan.buffers[e.outs[0]].kind == "output":
                self.lines.append(f"{self.bind('as_new', as_new)}({self.tensor(e.outs[0])})")
            return
        results = []
        for name in e.outs:
            results.append("_" if name is None else f"e{sum(t[0] == 'e' for t in self.text.values())}")
            if name is not None:
                self.text[name] = results[-1]
        many = len(results) > 1 or _returns_many(e.target)
        left = ", ".join(results) + ("," if many and len(results) == 1 else "")
        self.lines.append(f"{left} = {call}" if results else call)
        row = table().by_aten.get(e.target)
        for i, name in enumerate(e.outs):
            if name is not None and (row is None or i not in row.unsized):
                self._check(self.text[name], self.plan.buffers[name], e)

    def _check(self, text: str, b: Buffer, e: Extern) -> None:
        """Adds lines that check a result of a library call: it is as kernels and later views expect it and, in the checking
        version, not in the memory of a temp. text: the local that holds it; b: its buffer."""
        given = [
            v.buffer
            for a in (*e.args, *(v for _, v in e.kwargs))
            for v in (a if isinstance(a, tuple) else (a,))
            if isinstance(v, View) and self.plan.buffers[v.buffer].kind == "temp"
        ]
        temps = "".join(f"{self.tensor(n)}, " for n in dict.fromkeys(given if not is_window(e.target) else ()))
        if b.dtype in DTYPES:
            self.bind("fit", self.library_results.fit)
            dtype = self.bind(b.dtype, torch_dtype(b.dtype))
            name = repr(e.name) if len(e.outs) == 1 else "''"
            self.lines.append(
                CheckLine(
                    f"{text} = fit({text}, {self.dims(b.shape)}, {self.dims(b.stride)}, {dtype}, {e.target!r}, {name}, read)"
                )
            )
            self.bind("steady", steady_check())
            self.bind("again", self.library_results.again)
            at = self.words
            self.words += words_of(len(b.shape))
            self.lines.append(
                UncheckedLine(f"if not steady(words, {at}, {text}): {text} = again(words, {at}, {text}, {e.target!r})")
            )
        if temps:
            self.bind("own", self.library_results.own)
            self.lines.append(CheckLine(f"{text} = own({text}, {e.target!r}, ({temps}))"))

    def print(self, outs: Sequence[Out] | None, single: bool) -> CallSource:
        """The whole function. outs: how user outputs are made (none: the flat tuple of plan outputs)."""
        for i, step in enumerate(self.plan.steps):
            self.at = i
            if i == self.safe_from:
                self.find_old_grads()
            if isinstance(step, ExternCall):
                self.extern(step)
            elif i in self.runs:
                self.run(*self.runs[i])
            if dead := self.dead(i):
                self.lines.append(f"del {', '.join(dead)}")
        flat = [self.value(r.const) if r.view is None else self.view(r.view) for r in self.plan.outputs]
        written = [m for m in self.plan.mutations if not m.done]
        if outs is None or len(written) + len({str(o) for o in flat}) > len(set(flat)):
            flat = [self._named(i, t) for i, t in enumerate(flat)]
        self._copies(written, flat)
        for m in self.plan.mutations:
            if m.done:
                self.bind("bump", torch.autograd.graph.increment_version)
                self.lines.append(f"bump(p{m.input})")
        results = flat if outs is None else [output_text(self, o, flat) for o in outs]
        if self.plan.slot_bytes or not all(map(fixed, self.views)):
            self._slots()
        elif self.needs_memory():
            self._arena()
        self.lines[:0] = [*self.opening(), *self.head]
        if self.scopes:
            self.bind("profiler", FLAG)
            self.bind("scopes", in_scopes(self.scopes))
            self.lines.insert(0, f"if {FLAG_TEXT}: {', '.join(self.scopes)}, = scopes()")
        self.lines += self.closing()
        shown = results[0] if single else "(" + "".join(r + ", " for r in results) + ")"
        return self._function(shown)

    def _copies(self, written: list[MutationCopy], flat: list[str]) -> None:
        """Copy values into inputs at the end of the call. Many copies of one dtype are made by one call, which on a GPU needs few
        launches. A value that is another input, or a part of one, is copied by itself, in order."""
        fresh: list[MutationCopy] = []
        apart: list[MutationCopy] = []
        for m in written:
            v = self.plan.outputs[m.position].view
            (apart if v is None or self.plan.buffers[v.buffer].kind == "input" else fresh).append(m)
        if len(fresh) < TOGETHER:
            fresh, apart = [], written
        for m in apart:
            self.lines.append(f"p{m.input}.copy_({flat[m.position]})")
        for dtype in dict.fromkeys(map(self._written_dtype, fresh)):
            copy, alike = self.bind("copy_all", torch._foreach_copy_), [m for m in fresh if self._written_dtype(m) == dtype]
            into, values = ", ".join(f"p{m.input}" for m in alike), ", ".join(flat[m.position] for m in alike)
            self.lines.append(f"{copy}([{into}], [{values}])")

    def _written_dtype(self, m: MutationCopy) -> str:
        """The dtype of a value that is copied into an input."""
        view = self.plan.outputs[m.position].view
        return self.plan.buffers[view.buffer].dtype if view is not None else ""

    def _named(self, i: int, text: str) -> str:
        if text.isidentifier():
            return text
        self.lines.append(f"f{i} = {text}")
        return f"f{i}"

    def _arena(self) -> None:
        """Take an arena at the start of the call and put it back at the end."""
        rows = []
        for v in self.views:
            b = self.plan.buffers[v.buffer]
            dtype = torch_dtype(b.dtype)
            rows.append((self.plan.offsets[v.buffer] + v.offset * dtype.itemsize, dtype, v.shape, v.stride))
        self.bind("pool", [])
        self.bind("make_arena", arena_maker(self.plan.arena, rows))
        head = ["try:", "    whole = pool.pop()", "except IndexError:", "    whole = make_arena()"]
        head.append(f"{', '.join(['arena', '_', *self.views.values()])} = whole")
        self.lines[:0] = head
        self.lines.append("pool.append(whole)")

    def _slots(self) -> None:
        """The same for a plan with temps, or views of them, of symbolic size: `SlotMemory.at` returns their addresses for the
        sizes of this call."""
        rows, dtypes = [], {}
        for v in self.views:
            b = self.plan.buffers[v.buffer]
            dtypes[b.dtype] = torch_dtype(b.dtype)
            start = v.offset * itemsize(b.dtype) + self.plan.offsets.get(b.name, 0)
            rows.append(
                f"({self.plan.slots.get(b.name)}, {self.size(start)}, {b.dtype}, {self.dims(v.shape)}, {self.dims(v.stride)})"
            )
        wanted = [
            f"max({', '.join(map(self.size, sizes))})" if len(sizes) > 1 else self.size(sizes[0])
            for sizes in self.plan.slot_bytes
        ]
        text = f"({''.join(w + ', ' for w in wanted)}), ({''.join(r + ', ' for r in rows)})"
        used = sorted({n for n in self.symbols.values() if n and re.search(rf"\b{n}\b", text)})
        layout = eval(f"lambda {', '.join(used)}: ({text})", dtypes)
        self.bind("pool", [])
        self.bind("make_memory", functools.partial(SlotMemory, self.plan.arena, layout))
        self.head += ["try:", "    whole = pool.pop()", "except IndexError:", "    whole = make_memory()"]
        held = ["arena", *(f"slot{i}" for i in range(len(wanted))), *self.views.values()]
        self.head.append(f"{', '.join(held)}, = whole.at({', '.join(used)})")
        self.lines.append("pool.append(whole)")

    def constant(self, value: Any) -> str:
        """The name of a constant among the outputs."""
        return self.bind(f"c_{len(self.names)}", value)

    def input_text(self, index: int) -> str:
        """The name of an input, or of a constant of the graph."""
        return f"p{index}"

    def _freeing(self, result: str) -> list[str]:
        """The lines, each input deleted behind the last one that needs it."""
        tensors = [f"p{i}" for i, b in enumerate(self.plan.inputs[: self.given]) if b is not None]
        pointers = {d: self.text[b] for b, d in self.pointers.items() if b in self.text}
        return freeing(self.lines, result, tensors, pointers)

    def _function(self, result: str) -> CallSource:
        if self.boxed:
            self.lines = self._freeing(result)
        checks = any(type(line) is CheckLine for line in self.lines)
        given = [f"p{i}" for i in range(self.given)]
        taken = ["box"] if self.boxed else given
        opened, cleared = ([f"{', '.join(given)}, = box"], ["box.clear()"]) if self.boxed and given else ([], [])
        held = dict.fromkeys(
            v for s, v in self.symbols.items() if v and s[0] not in "fr"
        )  # sizes only: no stride depends on a float
        key = f"({''.join(f'{v}, ' for v in held)})" if checks else ""
        self.numbers |= {self.plan.symbols[s] for s in self.plan.symbols if checks and s[0] not in "fr"}
        if checks:
            self.bind("learn", self.library_results.learn)
            self.lines.append(CheckLine(f"learn({key}, read)"))
            self.lines.insert(0, CheckLine("read = []"))
        names = {k: v for k, v in self.names.items()}
        params = [*taken, *(f"{k}={k}" for k in names)]
        text = ""
        lines = [*self.lines, f"return {result}"]
        if checks:
            checking = [line for line in lines if type(line) is not UncheckedLine]
            text = f"def checked({', '.join(params)}):\n{indented([*opened, *cleared, *checking])}\n\n\n"
            names["known"] = self.library_results.known
            params += ["known=known", "checked=checked"]
            lines = [line for line in lines if type(line) is not CheckLine]
            fetched = [line for line in self.head if line.startswith("size_")]
            apart = f"del {', '.join(given)}; " if cleared else ""  # only the box holds them
            test = [f"words = known.get({key})", f"if words is None: {apart}return checked({', '.join(taken)})"]
            lines = [*fetched, *test, *cleared, *(line for line in lines if line not in fetched)]
        else:
            lines = [*cleared, *lines]
        return CallSource(
            f"{text}def call({', '.join(params)}):\n{indented([*opened, *lines])}\n",
            names,
            tuple(self.externs),
            self.library_results if checks and not held else None,
            frozenset(self.numbers),
            self.boxed,
        )


def indented(lines: Sequence[str]) -> str:
    """The lines as the body of a function."""
    return "\n".join(f"    {line}" for line in lines)


def kernels_text(plan: Plan, steps: Sequence[int]) -> str:
    """The name of a run of kernels in a profiler: their operations, and the user's lines where these are known."""
    kernels = [step.kernel for i in steps if isinstance(step := plan.steps[i], Call)]
    ops = dict.fromkeys(op.removeprefix("aten.").removesuffix(".default") for k in kernels for op in k.ops)
    places = dict.fromkeys(k.where.short for k in kernels if isinstance(k.where, Where))
    return " ".join(["bytejit kernel", ", ".join(ops), *places])


def _returns_many(target: str) -> bool:
    """Whether an overload returns a tuple or list even for one tensor."""
    fn = torch.ops
    for part in target.split("."):
        fn = getattr(fn, part)
    returns = fn._schema.returns
    return len(returns) > 1 or (len(returns) == 1 and isinstance(returns[0].type, torch.ListType))


def as_new(x: torch.Tensor) -> None:
    """A result that a library has written: to the program it is a new tensor, which nothing has written."""
    if not x.is_inference():
        SET_VERSIONS((x,), (0,))
