"""torch.compile and torch.export: every op traces without a graph break, and computes what eager mode does."""

import shutil

import pytest
import torch
from common import assert_near
from test_mixers import DIM, MIXERS, make, make_input

import ovq

if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip("torch before 2.6 does not trace custom ops in C++", allow_module_level=True)


def rand(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype) / 2


def attention_inputs(time=64, batch=2, heads=4, kv_heads=2, dim=16, dtype=torch.float32):
    q = rand(batch, time, heads, dim, seed=1, dtype=dtype)
    k, v = (rand(batch, time, kv_heads, dim, seed=seed, dtype=dtype) for seed in (2, 3))
    return q, k, v, rand(heads, seed=4).exp().to(dtype)


def weighted_inputs(time):
    q, k, v, beta = attention_inputs(time)
    return q, k, v, beta, k.mean(-1).exp().detach()


def half(time):
    return attention_inputs(time, dtype=torch.bfloat16)


def recurrence_inputs(time, heads=3, key_dim=8, value_dim=12):
    """q, k, v, g, beta, and a state."""
    q, k = (rand(2, time, heads, key_dim, seed=seed) for seed in (1, 2))
    gates = rand(2, time, heads, seed=4), rand(2, time, heads, seed=5)
    return (
        q,
        ovq.l2_norm(k),
        rand(2, time, heads, value_dim, seed=3),
        -gates[0].square(),
        gates[1].sigmoid(),
        rand(2, heads, key_dim, value_dim, seed=6),
    )


def mesa_inputs(time):
    *inputs, state = recurrence_inputs(time)
    return (*inputs, 1 + rand(3, 8, seed=7).square(), rand(2, 3, 8, 20, seed=6) * 0)


def ssd_inputs(time, heads=4, groups=2):
    x, b, c = rand(2, time, heads, 6, seed=1), rand(2, time, groups, 8, seed=2), rand(2, time, groups, 8, seed=3)
    return x, rand(2, time, heads, seed=4).exp(), -rand(heads, seed=5).exp(), b, c, rand(heads), rand(2, heads, 8, 6)


def quantizer_inputs(time):
    return rand(2, time, 3, 8), rand(3, 10, 8, seed=1)


def packed(make):
    """The first row of the batch of such inputs, without their state, and where sequences in it begin and end."""

    def inputs(time):
        rows = [x[:1] if x.dim() > 2 else x for x in make(time)]
        return (*rows, torch.tensor([0, 5, 5, 21, time]))

    return inputs


