"""Write docs/api.md from the docstrings of what `import bytejit` gives.

    python docs/make_api.py            # writes docs/api.md
    python docs/make_api.py --check    # exit status 1 when the file is not what would be written

Sources are parsed, not imported: the page does not depend on the Python that writes it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "api.md"
HEAD = """# The public interface

Written by `python docs/make_api.py` from the docstrings. A name that is not on this page is not public.
"""
Defined = ast.FunctionDef | ast.ClassDef
# objects that are made of a class: the page shows the class's docstring
OBJECTS = {"counters": "Counters", "config": "Config"}
FIRST = ("compile", "optimize", "explain", "export")


def tree(module: str) -> ast.Module:
    """The parsed source of a module, by its dotted name."""
    path = SRC / Path(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def public() -> list[str]:
    """`bytejit.__all__`."""
    body = tree("bytejit").body
    return next(ast.literal_eval(n.value) for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")


def homes(module: str) -> dict[str, str]:
    """For each name that a package's `__init__` or a module imports: the module that defines it."""
    package = module if (SRC / Path(*module.split("."))).is_dir() else module.rpartition(".")[0]
    found = {}
    for node in tree(module).body:
        if isinstance(node, ast.ImportFrom):
            base = f"{package}.{node.module}" if node.level else node.module
            found.update({alias.name: base if node.module else package for alias in node.names})
    return found


def definition(module: str, name: str) -> Defined:
    """The function or class of that name. Raises: StopIteration when there is none."""
    return next(n for n in tree(module).body if isinstance(n, Defined) and n.name == name)


def signature(fn: ast.FunctionDef, name: str, method: bool = False) -> str:
    """`name(parameters) -> result`, as in the source; a method without its first parameter."""
    text = ast.unparse(fn.args)
    if method:
        text = re.sub(r"^(self|cls)(, )?", "", text)
    return f"{name}({text})" + (f" -> {ast.unparse(fn.returns)}" if fn.returns else "")


def doc(node: Defined) -> str:
    """A docstring as the page shows it. Raises: ValueError when there is none."""
    text = ast.get_docstring(node)
    if not text:
        raise ValueError(f"{node.name} is public and has no docstring")
    return text


def methods(cls: ast.ClassDef) -> list[str]:
    """The public methods of a class, a line each."""
    found = [n for n in cls.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and ast.get_docstring(n)]
    return [f"- `{n.name if is_property(n) else signature(n, n.name, True)}`: {' '.join(doc(n).split())}" for n in found]


def is_property(fn: ast.FunctionDef) -> bool:
    """Whether a method is read as an attribute."""
    return any(ast.unparse(d) == "property" for d in fn.decorator_list)


def fields(module: str, cls: ast.ClassDef) -> list[str]:
    """A dataclass's fields with the comments beside them, as a table."""
    path = SRC / Path(*module.split(".")).with_suffix(".py")
    lines = path.read_text().splitlines()
    out = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for node in cls.body:
        if isinstance(node, ast.AnnAssign):
            note = lines[node.lineno - 1].partition("  # ")[2]
            cells = (f"`{ast.unparse(node.target)}`", f"`{ast.unparse(node.annotation)}`", f"`{ast.unparse(node.value)}`", note)
            out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return out


def section(name: str, module: str) -> list[str]:
    """One public name."""
    node = definition(module, OBJECTS.get(name, name))
    out = [f"## {name}", ""]
    if isinstance(node, ast.FunctionDef):
        out += ["```", signature(node, f"bytejit.{name}"), "```", ""]
    out += [doc(node), ""]
    if isinstance(node, ast.ClassDef):
        out += [*fields(module, node), ""] if name == "Options" else []
        out += [*methods(node), ""]
    return out


def errors() -> list[str]:
    """The exceptions of `bytejit.exc`."""
    out = ["## exc", "", "The exceptions, as `bytejit.exc.Unsupported` and so on.", ""]
    for name, module in sorted(homes("bytejit.exc").items()):
        node = definition(module, name)
        bases = ", ".join(map(ast.unparse, node.bases))
        out.append(f"- `{name}({bases})`: {' '.join(doc(node).split())}")
    return [*out, ""]


def page() -> str:
    """The whole page."""
    where = homes("bytejit")
    parts = [HEAD.rstrip(), ""]
    for name in (*FIRST, *sorted(set(public()) - set(FIRST), key=str.lower)):
        parts += errors() if name == "exc" else section(name, where[name])
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.exists() and PAGE.read_text() == made else f"{PAGE} is old: run docs/make_api.py")
    PAGE.write_text(made)
