"""Values of small integer tensors"""

import pytest
import torch
from torch import nn

import bytejit

from . import targets
from .harness import F, Spec, case, program


def Ints(*values, change=()):
    """The same integers in each call, or `change` in the second."""
    return Spec(lambda r: torch.tensor(change if r.call == 1 and change else values))


@case(F(2, 4), Ints(1, 1, 1, 0, change=(1, 1, 1, 1)), graphs=1)
def test_branch_on_a_mask(x, mask):
    """A branch on `mask.any()` of a small mask: guarded by what was computed"""
    if (mask == 0).any():
        return x.masked_fill(mask[None] == 0, -1.0)
    return x * 2


@case(F(6), Ints(3, 1, 2, change=(2, 2, 1)), graphs=1)
def test_item_of_lengths(x, lengths):
    """`lengths.max().item()` and int() of small integers, as sizes and bounds"""
    n = lengths.max().item()
    total = sum(x[i] for i in range(int(lengths[1])))
    return x[:n] * n + total, x[: lengths[0]], nn.functional.pad(x, (lengths[0], n)), lengths.tolist()


@case(F(4), graphs=1)
def test_values_made_inside(x):
    """Values of tensors made inside from constants"""
    ids = torch.arange(6).view(2, 3)
    if ids.max().item() > 4 and bool((ids >= 0).all()):
        return x * ids.sum().item(), [int(i) for i in ids[1]]
    return x


@program(F(4), graphs=1)
def test_values_of_buffers():
    """Sizes kept as buffers of a module, changed between calls"""

    class Pad(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.tensor(2))

        def forward(self, x):
            left = self.n // 2
            return nn.functional.pad(x, (left, self.n - left)) + max(left, self.n)

    m = Pad()
    return m, lambda: m.n.add_(1)


@case(F(4), Ints(1, 0, 2))
def test_values_that_the_region_writes(x, mask):
    """Integers that were written in the region stay unknown"""
    mask[0] = 0
    if mask.any():
        mask.zero_()
        return x + 1, mask
    return x - 1, mask


@case(F(4))
def test_values_of_floats(x):
    """Values of floats stay unknown"""
    if (x > -9).all():
        return x + 1
    return x - 1


@pytest.mark.skipif(targets.TARGET != "bytejit", reason="counts our entries")
def test_values_that_keep_changing_break() -> None:
    """After two entries for some values, the value breaks the graph, and nothing is compiled any more."""

    def f(x, n):
        return (x * 2)[: n.item()] + 1

    bytejit.reset()
    seen = []
    fn = bytejit.optimize(lambda gm, ex: seen.append(gm) or gm)(f)
    for n in (1, 2, 3, 4, 5, 3):
        x = torch.randn(6)
        assert torch.equal(fn(x, torch.tensor(n)), f(x, torch.tensor(n)))
        if n == 4:
            many = len(seen)
    assert len(seen) <= many + 1


@case(F(4), graphs=1)
def test_seed_in_the_graph(x):
    """torch.manual_seed with a constant"""
    torch.manual_seed(7)
    return x + torch.rand(4)


@case(F(4), Ints(1, 0, 2), graphs=1)
def test_values_in_text_and_masks(x, ids):
    """Known values in an f-string, in torch._check_tensor_all, and as a mask that picks rows"""
    many = (ids > 0).sum()
    torch._check_tensor_all(ids >= 0, lambda: "negative")
    return x * 2, f"{many} of {ids.numel()}", f"{many:03d}", x[:3][ids > 0], x[:3][ids > 9]


@case(F(4, 2), graphs=1)
def test_values_written_in_the_region(x):
    """Small integers made inside and written there, whole or through a view, before and after they are read"""
    shapes = torch.empty((3, 2), dtype=torch.long)
    for i, (h, w) in enumerate([(2, 1), (1, 1), (1, 1)]):
        shapes[i, 0], shapes[i, 1] = h, w
    if (shapes[:, 0] * shapes[:, 1]).sum() != x.shape[0]:
        raise ValueError(shapes)
    view = shapes[1:]
    before = view.tolist()
    shapes[1] = 5
    view += 2
    between = int(view[0, 1])
    shapes.fill_(3)
    return x * between, before, shapes.tolist(), view.sum(), [p.sum() for p in x.split([int(n) for n in shapes[:1, 0]] + [1])]


