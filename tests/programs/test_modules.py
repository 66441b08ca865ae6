"""nn.Module"""

import collections
import copy
import threading

import torch
from torch import nn
from torch.nn.utils import rnn

from . import targets
from .harness import F, I, Sign, case, program


def seeded(make):
    """Build a module with the same weights on both sides."""
    torch.manual_seed(0)
    return make()


class Net(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)
        self.k = 2
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, scale=1.0):
        return self.b(torch.relu(self.a(x))) * scale + self.k


@program(F(2, 4), graphs=1)
def test_module_compiled():
    """A module compiled: two Linears and relu"""
    return seeded(Net)


@program(F(2, 4), graphs=1)
def test_module_called():
    """A module from outside, called inside a function"""
    net = seeded(Net)

    def f(x):
        return net(x, scale=3.0) + net.k

    return f


@case(args=lambda r: (seeded(Net), r.f(2, 4)), graphs=1)
def test_module_argument(model, x):
    """A module passed as argument"""
    return model(x)


@program(F(2, 4), graphs=1)
def test_sequential_list_dict():
    """Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.s = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.l = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
            self.d = nn.ModuleDict({"p": nn.Tanh(), "q": nn.Sigmoid()})
            self.pl = nn.ParameterList([nn.Parameter(torch.ones(4))])
            self.pd = nn.ParameterDict({"w": nn.Parameter(torch.ones(4) * 2)})

        def forward(self, x):
            x = self.s(x)
            for i, m in enumerate(self.l):
                x = m(x) + i
            for name, m in self.d.items():
                x = m(x) if name in self.d else x
            return self.l[-1](x) + self.pl[0] * self.pd["w"] + len(self.l) + len(self.s), self.s[0](x)

    return seeded(M)


@program(F(2, 4), graphs=1)
def test_module_walks():
    """named_parameters, children, modules, state_dict keys inside forward"""
    net = seeded(Net)

    def f(x):
        total = sum(p.sum() for p in net.parameters())
        names = [n for n, _ in net.named_parameters()]
        return (
            x + total,
            names,
            [type(m).__name__ for m in net.modules()],
            [n for n, _ in net.named_children()],
            dict(net.named_buffers())["seen"] + 1,
        )

    return f


@program(F(2, 4))
def test_hooks():
    """Forward pre-hooks, forward hooks, with kwargs, that change values"""
    net, log = seeded(Net), []
    net.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    net.register_forward_hook(lambda m, a, out: out * 2)
    net.register_forward_pre_hook(lambda m, a, k: (a, {**k, "scale": 5.0}), with_kwargs=True)
    net.a.register_forward_hook(lambda m, a, out: log.append(tuple(out.shape)))
    return net, lambda: log


@program(F(2, 4))
def test_global_hooks():
    """Global forward hooks"""
    net = seeded(Net)

    def f(x):
        h = nn.modules.module.register_module_forward_hook(lambda m, a, out: out + 1)
        try:
            return net(x)
        finally:
            h.remove()

    return f


@program(F(2, 4))
def test_hook_added_between_calls():
    """A hook added, then removed, between calls"""
    net = seeded(Net)
    handles = []

    def f(x):
        return net(x)

    def turn():
        if handles:
            handles.pop().remove()
        else:
            handles.append(net.a.register_forward_hook(lambda m, a, out: out * 100))
        return len(handles)

    return f, turn


@program(F(2, 4, grad=True))
def test_backward_hooks():
    """Full backward hooks"""
    net, log = seeded(Net), []
    net.a.register_full_backward_hook(lambda m, gi, go: log.append(go[0].shape))

    def f(x):
        y = net(x)
        y.sum().backward()
        return x.grad

    return f, lambda: log


@program(F(3, 4))
def test_batchnorm_buffers():
    """Buffers mutated: BatchNorm in training and eval"""
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))

    def f(x):
        return net(x)

    flips = [False, True]

    def turn():
        net.train(flips[0])
        flips.reverse()
        return net

    return f, turn


@program(F(2, 4), graphs=1)
def test_buffer_written():
    """A buffer written in place and reassigned in forward"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(1))
            self.register_buffer("last", None)

        def forward(self, x):
            self.n += 1
            self.last = x.mean()
            return x * self.n

    m = M()
    return m, lambda: (m.n, m.last)


