#!/usr/bin/env bash
# Tokens per second of two processes with one thread each against one process with one thread: the same global batches,
# so also the largest difference of the losses, and that both end with the same weights is checked by the program.
#   scripts/two-processes.sh [--steps N] [--scale NAME] [--model NAME] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
ovq=build/release/ovq steps=12 scale=small model=sw-ovq
while (($#)); do
  case $1 in
    --ovq) ovq=$2 ;;
    --steps) steps=$2 ;;
    --scale) scale=$2 ;;
    --model) model=$2 ;;
    *) echo "two-processes.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--task recall --model "$model" --scale "$scale" --steps "$steps" --eval-every 0 --eval-rows 1 --threads 1)
"$ovq" train "${options[@]}" --out "$work/one" --processes 1 >/dev/null
"$ovq" train "${options[@]}" --out "$work/two" --processes 2 >/dev/null
python3 - "$work" <<'PYTHON'
import json, statistics, sys
def steps(run):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
    return [line for line in lines if line["kind"] == "step"]
one, two = steps("one"), steps("two")
speed = [statistics.median(s["tokens"] / s["seconds"] for s in run[2:]) for run in (one, two)]
apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(one[:20], two[:20]))
print(f"1 process {speed[0]:.0f} tokens/s, 2 processes {speed[1]:.0f} tokens/s: {speed[1] / speed[0]:.2f} times; "
      f"{len(one)} steps of {one[0]['tokens']} tokens, losses at most {apart:.1e} apart in the first {min(20, len(one))}")
PYTHON
