#!/usr/bin/env bash
# Trains sw-nope and sw-ovq on recall at the small scale with three seeds each, tests them up to 16 times the training
# length, and writes results/recall-small.json. About an hour on two cores; what is finished is not done again.
# Usage: scripts/recall-small.sh [DIR]; DIR (runs/recall-small) receives the runs; OVQ is the program.
set -euo pipefail
cd "$(dirname "$0")/.."
export ovq=${OVQ:-build/release/ovq} runs=${1:-runs/recall-small}

one() {  # model-seed: on one thread, so that as many runs go side by side as there are cores
  local model=${1%-*} seed=${1##*-} out=$runs/$1
  mkdir -p "$runs"
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads 1
  else
    "$ovq" train --task recall --scale small --model "$model" --seed "$seed" --out "$out" --threads 1
  fi >>"$out.log" 2>&1
  local centroids=()
  [[ $model == sw-ovq ]] && centroids=(--centroids 256,512,1024,2048)
  "$ovq" eval "$out" --lengths 256,512,1024,2048,4096 "${centroids[@]}" --threads 1 >"$out.eval.log"
}
export -f one

printf '%s\n' sw-{nope,ovq}-{0,1,2} | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one {}'
"$ovq" compare "$runs"/sw-{nope,ovq}-{0,1,2} --json >results/recall-small.json
"$ovq" compare "$runs"/sw-{nope,ovq}-{0,1,2}
