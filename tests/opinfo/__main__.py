"""All of torch's operator table: `make opinfo ARGS="--jobs 4 --json rows.jsonl"`, or `python -m tests.opinfo`.

Without --dtypes, --dynamic, --grad, --variants, --twists: every setting of `plan.SETTINGS`. With --json it goes on where it was
stopped. The table at the end counts rows by setting; rows that differ and are not in `known.py`, and rows there that do not
differ, make the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from . import jobs, modules, plan
from .harness import Row
from .known import reason


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    p.add_argument("--jobs", type=int, default=1, help="processes")
    p.add_argument("--samples", type=int, default=3, help="samples a row")
    p.add_argument("--json", type=Path, help="a line a row; rows that it holds are not run again")
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtypes", help="float32,bfloat16")
    p.add_argument("--dynamic", action="store_true", help="all sizes symbolic")
    p.add_argument("--grad", action="store_true", help="gradients too")
    p.add_argument("--variants", help="function,inplace,out")
    p.add_argument("--twists", help=f"other inputs than the samples: {','.join(plan.TWISTS)}, or all")
    p.add_argument("--only", nargs="*", help="operators by name")
    p.add_argument("--sample", type=int, help="only about so many of the rows, drawn by --seed")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--modules", action="store_true", help="modules instead of operators: all of them, in this process")
    p.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args(argv)


def stored(path: Path | None) -> dict[tuple[str, str], Row]:
    """Rows of an earlier run, by operator and setting."""
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {(row.op, row.setting): row for row in rows}


def verdict(row: Row) -> str:
    """ok, known, wrong (what the exit status counts), stale (listed in known.py, but right), or empty."""
    why = reason(row.op, row.setting)
    if row.bad:
        return "known" if why else "wrong"
    return "stale" if why and row.ok else "ok" if row.ok else "empty"


def table(rows: list[Row]) -> str:
    """Rows counted by setting."""
    kinds = ("ok", "known", "wrong", "stale", "empty")
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        of = counts.setdefault(row.setting, dict.fromkeys((*kinds, "samples"), 0))
        of[verdict(row)] += 1
        of["samples"] += row.ok + len(row.bad)
    width = max(map(len, counts), default=8) + 2
    lines = ["setting".ljust(width) + "".join(k.rjust(9) for k in (*kinds, "samples"))]
    lines += [s.ljust(width) + "".join(str(n).rjust(9) for n in of.values()) for s, of in counts.items()]
    return "\n".join(lines)


def run_modules(only: list[str] | None, device: str, samples: int) -> int:
    """Exit status: 0 when every row of the table of modules is right."""
    found = []
    for row in modules.rows(only, device):
        found.append(modules.run_module(row, samples))
        if found[-1].bad:
            print(f"wrong  {row.name}  [{row.setting}]  {found[-1].bad}", flush=True)
    print(table(found))
    return int(any(row.bad for row in found))


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 when every row is right or known."""
    a = arguments(argv)
    if a.serve:
        jobs.serve(a.samples)
        return 0
    if a.modules:
        return run_modules(a.only, a.device, a.samples)
    chosen = plan.settings(a.device, a.dtypes, a.dynamic, a.grad, a.variants, a.twists)
    work = plan.sample(a.sample, a.seed, chosen) if a.sample else plan.work(chosen, a.only)
    rows = stored(a.json)
    left = [(name, setting) for name, setting in work if (name, setting.name) not in rows]
    for row, seconds in jobs.run_all(left, a.jobs, a.samples):
        rows[row.op, row.setting] = row
        if a.json:
            with a.json.open("a") as out:
                out.write(json.dumps(asdict(row)) + "\n")
        if verdict(row) in ("wrong", "stale"):
            said = row.bad or reason(row.op, row.setting)
            print(f"{verdict(row)}  {row.op}  [{row.setting}]  {seconds:.1f} s  {said}", flush=True)
    wanted = [rows[name, setting.name] for name, setting in work]
    print(table(wanted))
    return int(any(verdict(row) in ("wrong", "stale") for row in wanted))


if __name__ == "__main__":
    sys.exit(main())
