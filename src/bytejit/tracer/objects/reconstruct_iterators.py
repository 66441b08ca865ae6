"""Iterators and generators that leave a region: statements that make them anew, standing where they stand."""
from __future__ import annotations

from bytejit.tracer.core.signals import CannotRebuild
from bytejit.tracer.core.table import REPLACED
from bytejit.tracer.core.values import GenVar, IterVar


def iterator(rebuild, v: IterVar) -> str:
    s = v.state
    name = rebuild.new_name(v)
    if v.done:
        text = "iter(())"
    elif v.kind == "seq" and "text" not in s:
        text = f"iter({rebuild.value(s['seq'])})"
        rebuild.lines.append(f"{name} = {text}")
        if s["at"]:
            rebuild.lines.append(f"{name}.__setstate__({s['at']})" if s["seq"].cls in (list, tuple) else
                              f"for _ in range({s['at']}): next({name})")
        return name
    elif v.kind == "seq":
        text = f"iter({rebuild.value(s['text'])}[{s['at']}:])"
    elif v.kind == "range":
        text = f"iter({rebuild.bind(s['range'][s['at']:])})"
    elif v.kind == "reversed":
        text = f"reversed({rebuild.value(s['seq'])})"
        skip = len(s["seq"].items) - 1 - s["at"]
        rebuild.lines.append(f"{name} = {text}")
        if skip:
            rebuild.lines.append(f"for _ in range({skip}): next({name})")
        return name
    elif v.kind == "dict":
        owner = rebuild.value(s["owner"])
        text = f"iter({owner}.{s['kind']}())"
        rebuild.lines.append(f"{name} = {text}")
        if s["at"]:
            rebuild.lines.append(f"for _ in range({s['at']}): next({name})")
        if rebuild.t.effects.dirty.get(id(s["owner"])) is not None and s["at"] < len(s["keys"]):
            raise CannotRebuild("an iterator over a dict that the region changed", v.step)
        return name
    elif v.kind == "enumerate":
        text = f"enumerate({rebuild.value(s['of'])}, {s['at']})"
    elif v.kind == "zip":
        text = f"zip({rebuild.many(s['of'])}{'strict=True' if s['strict'] else ''})"
    elif v.kind in ("map", "filter"):
        of = s["of"] if v.kind == "map" else [s["of"]]
        text = f"{v.kind}({rebuild.value(s['function'])}, {rebuild.many(of)})"
    elif v.kind == "callable":
        text = f"iter({rebuild.value(s['function'])}, {rebuild.value(s['sentinel'])})"
    else:
        raise CannotRebuild(f"an iterator ({v.kind})", v.step)
    rebuild.lines.append(f"{name} = {text}")
    return name


def generator(rebuild, v: GenVar) -> str:
    """A generator made in the region that has not begun, or has ended: its function is called again."""
    if v.started and not v.finished:
        raise CannotRebuild("a generator that is still running", v.step)
    fn, args, kwargs = v.call
    instead = REPLACED.get(fn.code)
    if instead is not None and v.finished:
        raise CannotRebuild(f"an iterator ({instead.__name__}) at its end", v.step)
    inside = rebuild.many(args) + "".join(f"{k}={rebuild.value(a)}, " for k, a in kwargs.items())
    made = f"{rebuild.value(fn) if instead is None else rebuild.bind(instead)}({inside})"
    name = rebuild.new_name(v)
    rebuild.lines.append(f"{name} = {made}")
    if v.finished:
        rebuild.lines.append(f"{name}.close()")
    return name
