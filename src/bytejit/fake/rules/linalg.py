"""Rows of fake tensors for linear algebra on the CPU: its results lie column by column. See `core.py` for what a row is."""

from __future__ import annotations

import torch

from bytejit.common.dtypes import COMPLEX_DTYPES, WIDE_DTYPES
from bytejit.fake.rules.core import HasMeta, Operand

from .core import Meta, NeedsMeta, alike, contiguous_stride, new, row

_KINDS = WIDE_DTYPES | COMPLEX_DTYPES


def _matrix(x: HasMeta, square: bool = False) -> Meta:
    """The meta of a stack of matrices. Raises: NeedsMeta for what a kernel may refuse, or compute otherwise."""
    m = x.m
    if m.device.type != "cpu" or m.dtype not in _KINDS or len(m.shape) < 2 or 0 in m.shape:
        raise NeedsMeta
    if square and m.shape[-1] != m.shape[-2]:
        raise NeedsMeta
    return m


def _like(m: Meta, shape: tuple, rows: bool = False) -> Meta:
    """A result of matrices that lie column by column (rows: row by row)."""
    stride = contiguous_stride(shape)
    if not rows:
        transposed = contiguous_stride((*shape[:-2], shape[-1], shape[-2]))
        stride = (*transposed[:-2], transposed[-1], transposed[-2])
    return new(shape, stride, m.dtype, m.device)


def _ints(m: Meta, shape: tuple) -> Meta:
    return new(shape, None, torch.int32, m.device)


def _system(a: Operand, b: Operand, left: bool) -> tuple[Meta, Meta]:
    """Metas of the square matrices and the right sides of as many systems. Raises: NeedsMeta for all else."""
    m, n = _matrix(a, True), _matrix(b)
    if m.dtype != n.dtype or not alike(m.shape[:-2], n.shape[:-2]) or n.shape[-2 if left else -1] != m.shape[-1]:
        raise NeedsMeta
    return m, n


@row("linalg_inv_ex", "linalg_cholesky_ex")
def _inverse(a: Operand, *, check_errors: bool = False, upper: bool = False) -> tuple:
    m = _matrix(a, True)
    return _like(m, m.shape), _ints(m, m.shape[:-2])


@row("cholesky_inverse")
def _cholesky_inverse(a: Operand, upper: bool = False) -> Meta:
    m = _matrix(a, True)
    return _like(m, m.shape)


@row("linalg_lu_factor_ex")
def _lu_factor(a: Operand, *, pivot: Operand = True, check_errors: bool = False) -> tuple:
    m = _matrix(a)
    tall, wide = m.shape[-2:]
    return _like(m, m.shape), _ints(m, (*m.shape[:-2], wide if tall >= wide else tall)), _ints(m, m.shape[:-2])


@row("linalg_ldl_factor_ex")
def _ldl_factor(a: Operand, *, hermitian: bool = False, check_errors: bool = False) -> tuple:
    m = _matrix(a, True)
    return _like(m, m.shape), _ints(m, m.shape[:-1]), _ints(m, m.shape[:-2])


@row("_linalg_solve_ex")
def _solve(a: Operand, b: Operand, *, left: Operand = True, check_errors: bool = False) -> tuple:
    m, n = _system(a, b, left)
    return _like(n, n.shape, rows=not left), _like(m, m.shape), _ints(m, m.shape[:-1]), _ints(m, m.shape[:-2])


@row("linalg_solve_triangular")
def _solve_triangular(a: Operand, b: Operand, *, upper: bool, left: Operand = True, unitriangular: bool = False) -> Meta:
    n = _system(a, b, left)[1]
    return _like(n, n.shape)


@row("cholesky_solve")
def _cholesky_solve(b: Operand, a: Operand, upper: bool = False) -> Meta:
    n = _system(a, b, True)[1]
    return _like(n, n.shape)


@row("linalg_eig")
def _eig(a: Operand) -> tuple:
    m = _matrix(a, True)
    kind, like = m.dtype.to_complex(), _like(m, m.shape)
    return new(m.shape[:-1], None, kind, m.device), new(like.shape, like.stride, kind, m.device)


@row("_linalg_svd")
def _svd(a: Operand, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple:
    """Also of matrices without elements, whose U or Vh is the identity."""
    m = a.m
    if m.device.type != "cpu" or m.dtype not in _KINDS or len(m.shape) < 2:
        raise NeedsMeta
    *stack, tall, wide = m.shape
    least = wide if tall >= wide else tall
    values = new((*stack, least), None, m.dtype.to_real(), m.device)
    if not compute_uv:
        return new((0,), None, m.dtype, m.device), values, new((0,), None, m.dtype, m.device)
    left = _like(m, (*stack, tall, tall if full_matrices else least))
    return left, values, _like(m, (*stack, wide if full_matrices else least, wide))


@row("geqrf")
def _geqrf(a: Operand) -> tuple:
    m = _matrix(a)
    return _like(m, m.shape), new((*m.shape[:-2], min(m.shape[-2:])), None, m.dtype, m.device)


@row("linalg_lstsq")
def _lstsq(a: Operand, b: Operand, rcond: float | None = None, *, driver: str | None = None) -> tuple:
    """By the default driver or gels; what others say of the residuals depends on ranks. Raises: NeedsMeta."""
    m, n = _matrix(a), _matrix(b)
    *stack, tall, wide = m.shape
    if m.dtype != n.dtype or tuple(n.shape[:-1]) != tuple(m.shape[:-1]) or driver not in (None, "gelsy", "gels"):
        raise NeedsMeta
    longest, sides = max(tall, wide), n.shape[-1]
    whole = _like(m, (*stack, longest, sides))
    nothing = new((0,), None, m.dtype.to_real(), m.device)
    residuals, rank = nothing, new(tuple(stack), None, torch.int64, m.device)
    if driver == "gels":
        rank = new((0,), None, torch.int64, m.device)
        residuals = new((*stack, sides), None, m.dtype.to_real(), m.device) if tall > wide else nothing
    return new((*stack, wide, sides), whole.stride, m.dtype, m.device), residuals, rank, nothing


@row("linalg_pinv.atol_rtol_tensor")
def _pinv(a: Operand, *, atol: Operand = None, rtol: Operand = None, hermitian: bool = False) -> Meta:
    m = _matrix(a, square=hermitian)
    return _like(m, (*m.shape[:-2], m.shape[-1], m.shape[-2]), rows=True)
