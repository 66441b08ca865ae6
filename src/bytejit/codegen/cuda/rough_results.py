"""Whether a kernel may compute quotients and exponentials by the GPU's approximations.

IEEE division takes about ten instructions and the device library's exponential eight. The hardware's take three and two, and are
a few units of f32's last place off. Where everything that depends on them is rounded to 16 bits, this is a thousandth of the
rounding, and kernels of many operations an element (normalise, SiLU, multiply by a gate) are bound by instructions. It must not
reach what can jump: a comparison, a rounding to whole numbers, an index.
"""

from __future__ import annotations

from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.ir import Buffer, Kernel
from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import FLOATS, NARROW

# ops whose result moves little where an operand does
CONTINUOUS = frozenset(
    """abs add div erf erfc exp exp2 expm1 fma log log1p log2 maximum minimum mul narrow neg normal_cdf reciprocal rsqrt select
    sigmoid sqrt sub tanh tanh_cdf to""".split()
)
REDUCTIONS = frozenset(("sum", "amax", "amin", "logsum"))


def may_be_rough(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether all that depends on ops with a rough text is stored in 16 bits, by way of continuous ops only."""
    rows = table().by_name
    rough: dict[int, bool] = {}
    names: set[str] = set()  # of reductions and row-local buffers that depend on rough values
    for p in k.nests:
        for e in walk(p.roots()):
            depends = any(rough[id(x)] for x in e.needs)
            if depends and (e.name not in CONTINUOUS or e.dtype not in FLOATS):
                return False
            if e.kind == "op":
                rough[id(e)] = depends or e.dtype == "f32" and rows[e.name].rough is not None
            else:
                rough[id(e)] = e.name in names
        for r in p.reduces:
            if any(rough[id(x)] for x in r.args):
                names.add(r.name)
                if r.kind not in REDUCTIONS:
                    return False
        for s in p.stores:
            if rough[id(s.value)]:
                if buffers[s.buffer].kind == "local":
                    names.add(s.buffer)
                elif buffers[s.buffer].dtype not in NARROW:
                    return False
    return True
