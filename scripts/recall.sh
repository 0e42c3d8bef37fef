#!/usr/bin/env bash
# Trains and tests the models behind docs/recall.md and writes results/recall-<group>.json, one file for each group:
#   small         recall at the small scale: full attention, OVQ-attention and weighted writes, with value shift and
#                 convolution and without (plain); several shares of the context kept, and several N with the same weights
#   tasks         positional recall, in-context learning and MQAR at the tiny scale
#   dictionaries  recall at the tiny scale with 1 to 16 heads, at equal bytes of state and at equal head dim
#   ideas         recall at the tiny scale with variants of the dictionary
# Runs go side by side, one thread each; what is finished is not done again, and what was interrupted goes on. The seeds
# are 10, 11 and 12: none was used to find the recipe.
# Usage: scripts/recall.sh [GROUP ...]; OVQ is the program, RUNS (runs/recall) receives the runs.
set -euo pipefail
cd "$(dirname "$0")/.."
export ovq=${OVQ:-build/release/ovq} runs=${RUNS:-runs/recall}
seeds=(10 11 12)

# A line per run: name | seed | options of `ovq train` | options of `ovq eval`
weighted='"weighted_writes": true'
ovq_options() { printf -- "--model-options {\"mixers\":{\"ovq\":{%s}}}" "${1// /}"; }
small() {
  local lengths="--lengths 512,1024,2048,4096,8192 --rows 48"
  local keeps="$lengths --keep 1,0.33,0.2,0.11" recall="--task recall --scale small"
  for seed in "${seeds[@]}"; do
    echo "sw-ovq-weighted|$seed|$recall --model sw-ovq $(ovq_options "$weighted")|$keeps;$lengths --centroids 64,256,1024,4096"
    echo "sw-nope|$seed|$recall --model sw-nope|$lengths"
    echo "sw-ovq-plain|$seed|$recall --model sw-ovq-plain|$keeps"
    echo "sw-nope-plain|$seed|$recall --model sw-nope-plain|$lengths"
    echo "sw-ovq|$seed|$recall --model sw-ovq|$keeps;$lengths --centroids 64,256,1024,4096"
  done
}
tasks() {
  local seed task
  for seed in "${seeds[@]}"; do
    for task in positional-recall icl mqar; do
      local test="--rows 64" keeps="--rows 64 --keep 1,0.33,0.2"
      if [[ $task == positional-recall ]]; then
        test+=" --lengths 256,512,1024,2048,4096" keeps+=" --lengths 256,512,1024,2048,4096"
      fi
      echo "$task-sw-ovq|$seed|--task $task --scale tiny --model sw-ovq|$keeps"
      echo "$task-sw-ovq-weighted|$seed|--task $task --scale tiny --model sw-ovq $(ovq_options "$weighted")|$keeps"
      echo "$task-sw-nope|$seed|--task $task --scale tiny --model sw-nope|$test"
    done
  done
}
tiny_recall="--task recall --scale tiny --model sw-ovq"
tiny_keeps="--lengths 256,512,1024,2048 --rows 64 --keep 0.33,0.2,0.11"
heads() { ovq_options "\"heads\": $1, \"head_dim\": $2, \"beta_init\": $3"; }  # beta starts at 16
dictionaries() {
  local seed
  for seed in "${seeds[@]}"; do
    echo "1x128|$seed|$tiny_recall $(heads 1 128 1.414)|$tiny_keeps"
    echo "2x64|$seed|$tiny_recall $(heads 2 64 2)|$tiny_keeps"
    echo "4x32|$seed|$tiny_recall $(heads 4 32 2.828)|$tiny_keeps"
    echo "8x16|$seed|$tiny_recall|$tiny_keeps"
    echo "1x16|$seed|$tiny_recall $(heads 1 16 4)|$tiny_keeps"
    echo "2x16|$seed|$tiny_recall $(heads 2 16 4)|$tiny_keeps"
    echo "4x16|$seed|$tiny_recall $(heads 4 16 4)|$tiny_keeps"
    echo "16x16|$seed|$tiny_recall $(heads 16 16 4)|$tiny_keeps"
  done
}
ideas() {
  local seed
  for seed in "${seeds[@]}"; do
    echo "base|$seed|$tiny_recall|$tiny_keeps"
    echo "weighted-writes|$seed|$tiny_recall $(ovq_options "$weighted")|$tiny_keeps"
    echo "forgetting-0.1|$seed|$tiny_recall $(ovq_options '"rate": 0.1')|$tiny_keeps"
    echo "unit-norm-centroids|$seed|$tiny_recall $(ovq_options '"normalize": true')|$tiny_keeps"
  done
}

one() {  # group, line
  local name seed train tests out test
  IFS='|' read -r name seed train tests <<<"$2"
  out=$runs/$1/$name-$seed
  [[ -e $out.done ]] && return
  mkdir -p "$runs/$1"
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads 1
  else
    # shellcheck disable=SC2086
    "$ovq" train $train --seed "$seed" --out "$out" --threads 1
  fi >>"$out.log" 2>&1
  IFS=';' read -ra tests <<<"$tests"
  for test in "${tests[@]}"; do
    # shellcheck disable=SC2086
    "$ovq" eval "$out" $test --threads 1
  done >"$out.eval.log" 2>&1
  touch "$out.done"
}
export -f one

groups=("$@")
[[ $# -gt 0 ]] || groups=(small tasks dictionaries ideas)
for group in "${groups[@]}"; do
  [[ $group =~ ^(small|tasks|dictionaries|ideas)$ ]] || { echo "recall.sh: no group $group; there are small, tasks, dictionaries, ideas" >&2; exit 2; }
done
for group in "${groups[@]}"; do
  "$group" | tr '\n' '\0' | xargs -0 -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one "$0" "$1"' "$group" {}
  mapfile -t directories < <("$group" | awk -F'|' -v group="$runs/$group" '{ print group "/" $1 "-" $2 }')
  "$ovq" compare "${directories[@]}" --json >"results/recall-$group.json"
  "$ovq" compare "${directories[@]}"
done
