"""The text of loops and of kernels, and its parser: `parse(text(x)) == x`.

One statement a line, dtype on each value, numbered by first use; the user's line follows after `//` (the parser drops
it). A nest ends with its reductions and stores. See the example in codegen/loops/ir.py.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import torch

from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.common.where import Where

from . import index as ix
from .ir import Axis, Buffer, Extern, Kernel, LoopNest, Loops, MutationCopy, Reduce, Result, Store, View


def text(x: Loops | Kernel | Plan) -> str:
    """Loops (or a plan's buffers, kernels with their schedules, and extern calls) as text."""
    if isinstance(x, Kernel):
        return "\n".join(_kernel(x)) + "\n"
    lines = [f"inputs {' '.join(n or '-' for n in x.inputs)}".rstrip(), *map(repr_buffer, x.buffers.values())]
    lines += [f"symbol {name} {i}" for name, i in x.symbols.items()]
    if isinstance(x, Plan):
        lines += [f"slot {n} {i}" for n, i in x.slots.items()]
        lines += [f"offset {n} {at}" for n, at in sorted(x.offsets.items(), key=lambda p: p[1])] + [f"arena {x.arena}"]
    for step in x.steps:
        match step:
            case Kernel():
                lines += _kernel(step)
            case Call():
                lines += [*_kernel(step.kernel), f"  {step.schedule}"]
            case Extern():
                lines.append(_extern(step))
            case ExternCall():
                lines += [_extern(step.extern), *([f"  free {' '.join(step.free)}"] if step.free else [])]
    lines += [f"output {view(r.view) if r.view is not None else f'const {r.const!r}'}" for r in x.outputs]
    lines += [f"mutation {m.input} {m.position}{' done' if m.done else ''}" for m in x.mutations]
    return "\n".join(lines) + "\n"


def repr_buffer(b: Buffer) -> str:
    """`buffer b0: f32[4] stride (1) temp`; the device when it is not the CPU."""
    return repr(b) + ("" if b.device == "cpu" else f" {b.device}")


def view(v: View) -> str:
    """`b0[4,6:6,1@0]`"""
    return repr(v)


def _line(where: Any) -> str:
    return f"  // {where.short}" if isinstance(where, Where) else ""


def _over(s: Store) -> str:
    return f" over {s.over}" if s.over else ""


def _kernel(k: Kernel) -> list[str]:
    lines = [f"kernel {k.name} [{', '.join(map(repr, k.axes))}] ops {' '.join(k.ops)}".rstrip()]
    for p in k.nests:
        names: dict[int, str] = {}
        lines.append(f"  nest [{', '.join(map(repr, p.axes))}]")

        def name(e: Expr) -> str:
            return names[id(e)]

        for e in walk(p.roots()):
            names[id(e)] = f"t{len(names)}"
            lines.append(f"    {name(e)}: {e.dtype} = {_expr(e, name)}{_line(e.where)}")
        for r in p.reduces:
            kind = "scan" if r.running else "reduce"
            lines.append(f"    {r.name}: {r.dtype} = {kind} {r.kind} {' '.join(map(name, r.args))}{_line(r.where)}")
        for s in p.stores:
            mask = "" if s.mask is None else f" if {name(s.mask)}"
            lines.append(f"    {s.mode} {s.buffer}[{_coords(s.coords, name)}] = {name(s.value)}{mask}{_over(s)}{_line(s.where)}")
    return lines


def _coords(coords: tuple, name: Any) -> str:
    return "; ".join(ix.index_text(c, name) for c in coords)


def _expr(e: Expr, name: Any) -> str:
    if e.kind == "load":
        return f"load {e.name}[{_coords(e.attr, name)}]" + ("" if e.mask is None else f" if {name(e.mask)}")
    if e.kind == "const":
        return f"const {e.attr!r}"
    if e.kind == "index":
        return f"index {ix.index_text(e.attr, name)}"
    if e.kind == "ref":
        return f"ref {e.name}"
    attr = "" if e.attr is None else f" {{{e.attr}}}"
    return f"{e.name}({', '.join(map(name, e.args))}){attr}"


def _extern(e: Extern) -> str:
    outs = " ".join(o or "_" for o in e.outs)
    kwargs = [f"{k}={_value(v)}" for k, v in e.kwargs]
    call = f"{e.target}({', '.join([*map(_value, e.args), *kwargs])})"
    return f"extern {e.name}: {outs} = {call} {'into' if e.into else 'makes'} ({e.reason}){_line(e.where)}"


def _value(v: Any) -> str:
    if isinstance(v, View):
        return f"view({v.buffer!r}, {_value(v.shape)}, {_value(v.stride)}, {_value(v.offset)})"
    if isinstance(v, tuple):
        return f"({''.join(_value(x) + ', ' for x in v)})".replace(", )", ",)")
    if isinstance(v, torch.device):
        return f"device({str(v)!r})"
    if isinstance(v, ix.Index):
        return f"size({ix.index_text(v)!r})"
    return repr(v)


# ---- reading back -------------------------------------------------------------------------------------------------

_STATEMENT = re.compile(r"(\w+): (\w+) = (.*)")


class Reader:
    """Reads one program; equal expressions become one object again."""

    def __init__(self) -> None:
        self.cons = Cons()
        self.inputs: tuple = ()
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, int] = {}
        self.steps: list[Any] = []
        self.outputs: list[Result] = []
        self.mutations: list[MutationCopy] = []
        self.head: tuple = ()
        self.nests: list[LoopNest] = []
        self.axes: tuple = ()
        self.values: dict[str, Expr] = {}
        self.stores: list[Store] = []
        self.reduces: list[Reduce] = []

    def line(self, line: str) -> None:
        """Reads one line of text. Raises: ValueError for a line that is not of this form."""
        line = line.split("  // ")[0].rstrip()
        word, _, rest = line.strip().partition(" ")
        reader = {
            "inputs": self.read_inputs,
            "buffer": self.read_buffer,
            "kernel": self.read_kernel,
            "nest": self.read_nest,
            "extern": self.read_extern,
            "output": self.read_output,
            "mutation": self.read_mutation,
            "symbol": self.read_symbol,
            "set": self.read_store,
            "add": self.read_store,
            "": lambda *_: None,
        }.get(word)
        if reader is not None:
            reader(word, rest)
        elif match := _STATEMENT.fullmatch(line.strip()):
            self.read_value(*match.groups())
        else:
            raise ValueError(f"not a line of loops: {line!r}")

    def end_nest(self) -> None:
        if self.nests is not None and (self.stores or self.reduces):
            self.nests.append(LoopNest(self.axes, tuple(self.stores), tuple(self.reduces)))
        self.values, self.stores, self.reduces = {}, [], []

    def end_kernel(self) -> None:
        self.end_nest()
        if self.head:
            self.steps.append(Kernel(self.head[0], self.head[1], tuple(self.nests), self.head[2]))
        self.head, self.nests = (), []

    def read_inputs(self, _: str, rest: str) -> None:
        self.inputs = tuple(None if n == "-" else n for n in rest.split())

    def read_buffer(self, _: str, rest: str) -> None:
        m = matched(r"(\w+): (\S+?)\[(.*?)\] stride \((.*?)\) (\w+)(?: (\S+))?", rest)
        name, dtype, shape, stride, kind, device = m.groups()
        self.buffers[name] = Buffer(name, _sizes(shape), _sizes(stride), dtype, kind, device or "cpu")

    def read_kernel(self, _: str, rest: str) -> None:
        self.end_kernel()
        m = matched(r"(\w+) \[(.*?)\] ops ?(.*)", rest)
        self.head = (m[1], _axes(m[2]), tuple(m[3].split()))

    def read_nest(self, _: str, rest: str) -> None:
        self.end_nest()
        self.axes = _axes(rest[1:-1])

    def read_value(self, name: str, dtype: str, rest: str) -> None:
        word, _, tail = rest.partition(" ")
        if word in ("reduce", "scan"):
            kind, *args = tail.split()
            self.reduces.append(Reduce(name, kind, tuple(self.values[a] for a in args), dtype, word == "scan"))
        else:
            self.values[name] = self.expr(word, rest, tail, dtype)

    def expr(self, word: str, rest: str, tail: str, dtype: str) -> Expr:
        if word == "load":
            m = matched(r"(\w+)\[(.*)\](?: if (\w+))?", tail)
            return self.cons.load(m[1], self.coords(m[2]), dtype, self.values[m[3]] if m[3] else None)
        if word == "const":
            return self.cons.const(float(tail) if tail in ("nan", "inf", "-inf") else ast.literal_eval(tail), dtype)
        if word == "index":
            return self.cons.make("index", "", (), dtype, ix.parse_index(tail, self.values.__getitem__), None)
        if word == "ref":
            return self.cons.ref(tail, dtype)
        m = matched(r"(\w+)\((.*?)\)(?: \{(.*)\})?", rest)
        return self.cons.op(m[1], tuple(self.values[a] for a in m[2].split(", ") if a), dtype, None, m[3])

    def coords(self, body: str) -> tuple:
        return tuple(ix.parse_index(c, self.values.__getitem__) for c in body.split(";") if c.strip())

    def read_store(self, mode: str, rest: str) -> None:
        m = matched(r"(\w+)\[(.*)\] = (\w+)(?: if (\w+))?(?: over (\w+))?", rest)
        mask = self.values[m[4]] if m[4] else None
        self.stores.append(Store(m[1], self.coords(m[2]), self.values[m[3]], mask, mode, m[5] or ""))

    def read_extern(self, _: str, rest: str) -> None:
        self.end_kernel()
        m = matched(r"(\w+): (.*?) = ([\w.]+)(\(.*\)) (into|makes) \((.*?)\)", rest)
        call = ast.parse(f"f{m[4]}", mode="eval").body
        assert isinstance(call, ast.Call)
        args = tuple(map(_literal, call.args))
        kwargs = tuple((k.arg, _literal(k.value)) for k in call.keywords)
        outs = tuple(None if o == "_" else o for o in m[2].split())
        self.steps.append(Extern(m[1], m[3], args, kwargs, outs, m[5] == "into", m[6]))

    def read_output(self, _: str, rest: str) -> None:
        self.end_kernel()
        if rest.startswith("const "):
            self.outputs.append(Result(None, ast.literal_eval(rest[6:])))
            return
        m = matched(r"(\w+)\[(.*?):(.*?)@(.+)\]", rest)
        self.outputs.append(Result(View(m[1], _sizes(m[2]), _sizes(m[3]), _sizes(m[4])[0])))

    def read_symbol(self, _: str, rest: str) -> None:
        name, i = rest.split()
        self.symbols[name] = int(i)

    def read_mutation(self, _: str, rest: str) -> None:
        self.end_kernel()
        parts = rest.split()
        self.mutations.append(MutationCopy(int(parts[0]), int(parts[1]), len(parts) > 2))


