"""normalise and run_aten against eager: results, strides, mutation, aliasing, random streams, errors."""

import operator

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.codegen.aten.graph import Alias, Input, Mutation, OutputValue
from bytejit.codegen.aten.normalise import CannotNormalise, normalise
from bytejit.codegen.aten.run import run_aten
from bytejit.fake.tensor import fake_like
from tests.fresh_process import run_without_compiler


class _Settable(torch.fx.Proxy):
    def __setitem__(self, key, value):
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


class _Tracer(torch.fx.Tracer):
    def proxy(self, node):
        return _Settable(node, self)


FACTORIES = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
    torch.randint,
    torch.randperm,
    torch.tensor,
    torch.arange,
}


class _Factories(torch.overrides.TorchFunctionMode):
    """Calls that make tensors become nodes too; symbolic tracing alone would run them once and for all."""

    def __init__(self, tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in FACTORIES:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def graph_of(fn) -> torch.fx.GraphModule:
    """The FX graph of a function of tensors, item assignment and factories included."""
    tracer = _Tracer()
    with _Factories(tracer):
        graph = tracer.trace(fn)
    return torch.fx.GraphModule(tracer.root, graph)


def on(x, fn, *args):
    """Call `fn`, or record the call of it in the graph that `x` is traced into."""
    if isinstance(x, torch.fx.Proxy):
        return x.tracer.create_proxy("call_function", fn, args, {})
    return fn(*args)


def made(fn, inputs):
    """The Aten of a function, and its function."""
    stores = {}
    aten = normalise(graph_of(fn), [fake_like(x, stores) for x in inputs])
    return aten, run_aten(aten)


def layout(values, inputs):
    """What a caller can see of tensors' memory: strides, and which share a storage, with each other or
    with an input.
    """
    tensors = [t for t in (*inputs, *values) if isinstance(t, torch.Tensor)]
    storages = [t.untyped_storage()._cdata for t in tensors]
    first = tensors[: len(inputs)]
    starts = [
        t.storage_offset() - next((x.storage_offset() for x in first if x.untyped_storage()._cdata == s), 0)
        for t, s in zip(tensors, storages)
    ]
    return [(t.stride(), t.dtype, storages.index(s), o) for t, s, o in zip(tensors, storages, starts)]


def flat(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def operators():
    """The operators that torch has made so far: each is one object, which tables and graphs know by identity."""
    packets = [p for p in vars(torch.ops.aten).values() if isinstance(p, torch._ops.OpOverloadPacket)]
    return {str(op): op for p in packets for op in vars(p).values() if isinstance(op, torch._ops.OpOverload)}


def compare(fn, *inputs, exact=True):
    """Run both on equal inputs under one seed: same values, mutation, strides, aliasing. Returns the Aten."""
    known = operators()
    ours = [x.clone() if torch.is_tensor(x) else x for x in inputs]
    for mine, x in zip(ours, inputs):
        assert mine.stride() == x.stride()
    theirs = [x.clone() for x in inputs]
    aten, run = made(fn, inputs)
    with torch.no_grad():
        torch.manual_seed(7)
        want = flat(fn(*theirs))
        torch.manual_seed(7)
        got = flat(run(*ours))
        assert torch.rand(1) == _rand_after(fn, inputs), "the generator stands elsewhere"
    now = operators()
    assert all(now[name] is op for name, op in known.items())
    assert len(got) == len(want)
    for g, w in zip([*got, *ours], [*want, *theirs]):
        if torch.is_tensor(w):
            torch.testing.assert_close(g, w, equal_nan=True, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
        else:
            assert g == w
    assert layout(got, ours) == layout(want, theirs)
    return aten


def _rand_after(fn, inputs):
    torch.manual_seed(7)
    fn(*[x.clone() for x in inputs])
    return torch.rand(1)


def x34():
    return torch.arange(12.0).reshape(3, 4) - 5


def _write_rows(x, y):
    x[0] = 1
    x[:, 1:3] = y[:, :2]
    return x * 2


def _shift_in_place(x, y):
    bits = x.to(torch.uint8)
    bits <<= 1
    bits[0] >>= y.to(torch.uint8)[0]
    return bits


def _write_local(x, y):
    z = x + y
    z[1:, ::2] = 7
    z[0].mul_(3)
    return z, z[0], z.t()


def _write_view_chain(x, y):
    z = x.clone()
    z.t()[1].view(3, 1).add_(y[:, :1])
    return z.sum(0), z


def _write_base_then_view(x, y):
    v = x[1]
    x.add_(1)
    w = v * 2
    v.add_(5)
    return w, v, x.view(-1)[3:5]


def _two_views(x, y):
    z = x * 1
    a, b = z[:2], z[1:]
    a.add_(1)
    b.mul_(2)
    a.sub_(3)
    return a, b, z


def _out(x, y):
    out = torch.empty(3, 4)
    torch.add(x, y, out=out)
    torch.mul(x, 2, out=out[0:3])
    return out


def _out_resized(x, y):
    out = torch.empty(0)
    torch.matmul(x, y.t(), out=out)
    return out + 1


def _out_input(x, y):
    torch.sub(x, y, out=x)
    return x + 1


def _reshape_in_place(x, y):
    z = x + 1
    z.t_()
    z.unsqueeze_(0)
    z[0, 1].add_(1)
    return z


def _swap(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x - y


def _swap_transposed(x, y):
    z = x + 0
    x.copy_(y)
    y.copy_(z)
    return z.t().contiguous()


def _fill(x, y):
    z = torch.zeros_like(x)
    z.fill_(3)
    z[0].zero_()
    z.masked_fill_(x > 0, -1)
    z.index_put_((torch.tensor([0, 1]), torch.tensor([1, 2])), torch.tensor([8.0, 9.0]))
    return z


def _clamp_chain(x, y):
    return x.clamp_(min=-1).add_(y).relu_().sqrt_()


def _as_strided(x, y):
    z = x + y
    z.as_strided((2, 2), (4, 1), 1).mul_(10)
    return z, z.as_strided((3,), (1,), 2)


def _pieces(x, y):
    a, b = (x + 1).chunk(2, 1)
    a.add_(b)
    p, q, r = x.unbind(0)
    q.mul_(2)
    return a, b, p, q, r


def _diagonal(x, y):
    z = x @ y.t()
    z.diagonal().add_(10)
    torch.diagonal(z, 1).zero_()
    return z


def _int_views(x, y):
    z = x.clone()
    z.view(torch.int32).bitwise_and_(-65536)
    return z


def _same_twice(x, y):
    z = x + y
    return z, z, z.view(12), x, x[0], y.t()


def _equal_values(x, y):
    return x + y, x + y, x.clone(), x.clone(), x.view(4, 3).clone()


def _expanded(x, y):
    z = x[0].expand(3, 4) + 0
    z += y
    return z, x[0].expand(2, 4)


def _none(x, y):
    return x.sum(), None, 3, "text"


def _autocast(x, y):
    region = on(x, torch.amp.autocast_mode._enter_autocast, "cpu", torch.bfloat16, True, True)
    a = F.linear(x, y)
    b = torch.mm(x, y.t())
    on(x, torch.amp.autocast_mode._exit_autocast, region)
    return a, b, F.linear(x, y)


def _random(x, y):
    a = torch.rand(3, 4) + x
    b = torch.randn_like(x)
    c = F.dropout(y, 0.4, True)
    torch.rand(2)
    z = torch.empty(4).uniform_(0, 1)
    return a, b, c, z.bernoulli_(0.5), torch.randint(0, 9, (5,)), torch.randperm(4)


def _constants(x, y):
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    t.add_(1)
    return x + t + torch.tensor(2.0), t


def _index(x, y):
    return (
        x[torch.tensor([2, 0])],
        torch.where(x > 0, x, y),
        torch.gather(x, 1, torch.zeros(3, 1, dtype=torch.long)),
        torch.cat([x, y], 1),
    )


def _norms(x, y):
    return (
        F.softmax(x, -1),
        F.layer_norm(x, (4,), y[0], y[1]),
        F.rms_norm(x, (4,)),
        F.gelu(y),
        F.normalize(x),
        x.var(1),
        x.std(),
    )


def _losses(x, y):
    return F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.cross_entropy(x, torch.tensor([0, 1, 2])), F.l1_loss(x, y)


def _foreach(x, y):
    on(x, torch._foreach_add_, [x, y], 2)
    on(x, torch._foreach_mul_, [x, y], [y.sin(), x.cos()])
    return x + y


def _self_copy(x, y):
    x.copy_(x.clone().flip(0))
    x[0:2] = x[1:3].clone()
    return x


def _iadd(x, y):
    return on(x, operator.iadd, x, y), on(x, operator.imul, x[0], 2)


def _permuted(x, y):
    z = x.t() * 2
    z.add_(1)
    z.t()[0] = 4
    return z, z.contiguous(), z.t()


def _set_grad(x, y):
    on(x, torch._C._set_grad_enabled, True)
    z = x * y
    on(x, torch._C._set_grad_enabled, False)
    return z.detach() + 1, z.detach()


PROGRAMS = [
    _write_rows,
    _shift_in_place,
    _write_local,
    _write_view_chain,
    _write_base_then_view,
    _two_views,
    _out,
    _out_resized,
    _out_input,
    _reshape_in_place,
    _swap,
    _swap_transposed,
    _fill,
    _clamp_chain,
    _as_strided,
    _pieces,
    _diagonal,
    _int_views,
    _same_twice,
    _equal_values,
    _expanded,
    _none,
    _autocast,
    _random,
    _constants,
    _index,
    _norms,
    _foreach,
    _self_copy,
    _iadd,
    _permuted,
    _set_grad,
    _losses,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_like_eager(program):
    compare(program, x34(), torch.randn(3, 4), exact=program not in (_norms, _losses))


def test_non_dense_inputs():
    def fn(a):
        a.mul_(2)
        a[0].add_(1)
        return a, a.sum(), a.reshape(-1)

    base = torch.randn(4, 6)
    other = base.clone()
    aten, run = made(fn, [base[:, ::2]])
    got, want = run(base[:, ::2]), fn(other[:, ::2])
    assert torch.equal(base, other)
    assert all(torch.equal(g, w) for g, w in zip(got, want))
    assert got[0].data_ptr() == base.data_ptr()


def test_views_of_an_input_at_an_offset():
    def fn(a):
        a[1].add_(1)
        return a[1:], a[0, 1:3]

    base = torch.arange(20.0)
    aten, run = made(fn, [torch.arange(20.0)[4:16].view(3, 4)])
    got = run(base[8:20].view(3, 4))
    assert torch.equal(got[0], base[12:20].view(2, 4)) and got[0].data_ptr() == base[12:].data_ptr()
    assert got[1].data_ptr() == base[9:].data_ptr()


def test_inputs_that_share_a_storage():
    base = torch.randn(6)
    aten, run = made(lambda a, b: (a + b, a), [base[:3], base[3:]])
    assert aten.outputs == (OutputValue(0), Input(0))
    with pytest.raises(CannotNormalise, match="shares memory"):
        made(lambda a, b: (a.add_(1), b * 2), [base[:4], base[2:]])


@pytest.mark.parametrize("size, stride", [((2, 2), (1, 1)), ((3, 3), (1, 2))])
def test_views_whose_elements_share_memory(size, stride):
    """What eager leaves there depends on the order of its writes: torch's own call makes them"""
    for program in (
        lambda x: x.as_strided(size, stride).cumsum_(0),
        lambda x: x.as_strided(size, stride)[0].cumsum_(0),
        lambda x: (x * 2).as_strided(size, stride).cumsum_(0),
    ):
        with pytest.raises(CannotNormalise, match="share memory"):
            made(program, [x34()])
    made(lambda x: (x.as_strided((2, 3), (4, 1)).cumsum_(0), x.sin()), [x34()])


def test_batch_norm():
    for training in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(4, 3, 5, 5).to(dtype)
            for t in (x, x.to(memory_format=torch.channels_last)):

                def fn(x, w, b, m, v):
                    return F.batch_norm(x, m, v, w, b, training=training)

                inputs = [t, torch.rand(3), torch.rand(3), torch.rand(3), torch.rand(3) + 0.5]
                aten, run = made(fn, inputs)
                mine, theirs = [[y.clone() for y in inputs] for _ in range(2)]
                got, want = run(*mine), fn(*theirs)
                tol = 1e-5 if dtype == torch.float32 else 2e-2
                torch.testing.assert_close(got, want, rtol=tol, atol=tol)
                assert got.stride() == want.stride()
                torch.testing.assert_close(mine[1:], theirs[1:])
                assert len(aten.mutations) == (2 if training else 0)


def test_modules_and_their_parameters():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.ReLU(inplace=True), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    )
    x = torch.randn(6, 4)
    gm = torch.fx.symbolic_trace(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run = run_aten(normalise(gm, [fake_like(x)]))
    with torch.no_grad():
        got = run(x)
    after = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(before)
    torch.testing.assert_close(got, model(x).detach())
    assert all(torch.equal(v, after[k]) or torch.allclose(v, after[k]) for k, v in model.state_dict().items())
    assert after["2.num_batches_tracked"] == 1


def test_kept_whole():
    def fn(q, w):
        return F.linear(F.scaled_dot_product_attention(q, q, q), w)

    aten, run = made(fn, [torch.randn(2, 3, 5, 8), torch.randn(6, 8)])
    names = [str(n.target) for n in aten.graph.nodes if n.op == "call_function"]
    assert names == ["aten.scaled_dot_product_attention.default", "aten.linear.default"]


def test_spec_and_text():
    aten, _ = made(lambda x, y: (x + y).t(), [x34(), x34()])
    assert aten.outputs == (Alias(OutputValue(0), (4, 3), (1, 4), 0),)
    assert aten.single and aten.mutations == ()
    assert aten.text() == (
        "p0: f32[3,4] = input\np1: f32[3,4] = input\nv2: f32[3,4] = add.Tensor(p0, p1)\nreturn [v2]\n"
        "out 0: Alias(of=OutputValue(position=0, version=0), size=(4, 3), stride=(1, 4), offset=0, dtype=None, apart=None, "
        "detached=False, version=0, number=None, behind=None, inside=0, kind=None)\n"
    )


def test_common_work_is_shared_and_dead_work_dropped():
    def fn(x, y):
        x.exp()
        x[0].sum()
        return (x + y).sin() + (x + y).sin(), x + 1, x + 1.0

    aten, _ = made(fn, [x34(), x34()])
    names = [str(n.target) for n in aten.graph.nodes if n.op == "call_function"]
    assert names.count("aten.sin.default") == 1 and names.count("aten.exp.default") == 0
    assert names.count("aten.add.Tensor") == 4


def test_mutations_are_listed():
    aten, _ = made(lambda x, y: (y.add_(x), None)[1], [x34(), x34()])
    assert aten.mutations == (Mutation(1, 0),)


def test_where_travels():
    gm = graph_of(lambda x: x.sin().cos())
    for node in gm.graph.nodes:
        node.meta["where"] = f"line of {node.name}"
    aten = normalise(gm, [fake_like(x34())])
    assert [n.meta["where"] for n in aten.graph.nodes if n.op == "call_function"] == ["line of sin", "line of cos"]


def test_modes_are_restored():
    def fn(x):
        on(x, torch._C._set_grad_enabled, False)
        on(x, torch.set_autocast_enabled, "cpu", True)
        return x + 1

    grad = torch.is_grad_enabled()
    made(fn, [x34()])
    assert torch.is_grad_enabled() == grad and not torch.is_autocast_enabled("cpu")


def test_refused():
    with pytest.raises(CannotNormalise):
        made(lambda x: x.t_(), [x34()])
    with pytest.raises(CannotNormalise):
        made(lambda x: x.set_(x), [x34()])


CODE = """
import torch
import test_normalise as t
for program in t.PROGRAMS:
    t.made(program, [t.x34(), torch.randn(3, 4)])[1](t.x34(), torch.randn(3, 4))
"""


def test_never_loads_a_compiler():
    run_without_compiler(CODE, __file__)


def test_conjugate_views():
    compare(lambda x, y: torch.fft.ifft(x), torch.randn(3, 4), torch.randn(3, 4), exact=False)


@pytest.mark.parametrize("draw", ["bernoulli_", "uniform_", "normal_", "exponential_"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 2),
        lambda x: x[:, ::2],
        lambda x: x[:, ::2].transpose(0, 1),
        lambda x: x[None, :, 0].expand(1, 5, 7).transpose(0, 2),
    ],
)
def test_draws_into_views_go_in_eagers_order(draw, view):
    def fn(x):
        y = x.clone()
        args = (0.4,) if draw == "bernoulli_" else ()
        getattr(view(y), draw)(*args)
        return y, torch.nn.functional.dropout(view(x), 0.3)

    if draw == "normal_" and view(torch.ones(5, 6, 7)).stride() == (42, 14, 1):
        with pytest.raises(CannotNormalise, match="gaps"):
            made(fn, [torch.ones(5, 6, 7)])
    else:
        compare(fn, torch.ones(5, 6, 7))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.to(torch.float64),
        lambda x: x.to(torch.float32),
        lambda x: x.to(torch.float64, copy=True),
        lambda x: x.to(device="cpu", dtype=torch.float16),
        lambda x: x.t().contiguous(),
        lambda x: x.expand_as(x[None]),
        lambda x: x.reshape(-1),
        lambda x: x.t().reshape(-1),
        lambda x: x.flatten(),
        lambda x: x.mT,
        lambda x: x.type_as(x.long()),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: torch.linalg.vector_norm(x.swapaxes(0, 1), dim=0),
    ],
)
@pytest.mark.parametrize("given", [torch.linspace(-2, 3, 12).view(3, 4), torch.linspace(-2, 3, 12).view(3, 4).bfloat16()])
def test_composite_ops_that_arrive_whole_are_taken_apart(fn, given) -> None:
    """As they do in inference mode, and within the decomposition of another op."""
    with torch.inference_mode():
        given = given.clone()
        aten = normalise(graph_of(fn), [fake_like(given)])
        targets = [n.target for n in aten.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        assert not [t for t in targets if torch._C._dispatch_has_kernel_for_dispatch_key(t.name(), "CompositeImplicitAutograd")]
        torch.testing.assert_close(run_aten(aten)(given), fn(given))


def test_an_out_that_torch_leaves_alone() -> None:
    """torch's matrix_rank writes into out= only where no mode is on: what does not show in the graph is left to torch"""

    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_rank(x, out=out)

    out = torch.full((), 7)
    assert bytejit.compile(f)(torch.eye(5), out) is out
    assert out.item() == 5


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.div_(y),
        lambda x, y: x.ldexp_(y),
        lambda x, y: torch.sin(y, out=x),
        lambda x, y: x.exp_(),
        lambda x, y: torch.mul(y, 0.5, out=x),
    ],
)
def test_floats_into_whole_numbers_are_refused(write) -> None:
    """As eager does, not cut to whole numbers"""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return write(x, y)

    with pytest.raises(RuntimeError, match="can't be cast|expected.*output"):
        f(torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="can't be cast|expected.*output"):
        bytejit.compile(f)(torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
