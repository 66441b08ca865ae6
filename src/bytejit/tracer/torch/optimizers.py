"""torch.optim in a region: numbers that the optimizers read out of tensors (`.item()` of a step count) stay tensors.

Such a number is a float64 tensor of no dimension, as exact as the Python float. Operators that take it as a factor are
decomposed. Optimizers that branch on it (RAdam, ASGD) or pass it to Python's min and max (Adafactor) are replaced by forms that
do not.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer, _adafactor, asgd, optimizer, radam

from bytejit.common.dtypes import NARROW_DTYPES
from bytejit.common.registry import graph_break
from bytejit.shapes.symbols import hint, is_symbolic
from bytejit.tracer.core.models import models, replaces
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, Known, SeqVar, TensorVar, Var, expect

PRODUCTS: dict[str, Callable] = {"addcdiv": torch.div, "addcmul": torch.mul}  # what the factor is of
ADDED: dict[str, Callable] = {"add": torch.Tensor.add, "sub": torch.Tensor.sub}
IN_PLACE = {torch.Tensor.add: torch.Tensor.add_, torch.Tensor.sub: torch.Tensor.sub_}


Tensors: TypeAlias = Sequence[torch.Tensor]
Parts: TypeAlias = Sequence[torch.Tensor | None]
Number: TypeAlias = torch.Tensor | float


# ---- numbers ----------------------------------------------------------------------------------------------------------
@models(optimizer._get_value)
def get_value(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """`.item()` of a tensor, else the number itself."""
    x = [*args, *kwargs.values()][0]
    return t.tensors.call_tensor_op(torch.Tensor.double, [x], {}) if isinstance(x, TensorVar) else x


@models(optimizer._stack_if_compiling)
def stack(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A list of numbers, as it is."""
    return [*args, *kwargs.values()][0]


