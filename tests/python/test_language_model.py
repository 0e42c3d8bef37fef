"""Language models: parameters shared with C++, files, states, generation."""

import copy
import json
import pickle

import pytest
import torch
from common import assert_near

import ovq


def make(name="tiny/sw-ovq", **changes):
    torch.manual_seed(0)
    return ovq.LanguageModel.preset(name, **{"vocab_size": 50, "num_hidden_layers": 2, **changes})


def make_tokens(batch=2, time=70):
    return torch.randint(50, (batch, time), generator=torch.Generator().manual_seed(1))


def test_presets():
    names = ovq.LanguageModel.presets()
    assert "tiny/gdn-ovq" in names and "paper/recall-sw-ovq" in names
    with pytest.raises(ValueError, match='did you mean "tiny/sw-ovq"'):
        ovq.LanguageModel.preset("tiny/sw-ovqq")
    assert make().config["vocab_size"] == 50


@pytest.mark.parametrize("name", ["tiny/sw-ovq", "tiny/sw-vq", "tiny/gdn", "tiny/mamba2", "tiny/mesa-net"])
def test_states_and_files(name, tmp_path):
    model, tokens = make(name).eval(), make_tokens()
    with torch.no_grad():
        logits = model(tokens)
        first, state = model(tokens[:, :40], return_state=True)
        second, after = model(tokens[:, 40:60], state=state)
        assert (state.position, after.position) == (40, 60)
        rest = [model.step(tokens[:, t : t + 1], after) for t in range(60, 70)]
        model.save(tmp_path / "model")
        after.save(tmp_path / "state")
        loaded = ovq.LanguageModel.load(tmp_path / "model").eval()
        same = [loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        next_logits = model.step(tokens[:, :1], after.clone())
        for other in same:
            assert torch.equal(other(tokens), logits) and other.config == model.config
            for state in (ovq.ModelState.load(tmp_path / "state"), pickle.loads(pickle.dumps(after))):
                assert torch.equal(other.step(tokens[:, :1], state), next_logits)
    assert logits.shape == (2, 70, 50)
    assert_near(torch.cat([first, second, *rest], 1), logits, 1e-4)


def test_names_are_those_of_the_file(tmp_path):
    model = make("tiny/sw-vq")
    model.save(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    state_dict = model.state_dict()
    assert {name: entry["shape"] for name, entry in header.items()} == {n: list(t.shape) for n, t in state_dict.items()}
    assert "layers.1.mixer.quantizer.codebook" in state_dict and "embed.weight" in state_dict
    other = make("tiny/sw-vq")
    other.load_state_dict(state_dict)
    assert "pattern='sw,vq'" in repr(model)


def test_packed():
    model, tokens = make().eval(), make_tokens(batch=1)
    with torch.no_grad():
        offsets = torch.tensor([0, 30, 70])
        alone = torch.cat([model(tokens[:, :30]), model(tokens[:, 30:])], 1)
        logits, states = model(tokens, cu_seqlens=offsets, return_state=True)
        assert_near(model(tokens, cu_seqlens=offsets), alone, 1e-4)
        assert_near(model.hidden(tokens, cu_seqlens=offsets) @ model.head.weight.T, alone, 1e-4)
    assert_near(logits, alone, 1e-4)
    assert [s.position for s in states] == [30, 40]


def test_training_in_python():
    model = make("tiny/gdn-ovq")
    tokens = torch.arange(5).repeat(10)[None]  # 0 1 2 3 4 0 1 ...
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(25):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    assert loss.item() < 0.3
    assert model.generate([0, 1, 2, 3, 4, 0, 1], tokens=10) == [2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_generate():
    model = make()
    prompt = make_tokens(1, 40)[0]
    first = model.generate(prompt, tokens=20)
    assert first == model.generate(prompt.tolist(), tokens=20, piece=7) and len(first) == 20
    assert model.training  # as it was

    def draw(seed):
        return model.generate(prompt, tokens=20, temperature=1.0, top_k=10, seed=seed)

    assert draw(1) == draw(1) != draw(2)
    state = ovq.ModelState()
    parts = model.generate(prompt, tokens=8, state=state)
    assert state.position == 47
    parts += model.generate(parts[-1:], tokens=12, state=state)
    assert parts == first


def test_memory_is_constant():
    model = make()
    model.set_centroids(8)
    assert model.config["mixers"]["ovq"]["centroids"] == 8
    state = ovq.ModelState()
    token, sizes = [1], []
    for _ in range(8):
        token = model.generate(token, tokens=64, state=state)[-1:]
        sizes.append(state.nbytes)
    assert sizes[-1] == sizes[3] and state.position == 8 * 64
    assert model.state_bytes(10**6) == model.state_bytes(10**7)
    dictionary = state.dictionaries[1]
    assert dictionary.keys.shape[2] <= 8 and state.dictionaries[0] is None and "keys" in state.layers[0]


def test_frozen():
    model, tokens = make(), make_tokens()
    logits = model.eval()(tokens)
    model.requires_grad_(False)
    assert not model(tokens).requires_grad
    frozen = copy.deepcopy(model)
    assert not any(p.requires_grad for p in frozen.parameters())
    assert torch.equal(frozen(tokens), logits)


def test_no_doubles():
    model, tokens = make(), make_tokens()
    logits = model.eval()(tokens)
    for move in (model.double, lambda: model.to(torch.float64)):
        with pytest.raises(TypeError, match="the engine has kernels alone, none of them for torch.float64; ovq.CausalLM has"):
            move()
    assert torch.equal(model(tokens), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16])
def test_dtypes_of_tokens(dtype):
    model, tokens = make().eval(), make_tokens()
    state = model(tokens, return_state=True)[1]
    wrong = tokens.to(dtype)
    for call in (
        lambda: model(wrong),
        lambda: model.hidden(wrong),
        lambda: model(wrong, state=state),
        lambda: model.step(wrong, state),
    ):
        with pytest.raises(TypeError, match=r"\[model\] tokens has dtype .*; must be int64 or int32"):
            call()
    assert torch.equal(model(tokens.int()), model(tokens))


def test_errors(tmp_path):
    model = make()
    with pytest.raises(ValueError, match="unknown field"):
        make(depth=3)
    with pytest.raises(ValueError, match="vocab_size is 0; must be"):
        make(vocab_size=0)
    with pytest.raises(ValueError, match="mixer in pattern"):
        make(pattern="sw,gdn")
    with pytest.raises(ValueError, match="tokens has 1 dimensions; must have 2"):
        model.hidden(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="tokens has 50; the vocabulary has 50"):
        model(torch.full((1, 3), 50))
    with pytest.raises(ValueError, match="prompt is empty"):
        model.generate([])
    with pytest.raises(ValueError, match="prompt has token 50; the vocabulary has 50"):
        model.generate([50])
    with pytest.raises(ValueError, match="temperature is -1"):
        model.generate([1], temperature=-1)
    with pytest.raises(ValueError, match="state has 3 layers; must have 2"):
        model(make_tokens(), state=make(num_hidden_layers=3)(make_tokens(), return_state=True)[1])
    with pytest.raises(ValueError, match="that of another mixer"):
        model(make_tokens(), state=make("tiny/gdn")(make_tokens(), return_state=True)[1])
    with pytest.raises(TypeError, match=r"\[generate\] prompt has 'word'; must be integers"):
        model.generate(["word"])
    with pytest.raises(TypeError, match="must be a ModelState"):
        model.generate([1], state=3)
    with pytest.raises(FileNotFoundError):
        ovq.LanguageModel.load(tmp_path / "missing")
    model.save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match="model.safetensors"):
        ovq.LanguageModel.load(tmp_path / "model")
    make(vocab_size=51).save(tmp_path / "other")
    (tmp_path / "model" / "config.json").write_bytes((tmp_path / "other" / "config.json").read_bytes())
    make().save(tmp_path / "third")
    weights.write_bytes((tmp_path / "third" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="embed.weight is .50, 64.; the model's is .51, 64."):
        ovq.LanguageModel.load(tmp_path / "model")


REPLACED = {
    "head": lambda model: setattr(model, "head", torch.nn.Linear(64, 50, bias=False)),
    "layers": lambda model: setattr(model, "layers", torch.nn.ModuleList(model.layers)),
    "layers.1": lambda model: model.layers.__setitem__(1, model.layers[0]),
    "layers.0.mixer": lambda model: setattr(model.layers[0], "mixer", ovq.Attention(64, 2)),
    "layers.1.mlp.up_proj": lambda model: setattr(model.layers[1].mlp, "up_proj", torch.nn.Linear(64, 128)),
    "norm": lambda model: delattr(model, "norm"),
    "head.weight": lambda model: setattr(model.head, "weight", torch.nn.Parameter(torch.zeros(50, 64))),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_parts_are_refused(name, tmp_path):
    model, tokens = make(), make_tokens()
    state = ovq.ModelState()
    REPLACED[name](model)
    for call in (
        lambda: model(tokens),
        lambda: model(tokens, return_state=True),
        lambda: model.step(tokens, state),
        lambda: model.generate([1, 2]),
        lambda: model.save(tmp_path / "model"),
        lambda: copy.deepcopy(model),
        lambda: model.double(),
    ):
        with pytest.raises(TypeError, match=rf"\[model\] {name} was replaced; .* use ovq.CausalLM"):
            call()
    assert state.position == 0 and not (tmp_path / "model").exists()


@pytest.mark.parametrize("preset", ["tiny/sw-ovq", "tiny/sw-vq"])  # the second has buffers
@pytest.mark.parametrize("move", [lambda model: model.to("meta"), lambda model: model.to_empty(device="meta")])
def test_an_engine_that_cannot_move_stays_as_it_was(move, preset):
    model, tokens = make(preset).eval(), make_tokens()
    logits, tensors = model(tokens), model.state_dict(keep_vars=True)
    with pytest.raises(TypeError, match="the engine runs on the CPU, not on meta"):
        move(model)
    assert all(x is tensors[name] for name, x in model.state_dict(keep_vars=True).items())
    assert torch.equal(model(tokens), logits)
    assert torch.equal(copy.deepcopy(model)(tokens), logits)
    assert torch.equal(model.share_memory().to("cpu")(tokens), logits)


def text_model(seed=0):
    torch.manual_seed(seed)
    model = ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=256, num_hidden_layers=2)
    model.set_tokenizer("bytes")
    return model


def test_generate_streams_tokens():
    model = make()
    prompt = make_tokens(1, 40)[0]
    options = dict(tokens=20, temperature=1.0, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=3)
    expected = model.generate(prompt, **options)
    stream = model.generate(prompt, stream=True, **options)
    assert next(stream) == expected[0] and list(stream) == expected[1:]
    state = ovq.ModelState()
    stream = model.generate(prompt, stream=True, state=state, **options)
    assert [next(stream) for _ in range(5)] == expected[:5]
    assert state.position == 44  # the fifth has not been read yet


def test_copies_keep_the_tokenizer(tmp_path):
    model = text_model()
    model.save(tmp_path)
    text = model.generate("The whale", tokens=5)
    for original in (model, ovq.LanguageModel.load(tmp_path)):
        for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original)), copy.copy(original)):
            assert other.generate("The whale", tokens=5) == text
            assert copy.deepcopy(other).encode("whale") == model.encode("whale")
    with pytest.raises(ValueError, match="no tokenizer"):
        copy.deepcopy(make()).encode("whale")


