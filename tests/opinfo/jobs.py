"""Runs rows in processes that may crash or hang: a row a request, a line of JSON each way."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Lock, Thread

from .harness import ASSERTED, Row, Setting, run_row

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds after which a row counts as hung
LIFETIME = 300  # rows that a process runs before a new one takes over: what a process keeps is given back


def serve(samples: int) -> None:
    """A worker: reads requests from standard input, writes rows to what was standard output, which is kept from the operators."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        name, setting = json.loads(line)
        try:
            row = run_row(name, Setting(**setting), samples)
        except Exception as e:
            row = Row(name, Setting(**setting).name, bad=[f"harness: {type(e).__name__}: {str(e)[:200]}"])
        answers.write(json.dumps(asdict(row)) + "\n")
        if any(ASSERTED in text for text in (*row.bad, *row.notes)):
            return  # a device-side assert: every later call of this process would raise it


class Worker:
    """A process that serves rows; started anew after a crash, a hang, or `LIFETIME` rows."""

    def __init__(self, samples: int) -> None:
        self.command = [sys.executable, "-m", "tests.opinfo", "--serve", "--samples", str(samples)]
        self.process: subprocess.Popen | None = None
        self.rows = 0

    def ask(self, name: str, setting: Setting) -> Row:
        """The row, also when the process dies of it."""
        if self.process is None or self.rows >= LIFETIME:
            self.end()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
            )
        self.rows += 1
        self.process.stdin.write(json.dumps([name, asdict(setting)]) + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline() if ready else ""
        if line:
            row = Row(**json.loads(line))
            if any(ASSERTED in text for text in (*row.bad, *row.notes)):
                self.end()
            return row
        bad = f"crash: exit {self.process.wait()}" if ready else f"hangs for {PATIENCE:.0f} s"
        self.end()
        return Row(name, setting.name, bad=[bad])

    def end(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process, self.rows = None, 0


def run_all(work: list[tuple[str, Setting]], count: int, samples: int) -> Iterator[tuple[Row, float]]:
    """The rows of (operator, setting) and their seconds, as they come, run by `count` processes."""
    left, done, lock = list(reversed(work)), [], Lock()

    def drain() -> None:
        worker = Worker(samples)
        try:
            while True:
                with lock:
                    if not left:
                        return
                    name, setting = left.pop()
                began = time.time()
                row = worker.ask(name, setting)
                with lock:
                    done.append((row, time.time() - began))
        finally:
            worker.end()

    threads = [Thread(target=drain, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads) or done:
        with lock:
            ready, done[:] = list(done), []
        yield from ready
        time.sleep(0 if ready else 0.1)