# By name: the op as a function of tensors, and its inputs for a length.
OPS = {
    "attention": (lambda q, k, v, beta: ovq.attention(q, k, v, beta), attention_inputs),
    "attention, a window": (lambda q, k, v, beta: ovq.attention(q, k, v, beta, window=7), attention_inputs),
    "attention, a number": (lambda q, k, v, beta: ovq.attention(q, k, v, 1.5) * beta.sum(), attention_inputs),
    "attention, bfloat16": (lambda q, k, v, beta: ovq.attention(q, k, v, beta), half),
    "ovq_attention": (lambda q, k, v, beta: ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=12), attention_inputs),
    "ovq_attention, weights": (
        lambda q, k, v, beta, w: ovq.ovq_attention(q, k, v, beta, weights=w, chunk=8, centroids=12),
        weighted_inputs,
    ),
    "ovq_attention, options": (
        lambda q, k, v, beta: ovq.ovq_attention(
            q, k, v, beta, chunk=8, centroids=12, rope=True, normalize=True, rate=0.5, growth="all"
        ),
        attention_inputs,
    ),
    "attention, packed": (
        lambda q, k, v, beta, cu: ovq.attention(q, k, v, beta, cu_seqlens=cu),
        packed(attention_inputs),
    ),
    "ovq_attention, packed": (
        lambda q, k, v, beta, cu: ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=12, cu_seqlens=cu),
        packed(attention_inputs),
    ),
    "gated_delta_rule": (lambda q, k, v, g, beta, s: ovq.gated_delta_rule(q, k, v, g, beta), recurrence_inputs),
    "gated_delta_rule, states": (
        lambda q, k, v, g, beta, s: ovq.gated_delta_rule(q, k, v, g, beta, initial_state=s, return_state=True),
        recurrence_inputs,
    ),
    "gated_delta_rule, packed": (
        lambda q, k, v, g, beta, s, cu: ovq.gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu),
        packed(recurrence_inputs),
    ),
    "linear_attention": (lambda q, k, v, g, beta, s: ovq.linear_attention(q, k, v), recurrence_inputs),
    "linear_attention, states": (
        lambda q, k, v, g, beta, s: ovq.linear_attention(q, k, v, g, scale=0.3, initial_state=s, return_state=True),
        recurrence_inputs,
    ),
    "linear_attention, packed": (
        lambda q, k, v, g, beta, s, cu: ovq.linear_attention(q, k, v, g, cu_seqlens=cu),
        packed(recurrence_inputs),
    ),
    "ssd": (lambda x, dt, a, b, c, d, s: ovq.ssd(x, dt, a, b, c), ssd_inputs),
    "ssd, states": (
        lambda x, dt, a, b, c, d, s: ovq.ssd(x, dt, a, b, c, d, initial_state=s, return_state=True),
        ssd_inputs,
    ),
    "ssd, packed": (
        lambda x, dt, a, b, c, d, s, cu: ovq.ssd(x, dt, a, b, c, d, cu_seqlens=cu),
        packed(ssd_inputs),
    ),
    "mesa": (lambda q, k, v, g, beta, l, s: ovq.mesa(q, k, v, g, beta, l, iterations=5), mesa_inputs),
    "mesa, states": (
        lambda q, k, v, g, beta, l, s: ovq.mesa(q, k, v, g, beta, l, initial_state=s, return_state=True),
        mesa_inputs,
    ),
    "mesa, packed": (
        lambda q, k, v, g, beta, l, s, cu: ovq.mesa(q, k, v, g, beta, l, cu_seqlens=cu),
        packed(mesa_inputs),
    ),
    "rms_norm": (lambda x, w: ovq.rms_norm(x, w), lambda time: (rand(2, time, 24), 1 + rand(24, seed=1))),
    "rms_norm, groups": (
        lambda x, w: ovq.rms_norm(x, w, groups=3, eps=1e-3),
        lambda time: (rand(2, time, 24), 1 + rand(24, seed=1)),
    ),
    "rms_norm, float64": (
        lambda x, w: ovq.rms_norm(x, w),
        lambda time: (rand(2, time, 24, dtype=torch.float64), rand(24, seed=1, dtype=torch.float64)),
    ),
    "l2_norm": (lambda x: ovq.l2_norm(x), lambda time: (rand(2, time, 3, 8),)),
    "rotary": (lambda x: ovq.rotary(x, base=100.0, first_position=5), lambda time: (rand(2, time, 3, 8),)),
    "rotary, packed": (
        lambda x, cu: ovq.rotary(x, cu_seqlens=cu),
        lambda time: (rand(1, time, 3, 8), torch.tensor([0, 5, 21, time])),
    ),
    "rotary, bfloat16": (lambda x: ovq.rotary(x), lambda time: (rand(2, time, 3, 8, dtype=torch.bfloat16),)),
    "short_convolution": (
        lambda x, w: ovq.short_convolution(x, w),
        lambda time: (rand(2, time, 24), rand(24, 4, seed=1)),
    ),
    "short_convolution, states": (
        lambda x, w, b, s: ovq.short_convolution(x, w, b, activation="silu", initial_state=s, return_state=True),
        lambda time: (rand(2, time, 24), rand(24, 4, seed=1), rand(24, seed=2), rand(2, 3, 24, seed=3)),
    ),
    "short_convolution, packed": (
        lambda x, w, b, cu: ovq.short_convolution(x, w, b, cu_seqlens=cu),
        lambda time: (rand(1, time, 24), rand(24, 4, seed=1), rand(24, seed=2), torch.tensor([0, 5, 21, time])),
    ),
    "vector_quantize": (lambda z, c: ovq.vector_quantize(z, ovq.l2_norm(c)), quantizer_inputs),
    "vector_quantize, diveq": (
        lambda z, c: ovq.vector_quantize(z, ovq.l2_norm(c), gradient="diveq", seed=3),
        quantizer_inputs,
    ),
    "vector_quantize, sf_diveq": (
        lambda z, c: ovq.vector_quantize(z, ovq.l2_norm(c), gradient="sf_diveq", bonus=c[..., 0].detach()),
        quantizer_inputs,
    ),
    "ovq_attention, bfloat16": (lambda q, k, v, beta: ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=12), half),
}


