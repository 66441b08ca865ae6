"""A process that compiles Triton kernels: one job a line on stdin, one result a line on stdout (JSON).

It runs by its path and imports triton alone, neither torch nor the bytejit package, so that it is ready in 0.3 s; the
modules that it compiles may import `bytejit.kernels.prelude`, whose parents stand here as empty packages.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import re
import select
import shutil
import signal
import sys
import types
from pathlib import Path

IDLE = 120  # seconds without a job after which the process ends
PACKED_SUM = re.compile(r"\badd\.([su])16x2\s+([^,;]+), ([^,;]+), ([^,;]+);")


def stub_packages() -> None:
    """`bytejit` and `bytejit.kernels` as packages without code, so that importing a part of them imports no torch."""
    here = Path(__file__).resolve().parent
    for name, folder in (("bytejit", here.parent), ("bytejit.kernels", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def module_of(text: str, name: str) -> types.ModuleType:
    """The module of a kernel's text. Triton reads the text again, which `linecache` then gives; there is no file of it."""
    module = types.ModuleType("bytejit_kernel_" + name)
    module.__file__ = f"<bytejit {name}>"
    linecache.cache[module.__file__] = len(text), None, text.splitlines(keepends=True), module.__file__
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def forget_key() -> None:
    """Skip triton's hash of its own files, which is half of a worker's first job. It would tell versions apart in triton's
    cache, which is here a private folder of this process; bytejit's own keys contain triton's version."""
    from triton.runtime import cache

    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: "bytejit"


def unpacked(ptx: str) -> str:
    """PTX in which sums of two 16-bit numbers in one register are two sums.

    LLVM packs two sums of indices into one register if it knows that they fit into 16 bits. ptxas (of CUDA 12.8, for sm_90)
    then takes
    the constant 1103 in `add.s16x2 sum, x, {1103, 0}` for 0 where the upper half of the sum is not used."""
    return PACKED_SUM.sub(
        r"{ .reg .b16 %bj<4>; mov.b32 {%bj0, %bj1}, \3; mov.b32 {%bj2, %bj3}, \4; "
        r"add.\g<1>16 %bj0, %bj0, %bj2; add.\g<1>16 %bj1, %bj1, %bj3; mov.b32 \2, {%bj0, %bj1}; }",
        ptx,
    )


def unpack_sums() -> None:
    """Let triton hand `unpacked` PTX to ptxas."""
    from triton.backends.nvidia.compiler import CUDABackend

    made = CUDABackend.make_ptx
    CUDABackend.make_ptx = lambda *args, **kwargs: unpacked(made(*args, **kwargs))


def waits_first(ptx: str) -> bool:
    """Whether a kernel waits for the one before it, and touches no memory until then."""
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    return bool(waits) and not re.search(r"\.(global|shared|local)\b(?!.*\.(align|extern))|cp\.async", before)


def compile_job(job: dict) -> dict:
    """One kernel -> its binary and what a launch must know. Raises: what triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = getattr(module_of(job["text"], job["name"]), job["kernel"])
    signature = dict(job["signature"]) | {name: "constexpr" for name in job["constants"]}
    names = list(signature)
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in job["aligned"]}
    source = ASTSource(fn, signature, dict(job["constants"]), attrs)
    # torch's own kernels keep subnormal numbers: ceil(1e-40) is 1, and x % 1e-40 is a number
    exact = {"enable_reflect_ftz": False, "enable_fp_fusion": job["contracts"]}
    options = {"num_warps": job["warps"], "num_stages": job["stages"], **exact}
    made = triton.compile(source, target=GPUTarget("cuda", job["arch"], 32), options=options)
    meta = made.metadata
    if getattr(meta, "global_scratch_size", 0):
        raise RuntimeError("the kernel needs global scratch memory")
    return {
        "name": meta.name,
        "shared": meta.shared,
        "warps": meta.num_warps,
        "early": waits_first(made.asm["ptx"]),
        "binary": base64.b64encode(made.asm["cubin"]).decode(),
    }


def main() -> None:
    """Run jobs until stdin ends or no job comes for a while."""
    stub_packages()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a compiler prints must not mix with the results
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        os.environ.pop("TRITON_INTERPRET", None)
        import triton  # noqa: F401  (ready before the first job comes)

        forget_key()
        unpack_sums()
        buffered = b""
        while select.select([0], [], [], IDLE)[0]:
            got = os.read(0, 1 << 20)
            if not got:
                return
            *lines, buffered = (buffered + got).split(b"\n")
            for line in lines:
                try:
                    result = compile_job(json.loads(line))
                except Exception as e:  # an error of the job itself, which is its result
                    result = {"error": f"{type(e).__name__}: {e}"[:4000]}
                results.write(json.dumps(result) + "\n")
                results.flush()
    finally:  # the process that asks deletes it, too: it may end this one, or end before it
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
