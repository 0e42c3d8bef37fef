"""What fine-tuners do to the parts of a layer or model: each must compute what a plain layer with the resulting weights
does, gradients included.
"""

import copy
import pickle
import threading

import pytest
import torch
from common import assert_near
from test_mixers import MIXERS, make, make_input
from torch import nn
from torch.nn.utils import parametrize, prune, remove_weight_norm, spectral_norm, weight_norm

import ovq

try:
    from torch.func import functional_call
except ImportError:
    from torch.nn.utils.stateless import functional_call


def make_model(pattern="tiny/sw-ovq"):
    torch.manual_seed(0)
    model = ovq.CausalLM.preset(pattern, vocab_size=50, num_hidden_layers=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.weight"):
                parameter.mul_(3)
    return model.eval()


def make_tokens(time=30):
    return torch.randint(50, (2, time), generator=torch.Generator().manual_seed(1))


def make_case(case):
    """A layer and what it reads."""
    if case == "model":
        return make_model(), make_tokens()
    return make(case).eval(), make_input()


def part_of(layer, name):
    path, _, leaf = name.rpartition(".")
    return layer.get_submodule(path), leaf


def run(layer, x):
    """One pass, then the same in pieces and token by token, side by side along time."""
    y = layer(x)
    first, state = layer(x[:, :7], return_state=True)
    second, state = layer(x[:, 7:15], state=state)
    rest = [layer.step(x[:, t : t + 1], state) for t in range(15, x.shape[1])]
    return torch.cat([y, first, second, *rest], 1)


def loss_of(y):
    return (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3))).sum()


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.factor * x


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


# Each changes `leaf` of `part`, then what it is computed from, as an optimizer would. Returns those parameters and the
# tensor that the layer should now compute with.
def by_parametrize(part, leaf):
    parametrize.register_parametrization(part, leaf, Scale())
    parametrization = part.parametrizations[leaf]
    return [parametrization.original, parametrization[0].factor], lambda: getattr(part, leaf)


def by_prune(part, leaf):
    prune.random_unstructured(part, leaf, 0.5)
    return [getattr(part, leaf + "_orig")], lambda: getattr(part, leaf + "_orig") * getattr(part, leaf + "_mask")


def by_weight_norm(part, leaf):
    weight_norm(part, leaf)
    raw = [getattr(part, leaf + "_v"), getattr(part, leaf + "_g")]
    return raw, lambda: torch._weight_norm(*raw, 0)


def by_spectral_norm(part, leaf):
    spectral_norm(part, leaf)
    (hook,) = part._forward_pre_hooks.values()
    return [getattr(part, leaf + "_orig")], lambda: hook.compute_weight(part, False)


def by_parameter(part, leaf):
    setattr(part, leaf, nn.Parameter(getattr(part, leaf).detach() * 0.5))
    return [getattr(part, leaf)], lambda: getattr(part, leaf)


TENSOR_WAYS = [by_parametrize, by_prune, by_weight_norm, by_spectral_norm, by_parameter]


# The same for a linear part at a name of `layer`.
def by_module(owner, leaf):
    base = getattr(owner, leaf)
    setattr(owner, leaf, nn.Linear(base.in_features, base.out_features, bias=False))
    weight = getattr(owner, leaf).weight
    return [weight], lambda: weight


def by_lora(owner, leaf):
    base = getattr(owner, leaf)
    lora = LoRA(base)
    setattr(owner, leaf, lora)
    return list(lora.parameters()), lambda: base.weight + lora.up.weight @ lora.down.weight


def by_hook(owner, leaf):
    base = getattr(owner, leaf)
    base.register_forward_hook(lambda module, inputs, output: 2 * output)
    return [base.weight], lambda: 2 * base.weight


def by_forward(owner, leaf):
    base = getattr(owner, leaf)
    base.forward = lambda x: nn.functional.linear(x, 3 * base.weight)
    return [base.weight], lambda: 3 * base.weight


PART_WAYS = [by_module, by_lora, by_hook, by_forward]