@case(F(4))
def test_values_never_written(x):
    """Memory without a value stays unknown"""
    n = torch.empty(2, dtype=torch.long)
    n[0] = 3
    return x[: n[0]], x[: int(n[0])] * int(torch.zeros_like(n).sum()), int((n[1] > 0) & (n[1] < 0))


@case(F(4, 4), Ints(1, 0, 2, 3, change=(0, 0, 1, 1)), graphs=1)
def test_as_many_as_values_say(x, ids):
    """nonzero, unique, where of one argument, bincount, argwhere, repeat_interleave of known values: constants of the graph"""
    rows = torch.stack((ids, ids.flip(0)))
    places = rows.nonzero()
    a, b = rows.nonzero(as_tuple=True)
    kinds, counts = ids.unique(return_counts=True)
    picked = places[places[:, 0] == 1]
    return (
        x[places[:, 0], places[:, 1]],
        x[a, b],
        [x[i].sum() for i in kinds],
        counts,
        torch.where(rows > 0),
        torch.where(ids[3] > 0),
        ids[1].nonzero(as_tuple=True),
        torch.bincount(ids),
        torch.argwhere(rows),
        picked,
        picked.size(0),
        (ids > 9).nonzero(),
        places.stride(),
        x.repeat_interleave(ids, dim=0),
        torch.repeat_interleave(ids),
    )


@case(F(1), F(4))
def test_index_of_a_float(number, x):
    """`__index__` of a tensor of one float"""
    try:
        return number.__index__(), x
    except TypeError as e:
        return str(e), x + 1


@program(F(4), graphs=1)
def test_branch_on_a_float_buffer():
    """A branch on a comparison of a few floats kept as a buffer, which change between calls"""

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("p", torch.tensor([0.5, 0.0]))

        def forward(self, x):
            for i in range(2):
                if self.p[i] > 0:
                    x = x * 2 + i
            return x

    m = Gate()
    return m, lambda: m.p.sub_(0.25)


CAUSAL = torch.triu(torch.full((3, 3), float("-inf")), diagonal=1)
MASKS = {"none": None, "causal": CAUSAL, "other": torch.zeros(3, 3), "larger": torch.triu(torch.full((4, 4), float("-inf")), 1)}


def Masks(*which):
    """A float mask, another one in each call."""
    return Spec(lambda r: MASKS[which[r.call % len(which)]])


@case(F(3, 3), Masks("causal", "causal", "other"), graphs=1)
def test_floats_compared_with_a_constant(x, mask):
    """Whether a mask of floats from outside is the usual one, asked as a bool"""
    usual = torch.triu(torch.full((3, 3), float("-inf")), diagonal=1)
    if bool((mask == usual).all()):
        x = x.sin()
    return x + mask, torch.isneginf(mask).any().item()


@case(F(3, 3), breaks=True)
def test_floats_computed_with_and_compared(x):
    """What is computed of floats from outside and then compared: a break"""
    return x * 2 if bool((x * 2 == x + x).all()) else x


@pytest.mark.parametrize("train", [True, False])
def test_transformer_encoder_with_masks(train):
    """A TransformerEncoder with optional masks: one graph for each set of masks given"""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(train)
    compiled = bytejit.compile(model, backend="eager")
    x, holes = torch.linspace(-1, 1, 48).reshape(2, 3, 8), torch.tensor([[False, False, True], [False, True, True]])
    for mask, padding in ((None, None), (CAUSAL, None), (None, holes), (CAUSAL, holes), (MASKS["other"], None)):
        torch.testing.assert_close(compiled(x, mask, padding), model(x, mask, padding))
    assert bytejit.counters.total("graphs") == 5 and not bytejit.counters["breaks"]