def test_generate_text(tmp_path):
    model = text_model()
    text = model.generate("The whale", tokens=30, temperature=1.0, seed=4)
    pieces = list(model.generate("The whale", tokens=30, temperature=1.0, seed=4, stream=True))
    assert "".join(pieces) == text and len(pieces) > 1
    text.encode()  # valid, whatever the bytes are
    model.save(tmp_path)
    loaded = ovq.LanguageModel.load(tmp_path)
    assert loaded.generate("The whale", tokens=30, temperature=1.0, seed=4) == text
    assert loaded.decode(loaded.encode("caf\u00e9")) == "caf\u00e9"

    # A state has read all of the text, and goes on as if there had been no pause.
    state = ovq.ModelState()
    first = model.generate("The whale", tokens=10, temperature=1.0, seed=4, state=state)
    assert state.position == 19
    half = model.generate("The whale", tokens=10, temperature=1.0, seed=4)
    assert first == half
    stop = text[5:8]
    assert model.generate("The whale", tokens=30, temperature=1.0, seed=4, stop=stop) == text[: text.index(stop)]


def test_abandoned_streams_leave_a_state_that_has_read_what_was_shown():
    model, state = text_model(), ovq.ModelState()
    stream = model.generate("The whale", tokens=50, state=state, stream=True)
    next(stream)
    stream.close()
    assert 10 <= state.position <= 13
    assert model.generate(" swam", tokens=3, state=state) is not None


