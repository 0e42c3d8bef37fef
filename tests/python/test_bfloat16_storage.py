"""Weights and states in bfloat16, computed in float32."""

import pickle

import pytest
import torch

import ovq


def make(name="tiny/sw-ovq"):
    torch.manual_seed(0)
    return ovq.LanguageModel.preset(name, vocab_size=50, num_hidden_layers=2).eval()


def make_tokens(time=300):
    return torch.randint(50, (1, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["tiny/sw-ovq", "tiny/gdn", "tiny/sw-vq"])
def test_weights_are_rounded(name, tmp_path):
    model, rounded = make(name), make(name)
    bytes_before = model.weight_bytes
    assert model.bfloat16_weights() is model
    assert bytes_before / 2 <= model.weight_bytes < 0.6 * bytes_before
    with torch.no_grad():
        for name, weight in rounded.named_parameters():
            if dict(model.named_parameters())[name].dtype == torch.bfloat16:
                weight.copy_(weight.bfloat16().float())
        logits = model(make_tokens())
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, rounded(make_tokens()), rtol=1e-4, atol=1e-4)
        model.save(tmp_path)
        loaded = ovq.LanguageModel.load(tmp_path).eval()  # float32 again, of the same numbers
        torch.testing.assert_close(loaded(make_tokens()), logits, rtol=1e-4, atol=1e-4)
    assert model.generate([1, 2, 3], tokens=20) == rounded.generate([1, 2, 3], tokens=20)
    assert list(model.generate([1, 2, 3], tokens=5, stream=True)) == model.generate([1, 2, 3], tokens=5)


def test_replaced_parameters_are_refused():
    model = make()
    part = model.get_submodule("layers.0.mixer.q_proj")
    own, part.weight = part.weight, torch.nn.Parameter(torch.randn_like(part.weight))
    for call in (model.bfloat16_weights, lambda: model(make_tokens()), lambda: model.generate([1, 2])):
        with pytest.raises(TypeError, match=r"\[model\] layers.0.mixer.q_proj.weight was replaced; .* use ovq.CausalLM"):
            call()
    part.weight = own
    held = [*model.bfloat16_weights().parameters(), *model.buffers()]
    assert part.weight.dtype == torch.bfloat16
    assert model.weight_bytes == sum(x.numel() * x.element_size() for x in held)


def test_no_gradients():
    model = make().bfloat16_weights()
    with pytest.raises(ValueError, match="weights are bfloat16, which is for inference"):
        model(make_tokens())
    with pytest.raises(ValueError, match="stored as bfloat16, which is for inference"):
        make()(make_tokens(), state=ovq.ModelState(dtype=torch.bfloat16))


def test_states(tmp_path):
    model = make()
    wide, narrow = ovq.ModelState(), ovq.ModelState(dtype=torch.bfloat16)
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    tokens = make_tokens()[0]
    for state in (wide, narrow):
        model.generate(tokens, tokens=1, state=state, piece=300)
    assert narrow.nbytes == model.state_bytes(300, torch.bfloat16) < model.state_bytes(300) == wide.nbytes
    assert "dtype=torch.bfloat16" in repr(narrow) and "dtype" not in repr(wide)
    one = torch.tensor([[7]])
    copies = [narrow.clone(), pickle.loads(pickle.dumps(narrow))]
    narrow.save(tmp_path / "state")
    copies.append(ovq.ModelState.load(tmp_path / "state"))
    expected = model.step(one, narrow)
    for copy in copies:
        assert copy.dtype == torch.bfloat16
        assert torch.equal(model.step(one, copy), expected)
    converted = wide.to(torch.bfloat16)
    near = model.step(one, converted)
    exact = model.step(one, wide)
    assert converted.nbytes < wide.nbytes and not torch.equal(near, exact)
    assert (near - exact).norm() < 0.02 * exact.norm()
    assert model.step(one, narrow.to(torch.float32)).dtype == torch.float32
    with pytest.raises(ValueError, match="dtype is torch.float16; must be torch.float32 or torch.bfloat16"):
        ovq.ModelState(dtype=torch.float16)


def test_a_layer():
    torch.manual_seed(0)
    layer = ovq.Attention(dim=32, heads=2).eval()
    state = ovq.MixerState(dtype=torch.bfloat16)
    with torch.no_grad():
        x = torch.randn(1, 40, 32)
        y = layer.step(x, state)
        assert state.tensors["keys"].dtype == torch.bfloat16
        assert (y - layer(x)).norm() < 0.02 * y.norm()