def outputs_of(function, inputs):
    outputs = function(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def run(function, inputs):
    """Outputs, and gradients by all inputs."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = outputs_of(function, inputs)
    differentiable = [o for o in outputs if o.requires_grad]
    seeds = [rand(*o.shape, seed=9 + i, dtype=o.dtype) for i, o in enumerate(differentiable)]
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(differentiable, wanted, seeds, allow_unused=True)
    return outputs, gradients


# torch 2.6 decomposes some of its own ops, such as silu's backward, into others that round differently.
ROUNDING = 0 if tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 14) else 1e-5


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert (a is None) == (e is None)
        if a is not None:
            assert a.dtype == e.dtype and a.shape == e.shape
            difference = (a.double() - e.double()).abs().max().item() if a.numel() > 0 else 0
            assert difference <= ROUNDING * max(1, e.abs().max().item() if e.numel() > 0 else 0)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", OPS)
def test_compiled_is_eager(name):
    op, make = OPS[name]
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    for time in (64, 96, 33):  # the second length makes it a symbol
        for actual, expected in zip(run(compiled, make(time)), run(op, make(time))):
            assert_same(actual, expected)
        with torch.no_grad():
            assert_same(outputs_of(compiled, make(time)), outputs_of(op, make(time)))


@pytest.mark.parametrize("name", OPS)
def test_no_graph_break(name):
    op, make = OPS[name]
    explained = torch._dynamo.explain(op)(*make(48))
    assert explained.graph_break_count == 0 and explained.graph_count == 1


class Block(torch.nn.Module):
    """A layer as users write them, of one of every kind of op."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ParameterList(torch.ones(dim) for _ in range(2))
        self.qkv = torch.nn.Linear(dim, 3 * dim, bias=False)
        self.taps = torch.nn.Parameter(torch.randn(3 * dim, 4) / 2)
        self.beta = torch.nn.Parameter(torch.full((heads,), 2.0))
        self.out = torch.nn.Linear(dim, dim, bias=False)
        self.gate, self.up = (torch.nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        mixed = ovq.short_convolution(self.qkv(ovq.rms_norm(x, self.norms[0])), self.taps, activation="silu")
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in mixed.chunk(3, -1))
        q, k = (ovq.rotary(ovq.l2_norm(y)) for y in (q, k))
        x = x + self.out(ovq.ovq_attention(q, k, v, self.beta, chunk=8, centroids=12).flatten(2))
        n = ovq.rms_norm(x, self.norms[1])
        return x + self.down(torch.nn.functional.silu(self.gate(n)) * self.up(n))


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block())