# ---- operators with a tensor for a factor --------------------------------------------------------------------------------
def with_tensor_factor(t: Tracer, name: str | None, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """x.addcdiv_(a, b, value=f) and x.add_(a, alpha=f) where f is a tensor, whose value torch would ask for. None for others."""
    plain = (name or "").removesuffix("_")
    factor = t.values.real(next(iter(kwargs.values()))) if len(kwargs) == 1 else None
    if name == "full_like" and len(args) == 2 and not kwargs and isinstance(args[1], TensorVar):
        made = t.tensors.call_tensor_op(torch.empty_like, args[:1], {})
        return t.tensors.call_tensor_op(torch.Tensor.fill_, [made, args[1]], {})
    if not isinstance(factor, TensorVar) or factor.fake.dim():
        return None
    if plain in PRODUCTS and "value" in kwargs and len(args) == 3:
        product = t.tensors.call_tensor_op(PRODUCTS[plain], args[1:], {})
        add = torch.Tensor.add
    elif plain in ADDED and "alpha" in kwargs and len(args) == 2:
        product, add = args[1], ADDED[plain]
    else:
        return None
    x = t.values.real(args[0])
    if not isinstance(x, TensorVar) or not isinstance(product, TensorVar):
        return None
    common = torch.result_type(x.fake, product.fake)  # torch multiplies in it, but for half types, which it widens
    wide = torch.float32 if common in NARROW_DTYPES else common
    product = t.tensors.call_tensor_op(torch.Tensor.to, [product, Known(wide)], {})
    product = t.tensors.call_tensor_op(torch.mul, [product, factor], {})
    if name != plain:
        return t.tensors.call_tensor_op(IN_PLACE[add], [x, product], {})
    return t.tensors.call_tensor_op(torch.Tensor.to, [t.tensors.call_tensor_op(add, [x, product], {}), Known(common)], {})


def _items(t: Tracer, v: Var) -> list[Var]:
    return [t.values.real(x) for x in t.iteration.iterate(v)]


def _foreach(function: Callable, one: Callable, in_place: bool) -> None:
    """A foreach operator whose factors are tensors: one call a tensor. Factors that are numbers: as it is."""
    word = "alpha" if function.__name__.removeprefix("_foreach_").removesuffix("_") in ADDED else "value"

    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        lists, factors = list(args), None
        if word == "value" and len(args) == 4:
            factors = lists.pop()
        elif set(kwargs) & {"value", "alpha", "scalars"}:
            factors = next(iter(kwargs.values()))
        factors = None if factors is None else t.values.real(factors)
        given = _items(t, factors) if isinstance(factors, SeqVar) else [] if factors is None else [factors]
        if len(kwargs) > 1 or not any(isinstance(f, TensorVar) for f in given):
            return t.tensors.call_tensor_op(function, args, kwargs)
        columns = [_items(t, v) for v in lists]
        if isinstance(factors, TensorVar) and factors.fake.dim():
            given = [t.calls.call_python(torch.Tensor.select, [factors, Known(0), Known(i)]) for i in range(len(columns[0]))]
        given = given if len(given) > 1 else given * len(columns[0])
        if any(len(c) != len(columns[0]) for c in (*columns, given)):
            raise Break(f"{function.__name__} of lists of other lengths")
        made = [t.tensors.call_tensor_op(one, list(row), {word: f}) for *row, f in zip(*columns, given)]
        return args[0] if in_place else SeqVar(made, tuple)


for _name in ("add", "sub", "addcdiv", "addcmul", "add_", "sub_", "addcdiv_", "addcmul_"):
    _foreach(getattr(torch, f"_foreach_{_name}"), getattr(torch.Tensor, _name), _name.endswith("_"))


# ---- lists of tensors ---------------------------------------------------------------------------------------------------
@replaces(torch._C._group_tensors_by_device_and_dtype)
def group_by_device_and_dtype(tensorlists: Sequence[Sequence[Any]], with_indices: bool = False) -> dict:
    """torch's C++ function: (device, dtype) of the first list's tensors -> the parts of the lists, and their positions."""
    grouped: dict[tuple, tuple[list, list]] = {}
    for i, x in enumerate(tensorlists[0]):
        key = (x.device, x.dtype)
        if key not in grouped:
            grouped[key] = ([[] for _ in tensorlists], [])
        for to, tensors in zip(grouped[key][0], tensorlists):
            to.append(tensors[i])
        if with_indices:
            grouped[key][1].append(i)
    return grouped


# ---- optimizers that ask for values -------------------------------------------------------------------------------------
def radam_without_branches(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    beta1: float,
    beta2: float,
    lr: Number,
    weight_decay: float,
    eps: float,
    decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """`torch.optim.RAdam` of the formulas that torch gives, with both branches computed."""
    rho_inf = 2 / (1 - beta2) - 1
    for param, grad, exp_avg, exp_avg_sq, step_t in zip(params, grads, exp_avgs, exp_avg_sqs, state_steps):
        if maximize:
            grad = -grad
        if torch.is_complex(param):
            param, grad, exp_avg, exp_avg_sq = map(torch.view_as_real, (param, grad, exp_avg, exp_avg_sq))
        step_t += 1
        step = step_t.double()
        if weight_decay != 0:
            if decoupled_weight_decay:
                param.mul_(1 - lr * weight_decay)
            else:
                grad = grad.add(param, alpha=weight_decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = 1 - beta2**step
        rho = rho_inf - 2 * step * (beta2**step) / correction
        rect = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        adaptive = correction**0.5 / exp_avg_sq.sqrt().add_(eps)
        update = exp_avg / (1 - beta1**step) * lr
        param.sub_(torch.where(rho > 5.0, update * adaptive * rect, update))


def asgd_without_branches(
    params: Tensors,
    grads: Tensors,
    axs: Tensors,
    mus: Tensors,
    etas: Tensors,
    state_steps: Tensors,
    *,
    lambd: float,
    lr: Number,
    t0: float,
    alpha: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """`torch.optim.ASGD` of the formulas that torch gives: whether averaging has begun is a condition on a tensor."""
    for param, grad, ax, mu, eta, step_t in zip(params, grads, axs, mus, etas, state_steps):
        grad = -grad if maximize else grad
        if torch.is_complex(param):
            param, grad, ax = map(torch.view_as_real, (param, grad, ax))
        step_t += 1
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = eta.double()
        param.mul_(1 - lambd * rate)
        param.add_(grad, alpha=-rate)
        ax.copy_(torch.where(mu == 1, param, ax + param.sub(ax).mul_(mu)))
        step = step_t.double()
        eta.copy_(lr / ((1 + lambd * lr * step) ** alpha))
        mu.copy_(1 / (step - t0).clamp(min=1))


def adafactor_without_numbers(
    params: Tensors,
    grads: Tensors,
    row_vars: Parts,
    col_vars: Parts,
    variances: Parts,
    state_steps: Tensors,
    *,
    d: float,
    lr: Number,
    beta2_decay: float,
    weight_decay: float,
    eps1: float | None,
    eps2: float,
    maximize: bool,
) -> None:
    """`torch.optim.Adafactor` of the formulas that torch gives, its numbers as tensors."""
    for param, grad, row, col, variance, step_t in zip(params, grads, row_vars, col_vars, variances, state_steps):
        grad = -grad if maximize else grad
        least = torch.finfo(param.dtype).eps if eps1 is None else eps1
        step_t += 1
        step = step_t.double()
        weight = (step**beta2_decay).to(device=param.device, dtype=param.dtype)
        rate = torch.minimum(torch.as_tensor(lr, dtype=torch.float64), step**-0.5)
        alpha = (param.norm(2).double() / param.numel() ** 0.5).clamp(min=eps2) * rate
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        if grad.dim() > 1:
            row.lerp_(torch.norm(grad, dim=-1, keepdim=True).square_().div_(grad.size(-1)), weight)
            col.lerp_(torch.norm(grad, dim=-2, keepdim=True).square_().div_(grad.size(-2)), weight)
            estimate = (row @ col).div_(row.mean(dim=-2, keepdim=True).clamp_(min=least))
        else:
            variance.lerp_(grad * grad, weight)
            estimate = variance.clone()
        update = estimate.clamp_(min=least * least).rsqrt_().mul_(grad)
        denom = (update.norm(2).double() / (update.numel() ** 0.5 * d)).clamp(min=1.0)
        param.sub_(update * (alpha / denom))


def _instead(functions: tuple[types.FunctionType, ...], form: Callable, refused: tuple[str, ...]) -> None:
    """Follow `form` in place of torch's functions, except where one of these arguments is set."""
    by_position = [p.name for p in inspect.signature(form).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = inspect.signature(form).parameters

    def run(t: Tracer, function: types.FunctionType, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if any(name in kwargs and t.comparisons.truth(kwargs[name]) for name in refused):
            return t.calls.inline(expect(t.values.constant(function), FuncVar), args, kwargs)
        given = {k: v for k, v in kwargs.items() if k in names}
        return t.calls.inline(expect(t.values.constant(form), FuncVar), args[: len(by_position)], given)

    for function in functions:
        models(function)(lambda t, args, kwargs, f=function: run(t, f, args, kwargs))


_instead((radam._single_tensor_radam, radam._multi_tensor_radam), radam_without_branches, ("capturable", "differentiable"))
_instead((asgd._single_tensor_asgd, asgd._multi_tensor_asgd), asgd_without_branches, ("capturable", "differentiable"))
_instead((_adafactor._single_tensor_adafactor, _adafactor._multi_tensor_adafactor), adafactor_without_numbers, ())


# ---- scaled gradients ---------------------------------------------------------------------------------------------------
@replaces(torch.amp.GradScaler._maybe_opt_step)
def step_where_finite(self: torch.amp.GradScaler, optimizer: Optimizer, optimizer_state: dict, *args: Any, **kwargs: Any) -> Any:
    """Step, and undo the step where a gradient is not finite: so the host need not wait for the device. A step that makes the
    optimizer's state is left to torch, which makes none where a gradient is not finite."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not getattr(optimizer, "_opt_called", True):
        graph_break("the first step of an optimizer with a scheduler under GradScaler")
    found = sum(v for v in optimizer_state["found_inf_per_device"].values())
    held = [x for p in params for x in (p, *optimizer.state.get(p, {}).values()) if isinstance(x, torch.Tensor)]
    with torch.no_grad():
        before = [(x, x.clone()) for x in held]
    returned = optimizer.step(*args, **kwargs)
    after = [x for p in params for x in optimizer.state.get(p, {}).values() if isinstance(x, torch.Tensor)]
    if any(all(x is not h for h in held) for x in after):
        graph_break("a step under GradScaler that makes the optimizer's state")
    with torch.no_grad():
        for x, old in before:
            x.data.copy_(torch.where(found.to(x.device) > 0, old, x))  # its version counts the step alone
    return returned


# ---- fused operators ----------------------------------------------------------------------------------------------------
def _fused(function: Callable) -> None:
    """An operator that writes tensors and returns nothing, and may get a symbolic number: the fakes get its present value."""

    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        given = tuple(map(t.tensors.to_node_arg, args)), {k: t.tensors.to_node_arg(v) for k, v in kwargs.items()}
        fakes = torch.fx.node.map_arg(given, lambda n: hint(n.meta["val"]) if is_symbolic(n.meta["val"]) else n.meta["val"])
        t.tensors.run_fake(function, *fakes)
        return t.tensors.effect_only(function, None, *given)


for _function in (torch._fused_adam_, torch._fused_adamw_, torch._fused_sgd_, torch._fused_adagrad_):
    _fused(_function)
