"""A small transformer with OVQ-attention as its attention: it learns to copy, then decodes in constant memory.

    PYTHONPATH=build/release/python /usr/bin/python3 examples/python/drop_in.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ovq

VOCABULARY, DIM, HEADS, LAYERS = 16, 64, 2, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(DIM)
        self.attention = ovq.OVQAttention(DIM, HEADS, chunk=16, centroids=64, rope=True)
        self.mlp_norm = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, mix):
        x = x + mix(self.attention, self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, lambda attention, h: attention(h))
        return self.head(x)

    def start(self, tokens):
        """Reads a prompt: logits and one state per layer."""
        x, states = self.embedding(tokens), []

        def mix(attention, h):
            y, state = attention(h, return_state=True)
            states.append(state)
            return y

        for block in self.blocks:
            x = block(x, mix)
        return self.head(x), states

    def step(self, tokens, states):
        """Continues with the next tokens; the states move on in place."""
        x = self.embedding(tokens)
        for block, state in zip(self.blocks, states):
            x = block(x, lambda attention, h, state=state: attention.step(h, state))
        return self.head(x)


def repeated_words(batch, time, period):
    """Random tokens of which each repeats the one `period` before it."""
    word = torch.randint(VOCABULARY, (batch, period))
    return word.repeat(1, time // period + 2)[:, : time + 1]


def train(model, steps=120, period=6):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for i in range(steps + 1):
        tokens = repeated_words(8, 128, period)
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits[:, period:].flatten(0, 1), tokens[:, period + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            print(f"step {i:4d}  loss {loss.item():.3f}")


@torch.no_grad()
def decode(model, period=6, length=2048):
    tokens = repeated_words(1, 3 * period, period)
    logits, states = model.start(tokens)
    prompt, correct, word = tokens.shape[1], 0, tokens[0, :period]
    for position in range(prompt, length):
        token = logits[:, -1:].argmax(-1)
        correct += int(token == word[position % period])
        logits = model.step(token, states)
        done = position + 1
        if done in (64, 256, 512, 1024, length):
            nbytes, size = sum(state.nbytes for state in states), states[0].keys.shape[2]
            copied = f"{correct} of {done - prompt}"
            print(f"position {done:5d}  centroids {size:3d}  state {nbytes:7d} bytes  copied {copied}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Transformer()
    train(model)
    decode(model)
