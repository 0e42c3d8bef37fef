#!/usr/bin/env bash
# Sets up, builds and runs the main job: trains three small language models on source code that this machine already has
# (the standard library of its Python), compares their loss far into files they have not seen, and completes a function.
# Usage: scripts/demo.sh [DIR [SEED]]
# DIR (default runs/demo) receives everything, SEED is 0. A second call continues the first.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-runs/demo} seed=${2:-0}
ovq=build/release/ovq
models="sw sw-ovq sw-nope"

scripts/setup.sh
cmake --preset release --log-level=WARNING >/dev/null
cmake --build --preset release --target ovq

start=$SECONDS
mkdir -p "$runs"
code=$runs/code
[[ -d $code ]] || /usr/bin/python3 scripts/code-corpus.py "$code" --installed
tokenizer=$code/tokenizer.model
[[ -e $tokenizer ]] || "$ovq" tokenize train "$code/train" --vocab 1024 --lines 50000 --out "$tokenizer"
for part in train valid; do
  [[ -e $code/$part.tokens ]] ||
    "$ovq" tokenize apply "$code/$part" --tokenizer "$tokenizer" --out "$code/$part.tokens"
done

cat <<END

Training three models of the same size on 1,024 tokens at a time. They differ in every second layer:
  sw       a sliding window of 32 tokens, as in the other layers
  sw-ovq   OVQ-attention: a dictionary of at most 512 centroids
  sw-nope  full attention: all keys and values are kept
END
files='{"train": "'$code'/train.tokens", "test": "'$code'/valid.tokens", "tokenizer": "'$tokenizer'", "bin": 256}'
# Few tokens a step: 2,000 steps of 1,024 tokens separate the models, 240 steps of 8,192 (as many tokens) did not.
train() {
  local out=$runs/$1
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads 1
  else
    "$ovq" train --task text --scale tiny --model "tiny/text-$1" --lengths 1024 --steps 3000 --warmup 100 \
      --tokens-per-step 1024 --learning-rate 0.008 --eval-every 0 --seed "$seed" --task-options "$files" --out "$out" \
      --threads 1
  fi 2>&1 | sed -u "s/^/$(printf '%-9s' "$1")/"
}
children=()
for model in $models; do
  train "$model" &
  children+=($!)
done
for child in "${children[@]}"; do wait "$child"; done
trained=$SECONDS

echo
echo "Reading files that were held out, 4,096 tokens at a time: four times the length of training."
evaluate() { "$ovq" eval "$runs/$1" --lengths 4096 --rows 32 "${@:2}" >/dev/null; }
evaluate sw
evaluate sw-ovq --centroids 256,1024,4096
evaluate sw-nope
echo
"$ovq" compare --by-position --svg "$runs/loss.svg" "$runs/sw" "$runs/sw-ovq" "$runs/sw-nope"
cat <<END
state: what a sequence of 4,096 tokens leaves in memory. The picture is also in $runs/loss.svg.
END

prompt=$runs/prompt.txt
# The beginning of a file, up to the first line of a function after 6,700 bytes, about 4,000 tokens.
awk '{ print; bytes += length + 1 } bytes > 6700 && /^ *def .*:$/ { exit }' "$code"/valid/*asyncio-selector_events* >"$prompt"
echo
echo "sw-ovq reads $(wc -c <"$prompt") bytes of a file it has not seen ($prompt) and goes on from its last lines:"
tail -n 6 "$prompt" | sed 's/^/  | /'
"$ovq" generate "$runs/sw-ovq" --prompt-file "$prompt" --centroids 4096 --tokens 80 --seed "$seed" 2>/dev/null | sed 's/^/  > /'
cat <<END

Trained in $((trained - start)) s, tested in $((SECONDS - trained)) s. Next:
  $ovq eval $runs/sw-ovq --lengths 16384 --centroids 8192   longer files, a larger dictionary
  $ovq generate $runs/sw-ovq --prompt-file FILE             complete a file of your own
  scripts/demo-recall.sh                                      the same comparison on pairs to be remembered
  $ovq bench kernels --quick                                  the kernels against this machine's peak
END