@program(F(2, 4))
def test_dropout_and_training_flip():
    """`train()` and `eval()` between calls, dropout with the same numbers"""
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))

    def turn():
        net.train(not net.training)
        return net.training

    return net, turn


@program(F(2, 4), tol=(0, 0))
def test_to_between_calls():
    """`.to(dtype)` between calls"""
    net, kinds = seeded(Net), [torch.float64, torch.float32]

    def f(x):
        return net(x.to(net.a.weight.dtype))

    def turn():
        net.to(kinds[0])
        kinds.reverse()
        return None

    return f, turn


@program(F(2, 4))
def test_load_state_dict_between_calls():
    """`load_state_dict` and an optimizer step between calls"""
    net = seeded(Net)
    other = {k: v + 1 for k, v in net.state_dict().items()}
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    turns = []

    def turn():
        if turns:
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
        else:
            net.load_state_dict(other)
        turns.append(1)
        return None

    return (lambda x: net(x).detach()), turn


@program(F(2, 4), graphs=1)
def test_attribute_set_in_forward():
    """Attributes set in forward: plain, tensor, list appended"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.trace = nn.Linear(4, 4), []

        def forward(self, x):
            self.last = self.lin(x)
            self.trace.append(tuple(x.shape))
            self.mode = "ran"
            return self.last * 2

    m = seeded(M)
    return m, lambda: (m.last.detach(), m.trace, m.mode)


@program(F(2, 4))
def test_counter_in_forward():
    """A Python counter in forward"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.n += 1
            return x * self.n

    m = M()
    return m, lambda: m.n


