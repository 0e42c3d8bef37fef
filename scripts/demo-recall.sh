#!/usr/bin/env bash
# Sets up, builds and trains a model with full attention and one with OVQ-attention on recall, tests both at up to 16
# times the length of training, and compares their accuracy and the size of their states.
# Usage: scripts/demo-recall.sh [DIR [SEED]]
# DIR (default runs/demo-recall) receives the runs, SEED is 0. A second call continues the first.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-runs/demo-recall} seed=${2:-0}
ovq=build/release/ovq

scripts/setup.sh
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target ovq

start=$SECONDS
threads=$((($(nproc) + 1) / 2))  # the two are trained side by side
train() {
  local out=$runs/$1
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads "$threads"
  else
    "$ovq" train --task recall --scale tiny --model "$1" --seed "$seed" --out "$out" --threads "$threads" --eval-every 200
  fi 2>&1 | sed -u "s/^/$(printf '%-8s' "$1")/"
}

echo
echo "Training: contexts of up to 256 tokens hold pairs of keys and values, then the values of some keys are asked for."
train sw-nope &
nope=$!
train sw-ovq
wait "$nope"
trained=$SECONDS

echo
echo "Testing at up to 16 times that length, OVQ-attention with a centroid for every token, for a third and for a fifth."
lengths=256,512,1024,2048,4096
"$ovq" eval "$runs/sw-nope" --lengths "$lengths" >/dev/null
"$ovq" eval "$runs/sw-ovq" --lengths "$lengths" --keep 1,0.33,0.2 >/dev/null
echo
"$ovq" compare "$runs/sw-nope" "$runs/sw-ovq"
cat <<END
keep is the share of the context's tokens that have a centroid of their own at its end; in training it is 0.33 at the longest context. A sliding-window layer and a layer of full
attention (sw-nope) or OVQ-attention (sw-ovq) take turns. State: what a sequence of the longest length leaves in memory.
Trained in $((trained - start)) s, tested in $((SECONDS - trained)) s. The runs, their metrics and results lie in $runs.

Next:
  $ovq eval $runs/sw-ovq --lengths 4096 --centroids 2048      other lengths and dictionaries
  $ovq train --task recall --scale small --model sw-ovq       a larger model
  $ovq tasks recall                                           what the task looks like
  $ovq bench kernels --quick                                  the kernels against this machine's peak
END
