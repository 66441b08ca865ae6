"""`with` statements"""

import contextlib

import pytest
import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import bytejit

from .harness import F, Sign, case, check, program


class Log:
    def __init__(self, log, name, swallow=()):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append("enter " + self.name)
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit " + self.name, kind and kind.__name__))
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def scoped(log, name):
    log.append("in " + name)
    try:
        yield len(log)
    finally:
        log.append("out " + name)


@case(F(4, grad=True), graphs=1)
def test_no_grad(x):
    """`torch.no_grad`"""
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    return y, x * 3, inside


@case(F(4, grad=True), graphs=1)
def test_enable_grad(x):
    """`torch.enable_grad` inside `no_grad`"""
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        z = x * 2
    return y, z


@case(F(4, grad=True), graphs=1)
def test_set_grad_enabled(x):
    """`torch.set_grad_enabled` as a manager"""
    with torch.set_grad_enabled(False):
        y = x * 2
    return y, x + 1


@case(F(4, grad=True), graphs=1)
def test_set_grad_enabled_call(x):
    """`torch.set_grad_enabled` as a call, seen afterwards"""
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, x * 2


@case(F(4), graphs=1)
def test_inference_mode(x):
    """`torch.inference_mode`: which tensors are inference tensors, also of views and of what is made in place"""
    with torch.inference_mode():
        y = x * 2
        view, same = x[1:], x.add_(1)
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    z = x * 3
    return (
        y,
        view,
        same,
        z,
        y.is_inference(),
        view.is_inference(),
        same.is_inference(),
        z.is_inference(),
        inside,
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
    )


@torch.inference_mode()
def evaluated(x, w):
    return (x @ w).relu()


@case(F(4, 4), F(4, 4, grad=True), graphs=1)
def test_inference_mode_decorator(x, w):
    """`torch.inference_mode()` as a decorator, called, and made inside"""

    @torch.inference_mode()
    def inner(y):
        return y * w

    return evaluated(x, w), inner(x), x * 2


@case(F(4, 4), F(4, 4, grad=True), graphs=1)
def test_inference_mode_nested(x, w):
    """`torch.inference_mode` nested, switched off inside, with the grad mode set inside"""
    with torch.inference_mode():
        a = x @ w
        with torch.inference_mode(False):
            b = x @ w
            with torch.no_grad():
                c = x * w
        with torch.enable_grad():
            d = x @ w
    return a, b, c, d, x @ w, torch.is_grad_enabled()


@case(F(4, grad=True), breaks=True)
def test_break_in_inference_mode(x):
    """Break inside `torch.inference_mode`: the mode holds after it and ends with the block"""
    x = x * 1
    with torch.inference_mode():
        y = x * 2
        with torch.no_grad():
            if y.sum() > 1e6:
                y = y - 1
            inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
            y = y + 1
        z = y * 2
    return y, z, x * 2, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@case(F(4))
def test_exception_in_inference_mode(x):
    """An exception that leaves `torch.inference_mode`, from Python and from an operation"""
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError("out")
    except ValueError:
        y = y + torch.is_inference_mode_enabled()
    with torch.inference_mode():
        return y @ torch.ones(5)


@case(F(4), breaks=True)
def test_inference_tensor_outside(x):
    """An inference tensor changed in place outside of the mode"""
    with torch.inference_mode():
        y = x * 2
    y += 1
    return y