def check_replaced(case, name, way):
    layer, x = make_case(case)
    plain, before = copy.deepcopy(layer), run(layer, x)
    weight = name + ".weight" if way in PART_WAYS else name
    raw, effective = way(*part_of(layer, name))
    with torch.no_grad():
        for i, tensor in enumerate(raw):
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(50 + i)))
        plain_owner, leaf = part_of(plain, weight)
        getattr(plain_owner, leaf).copy_(effective())
    actual, expected = run(layer, x), run(plain, x)
    assert_near(actual, expected, 1e-5)
    assert (expected - before).abs().max() > 1e-3  # it matters
    loss_of(actual).backward()
    loss_of(expected).backward()
    gradient = getattr(plain_owner, leaf).grad
    used = [tensor for tensor in raw if tensor.requires_grad]
    for tensor, g in zip(used, torch.autograd.grad(effective(), used, gradient)):
        assert_near(tensor.grad, g, 1e-4)
    others, changed = dict(plain.named_parameters()), {id(tensor) for tensor in raw}
    same = {n: p for n, p in layer.named_parameters() if n in others and id(p) not in changed}
    assert len(same) >= len(others) - 1
    for n, p in same.items():
        if n != weight:
            assert (p.grad is None) == (others[n].grad is None)
            if p.grad is not None:
                assert_near(p.grad, others[n].grad, 1e-4)


TENSORS = [
    ("attention", "v_proj.weight"),
    ("attention", "b"),
    ("ovq", "q_proj.weight"),
    ("ovq more", "conv_k.weight"),
    ("vq", "quantizer.codebook"),
    ("gdn", "o_proj.weight"),
    ("gdn", "conv_q.weight"),
    ("gdn", "A_log"),
    ("mamba2", "in_proj.weight"),
    ("mamba2", "D"),
    ("mamba2", "conv.bias"),
    ("mesa", "lambda"),
    ("model", "layers.1.mixer.v_proj.weight"),
    ("model", "layers.1.mixer.b"),
    ("model", "layers.0.mlp.down_proj.weight"),
    ("model", "layers.0.mixer_norm.weight"),
    ("model", "embed.weight"),
    ("model", "head.weight"),
]