def step_of(network, x):
    x = x.clone().requires_grad_()
    y = network(x)
    return (y, *torch.autograd.grad(y.square().sum(), [x, *network.parameters()]))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_model(backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a compiler")
    network = model()
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    for time in (64, 96, 33):
        x = rand(2, time, 32, seed=time)
        for a, e in zip(step_of(compiled, x), step_of(network, x)):
            assert_near(a, e, ROUNDING if backend == "aot_eager" else 1e-4)


def test_export():
    network, x = model().eval(), rand(2, 40, 32)
    program = torch.export.export(network, (x,))
    assert torch.equal(program.module()(x), network(x))
    time = torch.export.Dim("time", min=2, max=4096)
    dynamic = torch.export.export(network, (x,), dynamic_shapes=({1: time},)).module()
    for length in (40, 57, 130):
        x = rand(2, length, 32, seed=length)
        assert torch.equal(dynamic(x), network(x))


def layer_of(name):
    """Codebooks learn in eager mode: VQ-attention is compiled outside of training."""
    return make(name).train(not name.startswith("vq"))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", MIXERS)
def test_layers(name, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a compiler")
    layer = layer_of(name)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)

    def step(network, x):
        x = x.clone().requires_grad_()
        y = network(x)
        wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(y.square().sum(), wanted, allow_unused=True)
        return (y, *(torch.zeros(()) if g is None else g for g in gradients))

    for time in (23, 31, 7):
        x = rand(2, time, DIM, seed=time)
        actual, expected = step(compiled, x), step(layer, x)
        for a, e in zip(actual, expected):
            if name.startswith("vq") and a.shape != e.shape:  # zeros where eager mode has none
                a = a.sum()
            assert_near(a, e, 1e-4)
        with torch.no_grad():
            assert_near(compiled(x), layer(x), 1e-4)


@pytest.mark.parametrize("name", MIXERS)
def test_layers_have_no_graph_break(name):
    explained = torch._dynamo.explain(layer_of(name))(make_input())
    assert explained.graph_break_count == 0 and explained.graph_count == 1


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "vq ema"])  # whose form is a loop over sequences
def test_layers_with_packed_sequences(name):
    layer, x, offsets = layer_of(name), make_input(1), torch.tensor([0, 5, 5, 14, 23])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert_near(compiled(x, cu_seqlens=offsets), layer(x, cu_seqlens=offsets), 1e-5)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_training_of_codebooks_is_not_compiled(fullgraph):
    compiled = torch.compile(make("vq").train(), backend="aot_eager", fullgraph=fullgraph)
    # With fullgraph torch 2.6 does not pass on the text of an error that it traces.
    with pytest.raises(Exception, match="training notes its keys|Observed exception"):
        compiled(make_input())


@pytest.mark.parametrize("preset", ["tiny/sw-ovq", "tiny/gdn", "tiny/mamba2", "tiny/mesa-net"])
def test_language_model(preset):
    torch.manual_seed(0)
    network = ovq.CausalLM.preset(preset, vocab_size=50, num_hidden_layers=2)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    for time in (40, 57):
        tokens = torch.randint(50, (2, time), generator=torch.Generator().manual_seed(time))
        found = []
        for model in (compiled, network):
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            found.append((loss, *torch.autograd.grad(loss, list(network.parameters()))))
        for a, e in zip(*found):
            assert_near(a, e, 1e-5)


@pytest.mark.parametrize("name", ["attention", "ovq", "gdn", "mamba2", "linear"])  # export cannot spell mesa's `lambda`
def test_export_of_layers(name):
    layer, x = make(name).eval(), make_input()
    program = torch.export.export(layer, (x,))
    assert_near(program.module()(x), layer(x), 1e-5)


def test_functional_call():
    network, x = model(), rand(2, 20, 32)
    doubled = {name: 2 * p.detach() for name, p in network.named_parameters()}
    y = torch.func.functional_call(network, doubled, (x,))
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(2)
    assert torch.equal(y, network(x))


VMAPPED = [name for name in OPS if not any(word in name for word in ("packed", "bfloat16", "states", "float64"))]


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_says_what_to_do(name):
    op, make = OPS[name]
    inputs = [torch.stack([x, x]) for x in make(20)]
    message = rf"\[({name.split(',')[0]}|l2_norm)\] does not go with torch.func.vmap; fold the mapped dimension into the batch"
    with pytest.raises(NotImplementedError, match=message):
        torch.func.vmap(op, randomness="different")(*inputs)


