"""The debug folder: one a compiled region, numbered files in the order of the stages, the same names on every run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bytejit.common.light_dataclass import light_dataclass

from .caches import warn_once
from .options import Options
from .text import file_name
from .where import Where

# stage -> file. The order is the order of the stages; a stage that did not run leaves no file.
STAGES = {
    "original": "0_original.txt",  # the user's bytecode
    "rewritten": "0_rewritten.txt",  # the same with sites
    "graph": "1_graph.py",  # the FX graph of torch calls
    "guards": "2_guards.txt",  # the guard set
    "entry": "3_entry.py",  # guards, graph call, effects and exit as one Python function
    "aten": "4_aten.py",  # the normalised ATen graph; "aten.1_choose_linears": after that pass, in 4_aten_1_choose_linears.py
    "loops": "5_loops.txt",  # loop IR; "loops.2_inline": after that pass
    "schedule": "6_schedule.txt",  # groups, buffers, tiles
    "kernel": "7_kernel.cpp",  # C++; "7_kernel.py" for Triton; further units are "kernel1", "kernel2"
    "call": "8_call.py",  # the call sequence
}
_made: dict[str, int] = {}  # owner: region; size: one entry a region name; cleared by forget()


@light_dataclass(frozen=True)
class Dump:
    """Where the stage files of one region go. A Dump without a folder writes nothing."""

    folder: Path | None = None

    def __bool__(self) -> bool:
        return self.folder is not None

    def write(self, stage: str, text: str, suffix: str = "") -> Path | None:
        """Write one stage's text; `suffix` (".py") replaces the file's usual one. Returns the file, None when off.

        A stage may come in parts: "kernel1" is a further "kernel", "loops.2_inline" are the loops after a pass. One that is not
        known here (a backend's own) comes last.
        """
        whole, _, part = stage.partition(".")
        base = whole.rstrip("0123456789")
        mark = whole[len(base) :] + (f"_{part}" if part else "")
        name = STAGES.get(base, f"9_{file_name(base)}.txt").replace(".", f"{mark}.", 1)
        if self.folder is None:
            return None
        path = self.folder / (name.rpartition(".")[0] + suffix if suffix else name)
        path.write_text(text if text.endswith("\n") else text + "\n")
        return path


OFF = Dump()


def region(options: Options, where: Where, point: int) -> Dump:
    """The dump of a region that starts at resume point `point` of the code at `where`; `OFF` unless `options.debug`.

    Folder: <debug_dir>/<function>_L<line>_p<point>[_<n>], n from the second entry of the same site on. What an
    earlier process left there is deleted. A folder that cannot be written is warned of, once, and left alone.
    """
    if not options.debug:
        return OFF
    name = f"{file_name(where.function)}_L{where.line}_p{point}"
    n = _made[name] = _made.get(name, 0) + 1
    folder = Path(os.path.abspath(options.debug_dir)) / (name if n == 1 else f"{name}_{n}")
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as e:
        warn_once(f"debug {options.debug_dir}", f"bytejit: the debug folder cannot be written, and nothing is: {e}")
        return OFF
    return Dump(folder)


def forget() -> None:
    """Number regions from one again: for tests and `reset()`."""
    _made.clear()
