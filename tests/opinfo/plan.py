"""Which rows are run: all settings for `make opinfo`, and a sample of them in the suite."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from .harness import Setting, applies, operators
from .twists import TWISTS

SETTINGS = (
    Setting(),
    Setting(dynamic=True),
    Setting("bool"),
    Setting("int64"),
    Setting("int64", dynamic=True),
    Setting("bool", dynamic=True),
    Setting("bfloat16"),
    Setting("bfloat16", dynamic=True),
    Setting(grad=True),
    Setting(grad=True, dynamic=True),
    Setting(variant="inplace"),
    Setting(variant="out"),
    Setting("int64", variant="inplace"),
    Setting("int64", variant="out"),
)
TWISTED = tuple(Setting(dtype, twist=twist) for twist in TWISTS for dtype in ("float32", "int64", "bfloat16", "bool"))

# rows whose samples were wrong once, and what each stands for
ONCE_WRONG = (
    ("nn.functional.max_pool1d", Setting(twist="channels_last")),
    ("nn.functional.max_unpool2d.grad", Setting()),
    ("_unsafe_masked_index", Setting(dynamic=True)),
    ("var_mean", Setting()),
    ("std", Setting(dynamic=True)),
    ("svd", Setting()),
    ("nn.functional.nll_loss", Setting(twist="channels_last")),
    ("as_strided_scatter", Setting("int64", twist="strided")),
    ("view_copy", Setting(twist="transposed")),
    ("special.xlog1py", Setting(twist="transposed")),
    ("nn.functional.glu", Setting(twist="mixed")),
    ("max.reduction_no_dim", Setting(twist="empty")),
    ("nn.functional.layer_norm", Setting(twist="empty")),
    ("ldexp", Setting("int64", variant="inplace")),
    ("linalg.matrix_rank.hermitian", Setting(variant="out")),
    ("_native_batch_norm_legit", Setting("bfloat16")),
    ("native_dropout_backward", Setting(twist="transposed")),
    ("native_batch_norm", Setting(twist="empty")),
    ("nn.functional.pixel_unshuffle", Setting(twist="empty")),
    ("_native_batch_norm_legit", Setting(twist="transposed")),
    ("slice_scatter", Setting(dynamic=True)),
    ("nn.functional.conv_transpose3d", Setting(twist="channels_last")),
    ("var_mean", Setting(twist="special")),
    ("index_put", Setting(twist="empty")),
    ("index_fill", Setting(twist="mixed")),
    ("searchsorted", Setting("bfloat16", twist="mixed")),
)


def settings(
    device: str, dtypes: str | None, dynamic: bool, grad: bool, variants: str | None, twists: str | None
) -> list[Setting]:
    """The settings that a command line asks for; all of them when it names none."""
    if not (dtypes or dynamic or grad or variants or twists):
        return [replace(s, device=device) for s in (*SETTINGS, *TWISTED)]
    kinds = TWISTS if twists == "all" else (twists or "").split(",")
    return [
        Setting(d, device, dynamic, grad, v, t)
        for d, v, t in product((dtypes or "float32").split(","), (variants or "function").split(","), kinds)
    ]


def work(chosen: list[Setting], only: list[str] | None = None) -> list[tuple[str, Setting]]:
    """(operator, setting) of every row. only: operators, with or without their variant's name."""
    ops = operators()
    return [
        (name, s)
        for s in chosen
        for name in ops
        if (not only or name in only or ops[name].name in only) and applies(ops[name], s)
    ]


def sample(count: int, seed: int, chosen: Sequence[Setting]) -> list[tuple[str, Setting]]:
    """About `count` rows, as many of each setting: those whose hash with `seed` is least."""
    drawn = []
    for s in chosen:
        rows = sorted(work([s]), key=lambda row: zlib.crc32(f"{row[0]} {row[1].name} {seed}".encode()))
        drawn += rows[: max(1, count // len(chosen))]
    return drawn
