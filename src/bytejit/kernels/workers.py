"""Processes that compile Triton kernels in parallel (`triton_worker.py`). They are started early and end when idle."""

from __future__ import annotations

import atexit
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bytejit.common.errors import BytejitError
from bytejit.common.interrupts import poll

from .machine import cpu
from .owned import Refused
from .scratch import temporary

MOST = 8  # workers at once
WAIT = 0.05  # seconds between two looks at signals that came
WARM = """import triton
import triton.language as tl
@triton.jit
def warm(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)
"""


class WorkerDied(BytejitError):
    """A compile worker ended without a result: it was killed, or triton crashed."""


class Worker:
    """One process, its two pipes, and a folder for all that triton and its compilers write. Raises: Refused."""

    def __init__(self) -> None:
        self.folder = ExitStack()
        folder = str(self.folder.enter_context(temporary()))
        path = os.pathsep.join(p for p in sys.path if p)
        env = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder, "TRITON_CACHE_DIR": folder}
        self.errors = tempfile.TemporaryFile()
        # -S: what `site` would add to the path is in PYTHONPATH
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("triton_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=env,
        )
        assert self.process.stdin is not None and self.process.stdout is not None  # both are pipes
        self.jobs, self.results = self.process.stdin, self.process.stdout

    def ask(self, job: dict) -> dict:
        """The result of a job. Raises: WorkerDied, with the end of what the process said."""
        try:
            self.jobs.write(json.dumps(job).encode() + b"\n")
            self.jobs.flush()
            line = self.results.readline()
        except (BrokenPipeError, ValueError):
            line = b""
        if not line:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()[-1500:]
            raise WorkerDied(f"the compile worker ended with {self.process.wait()}\n{said}".rstrip())
        return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.jobs, self.results, self.errors):
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        self.folder.close()


class Workers:
    """Up to `size` workers. A worker that went away (idle, killed) is replaced once a job."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.warmed = False
        self.free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self.free.put(None)

    def ask(self, job: dict) -> dict:
        """One job on a free worker; waits for one."""
        worker = self.free.get()
        try:
            for attempt in range(2):
                try:
                    if worker is not None and worker.process.poll() is not None:
                        worker.stop()
                        worker = None
                    if worker is None:
                        worker = Worker()
                    return worker.ask(job)
                except Refused as e:
                    return {"error": str(e)}
                except WorkerDied as e:
                    if worker is not None:
                        worker.stop()
                    worker = None
                    if attempt:
                        return {"error": str(e)}
        finally:
            self.free.put(worker)
        raise AssertionError("unreachable")

    def map(self, jobs: Sequence[dict]) -> list[dict]:
        """The results in the order of the jobs; each holds "error" or what `triton_worker.compile_job` returns. Threads wait for
        the workers, so that this one can be left. Raises: Interrupted; no further job is begun then."""
        results: list[dict] = [{}] * len(jobs)
        failed: list[BaseException] = []
        waiting = deque(range(len(jobs)))

        def work() -> None:
            try:
                while True:
                    i = waiting.popleft()
                    results[i] = self.ask(jobs[i])
            except IndexError:  # no job is left
                return
            except BaseException as error:  # it is raised where the results are waited for
                failed.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(self.size, len(jobs)))]
        for t in threads:
            t.start()
        try:
            for t in threads:
                while t.is_alive():
                    t.join(WAIT)
                    poll()
        finally:
            waiting.clear()
        if failed:
            raise failed[0]
        return results

    def warm(self, arch: int) -> None:
        """Start the workers and let each compile a small kernel, without waiting: triton's own start takes a second."""
        if self.warmed:
            return
        self.warmed = True
        job = {
            "text": WARM,
            "name": "warm",
            "kernel": "warm",
            "signature": {"x": "*fp32"},
            "constants": {"N": 128},
            "aligned": ["x"],
            "arch": arch,
            "warps": 4,
            "stages": 1,
            "contracts": True,
        }
        threading.Thread(target=self.map, args=([job] * self.size,), daemon=True).start()

    def stop(self) -> None:
        """End all workers that are free."""
        for _ in range(self.size):
            try:
                worker = self.free.get_nowait()
            except queue.Empty:
                return
            if worker is not None:
                worker.stop()
            self.free.put(None)


@functools.cache
def workers() -> Workers:
    """The process's workers; none is started before the first job."""
    made = Workers(max(1, min(MOST, cpu().cores)))
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            made.stop()

    atexit.register(stop)
    return made