@case(F(4, 4), F(4, 4, grad=True), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_inference_mode_kernels(x, w):
    """`torch.inference_mode` around everything, compiled to kernels"""
    with torch.inference_mode():
        y = (x @ w).relu() * 2
        return y, y[1:], y.is_inference()


@case(F(4, 4), F(4, 4, grad=True), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_inference_mode_for_a_part(x, w):
    """`torch.inference_mode` around a part, compiled: outputs of both kinds"""
    with torch.inference_mode():
        y = (x @ w).relu()
    return y, x.sin() + 1


@case(F(4, 4), F(4, 4, grad=True), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_no_grad_kernels(x, w):
    """`torch.no_grad` around the use of what requires gradients, compiled to kernels"""
    with torch.no_grad():
        y = (x @ w).relu()
        return y, w.t(), (x + w).detach()


@case(F(4, 4), F(4, 4, grad=True), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_detach_kernels(x, w):
    """What requires gradients detached, compiled to kernels: the result shares its memory, and has no gradient"""
    return w.detach(), (x @ w.detach()).relu()


@case(F(4, 4), graphs=1)
def test_autocast(x):
    """`torch.autocast` on the CPU"""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, x @ x


@case(F(4), graphs=1)
def test_device_manager(x):
    """`torch.device("cpu")` as a manager"""
    with torch.device("cpu"):
        return x + torch.ones(4)


@case(F(4), breaks=True)
def test_break_in_device_manager(x):
    """Break inside `torch.device("cpu")`: the manager holds after it and ends with the block"""
    before = torch._C._len_torch_function_stack()
    with torch.device("cpu"):
        y = x + torch.ones(4)
        if y.sum() > 1e6:
            y = y - 1
        inside = torch._C._len_torch_function_stack()
        y = y + torch.zeros(4)
    return y, before, inside, torch._C._len_torch_function_stack()


@case(F(4), graphs=1)
def test_other_device_manager(x):
    """`torch.device` as a manager of another device than the CPU, nested, with devices given, modules made inside"""
    with torch.device("meta"):
        y, given, same = torch.ones(4), torch.zeros(2, device="cpu"), torch.zeros_like(x)
        with torch.device("cpu"):
            inner = torch.arange(3)
        m = torch.nn.Linear(2, 2)
    return y.device, given + 1, same, inner, m.weight.device, x + torch.ones(4)


@case(F(4), graphs=1)
def test_record_function(x):
    """`torch.profiler.record_function`"""
    with torch.profiler.record_function("step"):
        return x + 1


@case(F(4), graphs=1)
def test_user_manager(x):
    """User-written manager: order, `as`, nested in one line"""
    log = []
    with Log(log, "a") as a, Log(log, "b"):
        log.append(a.name)
        x = x + 1
    return x, log


@case(F(4), graphs=1)
def test_user_manager_swallows(x):
    """User-written manager that swallows an exception"""
    log = []
    with Log(log, "a", ValueError):
        x = x + 1
        raise ValueError("gone")
    return x * 2, log


@case(F(4))
def test_user_manager_lets_through(x):
    """Manager that lets an exception through"""
    with Log([], "a", KeyError):
        x = x + 1
        raise ValueError("kept")


@case(F(4), graphs=1)
def test_contextmanager(x):
    """`@contextmanager`"""
    log = []
    with scoped(log, "s") as n:
        x = x + n
    return x, log


@case(F(4), graphs=1)
def test_contextmanager_exception(x):
    """`@contextmanager` through which an exception passes"""
    log = []
    try:
        with scoped(log, "s"):
            raise KeyError("k")
    except KeyError:
        x = x + 1
    return x, log


@case(F(4), graphs=1)
def test_suppress(x):
    """`contextlib.suppress`, `nullcontext`, `closing`"""
    with contextlib.suppress(ZeroDivisionError):
        x = x + 1
        1 / 0
    with contextlib.nullcontext(3) as n:
        x = x * n
    return x


@case(F(4), graphs=1)
def test_exit_stack(x):
    """`contextlib.ExitStack`"""
    log = []
    with contextlib.ExitStack() as stack:
        for i in range(2):
            stack.enter_context(Log(log, str(i)))
        stack.callback(log.append, "callback")
        x = x + 1
    return x, log


@case(F(4, grad=True), graphs=1)
def test_no_grad_decorator(x):
    """`torch.no_grad()` as a decorator"""

    @torch.no_grad()
    def g(y):
        return y * 2

    return g(x), x * 2


@program(F(4, grad=True), graphs=1)
def test_no_grad_decorates_compiled():
    """A function decorated with `torch.no_grad()` compiled"""

    @torch.no_grad()
    def f(x):
        return x * 2

    return f


@case(F(4, grad=True), graphs=1)
def test_return_in_with(x):
    """`return`, `break`, `continue` out of `with`"""
    for i in range(3):
        with torch.no_grad():
            if i == 0:
                continue
            if i == 1:
                break
    with torch.no_grad():
        return x * i


@case(Sign(4), breaks=True)
def test_break_in_no_grad(x):
    """Break inside `torch.no_grad`: the mode holds after it and ends with the block"""
    x = x.clone().requires_grad_()
    with torch.no_grad():
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        z = x * 3
    return y, z, x * 4, torch.is_grad_enabled()


@case(Sign(4), breaks=True)
def test_break_in_user_manager(x):
    """Break inside a user-written manager"""
    log = []
    with Log(log, "a"):
        y = x + 1
        if y.sum() > 0:
            log.append("positive")
        y = y * 2
    return y, log


@case(Sign(4), breaks=True)
def test_break_in_nested_with(x):
    """Break inside nested managers, exception afterwards"""
    log = []
    with Log(log, "a", ValueError):
        with torch.no_grad(), scoped(log, "s"):
            y = x + 1
            if y.sum().item() > 0:
                log.append("positive")
            if log[-1] == "positive":
                raise ValueError("p")
            y = y + 2
        log.append("after")
    return x, log, torch.is_grad_enabled()


@case(
    Sign(
        4,
    ),
    breaks=True,
)
def test_break_in_autocast(x):
    """Break inside autocast"""
    m = x[:, None] * x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m @ m
        if x.sum() > 0:
            y = y + 1
        z = m @ m
    return y, z, m @ m


@case(F(4))
def test_manager_given(x):
    """Grad mode changed by the caller around the call"""
    return x * 2, torch.is_grad_enabled()


@program(F(4), graphs=1)
def test_manager_object_outside():
    """A manager object that lives outside and is changed"""

    class Depth:
        def __init__(self):
            self.n = 0

        def __enter__(self):
            self.n += 1
            return self

        def __exit__(self, *a):
            self.n -= 10

    d = Depth()

    def f(x):
        with d:
            return x + 1

    return f, lambda: d.n


@case(F(4), graphs=1)
def test_enter_result_tensor(x):
    """`__enter__` that returns a tensor"""

    class Shift:
        def __init__(self, t):
            self.t = t

        def __enter__(self):
            return self.t + 1

        def __exit__(self, *a):
            self.t = None

    with Shift(x) as y:
        return y * 2


@case(F(4), graphs=1)
def test_record_function_decorator(x):
    """`torch.profiler.record_function` as a decorator"""

    @torch.profiler.record_function("inner")
    def inner(a):
        return a.sin()

    with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("both"):
        return inner(x) + 1


@sdpa_kernel(SDPBackend.MATH)
def by_products(q):
    return scaled_dot_product_attention(q, q, q)


@case(F(2, 2, 8, 16, grad=True), graphs=1)
def test_attention_kernel_chosen(q):
    """`sdpa_kernel`: one kernel, several in an order, as a decorator, nested, left by an exception; asked inside and behind"""
    asked = []
    with sdpa_kernel(SDPBackend.MATH):
        a = scaled_dot_product_attention(q, q, q)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
            b = scaled_dot_product_attention(q, q, q, is_causal=True)
            asked.append(_cur_sdpa_kernel_backends(with_priority=True))
    try:
        with sdpa_kernel(SDPBackend.MATH):
            asked.append(torch.backends.cuda.flash_sdp_enabled())
            raise ValueError
    except ValueError:
        asked.append(torch.backends.cuda.flash_sdp_enabled())
    return a, b, by_products(q), scaled_dot_product_attention(q, q, q), asked, _cur_sdpa_kernel_backends()


@case(F(2, 2, 32, 16), F(2, 2, 32, 16), graphs=1, backend="inductor", tol=(1e-5, 1e-5))
def test_attention_kernel_chosen_kernels(q, k):
    """`sdpa_kernel`, compiled to kernels"""
    with sdpa_kernel(SDPBackend.MATH):
        a = scaled_dot_product_attention(q, k, k)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        b = scaled_dot_product_attention(q, k, k) * 2
    return a, b, scaled_dot_product_attention(q, k, k)


@case(F(2, 2, 8, 16))
def test_attention_kernel_that_there_is_not(q):
    """`sdpa_kernel` of a kernel that the CPU has not: torch's exception, and what was chosen before is chosen again"""
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            scaled_dot_product_attention(q, q, q).sin()
    except RuntimeError as e:
        said = str(e)
    return q + 1, said, _cur_sdpa_kernel_backends()


@program(F(2, 2, 8, 16), breaks=True)
def test_break_in_attention_kernel():
    """Break inside `sdpa_kernel`: the choice holds after it and ends with the block"""
    asked = []

    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            a = scaled_dot_product_attention(q, q, q)
            print("in between")
            asked.append(_cur_sdpa_kernel_backends())
            b = scaled_dot_product_attention(a, q, q)
        return b + 1, _cur_sdpa_kernel_backends()

    return f, lambda: asked


@program(F(4), graphs=1)
def test_c_enumeration():
    """Members of an enumeration made in C++: keys, items of a list, compared, name, value, int, repr"""
    table = {SDPBackend.MATH: 2, SDPBackend.FLASH_ATTENTION: 3}

    def f(x):
        picked = [b for b in table if b in (SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION)]
        b = picked[0]
        same = b == SDPBackend.MATH, b != SDPBackend.MATH, b is SDPBackend.MATH, hash(b) == hash(SDPBackend.MATH)
        return x * table[b] + int(b), b.name, b.value, repr(b), str(b), f"{b}", same, list(dict.fromkeys([b, b]))

    return f


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_which_inputs_have_gradients_where_they_are_enabled_in_the_region(backend):
    def f(x, w):
        plain = x + w
        with torch.enable_grad():
            made = x * 2 + w
        return made, plain

    compiled = bytejit.compile(f, backend=backend, fullgraph=True)
    with torch.no_grad():
        for of in ((False, False), (True, False), (False, True), (True, True), (False, False)):
            given = [torch.ones(2, requires_grad=r) for r in of]
            assert [v.requires_grad for v in compiled(*given)] == [v.requires_grad for v in f(*given)] == [any(of), False]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("grad", [False, True])
def test_inference_tensors_behind_a_break(grad, backend):
    """What torch refuses of inference tensors outside of the mode, each behind a graph break"""

    def f(x):
        with torch.inference_mode():
            made = x * 2
            made.add_(1)
        uses = (
            lambda: made.add_(1),
            lambda: made.view(-1).mul_(2),
            lambda: torch.add(x.detach(), 1, out=made),
            lambda: made.__setitem__(0, 1.0),
            lambda: made * x,
            lambda: made + x,
            lambda: made.requires_grad_(),
            lambda: made.detach().add_(1),
            lambda: made.clone().add_(1),
            lambda: x.detach().clone().add_(made),
        )
        log = []
        for use in uses:
            print("a break")
            try:
                found = use()
                log.append((found.is_inference(), found.requires_grad) if isinstance(found, torch.Tensor) else found)
            except RuntimeError as e:
                log.append(str(e))
        with torch.no_grad():
            print("a break")
            try:
                made.mul_(2)
            except RuntimeError as e:
                log.append(str(e))
        return log, made

    check(f, F(3, grad=grad), calls=3, backend=backend, tol=(1e-5, 1e-6))
