"""The order of imports, the weight of `import bytejit`, independence from torch's own compiler, complete tables."""

from __future__ import annotations

import ast
import dis
import gc
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "bytejit"
# Imports go from a higher level to a lower one, or stay within their room. Rooms of one level never import one another.
LEVELS = (
    ("common", "errors", "options", "exc"),
    ("compat",),
    ("rewriter",),
    ("runtime",),
    ("guards",),
    ("shapes",),
    ("fake",),
    ("tracer", "codegen", "kernels"),
    ("autograd",),
    ("backends",),
    ("tools",),
    ("pipeline",),
    ("api", "explanation", "exporting", "patching"),
    ("__init__", "__main__", "commands", "verify"),
)
LEVEL = {room: n for n, rooms in enumerate(LEVELS) for room in rooms}
JOINED = {
    "common",
    "errors",
    "options",
    "exc",
    "api",
    "explanation",
    "exporting",
    "patching",
    "__init__",
    "__main__",
    "commands",
    "verify",
}
# every folder of the package: a new one is named here
FOLDERS = {
    "autograd",
    "backends",
    "codegen",
    "codegen/aten",
    "codegen/cpu",
    "codegen/cuda",
    "codegen/emit",
    "codegen/libraries",
    "codegen/loops",
    "codegen/loops/passes",
    "codegen/onnx",
    "codegen/ops",
    "codegen/ops/rows",
    "common",
    "compat",
    "fake",
    "fake/rules",
    "guards",
    "kernels",
    "kernels/prelude",
    "rewriter",
    "runtime",
    "shapes",
    "tools",
    "tracer",
    "tracer/builtins",
    "tracer/core",
    "tracer/exits",
    "tracer/objects",
    "tracer/opcodes",
    "tracer/sizes",
    "tracer/torch",
}
# by name, never where it is imported: the default backend, when a user asks which there are; a trial of a whole compile. The op
# table finds its rows (`codegen/ops/rows/`) by the names of their files
NAMED_ABOVE = {("common.registry", "backends.inductor"), ("compat.trial", "__init__")}
FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._C._dynamo",
    "torch.compile",
    "torch.compiler",
    "torch._compile",
)


def room(module: str) -> str:
    """The first part of a module's name: a room, or a file of the root."""
    return module.split(".")[0]


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """What is read of the sources stays for all tests here, and no longer: no collection of garbage goes through it."""
    gc.disable()
    yield
    for kept in (text_of, tree, nodes, imports):
        kept.cache_clear()
    gc.enable()


@cache
def modules() -> dict[str, Path]:
    """All modules of bytejit: dotted name below the package -> file."""
    return {".".join(p.relative_to(SRC).with_suffix("").parts): p for p in sorted(SRC.rglob("*.py"))}


@cache
def text_of(name: str) -> str:
    return modules()[name].read_text()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@cache
def nodes(name: str) -> dict[type[ast.AST], list]:
    """All nodes of a module, by their type: each tree is walked once."""
    found: dict[type[ast.AST], list] = {}
    for node in ast.walk(tree(name)):
        found.setdefault(type(node), []).append(node)
    return found


def of(name: str, *types: type[ast.AST]) -> list:
    """The nodes of some types in a module."""
    return [node for t in types for node in nodes(name).get(t, ())]


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; the first part is empty where it is another expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


