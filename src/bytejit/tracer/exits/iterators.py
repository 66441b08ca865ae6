"""Iterators and generators that leave a region: statements that make them anew, standing where they stand."""

from __future__ import annotations

import collections

from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.models import REPLACED, STAYING
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.objects.iterator_steps import place

from .statements import Statements


def iterator(out: Statements, v: IterVar) -> str:
    s = v.state
    name = out.new_name(v)
    if v.done:
        text = "iter(())"
    elif v.kind in ("seq", "reversed") and _has_changed(out, v):
        raise CannotReconstruct("an iterator over what the region changed", v.step)
    elif v.kind == "seq" and "again" in s:
        function, args = s["again"]
        out.lines.append(f"{name} = {out.bind(function)}({out.many(args)})")
        if s["at"]:
            out.lines.append(f"for _ in range({s['at']}): next({name})")
        return name
    elif v.kind == "seq":
        text = f"iter({out.value(s['seq'])})"
        out.lines.append(f"{name} = {text}")
        if s["at"]:
            out.lines.append(
                f"{name}.__setstate__({s['at']})" if s["seq"].cls in (list, tuple) else f"for _ in range({s['at']}): next({name})"
            )
        return name
    elif v.kind == "range":
        left = out.bind(s["range"][s["at"] :]) if "of" not in s else out.value(s["of"].after(s["at"]))
        text = f"iter({left})"
    elif v.kind == "reversed":
        text = f"reversed({out.value(s['seq'])})"
        skip = len(s["seq"].items) - 1 - s["at"]
        out.lines.append(f"{name} = {text}")
        if skip:
            out.lines.append(f"for _ in range({skip}): next({name})")
        return name
    elif v.kind in ("dict", "places", "made"):
        count = len(s["rows"] if v.kind == "places" else s["keys"])
        # of a dict from outside that is written it would be made before the writes, and not stand where it stands
        if v.kind == "dict" and len(s["owner"].items) != count or id(s["owner"]) in out.t.effects.dirty:
            raise CannotReconstruct("an iterator over a dict that the region changed", v.step)
        owner = out.value(s["owner"])
        text = f"iter({owner}.{s['kind']}())"
        out.lines.append(f"{name} = {text}")
        if s["at"]:
            out.lines.append(f"for _ in range({s['at']}): next({name})")
        return name
    elif v.kind == "enumerate":
        text = f"enumerate({out.value(s['of'])}, {out.value(place(out.t, s))})"
    elif v.kind == "zip":
        text = f"zip({out.many(s['of'])}{'strict=True' if s['strict'] else ''})"
    elif v.kind in ("map", "filter"):
        of = s["of"] if v.kind == "map" else [s["of"]]
        strict = "strict=True" if s.get("strict") else ""
        text = f"{v.kind}({out.value(s['function'])}, {out.many(of)}{strict})"
    elif v.kind == "callable":
        text = f"iter({out.value(s['function'])}, {out.value(s['sentinel'])})"
    else:
        raise CannotReconstruct(f"an iterator ({v.kind})", v.step)
    out.lines.append(f"{name} = {text}")
    return name


def _has_changed(out: Statements, v: IterVar) -> bool:
    """Whether an iterator cannot be made anew: of a deque or a set that has changed since, it raises; what came from outside is
    changed only after it is made, and it would stand elsewhere."""
    s = v.state
    if "size" in s and (s["size"] != len(s["of"].items) or s.get("was", s["of"].items) != list(s["of"].items)):
        return True
    if "again" in s and "of" in s and s["of"].source is not None and id(s["of"]) in out.t.effects.dirty:
        return True
    seq, dirty = s["seq"] if "seq" in s else None, out.t.effects.dirty
    if seq is None or id(seq) not in dirty:
        return False
    return v.kind == "reversed" or seq.cls is collections.deque or s["at"] > 0


def generator(out: Statements, v: GenVar) -> str:
    """A generator made in the region that has not begun, or has ended: its function is called again."""
    if v.started and not v.finished:
        raise CannotReconstruct("a generator that is still running", v.step)
    assert v.call is not None, "a generator that the region did not make"
    fn, args, kwargs = v.call
    if fn.code in STAYING:
        raise CannotReconstruct(f"an iterator of the tracer's own ({fn.name})", v.step)
    instead = REPLACED.get(fn.code)
    if instead is not None and v.finished:
        raise CannotReconstruct(f"an iterator ({instead.__name__}) at its end", v.step)
    inside = out.many(args) + "".join(f"{k}={out.value(a)}, " for k, a in kwargs.items())
    made = f"{out.value(fn) if instead is None else out.bind(instead)}({inside})"
    name = out.new_name(v)
    out.lines.append(f"{name} = {made}")
    if v.finished:
        out.lines.append(f"{name}.close()")
    return name
