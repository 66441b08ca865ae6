"""The op table: one op, one row. Lowering, both printers, the tests and the docs derive from the rows.

Worked example: erf. Its row of `common/math_functions.py` is `MathFunction("erf", 12, (-4, 4))`. Of it
codegen/ops/rows/pointwise.py makes

    op("erf", ("aten.erf.default",), dtype="float", ref=torch.erf, cost=12, domain=(-4, 4),
       cpp="bj::erf({0})", triton="libdevice.erf({0})")

(overloads and dtype rule come from `common/pointwise_ops.py`).

- lower: `aten.erf.default` of a bf16 tensor becomes  to f32 -> erf f32 -> narrow bf16  (dtype rule "float": ints become the
  node's float dtype first). One load, one store, one kernel; fuse joins it with its neighbours.
- emit_cpp: `Expr("op", "erf", (t3,), "f32")` prints as  `float t4 = bj::erf(t3);`: `row.text("cpp", "f32").format(...)`.
- tests: every row is run against `ref` over its dtypes, inside `domain`, with nan, inf, -0.0, empty and non-contiguous inputs.

Texts. {0} {1} {2}: operand names; {T}: the result's type in the target language; {A}: the type of operand 0; {attr}:
the node's attr; {err}: where the error code goes (a pointer to int in C++; rows that use it have `raises`). A text
is a str for all dtypes, or a dict by class: "float", "int", "bool" (f64 f32 | i64 i32 i16 i8 u8 | b8), or a dtype
name, which wins. The class is that of OPERAND `by` (default the result: by=None). `bj::` names are functions of the
C++ prelude (overloaded on type; f16 and bf16 never reach them: they are computed in f32). `libdevice`/`tl` are
Triton's; `bj_` names are our Triton helpers. `rough`: a faster text for `cuda/rough_results.py`;
`far`: what C++'s text is not right for, and another text for that.

Kinds: pointwise (has texts), composite (lowered into several rows by its `lower`), reduce, view, create, extern (a library
does it best: called through torch; `codegen/ops/rows/extern.py`). An overload without a row is called through torch too, counted
as "no row".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from bytejit.common.dtypes import DTYPES, FLOATS, INTS
from bytejit.common.light_dataclass import light_dataclass

#: how the dtype an op computes in follows from the node: `same` the result's; `float` the result's (ints promoted to it);
#: `bool` the operands' common dtype, result b8; `arg` operand 0's dtype.
DTYPE_RULES = ("same", "float", "bool", "arg")


def _keys(dtype: str) -> tuple[str, str, str]:
    """What a dict of texts may have for a dtype, best first."""
    family = "float" if dtype in FLOATS else "bool" if dtype == "b8" else "int"
    return dtype, family, "int" if family == "bool" else ""


@light_dataclass(frozen=True)
class Op:
    """A row. Raises: ValueError when made with an unknown rule."""

    name: str  # the name in the loop IR
    aten: tuple[str, ...]  # overloads it lowers: "aten.add.Tensor"
    kind: str
    arity: int = 1
    dtype: str = "same"
    cpp: str | dict[str, str] | None = None
    triton: str | dict[str, str] | None = None
    by: int | None = None  # which operand's dtype picks the text
    ref: Callable | None = None  # torch function of `arity` tensors: what tests compare with
    domain: tuple[float, float] = (-10, 10)  # where tests draw floats from
    dtypes: frozenset[str] = FLOATS | INTS  # dtypes of operand 0 that the row takes
    cost: int = 1  # per element, in additions
    # may set the error flag, so never moved above a write to an input: which operand is checked, and a value that passes
    raises: tuple[int, int] | None = None
    refuses: bool = False  # rows with a lower function: it may raise for values of its operands, as `raises` says of others
    rough: str | None = None  # Triton's text of f32 where all that depends on it is rounded to 16 bits: some units off
    # C++ whose text is vector code but not right for all operands: dtype or class -> (a test of the operands that is not 0
    # where it is wrong, the text that is right there). A kernel tests a chunk of elements first
    far: dict[str, tuple[str, str]] | None = None
    # operands that eager rounds to f16 or bf16 before it computes, where that shows: a jump lies at the number itself
    rounds: tuple[int, ...] = ()
    # lower(ctx, *args, **kwargs) for composite, reduce, view, create rows; the node is ctx.node
    lower: Callable | None = None
    elementwise: bool = False  # composite rows: each element of the results is made of those of the operands at its place
    out: str | None = None  # extern rows: the overload that writes into given memory: "aten.mm.out"
    unsized: tuple[int, ...] = ()  # extern rows: results of a size that only the library knows, and only it reads

    def text(self, language: str, dtype: str) -> str:
        """The row's text for the deciding dtype. Raises: KeyError naming row, language and dtype when there is
        none."""
        texts = getattr(self, language)
        if isinstance(texts, str):
            return texts
        for key in _keys(dtype):
            if texts and key in texts:
                return texts[key]
        raise KeyError(f"op {self.name}: no {language} text for {dtype}")

    def far_text(self, dtype: str) -> tuple[str, str] | None:
        """`far` of a dtype."""
        return next((self.far[key] for key in _keys(dtype) if key in self.far), None) if self.far else None

    def __repr__(self) -> str:
        return f"op {self.name} ({self.kind}, {self.dtype}) <- {' '.join(self.aten) or '(IR only)'}"


class OpTable:
    """Rows by IR name and by ATen overload. Filled once, when the row files are imported; read-only after."""

    def __init__(self) -> None:
        self.by_name: dict[str, Op] = {}
        self.by_aten: dict[str, Op] = {}

    def add(self, row: Op) -> Op:
        """Adds a row. Raises: ValueError when the name or an overload is taken."""
        if row.dtype not in DTYPE_RULES:
            raise ValueError(f"op {row.name}: dtype rule {row.dtype!r} is not one of {DTYPE_RULES}")
        if row.name in self.by_name:
            raise ValueError(f"op {row.name}: the name is taken by {self.by_name[row.name]}")
        for overload in row.aten:
            if overload in self.by_aten:
                raise ValueError(f"op {row.name}: {overload} is taken by {self.by_aten[overload]}")
        self.by_name[row.name] = row
        self.by_aten.update(dict.fromkeys(row.aten, row))
        return row

    def __repr__(self) -> str:
        return f"op table: {len(self.by_name)} rows, {len(self.by_aten)} overloads"


Lower = TypeVar("Lower", bound=Callable)  # what a row's decorator returns as it is
_TABLE = OpTable()
_LOADED: list[bool] = []  # filled when the row files are imported


def aten(*names: str) -> tuple[str, ...]:
    """`aten("erf")` is ("aten.erf.default",); a name with a dot keeps its overload, one of prims its namespace."""
    return tuple(n if n.startswith("prims.") else f"aten.{n}" if "." in n else f"aten.{n}.default" for n in names)


def op(name: str, aten: tuple[str, ...] | str = (), kind: str = "pointwise", **fields: Any) -> Op:
    """Declares a row (at import of a row file). Raises: ValueError when the name or an overload is taken."""
    return _TABLE.add(Op(name, (aten,) if isinstance(aten, str) else tuple(aten), kind, **fields))


def lowers(kind: str, name: str, overloads: Sequence[str], **fields: Any) -> Callable[[Lower], Lower]:
    """Declares a row whose lower function is decorated. overloads: as `aten` takes them; dtypes: all, unless given."""

    def declare(fn: Lower) -> Lower:
        op(name, aten(*overloads), kind, lower=fn, **{"dtypes": frozenset(DTYPES), **fields})
        return fn

    return declare


def table() -> OpTable:
    """All rows; imports the row files (every file of `rows/`) on first use."""
    if not _LOADED:
        for file in sorted((Path(__file__).parent / "rows").glob("*.py")):
            import_module(f"bytejit.codegen.ops.rows.{file.stem}")
        _LOADED.append(True)
    return _TABLE