@cache
def imports(name: str) -> list[tuple[str, int]]:
    """What a module imports, absolute, with lines: within functions, for type checkers, and by `import_module("name")`, too."""
    package = ["bytejit", *name.split(".")[:-1]]
    found = [(alias.name, node.lineno) for node in of(name, ast.Import) for alias in node.names]
    for node in of(name, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = [*base, *(node.module.split(".") if node.module else [])]
        # `from . import x` names the module x; `from .x import y` the module x, and y where that is a module too
        found.extend((".".join([*base, alias.name]), node.lineno) for alias in node.names)
    for node in of(name, ast.Call):
        if dotted(node.func).endswith(("import_module", "__import__")):
            found.extend((a.value, node.lineno) for a in node.args[:1] if isinstance(a, ast.Constant))
    return found


def own(target: str) -> str | None:
    """The module of bytejit that an imported name lies in; None for anything else."""
    parts = target.split(".")
    if parts[0] != "bytejit":
        return None
    known = modules()
    for n in range(len(parts), 1, -1):
        name = ".".join(parts[1:n])
        if name in known:
            return name
        if f"{name}.__init__" in known:
            return f"{name}.__init__"
    return "__init__"


def test_every_file_has_its_place() -> None:
    unknown = [name for name in modules() if "." not in name and name not in LEVEL]
    folders = {str(path.parent.relative_to(SRC)) for path in modules().values()} - {"."}
    assert not unknown and folders == FOLDERS, (unknown, folders ^ FOLDERS)


def test_imports_go_one_way() -> None:
    wrong = []
    for name in modules():
        for target, line in imports(name):
            other = own(target)
            if other is None or other == name:
                continue
            a, b = room(name), room(other)
            if (
                (name, other) not in NAMED_ABOVE
                and LEVEL[b] > LEVEL[a]
                or (a != b and LEVEL[a] == LEVEL[b] and not {a, b} <= JOINED)
            ):
                wrong.append(f"{name}:{line} -> {other}: against the order")
    assert not wrong, "\n".join(wrong)


def test_one_module_of_the_tracer_reads_the_version_of_python() -> None:
    readers = [n for n in modules() if room(n) == "tracer" and "version_info" in text_of(n)]
    assert readers == ["tracer.core.versions"]


def test_no_module_imports_a_private_name() -> None:
    """A name with an underscore is its module's own."""
    wrong = []
    for name in modules():
        for node in of(name, ast.ImportFrom):
            if node.level or (node.module or "").startswith("bytejit"):
                private = [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
                wrong += [f"{name}:{node.lineno}: {p}" for p in private]
    assert not wrong, "\n".join(wrong)


def imported(name: str) -> set[str]:
    """The other modules of bytejit that a module imports."""
    return {other for target, _ in imports(name) if (other := own(target)) and other != name and (name, other) not in NAMED_ABOVE}


def test_no_import_cycle() -> None:
    graph = {name: imported(name) for name in modules()}
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph.get(name, ())):
                walk(other, (*way, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def package_of(module: str) -> str:
    """The folder that a module lies in; a file of the root is a package of its own."""
    return module.rpartition(".")[0] or module


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of nodes that reach one another."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {node: reached(node) for node in graph}
    return {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in graph if node in reach[node]}


def test_no_cycle_between_packages() -> None:
    """Of folders, a folder's own files and those of a folder within it apart."""
    graph: dict[str, set[str]] = {}
    by: dict[tuple[str, str], str] = {}
    for name in modules():
        a = package_of(name)
        for other in sorted(imported(name)):
            if (b := package_of(other)) != a:
                graph.setdefault(a, set()).add(b)
                by.setdefault((a, b), f"{name} -> {other}")
    found = cycles(graph)
    said = [text for (a, b), text in by.items() if any({a, b} <= cycle for cycle in found)]
    assert not found, (found, said)


def test_a_cycle_between_packages_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}}) == {frozenset("bc")}
    assert package_of("fake.rules.core") == "fake.rules" and package_of("exc") == "exc"


# modules that import within a function: why not at the top
LATE = {
    "api": "`import bytejit` loads no compiler",
    "autograd.partition": "networkx: few graphs need a cut or a budget",
    "backends.__init__": "the name of a backend loads the backend only when it is called",
    "backends.target": "a target that chooses no libraries loads no timing",
    "common.caches": "few programs are warned",
    "explanation": "a page of HTML is seldom asked for",
    "exporting": "the ATen graph is seldom asked for",
    "fake.meta": "torch's decompositions take long to import",
    "fake.redirected": "torch.distributed: few programs meet other processes",
    "fake.tensor": "few programs have symbolic sizes",
    "patching": "few programs save what was compiled",
    "pipeline": "few programs run in a notebook, or ask to have graphs checked or timed",
    "kernels.build_triton": "timing is off by default",
    "kernels.launch": "cffi: with the first kernel",
    "kernels.owned": "the files of another user, and locks, are seldom met",
    "kernels.scratch": "not in a process that only runs",
    "kernels.triton_worker": "triton: in a worker only",
    "shapes.symbols": "sympy: with the first symbol",
    "tracer.objects.calls": "a private name, found when a device manager is met",
    "tracer.sizes.called_anew": "sympy: with the first symbol",
    "tracer.sizes.dynamic": "sympy: with the first symbol",
    "tracer.sizes.numbers": "sympy: with the first symbol",
    "tracer.sizes.symbol_guards": "sympy: with the first symbol",
    "verify": "rich: if it is there",
}


