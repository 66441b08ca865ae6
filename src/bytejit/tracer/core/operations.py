"""Which callables are torch operations that go into the graph as one node, and which ask or set global state."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterator

import torch

from bytejit.common import special_cases

from .values import Known, Var, is_object

BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType)
# Python functions of torch that are recorded whole: they compute on tensors and do nothing else
RECORDED_MODULES = {"torch.nn.functional", "torch.functional", "torch._tensor", "torch._C._nn"}
OPERATORS = {getattr(operator, n) for n in dir(operator) if not n.startswith("_") and callable(getattr(operator, n))} - {
    operator.attrgetter,
    operator.itemgetter,
    operator.methodcaller,
    operator.is_,
    operator.is_not,
    operator.truth,
    operator.not_,
    operator.index,
    operator.contains,
    operator.countOf,
    operator.indexOf,
    operator.length_hint,
    operator.call if hasattr(operator, "call") else operator.is_,
}
PYTHON_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}
OF_ONE_DTYPE = type(torch.FloatTensor)  # the class of torch.FloatTensor, torch.LongTensor, ...
NAMESPACES = ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")
# torch.* functions that are not operations on tensors
EXCLUDED = set(
    """compile save load manual_seed seed initial_seed set_rng_state get_rng_state set_default_dtype
    set_default_device set_default_tensor_type get_default_dtype get_default_device set_num_threads get_num_threads
    set_num_interop_threads get_num_interop_threads set_flush_denormal set_printoptions use_deterministic_algorithms
    are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled set_deterministic_debug_mode
    get_deterministic_debug_mode set_float32_matmul_precision get_float32_matmul_precision set_warn_always is_warn_always_enabled
    is_grad_enabled is_inference_mode_enabled set_autocast_enabled is_autocast_enabled is_autocast_cpu_enabled
    set_autocast_cache_enabled is_autocast_cache_enabled set_autocast_gpu_dtype get_autocast_gpu_dtype set_autocast_cpu_dtype
    get_autocast_cpu_dtype get_autocast_dtype set_autocast_dtype autocast_increment_nesting autocast_decrement_nesting
    clear_autocast_cache set_autocast_cpu_enabled set_autocast_ipu_enabled is_anomaly_enabled set_anomaly_enabled
    is_tensor is_storage typename cond while_loop vmap fork wait import_ir_module parse_ir parse_schema
    unify_type_list merge_type_from_type_comment has_torch_function has_torch_function_unary has_torch_function_variadic
    handle_torch_function boolean_dispatch init_num_threads sym_int sym_max sym_min sym_float sym_not sym_ite sym_sum
    sym_fresh_size
    is_vulkan_available is_warn_always_enabled lobpcg _dynamo _inductor export
    from_dlpack from_file from_numpy frombuffer get_device_module get_device is_compiled
    _C _assert_async _sync""".split()
)


def _candidates() -> Iterator:
    for name in dir(torch._C._VariableFunctions):
        if not name.startswith("__") and name not in EXCLUDED:
            yield getattr(torch._C._VariableFunctions, name)
    for name in dir(torch):
        value = getattr(torch, name) if name not in EXCLUDED else None
        if (
            isinstance(value, types.BuiltinFunctionType)
            and (value.__module__ is None or special_cases.TORCH_TOP.made(value))
            and hasattr(torch._C._VariableFunctions, name)
        ):
            yield value
    for space in NAMESPACES:
        for name, value in vars(getattr(torch._C, space, types.SimpleNamespace())).items():
            if callable(value) and not name.startswith("__"):
                yield value
    for module in (torch.nn.functional, torch.functional, torch.fft, torch.linalg, torch.special):
        for name, value in vars(module).items():
            if name in EXCLUDED or name.startswith("__"):
                continue
            # names that a module itself imports from torch._C are helpers, no operations on tensors; they differ between
            # versions
            if (isinstance(value, types.BuiltinFunctionType) and value.__self__ is not torch._C) or (
                isinstance(value, types.FunctionType) and value.__module__ in RECORDED_MODULES
            ):
                yield value
    for name in dir(torch.functional):
        value = getattr(torch, name, None)
        if isinstance(value, types.FunctionType) and special_cases.TORCH_FUNCTIONAL.made(value):
            yield value
    for cls in (torch.Tensor, torch._C.TensorBase):
        for name, value in vars(cls).items():
            if (
                isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType, types.FunctionType))
                and name not in NOT_RECORDED_METHODS
            ):
                yield value


NOT_RECORDED_METHODS = set(
    """__new__ __init__ __init_subclass__ __subclasshook__ __reduce__ __reduce_ex__ __setstate__ __getattribute__
    __setattr__ __delattr__ __torch_dispatch__ __torch_function__ __dir__ __sizeof__ __class__ __deepcopy__ _make_subclass
    __hash__ backward register_hook register_post_accumulate_grad_hook retain_grad __iter__ __repr__ __str__ __format__
    _make_wrapper_subclass storage untyped_storage _typed_storage data_ptr refine_names share_memory_ module_load""".split()
)


@functools.lru_cache(maxsize=1)
def recorded() -> frozenset:
    """Returns all callables that become one graph node."""
    found = set()
    for value in _candidates():
        try:
            found.add(value)
        except TypeError:
            pass
    return frozenset(found)


TORCH_NAMESPACES = frozenset(
    {"aten", "prim", "prims", "profiler", "inductor", "quantized", "mkldnn", "_c10d_functional", "c10d", "torchvision", "bytejit"}
)


def is_torch_function(obj: object) -> bool:
    """Whether a call of `obj` on tensors is one node of the graph."""
    if isinstance(obj, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if not isinstance(
        obj, (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    ):
        return special_cases.TORCH_CALLABLES.made(type(obj)) and callable(obj) and not isinstance(obj, type) and _hashable_in(obj)
    return _hashable_in(obj)


def is_program_code(obj: object) -> bool:
    """Whether what a node calls may run Python of the program: a custom operator, a function allowed in graphs."""
    if isinstance(obj, torch._ops.OpOverload):
        return obj.namespace not in TORCH_NAMESPACES
    if isinstance(obj, torch._ops.OpOverloadPacket):
        return str(obj).partition(".")[0] not in TORCH_NAMESPACES
    builtin = isinstance(obj, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType))
    return not builtin and not special_cases.OPERATORS.made(obj)


def is_torch_python(obj: object) -> bool:
    """Whether it is a Python function of torch's own (einsum)."""
    return isinstance(obj, types.FunctionType) and special_cases.TORCH.made(obj)


