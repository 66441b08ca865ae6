"""Plan -> the Python function that runs it: allocations, runs of kernels, library calls, writes into inputs, outputs.

    def call(p0, p1):
        o0 = new_f32((64, 128), (128, 1))
        run0(p0.data_ptr(), p1.data_ptr(), o0.data_ptr(), threads())
        return (o0,)

Every constant is a default argument: a local, the fastest name there is. Internal buffers lie in an arena, one
allocation that is kept between calls: a call takes one out of `pool` and puts it back, so that two threads, or a
call inside a call, never share one. Views of the arena that library calls read or write are made once with the arena.
A tensor whose address a kernel was given stays in a local until the function returns.
"""
from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bytejit.codegen.aten import graph as out_of
from bytejit.codegen.cpu.emit import CppSource, Run
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import DTYPES, Buffer, Call, Extern, ExternCall, Plan, View
from bytejit.codegen.loops.sizes import Real, SizeText, bits_of
from bytejit.codegen.ops.extern import is_window, resolve
from bytejit.errors import Bug

from .check import Check, Fits, Steady, steady_check, words_of
from .common import symbol_atoms, symbols_in

FAULTS = {1: (RuntimeError, "ZeroDivisionError"), 2: (IndexError, "index out of range in self")}


@dataclass(frozen=True)
class CallSource:
    """Python text of `call` and the values of its names. externs: (target, reason) of each library call; fits: what its
    first call sees of them, where sizes are all known."""
    text: str
    names: dict[str, Any]
    externs: tuple[tuple[str, str], ...]
    fits: Fits | None = None

    def __repr__(self) -> str:
        return f"call source: {self.text.count(chr(10))} lines, {len(self.externs)} externs"

    def make(self) -> Callable:
        """The function."""
        space = dict(self.names)
        exec(compile(self.text, "<bytejit call>", "exec"), space)
        return space["call"]


def fail(code: int) -> None:
    """Raise what torch raises for an error code of a kernel. The site then runs the user's code, which raises its
    own."""
    kind, text = FAULTS[1 if code & 1 else 2]
    raise kind(text)


class SlotMemory:
    """The internal memory of one running call of a plan with symbolic sizes: the arena, and a block for each slot. Blocks
    grow, never shrink; what a call needs of them is kept for the sizes last seen.

    layout(*sizes) -> (bytes of each slot, (slot or None, byte offset, dtype, shape, stride) of each view).
    """
    KEPT = 64                # combinations of sizes

    def __init__(self, arena: int, layout: Callable[..., tuple]) -> None:
        self.layout = layout
        self.blocks: list[torch.Tensor | None] = []
        self.known: dict[tuple, tuple] = {}
        self.arena = aligned_block(arena)

    def at(self, *sizes: int) -> tuple:
        """(address of the arena, addresses of the slots, the views) for sizes."""
        found = self.known.get(sizes)
        return found if found is not None else self._make(sizes)

    def _make(self, sizes: tuple) -> tuple:
        wanted, views = self.layout(*sizes)
        if not self.blocks:
            self.blocks = [None] * len(wanted)
        for i, n in enumerate(wanted):
            if self.blocks[i] is None or self.blocks[i].numel() < n:
                self.blocks[i] = aligned_block(n)
                self.known.clear()
        if len(self.known) >= self.KEPT:
            self.known.clear()
        made = [view_of(self.arena if slot is None else self.blocks[slot], *rest) for slot, *rest in views]
        out = self.known[sizes] = (self.arena.data_ptr(), *(b.data_ptr() for b in self.blocks), *made)
        return out


def aligned_block(size: int) -> torch.Tensor:
    """Memory of `size` bytes that begins at a multiple of 64."""
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.empty(size + 64, dtype=torch.uint8)
        return memory[-memory.data_ptr() % 64:]


def view_of(block: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple, stride: tuple) -> torch.Tensor:
    """A tensor in a block. Units: start in bytes."""
    with torch.inference_mode(False), torch.no_grad():
        at = (block.storage_offset() + start) // dtype.itemsize
        return torch.empty(0, dtype=dtype).set_(block.untyped_storage(), at, shape, stride)


def fixed(v: View) -> bool:
    """Whether a window is the same at all sizes."""
    return all(isinstance(n, int) for n in (v.offset, *v.shape, *v.stride))


