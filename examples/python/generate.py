"""Trains a language model of sliding-window and OVQ-attention layers on repeated words, stores it, and generates.

    PYTHONPATH=build/release/python /usr/bin/python3 examples/python/generate.py
"""

import tempfile

import torch
from torch.nn.functional import cross_entropy

import ovq

VOCABULARY, PERIOD = 16, 6


def repeated_words(batch, time):
    """Random tokens of which each repeats the one PERIOD before it."""
    return torch.randint(VOCABULARY, (batch, PERIOD)).repeat(1, time // PERIOD + 1)[:, :time]


def train(model, steps=60):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(steps + 1):
        tokens = repeated_words(8, 65)
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits[:, PERIOD:].flatten(0, 1), tokens[:, PERIOD + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            print(f"step {i:4d}  loss {loss.item():.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = ovq.CausalLM.preset("tiny/sw-ovq", vocab_size=VOCABULARY)
    train(model)
    with tempfile.TemporaryDirectory() as directory:
        model.save(directory)  # config.json, model.safetensors
        model = ovq.LanguageModel.load(directory)  # the engine in C++

    prompt, state = repeated_words(1, 3 * PERIOD)[0].tolist(), ovq.ModelState()
    expected = prompt[:PERIOD] * 1000
    tokens = prompt
    while state.position < 2048:
        tokens = model.generate(tokens[-1:] if state.position else prompt, tokens=256, state=state)
        start = state.position + 1 - len(tokens)
        right = sum(a == b for a, b in zip(tokens, expected[start:]))
        print(f"position {state.position:5d}  state {state.nbytes:7d} bytes  copied {right} of {len(tokens)}")