@program(F(2, 4), graphs=1)
def test_shared_parameters():
    """Parameters and modules shared"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.c = self.a

        def forward(self, x):
            return self.c(self.b(self.a(x))), self.c is self.a, self.a.weight is self.b.weight

    return seeded(M)


@program(F(2, 4), graphs=1)
def test_forward_replaced():
    """`forward` replaced on the instance"""
    net = seeded(Net)
    old = net.a.forward
    net.a.forward = lambda x: old(x) * 10
    return net


@program(F(2, 4), graphs=1)
def test_call_overridden():
    """`__call__` overridden"""

    class M(nn.Module):
        def __call__(self, x, k=3):
            return super().__call__(x) * k

        def forward(self, x):
            return x + 1

    m = M()
    return lambda x: m(x) + m(x, k=2)


@program(F(2, 4), graphs=1)
def test_parametrizations():
    """Parametrizations"""
    from torch.nn.utils import parametrize

    class Sym(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()

    lin = seeded(lambda: nn.Linear(4, 4))
    parametrize.register_parametrization(lin, "weight", Sym())
    return lambda x: lin(x)


@program(F(2, 4))
def test_weight_norm():
    """weight_norm (old and new) and spectral_norm"""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = seeded(lambda: nn.utils.weight_norm(nn.Linear(4, 4)))
    b = seeded(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    c = seeded(lambda: nn.utils.spectral_norm(nn.Linear(4, 4)).eval())
    return lambda x: c(b(a(x)))


@program(F(2, 4))
def test_module_made_inside():
    """A module made inside the compiled function"""

    def f(x):
        lin = nn.Linear(4, 3)
        act = nn.ReLU()
        return act(lin(x))

    return f


@program(F(2, 4))
def test_lazy_module():
    """A lazy module, materialised in its first call"""
    return seeded(lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU()))


@program(F(2, 3, 5, 5), graphs=0, total=1)
def test_lazy_modules():
    """Lazy modules of several kinds: the first call, which makes their parameters, runs as it is, the next is one graph"""
    return seeded(lambda: nn.Sequential(nn.LazyConv2d(4, 2), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3)).eval())


@case(F(2, 3))
def test_parameter_never_made(x):
    """A lazy module made inside that is never called"""
    return x + 1, nn.LazyLinear(3).has_uninitialized_params()


@program(F(2, 4), graphs=1)
def test_getattr_module():
    """A module with `__getattr__`, properties, class attributes"""

    class M(nn.Module):
        rate = 3

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.options = {"bias": 1.0}

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        @property
        def width(self):
            return self.inner.out_features

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight) * self.width + self.rate + self.options["bias"]

    return seeded(M)


@program(F(1, 3, 8, 8), graphs=1)
def test_conv_block():
    """Convolution, batch norm, pooling, residual"""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.c, self.n, self.p = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.MaxPool2d(2)

        def forward(self, x):
            return torch.flatten(self.p(torch.relu(self.n(self.c(x)) + x)), 1)

    return seeded(lambda: Block().eval())


@program(I(2, 5), graphs=1)
def test_transformer_layer():
    """Embedding, attention, layer norm"""

    class T(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(10, 8)
            self.t = nn.MultiheadAttention(8, 2, batch_first=True)
            self.n = nn.LayerNorm(8)

        def forward(self, i):
            h = self.e(i)
            return self.n(h + self.t(h, h, h, need_weights=False)[0])

    return seeded(lambda: T().eval())


@program(F(5, 2, 4))
def test_rnn():
    """LSTM and GRU"""
    net = seeded(lambda: nn.LSTM(4, 3))
    gru = seeded(lambda: nn.GRUCell(4, 3))
    return lambda x: (net(x)[0], gru(x[0]))


@program(F(2, 4))
def test_module_is_what_it_was():
    """A compiled module keeps isinstance, state_dict keys, attributes, parameters"""
    net = seeded(Net)

    def drive_free(x):
        return net(x)

    return drive_free, lambda: (
        isinstance(net, Net),
        list(net.state_dict()),
        net.training,
        net.k,
        len(list(net.parameters())),
        type(copy.deepcopy(net)).__name__,
    )


@program(F(2, 4), graphs=1)
def test_apply_and_functional_call():
    """torch.func.functional_call"""
    net = seeded(Net)
    params = {k: v * 2 for k, v in net.state_dict().items()}
    return lambda x: torch.func.functional_call(net, params, (x,))


@program(F(2, 4))
def test_module_method_compiled():
    """A method other than forward"""

    class M(Net):
        def encode(self, x):
            return self.a(x).tanh()

    m = seeded(M)
    return m.encode


@program(Sign(2, 4), breaks=True)
def test_break_inside_submodule():
    """Break inside a submodule's forward, hooks still run in order"""
    log = []

    class Gate(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x + 1
            return x - 1

    net = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Gate(), nn.ReLU()))
    net[1].register_forward_hook(lambda m, a, out: log.append("gate"))
    net[2].register_forward_hook(lambda m, a, out: log.append("relu"))
    return net, lambda: log


@program(F(2, 4))
def test_checkpoint():
    """torch.utils.checkpoint"""
    from torch.utils.checkpoint import checkpoint

    net = seeded(Net)

    def f(x):
        y = checkpoint(net, x, use_reentrant=False)
        return y * 2

    return f


@program(F(2, 4))
def test_training_step():
    """A training step: zero_grad, loss, backward, optimizer step"""
    net = seeded(Net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def f(x):
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return f, lambda: {k: v.detach() for k, v in net.state_dict().items()}


@program(F(2, 4), graphs=1)
def test_module_in_containers():
    """Modules in lists, dicts, closures, partials"""
    import functools

    nets = [seeded(lambda: nn.Linear(4, 4)) for _ in range(2)]
    table = {"act": nn.Tanh()}
    call = functools.partial(nets[0])

    def f(x):
        for n in nets:
            x = table["act"](n(x))
        return call(x)

    return f


@program(F(2, 4), graphs=1)
def test_deleted_and_replaced_attributes():
    """A submodule replaced by another in forward's first call"""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x):
            w = getattr(self, "extra", None)
            return self.body(x) if w is None else self.body(x) + w

    return seeded(M)


