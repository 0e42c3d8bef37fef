"""The language model of the layers computes what the engine in C++ does, and weights go both ways."""

import copy
import pickle

import pytest
import torch
from common import assert_near

import ovq

PRESETS = ["tiny/sw-ovq", "tiny/sw-vq", "tiny/gdn", "tiny/mamba2", "tiny/mesa-net", "tiny/gdn-ovq"]
every_preset = pytest.mark.parametrize("preset", PRESETS)


def make_pair(preset="tiny/sw-ovq", **changes):
    """A model in Python, and the engine with its weights."""
    torch.manual_seed(0)
    model = ovq.CausalLM.preset(preset, **{"vocab_size": 50, "num_hidden_layers": 2, **changes})
    return model, model.engine()


def make_tokens(batch=2, time=70, seed=1):
    return torch.randint(50, (batch, time), generator=torch.Generator().manual_seed(seed))


@every_preset
def test_weights_have_the_names_and_shapes_of_the_engine(preset):
    model, engine = make_pair(preset)
    own, theirs = model.state_dict(), engine.state_dict()
    assert {name: x.shape for name, x in own.items()} == {name: x.shape for name, x in theirs.items()}
    assert all(torch.equal(x, theirs[name]) for name, x in own.items())
    assert model.config == engine.config
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, p in engine.named_parameters() if p.requires_grad
    }