@pytest.mark.parametrize("way", TENSOR_WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case, name", TENSORS)
def test_tensors(case, name, way):
    check_replaced(case, name, way)


@pytest.mark.parametrize("way", PART_WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "case, name",
    [
        ("attention", "v_proj"),
        ("ovq", "v_proj"),
        ("ovq", "k_proj"),
        ("gdn", "g_proj"),
        ("mamba2", "out_proj"),
        ("linear", "q_proj"),
        ("model", "layers.1.mixer.v_proj"),
        ("model", "layers.0.mixer.o_proj"),
        ("model", "layers.1.mlp.gate_proj"),
        ("model", "head"),
    ],
)
def test_parts(case, name, way):
    check_replaced(case, name, way)


EVERY = [(case, name) for case in MIXERS for name, _ in make(case).named_parameters()]


def other_values(layer):
    generator = torch.Generator().manual_seed(5)
    return {
        name: (x.detach() + 0.3 * torch.randn(x.shape, generator=generator)).requires_grad_(x.requires_grad)
        for name, x in layer.named_parameters()
    }


@pytest.mark.parametrize("case, name", EVERY)
def test_every_parameter_by_itself(case, name):
    """No read of a parameter is forgotten: neither by a pass, nor with a state, nor in a step."""
    layer, x = make(case).eval(), make_input()
    before, values = run(layer, x), {name: other_values(layer)[name]}
    plain = copy.deepcopy(layer)
    plain.load_state_dict({**layer.state_dict(), **values})
    y = functional_call(layer, values, (x,))
    assert torch.equal(y, plain(x)) and torch.equal(run(layer, x), before)
    owner, leaf = part_of(layer, name)
    setattr(owner, leaf, nn.Parameter(values[name].detach(), requires_grad=values[name].requires_grad))
    expected = run(plain, x)
    assert torch.equal(run(layer, x), expected) and not torch.equal(before, expected)
    packed, offsets = make_input(1), torch.tensor([0, 9, x.shape[1]])
    assert torch.equal(layer(packed, cu_seqlens=offsets), plain(packed, cu_seqlens=offsets))


def check_all(layer, plain, x):
    values = other_values(layer)
    plain.load_state_dict({**plain.state_dict(), **values})
    y, expected = functional_call(layer, values, (x,)), plain(x)
    assert torch.equal(y, expected)
    loss_of(y).backward()
    loss_of(expected).backward()
    for name, parameter in plain.named_parameters():
        assert (values[name].grad is None) == (parameter.grad is None)
        assert parameter.grad is None or torch.equal(values[name].grad, parameter.grad)
    assert all(parameter.grad is None for parameter in layer.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", MIXERS)
def test_every_parameter_at_once(case, training):
    layer = make(case).train(training)
    check_all(layer, copy.deepcopy(layer), make_input())


@pytest.mark.parametrize("preset", ["tiny/sw-ovq", "tiny/sw-vq", "tiny/gdn", "tiny/mamba2", "tiny/mesa-net"])
def test_every_parameter_of_a_model(preset):
    model = make_model(preset)
    check_all(model, copy.deepcopy(model), make_tokens())


def test_buffers_of_a_functional_call():
    layer, x = make("vq ema").train(), make_input()
    plain = copy.deepcopy(layer)
    values = {name: tensor.detach().clone() for name, tensor in layer.state_dict().items()}
    before = copy.deepcopy(values)
    for _ in range(2):
        assert torch.equal(functional_call(layer, values, (x,)), plain(x))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(values[name], tensor)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert values["started"] == 1 and not torch.equal(values["quantizer.codebook"], before["quantizer.codebook"])


def test_a_computed_codebook_is_not_written_to():
    layer, x = make("vq").train(), make_input()
    layer.started.zero_()  # the codebook will start from keys
    parametrize.register_parametrization(layer.quantizer, "codebook", Scale())
    with pytest.raises(TypeError, match=r"\[vq\] quantizer.codebook is computed .*; remove its parametrization"):
        layer(x)
    layer.eval()(x)


def test_hooks_and_parts():
    layer, model, x = make("mamba2").eval(), make_model(), make_input()
    hidden = torch.randn(2, 5, 64)
    calls = {}
    for name in ("in_proj", "conv", "norm"):
        part = getattr(layer, name)
        part.register_forward_hook(lambda part, inputs, output, name=name: calls.update({name: inputs}))
    mlp = model.layers[0].mlp
    expected = layer(x)
    assert list(calls) == ["in_proj", "conv", "norm"] and torch.equal(calls["in_proj"][0], x)
    assert torch.equal(expected, layer(x))
    assert torch.equal(expected, make("mamba2").eval()(x))
    by_hand = mlp.down_proj(nn.functional.silu(mlp.gate_proj(hidden)) * mlp.up_proj(hidden))
    assert torch.equal(mlp(hidden), by_hand)
    assert isinstance(layer.in_proj, nn.Linear) and isinstance(model.embed, nn.Embedding)
    assert model.head.out_features == 50 and model.embed.embedding_dim == 64 and len(model.layers) == 2


class Doubled(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, *inputs, **carried):
        return 2 * self.base(*inputs, **carried)


@pytest.mark.parametrize("case, name", [("gdn", "conv_v"), ("mamba2", "conv"), ("linear", "norm"), ("mesa", "conv_q")])
def test_other_parts_of_mixers(case, name):
    layer, x = make(case).eval(), make_input()
    plain = copy.deepcopy(layer)
    setattr(layer, name, Doubled(getattr(layer, name)))
    getattr(plain, name).register_forward_hook(lambda part, inputs, output: 2 * output)
    assert torch.equal(run(layer, x), run(plain, x))
    packed, offsets = make_input(1), torch.tensor([0, 9, x.shape[1]])
    assert torch.equal(layer(packed, cu_seqlens=offsets), plain(packed, cu_seqlens=offsets))
    if case != "mesa":  # whose queries are normalised
        assert (layer(x) - make(case).eval()(x)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["embed", "norm", "layers.0.mlp", "layers.1.mlp_norm"])
def test_other_parts_of_models(name):
    model, tokens = make_model(), make_tokens()
    plain = copy.deepcopy(model)
    owner, leaf = part_of(model, name)
    setattr(owner, leaf, Doubled(getattr(owner, leaf)))
    with torch.no_grad():
        for n, parameter in plain.named_parameters():
            if n in (f"{name}.weight", f"{name}.down_proj.weight"):
                parameter.mul_(2)
    assert_near(run(model, tokens), run(plain, tokens), 1e-4)
    assert (model(tokens) - make_model()(tokens)).abs().max() > 1e-3


def test_tied_embeddings():
    model, tokens = make_model(), make_tokens()
    plain = copy.deepcopy(model)
    model.head.weight = model.embed.weight
    with torch.no_grad():
        plain.head.weight.copy_(plain.embed.weight)
    logits, expected = model(tokens), plain(tokens)
    assert torch.equal(logits, expected)
    loss_of(logits).backward()
    loss_of(expected).backward()
    assert_near(model.embed.weight.grad, plain.embed.weight.grad + plain.head.weight.grad, 1e-4)
    assert len(list(model.parameters())) == len(list(plain.parameters())) - 1
    other = copy.deepcopy(model)
    assert other.head.weight is other.embed.weight and torch.equal(other(tokens), logits)


def test_generation_after_folding():
    model, tokens = make_model(), make_tokens()
    plain = copy.deepcopy(model)
    raw, effective = by_lora(model.layers[1].mixer, "v_proj")
    prune.random_unstructured(model.layers[0].mlp.up_proj, "weight", 0.5)
    with torch.no_grad():
        raw[2].normal_()
        plain.layers[1].mixer.v_proj.weight.copy_(effective())
        plain.layers[0].mlp.up_proj.weight.copy_(model.layers[0].mlp.up_proj.weight)
    assert_near(model.hidden(tokens), plain.hidden(tokens), 1e-5)
    model.layers[1].mixer.v_proj = plain.layers[1].mixer.v_proj
    prune.remove(model.layers[0].mlp.up_proj, "weight")
    new = model.engine().generate(tokens[0], tokens=20)
    assert new == plain.engine().generate(tokens[0], tokens=20) != make_model().engine().generate(tokens[0], tokens=20)


def test_fine_tuning_with_adapters():
    """The base stays as it is, the adapters learn, and folding them in gives a plain model."""
    model = make_model()
    tokens = torch.arange(5).repeat(8)[None]
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.mixer, name, LoRA(getattr(layer.mixer, name), rank=4))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 8
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert torch.equal(model.layers[1].mixer.v_proj.base.weight, before["layers.1.mixer.v_proj.weight"])
    logits = model(tokens)
    for layer in model.layers:
        for name in ("q_proj", "v_proj"):
            lora = getattr(layer.mixer, name)
            with torch.no_grad():
                lora.base.weight.add_(lora.up.weight @ lora.down.weight)
            setattr(layer.mixer, name, lora.base)
    assert_near(model(tokens), logits, 1e-5)
    assert model.state_dict().keys() == before.keys()


COPIED = [by_prune, by_weight_norm, by_spectral_norm, by_parameter, by_parametrize]


@pytest.mark.parametrize("way", COPIED + [by_module, by_lora], ids=lambda way: way.__name__)
@pytest.mark.parametrize("case, name", [("ovq", "v_proj"), ("gdn", "o_proj"), ("model", "layers.1.mixer.v_proj")])
def test_copies(case, name, way):
    layer, x = make_case(case)
    way(*part_of(layer, name if way in PART_WAYS else name + ".weight"))
    y = layer(x)
    copies = []
    if way in (by_prune, by_weight_norm, by_spectral_norm):  # whose computed weight torch does not copy
        with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
            copy.deepcopy(layer)
    else:
        copies.append(copy.deepcopy(layer))
    if way is by_parametrize:
        with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
            pickle.dumps(layer)
    else:
        copies.append(pickle.loads(pickle.dumps(layer)))
    loaded, _ = make_case(case)
    way(*part_of(loaded, name if way in PART_WAYS else name + ".weight"))
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(layer.state_dict())
    for other in (*copies, loaded):
        assert torch.equal(other(x), y)
        assert other.state_dict().keys() == layer.state_dict().keys()
        assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), layer.state_dict().values()))
        own = {p.data_ptr() for p in other.parameters()}
        assert not own & {p.data_ptr() for p in layer.parameters()}
        loss_of(other(x)).backward()
        assert all(p.grad is not None for p in other.parameters() if p.requires_grad)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        optimizer.step()
        assert not torch.equal(other(x), y)
    assert torch.equal(layer(x), y)