LOCK = threading.Lock()


@program(F(4), graphs=1)
def test_lock_held_while_state_is_set():
    """A lock from outside around what a first forward sets"""

    class Once(nn.Module):
        def forward(self, x):
            if not getattr(self, "ready", False):
                with LOCK:
                    if not getattr(self, "ready", False):
                        self.ready = True
            return x + 1

    m = Once()
    return m, lambda: (m.ready, LOCK.locked())


@program(F(4), graphs=1)
def test_lock_that_its_holder_takes_again():
    """A threading.RLock from outside, taken again by what is called under it"""
    lock, seen = threading.RLock(), []

    def inner(x):
        with lock:
            seen.append(x.shape[0])
            return x * 2

    def f(x):
        with lock:
            y = inner(x + 1)
        lock.acquire()
        lock.release()
        return y + 1

    def free():
        took = []
        other = threading.Thread(target=lambda: took.append(lock.acquire(False) and lock.release() is None))
        other.start()
        other.join()
        return took

    return f, lambda: (seen, free())


def test_lock_that_another_thread_holds():
    """It is waited for before the region runs."""
    lock, held, go, found = threading.RLock(), threading.Event(), threading.Event(), []

    def f(x):
        with lock:
            return x + 1

    compiled = targets.compiled(f, targets.Counter())
    compiled(torch.ones(2))

    def hold():
        with lock:
            held.set()
            go.wait()

    holder, user = threading.Thread(target=hold), threading.Thread(target=lambda: found.append(compiled(torch.ones(2))))
    holder.start()
    held.wait()
    user.start()
    user.join(0.2)
    assert not found
    go.set()
    holder.join()
    user.join()
    assert torch.equal(found[0], torch.full((2,), 2.0))


@program(F(4))
def test_lock_over_a_break():
    """A break inside a lock: held by the original code"""
    seen = []

    def f(x):
        with LOCK:
            y = x + 1
            seen.append(LOCK.locked())
            print(LOCK.locked())
        return y * 2

    return f, lambda: (seen, LOCK.locked())


@program(F(4, 3), graphs=1)
def test_module_cast_to_what_it_is():
    """`module.to(dtype)` in forward, with nothing to cast"""
    lin = seeded(lambda: nn.Linear(3, 2))

    def f(x):
        m = lin.to(x.dtype).to("cpu")
        return m(x), m is lin

    return f


@program(F(4, 3))
def test_module_cast_in_forward():
    """`module.to(dtype)` in forward that casts"""
    lin = seeded(lambda: nn.Linear(3, 2))
    return lambda x: lin.to(torch.float64)(x.double()), lambda: lin.weight.dtype


@case(F(4), graphs=1)
def test_classes_as_dtypes(x):
    """int, float, bool as dtypes"""
    return x.to(float), torch.tensor([1], dtype=int), torch.zeros(2, dtype=bool)


@program(F(4), graphs=1)
def test_hook_installed_in_forward():
    """A forward hook registered in a first forward, with its handle"""

    class Watched(nn.Module):
        def forward(self, x):
            if not hasattr(self, "handle"):
                self.seen = []
                self.handle = self.inner.register_forward_hook(lambda m, args, out: self.seen.append(out.shape))
            return self.inner(x) + 1

    m = Watched()
    m.inner = nn.ReLU()
    return m, lambda: (len(m.seen), len(m.inner._forward_hooks), m.handle.hooks_dict_ref() is m.inner._forward_hooks)


