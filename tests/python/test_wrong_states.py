"""States that belong to another layer or model are refused, and nothing has changed then."""

import itertools
import json

import pytest
import torch
from test_mixers import MIXERS, make, make_input, same_state

import ovq

CHANGES = {
    "attention": [dict(heads=4), dict(heads=2, kv_heads=1), dict(head_dim=4), dict(rope=False), dict(rope_base=100.0)],
    "window": [dict(window=7), dict(window=64), dict(window=None), dict(kv_heads=2)],
    "ovq": [dict(heads=4), dict(chunk=8), dict(rope=True), dict(value_shift=True)]
    + [dict(convolution=True), dict(rate=0.1), dict(growth="all"), dict(new_centroids="random")],
    "ovq more": [dict(rope=False), dict(value_shift=False), dict(convolution=False), dict(normalize=True)],
    "vq": [dict(codewords=6), dict(chunk=8), dict(heads=4)],
    "gdn": [dict(heads=4), dict(key_dim=8), dict(value_dim=4), dict(conv_width=3)],
    "mamba2": [dict(head_dim=8), dict(state=8), dict(groups=1), dict(conv_width=3), dict(expand=2)],
    "mesa": [dict(heads=4), dict(key_dim=8), dict(value_dim=4), dict(conv_width=3)],
    "linear": [dict(heads=4), dict(key_dim=8), dict(value_dim=4), dict(conv_width=3)],
}
# What a state does not depend on.
HARMLESS = {
    "attention": dict(beta_init=2.0),
    "ovq": dict(centroids=9, beta_init=2.0),
    "vq": dict(form="linear", noise=0.1),
    "mesa": dict(iterations=20),
}


def state_of(name):
    return make(name).eval()(make_input(), return_state=True)[1]


def check_refused(layer, x, state):
    before = state.clone()
    with torch.no_grad():
        with pytest.raises(ValueError, match="state is that of another mixer"):
            layer(x, state=state)
        with pytest.raises(ValueError, match="state is that of another mixer"):
            layer.step(x[:, :1], state)
    assert same_state(state, before)


@pytest.mark.parametrize("name, other", [pair for pair in itertools.permutations(MIXERS, 2) if "vq ema" not in pair])
def test_of_another_mixer(name, other):
    check_refused(make(other).eval(), make_input(), state_of(name))


@pytest.mark.parametrize("name, change", [(name, change) for name in CHANGES for change in CHANGES[name]])
def test_of_other_options(name, change):
    check_refused(make(name, **change).eval(), make_input(), state_of(name))


@pytest.mark.parametrize("name", HARMLESS)
def test_options_that_states_do_not_depend_on(name):
    other, x, state = make(name, **HARMLESS[name]).eval(), make_input(), state_of(name)
    assert other(x, state=state)[1].position == 2 * x.shape[1]
    other.step(x[:, :1], state)


def test_the_message_names_both():
    with pytest.raises(ValueError, match=r"\[mixer\] state is that of another mixer, linear heads=2 .*; must be gdn "):
        make("gdn")(make_input(), state=state_of("linear"))


@pytest.mark.parametrize("name", CHANGES)
def test_of_another_batch(name):
    layer, x, state = make(name).eval(), make_input(batch=3), state_of(name)
    with torch.no_grad():
        for call in (lambda: layer(x, state=state), lambda: layer.step(x, state)):
            with pytest.raises(ValueError, match="batch 2"):
                call()


@pytest.mark.parametrize("name", CHANGES)
def test_stored_states_know_their_layer(name, tmp_path):
    state, x = state_of(name), make_input()
    state.save(tmp_path / "state")
    loaded = ovq.MixerState.load(tmp_path / "state")
    check_refused(make(name, **CHANGES[name][0]).eval(), x, loaded)
    with torch.no_grad():
        assert torch.equal(make(name).eval().step(x, loaded), make(name).eval().step(x, state))


