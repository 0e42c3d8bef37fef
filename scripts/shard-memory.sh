#!/usr/bin/env bash
# The optimiser state and the largest resident memory of each of two ranks, without and with --shard-optimizer. The
# resulting weights must be equal.
#   scripts/shard-memory.sh [--width N] [--model NAME] [--steps N] [--ovq PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/compared_runs.sh
ovq=build/release/ovq width=768 model=sw-ovq steps=2
read_options "ovq width model steps" "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
measure() {  # name, further options
  local name=$1 pid
  shift
  "$ovq" train --task recall --model "$model" --scale small --steps "$steps" --tokens-per-step 1024 --eval-every 0 \
    --eval-rows 1 --model-options "{\"hidden_size\": $width, \"intermediate_size\": $((3 * width))}" --threads 1 --processes 2 --out "$work/$name" "$@" >"$work/$name.log" &
  pid=$!
  while kill -0 $pid 2>/dev/null; do
    for child in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do
      awk -v child="$child" '/VmHWM/ { print child, $2 * 1024 }' "/proc/$child/status" 2>/dev/null || true
    done
    sleep 0.05
  done >"$work/$name.sizes"
  wait $pid
  echo "$name: $(grep -o '[0-9.]* MB of optimiser state in each' "$work/$name.log"), largest resident memory of the ranks" \
    "$(sort -n "$work/$name.sizes" | awk '{ most[$1] = $2 > most[$1] ? $2 : most[$1] } END { for (c in most) printf "%.1f MB ", most[c] / 1e6 }')"
}
measure whole
measure shards --shard-optimizer
must_be_equal "$work/whole" "$work/shards"
echo "weights and optimiser state equal"