@case(F(2, 4), graphs=1)
def test_module_with_parameters_made_inside(x):
    """Modules with parameters made inside, initialised at random, used, returned"""
    with torch.no_grad():
        quiet = nn.Linear(4, 3)(x)
    m = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    w = nn.Parameter(x * 2, requires_grad=False)
    nn.init.constant_(m[0].bias, 0.5)
    return m, m(x), quiet, w, isinstance(w, nn.Parameter), m[0].weight.is_leaf, sum(p.numel() for p in m.parameters())


@program(F(2, 4), graphs=1)
def test_deepcopy_of_modules():
    """`copy.deepcopy` of modules and parameters, shared ones kept shared; the copy changed, the original not"""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.note = nn.Linear(4, 4), nn.Linear(4, 4), ["n"]
            self.b.weight = self.a.weight
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.b(self.a(x))

    net = Tied()

    def f(x):
        twin = copy.deepcopy(net)
        twin.note.append("t")
        with torch.no_grad():
            for p, q in zip(twin.parameters(), net.parameters()):
                p.mul_(0.5).add_(q, alpha=0.1)
        return twin, twin(x), net(x), twin.a.weight is twin.b.weight, copy.deepcopy(net.a.weight)

    return f, lambda: net


def other_rate(f, x):
    """Two calls, the second after the float that the module's code compares was set to 0."""
    m = (f.__wrapped__ if hasattr(f, "__wrapped__") else f).drop
    m.p = 1.0
    first = f(x)
    m.p = 0.0
    return first, f(x)


@program(F(4), drive=other_rate, backend="inductor", calls=2)
def test_dropout_rate_set_between_calls():
    """A float attribute that torch's own code compares, changed between calls, compiled to kernels"""
    drop = nn.Dropout(0.5)

    def f(x):
        return drop(x).relu()

    f.drop = drop
    return f


@program(F(3, 5), graphs=1)
def test_state_dict_taken_and_loaded_inside():
    """`state_dict()`, a deep copy of it and `load_state_dict` in forward, with their metadata"""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))

    def f(x):
        state = m.state_dict()
        kept = copy.deepcopy(state)
        y = m(x)
        m.load_state_dict(kept)
        return y, list(state), state._metadata, kept

    return f, lambda: dict(m.state_dict())


class Watched(collections.OrderedDict):
    """Parameters that note what is read."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __getitem__(self, key):
        self.log.append(key)
        return super().__getitem__(key)


@program(F(3, 4), graphs=1)
def test_parameters_in_a_dict_of_the_programs():
    """A module whose table of parameters is a dict of the program's own kind"""
    m, log = seeded(Net), []
    for part in m.modules():
        table = Watched(log)
        table.update(part._parameters)
        part._parameters = table
    return m, lambda: log


class Reader(nn.Module):
    """Words, packed by their lengths, through a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(10, 4), layer, nn.Linear(2 * layer.hidden_size, 3)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(self.words(x).tanh(), lengths, batch_first=True, enforce_sorted=False)
        made, state = self.layer(packed)
        padded, given = rnn.pad_packed_sequence(made, batch_first=True, total_length=x.shape[1])
        return self.out(padded.sum(1)).relu(), given, state, packed


@program(I(3, 6), I(3, lo=1, hi=6), graphs=2, breaks=True)
def test_packed_sequences():
    """Packed sequences through an LSTM of two directions: packing, the layer and unpacking break once each"""
    return seeded(lambda: Reader(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)))


@program(F(3, 4), graphs=3, breaks=True)
def test_packed_list():
    """pack_sequence of tensors made inside, a PackedSequence made anew, unpack_sequence"""
    layer = seeded(lambda: nn.GRU(4, 5))

    def f(x):
        packed = rnn.pack_sequence([x.sin(), x[:1] * 2, x[:2] + 1], enforce_sorted=False)
        made, _ = layer(packed)
        again = rnn.PackedSequence(made.data * 2, made.batch_sizes, made.sorted_indices, made.unsorted_indices)
        return [part + 1 for part in rnn.unpack_sequence(again)], again.data

    return f
