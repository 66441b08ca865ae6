"""Fuzz for long: `python -m tests.fuzz --count 10000 [--seed N] [--backend eager] [--chains] [--show]`.

--chains: chains of tensor ops in kernels, seeds N to N + count - 1, in place of programs.
"""
import argparse
import sys
import time
import warnings

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from ..programs import targets
from .chain_runner import check_chain
from .chains import chain
from .runner import check_source
from .writer import programs


def run_chains(count: int, seed: int, show: bool) -> int:
    """Each chain that differs is printed. Exit status: 0 when none does."""
    began, bad = time.time(), 0
    for n in range(seed, seed + count):
        text = chain(n)
        if show:
            print(text)
            return 0
        try:
            with targets.strict():
                check_chain(text)
        except Exception as e:
            bad += 1
            print(f"chain {n}: {type(e).__name__}: {e}\n{text.partition('def inputs')[2]}", flush=True)
        if (n - seed) % 200 == 199:
            print(f"{n - seed + 1} chains, {time.time() - began:.0f} s", flush=True)
    print(f"{count} chains from {seed} on, {bad} differ, {time.time() - began:.0f} s")
    return bool(bad)


def main(argv=None) -> int:
    """Exit status: 0 when no program differs."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--count", type=int, default=10_000, help="how many programs")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--backend", default="eager")
    p.add_argument("--chains", action="store_true", help="chains of tensor ops, in kernels")
    p.add_argument("--show", action="store_true", help="print one program and end")
    args = p.parse_args(argv)
    warnings.simplefilter("ignore")
    if args.chains:
        return run_chains(args.count, args.seed, args.show)
    done, began = [0], time.time()

    @with_seed(args.seed)
    @settings(max_examples=args.count, deadline=None, database=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate, Phase.shrink], print_blob=False, report_multiple_bugs=False)
    @given(programs())
    def fuzz(source):
        done[0] += 1
        if done[0] % 500 == 0:
            print(f"{done[0]} programs, {time.time() - began:.0f} s", flush=True)
        check_source(source, args.backend)

    if args.show:
        print(programs().example().partition("def program")[2])
        return 0
    try:
        with targets.strict():
            fuzz()
    except Exception as e:
        text = "".join(getattr(e, "__notes__", [])).replace("\\n", "\n")
        print(f"{type(e).__name__}: {e}\n{text}\nafter {done[0]} programs, seed {args.seed}")
        return 1
    print(f"{done[0]} programs, no difference, {time.time() - began:.0f} s, seed {args.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
