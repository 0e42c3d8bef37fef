"""Bad arguments are a ValueError or TypeError that names the op and says what was expected."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from test_language_model import make, make_tokens, text_model

import ovq

DOCS = Path(__file__).resolve().parents[2] / "docs"


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    "prompt, kind, expected",
    [
        ([1.5], TypeError, "prompt has 1.5; must be integers"),
        ([True], TypeError, "prompt has True; must be integers"),
        (["a"], TypeError, "prompt has 'a'; must be integers"),
        (None, TypeError, "prompt is a NoneType; must be"),
        (5, TypeError, "prompt is a int; must be"),
        (torch.ones(3), TypeError, "prompt has dtype torch.float32; must be an integer one"),
        (torch.ones(2, 3, dtype=torch.long), ValueError, "prompt has shape [2, 3]; must be [time], or [1, time]"),
        ([256], ValueError, "prompt has token 256; the vocabulary has 256"),
        ([-1], ValueError, "prompt has token -1; the vocabulary has 256"),
        ([2**63], ValueError, "prompt has token 9223372036854775808"),
        ("\ud800", ValueError, "prompt has a lone surrogate at 0; must be valid Unicode"),
    ],
)
def test_prompts(prompt, kind, expected):
    model = text_model()
    assert f"[generate] {expected}" in message(lambda: model.generate(prompt, tokens=1), kind)
    assert f"[generate] {expected}" in message(lambda: model.generate(prompt, tokens=1, stream=True), kind)


def test_a_batch_of_one_prompt():
    model, tokens = make(), make_tokens(1, 9)
    assert model.generate(tokens, tokens=4) == model.generate(tokens[0], tokens=4)
    assert model.generate(list(tokens[0]), tokens=4) == model.generate(tokens[0], tokens=4)


def test_generation_options():
    model = text_model()
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        for value in (math.nan, math.inf, -math.inf):
            text = message(lambda: model.generate([1], **{name: value}), ValueError)
            assert text == f"[generate] {name} is {value}; must be finite"
    assert "[generate] temperature is a Tensor" in message(
        lambda: model.generate([1], temperature=torch.ones(())), TypeError
    )
    assert "[generate] stop is a int; must be a text" in message(lambda: model.generate("a", stop=[3]), TypeError)
    assert "[generate] stop is a int; must be a text" in message(lambda: model.generate("a", stop=3), TypeError)
    assert "[generate] stop has a lone surrogate" in message(lambda: model.generate("a", stop="\udfff"), ValueError)


def test_text():
    model = text_model()
    assert "[encode] text is a int; must be a text" in message(lambda: model.encode(5), TypeError)
    assert "[encode] text has a lone surrogate at 1" in message(lambda: model.encode("a\ud800"), ValueError)
    assert "[decode] tokens is a str; must be" in message(lambda: model.decode("abc"), TypeError)
    assert "[decode] tokens has 1.5; must be integers" in message(lambda: model.decode([1.5]), TypeError)
    for token in (-1, 256, 2**32 + 97):
        expected = f"[decode] tokens has {token}; the vocabulary has 256"
        assert message(lambda: model.decode([token]), ValueError) == expected
    assert model.decode(torch.tensor([[97, 98]])) == "ab"


@pytest.mark.parametrize("token", [50, -1, 2**40])
def test_tokens_beyond_the_vocabulary(token):
    model, tokens = make(), make_tokens(1, 5)
    state = model(tokens, return_state=True)[1]
    tokens[0, 2] = token
    for call in (
        lambda: model(tokens),
        lambda: model.hidden(tokens),
        lambda: model(tokens, state=state),
        lambda: model.step(tokens, state),
        lambda: model(tokens, cu_seqlens=torch.tensor([0, 2, 5])),
    ):
        assert message(call, ValueError) == f"[model] tokens has {token}; the vocabulary has 50"
    assert state.position == 5


def test_none_and_others():
    layer, model, x = ovq.OVQAttention(8, 1), make(), torch.randn(1, 3, 8)
    state = layer(x, return_state=True)[1]
    for call in (lambda: layer(None), lambda: layer(None, state=state), lambda: layer.step(None, state)):
        assert message(call, TypeError) == "[mixer] x is a NoneType; must be a tensor"
    for call in (lambda: model(None), lambda: model.step(None, ovq.ModelState()), lambda: model.hidden(None)):
        assert re.match(r"\[model\] .* is None; must be a tensor", message(call, TypeError))
    q = torch.randn(1, 3, 1, 8)
    assert message(lambda: ovq.attention(q, None, q, 1.0), TypeError) == "[attention] k is None; must be a tensor"
    assert "[attention]" in message(lambda: ovq.attention(q, q, q, 1.0, window="x"), TypeError)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1])
def test_integers_of_more_than_64_bits(number):
    q, layer = torch.randn(1, 3, 1, 8), ovq.OVQAttention(8, 1)
    for op, call in {
        "ovq_attention] chunk": lambda: ovq.ovq_attention(q, q, q, 1.0, chunk=number),
        "ovq_attention] seed": lambda: ovq.ovq_attention(q, q, q, 1.0, seed=number),
        "attention] query_offset": lambda: ovq.attention(q, q, q, 1.0, query_offset=number),
        "mesa] iterations": lambda: ovq.mesa(q, q, q, q[..., 0], q[..., 0], q[0, 0], iterations=number),
        "config] centroids": lambda: layer.set_centroids(number),
        "config] chunk": lambda: ovq.OVQAttention(8, 1, chunk=number),
    }.items():
        assert f"[{op}" in message(call, ValueError)


def test_non_finite_options_of_layers():
    for value in (math.nan, math.inf):
        text = message(lambda: ovq.OVQAttention(8, 1, rope=True, rope_base=value), ValueError)
        assert text == f"[config] rope_base is {value}; must be finite"
    with pytest.raises(ValueError, match=r"\[config\] mixers is .*finite"):
        make(mixers={"ovq": {"rope_base": math.nan}})


@pytest.mark.parametrize("beta", [3e38, -3e38, 1.01e35, 1e300])
def test_beta_has_a_range(beta):
    q = torch.randn(1, 5, 2, 4)
    for op in (ovq.ovq_attention, ovq.attention):
        for dtype in (torch.float32, torch.float64):
            x = q.to(dtype)
            for b in (beta, torch.tensor([1.0, beta], dtype=torch.float64)):
                text = message(lambda: op(x, x, x, b), ValueError)
                assert re.match(r"\[\w+\] beta\[[01]\] is .*; must be finite, and within -1e\+35 and 1e\+35", text)
    for make_layer in (ovq.OVQAttention, ovq.Attention):
        assert "beta_init is " in message(lambda: make_layer(8, 2, beta_init=beta), ValueError)
        layer = make_layer(8, 2)
        torch.nn.init.constant_(layer.b, 2e35)
        assert "beta[0] is " in message(lambda: layer(torch.randn(1, 5, 8)), ValueError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_in_range_is_finite(dtype):
    torch.manual_seed(0)
    q, k = (ovq.l2_norm(torch.randn(1, 70, 2, 8, dtype=dtype)) for _ in range(2))
    v, options = torch.randn(1, 70, 2, 8, dtype=dtype), dict(chunk=8, centroids=6)
    for beta in (1e35, -1e35):
        assert ovq.ovq_attention(q, k, v, beta, **options).isfinite().all()
        assert ovq.attention(q, k, v, beta).isfinite().all()
    for weight in (1e30, 1e-30):
        w = torch.full((1, 70, 2), weight, dtype=dtype)
        assert ovq.ovq_attention(q, k, v, 2.0, weights=w, **options).isfinite().all()
    for weight in (1e38, 2e30, math.inf, math.nan, 0.0):
        w[0, 33, 1] = weight
        text = message(lambda: ovq.ovq_attention(q, k, v, 2.0, weights=w, **options), ValueError)
        assert "[ovq_attention] weights" in text and "positive and finite, at most 1e+30" in text


LAYERS = {
    "Attention": lambda: ovq.Attention(16, 2),
    "Attention with all": lambda: ovq.Attention(16, 2, window=3, rope=True, convolution=True, value_shift=True),
    "OVQAttention": lambda: ovq.OVQAttention(16, 2, chunk=2, rope=True, weighted_writes=True, value_shift=True),
    "GatedDeltaNet": lambda: ovq.GatedDeltaNet(16, 2),
    "Mamba2": lambda: ovq.Mamba2(16, head_dim=16),
    "MesaNet": lambda: ovq.MesaNet(16, 2),
    "LinearAttention": lambda: ovq.LinearAttention(16, 2),
    "VQAttention": lambda: ovq.VQAttention(16, 2),
    "model": lambda: make("tiny/sw-ovq"),
    "model with gates": lambda: make("tiny/gdn-ovq"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_halves(name):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = make_tokens(1, 9) if "model" in name else torch.randn(1, 9, 16)

    def given(dtype):
        return x.to(dtype) if x.is_floating_point() else x

    expected = layer.eval()(x)
    layer.half()
    y = layer(given(torch.half))
    assert y.dtype == torch.half
    assert (y - expected).abs().max() <= 1e-2 * expected.abs().max()
    with torch.no_grad():
        _, state = layer(given(torch.half)[:, :5], return_state=True)
        assert (layer.step(given(torch.half)[:, 5:6], state) - expected[:, 5:6]).abs().max() <= 1e-2 * expected.abs().max()
    layer.train()(given(torch.half)).float().square().mean().backward()
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    assert gradients and all(g.isfinite().all() and g.dtype == torch.half for g in gradients)


def test_signatures_show_defaults():
    parameters = inspect.signature(ovq.OVQAttention).parameters
    assert (parameters["chunk"].default, parameters["centroids"].default) == (128, 2048)
    assert inspect.signature(ovq.LanguageModel.generate).parameters["tokens"].default == 64
    q = torch.randn(1, 9, 1, 4)
    state = ovq.ovq_attention(q, q, q, 1.0, chunk=2, centroids=3, return_state=True)[1]
    assert ovq.ovq_attention(q, q, q, 1.0, state=state, return_state=True)[1].options["chunk"] == 2


def test_required_options_have_no_default():
    for make_layer in (ovq.Attention, ovq.OVQAttention, ovq.GatedDeltaNet, ovq.MesaNet, ovq.LinearAttention):
        heads = inspect.signature(make_layer).parameters["heads"]
        assert heads.default is inspect.Parameter.empty
        assert re.search(r"^ +heads: ", make_layer.__doc__, re.M) and "heads (1)" not in make_layer.__doc__
    for make_layer in (ovq.OVQAttention, ovq.Mamba2):
        for name, parameter in inspect.signature(make_layer).parameters.items():
            shown = re.search(rf"^ *{name} \((.*?)\): ", make_layer.__doc__, re.M)
            assert shown is None or shown.group(1) == repr(parameter.default)


def test_calls_in_the_documentation_can_be_made():
    """What the table of ops shows by position may be given by position, and is named as in the signature."""
    table = re.findall(r"`(\w+)\(([^)`]*)\)`", "\n".join(
        line.split("|")[1] for line in (DOCS / "python.md").read_text().splitlines() if line.startswith("| `")
    ))
    shown = {name: arguments for name, arguments in table if hasattr(ovq, name)}
    assert len(shown) >= 8
    for name, arguments in shown.items():
        keyword, own = False, inspect.signature(getattr(ovq, name)).parameters
        for argument in (a.strip() for a in arguments.split(",")):
            if argument == "*":
                keyword = True
                continue
            argument, _, default = argument.partition("=")
            parameter = own[argument]
            assert (parameter.kind is parameter.KEYWORD_ONLY) == keyword, f"{name}({argument})"
            assert default == ("" if parameter.default is parameter.empty else repr(parameter.default))
