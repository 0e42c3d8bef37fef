#!/usr/bin/python3
"""Compares causal attention of public libraries on this machine with ours and OVQ, and ggml's recurrences with ours;
called by scripts/bench-peers.sh.

Every peer's output is checked against a few rows in float64 before it is timed. Rounds alternate, so that disturbances
affect all peers; best and median are reported."""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

import ovq
from ggml_library import find_libraries
from measuring import TOLERANCE, Bystanders, Worker, measure, print_timings, summary, timed
from recurrences import KINDS, Recurrence

HEADS, DIM, BETA, CHUNK, CENTROIDS = 6, 128, 8.0, 128, 2048
PRODUCT = 2048  # matrix size of the product used as a ceiling
LONG = 32768  # from here on a call takes minutes: torch is skipped, and the checked call is the only round
GGML_FORMS = [{"form": form, "type": type} for form in ("flash", "composed") for type in ("float32", "float16")]
HEADS_FIRST = "ovq attention, heads first"  # with a cache in which one head follows the other, as in the other libraries
GGML_TRIAL = 2048  # tokens of the prefill on which its forms are compared


def make_inputs(length):
    """Unit-norm queries and keys, and values: [1, T, H, D]."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, length, HEADS, DIM, generator=generator) for _ in range(3))
    return [torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1), v]


def row_error(o, q, k, v, offset=0):
    """The error of o[t] against softmax(beta q_t K^T) V in float64, for some t; o and q [T, H, D], q's first token at `offset`."""
    errors = []
    for t in sorted({0, q.shape[0] // 3, q.shape[0] - 1}):
        keys, values = k[: offset + t + 1].astype(np.float64), v[: offset + t + 1].astype(np.float64)
        scores = BETA * np.einsum("hd,thd->ht", q[t].astype(np.float64), keys)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        wanted = np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), values)
        errors.append(np.abs(o[t] - wanted).max())
    return float(np.max(errors))


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
    def __init__(self, length, work, workers):
        self.name, self.length, self.offset = f"prefill {length}", length, 0
        q, k, v = make_inputs(length)
        heads_first = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        self.arrays = [x[0].numpy() for x in (q, k, v)]
        self.peers = {
            "ovq attention": lambda: timed(lambda: ovq.attention(q, k, v, BETA)),
            "torch": lambda: timed(lambda: torch_attention(*heads_first)),
        }
        if length >= LONG:
            del self.peers["torch"]
        self.add_workers(workers, "prefill", work, self.arrays)
        self.check()
        options = {"chunk": CHUNK, "centroids": CENTROIDS}
        check_ovq(options)
        self.peers["ovq"] = lambda: timed(lambda: ovq.ovq_attention(q, k, v, BETA, **options))

    def check(self):
        """Also records the time of each."""
        self.checked = {}
        ours = dict.fromkeys(["ovq attention", HEADS_FIRST], lambda o: o[0].numpy())
        results = {**ours, "torch": lambda o: o.transpose(0, 1).numpy()}
        for name, run in self.peers.items():
            seconds, o = self.first.pop(name, None) or run()
            self.checked[name] = seconds
            error = row_error(results.get(name, lambda o: o)(o), *self.arrays, offset=self.offset)
            if not error <= TOLERANCE:
                raise RuntimeError(f"{self.name}, {name}: off by {error:.2e}")

    def add_workers(self, workers, kind, work, inputs):
        self.first, self.notes = {}, {}
        command = {"command": kind, "time": self.length, "heads": HEADS, "dim": DIM, "scale": BETA}
        if workers:
            for name, array in zip("qkv", inputs):
                command[name] = str(work / f"{kind}-{self.length}-{name}.f32")
                array.tofile(command[name])
        if "onnxruntime" in workers:
            self.add_worker(workers["onnxruntime"], command, work / "o.f32")
        if "ggml" in workers:
            try:
                form, note = choose_ggml_form(workers["ggml"], command, work / "o.f32", self.arrays, self.offset)
                self.add_worker(workers["ggml"], {**command, **form}, work / "o.f32")
                self.notes["ggml"] = note
            except RuntimeError as error:
                print(f"{self.name}, {error}; left out", file=sys.stderr)

    def add_worker(self, worker, command, output):
        seconds = worker.request({**command, "o": str(output)})["seconds"]
        self.first[worker.name] = seconds, np.fromfile(output, np.float32).reshape(-1, HEADS, DIM)
        self.peers[worker.name] = lambda: (worker.request(command)["seconds"], None)


