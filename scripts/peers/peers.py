#!/usr/bin/python3
"""Causal attention of the public libraries on this machine, beside ours and OVQ; called by scripts/bench-peers.sh.

Every peer's output is checked against a few rows in float64 before it is timed. Rounds take turns, so that what disturbs
the machine disturbs all of them; best and median are reported."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import ovq

HEADS, DIM, BETA, CHUNK, CENTROIDS = 6, 128, 8.0, 128, 2048
TOLERANCE = 1e-4
PRODUCT = 2048  # size of the matrices of the ceiling
SETTLE = 0.05  # seconds for a peer's threads to fall asleep
LONG = 32768  # from here on a call takes minutes: torch is left out, and the checked call is the only round


class Worker:
    """A peer in a process of its own that answers lines with lines."""

    processes = []

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(self.process)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended")
        return line.strip()

    def ask(self, line):
        self.process.stdin.write(str(line) + "\n")
        self.process.stdin.flush()
        return self.read()


def timed(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def make_inputs(length):
    """Unit-norm queries and keys, and values: [1, T, H, D]."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, length, HEADS, DIM, generator=generator) for _ in range(3))
    return [torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1), v]


def check_rows(name, o, q, k, v, offset=0):
    """o[t] = softmax(beta q_t K^T) V for some t, in float64; o and q [T, H, D], q's first token at `offset`."""
    for t in sorted({0, q.shape[0] // 3, q.shape[0] - 1}):
        keys, values = k[: offset + t + 1].astype(np.float64), v[: offset + t + 1].astype(np.float64)
        scores = BETA * np.einsum("hd,thd->ht", q[t].astype(np.float64), keys)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        wanted = np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), values)
        error = np.abs(o[t] - wanted).max()
        if not error <= TOLERANCE:
            raise RuntimeError(f"{name}: row {t} of {q.shape[0]} is off by {error:.2e}")


def torch_attention(q, k, v, block=1024):
    """[H, T, D]; in blocks of queries, so that the scores of long contexts fit in memory and the future costs nothing."""
    out = torch.empty_like(q)
    offset = k.shape[1] - q.shape[1]
    for first in range(0, q.shape[1], block):
        last = min(first + block, q.shape[1])
        seen = offset + last
        scores = torch.bmm(q[:, first:last], k[:, :seen].transpose(1, 2)).mul_(BETA)
        if last - first > 1:
            future = torch.ones(last - first, last - first, dtype=torch.bool).triu_(1)
            scores[:, :, offset + first :].masked_fill_(future, float("-inf"))
        torch.bmm(torch.softmax(scores, -1), v[:, :seen], out=out[:, first:last])
    return out


class Prefill:
    def __init__(self, length, work, onnx):
        self.name, self.length, self.first = f"prefill {length}", length, {}
        q, k, v = self.inputs = make_inputs(length)
        heads_first = [x[0].transpose(0, 1).contiguous() for x in self.inputs]
        arrays = [x[0].numpy() for x in self.inputs]
        self.peers = {
            "ovq attention": lambda: timed(lambda: ovq.attention(q, k, v, BETA)),
            "torch": lambda: timed(lambda: torch_attention(*heads_first)),
        }
        self.results = {
            "ovq attention": lambda o: o[0].numpy(),
            "torch": lambda o: o.transpose(0, 1).numpy(),
        }
        if length >= LONG:
            del self.peers["torch"]
        if onnx:
            command = {"command": "prefill", "time": length, "heads": HEADS, "dim": DIM, "scale": BETA}
            for name, array in zip("qkv", arrays):
                command[name] = str(work / f"{name}-{length}.f32")
                array.tofile(command[name])
            self.add_onnx(onnx, command, work / "o.f32", (length, HEADS, DIM))
        self.check(arrays)
        options = {"chunk": CHUNK, "centroids": CENTROIDS}
        check_ovq(options)
        self.peers["ovq"] = lambda: timed(lambda: ovq.ovq_attention(q, k, v, BETA, **options))

    def check(self, arrays, offset=0):
        """Also keeps how long each took."""
        self.checked = {}
        for name, run in self.peers.items():
            seconds, o = self.first.pop(name, None) or run()
            self.checked[name] = seconds
            check_rows(f"{self.name}, {name}", self.results[name](o), *arrays, offset=offset)

    def add_onnx(self, onnx, command, output, shape):
        def run():
            answer = json.loads(onnx.ask(json.dumps(command)))
            if "error" in answer:
                raise RuntimeError(f"onnxruntime: {answer['error']}")
            return answer["seconds"], None

        command["o"] = str(output)
        self.first["onnxruntime"] = run()
        result = np.fromfile(output, np.float32).reshape(shape)
        del command["o"]
        self.peers["onnxruntime"] = run
        self.results["onnxruntime"] = lambda _: result


