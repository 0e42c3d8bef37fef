#!/usr/bin/env bash
# Errors print one line on stderr, set the right exit code and never damage earlier checkpoints.
set -uo pipefail
ovq=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

expect() {  # exit code, text on stderr, command ...
  local code=$1 text=$2 status=0
  shift 2
  "$@" >"$work/out" 2>"$work/err" || status=$?
  if ((status != code)) || ! grep -qF -- "$text" "$work/err" || (($(wc -l <"$work/err") != 1)); then
    echo "FAILED: $* -> $status (expected $code, \"$text\")"
    cat "$work/err"
    failures=$((failures + 1))
  fi
}

tiny=(--scale tiny --steps 4 --tokens-per-step 256 --lengths 16 --eval-rows 2 --checkpoint-every 2)
expect 2 'did you mean "sw-ovq"' "$ovq" train --model sw-ovk --out "$work/run"
expect 2 'did you mean "recall"' "$ovq" train --task recal --out "$work/run"
expect 2 'did you mean "--steps"' "$ovq" train --stepps 3
expect 2 'did you mean "--keep-checkpoints"' "$ovq" train --keep 3
expect 2 'did you mean "train"' "$ovq" trian
expect 2 'tiny' "$ovq" train --scale huge --out "$work/run"
expect 2 'is not a JSON object' "$ovq" train --task-options '[1]' --out "$work/run"
expect 2 '--model-options holds null; give a value' "$ovq" train --model-options '{"mixers": {"sw": {"window": null}}}' --out "$work/run"
expect 1 'cannot open' "$ovq" train --config "$work/none.json"
expect 1 'is not a run' "$ovq" train --resume "$work/none"
expect 1 'is not a run' "$ovq" eval "$work/none"
[[ ! -e $work/run ]] || { echo "FAILED: a refused run left a directory"; failures=$((failures + 1)); }

echo x >"$work/file"
expect 1 "$work/file" "$ovq" train "${tiny[@]}" --out "$work/file/run"
mkdir "$work/empty" && : >"$work/empty/a.txt"
for data in "$work/missing" "$work/empty"; do
  expect 1 "$data" "$ovq" train "${tiny[@]}" --task text --task-options "{\"train\": \"$data\", \"test\": \"$work/file\"}" --out "$work/text"
done

"$ovq" train "${tiny[@]}" --out "$work/good" >/dev/null || { echo "FAILED: a good run"; failures=$((failures + 1)); }
expect 1 'already holds a run' "$ovq" train "${tiny[@]}" --out "$work/good"
expect 2 'at least' "$ovq" eval "$work/good" --lengths 1

for option in --centroids --rows --batch --piece --lengths; do
  expect 2 "$option: 0; must be at least 1" "$ovq" eval "$work/good" $option 0
  expect 2 "$option: x is not an integer; must be one of at least 1" "$ovq" eval "$work/good" $option x
done
expect 2 '--lengths: -4; must be at least 1' "$ovq" eval "$work/good" --lengths 16,-4
expect 2 '--rounds: 0; must be at least 1' "$ovq" bench step --rounds 0

# Numbers are parsed alike everywhere: values beyond 64 bits, infinity and words are rejected.
for option in --tokens --seed; do
  expect 2 "$option: 99999999999999999999; must be at most" "$ovq" generate "$work/good" --prompt x $option 99999999999999999999
  expect 2 "$option: -1; must be at least 0" "$ovq" generate "$work/good" --prompt x $option -1
done
expect 2 '--seed: -1; must be at least 0' "$ovq" tasks recall --seed -1
expect 2 '--seed: -1; must be at least 0' "$ovq" train --seed -1
expect 2 '--step: 1e3 is not an integer' "$ovq" tasks recall --step 1e3
expect 2 '--length: 0; must be at least 1' "$ovq" tasks recall --length 0
for bad in nan inf; do
  expect 2 "--learning-rate: $bad; must be a finite number" "$ovq" train --learning-rate $bad
  expect 2 "--temperature: $bad; must be a finite number" "$ovq" generate "$work/good" --prompt x --temperature $bad
