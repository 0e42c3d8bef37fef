#!/usr/bin/env bash
# `ovq reproduce` on a set of short runs: killed runs resume and end with the same numbers, finished ones are skipped,
# failures do not stop the others, and a result can be repeated from its file.
set -uo pipefail
ovq=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

failed() {
  echo "FAILED: $*"
  [[ ! -e out ]] || cat out
  failures=$((failures + 1))
}
expect() {  # exit code, text in what is printed, command ...
  local code=$1 text=$2 status=0
  shift 2
  "$@" >out 2>&1 || status=$?
  ((status == code)) && grep -qF -- "$text" out || failed "$* -> $status (expected $code, \"$text\")"
}
# The numbers of a result without times and speeds.
numbers() { grep -oE '"(accuracy|loss|targets|state_bytes|length|centroids|tokens|steps)":[^,}]*' "$1"; }
same_numbers() { diff <(numbers "$1") <(numbers "$2") >/dev/null || failed "$1 and $2 differ"; }

steps_of() { cat "$1/metrics.jsonl" 2>/dev/null | grep -c '"kind":"step"'; }

mkdir experiments
cat >experiments/short.json <<'SET'
{"groups": [{
  "name": "pair", "shows": "two short runs", "claims": [1], "seeds": [3, 4],
  "options": {"scale": "tiny", "steps": 150, "tokens_per_step": 256, "lengths": [16], "warmup": 5, "eval_every": 0,
              "eval_rows": 2, "checkpoint_every": 4},
  "evaluations": [{"lengths": [16, 32], "rows": 4, "keep": [1, 0.2]}, {"lengths": [16], "rows": 4, "centroids": [8]},
                  {"lengths": [32], "rows": 4, "groups": true}],
  "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}},
                  {"name": "sw-nope", "options": {"model": "sw-nope"}}]}]}
SET

expect 0 '4 runs, 0 of them done' "$ovq" reproduce short --dry-run
[[ ! -e runs && ! -e results ]] || failed 'a dry run wrote something'
expect 0 '2 runs, 0 of them done' "$ovq" reproduce short --seeds 1 --dry-run
expect 0 '2 runs, 0 of them done' "$ovq" reproduce short --only sw-ovq --dry-run
expect 2 'did you mean "sw-ovq"' "$ovq" reproduce short --only sw-ovk --dry-run
expect 2 'no experiment supports claim 2; there are experiments for 1' "$ovq" reproduce --claims 2 --dry-run
expect 2 'did you mean "short"' "$ovq" reproduce shrt
expect 2 '3 seeds were requested; pair/sw-ovq has 2' "$ovq" reproduce short --seeds 3
expect 1 'cannot open none.json' "$ovq" reproduce none.json

# All runs at once, then the same with a kill in the middle of each run.
expect 0 '| sw-ovq | keep 0.2 |' "$ovq" reproduce short --jobs 2
for run in sw-ovq-3 sw-ovq-4 sw-nope-3 sw-nope-4; do
  [[ -s results/short/pair/$run.json ]] || failed "no result of $run"
done
[[ ! -e runs/short/pair/sw-ovq-3 ]] || failed 'the directory of a finished run is still there'
# Without dictionaries the first and the last request both evaluate 32 tokens.
(($(grep -cF '"groups":[' results/short/pair/sw-nope-3.json) == 1)) || failed 'one evaluation of sw-nope has no groups'
(($(grep -c '"length":32' results/short/pair/sw-nope-3.json) == 1)) || failed 'sw-nope has one result twice'
expect 0 '4 runs, 4 of them done' "$ovq" reproduce short
killed=(--only sw-ovq --out again --runs "$work/killed" --jobs 2 --keep-runs)
trains() { pgrep -f -- "--resume $work/killed" >/dev/null; }
for signal in KILL TERM INT; do
  before=$(steps_of killed/pair/sw-ovq-3)
  env --default-signal=INT "$ovq" reproduce short "${killed[@]}" >out 2>&1 &  # which shells let such a command ignore
  parent=$!
  for ((i = 0; i < 600; ++i)); do
    (($(steps_of killed/pair/sw-ovq-3) <= before)) || break
    sleep 0.05
  done
  kill -"$signal" $parent || failed "$signal came too late"
  wait $parent 2>/dev/null
  for ((i = 0; i < 200; ++i)); do  # processes that train notice that their parent is gone
    trains || break
    sleep 0.05
  done
  ! trains || failed "training went on after $signal"
  [[ ! -e again/pair/sw-ovq-3.json ]] || failed "the run was over before $signal"
done
expect 0 'pair/sw-ovq-4' "$ovq" reproduce short "${killed[@]}"
for seed in 3 4; do same_numbers results/short/pair/sw-ovq-$seed.json again/pair/sw-ovq-$seed.json; done

# A run that was trained elsewhere with the same options is only evaluated, and its directory is kept.
mkdir found
cp -r killed/pair found/pair && rm found/pair/*/reproduce.json
expect 0 'pair/sw-ovq-3' "$ovq" reproduce short --only sw-ovq --seeds 1 --out adopted --runs found
same_numbers results/short/pair/sw-ovq-3.json adopted/pair/sw-ovq-3.json
grep -q '"commit": null' adopted/pair/sw-ovq-3.json || failed 'an adopted run has a commit'
[[ -e found/pair/sw-ovq-3/run.json ]] || failed 'an adopted run was removed'

# A result is repeated from its file alone; a changed number is detected.
expect 0 'every number equal' "$ovq" reproduce --from results/short/pair/sw-ovq-3.json
sed '0,/"accuracy":[0-9.]*/s//"accuracy":0.12345/' results/short/pair/sw-ovq-3.json >changed.json
expect 1 'accuracy was 0.12345, is' "$ovq" reproduce --from changed.json

