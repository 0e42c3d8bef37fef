#!/usr/bin/env bash
# Outputs never overwrite inputs. An unwritable place is rejected before the work; if it disappears later, the result is
# written elsewhere. Runs refer to the same files from every directory.
set -uo pipefail
ovq=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

failed() { echo "FAILED: $*"; [[ ! -s err ]] || cat err; failures=$((failures + 1)); }
expect() {  # exit code, text on stderr, command ...
  local code=$1 text=$2 status=0
  shift 2
  "$@" >out 2>err </dev/null || status=$?
  ((status == code)) && grep -qF -- "$text" err && (($(wc -l <err) == 1)) || failed "$* -> $status (expected $code, \"$text\")"
}
check() { "$@" >out 2>err </dev/null || failed "$*"; }

mkdir books
seq 1 2000 | sed 's/.*/The captain saw & whales./' >books/train.txt
seq 1 900 | sed 's/.*/The sailor heard & songs./' >test.txt
check "$ovq" tokenize train books --vocab 300 --out words.model
small='{"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "mixers": {"ovq": {"heads": 1, "head_dim": 16}, "sw": {"heads": 1, "head_dim": 16}}}'
task='{"train": "books/train.txt", "test": "test.txt", "tokenizer": "words.model"}'
check "$ovq" train --task text --task-options "$task" --model-options "$small" --steps 2 --tokens-per-step 256 --lengths 32 --eval-rows 2 --out run
model=$(ls -d run/checkpoints/* | tail -n 1)

# An output that is also an input: by name, through a link, or as part of an input directory.
ln -s books/train.txt symbolic.txt
ln books/train.txt hard.txt
ln "$model/model.safetensors" weights
ln -s "$model/tokenizer.model" tokenizer
find . -type f -exec sha256sum {} + | sort >before
read='is read by this command'
for out in books/train.txt symbolic.txt hard.txt ./books/../hard.txt; do
  expect 2 "--out: $out $read" "$ovq" tokenize apply books --out "$out"
  expect 2 "--out: $out $read" "$ovq" tokenize train books/train.txt --vocab 300 --out "$out"
done
expect 2 "--out: words.model $read" "$ovq" tokenize apply books --tokenizer words.model --out words.model
for out in "$model/model.safetensors" weights tokenizer; do
  expect 2 "--save-state: $out $read" "$ovq" generate run --prompt x --save-state "$out"
  expect 2 "--save-state: $out $read" "$ovq" generate "$model" --prompt x --save-state "$out"
done
expect 2 "--save-state: test.txt $read" "$ovq" generate run --prompt-file test.txt --save-state test.txt
for out in run/run.json run/metrics.jsonl "$model/tokenizer.bytes"; do
  expect 2 "belongs to the model or run in" "$ovq" generate "$model" --prompt x --save-state "$out"
done
expect 2 "belongs to the model or run in" "$ovq" tokenize apply books --out run/run.json
# A model in a directory of links, as in download caches.
mkdir -p cache blobs && cp "$model/config.json" cache && cp "$model/model.safetensors" blobs/abc && ln -s ../blobs/abc cache/model.safetensors
expect 2 "belongs to the model or run in $work/cache" "$ovq" tokenize apply books --out cache/model.safetensors
[[ -L cache/model.safetensors ]] || failed 'a link of a model was replaced'
rm -r cache blobs
echo '{}' >old.json
expect 2 "--json: old.json $read" "$ovq" bench kernels --quick --json old.json --compare old.json
rm old.json
printf '/save %s\n' "$model/model.safetensors" | "$ovq" chat run >out 2>err
grep -qF "/save: $model/model.safetensors $read" err || failed 'chat /save over the model'
find . -type f ! -name out ! -name err ! -name before -exec sha256sum {} + | sort | diff <(grep -v ' ./before$\| ./out$\| ./err$' before) - || failed 'a file changed'

# An unwritable place is rejected before the work. (The prompt would be another error.)
for flags in 'generate run --prompt-file none --save-state' 'tokenize apply none --out' 'tokenize train none --out' 'bench kernels --json'; do
  expect 1 'the directory nowhere does not exist' "$ovq" $flags nowhere/file
  expect 1 'test.txt is not a directory' "$ovq" $flags test.txt/file
  expect 2 'books is a directory; expected the name of a file' "$ovq" $flags books
  expect 2 '/dev/null is not a regular file' "$ovq" $flags /dev/null
done
expect 1 '/test.txt is not a directory' "$ovq" train --task text --task-options '{"train": "none"}' --out test.txt/run
expect 1 'run already holds a run' "$ovq" train --task text --task-options '{"train": "none"}' --out run

# The place disappears during the work: the state is kept elsewhere.
mkdir gone temporary
mkfifo pipe
exec 3<>pipe
TMPDIR=$work/temporary "$ovq" generate run --prompt-file - --tokens 1 --save-state gone/state.ovq <pipe 3<&- >out 2>err &
for ((i = 0; i < 200; ++i)); do  # until it reads stdin, after its checks
  grep -q '^0 0x0 ' "/proc/$!/syscall" && break
  sleep 0.05
done
rmdir gone
echo 'The captain' >&3
exec 3>&-
wait $!
(($? == 1)) || failed 'exit code of a state that could not be saved'
kept=$(sed -n 's/.*the result is in \(.*\) instead/\1/p' err)
[[ -n $kept ]] && check "$ovq" generate run --load-state "$kept" --tokens 1 || failed 'the state is not kept'
check "$ovq" generate run --load-state "$kept" --tokens 1 --save-state "$kept"  # a state may replace a state

# The run from another directory, also as stored by older versions, which kept paths as typed, and without the
# tokenizer.
mkdir elsewhere
for name in train test tokenizer; do grep -qF "\"$name\": \"$work/" run/run.json || failed "the path of $name in run.json"; done
(cd elsewhere && "$ovq" eval ../run --lengths 32 --rows 2) >out 2>err || failed 'eval from elsewhere'
cp -r run again && sed -i 's/"steps": 2/"steps": 3/' again/run.json
(cd elsewhere && "$ovq" train --resume ../again) >out 2>err || failed 'train --resume from elsewhere'
cp -r run typed && sed -i "s|\"$work/|\"|; s/\"steps\": 2/\"steps\": 3/" typed/run.json
check "$ovq" eval typed --lengths 32 --rows 2
mv words.model moved.model
for run in run typed; do check "$ovq" eval $run --lengths 32 --rows 2; done
check "$ovq" train --resume typed

((failures == 0)) && echo "files as expected"
exit $((failures > 0))
