#!/usr/bin/env bash
# Trains full attention and OVQ-attention on recall at the small scale, each with its aids (value shift, convolution,
# heads of 16) and plain, three seeds each, tests them at 1 to 16 times the training length and at several shares of the
# context kept, and writes results/recall-small.json. Twelve runs of 10 to 30 minutes on one core each; what is finished
# is not done again. None of the seeds was used to find the recipe.
# Usage: scripts/recall-small.sh [DIR]; DIR (runs/recall-small) receives the runs; OVQ is the program.
set -euo pipefail
cd "$(dirname "$0")/.."
export ovq=${OVQ:-build/release/ovq} runs=${1:-runs/recall-small}

one() {  # model:seed, on one thread, so that as many runs go side by side as there are cores
  local model=${1%:*} seed=${1##*:} out=$runs/${1/:/-}
  mkdir -p "$runs"
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads 1
  else
    "$ovq" train --task recall --scale small --model "$model" --seed "$seed" --out "$out" --threads 1
  fi >>"$out.log" 2>&1
  local keep=()
  [[ $model == *ovq* ]] && keep=(--keep 1,0.33,0.2,0.11)
  "$ovq" eval "$out" --lengths 512,1024,2048,4096,8192 --rows 48 "${keep[@]}" --threads 1 >"$out.eval.log"
}
export -f one

names=()
for seed in 10 11 12; do
  for model in sw-ovq sw-nope sw-ovq-plain sw-nope-plain; do names+=("$model:$seed"); done
done
printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one {}'
directories=("${names[@]/:/-}")
"$ovq" compare "${directories[@]/#/$runs/}" --json >results/recall-small.json
"$ovq" compare "${directories[@]/#/$runs/}"
