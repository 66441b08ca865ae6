"""torch built for CUDA on a machine without a GPU, without the gigabytes of CUDA's libraries that it links against.

The CPU's code never calls those libraries, but the loader wants each file and each symbol. `install` puts a few KB in their
place: libraries with the names and the symbols that torch lacks, where each function stops the process.
"""

from __future__ import annotations

import re
from pathlib import Path

PREFIXES = ("cublas", "cudnn", "cufft", "cuFile", "curand", "cusolver", "cusparse", "nccl", "nvJitLink", "nvrtc", "nvshmem")
LIBRARY = re.compile(rf"\[(lib(?:{'|'.join(map(str.lower, PREFIXES))})\w*\.so[.\d]*)\]", re.IGNORECASE)


def install(torch: Path) -> list[str]:
    """Put libraries for those that `torch`, an installed package's folder, lacks beside its own. Returns their names.

    Raises: tests.versions.NotMade where readelf, nm or gcc fails.
    """
    from .versions import run

    own = sorted((torch / "lib").glob("*.so*"))
    present = {found.name for found in [*own, *torch.parent.glob("nvidia/*/lib/*.so*")]}
    missing = sorted(set(LIBRARY.findall(run("readelf", "-d", "-W", *own))) - present)
    if not missing:
        return []
    undefined = {line.split()[-1] for line in run("nm", "-D", "--undefined-only", *own).splitlines() if " U " in line}
    names = {symbol.split("@")[0] for symbol in undefined}
    source = [".text"]
    for name in sorted(name for name in names if name.startswith(PREFIXES)):
        source += [f".globl {name}", f".type {name}, @function", f"{name}:", "ud2"]
    code = torch / "lib" / "cuda_stubs.s"
    code.write_text("\n".join([*source, '.section .note.GNU-stack,"",@progbits', ""]))
    needed = run("readelf", "-V", "-W", *own)
    for name in missing:
        script = torch / "lib" / "cuda_stubs.map"
        script.write_text(versions_of(name, needed, undefined))
        versioned = (f"-Wl,--version-script={script}",) if script.read_text() else ()
        run("gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", *versioned, "-o", torch / "lib" / name, code)
    return missing


def versions_of(library: str, needed: str, undefined: set[str]) -> str:
    """The linker's version script of a library: the versions by which torch asks for its symbols; "" where by none.

    The loader stops the process where a symbol is asked for by a version, from a file that has no versions.
    """
    asked = set()
    for part in re.split(r"Version: \d+  File: ", needed)[1:]:
        if part.split()[0] == library:
            asked |= set(re.findall(r"Name: (\S+)", re.split(r"File: |section", part, maxsplit=1)[0]))
    nodes = []
    for version in sorted(asked):
        symbols = sorted(symbol.split("@")[0] for symbol in undefined if symbol.endswith(f"@{version}"))
        nodes.append(f"{version} {{ {' '.join(f'{symbol};' for symbol in symbols)} }};\n")
    return "".join(nodes)
