"""A Triton module that runs by itself: its kernels, tensors to launch them on, and a main that times each.

python 7_kernel.py
step 0  k0  [16384] warps=4: 92.7 us, 2897 GB/s, 86% of the device's 3352 GB/s

With BYTEJIT_DEBUG=1 this is `7_kernel.py` in the debug folder: it has the buffers with their shapes, and prints the bandwidth
of each kernel beside the peak of the device.
"""

from __future__ import annotations

from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.common.dtypes import torch_dtype

from .source import TritonSource

MAIN = """
if __name__ == "__main__":
    from bytejit.kernels.measure_triton import measure
    measure(globals(), BUFFERS, STEPS, SCRATCH)
"""


def runnable(plan: Plan, source: TritonSource) -> str:
    """The module of a plan with a main. Symbolic sizes have the values that the graph was compiled with."""
    used = dict.fromkeys(a.name for one in source.launches for a in one.args if a.kind == "buffer")
    lines = ["\n\n# name: (dtype, elements from the first to the last), shape and strides beside it", "BUFFERS = {"]
    for name in used:
        b = plan.buffers[name]
        shape, stride = (tuple(map(ix.hint, v)) for v in (b.shape, b.stride))
        count = 0 if 0 in shape else 1 + sum((n - 1) * abs(s) for n, s in zip(shape, stride))
        dtype = str(torch_dtype(b.dtype)).removeprefix("torch.")
        lines.append(f'    "{name}": ("{dtype}", {count}),  # {b!r}')
    lines += [
        "}",
        "# position in the plan, bytes of traffic, launches: kernel, grid, arguments, constants, warps, stages",
        "STEPS = [",
    ]
    for at in dict.fromkeys(one.step for one in source.launches):
        call = plan.steps[at]
        assert isinstance(call, Call)
        lines.append(f"    ({at}, {common.traffic(plan, call)}, [")
        for one in source.launches:
            if one.step == at:
                args = [
                    (
                        a.kind,
                        a.name if a.kind == "buffer" else ix.hint(a.offset) if a.kind == "scratch" else hint_of(call, a.name),
                        a.type,
                    )
                    for a in one.args
                ]
                grid = tuple(map(ix.hint, one.grid))
                lines.append(f'        ("{one.kernel}", {grid}, {args}, {dict(one.constants)}, {one.warps}, {one.stages}),')
        lines.append(f"    ]),  # {' '.join(call.kernel.ops)}")
    lines += ["]", f"SCRATCH = {ix.hint(source.scratch)}", MAIN]
    return source.text + "\n".join(lines)


def hint_of(call: Any, symbol: str) -> int:
    """A size symbol of a kernel as a number."""
    found = common.symbol_atoms(call.kernel).get(symbol)
    return ix.hint(ix.index(found)) if found is not None else 0