@pytest.mark.parametrize("way", COPIED + [by_module, by_lora], ids=lambda way: way.__name__)
def test_conversions(way):
    layer, x = make_case("gdn")
    way(*part_of(layer, "o_proj" if way in PART_WAYS else "o_proj.weight"))
    y = layer(x)
    assert_near(y, layer.double()(x.double()), 1e-4)
    assert_near(layer.float()(x), y, 1e-5)
    layer.train()
    assert all(module.training for module in layer.modules())


def test_shallow_copies_share_everything():
    layer, x = make("gdn"), make_input()
    other = copy.copy(layer)
    assert all(a is b for a, b in zip(layer.parameters(), other.parameters()))
    loss_of(other(x)).backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_copies_of_optimizers():
    layer = make("gdn")
    layer.v_proj = LoRA(layer.v_proj)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    other, other_optimizer = copy.deepcopy((layer, optimizer))
    own = {id(p) for p in other.parameters()}
    assert {id(p) for group in other_optimizer.param_groups for p in group["params"]} == own


def test_saving(tmp_path):
    model, tokens = make_model(), make_tokens()
    mixer, mlp = model.layers[1].mixer, model.layers[0].mlp
    base = mixer.v_proj
    mixer.v_proj = LoRA(base)
    with pytest.raises(TypeError, match=r"\[model\] layers.1.mixer.v_proj.base.weight is no weight .*; fold adapters"):
        model.save(tmp_path)
    mixer.v_proj = base
    prune.random_unstructured(mlp.up_proj, "weight", 0.5)
    with pytest.raises(TypeError, match=r"\[model\] layers.0.mlp.up_proj.weight is missing; .*prune.remove"):
        model.save(tmp_path)
    prune.remove(mlp.up_proj, "weight")
    parametrize.register_parametrization(model.head, "weight", Scale())
    with pytest.raises(TypeError, match=r"\[model\] head.parametrizations.* is no weight .*remove_parametrizations"):
        model.save(tmp_path)
    parametrize.remove_parametrizations(model.head, "weight")
    weight_norm(mlp.down_proj)
    with pytest.raises(TypeError, match=r"\[model\] layers.0.mlp.down_proj.weight is missing; .*remove_weight_norm"):
        model.save(tmp_path)
    remove_weight_norm(mlp.down_proj)
    model.norm.weight = nn.Parameter(model.norm.weight.detach() + 1)
    model.embed.register_forward_hook(lambda module, inputs, output: None)
    model.save(tmp_path)
    logits = model(tokens)
    assert torch.equal(ovq.CausalLM.load(tmp_path).eval()(tokens), logits)
    assert_near(ovq.LanguageModel.load(tmp_path).eval()(tokens), logits, 1e-5)
    assert (logits - make_model()(tokens)).abs().max() > 1e-3