def matched(pattern: str, text: str) -> re.Match[str]:
    """The match of a whole text. Raises: ValueError."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise ValueError(f"not in the form that `text` prints: {text!r}")
    return found


def _sizes(body: str) -> tuple:
    return tuple(ix.size_of(ix.parse_index(s)) for s in body.split(",") if s)


def _axes(body: str) -> tuple[Axis, ...]:
    out = []
    for part in body.split(", ") if body else ():
        name, _, rest = part.partition(":")
        size, _, kind = rest.partition(" ")
        out.append(Axis(name, ix.size_of(ix.parse_index(size)), kind or "parallel"))
    return tuple(out)


def _literal(node: ast.AST) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="view"), args=args):
            return View(*map(_literal, args))
        case ast.Call(func=ast.Name(id="size"), args=[ast.Constant(value=str() as body)]):
            return ix.parse_index(body)
        case ast.Call(func=ast.Name(id="device"), args=[ast.Constant(value=name)]):
            return torch.device(name)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return getattr(torch, name)
        case ast.Tuple(elts=parts):
            return tuple(map(_literal, parts))
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(operand=ast.Name(id="inf")):
            return float("-inf")
    return ast.literal_eval(node)


def parse(source: str) -> Loops:
    """The loops that `text` printed. Raises: ValueError for a line that is not of this form."""
    reader = Reader()
    for line in source.splitlines():
        reader.line(line)
    reader.end_kernel()
    return Loops(
        reader.inputs,
        reader.buffers,
        tuple(reader.steps),
        tuple(reader.outputs),
        tuple(reader.mutations),
        symbols=reader.symbols,
        cons=reader.cons,
    )
