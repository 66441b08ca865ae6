"""Random chains of tensor ops as program text, written while they run: what raises in eager is left out.

A program is `inputs()`, which makes the tensors (random shapes, strides, dtypes, values, shared storage), and
`program(...)`, a straight line of statements that returns some of its values, views and inputs among them.
"""

import random
import warnings

import torch

from .op_rows import DTYPES, FAMILIES, SCALARS

MOST = 6000  # elements of a value
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64)
FLOATS = ("float32",) * 10 + ("float64", "float64", "bfloat16", "bfloat16", "float16")
OTHERS = ("int64", "int64", "int32", "uint8", "int8", "int16", "bool", "bool")
FORMS = ("{}",) * 6 + (
    "{}.transpose(0, -1)",
    "{}[..., ::2]",
    "{}[1:]",
    "{}.flip(0)",
    "{}[..., 1:]",
    "{}[:1].expand(3, *{}.shape[1:])",
    "{}.expand(2, *{}.shape)",
    "{}[..., :1].expand_as({})",
    "{}.contiguous(memory_format=torch.channels_last)",
    "{}.movedim(0, -1)",
)
HEAD = '''\
import torch
import torch.nn.functional as F


def special(t, values):
    """t with some of the values in it."""
    flat = t.view(-1)
    for i in range(0, flat.numel(), 3):
        flat[i] = values[(i // 3) % len(values)]
    return t


'''
SPECIAL = {"float": "[float('nan'), float('inf'), -float('inf'), -0.0, 0.0, 1.0]", "low": "[-0.0, 0.0, 1.0, -1.0, 2.5]"}
EXTREMES = {
    "int64": "[2**63 - 1, -2**63, 0, -1, 1]",
    "int32": "[2**31 - 1, -2**31, 0, -1]",
    "uint8": "[255, 0, 128, 1]",
    "int8": "[127, -128, 0, -1]",
    "int16": "[32767, -32768, 0, -1]",
}


BACKWARD = """

def program(NAMES):
    leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in (NAMES,)]
    out = forward(*[t.clone() if t.is_floating_point() else t for t in leaves])
    loss = torch.zeros((), dtype=torch.float64)
    for k, t in enumerate(out, 1):
        if t.requires_grad:
            loss = loss + (t.double() * k).sin().sum()
    loss.backward()
    return *[t.detach() for t in out], *[t.grad for t in leaves if t.grad is not None]
"""