class Decode(Prefill):
    """One token after `length` - 1 others."""

    def __init__(self, length, work, workers):
        self.name, self.length, self.offset = f"decode {length}", length, length - 1
        q, k, v = make_inputs(length)
        last = q[:, -1:].contiguous()
        self.arrays = [last[0].numpy(), k[0].numpy(), v[0].numpy()]
        heads_first = [x[0].transpose(0, 1).contiguous() for x in (last, k, v)]
        _, k_first, v_first = (x.transpose(0, 1)[None] for x in heads_first)
        self.peers = {
            "ovq attention": lambda: timed(lambda: ovq.attention(last, k, v, BETA, query_offset=length - 1)),
            HEADS_FIRST: lambda: timed(lambda: ovq.attention(last, k_first, v_first, BETA, query_offset=length - 1)),
            "torch": lambda: timed(lambda: torch_attention(*heads_first)),
        }
        self.add_workers(workers, "decode", work, [x.numpy() for x in heads_first])
        self.check()
        _, state = ovq.ovq_attention(q, k, v, BETA, chunk=CHUNK, centroids=CENTROIDS, return_state=True)
        self.peers["ovq"] = lambda: timed(lambda: ovq.step(last, k[:, -1:], v[:, -1:], BETA, state))


def choose_ggml_form(ggml, command, output, arrays, offset):
    """The fastest of ggml's correct forms, and the results of all; a prefill is tried on its first tokens."""
    q, k, v = arrays
    q = q[:GGML_TRIAL]
    tried = {}
    for form in GGML_FORMS:
        trial = {**command, **form, "time": offset + len(q), "o": str(output)}
        seconds = min(ggml.request(trial)["seconds"] for _ in range(3))
        error = row_error(np.fromfile(output, np.float32).reshape(q.shape), q, k, v, offset)
        tried[" ".join(form.values())] = {"seconds_best": seconds, "error": error}
    right = {name: trial["seconds_best"] for name, trial in tried.items() if trial["error"] <= TOLERANCE}
    if not right:
        raise RuntimeError(f"ggml: no form is right: {tried}")
    chosen = min(right, key=right.get)
    note = {"form": chosen, "tried_on": offset + len(q), "tried": tried}
    return next(form for form in GGML_FORMS if " ".join(form.values()) == chosen), note


def check_ovq(options):
    """The kernel against the formula, on a shorter sequence with a smaller dictionary."""
    q, k, v = (x[:, :1500] for x in make_inputs(2048))
    small = dict(options, centroids=256)
    kernel = ovq.ovq_attention(q, k, v, BETA, **small)
    formula = ovq.reference.ovq_attention(q, k, v, BETA, **small)
    # If two centroids are almost equally near, the two may choose differently, so a few rows may differ.
    different = ((kernel - formula).abs().amax((0, 2, 3)) > TOLERANCE).float().mean().item()
    if not different <= 0.01:
        raise RuntimeError(f"ovq: {different:.1%} of the rows differ from the formula")


def flops_of(case):
    """FLOPs of causal attention: two products over the keys that each query sees."""
    pairs = case.length if isinstance(case, Decode) else case.length * (case.length + 1) / 2
    return 4 * pairs * HEADS * DIM


def cpu_name():
    with open("/proc/cpuinfo") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))


def start_workers(arguments):
    """The peers for attention by name, their versions, and the KINDS that ggml supports."""
    threads, here = str(arguments.threads), Path(__file__).parent
    workers, versions, recurrences = {}, {"torch": torch.__version__}, []
    if arguments.packages:
        onnx = Worker("onnxruntime", "node", str(here / "onnx_worker.mjs"), arguments.packages, threads)
        workers["onnxruntime"], versions["onnxruntime"] = onnx, onnx.request({"command": "version"})["version"]
    if arguments.ggml:
        ggml = Worker("ggml", sys.executable, str(here / "ggml_worker.py"), str(arguments.ggml), threads)
        try:
            hello = ggml.parse(ggml.read())
            workers["ggml"], versions["ggml"] = ggml, hello["version"]
            recurrences = [kind for kind, (*_, name) in KINDS.items() if name in hello["recurrences"]]
        except RuntimeError as error:
            print(f"{error}; left out", file=sys.stderr)
    return workers, versions, recurrences


