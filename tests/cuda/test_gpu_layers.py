"""Layers whose passes are libraries' on a GPU: trained as in eager. Skipped without a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit

pytestmark = pytest.mark.gpu


class Warped(nn.Module):
    """A spatial transformer: a grid from a matrix, samples of an image at it"""

    def __init__(self, padding: str) -> None:
        super().__init__()
        self.matrix, self.padding = nn.Parameter(torch.tensor([[[0.9, 0.1, 0.05], [-0.1, 1.1, 0.0]]])), padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.matrix.expand(x.shape[0], 2, 3), list(x.shape), align_corners=True)
        return F.grid_sample(x, grid, align_corners=True, padding_mode=self.padding)


class Steps(nn.Module):
    """A cell in a loop over time"""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class First(nn.Module):
    """What a recurrent layer returns for each step"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


STEPS = (4, 6, 8)


def scattered(layer: nn.Module) -> nn.Module:
    """Its weights lie apart in memory, each somewhere else."""
    for name, p in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(p.detach().clone()))
    return layer


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "samples": (lambda: Warped("zeros"), (2, 3, 9, 9)),
    "samples_border": (lambda: Warped("border"), (2, 3, 9, 9)),
    "gru_cell": (lambda: Steps(nn.GRUCell(8, 16)), STEPS),
    "gru_cell_plain": (lambda: Steps(nn.GRUCell(8, 16, bias=False)), STEPS),
    "lstm_cell": (lambda: Steps(nn.LSTMCell(8, 16)), STEPS),
    "rnn_cell": (lambda: Steps(nn.RNNCell(8, 16)), STEPS),
    "gru": (lambda: First(nn.GRU(8, 16, 2, batch_first=True)), STEPS),
    "gru_plain": (lambda: First(nn.GRU(8, 16, bias=False)), STEPS),
    "lstm_projected": (lambda: First(nn.LSTM(8, 15, 2, proj_size=5)), STEPS),
    "lstm_scattered": (lambda: First(scattered(nn.LSTM(8, 16))), STEPS),
    "lstm": (lambda: First(nn.LSTM(8, 16, bidirectional=True, batch_first=True)), STEPS),
    "rnn": (lambda: First(nn.RNN(8, 16, batch_first=True)), STEPS),
}


@pytest.mark.parametrize(("name", "cast"), [(n, cast) for n in CASES for cast in (False, True) if not (cast and "samples" in n)])
def test_trained(name: str, cast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    make, shape = CASES[name]
    torch.manual_seed(0)
    nets = [make().cuda()]
    nets.append(copy.deepcopy(nets[0]))
    compiled = bytejit.compile(nets[1], fullgraph=True)
    for call in range(2):
        x = torch.randn(shape[0] + call, *shape[1:], device="cuda")
        results = []
        for net, run in zip(nets, (nets[0], compiled), strict=True):
            given = x.clone().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16, enabled=cast):
                y = run(given)
            (y.float() * torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y)).sum().backward()
            results.append([y, given.grad, *(p.grad for p in net.parameters())])
        near = 3e-2 if cast else 1e-4
        for got, want in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, want, rtol=near, atol=near * want.abs().max().item())
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]


@pytest.mark.parametrize("asks", [True, False])
def test_attention_with_a_causal_mask_draws_what_eager_draws(asks: bool) -> None:
    """Where the program makes the mask only when it is compiled, eager's kernel is that without a mask."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        if asks and not torch.compiler.is_compiling():
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5, is_causal=True)
        n = x.shape[-2]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        return F.scaled_dot_product_attention(x, x, x, mask, 0.5)

    def run(fn: Callable) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1, 1, 2 * 4 * 64 * 32, device="cuda", dtype=torch.bfloat16).view(2, 4, 64, 32).requires_grad_()
        torch.manual_seed(0)
        y = fn(x)
        return y, *torch.autograd.grad(y.float().square().sum(), x)

    for got, expected in zip(run(bytejit.compile(attend)), run(attend), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_steps_of_recurrent_layers_are_recorded(kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, loss, backward and optimizer in one graph, from states of the caller's: weights after ten steps as eager's."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    nets = [kind(8, 16, 2, bidirectional=True).cuda()]
    nets.append(copy.deepcopy(nets[0]))
    x, states = torch.randn(6, 4, 8, device="cuda"), [torch.randn(4, 4, 16, device="cuda") for _ in range(2)]

    def step(net: nn.RNNBase, opt: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        y, last = net(x, tuple(states) if kind is nn.LSTM else states[0])
        loss = y.square().mean() + sum(s.sin().mean() for s in (last if kind is nn.LSTM else [last]))
        loss.backward()
        opt.step()
        return loss.detach()

    bytejit.reset()
    bytejit.counters["cudagraphs"].clear()
    runs = (step, bytejit.compile(step, fullgraph=True, mode="reduce-overhead"))
    opts = [torch.optim.SGD(net.parameters(), 0.5) for net in nets]
    for call in range(10):
        losses = [run(net, opt, x + call / 10) for run, net, opt in zip(runs, nets, opts, strict=True)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    for got, want in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert bytejit.counters["cudagraphs"]["recorded"], bytejit.counters["cudagraphs"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_rows_that_are_read(dtype: torch.dtype) -> None:
    """Where many read the same row: near float64, the same in each run, and one compile for all sizes."""

    def read(table: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (table[i, j] * table[j, 1] * 0.5).float().sum()

    compiled = bytejit.compile(read, dynamic=True)
    for rows, count in ((50, 3000), (300, 100), (7, 20000)):
        torch.manual_seed(rows)
        table = torch.randn(rows, rows, 40, device="cuda", dtype=dtype).requires_grad_()
        i, j = (torch.randint(-rows, rows, (count,), device="cuda") // 2 for _ in range(2))
        found = [torch.autograd.grad(compiled(table, i, j), table)[0] for _ in range(2)]
        wide = table.detach().double().requires_grad_()
        (want,) = torch.autograd.grad((wide[i, j] * wide[j, 1] * 0.5).sum(), wide)
        assert torch.equal(*found)
        near = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(found[0].double(), want, rtol=near, atol=near * want.abs().max().item())
    assert bytejit.counters["graphs"].total() == 1 and not bytejit.counters["fallbacks"], bytejit.counters