class Decode(Prefill):
    """One token behind `length` - 1 others."""

    def __init__(self, length, work, onnx):
        self.name, self.length, self.first = f"decode {length}", length, {}
        q, k, v = make_inputs(length)
        last = q[:, -1:].contiguous()
        arrays = [last[0].numpy(), k[0].numpy(), v[0].numpy()]
        heads_first = [x[0].transpose(0, 1).contiguous() for x in (last, k, v)]
        self.peers = {
            "ovq attention": lambda: timed(lambda: ovq.attention(last, k, v, BETA, query_offset=length - 1)),
            "torch": lambda: timed(lambda: torch_attention(*heads_first)),
        }
        self.results = {"ovq attention": lambda o: o[0].numpy(), "torch": lambda o: o.transpose(0, 1).numpy()}
        if onnx:
            command = {"command": "decode", "time": length, "heads": HEADS, "dim": DIM, "scale": BETA}
            for name, x in zip("qkv", heads_first):
                command[name] = str(work / f"decode-{name}.f32")
                x.numpy().tofile(command[name])
            self.add_onnx(onnx, command, work / "o.f32", (1, HEADS, DIM))
        self.check(arrays, offset=length - 1)
        _, state = ovq.ovq_attention(q, k, v, BETA, chunk=CHUNK, centroids=CENTROIDS, return_state=True)
        self.peers["ovq"] = lambda: timed(lambda: ovq.step(last, k[:, -1:], v[:, -1:], BETA, state))


def check_ovq(options):
    """The fused op against the composed one in double, on a shorter sequence with a smaller dictionary."""
    q, k, v = (x[:, :1500] for x in make_inputs(2048))
    small = dict(options, centroids=256)
    fused = ovq.ovq_attention(q, k, v, BETA, **small)
    plain = ovq.ovq_attention(q, k, v, BETA, backend="composed", **small)
    # Where two centroids are about equally near, the two may choose differently: a few rows may differ.
    different = ((fused - plain).abs().amax((0, 2, 3)) > TOLERANCE).float().mean().item()
    if not different <= 0.01:
        raise RuntimeError(f"ovq: {different:.1%} of the rows differ from the composed op")


class Bystanders:
    """Cores that other processes kept busy while the `with` block ran."""

    def __enter__(self):
        self.start, self.before = time.perf_counter(), self.sample()
        return self

    def __exit__(self, *_):
        spent = [now - before for now, before in zip(self.sample(), self.before)]
        self.cores = max(0.0, (spent[0] - spent[1]) / (time.perf_counter() - self.start))

    @staticmethod
    def sample():
        """CPU seconds of the machine, and of this process and its workers."""
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as file:
            fields = [int(x) for x in file.readline().split()[1:9]]
        machine = (sum(fields) - fields[3] - fields[4]) / tick
        own = 0
        for worker in [os.getpid(), *(process.pid for process in Worker.processes)]:
            with open(f"/proc/{worker}/stat") as file:
                own += sum(int(x) for x in file.read().rsplit(")", 1)[1].split()[11:13]) / tick
        return machine, own


