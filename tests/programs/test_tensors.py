"""Tensors"""

import math

import torch
import torch.nn.functional as nnf

from .harness import F, I, Spec, Turn, case, program


def both(make):
    """args= for inputs that share memory."""
    return lambda r: make(r.f(4, 3))


@case(F(2, 3, grad=True), graphs=1)
def test_attributes(x):
    """Attributes as values: shape, dtype, device, ndim, requires_grad, is_leaf, T, ..."""
    y = x * 2
    return (
        y,
        x.shape,
        x.size(),
        x.size(1),
        x.dtype,
        x.device,
        x.ndim,
        x.dim(),
        x.numel(),
        x.requires_grad,
        y.requires_grad,
        x.is_leaf,
        y.is_leaf,
        x.layout,
        x.stride(),
        x.is_contiguous(),
        x.t().is_contiguous(),
        x.element_size(),
        x.itemsize,
        x.nbytes,
        x.is_cuda,
        x.is_sparse,
        x.is_floating_point(),
        x.is_complex(),
        len(x),
        x.T.shape,
        x.storage_offset(),
        x.device.type,
        x.is_quantized,
        x.is_meta,
        x.type(),
    )


@case(F(2, 3), graphs=1)
def test_shape_values(x):
    """Sizes as values: arithmetic, unpacking, view, torch.Size"""
    b, c = x.shape
    s = torch.Size([c, b])
    return (
        x.view(c, b),
        x.reshape(s),
        x.new_zeros(b * c),
        s + (1,),
        s.numel(),
        x.shape[-1] // 2,
        x.shape[1:],
        tuple(x.shape),
        x.shape == (2, 3),
        torch.zeros(*x.shape),
        x.expand(4, *x.shape),
        math.sqrt(x.size(-1)),
        isinstance(s, tuple),
    )


@case(F(2, 3), graphs=1)
def test_dtype_values(x):
    """dtype and device as values, conversions, `torch.finfo`"""
    d = torch.float64 if x.dtype == torch.float32 else torch.int32
    return (
        x.to(d),
        x.double(),
        x.type(torch.int64),
        x.to("cpu"),
        x.to(x.device, torch.half),
        torch.finfo(x.dtype).max,
        torch.iinfo(torch.int8).min,
        d.is_floating_point,
        torch.promote_types(d, torch.int32),
        x.to(x.double()),
        str(d),
        torch.get_default_dtype(),
        {torch.float32: "f"}[x.dtype],
        x.bool(),
        x.type_as(x.int()),
        torch.device("cpu").type,
    )


@case(F(4, 4), graphs=1)
def test_methods(x):
    """Methods, functions and operators"""
    return (
        x.sin().cos_(),
        torch.add(x, x, alpha=2),
        x @ x,
        x.sum(dim=0, keepdim=True),
        x.mean(),
        x.max(1).values,
        x.max(),
        x.topk(2),
        x.sort(descending=True)[0],
        x.chunk(2),
        x.split([1, 3]),
        torch.cat([x, x]),
        torch.stack((x, x), dim=1),
        x.permute(1, 0),
        x.transpose(0, 1),
        x.unsqueeze(0).squeeze(),
        x.flatten(),
        x.masked_fill(x > 0, 0.0),
        x.where(x > 0, -x),
        x.clamp(min=0),
        x.unbind(),
        torch.einsum("ij,jk->ik", x, x),
        x.norm(),
        x.std(),
        x.var(1),
        nnf.softmax(x, -1),
        nnf.gelu(x),
        nnf.layer_norm(x, (4,)),
        x.argmax(),
        x.any(),
        x.isnan(),
        x.tril(),
        x.diag(),
    )


@case(F(4), F(4), graphs=1)
def test_operators(x, y):
    """Operators, reflected and compared"""
    return (
        x + y,
        1 - x,
        x * 2,
        1 / (y * y + 1),
        x**2,
        2**x,
        x // 2,
        x % 2,
        -x,
        abs(x),
        x > y,
        x <= 0,
        x == y,
        x != y,
        ~(x > 0),
        (x > 0) & (y > 0),
        (x > 0) | True,
        (x > 0) ^ (y > 0),
        x.int() << 1,
        +x,
        5 % (y * y + 1),
    )