def arena_maker(size: int, views: Sequence[tuple[int, torch.dtype, tuple, tuple]]) -> Callable[[], tuple]:
    """A function that makes an arena: (address, *views). Views hold the memory. Units: size, offsets in bytes."""
    def make() -> tuple:
        with torch.inference_mode(False), torch.no_grad():
            base = aligned_block(size)
            return (base.data_ptr(), base, *(view_of(base, *v) for v in views))
    return make


class CallPrinter:
    """Prints one plan. names: what the text refers to; given: inputs that the caller passes, the rest are constants."""

    def __init__(self, plan: Plan, source: CppSource, runs: Sequence[Callable], constants: Sequence[Any] = (),
                 overrides: dict[str, Callable] | None = None) -> None:
        self.plan, self.source, self.overrides = plan, source, overrides or {}
        self.lines: list[str] = []
        self.head: list[str] = []                        # runs before `lines`
        self.fits = Fits()
        self.words = 1                                   # of the results that kernels read, and one before them
        self.sizes = SizeText(self.symbol)
        self.derived = {n: a for step in plan.steps if isinstance(step, Call)
                        for n, a in symbol_atoms(step.kernel).items() if a.text}
        self.names: dict[str, Any] = {}
        self.externs: list[tuple[str, str]] = []
        self.text: dict[str, str] = {}                   # buffer -> the local that holds its tensor
        self.views: dict[View, str] = {}                 # view of the arena -> local
        self.symbols: dict[str, str] = {s: f"p{i}" for s, i in plan.symbols.items()}
        self.fetched: dict[str, str] = {}                # symbols that are read off an input's shape, once
        self.given = len(plan.inputs) - len(constants)
        self.runs = {run.steps[0]: (run, fn) for run, fn in zip(source.runs, runs)}
        self.pointers: dict[str, str] = {}
        for i, buffer in enumerate(plan.inputs):
            name = f"p{i}"
            if i >= self.given:
                self.names[name] = constants[i - self.given]
            if buffer is not None:
                self.text[buffer] = name
                for d, size in enumerate(plan.buffers[buffer].shape):
                    for s in symbols_in(size):
                        if ix.index(size) == ix.index(ix.Sym(s)):
                            self.symbols.setdefault(s, "")
                            self.fetched.setdefault(s, f"{name}.shape[{d}]")
        self.uses = self._count_uses()

    def _count_uses(self) -> dict[str, int]:
        uses: dict[str, int] = {}
        for run in self.source.runs:
            for kind, name in run.args:
                if kind == "buffer":
                    uses[name] = uses.get(name, 0) + 1
        return uses

    # ---- pieces ---------------------------------------------------------------------------------------------------
    def bind(self, name: str, value: Any) -> str:
        self.names.setdefault(name, value)
        return name

    def size(self, x: Any) -> str:
        """A size or offset, or a symbolic float, as Python text."""
        text = self.sizes(x)
        self._bind_math(text)
        return text

    def _bind_math(self, text: str) -> None:
        """Give the function what the text of a number reads."""
        if "math." in text:
            self.bind("math", math)
        if "bits_of(" in text:
            self.bind("bits_of", bits_of)

    def _atom(self, a: ix.Atom) -> str:
        return self.sizes.atom(a)

    def symbol(self, name: str, text: str = "") -> str:
        """The local that holds a size symbol; text: how it is computed."""
        if not self.symbols.get(name):
            text = text or getattr(self.derived.get(name), "text", "")
            if not text and name not in self.fetched:
                raise Bug(f"size {name} is neither an input of {self.plan!r} nor a dimension of one")
            value = self.sizes.words(text) if text else self.fetched[name]
            self.symbols[name] = f"size_{name}"
            self.head.append(f"size_{name} = {value}")
            self._bind_math(value)
        return self.symbols[name]

    def dims(self, sizes: Sequence[Any]) -> str:
        return "(" + "".join(self.size(s) + ", " for s in sizes) + ")"

    def tensor(self, buffer: str) -> str:
        """The local that holds a buffer's tensor; allocates an output on its first use."""
        if buffer not in self.text:
            b = self.plan.buffers[buffer]
            if b.kind == "temp":
                return self.view(View(buffer, b.shape, b.stride))
            if b.kind != "output":
                raise Bug(f"{b!r} is used before a step makes it")
            name = self.text[buffer] = f"o{sum(t[0] == 'o' for t in self.text.values())}"
            dtype = getattr(torch, DTYPES[b.dtype][0])
            maker = self.bind(f"new_{b.dtype}", self.maker(dtype))
            self.lines.append(f"{name} = {maker}({self.dims(b.shape)}, {self.dims(b.stride)})")
        return self.text[buffer]

    def view(self, v: View) -> str:
        """A window on a buffer, as a tensor."""
        b = self.plan.buffers[v.buffer]
        if b.kind == "temp":
            if v not in self.views:
                self.views[v] = f"a{len(self.views)}"
            return self.views[v]
        base = self.tensor(v.buffer)
        if (v.shape, v.stride) == (b.shape, b.stride) and v.offset == 0:
            return base
        if len(v.shape) == 2 and (v.shape, v.stride) == (b.shape[::-1], b.stride[::-1]) and v.offset == 0:
            return f"{base}.t()"
        if v.offset == 0:
            return f"{base}.as_strided({self.dims(v.shape)}, {self.dims(v.stride)})"
        return self.window(base, v.shape, v.stride, v.offset)

    def window(self, base: str, shape: Sequence[Any], stride: Sequence[Any], offset: Any) -> str:
        """A view of a tensor whose offset counts from the tensor's first element."""
        start = f"{base}.storage_offset() + {self.size(offset)}"
        return f"{base}.as_strided({self.dims(shape)}, {self.dims(stride)}, {start})"

    def value(self, x: Any) -> str:
        """An argument of a library call."""
        if isinstance(x, View):
            return self.view(x)
        if isinstance(x, (tuple, list)):
            return "[" + "".join(self.value(v) + ", " for v in x) + "]"
        if x is None or type(x) in (bool, int, str) or (type(x) is float and x - x == 0):
            return repr(x)
        if isinstance(x, (ix.Index, Real)):
            return self.size(x)
        return self.bind(f"c{sum(n[0] == 'c' for n in self.names)}", x)

    # ---- what another device does otherwise -----------------------------------------------------------------------
    def maker(self, dtype: torch.dtype) -> Callable:
        """What allocates outputs: called with shape and stride."""
        return torch.empty(0, dtype=dtype).new_empty_strided

    def stays(self, buffer: str) -> bool:
        """Whether a dead tensor's local is kept to the end, because kernels were given its address."""
        return buffer in self.uses

    def needs_memory(self) -> bool:
        """Whether there is an arena: one without bytes too, where temps without elements lie in it."""
        return bool(self.plan.arena or self.views) or any(kind == "arena" for run in self.source.runs for kind, _ in run.args)

    def opening(self) -> list[str]:
        """The first lines."""
        return []

    def closing(self) -> list[str]:
        """The last lines before the return."""
        return []

    # ---- steps ----------------------------------------------------------------------------------------------------
    def run(self, run: Run, fn: Callable) -> None:
        """One call of a unit's function."""
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
        call = f"{self.bind(f'run{run.unit}_{run.function[3:]}', fn)}({', '.join(args)})"
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
        """One library call."""
        e = step.extern
        self.externs.append((e.target, e.reason))
        args = [self.value(a) for a in e.args] + [f"{k}={self.value(v)}" for k, v in e.kwargs]
        at = {"aten.as_strided.default": 3, "aten.as_strided_scatter.default": 4}.get(e.target)
        if at:                          # offsets of a graph count from the first element
            args[at:] = [f"{args[0]}.storage_offset() + {args[at] if len(args) > at else 0}"]
        if e.into:
            args.append(f"out={self.tensor(e.outs[0])}")
        fn = self.overrides.get(e.target)
        call = f"{self.bind(e.target.replace('.', '_').replace('::', '_'), fn or resolve(e.target))}({', '.join(args)})"
        if e.into:
            self.lines.append(call)
            return
        results = []
        for name in e.outs:
            results.append("_" if name is None else f"e{sum(t[0] == 'e' for t in self.text.values())}")
            if name is not None:
                self.text[name] = results[-1]
        many = len(results) > 1 or _returns_many(e.target)
        left = ", ".join(results) + ("," if many and len(results) == 1 else "")
        self.lines.append(f"{left} = {call}" if results else call)
        for name in e.outs:
            if name is not None:
                self._check(self.text[name], self.plan.buffers[name], e)

    def _check(self, text: str, b: Buffer, e: Extern) -> None:
        """Lines that check: the result is what kernels go by, and (in the checking twin) lies in no temp's memory."""
        given = [v.buffer for a in (*e.args, *(v for _, v in e.kwargs)) for v in (a if isinstance(a, tuple) else (a,))
                 if isinstance(v, View) and self.plan.buffers[v.buffer].kind == "temp"]
        temps = "".join(f"{self.tensor(n)}, " for n in dict.fromkeys(given if not is_window(e.target) else ()))
        if b.dtype in DTYPES:
            self.bind("fit", self.fits.fit)
            dtype = self.bind(b.dtype, getattr(torch, DTYPES[b.dtype][0]))
            name, read = repr(e.name) if len(e.outs) == 1 else "''", "read" if b.name in self.uses else "None"
            self.lines.append(Check(f"{text} = fit({text}, {self.dims(b.shape)}, {self.dims(b.stride)}, {dtype}, {e.target!r}, "
                                    f"{name}, {read})"))
        if b.dtype in DTYPES and b.name in self.uses:
            self.bind("steady", steady_check())
            self.bind("again", self.fits.again)
            at = self.words
            self.words += words_of(len(b.shape))
            self.lines.append(Steady(f"if not steady(words, {at}, {text}): {text} = again(words, {at}, {text}, {e.target!r})"))
        if temps:
            self.bind("own", self.fits.own)
            self.lines.append(Check(f"{text} = own({text}, {e.target!r}, ({temps}))"))

    def print(self, outs: Sequence[out_of.Out] | None, single: bool) -> CallSource:
        """The whole function. outs: how user outputs are made (none: the flat tuple of plan outputs)."""
        for i, step in enumerate(self.plan.steps):
            if isinstance(step, ExternCall):
                self.extern(step)
            elif i in self.runs:
                self.run(*self.runs[i])
            dead = [self.text[b] for b in step.free if b in self.text and not self.stays(b)]
            if dead:
                self.lines.append(f"del {', '.join(dead)}")
        flat = [self.value(r.const) if r.view is None else self.view(r.view) for r in self.plan.outputs]
        written = [m for m in self.plan.mutations if not m.done]
        if outs is None or len(written) + len({str(o) for o in flat}) > len(set(flat)):
            flat = [self._named(i, t) for i, t in enumerate(flat)]
        for m in written:
            self.lines.append(f"p{m.input}.copy_({flat[m.position]})")
        for m in self.plan.mutations:
            if m.done:
                self.bind("bump", torch.autograd.graph.increment_version)
                self.lines.append(f"bump(p{m.input})")
        results = flat if outs is None else [self.out(o, flat) for o in outs]
        if self.plan.slot_bytes or not all(map(fixed, self.views)):
            self._slots()
        elif self.needs_memory():
            self._arena()
        self.lines[:0] = [*self.opening(), *self.head]
        self.lines += self.closing()
        shown = results[0] if single else "(" + "".join(r + ", " for r in results) + ")"
        return self._function(shown)

    def _named(self, i: int, text: str) -> str:
        if text.isidentifier():
            return text
        self.lines.append(f"f{i} = {text}")
        return f"f{i}"

    def _arena(self) -> None:
        """Take an arena at the head, put it back at the end."""
        rows = []
        for v in self.views:
            b = self.plan.buffers[v.buffer]
            dtype = getattr(torch, DTYPES[b.dtype][0])
            rows.append((self.plan.offsets[v.buffer] + v.offset * dtype.itemsize, dtype, v.shape, v.stride))
        self.bind("pool", [])
        self.bind("make_arena", arena_maker(self.plan.arena, rows))
        head = ["try:", "    whole = pool.pop()", "except IndexError:", "    whole = make_arena()"]
        head.append(f"{', '.join(['arena', '_', *self.views.values()])} = whole")
        self.lines[:0] = head
        self.lines.append("pool.append(whole)")

    def _slots(self) -> None:
        """The same for a plan with temps, or windows on them, of symbolic size: the memory says where these are for the
        sizes of this call."""
        rows, dtypes = [], {}
        for v in self.views:
            b = self.plan.buffers[v.buffer]
            dtypes[b.dtype] = getattr(torch, DTYPES[b.dtype][0])
            start = v.offset * DTYPES[b.dtype][1] + self.plan.offsets.get(b.name, 0)
            rows.append(f"({self.plan.slots.get(b.name)}, {self.size(start)}, {b.dtype}, {self.dims(v.shape)}, "
                        f"{self.dims(v.stride)})")
        wanted = [f"max({', '.join(map(self.size, sizes))})" if len(sizes) > 1 else self.size(sizes[0])
                  for sizes in self.plan.slot_bytes]
        text = f"({''.join(w + ', ' for w in wanted)}), ({''.join(r + ', ' for r in rows)})"
        used = sorted({n for n in self.symbols.values() if n and re.search(rf"\b{n}\b", text)})
        layout = eval(f"lambda {', '.join(used)}: ({text})", dtypes)
        self.bind("pool", [])
        self.bind("make_memory", functools.partial(SlotMemory, self.plan.arena, layout))
        self.head += ["try:", "    whole = pool.pop()", "except IndexError:", "    whole = make_memory()"]
        held = ["arena", *(f"slot{i}" for i in range(len(wanted))), *self.views.values()]
        self.head.append(f"{', '.join(held)}, = whole.at({', '.join(used)})")
        self.lines.append("pool.append(whole)")

    def out(self, o: out_of.Out, flat: list[str]) -> str:
        """A user output."""
        if isinstance(o, out_of.Const):
            plain = not isinstance(o.value, (tuple, list))
            return self.value(o.value) if plain else self.bind(f"c_{len(self.names)}", o.value)
        if isinstance(o, out_of.Number):
            return self.size(o.value)
        if isinstance(o, out_of.Value):
            return flat[o.position]
        if isinstance(o, out_of.Input):
            return f"p{o.index}"
        base = self.out(o.of, flat)
        return self.window(base, o.size, o.stride, o.offset)

    def _function(self, result: str) -> CallSource:
        checks = any(type(line) is Check for line in self.lines)
        given = [f"p{i}" for i in range(self.given)]
        held = dict.fromkeys(v for s, v in self.symbols.items() if v and s[0] not in "fr")     # sizes: floats decide no strides
        key = f"({''.join(f'{v}, ' for v in held)})" if checks else ""
        if checks:
            self.bind("learn", self.fits.learn)
            self.lines.append(Check(f"learn({key}, read)"))
            self.lines.insert(0, Check("read = []"))
        names = {k: v for k, v in self.names.items()}
        params = [*given, *(f"{k}={k}" for k in names)]
        text = ""
        lines = [*self.lines, f"return {result}"]
        if checks:
            twin = [line for line in lines if type(line) is not Steady]
            text = f"def checked({', '.join(params)}):\n{indented(twin)}\n\n\n"
            names["known"] = self.fits.known
            params += ["known=known", "checked=checked"]
            lines = [line for line in lines if type(line) is not Check]
            fetched = [line for line in self.head if line.startswith("size_")]
            test = [f"words = known.get({key})", f"if words is None: return checked({', '.join(given)})"]
            lines = [*fetched, *test, *(line for line in lines if line not in fetched)]
        return CallSource(f"{text}def call({', '.join(params)}):\n{indented(lines)}\n", names, tuple(self.externs),
                          self.fits if checks and not held else None)


def indented(lines: Sequence[str]) -> str:
    """The lines as the body of a function."""
    return "\n".join(f"    {line}" for line in lines)


def _returns_many(target: str) -> bool:
    """Whether an overload answers a tuple or list even for one tensor."""
    fn = torch.ops
    for part in target.split("."):
        fn = getattr(fn, part)
    returns = fn._schema.returns
    return len(returns) > 1 or (len(returns) == 1 and "[]" in str(returns[0].type))


def emit_call(plan: Plan, source: CppSource, runs: Sequence[Callable], constants: Sequence[Any] = (),
              outs: Sequence[out_of.Out] | None = None, single: bool = False,
              overrides: dict[str, Callable] | None = None) -> CallSource:
    """The Python of a plan. runs: the loaded functions of `source.runs`; constants: tensors for the last placeholders;
    outs, single: from `Aten`; overrides: callables to use for targets, instead of torch's dispatcher."""
    return CallPrinter(plan, source, runs, constants, overrides).print(outs, single)
