#!/usr/bin/env bash
# Trains language models that differ only in their layers on the same text, and measures their loss by position at four
# times the training length: results/language-model.json and .svg. Everything is equal but the layers: parameters (within
# 1 %), tokens, tokenizer, and a search over the same learning rates, in short runs with a quarter of the steps.
#   DIR/train/*.txt and DIR/valid/*.txt are the text, a document each.
# Runs go side by side, one thread each. What is finished is not done again, and what was interrupted goes on: start it
# again, with the same options, as often as needed.
# Usage: scripts/language-model.sh --data DIR [--out runs/text] [--results results/language-model] [--models "sw sw-ovq"]
#          [--rates "1e-3 2e-3 4e-3"] [--seeds "0"] [--steps 750] [--search-steps 190] [--vocab 2048] [--jobs N]
# OVQ is the program. On one core of a Sapphire Rapids (OPENBLAS_CORETYPE=SkylakeX) a run takes 17 (sw) to 24 (std-att)
# minutes, the eight with their search about 4.8 hours, each further seed 2.7.
set -euo pipefail
cd "$(dirname "$0")/.."
export ovq=${OVQ:-build/release/ovq}

data= runs=runs/text results=results/language-model
models="sw sw-ovq sw-nope gdn sw-gdn gdn-ovq std-att ovq-rope"
rates="1e-3 2e-3 4e-3" seeds=0 vocab=2048 jobs=$(nproc)
export steps=750 search_steps=190 length=1024 windows=128
while (($#)); do
  case $1 in
    --data) data=$2 ;;
    --out) runs=$2 ;;
    --results) results=$2 ;;
    --models) models=$2 ;;
    --rates) rates=$2 ;;
    --seeds) seeds=$2 ;;
    --steps) steps=$2 ;;
    --search-steps) search_steps=$2 ;;
    --vocab) vocab=$2 ;;
    --jobs) jobs=$2 ;;
    *) echo "language-model.sh: unknown option $1; the first lines of the script say which there are" >&2; exit 2 ;;
  esac
  shift 2
done
[[ -d $data/train && -d $data/valid ]] || { echo "language-model.sh: --data needs a folder with train/ and valid/" >&2; exit 2; }
mkdir -p "$runs"
runs=$(realpath "$runs")
export runs

[[ -e $runs/tokenizer.model ]] || "$ovq" tokenize train "$data/train" --vocab "$vocab" --lines 200000 --out "$runs/tokenizer.model"
for split in train valid; do
  [[ -e $runs/$split.tokens ]] || "$ovq" tokenize apply "$data/$split" --tokenizer "$runs/tokenizer.model" --out "$runs/$split.tokens"
done

one() {  # name of the run, model, seed, learning rate, steps
  local out=$runs/$1
  [[ -e $out.done ]] && return
  if [[ -e $out/run.json ]]; then
    "$ovq" train --resume "$out" --threads 1
  else
    "$ovq" train --task text --scale small --model "small/text-$2" --seed "$3" --learning-rate "$4" --steps "$5" \
      --lengths "$length" --tokens-per-step 8192 --warmup "$(($5 / 10))" --eval-every 0 --eval-rows 64 \
      --task-options "{\"train\": \"$runs/train.tokens\", \"test\": \"$runs/valid.tokens\", \"tokenizer\": \"$runs/tokenizer.model\"}" \
      --out "$out" --threads 1
  fi >>"$out.log" 2>&1
  touch "$out.done"
}
final_loss() { sed -n 's/.*"kind":"evaluation".*"loss":\([0-9.e-]*\),.*/\1/p' "$runs/$1/metrics.jsonl" | tail -n 1; }
best_rate() {  # model, rates ...: of the short runs, the one with the lowest loss at its end
  local model=$1 rate
  shift
  for rate in "$@"; do echo "$(final_loss "search-$model-$rate") $rate"; done | sort -g | head -n 1 | cut -d' ' -f2
}
full() {  # model, seed, learning rate: train, then the loss by position
  one "$1-$2" "$1" "$2" "$3" "$steps"
  [[ -s $runs/$1-$2.json ]] && return
  "$ovq" eval "$runs/$1-$2" --task text --data "$runs/valid.tokens" --length $((4 * length)) --bin 256 \
    --windows "$windows" --threads 1 --json >"$runs/$1-$2.json.part"
  mv "$runs/$1-$2.json.part" "$runs/$1-$2.json"
}
export -f one full
parallel() { xargs -r -L 1 -P "$jobs" bash -c 'set -euo pipefail; "$0" "$@"'; }  # lines: function, arguments

for model in $models; do
  for rate in $rates; do echo "one search-$model-$rate $model 0 $rate $search_steps"; done
done | parallel
for seed in $seeds; do
  # shellcheck disable=SC2086
  for model in $models; do echo "full $model $seed $(best_rate "$model" $rates)"; done
done | parallel

# What was found, in one file: a line per run.
{
  echo '['
  separator=
  for model in $models; do
    # shellcheck disable=SC2086
    rate=$(best_rate "$model" $rates)
    searched=$(for r in $rates; do printf '%s"%s": %s' "${s:-}" "$r" "$(final_loss "search-$model-$r")"; s=', '; done)
    for seed in $seeds; do
      printf '%s{"model": "%s", "seed": %s, "learning_rate": %s, "steps": %s, "train_length": %s, "search": {%s}, "text": %s}' \
        "$separator" "$model" "$seed" "$rate" "$steps" "$length" "$searched" "$(tr -d '\n' <"$runs/$model-$seed.json" | tr -s ' ')"
      separator=$',\n'
    done
  done
  printf '\n]\n'
} >"$results.json.part"
mv "$results.json.part" "$results.json"

command -v gnuplot >/dev/null || { echo "language-model.sh: no gnuplot, no figure (Debian: gnuplot-nox)"; exit 0; }
points=$(mktemp -d)
trap 'rm -rf "$points"' EXIT
plots=
for model in $models; do  # position and loss, mean over the seeds
  for seed in $seeds; do
    tr -d ' \n' <"$runs/$model-$seed.json" | grep -o '{"bits_per_byte":[^}]*}' |
      sed 's/.*"first":\([0-9]*\),"loss":\([0-9.e-]*\),.*/\1 \2/'
  done | awk '{ sum[$1] += $2; count[$1]++ } END { for (x in sum) print x + 128, sum[x] / count[x] }' | sort -g >"$points/$model"
  plots+="'$points/$model' with linespoints title '$model', "
done
gnuplot <<PLOT
set terminal svg size 800,480 background 'white'
set output '$results.svg'
set xlabel 'position in the window'
set ylabel 'loss per token'
set key outside right
set arrow from $length, graph 0 to $length, graph 1 nohead dashtype 2
plot $plots
PLOT
echo "$results.json, $results.svg"