@case(F(4), graphs=1)
def test_inplace(x):
    """In-place methods and operators on an argument"""
    x.add_(1)
    x *= 2
    y = x.sin_()
    return y, y is x


@case(F(4))
def test_version(x):
    """`_version` counts writes"""
    x.add_(1)
    return x * 2, x._version > 0


@case(F(4, 3), graphs=1)
def test_setitem(x):
    """`x[i] = y`: ints, slices, masks, index tensors, ellipsis"""
    x[0] = 1
    x[1:3, 0] = x[0, 1:] * 2
    x[..., -1] = 5.0
    x[x > 4] = 0
    x[torch.tensor([0, 2])] = x[1].clone()
    x[0, 1] += 3
    return x * 2


@case(F(4, 3), graphs=1)
def test_getitem(x):
    """`x[...]`: ints, slices, None, tensors, lists"""
    i = torch.tensor([0, 2])
    return x[0], x[-1, 1:], x[:, None], x[i], x[i, i], x[[0, 1]], x[..., 0], x[1:3][0], x[:, [True, False, True]], x[()]


@case(F(4, 3))
def test_getitem_by_tensor_number(x):
    """`x[t]` with a number inside a tensor: its value is needed"""
    return x[torch.tensor([0, 2])[0]] + 1


@case(F(4, 3))
def test_mask_index(x):
    """Boolean masks and nonzero: data-dependent shapes"""
    return x[x > 0], (x > 0).nonzero(), torch.where(x > 0), x.masked_select(x < 0) + 1, x.unique() * 2


@case(args=both(lambda x: (x, x)), graphs=1)
def test_same_tensor_twice(x, y):
    """The same tensor as two arguments"""
    x.add_(1)
    return y * 2, x is y, x


@case(args=both(lambda x: (x, x[1], x.view(-1))), graphs=1)
def test_views_among_arguments(x, row, flat):
    """Arguments that are views of one another, written in place"""
    row.mul_(10)
    flat[0] = 3.0
    return x + 1, row.sum()


@case(F(4, 3), graphs=1)
def test_views_returned(x):
    """Outputs that are views of inputs and of one another"""
    y = x + 1
    return x.t(), x[0], y, y.view(-1), y[1:], x.detach(), x.view_as(x), x


@case(F(4, 3), graphs=1)
def test_view_then_mutate(x):
    """View made, base changed, view read; and the other way"""
    y = x.clone()
    v = y[0]
    y.add_(1)
    a = v * 2
    v.zero_()
    return a, y, v, x


@case(F(4), graphs=1)
def test_argument_returned(x):
    """An argument returned as it is, beside computed values"""
    return x, x + 1, [x], {"x": x}


@case(F(4), F(4), graphs=1)
def test_out_argument(x, buf):
    """`out=`"""
    r = torch.add(x, 1, out=buf)
    torch.sin(x, out=buf[:])
    new = torch.empty(4)
    torch.mul(x, 2, out=new)
    return r is buf, buf, new


@case(F(4), graphs=1)
def test_data_and_detach(x):
    """`.data` and `.detach()`: shared memory, no gradient"""
    x.data.add_(1)
    d = x.detach()
    d.mul_(2)
    return x, d


@program(F(4))
def test_data_assigned():
    """`.data = ` on a tensor from outside"""
    w = torch.nn.Parameter(torch.ones(4))

    def f(x):
        w.data = x * 2
        return w + 1

    return f, lambda: w


@case(F(4))
def test_item(x):
    """`.item()`, `int()`, `float()`, `bool()`"""
    s = x.sum().item()
    n = int(x.abs().max() * 10)
    return x * s + n, float(x[0]), bool(x[0] > 0), type(s), x.argmax().item()


