"""Compares two recurrences of ggml with our ops: the gated delta rule and Mamba-2's. ggml computes token by token, our
ops by chunks. Both are checked against the recurrence in float64 first."""

import sys

import numpy as np
import torch

import ovq
from measuring import TOLERANCE, timed


def naive_gated_delta_rule(q, k, v, g, beta):
    """S' = e^g S;  S = S' + k beta (v - S'^T k)^T;  o = dk^(-1/2) S^T q; [T, H, D], g and beta [T, H]"""
    state, o = np.zeros((q.shape[1], q.shape[2], v.shape[2])), np.empty(v.shape)
    for t in range(len(q)):
        state *= np.exp(g[t])[:, None, None]
        written = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
        state += k[t][:, :, None] * written[:, None]
        o[t] = np.einsum("hk,hkv->hv", q[t], state) * q.shape[2] ** -0.5
    return o


def naive_ssd(x, dt, a, b, c):
    """S = e^(dt a) S + dt b x^T;  o = S^T c; x [T, H, P], dt [T, H], a [H], b and c [T, 1, N]"""
    state, o = np.zeros((x.shape[1], b.shape[2], x.shape[2])), np.empty(x.shape)
    for t in range(len(x)):
        state *= np.exp(dt[t] * a)[:, None, None]
        state += b[t][:, :, None] * (dt[t][:, None] * x[t])[:, None]
        o[t] = np.einsum("n,hnp->hp", c[t][0], state)
    return o


def unit_rows(*shape):
    return torch.nn.functional.normalize(torch.randn(*shape), dim=-1)


def gated_delta_rule_inputs(length, heads=6, dim=128):
    q, k, v = unit_rows(length, heads, dim), unit_rows(length, heads, dim), torch.randn(length, heads, dim)
    return {"q": q, "k": k, "v": v, "g": -0.1 * torch.rand(length, heads), "beta": torch.rand(length, heads)}


def ssd_inputs(length, heads=12, dim=64, state=128):
    x, dt, a = torch.randn(length, heads, dim), 0.01 + torch.rand(length, heads), -torch.rand(heads)
    return {"x": x, "dt": dt, "a": a, "b": unit_rows(length, 1, state), "c": unit_rows(length, 1, state)}


# name: inputs, our op, the recurrence, ggml's name of it
KINDS = {
    "gated_delta_rule": (gated_delta_rule_inputs, ovq.gated_delta_rule, naive_gated_delta_rule, "gated_delta_net"),
    "ssd": (ssd_inputs, ovq.ssd, naive_ssd, "ssm_scan"),
}


class Recurrence:
    def __init__(self, kind, length, work, ggml):
        make, op, naive, command = KINDS[kind]
        self.name, self.checked = f"{kind} {length}", {}
        torch.manual_seed(length)
        inputs = make(length)
        batch = [x if name == "a" else x[None] for name, x in inputs.items()]
        command = {"command": command, "inputs": {}, "o": str(work / "o.f32")}
        for name, x in inputs.items():
            # ggml's scan takes dt before the softplus.
            array = torch.log(torch.expm1(x)).numpy() if name == "dt" else x.numpy()
            path = work / f"recurrence-{name}.f32"
            array.tofile(path)
            command["inputs"][name] = {"path": str(path), "shape": array.shape}
        self.shapes = {name: list(x.shape) for name, x in inputs.items()}
        wanted = naive(*(x.double().numpy() for x in inputs.values()))
        self.check("ovq", op(*batch)[0].numpy(), wanted)
        self.peers = {"ovq": lambda: timed(lambda: op(*batch))}
        try:
            ggml.request(command)
            self.check("ggml", np.fromfile(command.pop("o"), np.float32).reshape(wanted.shape), wanted)
            self.peers["ggml"] = lambda: (ggml.request(command)["seconds"], None)
        except RuntimeError as error:
            print(f"{error}; left out", file=sys.stderr)

    def check(self, name, o, wanted):
        error = np.abs(o - wanted).max() / np.abs(wanted).max()
        if not error <= TOLERANCE:
            raise RuntimeError(f"{self.name}, {name}: off by {error:.2e} of the largest")
