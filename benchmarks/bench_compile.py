"""Cold and warm compile seconds, in fresh processes, beside torch.compile's.

The clock starts after `import torch` and the building of the model: it covers importing the compiler, compiling and the
first call. Cold: an empty cache folder. Warm: a new process with the folder that the cold one filled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import source_path

GOALS = {"foo_8": (2.0, 0.7), "resnet18_b1": (4.0, None), "bert": (5.0, 2.0)}  # seconds: cold, warm


def measure(case: str, compiler: str, device: str) -> dict[str, float]:
    """In this process: seconds of importing the compiler and of import, compile and first call together."""
    import torch
    from models import CASES

    torch.manual_seed(0)
    built = CASES[case].build(device)
    with torch.no_grad():
        built.target(*built.args, **built.kwargs)  # eager's own first call is not the compiler's
        start = time.perf_counter()
        if compiler == "bytejit":
            import bytejit

            imported = time.perf_counter() - start
            compiled = bytejit.compile(built.target)
        else:
            imported = 0.0
            compiled = torch.compile(built.target)
        compiled(*built.args, **built.kwargs)
        if device == "cuda":
            torch.cuda.synchronize()
    return {"import": imported, "total": time.perf_counter() - start}


def fresh(case: str, compiler: str, device: str, cache: str) -> dict[str, float]:
    """`measure` in a fresh process with one cache folder. Raises: RuntimeError with its output when it fails."""
    env = {
        # modules are compiled once, as in an installation
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": source_path(),
        "BYTEJIT_SUPPRESS_ERRORS": "0",  # a fault would time the original code
        "BYTEJIT_CACHE_DIR": f"{cache}/b",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/i",
        "TRITON_CACHE_DIR": f"{cache}/t",
    }
    out = subprocess.run(
        [sys.executable, __file__, "--one", case, compiler, "--device", device], env=env, capture_output=True, text=True
    )
    if out.returncode:
        raise RuntimeError(f"{compiler} on {case} failed:\n{out.stderr[-2000:]}")
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(GOALS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--no-peer", action="store_true", help="without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "COMPILER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.device)))
        return
    rows = []
    print(f"{'case':<16}{'compiler':<16}{'import s':>10}{'cold s':>10}{'warm s':>10}   goal (cold, warm)")
    for case in args.cases:
        for compiler in ("bytejit",) if args.no_peer else ("bytejit", "torch.compile"):
            with tempfile.TemporaryDirectory() as cache:
                cold, warm = (fresh(case, compiler, args.device, cache) for _ in range(2))
            rows.append(
                {
                    "case": case,
                    "compiler": compiler,
                    "import": warm["import"],
                    "cold": cold["total"],
                    "warm": warm["total"],
                }
            )
            goal = GOALS.get(case, ("", "")) if compiler == "bytejit" else ""
            print(
                f"{case:<16}{compiler:<16}{warm['import']:>10.2f}{cold['total']:>10.2f}{warm['total']:>10.2f}   {goal}",
                flush=True,
            )
    if args.json:
        Path(args.json).write_text(json.dumps({"device": args.device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