def measure_attention(case, rounds, onednn):
    def product():
        seconds = float(onednn.ask(PRODUCT))
        if seconds < 0:
            raise RuntimeError("onednn: the product is wrong")
        return seconds

    with Bystanders() as others:
        seconds, ceiling = measure(case, rounds, product if onednn else None)
    peers = {name: {**summary(values), **case.notes.get(name, {})} for name, values in seconds.items()}
    entry = {"name": case.name, "flops": flops_of(case), "bystander_cores": others.cores, "peers": peers}
    print_timings(case, peers)
    if "ggml" in case.notes:
        note = case.notes["ggml"]
        for form, trial in note["tried"].items():
            print(
                f"{case.name:22} ggml, {form}{' (taken)' if form == note['form'] else ''}: {trial['seconds_best']:.4f} s "
                f"with {note['tried_on']} tokens, off by {trial['error']:.0e}"
            )
    if ceiling:
        rate = 2 * PRODUCT**3 / min(ceiling)
        entry["onednn_product"] = {
            **summary(ceiling),
            "gflops_per_second": rate * 1e-9,
            "seconds_for_the_flops": entry["flops"] / rate,
        }
        print(
            f"{case.name:22} onednn's product runs at {rate * 1e-9:.0f} GFLOP/s: "
            f"{entry['flops'] / rate:.4f} s for the FLOPs of causal attention"
        )
    sys.stdout.flush()
    return entry


def measure_recurrence(case, rounds):
    with Bystanders() as others:
        seconds, _ = measure(case, rounds)
    peers = {name: summary(values) for name, values in seconds.items()}
    print_timings(case, peers)
    return {"name": case.name, "inputs": case.shapes, "bystander_cores": others.cores, "peers": peers}


def keep_others(report, before):
    """Adds the cases of an earlier report that this one does not have."""
    for key in ("cases", "recurrences"):
        measured = [case["name"] for case in report[key]]
        report[key] += [case for case in before.get(key, []) if case["name"] not in measured]
    report["cases"].sort(key=lambda case: (case["name"].split()[0] != "prefill", int(case["name"].split()[1])))


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True, help="directory for inputs and outputs")
    parser.add_argument("--packages", help="directory with onnxruntime-node in node_modules")
    parser.add_argument("--ggml", type=Path, help="directory with libggml-base and libggml-cpu")
    parser.add_argument("--onednn", help="the program made of onednn_worker.cpp")
    parser.add_argument("--lengths", type=lambda s: [int(x) for x in s.split(",")], default=[4096, 16384, 65536])
    parser.add_argument("--decode", type=int, default=65536, help="context of the decoded token; 0: no such case")
    parser.add_argument("--recurrences", type=int, default=16384, help="tokens of the recurrences; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="keep the other cases of the JSON file")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.ggml:
        try:
            find_libraries(arguments.ggml)
        except FileNotFoundError as error:
            print(f"bench-peers.sh: --ggml: {error}", file=sys.stderr)
            sys.exit(2)
    return arguments


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # for workers that have no other setting
    workers, versions, recurrences = start_workers(arguments)
    onednn = None
    if arguments.onednn:
        onednn = Worker("onednn", arguments.onednn)
        versions["onednn"] = onednn.read()
    report = {
        "machine": {"cpu": cpu_name(), "threads": arguments.threads, "load_average": os.getloadavg()[0]},
        "commit": arguments.commit,
        "versions": versions,
        "shape": {"heads": HEADS, "dim": DIM, "chunk": CHUNK, "centroids": CENTROIDS},
        "cases": [],
        "recurrences": [],
    }
    kinds = [(Prefill, length) for length in arguments.lengths]
    if arguments.decode > 0:
        kinds.append((Decode, arguments.decode))
    for kind, length in kinds:
        case = kind(length, arguments.work, workers)
        rounds = 10 * arguments.rounds if kind is Decode else arguments.rounds if length < LONG else 1
        report["cases"].append(measure_attention(case, rounds, onednn))
        del case
    for kind in recurrences if arguments.recurrences > 0 else []:
        case = Recurrence(kind, arguments.recurrences, arguments.work, workers["ggml"])
        report["recurrences"].append(measure_recurrence(case, arguments.rounds))
    if arguments.add and arguments.json.exists():
        keep_others(report, json.loads(arguments.json.read_text()))
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