@case(F(4))
def test_tolist(x):
    """`.tolist()`"""
    v = (x * 2).tolist()
    return x + v[0], v, x[0].tolist()


@case(I(1, lo=2, hi=5), F(4))
def test_item_size(n, x):
    """A size that comes from `.item()`"""
    k = n.item()
    return torch.zeros(k) + 1, x[:k] * 2, torch.arange(k), list(range(k))


@case(F(4), graphs=1)
def test_requires_grad_(x):
    """`requires_grad_` on an intermediate"""
    y = (x * 2).detach().requires_grad_()
    z = y * 3
    return z, y.requires_grad, z.requires_grad


@case(F(4))
def test_requires_grad_argument(x):
    """`requires_grad_` on an argument"""
    x.requires_grad_()
    return x * 2


@case(F(4, grad=True))
def test_backward_inside(x):
    """`backward` inside, gradients on arguments"""
    y = (x * x).sum()
    y.backward()
    return x.grad * 2


@case(F(4, grad=True))
def test_autograd_grad_inside(x):
    """`torch.autograd.grad` inside"""
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g * 2


def _backward_after(f, x):
    y = f(x)
    y.sum().backward()
    return y.detach(), x.grad


@case(F(4, grad=True), drive=_backward_after, graphs=1)
def test_backward_outside(x):
    """Gradients through the compiled function's output"""
    return (x.sin() * x).relu() + x.exp().mean()


@case(F(4, grad=True))
def test_tensor_hook(x):
    """`register_hook` on an intermediate"""
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return x.grad


@case(F(4), graphs=1)
def test_rng(x):
    """RNG functions: same numbers under one seed"""
    return (
        x + torch.rand(4),
        torch.randn(2, 3),
        torch.randint(0, 5, (3,)),
        torch.rand_like(x),
        nnf.dropout(x, 0.5),
        torch.randperm(5),
        x.clone().uniform_(),
        torch.bernoulli(torch.full((4,), 0.5)),
        x.clone().normal_(),
        torch.normal(0.0, x.abs()),
    )


@case(F(4))
def test_manual_seed(x):
    """torch.manual_seed, get_rng_state, a Generator object"""
    torch.manual_seed(7)
    a = torch.rand(2)
    g = torch.Generator().manual_seed(3)
    return x + 1, a, torch.rand(2, generator=g)


@case(F(4), graphs=1)
def test_creation(x):
    """Creation functions"""
    return (
        torch.zeros(2),
        torch.ones_like(x),
        torch.full((2,), 3),
        torch.arange(4) + x,
        torch.linspace(0, 1, 3),
        torch.eye(2),
        torch.tensor([1, 2]),
        torch.tensor(3.5),
        torch.empty(0),
        x.new_tensor([1.0]),
        x.new_full((2,), 1),
        torch.tensor([[1.0, 2.0]], dtype=torch.float64),
        torch.as_tensor(2),
        torch.scalar_tensor(3),
        torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"),
    )


@case(F(4))
def test_tensor_from_values(x):
    """`torch.tensor` of a list of tensors' values"""
    return torch.tensor([x[0], x[1] * 2]), torch.tensor([float(v) for v in x])


@program(F(4), graphs=1)
def test_tensor_outside_mutated():
    """A tensor from outside, written in place"""
    acc = torch.zeros(4)

    def f(x):
        acc.add_(x)
        acc[0] = 1
        return acc * 2

    return f, lambda: acc


@program(F(4), graphs=1)
def test_tensor_attribute():
    """Attributes set on a tensor"""

    def f(x):
        x.tag = "seen"
        y = x + 1
        y.note = [1]
        return y, y.note, hasattr(x, "tag")

    return f


@case(F(4), F(4), graphs=1)
def test_identity_and_maps(x, y):
    """Tensors as dict keys, in lists, `is`, `id`"""
    d = {x: 1, y: 2}
    return d[x] + x, x is y, [x, y].index(x) if x is x else None, id(x) == id(y)


