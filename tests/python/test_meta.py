"""Layers without values: device="meta"."""

import copy

import pytest
import torch
from test_mixers import DIM, MIXERS, make, make_input

import ovq


def make_meta(name):
    kind, options = MIXERS[name]
    return kind(DIM, **options, device="meta")


@pytest.mark.parametrize("name", MIXERS)
def test_shapes(name):
    layer = make_meta(name).eval()
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    assert all(x.is_meta for x in tensors.values())
    plain = make(name).state_dict()
    assert {n: x.shape for n, x in tensors.items()} == {n: x.shape for n, x in plain.items()}
    x = torch.empty(2, 9, DIM, device="meta")
    for training in (False, True, True):
        y = layer.train(training)(x)
        assert y.is_meta and y.shape == (2, 9, DIM)
    if not name.startswith("vq"):
        y, state = layer.eval()(x, return_state=True)
        assert y.is_meta and state.position == 9 and layer.step(x[:, :1], state).shape == (2, 1, DIM)


@pytest.mark.parametrize("name", MIXERS)
def test_values_afterwards(name):
    plain, x = make(name).eval(), make_input()
    layer = make_meta(name).eval().to_empty(device="cpu")
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer(x), plain(x))
    layer(x).sum().backward()
    plain(x).sum().backward()
    for p, q in zip(layer.parameters(), plain.parameters()):
        assert (p.grad is None) == (q.grad is None) and (p.grad is None or torch.equal(p.grad, q.grad))
    other = copy.deepcopy(make_meta(name)).eval().to_empty(device="cpu")
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other(x), plain(x))


def test_wrong_uses(tmp_path):
    layer = make_meta("ovq")
    with pytest.raises(TypeError, match=r"\[projection\] x is on cpu; must be on the weight's meta"):
        layer(make_input())
    with pytest.raises(TypeError, match=r"\[projection\] x is on meta; must be on the weight's cpu"):
        make("ovq")(torch.empty(1, 3, DIM, device="meta"))
    model = ovq.CausalLM.preset("tiny/gdn", vocab_size=50, num_hidden_layers=2).to("meta")
    assert model(torch.zeros(1, 3, dtype=torch.long, device="meta")).shape == (1, 3, 50)
    with pytest.raises(TypeError, match=r"\[model\] tokens is on cpu; must be on the weight's meta"):
        model(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"\[model\] the engine runs on the CPU, not on meta; ovq.CausalLM does"):
        ovq.LanguageModel.preset("tiny/gdn", vocab_size=50, num_hidden_layers=2).to("meta")
    with pytest.raises((NotImplementedError, RuntimeError), match="[Mm]eta"):
        model.save(tmp_path)