@every_preset
@pytest.mark.parametrize("training", [False, True])
def test_logits_and_gradients(preset, training):
    model, engine = make_pair(preset)
    tokens = make_tokens()
    results = []
    for network in (model.train(training), engine.train(training)):
        network.begin_step(3, 5)
        logits = network(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        if network.auxiliary_loss() is not None:
            loss = loss + network.auxiliary_loss()
        loss.backward()
        network.end_step()
        results.append((logits, {name: p.grad for name, p in network.named_parameters()}))
    (logits, gradients), (expected, expected_gradients) = results
    assert_near(logits, expected, 1e-5)
    for name, gradient in expected_gradients.items():
        assert (gradients[name] is None) == (gradient is None), name
        if gradient is not None:
            assert_near(gradients[name], gradient, 1e-4)
    for name, x in model.state_dict().items():
        assert_near(x.float(), engine.state_dict()[name].float(), 1e-4)


@every_preset
def test_states_and_packed_sequences(preset):
    model, engine = make_pair(preset)
    model.eval(), engine.eval()
    tokens = make_tokens()
    with torch.no_grad():
        expected = engine(tokens)
        first, state = model(tokens[:, :40], return_state=True)
        before = [one.clone() for one in state]
        second, after = model(tokens[:, 40:60], state=state)
        assert [one.position for one in state] == [one.position for one in before] == [40, 40]
        rest = [model.step(tokens[:, t : t + 1], after) for t in range(60, 70)]
        assert_near(torch.cat([first, second, *rest], 1), expected, 1e-4)
        assert_near(model.hidden(tokens), engine.hidden(tokens), 1e-4)
        one, offsets = tokens[:1], torch.tensor([0, 30, 70])
        packed = engine(one, cu_seqlens=offsets)
        assert_near(model(one, cu_seqlens=offsets), packed, 1e-4)
        logits, states = model(one, cu_seqlens=offsets, return_state=True)
        assert_near(logits, packed, 1e-4)
        assert [[layer.position for layer in state] for state in states] == [[30, 30], [40, 40]]
    assert model.state_bytes(1000) == engine.state_bytes(1000)


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize(
    "offsets, batch, message",
    [
        ([0, 3], 1, "cu_seqlens"),
        ([0, 7, 4, 10], 1, "cu_seqlens"),
        ([3, 10], 1, "cu_seqlens"),
        ([0], 1, "cu_seqlens"),
        ([0, 10], 2, "batch 2"),
    ],
)
def test_packed_sequences_with_states_are_checked(offsets, batch, message, continued):
    model, _ = make_pair("tiny/gdn")
    given = dict(state=[model.new_state() for _ in offsets[1:]]) if continued else dict(return_state=True)
    for options in ({}, given):
        with pytest.raises(ValueError, match=message):
            model(make_tokens(batch, 10), cu_seqlens=torch.tensor(offsets), **options)
    with pytest.raises(TypeError, match="cu_seqlens has dtype"):
        model(make_tokens(1, 10), cu_seqlens=torch.tensor([0.0, 10.0]), **given)


@every_preset
def test_no_packed_sequences(preset):
    model, _ = make_pair(preset)
    model.eval()
    for given in (dict(return_state=True), dict(state=[])):
        logits, states = model(make_tokens(1, 0), cu_seqlens=torch.tensor([0]), **given)
        assert logits.shape == (1, 0, 50) and states == []
    logits, states = model(make_tokens(1, 9), cu_seqlens=torch.tensor([0, 0, 9]), return_state=True)
    assert logits.shape == (1, 9, 50) and [[one.position for one in state] for state in states] == [[0, 0], [9, 9]]


@every_preset
def test_files(preset, tmp_path):
    model, _ = make_pair(preset)
    tokens = make_tokens()
    model.eval().save(tmp_path / "model")
    random = torch.get_rng_state()
    loaded, engine = ovq.CausalLM.load(tmp_path / "model"), ovq.LanguageModel.load(tmp_path / "model")
    copies = [loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    assert torch.equal(torch.get_rng_state(), random)
    for other in copies:
        assert torch.equal(other.eval()(tokens), model(tokens)) and other.config == model.config
    engine.save(tmp_path / "back")
    assert torch.equal(ovq.CausalLM.load(tmp_path / "back").eval()(tokens), model(tokens))
    torch.save(model.state_dict(), tmp_path / "weights")
    engine.load_state_dict(torch.load(tmp_path / "weights"))


def test_files_and_copies_keep_the_tokenizer(tmp_path):
    _, engine = make_pair(vocab_size=256)
    engine.set_tokenizer("bytes")
    engine.save(tmp_path)
    model = ovq.CausalLM.load(tmp_path)
    for i, other in enumerate((model, copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)))):
        other.save(tmp_path / str(i))
        for saved in (other.engine(), ovq.LanguageModel.load(tmp_path / str(i))):
            assert saved.encode("whale") == engine.encode("whale")
    model.save(tmp_path)  # where it came from
    assert ovq.CausalLM.load(tmp_path).engine().encode("whale") == engine.encode("whale")
    make_pair(vocab_size=256)[0].save(tmp_path)
    with pytest.raises(ValueError, match="no tokenizer"):
        ovq.LanguageModel.load(tmp_path).encode("whale")


@pytest.mark.parametrize("initializer", ["normal", "fan_in", "copying"])
def test_initializers(initializer):
    model, _ = make_pair("tiny/gdn-ovq", initializer=initializer, hidden_size=256, vocab_size=300)
    torch.manual_seed(0)
    engine = ovq.LanguageModel({**model.config})
    for name, expected in engine.named_parameters():
        if expected.numel() >= 1000:
            found = dict(model.named_parameters())[name]
            assert 0.9 < found.std() / expected.std() < 1.1, name
    if initializer == "copying":
        mixer = model.layers[1].mixer
        ratio = mixer.o_proj.weight / mixer.v_proj.weight.T
        assert_near(ratio, ratio[0, 0].expand_as(ratio), 1e-4)
        expected = engine.get_parameter("layers.1.mixer.o_proj.weight") / engine.get_parameter(
            "layers.1.mixer.v_proj.weight"
        ).T
        assert_near(ratio[0, 0], expected[0, 0], 1e-4)