class Writer:
    """Writes one program. `values`: what every name holds at this point in eager."""

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.values: dict[str, torch.Tensor] = {}
        self.made, self.lines, self.fresh = [], [], 0
        self.space = {}
        exec(HEAD, self.space)

    # -------------------------------------------------------------- inputs
    def shape(self) -> tuple:
        dims = self.r.choices((0, 1, 2, 3, 4), (1, 4, 8, 6, 1))[0]
        shape = [self.r.choice(SIZES) for _ in range(dims)]
        while torch.Size(shape).numel() > MOST // 4:
            shape[self.r.randrange(dims)] = self.r.choice((1, 2, 3))
        if dims and self.r.random() < 0.04:
            shape[self.r.randrange(dims)] = 0
        return tuple(shape)

    def related(self, shape: tuple) -> tuple:
        """A shape that most often broadcasts with the first."""
        kind = self.r.random()
        if kind < 0.35 or not shape:
            return shape
        if kind < 0.4:
            return ()
        if kind < 0.6:
            return tuple(1 if self.r.random() < 0.5 else n for n in shape)
        if kind < 0.75:
            return shape[self.r.randrange(len(shape)) :]
        return shape[::-1] if kind < 0.85 else self.shape()

    def input(self, name: str, shape: tuple) -> None:
        dtype = self.r.choice(FLOATS if self.r.random() < 0.75 else OTHERS)
        size = f"{shape}" if len(shape) != 1 else f"({shape[0]},)"
        if dtype == "bool":
            text = f"torch.randint(0, 2, {size}, generator=g).bool()"
        elif dtype in OTHERS:
            low = 0 if dtype == "uint8" else -9
            text = f"torch.randint({low}, 10, {size}, generator=g).to(torch.{dtype})"
            if self.r.random() < 0.15:
                text = f"special({text}, {EXTREMES[dtype]})"
        else:
            text = f"torch.randn({size}, generator=g).to(torch.{dtype})"
            kind = self.r.random()
            if kind < 0.2:
                text = f"special({text}, {SPECIAL['float' if kind < 0.1 else 'low']})"
        self.make(name, text)
        form = self.r.choice(FORMS)
        if form != "{}":
            self.make(name, form.replace("{}", name))

    def make(self, name: str, text: str) -> None:
        g = torch.Generator().manual_seed(len(self.made))
        try:
            self.values[name] = eval(text, self.space, {"g": g, **self.values})
        except (RuntimeError, IndexError):
            return
        self.made.append((name, text))

    def inputs(self) -> None:
        shape = self.shape()
        for i in range(self.r.randint(1, 4)):
            self.input("abcd"[i], shape if not i else self.related(shape))
        if self.r.random() < 0.12:
            self.make("v", self.r.choice(("a[1:]", "a.view(-1)", "a[..., :2]", "a", "a.transpose(0, -1)", "a.detach()")))

    # -------------------------------------------------------------- statements
    def pick(self, family: str) -> str | None:
        def fits(t: torch.Tensor) -> bool:
            if family in ("UNARY", "MATRIX", "REDUCE"):
                return t.is_floating_point() or self.r.random() < 0.15
            return family != "INTS" or not t.is_floating_point()

        names = [n for n, t in self.values.items() if fits(t)]
        # later values more often: chains are longer so
        return self.r.choice(names[-4:] if self.r.random() < 0.7 else names) if names else None

    def other(self, x: torch.Tensor) -> str:
        """A name that broadcasts with x, most often."""

        def fits(t: torch.Tensor) -> bool:
            return all(a == b or 1 in (a, b) for a, b in zip(t.shape[::-1], x.shape[::-1]))

        names = [n for n, t in self.values.items() if fits(t)]
        return self.r.choice(names or list(self.values))

    def fields(self, x: str) -> dict:
        r, t = self.r, self.values[x]
        dim = r.randrange(t.dim()) if t.dim() else 0
        d = dim - t.dim() if r.random() < 0.4 and t.dim() else dim
        ints = [n for n, v in self.values.items() if v.dtype == torch.int64]
        masks = [n for n, v in self.values.items() if v.dtype == torch.bool]
        y = self.other(t)
        several = sorted(r.sample(range(t.dim()), r.randint(1, t.dim()))) if t.dim() > 1 else [d]
        return {
            "x": x,
            "y": y,
            "z": self.other(t),
            "o": r.choice(list(self.values)),
            "s": r.choice(SCALARS),
            "d": d,
            "D": tuple(several) if r.random() < 0.5 else d,
            "b": r.random() < 0.5,
            "k": r.randint(0, 3),
            "n": t.shape[dim] if t.dim() else 1,
            "t": r.choice(DTYPES),
            "i": r.choice(ints) if ints and r.random() < 0.7 else "torch.tensor([1, 0, 1])",
            "m": r.choice(masks) if masks and r.random() < 0.5 else f"({y} > 0)",
        }

    def statement(self) -> None:
        family = self.r.choices(list(FAMILIES), [w for _, w in FAMILIES.values()])[0]
        x = self.pick(family)
        if x is None:
            return
        row = self.r.choice(FAMILIES[family][0])
        text = row.format(**self.fields(x))
        if family == "MULTI":
            self.fresh += 2
            text = f"t{self.fresh - 1}, t{self.fresh} = {text}"
        elif family != "INPLACE":
            self.fresh += 1
            text = f"t{self.fresh} = {text}"
        if self.runs(text):
            self.lines.append(text)

    def runs(self, text: str) -> bool:
        """Whether the statement runs in eager and makes tensors only; then `values` is as after it."""
        space = dict(self.values)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, self.space, space)
        except (
            RuntimeError,
            IndexError,
            ValueError,
            TypeError,
            NotImplementedError,
            AttributeError,
            ZeroDivisionError,
            OverflowError,
        ):
            return False
        space = {k: v for k, v in space.items() if k != "g"}
        if not all(isinstance(v, torch.Tensor) and v.numel() <= MOST and not v.is_complex() for v in space.values()):
            return False
        self.values = space
        return True

    def program(self) -> str:
        """The whole text."""
        self.inputs()
        self.made_names = list(dict.fromkeys(n for n, _ in self.made))
        wanted = self.r.randint(3, 12)
        for _ in range(wanted * 4):
            if len(self.lines) < wanted:
                self.statement()
        names = [n for n in self.values if n not in self.made_names]
        kept = [n for n in names if self.r.random() < 0.6] or names[-1:] or self.made_names[-1:]
        if self.r.random() < 0.1:
            kept.append(self.r.choice(self.made_names))
        return text_of(self.made, self.made_names, self.lines, kept)


def text_of(made: list, args: list, lines: list, results: list) -> str:
    """The text of a program."""
    rows = [f"    g = torch.Generator().manual_seed({i})\n    {name} = {text}" for i, (name, text) in enumerate(made)]
    body = "".join(f"    {line}\n" for line in lines)
    return (
        HEAD
        + "def inputs():\n"
        + "\n".join(rows)
        + f"\n    return {', '.join(args)},\n\n\n"
        + f"def program({', '.join(args)}):\n"
        + body
        + f"    return {', '.join(results)},\n"
    )


def chain(seed: int) -> str:
    """The program of a seed: the same for the same torch."""
    with torch.random.fork_rng():
        return Writer(seed).program()


def trained(text: str) -> str:
    """That program and its backward pass: it returns the same results, then the gradients of its inputs."""
    names = text.partition("def program(")[2].partition(")")[0]
    return text.replace("def program(", "def forward(") + BACKWARD.replace("NAMES", names)