def dispatched(name, inputs, **changes):
    """The calls of dispatched ops that one call of an op makes, forward and backward: [(op, arguments)]."""
    calls = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "ovq":
                calls.append((func, args))
            return func(*args, **(kwargs or {}))

    with Recorder():
        run(OPS[name][0], inputs)
    return calls


RECURRENCES = ("gated_delta_rule", "linear_attention", "ssd", "mesa")
ALL_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def check_op(op, arguments):
    """What forward of a recurrence saves is padded with memory as it was, which the last check would compare."""
    padded = op._schema.name in [f"ovq::{name}_forward" for name in RECURRENCES]
    torch.library.opcheck(op, arguments, test_utils=ALL_CHECKS[:3] if padded else ALL_CHECKS)


@pytest.mark.parametrize("name", [name for name in OPS if name not in ("rotary, bfloat16", "rms_norm, float64")])
def test_opcheck_of_dispatched_ops(name):
    calls = dispatched(name, OPS[name][1](40))
    assert calls
    for op, arguments in calls:
        check_op(op, tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments))


def test_opcheck_of_what_only_tracing_calls():
    x, cu_seqlens = rand(1, 40, 4, 8), torch.tensor([0, 5, 40])
    check_op(torch.ops.ovq.rotary_angles.default, (x, 100.0, 3, cu_seqlens))
    check_op(torch.ops.ovq.sequence_starts.default, (cu_seqlens, x, "ssd"))
    check_op(torch.ops.ovq.nearest_codeword.default, (x[0], rand(40, 7, 8), rand(40, 7)))


H = rand(2, 40, 4, 8, seed=1)
GATE = -rand(2, 40, 4, seed=2).square()
PUBLIC = {
    "attention": (H, H + 1, H, rand(4, seed=3)),
    "ovq_attention": (H, H + 1, H, rand(4, seed=3), 8, 12),
    "gated_delta_rule": (H, ovq.l2_norm(H), H, GATE, GATE.exp()),
    "linear_attention": (H, H + 1, H, GATE),
    "ssd": (H, GATE.exp(), GATE[0, 0], H, H + 1),
    "mesa": (H, ovq.l2_norm(H), H, GATE, GATE.exp(), 1 + H[0, 0].square()),
    "short_convolution": (H.flatten(2), rand(32, 4)),
    "rms_norm": (H, 1 + rand(8)),
    "l2_norm": (H,),
    "rotary": (H,),
    "vector_quantize": (H, ovq.l2_norm(rand(4, 10, 8))),
}


# torch hides this warning of its own check, unless warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", PUBLIC)
def test_opcheck(name):
    arguments = tuple(x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for x in PUBLIC[name])
    torch.library.opcheck(getattr(torch.ops.ovq, name).default, arguments)


def test_wrong_inputs():
    compiled = torch.compile(lambda q: ovq.attention(q, q, q, 1.0, query_offset=9), backend="aot_eager", fullgraph=True)
    with pytest.raises(ValueError, match=r"\[attention\] query_offset is 9"):
        compiled(rand(1, 4, 2, 8))


@pytest.mark.parametrize("path", ["kernel", "formula"])
def test_the_path_is_that_of_the_trace(path, monkeypatch):
    inputs = attention_inputs(20)
    expected = ovq.attention(*inputs, path=path)
    compiled = torch.compile(lambda *x: ovq.attention(*x), backend="aot_eager", fullgraph=True)
    monkeypatch.setenv("OVQ_PATH", path)
    assert torch.equal(compiled(*inputs), expected)
    monkeypatch.delenv("OVQ_PATH")
    assert torch.equal(compiled(*inputs), expected)


def test_states_are_for_eager_mode():
    q, k, v, beta = attention_inputs(20)

    def start(q, k, v, beta):
        return ovq.ovq_attention(2 * q, k, v, beta, chunk=8, centroids=12, return_state=True)[0]

    with pytest.raises(Exception):
        torch.compile(start, backend="aot_eager", fullgraph=True)(q, k, v, beta)