def test_training_then_writing():
    torch.manual_seed(0)
    model = ovq.CausalLM.preset("tiny/gdn-ovq", vocab_size=50, num_hidden_layers=2)
    tokens = torch.arange(5).repeat(10)[None]  # 0 1 2 3 4 0 1 ...
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    assert loss.item() < 0.3
    assert model.engine().generate([0, 1, 2, 3, 4, 0, 1], tokens=10) == [2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_centroids_may_change():
    model, engine = make_pair()
    model.set_centroids(8)
    engine.set_centroids(8)
    assert model.config == engine.config and model.layers[1].mixer.options["centroids"] == 8
    for wrong in (-1, 0, 2**63):
        with pytest.raises(ValueError, match="centroids"):
            model.set_centroids(wrong)
    assert model.config == engine.config and model.layers[1].mixer.options["centroids"] == 8
    assert_near(model(make_tokens()), engine(make_tokens()), 1e-4)


def test_errors(tmp_path):
    model, _ = make_pair()
    tokens = make_tokens()
    with pytest.raises(ValueError, match="unknown field"):
        make_pair(depth=3)
    with pytest.raises(ValueError, match="vocab_size is 0; must be"):
        make_pair(vocab_size=0)
    with pytest.raises(ValueError, match="mixer in pattern"):
        make_pair(pattern="sw,gdn")
    with pytest.raises(ValueError, match="tokens has 1 dimensions; must have 2"):
        model(tokens[0])
    with pytest.raises(ValueError, match="tokens has 50; the vocabulary has 50"):
        model(torch.full((1, 3), 50))
    with pytest.raises(TypeError, match=r"\[model\] tokens has dtype torch.float32; must be int64 or int32"):
        model(tokens.float())
    with pytest.raises(ValueError, match="state has 3 layers; must have 2"):
        model(tokens, state=make_pair(num_hidden_layers=3)[0].new_state())
    with pytest.raises(ValueError, match="that of another mixer"):
        model(tokens, state=make_pair("tiny/gdn")[0](tokens, return_state=True)[1])
    with pytest.raises(TypeError, match="must be a list of MixerStates, one per layer"):
        model.step(tokens, ovq.ModelState())
    states = model.new_state()
    states[0].position = 3
    with pytest.raises(ValueError, match=r"layers have read \[0, 3\] tokens; must have read the same number"):
        model.step(tokens, states)
    with pytest.raises(FileNotFoundError):
        ovq.CausalLM.load(tmp_path / "missing")


def test_bfloat16_states():
    model, _ = make_pair()
    model.eval()
    tokens = make_tokens()
    with torch.no_grad():
        logits = model(tokens)
        state = model.new_state(torch.bfloat16)
        near = torch.cat([model.step(tokens[:, :60], state), model.step(tokens[:, 60:], state)], 1)
    assert state[0].tensors["keys"].dtype == state[1].keys.dtype == torch.bfloat16
    assert 0 < (near - logits).norm() < 0.02 * logits.norm()


@pytest.mark.parametrize("value_shift", [True, False])
def test_a_step_that_fails_moves_no_layer(value_shift):
    mixers = {"gdn": dict(type="gdn", heads=2), "ovq": dict(type="ovq", heads=2, value_shift=value_shift)}
    model, _ = make_pair("tiny/gdn-ovq", mixers=mixers)
    tokens = make_tokens()
    _, state = model.eval()(tokens, return_state=True)
    _, small = model(tokens[:1], return_state=True)
    mixers["ovq"]["heads"] = 4
    _, other = make_pair("tiny/gdn-ovq", mixers=mixers)[0](tokens, return_state=True)
    for wrong, message in (([state[0], small[1]], "batch 1; .* has batch 2"), ([state[0], other[1]], "another mixer")):
        before = [one.clone() for one in wrong]
        with pytest.raises(ValueError, match=message):
            model.step(tokens[:, :1], wrong)
        for one, was in zip(wrong, before):
            assert one.position == was.position == 70
            assert all(torch.equal(x, was.tensors[name]) for name, x in one.tensors.items())
    assert_near(model.step(tokens[:, :1], state), model(torch.cat([tokens, tokens[:, :1]], 1))[:, -1:], 1e-4)