def test_errors_of_text(tmp_path):
    model = make()
    with pytest.raises(ValueError, match="the model has no tokenizer"):
        model.generate("text")
    with pytest.raises(ValueError, match="the tokenizer has 256 tokens; the model has 50"):
        model.set_tokenizer("bytes")
    with pytest.raises(ValueError, match="is not a file"):
        model.set_tokenizer(tmp_path / "none")
    with pytest.raises(TypeError, match="stop is for prompts that are text"):
        model.generate([1], stop="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'top_q'"):
        model.generate([1], top_q=1)
    with pytest.raises(ValueError, match=r"top_p is 2.0; must be in \(0, 1\]"):
        model.generate([1], top_p=2)
    with pytest.raises(ValueError, match="prompt is empty"):
        text_model().generate("")


def test_save_leaves_no_tokenizer_of_another_model(tmp_path):
    for name in ("tokenizer.model", "tokenizer.bytes"):
        (tmp_path / name).write_text("of another model")
        make().save(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
        with pytest.raises(ValueError, match="no tokenizer"):
            ovq.LanguageModel.load(tmp_path).encode("whale")


def test_load_refuses_the_tokenizer_of_another_vocabulary(tmp_path):
    make().save(tmp_path)
    (tmp_path / "tokenizer.bytes").write_text("tokens are bytes\n")
    with pytest.raises(ValueError, match=r"\[model\] the tokenizer in .* has 256 tokens; the model has 50"):
        ovq.LanguageModel.load(tmp_path)


def test_an_empty_prompt_goes_on(tmp_path):
    model, options = text_model(), dict(temperature=1.0, seed=4, repetition_penalty=1.3)
    whole, state = ovq.ModelState(), ovq.ModelState()
    model.generate("The whale", tokens=20, state=whole, **options)
    model.generate("The whale", tokens=8, state=state, **options)
    state.save(tmp_path / "state")

    def next_logits(state):
        return model.step(torch.tensor([[97]]), state.clone())

    for other in (state.clone(), copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state):
        model.generate("", tokens=12, state=other, **options)
        assert other.position == whole.position == 29
        assert torch.equal(next_logits(other), next_logits(whole))
    loaded = ovq.ModelState.load(tmp_path / "state")
    assert len(list(model.generate("", tokens=5, state=loaded, stream=True, **options))) > 0
    model.generate("", tokens=7, state=loaded, **options)
    assert torch.equal(next_logits(loaded), next_logits(whole))
    # What was read since then has something else after it.
    model.step(torch.tensor([[97]]), loaded)
    for state in (loaded, ovq.ModelState()):
        with pytest.raises(ValueError, match=r"\[generate\] prompt is empty; must have at least one token"):
            model.generate("", state=state)
    assert model.generate(" swam", tokens=3, state=loaded)