def test_imports_within_functions_have_a_reason() -> None:
    late = {
        name
        for name in modules()
        for found in of(name, ast.Import, ast.ImportFrom)
        if any(f.lineno <= found.lineno <= f.end_lineno for f in of(name, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert late == set(LATE), late ^ set(LATE)


def test_a_module_imported_by_name_counts() -> None:
    assert "bytejit.backends.training" in [target for target, _ in imports("backends.inductor")]


def test_sources_do_not_use_torchs_compiler() -> None:
    wrong = []
    for name in modules():
        wrong += [f"{name}:{line} imports {target}" for target, line in imports(name) if target.startswith(FORBIDDEN)]
        for node in of(name, ast.Attribute):
            if dotted(node).startswith(FORBIDDEN[:3]):
                wrong.append(f"{name}:{node.lineno} uses {dotted(node)}")
        for node in of(name, ast.Call):
            if dotted(node.func) in ("torch.compile", "sys.settrace", "sys.setprofile", "sys.monitoring.use_tool_id"):
                wrong.append(f"{name}:{node.lineno} calls {dotted(node.func)}")
    assert not wrong, "\n".join(wrong)


HEAVY = ["sympy", "triton", "cffi", "bytecode", "rich", "networkx", "torch._dynamo", "torch._inductor"]
UNUSED = ("backends.training", "backends.cuda", "codegen.libraries.gpu_pass_list", "kernels.cuda_graphs", "autograd.joint")


@cache
def loaded() -> tuple[list[str], list[str]]:
    """What a fresh process loads with `import bytejit`, and all that it has loaded when a model is compiled and was called. It
    does not look for GPUs: that alone makes CUDA unusable in a process that is forked later."""
    code = (
        "import sys, json, torch\n"
        "def asked(*_): raise SystemExit('looked for GPUs')\n"
        "torch.cuda.is_available = torch.cuda.device_count = asked\n"
        "before = set(sys.modules); import bytejit; imported = sorted(set(sys.modules) - before)\n"
        "m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).eval()\n"
        "with torch.no_grad(): bytejit.compile(m)(torch.randn(2, 4))\n"
        "print(json.dumps([imported, sorted(sys.modules)]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    imported, all_of_them = json.loads(out.stdout.splitlines()[-1])
    return imported, all_of_them


def test_import_loads_no_compiler() -> None:
    got = loaded()[0]
    heavy = [m for m in got if any(m == h or m.startswith(h + ".") for h in HEAVY)]
    assert got and not heavy, heavy  # `make bench-costs` times it


@pytest.mark.cxx
def test_compiling_does_not_load_torchs_compiler() -> None:
    """Nor what only training or a GPU needs: a warm start is mostly imports."""
    unused = tuple(f"bytejit.{m}" for m in UNUSED)
    assert [m for m in loaded()[1] if m.startswith(("torch._dynamo", "torch._inductor", *unused))] == []


def test_every_opcode_is_handled_or_refused() -> None:
    table = importlib.import_module("bytejit.tracer.core.table")
    importlib.import_module("bytejit.tracer.assembly")  # imports the handlers
    # specialised and instrumented forms are the interpreter's own: code objects never hold them
    specialised = set(getattr(dis, "_specialized_opmap", ())) | set(getattr(dis, "_specialized_instructions", ()))
    real = {name for name, n in dis.opmap.items() if n < 256 and not name.startswith("INSTRUMENTED_")} - specialised
    missing = real - set(table.HANDLERS) - set(table.REFUSED)
    assert not missing, sorted(missing)
    assert not set(table.HANDLERS) & set(table.REFUSED)


# what 3.12, 3.13 and 3.14 have and 3.11 has not, as their `dis.opmap` lists them (3.14.10)
LATER_OPCODES = """
BINARY_SLICE BUILD_INTERPOLATION BUILD_TEMPLATE CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW CLEANUP_THROW CONVERT_VALUE
END_FOR END_SEND ENTER_EXECUTOR EXIT_INIT_CHECK FORMAT_SIMPLE FORMAT_WITH_SPEC INTERPRETER_EXIT LOAD_COMMON_CONSTANT
LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST
LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_LOCALS LOAD_SMALL_INT LOAD_SPECIAL LOAD_SUPER_ATTR NOT_TAKEN
POP_ITER RESERVED RETURN_CONST SET_FUNCTION_ATTRIBUTE STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_SLICE TO_BOOL
""".split()


def test_opcodes_of_later_pythons_are_handled_or_refused() -> None:
    from bytejit.tracer import assembly  # noqa: F401 - registers the handlers
    from bytejit.tracer.core import table

    assert not set(LATER_OPCODES) - set(table.HANDLERS) - set(table.REFUSED)


def test_only_options_reads_the_environment() -> None:
    wrong = [
        name
        for name in modules()
        if name != "common.options"
        and any(
            isinstance(n.value, str) and n.value.startswith("BYTEJIT_") and " " not in n.value for n in of(name, ast.Constant)
        )
    ]
    assert not wrong, wrong


def keys_by_id(tree: ast.Module) -> list[int]:
    """Lines where `id(...)` is in the key of a table that lives as long as its module (or another's, in capitals)."""
    targets = [
        t
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for t in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    tables = {t.id for t in targets if isinstance(t, ast.Name)}

    def lives(node: ast.AST) -> bool:
        name = node.value if isinstance(node, ast.Subscript) else node
        return isinstance(name, ast.Name) and name.id in tables or isinstance(name, ast.Attribute) and name.attr.isupper()

    def has_id(node: ast.AST) -> bool:
        return any(isinstance(n, ast.Call) and ast.unparse(n.func) == "id" for n in ast.walk(node))

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and lives(node.value) and has_id(node.slice):
            found.append(node.lineno)
        if isinstance(node, ast.Compare) and any(lives(c) for c in node.comparators) and has_id(node.left):
            found.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and lives(node.func.value):
            if any(map(has_id, node.args)):
                found.append(node.lineno)
    return found


def test_no_table_is_keyed_by_the_id_of_what_can_die() -> None:
    """Another object may get its address: `common.identity.IdentityMap` looks at the object itself"""
    text = "T: dict = {}\ndef f(x):\n    T[id(x)] = 1\n    return T.get((id(x), 2)), id(x) in T"
    assert keys_by_id(ast.parse(text)) == [3, 4, 4]
    some = [name for name in modules() if name != "common.identity" and "id(" in text_of(name)]
    wrong = [f"{name}:{line}" for name in some for line in keys_by_id(tree(name))]
    assert not wrong, wrong