done
expect 2 '--lengths: "" is not an integer' "$ovq" train --lengths ''
expect 2 '--threads: 0; must be in [1, 1024]' "$ovq" train --threads 0
big=99999999999999999999
expect 2 "--threads: $big; must be in [1, 1024]" "$ovq" train --threads $big
expect 2 "--vocab: $big; must be in [" "$ovq" tokenize train "$work/file" --vocab $big --out "$work/model"
expect 2 "--rows: -$big; must be at least 1" "$ovq" eval "$work/good" --rows -$big
expect 2 '--learning-rate: 1e-400; is too close to 0' "$ovq" train --learning-rate 1e-400
expect 2 '--learning-rate: 1e400; must be at most' "$ovq" train --learning-rate 1e400

# Alternative phrasings of errors.
expect 2 'train needs options' "$ovq" train
grep -q -- '--checkpoint-every' "$work/out" || { echo 'FAILED: no help of train'; failures=$((failures + 1)); }
expect 1 "$work is a directory; expected a JSON file" "$ovq" train --config "$work" --out "$work/run"
expect 1 "$work is a directory; expected a JSON file" "$ovq" bench kernels --quick --compare "$work"
expect 2 '--data requires --task text' "$ovq" eval "$work/good" --data "$work/file"
expect 2 '--restarts requires --processes' "$ovq" train --steps 1 --restarts 1
expect 2 'the nearest of' "$ovq" inspect no-such-preset
(($(tr -cd , <"$work/err" | wc -c) == 4)) || { echo 'FAILED: not five presets'; cat "$work/err"; failures=$((failures + 1)); }
cp -r "$work/good" "$work/a run" && rm "$work/a run/evaluations.jsonl" 2>/dev/null
"$ovq" train --resume "$work/a run" >"$work/out" && grep -qF "ovq eval '$work/a run'" "$work/out" ||
  { echo 'FAILED: a path with a space is not quoted'; cat "$work/out"; failures=$((failures + 1)); }