@case(F(4, 3), graphs=1)
def test_iteration_and_unpack(x):
    """Unpacking a tensor, `len`, `in` loops, `zip`"""
    a, b, *rest = x
    return a + b, rest, [r.sum() for r in x], len(x), [p * q for p, q in zip(x, x.flip(0))]


@case(F(3, 4), graphs=1)
def test_strides_kept(x):
    """Strides of results: transposed, expanded, channels_last, non-contiguous"""
    y = torch.arange(16.0).reshape(1, 2, 2, 4).contiguous(memory_format=torch.channels_last)
    return (
        x.t() + 1,
        x.expand(2, 3, 4),
        y * 2,
        x[:, ::2].sin(),
        x.t().contiguous(),
        y.is_contiguous(memory_format=torch.channels_last),
        x.as_strided((2, 2), (1, 2)),
        torch.empty_like(x.t()).stride(),
    )


@case(F(0, 4), graphs=1)
def test_empty(x):
    """Tensors without elements; of no axes"""
    return x + 1, x.sum(), x.sum(0), torch.cat([x, x]), x.shape, torch.zeros(()) + 1, x.t()


@case(Turn(torch.float32, torch.float64, torch.int32), F(4))
def test_dtype_argument(d, x):
    """A dtype as argument, other in each call"""
    return x.to(d) * 2


@case(F(4))
def test_tensor_subclass(x):
    """A tensor subclass with `__torch_function__`"""

    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    t = x.as_subclass(Tagged)
    y = t * 2
    return y.as_subclass(torch.Tensor), type(y).__name__


@program(F(4))
def test_tensor_subclass_argument():
    """A tensor subclass as argument"""

    class Tagged(torch.Tensor):
        pass

    def f(x):
        t = x.as_subclass(Tagged)
        return (t + 1).as_subclass(torch.Tensor), isinstance(t, Tagged)

    return f


@case(F(4))
def test_torch_function_mode(x):
    """A `TorchFunctionMode`"""
    from torch.overrides import TorchFunctionMode

    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        y = x.sin() + 1
    return y, len(seen) > 0


@program(F(4), graphs=1)
def test_parameter():
    """nn.Parameter and leaf tensors as values"""
    w = torch.nn.Parameter(torch.arange(4.0))

    def f(x):
        return x * w, isinstance(w, torch.nn.Parameter), w.requires_grad, w

    return f


@case(F(3, 3))
def test_sparse(x):
    """Sparse tensors"""
    s = x.relu().to_sparse()
    return (s @ x), s.to_dense() + 1, s.is_sparse


@case(F(4))
def test_quantised(x):
    """Quantised tensors"""
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return q.dequantize() + 1, q.is_quantized


@case(F(4), graphs=1)
def test_complex_tensors(x):
    """Complex tensors"""
    z = torch.complex(x, x + 1)
    return z.abs(), z.real, z.imag * 2, z.conj() * z, torch.view_as_real(z), torch.fft.fft(x).abs()


@case(F(4), 3, graphs=1)
def test_scalar_tensor_mix(x, n):
    """Scalars promoted with 0-d and integer tensors"""
    z = torch.tensor(2)
    return x * z, z + 1.5, z / 2, (x > 0) + 1, x.int() / 2, z * n, x.half() * 2.0, torch.result_type(x, 1), z**2, 2**z


@case(F(2, 3), graphs=1)
def test_new_views_of_constants(x):
    """Constants made inside, shared by outputs"""
    c = torch.ones(3)
    return c, c.view(3, 1), c + x, c


@case(F(4), graphs=1)
def test_resize_like(x):
    """`copy_`, `fill_`, `zero_`, `index_copy_`, `scatter_`, `masked_fill_`"""
    y = torch.empty_like(x).copy_(x)
    i = torch.tensor([0, 3])
    y.index_add_(0, i, torch.ones(2))
    y.scatter_(0, i, torch.zeros(2))
    y.masked_fill_(y > 1, -1)
    z = x.clone().fill_(3)
    return y, z.zero_(), x.index_select(0, i), x.gather(0, i), y.swapaxes(0, 0), x.repeat(2), x.roll(1)


