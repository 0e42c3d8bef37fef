#!/usr/bin/env bash
# Compares two processes with one thread each with one process with one thread, on the same batches: tokens per second,
# and losses. The losses are compared with those of one process that computes the batch at once, and with those of one
# that computes the same two parts in turn, which must be equal bit for bit. The program itself checks at every
# checkpoint that both processes hold the same weights.
#   scripts/two-processes.sh [--steps N] [--scale NAME] [--model NAME] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/compared_runs.sh
ovq=build/release/ovq steps=20 scale=small model=sw-ovq
read_options "ovq steps scale model" "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--task recall --model "$model" --scale "$scale" --steps "$steps" --eval-every 0 --eval-rows 1 --threads 1)
"$ovq" train "${options[@]}" --out "$work/one" --processes 1 >/dev/null
"$ovq" train "${options[@]}" --out "$work/two" --processes 2 >/dev/null
"$ovq" train "${options[@]}" --out "$work/parts" --processes 1 --accumulate 2 >/dev/null
must_be_equal "$work/two" "$work/parts"
python3 - "$work" <<'PYTHON'
import json, statistics, sys
def steps(run):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
    return [line for line in lines if line["kind"] == "step"]
one, two, parts = steps("one"), steps("two"), steps("parts")
speed = [statistics.median(s["tokens"] / s["seconds"] for s in run[2:]) for run in (one, two)]
def apart(a, b, count=None):
    return max(abs(x["loss"] - y["loss"]) for x, y in zip(a[:count], b[:count]))
print(f"1 process {speed[0]:.0f} tokens/s, 2 processes {speed[1]:.0f} tokens/s: {speed[1] / speed[0]:.2f} times; "
      f"{len(one)} steps of {one[0]['tokens']} tokens")
print(f"losses of 2 processes and of 1 with the same parts: at most {apart(two, parts):.1e} apart, final weights equal; "
      f"of 1 with the whole batch: {apart(two, one, 20):.1e} in the first {min(20, len(one))} steps, "
      f"at the end {two[-1]['loss']:.4f} and {one[-1]['loss']:.4f}")
PYTHON
