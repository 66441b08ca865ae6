"""Fuzz for long: `python -m tests.fuzz --count 10000 [--seed N] [--backend eager] [--jobs N] [--chains] [--show]`.

The programs come in blocks of 250, each decided by the seed and its number, each run in a process of its own, `--jobs` of
them at a time. With `--resume FILE` the blocks without a difference are noted there, and not run again.
--found FOLDER: each program that differs is written there and the run goes on; nothing is shrunk.
--chains: chains of tensor ops in kernels, seeds N to N + count - 1, in place of programs; --training: with their backward
passes (a chain that has none is left out), --dynamic: with all sizes as symbols, --resized: with later calls in other sizes,
--device cuda: on a GPU.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from ..programs import targets
from .chain_runner import check_chain, raises
from .chains import chain, trained
from .resized import resized
from .runner import EXPLAINED, check_source
from .writer import programs

BLOCK = 250  # programs of a process
FORMS = ("chains", "training", "dynamic", "resized")


def run_chains(args: argparse.Namespace) -> int:
    """Each chain that differs is printed. Exit status: 0 when none does."""
    began, ran, bad = time.time(), 0, 0
    for n in range(args.seed, args.seed + args.count):
        with torch.device("cpu"):
            text = trained(chain(n)) if args.training else chain(n)
            later = resized(text, n) if args.resized else ()
            if args.device != "cpu":  # an index out of range ends all work on a GPU
                later = tuple(t for t in later if not raises(t))
        if args.show:
            print(text)
            return 0
        if args.training and raises(text, args.device):
            continue
        ran += 1
        try:
            with targets.strict():
                check_chain(text, dynamic=args.dynamic or None, resized=later, device=args.device)
        except Exception as e:
            bad += 1
            print(f"chain {n}: {type(e).__name__}: {e}\n{text.partition('def inputs')[2]}", flush=True)
            torch.zeros(1) + 1  # raises where a fault of a GPU ended all work of this process
        if ran % 200 == 0:
            print(f"{ran} chains, {time.time() - began:.0f} s", flush=True)
    print(f"{ran} chains of the {args.count} from {args.seed} on, {bad} differ, {time.time() - began:.0f} s")
    return bool(bad)


def run_block(args: argparse.Namespace, number: int) -> tuple[int, int, str]:
    """A block in a process of its own: its number, exit status and output. A crash is a difference."""
    command = [sys.executable, "-m", "tests.fuzz", "--alone", "--backend", args.backend, "--device", args.device]
    if args.chains:
        size = chains_a_block(args)
        begin = number * size
        command += ["--seed", str(args.seed + begin), "--count", str(min(size, args.count - begin))]
        command += [f"--{flag}" for flag in FORMS if getattr(args, flag)]
    else:
        command += ["--seed", str(args.seed + number * 1_000_003), "--count", str(BLOCK)]
        command += ["--found", args.found] if args.found else []
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    return number, done.returncode, done.stdout


def chains_a_block(args: argparse.Namespace) -> int:
    """At most BLOCK, and some blocks for each process."""
    return max(1, min(BLOCK, -(-args.count // (4 * args.jobs))))


def run_blocks(args: argparse.Namespace) -> int:
    """All blocks, those that were done before left out. Exit status: 0 when no program differs."""
    began, note = time.time(), Path(args.resume) if args.resume else None
    forms = [flag for flag in FORMS if getattr(args, flag)] + [f"of {args.count} on {args.jobs}"] * args.chains
    key = " ".join([f"seed {args.seed} {args.backend}", *forms, "block "])
    known = set(note.read_text().splitlines()) if note and note.exists() else set()
    size = chains_a_block(args) if args.chains else BLOCK
    blocks = [n for n in range(-(-args.count // size)) if f"{key}{n}" not in known]
    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for done, (number, status, said) in enumerate(pool.map(partial(run_block, args), blocks), 1):
            if status:
                bad += 1
                print(f"block {number}, exit status {status}:\n{said}", flush=True)
            elif note:
                with note.open("a") as f:
                    f.write(f"{key}{number}\n")
            print(
                f"{done * size} of {len(blocks) * size} programs, {bad} blocks with a difference,",
                f"{time.time() - began:.0f} s",
                flush=True,
            )
    return bool(bad)


def run_alone(args: argparse.Namespace) -> int:
    """All programs in this process. Exit status: 0 when none differs."""
    done, bad, began = 0, 0, time.time()
    phases = [Phase.generate] if args.found else [Phase.generate, Phase.shrink]

    @with_seed(args.seed)
    @settings(
        max_examples=args.count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(programs())
    def fuzz(source):
        nonlocal done, bad
        done += 1
        if done % 500 == 0:
            print(f"{done} programs, {time.time() - began:.0f} s", flush=True)
        try:
            check_source(source, args.backend)
        except Exception:
            if not args.found:
                raise
            bad += 1
            path = Path(args.found) / f"{args.seed}_{done}.py"
            path.write_text(source + "".join(f"# {line}\n" for line in traceback.format_exc().splitlines()))
            print(f"differs: {path}", flush=True)

    try:
        with targets.strict():
            fuzz()
    except Exception as e:
        text = "".join(getattr(e, "__notes__", [])).replace("\\n", "\n")
        print(f"{type(e).__name__}: {e}\n{text}\nafter {done} programs, seed {args.seed}")
        return 1
    roundings = f", {EXPLAINED['rounding']} a rounding, {EXPLAINED['way']} another way by a rounding" if EXPLAINED else ""
    print(f"{done} programs, {bad} differ{roundings}, {time.time() - began:.0f} s, seed {args.seed}")
    return bool(bad)


def main(argv=None) -> int:
    """Exit status: 0 when no program differs."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--count", type=int, default=10_000, help="how many programs")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--backend", default="eager")
    p.add_argument("--chains", action="store_true", help="chains of tensor ops, in kernels")
    p.add_argument("--training", action="store_true", help="chains with their backward passes")
    p.add_argument("--dynamic", action="store_true", help="chains with all sizes as symbols")
    p.add_argument("--resized", action="store_true", help="chains that are called again in other sizes")
    p.add_argument("--device", default="cpu", help="where the chains run")
    p.add_argument("--jobs", type=int, default=1, help="processes at a time")
    p.add_argument("--resume", help="a file that notes the blocks that are done")
    p.add_argument("--alone", action="store_true", help="all programs in this process, in one block")
    p.add_argument("--found", help="a folder for the programs that differ; none is shrunk, and the run goes on")
    p.add_argument("--show", action="store_true", help="print one program and end")
    args = p.parse_args(argv)
    warnings.simplefilter("ignore")
    if not args.alone and not args.show and (args.jobs > 1 or not args.chains):
        return run_blocks(args)
    if args.chains:
        torch.set_default_device(args.device)
        return run_chains(args)
    if args.show:
        print(programs().example().partition("def program")[2])
        return 0
    return run_alone(args)


if __name__ == "__main__":
    sys.exit(main())
