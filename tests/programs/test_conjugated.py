"""Views that are conjugated or negated when they are read: as outputs, written, and where what they view is written"""

import pytest
import torch

import bytejit

from .harness import Rand, check


def outputs(z):
    w = z * 2
    return w, w.conj(), z.mH, w.conj().imag


def asked(z):
    made = z.conj()
    return made.is_conj(), made.conj().is_conj(), made.resolve_conj().is_conj(), made[0].is_conj(), (made * 1).is_conj()


def views(z):
    w = z.conj()
    return w.T, w[0], w.reshape(-1), w.imag.is_neg()


def base_written(z):
    w = z.conj()
    z.mul_(2j)
    return w + 0


def made_and_written(z):
    w = z * 2
    v = w.conj()
    w.mul_(3)
    return v + 1, w


def written_through(z):
    w = z * 2
    v = w.conj()
    v.add_(1j)
    return w + 0, v + 0


def input_written_through(z):
    z.conj().mul_(1j)
    return z + 0


def negated_written(z):
    v = z.conj().imag
    v.mul_(2)
    return z + 1, v + 1


def resolved(z):
    w = z.conj().resolve_conj()
    w.mul_(2)
    return z + 0, w + 0


def asked_of_results(z):
    made, parts = z.conj(), z.conj().unbind(0)
    again = made.resolve_conj().mul_(2)
    known = made.is_conj(), made[0].T.is_conj(), made.mH.is_conj(), (made + 1).is_conj(), again.is_conj(), z.resolve_conj() is z
    return z * made, again, known, made.imag.sum() if made.is_conj() else made, [p.is_conj() for p in parts]


def asked_of_operators(z):
    w = z * 2
    flips = torch._conj, torch.conj, torch.adjoint, torch.ops.aten._conj, torch.ops.aten.conj.default, torch.ops.aten.matrix_H
    return [(f(w).is_conj(), f(f(w)).is_conj(), f(w).resolve_conj()) for f in flips]


def asked_of_negated(z):
    made, w = z.conj().imag, z * 2
    again = torch._neg_view(made), torch._neg_view(w.real), w.mH.imag
    known = made.is_neg(), made[0].T.is_neg(), z.imag.is_neg(), made.real.is_neg(), w.is_neg(), w.conj().real.is_neg()
    return known, [x.is_neg() for x in again]


def resolved_negated(z):
    made, w = z.conj().imag, z * 2
    again = torch._neg_view(made), torch._neg_view(w.real), w.mH.imag
    return made, made.resolve_neg(), made.resolve_neg().mul_(2), [x.resolve_neg() for x in again], z.imag.resolve_neg()


def read_only(z):
    return z.conj() * z, (z.mH @ z).abs(), z.conj().imag + 1, z.conj().conj() + 1


def returned(z):
    w, v = z * 2, z + 1
    return (z + 2).conj(), (z * 3)[:, ::2].conj(), w, w.conj().imag, w.mH[1:], v.conj().T, z.conj()[0], (z - 1).conj().conj().imag


PROGRAMS = [
    returned,
    outputs,
    asked,
    views,
    base_written,
    made_and_written,
    written_through,
    input_written_through,
    negated_written,
    resolved,
    asked_of_results,
    asked_of_operators,
    asked_of_negated,
    resolved_negated,
    read_only,
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_views_that_are_conjugated_when_they_are_read(fn, backend):
    """Conjugated and negated views: as outputs, written, and what they view is written"""

    def args(r: Rand) -> tuple:
        return (torch.complex(r.f(3, 4), r.f(3, 4)),)

    check(fn, args=args, backend=backend, calls=2, tol=(1e-5, 1e-5))


@pytest.mark.parametrize("grad", [False, True])
def test_reading_them_is_part_of_the_kernels(grad):
    z = torch.randn(3, 4, dtype=torch.complex64).requires_grad_(grad)
    compiled = bytejit.compile(lambda z: torch.view_as_real(z.conj() * z + z.conj()).sum(), fullgraph=True)
    torch.testing.assert_close(compiled(z), torch.view_as_real(z.conj() * z + z.conj()).sum())
    if grad:
        compiled(z).backward()
    assert not bytejit.counters["fallbacks"]


def test_results_that_are_conjugated_have_gradients():
    def run(f):
        z = torch.arange(12.0).view(3, 4).mul(1 + 2j).requires_grad_()
        made = f(z)
        torch.view_as_real(sum(x.sum() * (k + 1j) for k, x in enumerate(made))).sum().backward()
        return [(x.is_conj(), x.is_neg(), x.stride(), x.resolve_conj().resolve_neg()) for x in made], z.grad

    compiled = bytejit.compile(returned, fullgraph=True)
    torch.testing.assert_close(run(compiled), run(returned))
    assert not bytejit.counters["fallbacks"]


def of_real(x):
    made = torch.fft.ifft(x)
    return made, made.is_conj(), made.conj().is_conj(), made.mH.is_conj(), made.resolve_conj(), made[0], made * 2


HIDDEN = {
    "ifft": torch.fft.ifft,
    "ihfft": torch.fft.ihfft,
    "ihfftn": lambda x: torch.fft.ihfftn(x, dim=(1,)),
    "ifft2": torch.fft.ifft2,
    "fft": torch.fft.fft,
    "conjugated again": lambda x: torch.fft.ifft(x).conj(),
    "written": lambda x: torch.fft.ifft(x).mul_(2),
    "svd": lambda x: torch.svd(x + 0j),
    "branch": lambda x: x + 1 if torch.fft.ifft(x).is_conj() else x - 1,
    "asked": of_real,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", HIDDEN)
def test_results_that_view_what_nothing_shows(name, backend):
    f = HIDDEN[name]
    compiled = bytejit.compile(f, backend=backend, fullgraph=True)
    for x in (torch.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]]), torch.arange(6).reshape(2, 3)):
        want, got = (r if isinstance(r, tuple) else (r,) for r in (f(x), compiled(x)))
        for a, b in zip(want, got, strict=True):
            bits = [(r.is_conj(), r.is_neg(), r.stride()) if isinstance(r, torch.Tensor) else r for r in (a, b)]
            assert bits[0] == bits[1]
            torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a))


