#!/usr/bin/env python3
"""Times each op's kernel beside its formula in torch, ovq.reference, on the same inputs, forward and backward. A case is
timed only if outputs and gradients agree with the formula in float64. The package `ovq` must be importable."""

import argparse
import os
import time

import torch

import ovq
from ovq import reference


def unit(*shape):
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1)


def make(names, batch, time, heads, dim):
    """The inputs of an op by their names."""
    rows, gates, gated = (batch, time, heads, dim), (batch, time, heads), "g" in names.split()
    known = {
        **{name: lambda: unit(*rows) for name in ("q", "k", "b", "c")},
        **{name: lambda: torch.randn(*rows) for name in ("v", "x")},
        "g": lambda: -0.1 * torch.rand(*gates),
        "beta": lambda: torch.rand(*gates) if gated else torch.full((heads,), dim**0.5),
        "dt": lambda: torch.rand(*gates),
        "a": lambda: -torch.rand(heads),
        "d": lambda: torch.randn(heads),
        "lambda_": lambda: torch.ones(heads, dim),
        "weight": lambda: torch.randn(heads * dim, 4),
    }
    inputs = {name: known[name]() for name in names.split()}
    return {name: x.flatten(2) if "weight" in inputs and name == "x" else x for name, x in inputs.items()}


WIDE, NARROW = (1, 16384, 6, 128), (16, 512, 8, 16)
# op, its inputs, options, [batch, time, heads, dim]
CASES = [("ovq_attention", "q k v beta", {"chunk": 128, "centroids": 2048}, WIDE)]
CASES += [("attention", "q k v beta", options, (1, 4096, 6, 128)) for options in ({}, {"window": 128})]
for shape in (WIDE, NARROW):
    CASES += [("gated_delta_rule", "q k v g beta", {}, shape), ("ssd", "x dt a b c d", {}, shape)]
    CASES += [("mesa", "q k v g beta lambda_", {}, shape), ("linear_attention", "q k v g", {}, shape)]
    CASES += [("short_convolution", "x weight", {}, shape)]


def output(op, x, options):
    o = op(**x, **options)
    return o[0] if isinstance(o, tuple) else o


def gradients(o, x):
    d_o = torch.arange(o.numel(), dtype=o.dtype).cos().view_as(o)
    return lambda: torch.autograd.grad(o, list(x.values()), d_o, retain_graph=True)


def disagreement(kernel, formula, inputs, options):
    """Empty, or which result is wrong: its error exceeds twice that of the formula in float32, plus a floor, in more
    than a hundredth of its rows. Where two centroids are almost equally near, float32 and float64 may choose differently."""
    results = []
    for op, dtype in ((kernel, torch.float32), (formula, torch.float32), (formula, torch.float64)):
        x = {name: value.to(dtype).clone().requires_grad_() for name, value in inputs.items()}
        o = output(op, x, options)
        results.append([o.detach().double(), *(d.double() for d in gradients(o, x)())])
    for name, actual, single, truth in zip(["the output", *(f"d_{x}" for x in inputs)], *results):
        floor = 1e-6 * max(truth.abs().max().item(), next(iter(inputs.values())).shape[-1])
        wrong = ~((actual - truth).abs() <= 2 * (single - truth).abs().max() + floor)  # NaN is wrong
        share = wrong.reshape(-1, wrong.shape[-1]).any(-1).double().mean().item()
        if share > 0.01:
            return f"{name} is wrong in {share:.1%} of its rows"
    return ""


def timed(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def measure(ops, x, options, rounds):
    """Milliseconds, the best round: forward of each op, then backward of each."""
    times = [[], [], [], []]
    for _ in range(rounds):
        for i, op in enumerate(ops):
            seconds, o = timed(lambda: output(op, x, options))
            times[i].append(seconds)
            times[2 + i].append(timed(gradients(o, x))[0])
    return [1e3 * min(of) for of in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the length")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"ovq {ovq.__version__}, torch {torch.__version__}, {given.threads} threads; milliseconds")
    print(f"{'case':50}" + "".join(f"{x:>11}" for x in ("forward", "formula", "ratio", "backward", "formula", "ratio")))
    for name, names, options, (batch, length, heads, dim) in CASES:
        length = length // 8 if given.quick else length
        text = f"{name}{''.join(f' {k} {v}' for k, v in options.items())} B{batch} T{length} H{heads} d{dim}"
        if given.filter not in text:
            continue
        torch.manual_seed(1)
        ops = (getattr(ovq, name), getattr(reference, name))
        problem = disagreement(*ops, make(names, 1, min(length, 700), heads, dim), options)
        if problem:
            print(f"{text}: NOT TIMED: {problem}")
            continue
        x = {name: value.requires_grad_() for name, value in make(names, batch, length, heads, dim).items()}
        a, b, c, d = measure(ops, x, options, given.rounds)
        print(f"{text:50}" + "".join(f"{x:11.1f}" for x in (a, b, b / a, c, d, d / c)), flush=True)


if __name__ == "__main__":
    main()