@case(F(4, 4), graphs=1)
def test_functional_calls(x):
    """torch.nn.functional and torch.linalg"""
    w = torch.ones(4, 4)
    return (
        nnf.linear(x, w),
        nnf.relu(x, inplace=False),
        nnf.pad(x, (1, 1)),
        nnf.one_hot(torch.tensor([0, 2]), 3),
        nnf.embedding(torch.tensor([0, 1]), x),
        nnf.cross_entropy(x, torch.tensor([0, 1, 2, 3])),
        nnf.interpolate(x[None, None], scale_factor=2),
        torch.linalg.norm(x),
        nnf.scaled_dot_product_attention(x[None], x[None], x[None]),
        nnf.normalize(x),
        torch.bmm(x[None], x[None]),
        torch.linalg.vector_norm(x, dim=1),
        nnf.avg_pool1d(x[None], 2),
    )


@program(F(4), graphs=1)
def test_set_data():
    """`x.data = y` on arguments, parameters, results and views; `grad` and `requires_grad` set"""
    w = torch.nn.Parameter(torch.ones(4))
    w.grad = torch.ones(4)

    def f(x):
        view = x[1:]
        x.data = x * 2
        view.add_(10)
        w.data = w.data - 0.1 * w.grad
        w.grad = None
        y = x + w
        shorter = y.detach()
        shorter.data = y.data[:2].clone()
        z = x.detach().clone()
        z.requires_grad = True
        gone = w.grad is None
        w.grad = w.detach() * 2
        return x, view, y, shorter, z * w, gone, w.grad

    return f, lambda: (w, w.grad)


@case(F(4), F(5))
def test_set_data_then_raise(x, y):
    """`x.data` set before an operation that raises"""
    x.data = x * 2
    x.add_(1)
    return x @ y


@case(F(4), F(4), graphs=1)
def test_is_inference_asked(x, y):
    """`is_inference()` of arguments"""
    return x + 1 if x.is_inference() else y - 1


@case(F(2, 3), F(4, 3), breaks=True)
def test_nested_tensors(a, b):
    """Nested tensors: jagged ones and strided ones"""
    jagged = torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2
    strided = torch.nested.nested_tensor([a, b]) + 1
    return jagged.values(), jagged.offsets(), list(strided.unbind()), strided.is_nested


@case(Spec(lambda r: r.f(3 + r.call, 2)), graphs=1, total=2, calls=4)
def test_sizes_made_tensors(x):
    """Tensors made of sizes that change: `new_tensor`, `torch.tensor`, `unravel_index`"""
    n = x.shape[0]
    return (
        x.new_tensor([n, 2]),
        x.new_tensor(n, dtype=torch.int64),
        torch.tensor([n, x.shape[1]]),
        torch.tensor([[n, 1], (2, n * n)]),
        torch.tensor([[n / 2, 1], (True, n)], requires_grad=True),
        torch.Tensor([[n, 1.5]]),
        torch.LongTensor([n, 3]),
        torch.Tensor(n, 2).fill_(n),
        torch.unravel_index(torch.tensor([1, 4]), x.shape),
    )


@case(F(3, 2), graphs=1)
def test_old_constructors(x):
    """`torch.Tensor`, `torch.LongTensor` and the like, of sizes and of numbers"""
    weight = torch.nn.Parameter(torch.Tensor(2, 3).fill_(0.5))
    made = (
        *(torch.Tensor(), torch.Tensor([]), torch.Tensor(()), torch.Tensor([[1, 2.5]]), torch.DoubleTensor((1, 2))),
        *(torch.BoolTensor([True, 0]), torch.ByteTensor([1, 2]), torch.HalfTensor([1.1]), torch.Tensor(x.shape).fill_(2)),
    )
    return made, x[torch.LongTensor([0, 2])] @ weight, isinstance(made[0], torch.FloatTensor)