# One run fails because its directory holds another run; the others continue.
sed -i 's/"steps": 150/"steps": 8/' found/pair/sw-ovq-4/run.json
expect 1 'found/pair/sw-ovq-4 holds a run with other options: steps' "$ovq" reproduce short --out mixed --runs found --jobs 2
[[ -s mixed/pair/sw-nope-4.json && ! -e mixed/pair/sw-ovq-4.json ]] || failed 'the others did not go on'

# The rate that the search chose is used; the search's runs are not needed once the result exists.
sed 's/"claims": \[1\],/"search": {"learning_rates": [1e-9, 2e-3], "seeds": [0]},/' experiments/short.json >search.json
expect 0 '| sw-nope | ' "$ovq" reproduce search.json --seeds 1 --only sw-nope --jobs 2
[[ $(ls results/search/pair/search) == $'sw-nope-rate-0.002-0.json\nsw-nope-rate-1e-09-0.json' ]] || failed "runs of the search: $(ls results/search/pair/search)"
grep -q '"learning_rate":0.002' results/search/pair/sw-nope-3.json || failed 'the worse rate was used'
# The search continues beyond an edge where the best rate lies.
sed -i 's/"learning_rates": \[1e-9, 2e-3\]/"learning_rates": [1e-3, 2e-3], "extend": 1/' search.json
expect 0 '| sw-nope | ' "$ovq" reproduce search.json --seeds 1 --only sw-nope --jobs 2 --out results/extended
(($(ls results/extended/pair/search | wc -l) == 3)) || failed "runs of the extended search: $(ls results/extended/pair/search)"
(($(grep -o '"learning_rate":[^,]*,"loss"' results/extended/pair/sw-nope-3.json | wc -l) == 3)) || failed 'what the extended search found'
expect 0 '1 runs, 1 of them done' "$ovq" reproduce search.json --seeds 1 --only sw-nope --out results/extended
rm -r results/search/pair/search
expect 0 '1 runs, 1 of them done' "$ovq" reproduce search.json --seeds 1 --only sw-nope

# On text, which is tokenised once; the search uses fewer steps than the reported runs.
mkdir -p books/train books/valid
for part in train/one train/two valid/three; do
  awk -v seed="${#part}" 'BEGIN {
    srand(seed)
    split("the a sea old ship captain saw lost under storm night and went home with her brother", words, " ")
    for (i = 0; i < 4000; ++i) printf "%s%s", words[1 + int(rand() * 16)], i % 12 == 11 ? ".\n" : " "
  }' >"books/$part.txt"
done
cat >experiments/books.json <<'SET'
{"corpus": {"vocab": 300, "questions": 20}, "groups": [{
  "name": "text", "seeds": [3],
  "options": {"task": "text", "scale": "tiny", "steps": 6, "tokens_per_step": 256, "lengths": [32], "warmup": 2,
              "eval_every": 0, "eval_rows": 2, "task_options": {"min_document": 0, "bin": 16}},
  "search": {"learning_rates": [1e-3, 2e-3], "seeds": [0], "options": {"steps": 3}},
  "evaluations": [{"lengths": [64], "rows": 4, "groups": true},
                  {"lengths": [64], "rows": 2, "identifiers": true, "centroids": [8, 16]}],
  "experiments": [{"name": "sw-ovq", "options": {"model": "sw-ovq"}}]}]}
SET
expect 0 '3 runs, 0 of them done' "$ovq" reproduce books --dry-run
expect 2 'give a folder with train/ and valid/ with --data' "$ovq" reproduce books
expect 2 'books/train has no folder train/; must have train/ and valid/' "$ovq" reproduce books --data books/train
expect 0 '| sw-ovq | ' "$ovq" reproduce books --data books --jobs 2
grep -q '"steps":3' results/books/text/search/sw-ovq-rate-0.002-0.json || failed 'the search has not its own steps'
grep -q '"steps":6' results/books/text/sw-ovq-3.json || failed 'the run has not its own steps'
grep -q '"groups"' results/books/text/sw-ovq-3.json || failed 'the loss is not there by position'
(($(grep -o '"last_spelled":"first"' results/books/text/sw-ovq-3.json | wc -l) == 2)) || failed 'the losses of identifiers'
grep -q '"accuracy_normalized"' results/books/text/sw-ovq-3.json || failed 'the questions were not answered'
expect 0 'every number equal' "$ovq" reproduce --from results/books/text/sw-ovq-3.json
expect 0 'every number equal' "$ovq" reproduce --from results/books/text/search/sw-ovq-rate-0.002-0.json
rm -r runs/books
expect 2 'give a folder with train/ and valid/ with --data' "$ovq" reproduce --from results/books/text/sw-ovq-3.json
expect 0 'every number equal' "$ovq" reproduce --from results/books/text/sw-ovq-3.json --data books
expect 0 '1 runs, 1 of them done' "$ovq" reproduce books
# Another text or tokenizer is not mistaken for the existing one.
sed -i 's/"vocab": 300/"vocab": 301/' experiments/books.json
expect 1 'was requested; remove the directory' "$ovq" reproduce books --data books
sed -i 's/"vocab": 301/"vocab": 300/; s/"seeds": .3./"seeds": [4]/' experiments/books.json
expect 1 'was requested; remove the directory' "$ovq" reproduce books --data books/train

((failures == 0)) && echo "all as expected"
exit $((failures > 0))