def test_gradients_of_a_result_that_views_what_nothing_shows():
    given = []
    for f in (torch.fft.ifft, bytejit.compile(lambda x: torch.fft.ifft(x), fullgraph=True)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        (f(x) * torch.tensor([1j, 2, 3])).real.sum().backward()
        given.append(x.grad)
    torch.testing.assert_close(*given)


def layer_of_waves():
    """A Fourier layer beside a convolution: the backward pass reads complex weights conjugated, then the optimizer writes them"""
    torch.manual_seed(0)
    waves = torch.nn.Parameter(torch.randn(3, 3, 3, dtype=torch.complex64) * 0.1)
    beside = torch.nn.Conv1d(3, 3, 1)
    opt = torch.optim.Adam([waves, *beside.parameters()], 1e-2)

    def step(x):
        made = x
        for _ in range(2):
            frequencies = torch.fft.rfft(made)
            kept = torch.zeros_like(frequencies)
            kept[:, :, :3] = torch.einsum("bix,iox->box", frequencies[:, :, :3], waves)
            made = torch.nn.functional.gelu(torch.fft.irfft(kept, n=x.size(-1)) + beside(made))
        loss = (made - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return step, lambda: [waves.detach(), *(p.detach() for p in beside.parameters()), *(p.grad for p in beside.parameters())]


def written_then_read(z):
    """The view is read before the write and after it"""
    w = z * 2
    v = w.conj()
    before = v * 1
    w.mul_(3)
    return before, v + 1, w


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_was_read_conjugated_is_written(backend: str) -> None:
    bytejit.counters.clear()
    results = []
    for compiled in (False, True):
        step, observe = layer_of_waves()
        step = bytejit.compile(step, backend=backend) if compiled else step
        results.append([*(step(torch.linspace(0, n, 48).view(2, 3, 8)) for n in range(1, 5)), *observe()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert not bytejit.counters["fallbacks"] and not bytejit.counters["faults"]
    check(written_then_read, args=lambda r: (torch.complex(r.f(2, 3), r.f(2, 3)),), backend=backend, tol=(1e-5, 1e-6))


WRITES = {
    "another input": lambda x, y: x.copy_(y),
    "each other": lambda x, y: (x.copy_(y), y.copy_(x * 2)),
    "all parts, filled": lambda x, y: torch.view_as_real(x).fill_(3),
    "one part, strided": lambda x, y: torch.view_as_real(x)[..., 0].copy_(y.imag.t().contiguous().t()),
}


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_complex_inputs_are_written(write: str, strided: bool) -> None:
    """A complex input is written from another as it is, and through its parts"""

    def args(r: Rand) -> tuple:
        made = [torch.complex(r.f(4, 4), r.f(4, 4)) for _ in range(2)]
        return tuple(z[::2, 1:] if strided else z for z in made)

    def program(x, y):
        WRITES[write](x, y)
        return x + 1

    check(program, args=args, backend="inductor", calls=2, tol=(1e-6, 1e-6))
    assert not bytejit.counters["fallbacks"] and not bytejit.counters["faults"]


PARTS = {
    "both": torch.view_as_real,
    "real": lambda z: z.real,
    "imag": lambda z: z.imag.t()[1:],
    "made of parts": torch.view_as_complex,
    "bits": lambda z: z.view(torch.int32),
    "of a view": lambda z: torch.view_as_real(z[1:])[..., 1],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_are_views_of_the_argument(part: str, backend: str) -> None:
    """Parts of a complex tensor are views of it for autograd, bits are none"""
    x = torch.randn(3, 2)
    given = x if part == "made of parts" else torch.complex(x, x + 1)
    want, got = PARTS[part](given), bytejit.compile(PARTS[part], backend=backend)(given)
    assert got._base is want._base and got._is_view() == want._is_view()
    assert torch.equal(got, want) and got.stride() == want.stride() and got.data_ptr() == want.data_ptr()