# A checkpoint without the optimiser's state is a normal model, but training cannot resume from it.
cp -r "$work/good" "$work/light" && rm "$work"/light/checkpoints/*/optimizer.safetensors
for command in 'eval --lengths 16 --rows 2' inspect; do
  "$ovq" $command "$work/light" >"$work/out" 2>"$work/err" && [[ ! -s $work/err ]] ||
    { echo "FAILED: $command without optimizer.safetensors"; cat "$work/err"; failures=$((failures + 1)); }
done
"$ovq" train --resume "$work/light" >"$work/out" 2>"$work/err"
(($? == 1)) && tail -n 1 "$work/err" | grep -qF 'has no checkpoint with optimizer.safetensors' ||
  { echo 'FAILED: --resume without optimizer.safetensors'; cat "$work/err"; failures=$((failures + 1)); }

# The example that --help shows for --task-options is accepted.
options=$("$ovq" train --help | tr '\n' ' ' | grep -oP -- "--task-options.*?'\K\{[^']*\}" | head -n 1 | tr -s ' ')
"$ovq" tasks recall --task-options "$options" >/dev/null || { echo "FAILED: --task-options $options, as --help has it"; failures=$((failures + 1)); }

expect 2 'must be given together' "$ovq" eval "$work/good" --benchmark piqa
expect 2 'not on text' "$ovq" eval "$work/good" --benchmark piqa --questions "$work/file"

# If the newest checkpoint is damaged, every command says so once and uses the one before.
cp -r "$work/good" "$work/damaged"
newest=$(ls -d "$work"/damaged/checkpoints/* | tail -n 1)
printf '\xff' | dd of="$newest/model.safetensors" bs=1 seek=$(($(stat -c %s "$newest/model.safetensors") - 99)) conv=notrunc status=none
for command in 'eval --lengths 16 --rows 2' inspect 'train --resume'; do
  expect 0 "skipping a damaged checkpoint: [Safetensors] $newest/model.safetensors" "$ovq" $command "$work/damaged"
done

# `ovq compare` works for a run on text without the text.
mkdir "$work/books" && for split in train test; do seq 1 2000 | tr '\n' ' ' >"$work/books/$split.txt"; echo "$split" >>"$work/books/$split.txt"; done
"$ovq" train "${tiny[@]}" --task text --task-options "{\"train\": \"$work/books/train.txt\", \"test\": \"$work/books/test.txt\"}" --out "$work/prose" >/dev/null &&
  "$ovq" eval "$work/prose" --lengths 64 --rows 2 >/dev/null || { echo "FAILED: a run on text"; failures=$((failures + 1)); }
rm -r "$work/books"
"$ovq" compare "$work/prose" | grep -q 'text (tiny), loss' || { echo "FAILED: compare without the text"; failures=$((failures + 1)); }
expect 1 'does not exist' "$ovq" eval "$work/prose" --lengths 64 --rows 2

check() {  # what it is, command ...
  local what=$1
  shift
  "$@" >"$work/out" 2>&1 || { echo "FAILED: $what"; cat "$work/out"; failures=$((failures + 1)); }
}

# Dictionaries by the share they keep: one row per share, besides the rows by N.
for bad in 0 -0.1 1.01; do expect 2 "--keep: $bad; must be in (0, 1]" "$ovq" eval "$work/good" --keep "$bad"; done
for bad in x '""'; do expect 2 "--keep: $bad is not a number; must be one in (0, 1]" "$ovq" eval "$work/good" --keep "${bad//\"/}"; done
expect 2 '--centroids excludes --keep' "$ovq" eval "$work/good" --keep 0.2 --centroids 16
expect 2 "--eval-keep: 2; must be in (0, 1]" "$ovq" train "${tiny[@]}" --eval-keep 2 --out "$work/run"
check 'eval --keep' "$ovq" eval "$work/good" --lengths 16,32 --rows 2 --keep 0.2,1
grep -Eq '^ +16 +4 +0.200 ' "$work/out" && grep -Eq '^ +32 +8 +0.200 ' "$work/out" && grep -Eq '^ +32 +all +1.000 ' "$work/out" ||
  { echo 'FAILED: sizes of eval --keep'; cat "$work/out"; failures=$((failures + 1)); }
check 'eval --centroids' "$ovq" eval "$work/good" --lengths 16 --rows 2 --centroids 4
check 'compare' "$ovq" compare "$work/good"
number='[01]\.[0-9]{3}'
for row in "N 4 +$number +- +4 +0.200" "keep 0.2 +$number +$number +8 +0.200" "keep 1 +$number +$number +all +1.000"; do
  (($(grep -Ec "\[good\] $row" "$work/out") == 1)) || { echo "FAILED: compare has no row \"$row\""; cat "$work/out"; failures=$((failures + 1)); }
done

# Phases and initial weights: errors are reported before anything is written.
base=(--scale tiny --tokens-per-step 256 --lengths 16 --eval-rows 2 --checkpoint-every 2)
phases() { echo "$1" >"$work/phases.json"; }
phases '[{"steps": 2}, {"steps": 0}]'
expect 2 'phases[1].steps is 0; must be an integer of at least 1' "$ovq" train "${base[@]}" --phases "$work/phases.json" --out "$work/run"
phases '[{"steps": 2, "centroid": 4}]'
expect 2 'did you mean "centroids"' "$ovq" train "${base[@]}" --phases "$work/phases.json" --out "$work/run"
phases 'null'
expect 2 'phases is of type null; must be a list' "$ovq" train "${base[@]}" --phases "$work/phases.json" --out "$work/run"
phases '[{"steps": 2}, {"steps": 2, "lengths": [2]}]'
expect 2 'phases[1]: [mixture] length is 2' "$ovq" train "${base[@]}" --phases "$work/phases.json" --out "$work/run"
phases '[{"steps": 2, "centroids": 4}, {"steps": 3, "lengths": [16, 32]}]'
expect 2 '--steps and --phases exclude each other' "$ovq" train "${tiny[@]}" --phases "$work/phases.json" --out "$work/run"
expect 2 'phases[0].centroids is 4; gdn has no OVQ-attention' "$ovq" train "${base[@]}" --model gdn --phases "$work/phases.json" --out "$work/run"
expect 1 "cannot open $work/none" "$ovq" train "${base[@]}" --phases "$work/none" --out "$work/run"
expect 1 'is neither a model nor a run' "$ovq" train "${tiny[@]}" --init-from "$work/none" --out "$work/run"
expect 1 'which the model lacks' "$ovq" train "${tiny[@]}" --model gdn --init-from "$work/good" --out "$work/run"
expect 1 'embed.weight is [128, 64]; the model' "$ovq" train "${tiny[@]}" --task-options '{"vocab": 99}' --init-from "$work/good" --out "$work/run"
expect 2 'init_from is ""; must be a directory' "$ovq" train "${tiny[@]}" --init-from '' --out "$work/run"
[[ ! -e $work/run ]] || { echo "FAILED: a refused run left a directory"; failures=$((failures + 1)); }
check 'phases' "$ovq" train "${base[@]}" --phases "$work/phases.json" --init-from "$work/good" --eval-keep 0.2 --out "$work/phased"
for text in 'starting from the weights of' 'phase 2 of 2: 3 steps at lengths \[16,32\]' 'at length 32, keep 0.2' '^5 steps'; do
  grep -q "$text" "$work/out" || { echo "FAILED: no \"$text\""; cat "$work/out"; failures=$((failures + 1)); }
done
grep -q "\"sha256\": \"$(sha256sum <"$work/good/checkpoints/step-000004/model.safetensors" | cut -d' ' -f1)\"" "$work/phased/run.json" ||
  { echo 'FAILED: the SHA-256 in run.json'; cat "$work/phased/run.json"; failures=$((failures + 1)); }
expect 2 '--resume uses the options of the run' "$ovq" train --resume "$work/phased" --phases "$work/phases.json"

# Checkpoints of another model are rejected and remain unchanged.
"$ovq" train "${tiny[@]}" --model gdn --out "$work/other" >/dev/null
expect 2 '--keep: gdn has no OVQ-attention' "$ovq" eval "$work/other" --keep 0.2
expect 2 'eval_keep is [0.2]; gdn has no OVQ-attention' "$ovq" train "${tiny[@]}" --model gdn --eval-keep 0.2 --out "$work/run"
rm -r "$work/other/checkpoints" && cp -r "$work/good/checkpoints" "$work/other/checkpoints"
expect 1 'another model' "$ovq" train --resume "$work/other"
diff -r "$work/good/checkpoints" "$work/other/checkpoints" >/dev/null || { echo "FAILED: checkpoints changed"; failures=$((failures + 1)); }

# A full disk, simulated by a limit on the size of files.
"$ovq" train "${tiny[@]}" --out "$work/full" >/dev/null
sed -i 's/"steps": 4/"steps": 8/' "$work/full/run.json"
before=$(ls "$work/full/checkpoints")
status=0
(
  trap '' XFSZ
  ulimit -f 64
  "$ovq" train --resume "$work/full"
) >"$work/out" 2>"$work/err" || status=$?
if ((status != 1)) || [[ $(ls "$work/full/checkpoints") != "$before" ]]; then
  echo "FAILED: disk full -> $status, checkpoints: $(ls "$work/full/checkpoints")"
  cat "$work/err"
  failures=$((failures + 1))
fi
"$ovq" train --resume "$work/full" >/dev/null || { echo "FAILED: resume after a full disk"; failures=$((failures + 1)); }

((failures == 0)) && echo "all errors as expected"
exit $((failures > 0))