def test_other_blocks_and_mixers():
    """Nothing is special about any part."""
    model, tokens = make_model(), make_tokens()
    model.layers[0].mixer = ovq.GatedDeltaNet(64, 2, key_dim=8, value_dim=8)
    model.layers.append(copy.deepcopy(model.layers[1]))
    y = model(tokens)
    first, state = model(tokens[:, :11], return_state=True)
    assert len(state) == 3 and "state" in state[0].tensors
    assert_near(torch.cat([first, model(tokens[:, 11:], state=state)[0]], 1), y, 1e-4)


def test_errors_of_replaced_parts_come_through():
    layer, x = make("ovq"), make_input()

    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    base, layer.v_proj = layer.v_proj, Broken()
    with pytest.raises(KeyError, match="mine"):
        layer(x)
    layer.v_proj = base
    assert torch.equal(layer(x), make("ovq")(x))


def test_threads_and_nested_layers():
    """Calls back into Python take its lock: they neither wait for each other for ever nor mix their replacements."""
    x = make_input()
    layers = [make("ovq").eval() for _ in range(4)]
    for i, layer in enumerate(layers):
        lora = layer.v_proj = LoRA(layer.v_proj)
        lora.up = nn.Sequential(lora.up, make("gdn").eval())  # a layer with replaced parts inside of a replaced part
        lora.up[1].q_proj = LoRA(lora.up[1].q_proj)
        nn.init.constant_(lora.up[1].q_proj.up.weight, 0.1 * i)
    expected, found = [layer(x) for layer in layers], [None] * 4

    def work(i):
        for _ in range(5):
            found[i] = layers[i](x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert not torch.equal(expected[0], expected[1])


def test_autocast_reaches_replaced_parts():
    layer, x = make("ovq"), make_input()
    layer.v_proj = LoRA(layer.v_proj)
    dtypes = []
    layer.v_proj.down.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert dtypes == [torch.bfloat16]
