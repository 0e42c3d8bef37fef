#!/usr/bin/python3
"""ggml on the CPU, driven over stdin: one command as JSON per line, one answer per line. It first prints
{"version": ..., "recurrences": those it has}, or {"error": ...} and ends. Arguments: directory, threads.

  {"command": "prefill" | "decode", "form", "type", "time", "heads", "dim", "scale", "q", "k", "v", "o"}  -> {"seconds": ...}
  {"command": "gated_delta_net" | "ssm_scan", "inputs": {name: {"path", "shape"}}, "o"}                   -> {"seconds": ...}

Files of floats, laid out as for onnx_worker.mjs; a prefill takes the first `time` tokens of them. k and v are kept as
`type`. o: file for the output; absent: none. Inputs stay loaded; only the computation is timed."""

import json
import math
import sys

import numpy as np
from ggml_library import Ggml

# Queries per block: llama.cpp also reads a prompt in blocks. For 4096 tokens, blocks of 1024 took 7 % less time than
# its default of 512, and less than 2048 or all at once.
BLOCK = 1024
MASK_ROWS = 64  # older versions require a multiple of this


def padded(rows):
    return -(-rows // MASK_ROWS) * MASK_ROWS


class Attention:
    """form "flash": flash_attn_ext; "composed": mul_mat, soft_max_ext and mul_mat, with the values transposed.
    Keys and values are stored head by head: decoding reads them several times faster than token by token."""

    def __init__(self, ggml, command):
        self.ggml, self.form, self.scale, self.time = ggml, command["form"], command["scale"], command["time"]
        self.heads, self.dim, self.type = command["heads"], command["dim"], np.dtype(command["type"])
        prefill = command["command"] == "prefill"
        self.queries = self.time if prefill else 1
        q = self.load(command["q"], self.queries, self.heads)
        if prefill:
            k, v = (self.load(command[name], self.time, self.heads).transpose(1, 0, 2) for name in "kv")
        else:
            k, v = (self.load(command[name], self.heads, self.time) for name in "kv")
        if self.form == "composed":
            v = v.transpose(0, 2, 1)
        mask = np.zeros(self.time * padded(min(BLOCK, self.queries)), np.float16)
        self.inputs = ggml.tensors(q=q, k=k.astype(self.type), v=v.astype(self.type), mask=mask)

    def load(self, path, *shape):
        return np.fromfile(path, np.float32, math.prod(shape) * self.dim).reshape(*shape, self.dim)

    def run(self):
        seconds, out = 0.0, np.empty((self.queries, self.heads, self.dim), np.float32)
        # The longest block first, so that later ones need no further memory.
        for first in reversed(range(0, self.queries, BLOCK)):
            rows = out[first : first + BLOCK]
            seen = self.time - self.queries + first + len(rows)
            if len(rows) > 1:
                self.fill_mask(len(rows), seen)
            spent, o = self.ggml.compute(lambda arena: self.build(arena, first, len(rows), seen), rows.size)
            seconds += spent
            rows[:] = o.reshape(rows.shape)
        return seconds, out

    def fill_mask(self, rows, seen):
        """[rows, seen]: the last row sees all tokens, each row before it one token less."""
        mask = np.zeros((rows, seen), np.float16)
        mask[:, seen - rows :][np.triu_indices(rows, 1)] = -np.inf
        self.ggml.assign(self.inputs["mask"], mask)

    def view(self, arena, name, shape, strides, offset=0):
        """Three dimensions, innermost first and contiguous; strides of the other two, in elements."""
        size = {"q": 4, "mask": 2}.get(name, self.type.itemsize)
        strides = [size * stride for stride in (*strides, math.prod(shape))]
        return self.ggml.view_4d(arena, self.inputs[name], *shape, 1, *strides, size * offset)

    def build(self, arena, first, count, seen):
        ggml, dim, heads = self.ggml, self.dim, self.heads
        q = self.view(arena, "q", (dim, count, heads), (heads * dim, dim), first * heads * dim)
        k = self.view(arena, "k", (dim, seen, heads), (dim, self.time * dim))
        rows = padded(count)
        mask = self.view(arena, "mask", (seen, rows, 1), (seen, seen * rows)) if count > 1 else None
        if self.form == "flash":
            v = self.view(arena, "v", (dim, seen, heads), (dim, self.time * dim))
            return ggml.flash_attn_ext(arena, q, k, v, mask, self.scale, 0.0, 0.0)
        v = self.view(arena, "v", (seen, dim, heads), (self.time, self.time * dim))
        weights = ggml.soft_max_ext(arena, ggml.mul_mat(arena, k, q), mask, self.scale, 0.0)
        o = ggml.mul_mat(arena, v, weights)
        return ggml.cont(arena, ggml.permute(arena, o, 0, 2, 1, 3))


class Recurrence:
    """gated_delta_net or ssm_scan from a state of zeros. The result is the output and then the last state."""

    def __init__(self, ggml, command):
        arrays = {
            name: np.fromfile(file["path"], np.float32).reshape(file["shape"]) for name, file in command["inputs"].items()
        }
        self.ggml, self.call = ggml, getattr(ggml, command["command"])
        if command["command"] == "gated_delta_net":
            self.shape = arrays["v"].shape
            arrays["g"], arrays["beta"] = arrays["g"][..., None], arrays["beta"][..., None]
            arrays["state"] = np.zeros((self.shape[1], self.shape[2], self.shape[2]), np.float32)
            order = ["q", "k", "v", "g", "beta", "state"]
        else:
            self.shape = arrays["x"].shape
            arrays["a"] = arrays["a"][:, None]
            arrays["state"] = np.zeros((*self.shape[1:], arrays["b"].shape[-1]), np.float32)
            arrays["sequence"] = np.zeros(1, np.int32)
            order = ["state", "x", "dt", "a", "b", "c", "sequence"]
        inputs = ggml.tensors(**arrays)
        self.arguments = [inputs[name] for name in order]

    def run(self):
        seconds, o = self.ggml.compute(lambda arena: self.call(arena, *self.arguments, 1), math.prod(self.shape))
        return seconds, o.reshape(self.shape)


def answer(ggml, loaded, command):
    output = command.pop("o", None)
    key = json.dumps(command)
    if key not in loaded:
        loaded[key] = (Attention if "form" in command else Recurrence)(ggml, command)
    seconds, o = loaded[key].run()
    if output:
        o.tofile(output)
    return {"seconds": seconds}


def say(result):
    print(json.dumps(result), flush=True)


def main(directory, threads):
    try:
        ggml = Ggml(directory, int(threads))
    except (OSError, AttributeError) as error:  # cannot be loaded, or lacks a function
        return say({"error": str(error)})
    say({"version": ggml.name, "recurrences": ggml.recurrences})
    loaded = {}
    for line in sys.stdin:
        try:
            say(answer(ggml, loaded, json.loads(line)))
        except (OSError, RuntimeError, MemoryError, ValueError) as error:
            say({"error": str(error)})


if __name__ == "__main__":
    main(*sys.argv[1:])