def measure(case, rounds, onednn):
    seconds = {name: [] for name in case.peers}
    product = []
    for _ in range(rounds):
        for name, run in case.peers.items():
            time.sleep(SETTLE)
            seconds[name].append(case.checked[name] if rounds == 1 and name in case.checked else run()[0])
        if onednn:
            time.sleep(SETTLE)
            product.append(float(onednn.ask(PRODUCT)))
            if product[-1] < 0:
                raise RuntimeError("onednn: the product is wrong")
    return seconds, product


def summary(values):
    return {"seconds_best": min(values), "seconds_median": statistics.median(values), "rounds": len(values)}


def flops_of(case):
    """Of causal attention: two products over the keys each query sees."""
    pairs = case.length if isinstance(case, Decode) else case.length * (case.length + 1) / 2
    return 4 * pairs * HEADS * DIM


def cpu_name():
    with open("/proc/cpuinfo") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True, help="directory for inputs and outputs")
    parser.add_argument("--packages", help="directory with onnxruntime-node in node_modules")
    parser.add_argument("--onednn", help="the program made of onednn_worker.cpp")
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], default=[4096, 16384, 65536])
    parser.add_argument("--decode", type=int, default=65536, help="context of the decoded token; 0: no such case")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="keep the other cases of the JSON file")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    here = Path(__file__).parent
    versions = {"torch": torch.__version__}
    onnx = onednn = None
    if arguments.packages:
        onnx = Worker("node", str(here / "onnx_worker.mjs"), arguments.packages, str(arguments.threads))
        versions["onnxruntime"] = json.loads(onnx.ask('{"command": "version"}'))["version"]
    if arguments.onednn:
        onednn = Worker(arguments.onednn)
        versions["onednn"] = onednn.read()
    report = {
        "machine": {"cpu": cpu_name(), "threads": arguments.threads, "load_average": os.getloadavg()[0]},
        "commit": arguments.commit,
        "versions": versions,
        "shape": {"heads": HEADS, "dim": DIM, "chunk": CHUNK, "centroids": CENTROIDS},
        "cases": [],
    }
    kinds = [(Prefill, length) for length in arguments.lengths]
    if arguments.decode > 0:
        kinds.append((Decode, arguments.decode))
    for kind, length in kinds:
        case = kind(length, arguments.work, onnx)
        rounds = 10 * arguments.rounds if kind is Decode else arguments.rounds if length < LONG else 1
        with Bystanders() as others:
            seconds, product = measure(case, rounds, onednn)
        entry = {
            "name": case.name,
            "flops": flops_of(case),
            "bystander_cores": others.cores,
            "peers": {name: summary(values) for name, values in seconds.items()},
        }
        if product:
            rate = 2 * PRODUCT**3 / min(product)
            entry["onednn_product"] = {
                **summary(product),
                "gflops_per_second": rate * 1e-9,
                "seconds_for_the_flops": entry["flops"] / rate,
            }
        report["cases"].append(entry)
        for name, timing in sorted(entry["peers"].items(), key=lambda item: item[1]["seconds_best"]):
            print(f"{case.name:16} {name:16} best {timing['seconds_best']:9.4f} s  median {timing['seconds_median']:9.4f} s")
        if product:
            ceiling = entry["onednn_product"]
            print(
                f"{case.name:16} onednn's product runs at {ceiling['gflops_per_second']:.0f} GFLOP/s: "
                f"{ceiling['seconds_for_the_flops']:.4f} s for the FLOPs of causal attention"
            )
        sys.stdout.flush()
        del case
    if arguments.add and arguments.json.exists():
        measured = [case["name"] for case in report["cases"]]
        before = json.loads(arguments.json.read_text())["cases"]
        report["cases"] += [case for case in before if case["name"] not in measured]
        report["cases"].sort(key=lambda case: (case["name"].split()[0] != "prefill", int(case["name"].split()[1])))
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