@pytest.mark.parametrize("name", CHANGES)
def test_files_from_before_layouts_were_stored(name, tmp_path):
    path, x = tmp_path / "state", make_input()
    state = state_of(name)
    state.save(path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header["__metadata__"].pop("layers.0.layout")
    header["__metadata__"] = {k: v for k, v in header["__metadata__"].items() if k.startswith("layers") or "state" in k}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    loaded = ovq.MixerState.load(path)
    with torch.no_grad():
        assert torch.equal(make(name).eval().step(x, loaded), make(name).eval().step(x, state))


def test_of_another_model():
    def make_model(preset="tiny/sw-ovq", **changes):
        torch.manual_seed(0)
        return ovq.LanguageModel.preset(preset, vocab_size=50, num_hidden_layers=2, **changes).eval()

    model, tokens = make_model(), torch.randint(50, (2, 30))
    config = model.config
    wider = json.loads(json.dumps(config["mixers"]))
    wider["sw"]["window"] += 1
    finer = json.loads(json.dumps(config["mixers"]))
    finer["ovq"]["chunk"] *= 2
    with torch.no_grad():
        for other in (make_model("tiny/gdn"), make_model(mixers=wider), make_model(mixers=finer)):
            state = other(tokens, return_state=True)[1]
            first = {name: x.clone() for name, x in state.layers[0].items()}
            for call in (lambda: model(tokens, state=state), lambda: model.step(tokens, state)):
                with pytest.raises(ValueError, match=r"\[mixer\] state is that of another mixer"):
                    call()
            with pytest.raises(ValueError, match="another mixer"):
                model.generate([1], state=other(tokens[:1], return_state=True)[1])
            # The layers that do fit have not moved on either.
            assert state.position == 30 and all(torch.equal(x, first[name]) for name, x in state.layers[0].items())
        with pytest.raises(ValueError, match="batch 2"):
            model.step(tokens[:1], model(tokens, return_state=True)[1])


def test_files_of_the_other_kind(tmp_path):
    mixer, model = ovq.GatedDeltaNet(8, 2), ovq.LanguageModel.preset("tiny/gdn", vocab_size=9, num_hidden_layers=1)
    _, state = mixer(torch.randn(1, 5, 8), return_state=True)
    _, model_state = model(torch.arange(5)[None], return_state=True)
    state.save(tmp_path / "mixer")
    model_state.save(tmp_path / "model")
    with pytest.raises(ValueError, match="mixer holds the state of a mixer; must be that of a model"):
        ovq.ModelState.load(tmp_path / "mixer")
    with pytest.raises(ValueError, match="model holds the state of a model; must be that of a mixer"):
        ovq.MixerState.load(tmp_path / "model")
    assert ovq.MixerState.load(tmp_path / "mixer").position == ovq.ModelState.load(tmp_path / "model").position == 5
    _, dictionary = ovq.ovq_attention(*[torch.randn(1, 5, 1, 8)] * 3, 1.0, return_state=True)
    dictionary.save(tmp_path / "dictionary")
    for kind in (ovq.ModelState, ovq.MixerState):
        with pytest.raises(ValueError, match="dictionary"):
            kind.load(tmp_path / "dictionary")
    for name in ("mixer", "model"):
        with pytest.raises(ValueError, match=name):
            ovq.State.load(tmp_path / name)


def test_files_of_models_from_before_they_said_so(tmp_path):
    model = ovq.LanguageModel.preset("tiny/gdn", vocab_size=9, num_hidden_layers=2)
    path = tmp_path / "state"
    model(torch.arange(5)[None], return_state=True)[1].save(path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = {k: v for k, v in header["__metadata__"].items() if k[:6] == "layers" or k[-7:] == "_layers"}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert ovq.ModelState.load(path).position == 5
    with pytest.raises(ValueError, match="holds the state of a model; must be that of a mixer"):
        ovq.MixerState.load(path)