def _hashable_in(obj: object) -> bool:
    try:
        return obj in recorded()
    except TypeError:
        return False


def plainly_given(fn: object, args: list[Var], kwargs: dict[str, Var]) -> tuple[list[Var], dict[str, Var]]:
    """Arguments of an operation in a form that every graph can hold. `from` (of random_ and uniform_) is passed by
    position: it is a keyword of Python, and cannot be a name in the graph's text. A class becomes the dtype that it stands
    for. A `generator` of None is left out: torch's fakes refuse it for overloads that require one."""
    if any(type(a) is Known and isinstance(a.obj, type) for a in (*args, *kwargs.values())):
        args, kwargs = [_dtype_given(fn, a) for a in args], {k: _dtype_given(fn, v) for k, v in kwargs.items()}
    if "from" in kwargs and len(args) == 1:
        args, kwargs = [*args, kwargs["from"]], {k: v for k, v in kwargs.items() if k != "from"}
    given = kwargs.get("generator")
    if is_object(given, None) and isinstance(fn, BUILT_IN):
        kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
    return args, kwargs


def _dtype_given(fn: object, v: Var) -> Var:
    """A class that stands for a dtype in an operation of torch's: the dtype, or the name of a type of tensors."""
    if type(v) is not Known or not isinstance(v.obj, type):
        return v
    if fn is torch.Tensor.type:
        return Known(torch.typename(v.obj)) if type(v.obj) is OF_ONE_DTYPE else v
    takes = isinstance(fn, BUILT_IN) or is_torch_python(fn)
    return Known(PYTHON_DTYPES[v.obj]) if takes and v.obj in PYTHON_DTYPES else v