@case(F(3, 2), breaks=True)
def test_old_constructors_of_other_data(x):
    """Of tensors, of floats for integers, of what it refuses"""
    found = []
    for make in (lambda: torch.Tensor(x), lambda: torch.LongTensor([1.5]), lambda: torch.Tensor(2.5), lambda: torch.Tensor(-1)):
        try:
            found.append(make())
        except Exception as e:
            found.append(type(e).__name__)
    return x + 1, found


@case(Spec(lambda r: r.f(3 + r.call, 2)), graphs=1, total=2, calls=3)
def test_checks_of_sizes(x):
    """`torch._check` and its kin of sizes that change"""
    torch._check(x.shape[0] > 1)
    torch._check_value(x.shape[1] == 2, lambda: "two columns")
    return x * x.shape[0]


@case(F(3, 2), breaks=True)
def test_checks_that_fail(x):
    """`torch._check` that does not hold, caught"""
    try:
        torch._check(x.shape[0] == 2, lambda: f"got {x.shape[0]}")
    except RuntimeError as e:
        return x + 1, str(e)


@case(F(3), graphs=1)
def test_an_argument_named_from(x):
    """`from` of random_ and uniform_, which no text can name"""
    a = x.clone().random_(**{"from": -10, "to": 10})
    b = x.clone().random_(**{"from": 2, "to": None})
    return a + b, x.clone().uniform_(**{"from": -1.0, "to": 1.0}), x.clone().random_(-3, to=3)


@case(F(3), graphs=1)
def test_vars_of_a_function(x):
    """vars() without an argument"""
    y = x + 1
    if "y" in vars() and "z" not in vars():
        z = 2  # noqa: F841
    return y * vars()["z"], sorted(vars())


@case(F(2, 3), Turn(3, 1, 2), graphs=1)
def test_sizes_added(x, n):
    """A torch.Size and a tuple added, in either order and in place: a torch.Size"""
    size, pair, more = torch.Size([2, n]), (1,), x.shape
    made = [size + size, size + pair, pair + size, pair + more, size * 2, 2 * size, pair + size + pair, size + (), () + size]
    made += [sum([size, pair], ()), size[1:], (*size, 1)]
    left, right = pair, size
    left += size
    right += pair
    return x * 2, made, left, right


@case(F(2), Turn(3, 1, 2))
def test_size_and_what_is_no_number(x, n):
    """A torch.Size and a tuple of other things: torch's exception"""
    size, said = torch.Size([2, n]), []
    for add in (
        lambda: ("a",) + size,
        lambda: size + (1.5,),
        lambda: size + [1],
        lambda: [1] + size,
        lambda: size + 1,
        lambda: size + (True,),
    ):
        try:
            said.append(add())
        except TypeError as e:
            said.append(str(e))
    return x * 2, said


@case(F(4), Turn(3, 1, 2), graphs=1)
def test_types_of_one_dtype(x, n):
    """isinstance(x, torch.LongTensor) and its like"""
    i, types = torch.tensor(n), (torch.LongTensor, torch.FloatTensor)
    found = [
        isinstance(v, of) for v in (x, i, n, x.double(), torch.nn.Parameter(x), i > 1) for of in (*types, types, torch.BoolTensor)
    ]
    return x * 2, found


@case(F(4), Turn(3, 1, 2))
def test_sizes_made_of_things(x, n):
    """torch.Size() of numbers, of what says that it is one, and of others: torch's exception"""

    class Three:
        def __index__(self):
            return 3

    made = []
    for of in ([Three()], [True], [1.5], [None], [n, "a"], [n, [1]], [n, torch.tensor(2)], [Three], (n,), {1: n}, "a", n):
        try:
            made.append(torch.Size(of))
        except TypeError as e:
            made.append(str(e))
    return x * 2, made
